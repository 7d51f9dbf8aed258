"""When a queue is looked at again: by the poll, after a wake, when something comes due."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Iterable
from heapq import heappop, heappush
from time import monotonic

from django_workqueue.notify import Wakeup

from .lane import Lane

FLOOR = 0.005  # seconds; see Look.found
GRAIN = 0.02  # seconds to which the times are rounded up at which work comes due, …
MOST_DUES = 500  # … and how many of them are remembered; for the rest there is the poll
ASKS_EVERY = 0.1  # seconds: how often it is asked when what is scheduled comes due …
ASKS_RARELY = 1.0  # … where others take it again and again, or it is not for this lane …
ASKS_SHARE = 100  # … and if that takes x, twice running, not again within 100 x …
ASKS_AT_LEAST_EVERY = 60.0  # … or this


class Look:
    """When a lane is to be looked at again, and why."""

    def __init__(self, lane: Lane, ring: Callable[[], None]) -> None:
        self.lane = lane
        self.at = 0.0
        self.woken = True
        self.dry = False  # of a drain: a claim that was sent when nothing was in anybody's hands found nothing
        self._floor = 0.0  # seconds from a look to the next that a wake may cause …
        self._looked_at = 0.0
        self._announced: deque[float] = deque()  # when work will come due, as the settler has it …
        self._dues: list[float] = []  # … and as a heap, which is the claimer's alone
        self._scheduled = math.inf  # when the first of what is scheduled comes due, as the database has it …
        self._ask_at = 0.0  # … when that may be asked again …
        self._asks_every = ASKS_EVERY  # … and after that
        self._answer_took = 0.0  # seconds
        self.wakeup = _Latch(self, ring)

    def wake(self) -> None:
        """There may be work: look at once, or where the last wakes were in vain, a little later."""
        self.woken = True
        self.dry = False
        self.at = min(self.at, self._looked_at + self._floor)

    def is_due(self, now: float) -> bool:
        """Whether it is time to look. Once it is, it stays so until a claim has come back."""
        self._note_dues()
        if self.at <= now:
            self.at = float("inf")
            self.lane.hungry = True
        return self.lane.hungry

    def due_in(self, delays: Iterable[float]) -> None:
        """From any thread: work will be due in so many seconds, each."""
        now = monotonic()
        self._announced.extend(now + delay for delay in delays)

    def found(self, number: int, *, sent_at: float, was_woken: bool, poll: float) -> None:
        """A claim has come back."""
        self._looked_at = sent_at
        if number:
            self.dry = False
            self._floor = 0.0
            self._asks_every = ASKS_EVERY
        elif was_woken or self._scheduled <= sent_at:
            # … which grows from one vain wake to the next, so that a herd does not run for every crumb
            self._floor = min(max(FLOOR, self._floor * 2), self.lane.source.min_wake_interval.total_seconds())
        while self._dues and self._dues[0] <= sent_at:
            heappop(self._dues)
        if self._scheduled <= sent_at:
            self._scheduled = math.inf
            if not number:
                self._asks_every = min(2 * self._asks_every, ASKS_RARELY)
        self._look_by(min([sent_at + poll, *self._dues[:1]]))

    def may_ask(self, now: float) -> bool:
        """Whether to ask the database when work comes due; if not, there is another look when that may be asked."""
        if now < self._ask_at:
            self._look_by(min(self.at, self._ask_at))
        return now >= self._ask_at

    def scheduled(self, due_in: float, *, asked_at: float) -> None:
        """The database's answer: in so many seconds, or not before the look that it was asked for."""
        now = monotonic()
        before, self._answer_took = self._answer_took, now - asked_at
        usual = min(before, self._answer_took)  # once may be the machine's mood
        self._ask_at = now + max(self._asks_every, min(ASKS_SHARE * usual, ASKS_AT_LEAST_EVERY))
        self._scheduled = max(_rounded_up(now + due_in), self._looked_at + self._floor)
        self._look_by(self.at)

    def _look_by(self, at: float) -> None:
        self.at = min(at, self._scheduled)
        if self.woken:  # in the meantime
            self.wake()

    def _note_dues(self) -> None:
        while self._announced:
            due = _rounded_up(self._announced.popleft())
            if len(self._dues) < MOST_DUES and due not in self._dues:
                heappush(self._dues, due)
            self._look_by(min(self.at, due))


def _rounded_up(due: float) -> float:
    return due if due == math.inf else math.ceil(due / GRAIN) * GRAIN


class _Latch(Wakeup):
    """A queue's wakes, passed on to the claimer's bell."""

    def __init__(self, look: Look, ring: Callable[[], None]) -> None:
        self._look = look
        self._ring = ring
        super().__init__(look.lane.source.alias, look.lane.source.name, linger=None)

    def set(self) -> None:
        self._look.wake()
        self._ring()
