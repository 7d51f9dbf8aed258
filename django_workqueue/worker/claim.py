"""Claiming: how much, of which queue, and when to look again; on a thread and connection of its own.

The next claim is sent while handlers run. A claim that is lost in a crash is only made again, so it need not
reach the disk.
"""

from __future__ import annotations

import random
import threading
from collections.abc import Callable, Sequence
from time import monotonic
from typing import Protocol

from django_workqueue.database import Connection
from django_workqueue.engine import Claim
from django_workqueue.notify import Wakeup

from .bell import Bell
from .keeper import Keeper
from .lane import Batch, Lane
from .outage import Outage, Patience
from .settle import Settler

BEHIND = 4  # so many full claims may wait to be settled before nothing more is claimed
FLOOR = 0.005  # seconds; see Look
STALE = 1.0  # seconds that work in hand may wait for a slot before it is given back for others to take


class Slots(Protocol):
    """What runs a lane's work, as its claimer sees it: `Pool` or `loop.Group`."""

    size: int

    @property
    def idle(self) -> int:
        """How many slots have nothing to do."""

    def wake(self) -> None:
        """There is work in hand."""


class Budget:
    """How much may still be claimed, of `--max-items`; without end if None."""

    def __init__(self, limit: int | None) -> None:
        self._left = limit
        self._asked_for = 0  # by claims that are under way
        self._lock = threading.Lock()  # guards both

    def take(self, wanted: int) -> int:
        """So much of what is wanted may be claimed."""
        if self._left is None:
            return wanted
        with self._lock:
            granted = min(wanted, self._left)
            self._left -= granted
            self._asked_for += granted
            return granted

    def claimed(self, number: int, *, of: int) -> None:
        """So much was claimed of what might be."""
        if self._left is not None:
            with self._lock:
                self._asked_for -= of
                self._left += of - number

    def give_back(self, number: int) -> None:
        """So much of it was not started."""
        if self._left is not None:
            with self._lock:
                self._left += number

    @property
    def spent(self) -> bool:
        """Whether nothing more may be claimed."""
        return self._left == 0 and not self._asked_for


class Look:
    """When a lane is to be looked at again, and why."""

    def __init__(self, lane: Lane, ring: Callable[[], None]) -> None:
        self.lane = lane
        self.at = 0.0
        self.woken = True
        self.dry = False  # of a drain: a claim that was sent when nothing was in anybody's hands found nothing
        self._floor = 0.0  # seconds from a look to the next that a wake may cause …
        self._looked_at = 0.0
        self.wakeup = _Latch(self, ring)

    def wake(self) -> None:
        """There may be work: look at once, or where the last wakes were in vain, a little later."""
        self.woken = True
        self.dry = False
        self.at = min(self.at, self._looked_at + self._floor)

    def is_due(self, now: float) -> bool:
        """Whether it is time to look. Once it is, it stays so until a claim has come back."""
        if self.at <= now:
            self.at = float("inf")
            self.lane.hungry = True
        return self.lane.hungry

    def due_in(self, seconds: float) -> None:
        """Work will be due by then."""
        self.at = min(self.at, monotonic() + seconds)

    def found(self, number: int, *, sent_at: float, was_woken: bool, poll: float) -> None:
        """A claim has come back."""
        self._looked_at = sent_at
        if number:
            self.dry = False
            self._floor = 0.0
        elif was_woken:  # … which grows from one vain wake to the next, so that a herd does not run for every crumb
            self._floor = min(max(FLOOR, self._floor * 2), self.lane.source.min_wake_interval.total_seconds())
        self.at = sent_at + poll
        if self.woken:  # in the meantime
            self.wake()


class _Latch(Wakeup):
    """A queue's wakes, passed on to the claimer's bell."""

    def __init__(self, look: Look, ring: Callable[[], None]) -> None:
        self._look = look
        self._ring = ring
        super().__init__(look.lane.source.alias, look.lane.source.name, linger=None)

    def set(self) -> None:
        self._look.wake()
        self._ring()


class Claimer:
    """Claims for the lanes of one alias.

    For a drain it is given `busy`, and `drained` becomes true, and `checked` is called, once nothing is due.
    """

    def __init__(
        self,
        alias: str,
        lanes: Sequence[Lane],
        *,
        slots_of: Callable[[Lane], Slots],
        keeper: Keeper,
        settler: Settler,
        outage: Outage,
        budget: Budget,
        poll: float,
        busy: Callable[[], bool] | None,
        checked: Callable[[], None],
    ) -> None:
        self.bell = Bell()
        self.looks = [Look(lane, self.bell.ring) for lane in lanes]
        self._slots_of = slots_of
        self._keeper = keeper
        self._settler = settler
        self._budget = budget
        self._poll = poll
        self._busy = busy  # of a drain: whether anything is in hand anywhere
        self._behind = False  # whether nothing is claimed because too much waits to be settled
        self._checked = checked
        self._turn = 0
        self._stopping = False
        self._connection = Connection(alias, application="django_workqueue claim", synchronous_commit=False)
        self._patience = Patience("claim", outage)
        self._thread = threading.Thread(target=self._run, name=f"workqueue-claim-{alias}", daemon=True)

    @property
    def drained(self) -> bool:
        """Whether nothing is due in any lane, as far as a look could tell."""
        return all(look.dry for look in self.looks)

    def start(self) -> None:
        """Claim from now on."""
        for look in self.looks:
            look.wakeup.attend()
        self._thread.start()

    def stop(self) -> None:
        """Claim no more. What a claim under way brings is given back."""
        self._stopping = True
        self.bell.ring()

    def join(self, deadline: float) -> bool:
        """Wait for the thread until `deadline`; whether it has ended."""
        self._thread.join(max(0.0, deadline - monotonic()))
        return not self._thread.is_alive()

    def due_again(self, lane: Lane, seconds: float) -> None:
        """Work of a lane will be due in so many seconds."""
        for look in self.looks:
            if look.lane is lane:
                look.due_in(seconds)
        self.bell.ring()

    def closed(self) -> None:
        """A claim, of whichever alias, is done with: there may be more to do now, and room for it."""
        if self._busy is not None:
            for look in self.looks:
                look.dry = False
            self.bell.ring()
        elif self._behind:
            self.bell.ring()

    def _run(self) -> None:
        while not self._stopping:
            try:
                self._step()
            except Exception as error:  # noqa: BLE001 - a thread's outer edge: Patience logs it
                self._failed(error)
        for look in self.looks:
            look.wakeup.close()
        self._connection.close()

    def _step(self) -> None:
        look, wanted = self._neediest()
        if look is None:
            self.bell.wait(self._pause())
        else:
            self._claim(look, wanted)

    def _neediest(self) -> tuple[Look | None, int]:
        """The next lane, in turn, that wants work and may have some."""
        now = monotonic()
        self._behind = False
        for _ in self.looks:
            self._turn = (self._turn + 1) % len(self.looks)
            look = self.looks[self._turn]
            if look.is_due(now) or self._is_to_be_wrung_dry(look):
                wanted = self._wanted(look.lane)
                if wanted:
                    return look, wanted
        return None, 0

    def _is_to_be_wrung_dry(self, look: Look) -> bool:
        return self._busy is not None and not look.dry and not self._busy()

    def _wanted(self, lane: Lane) -> int:
        """How much to claim: enough to have the target in hand, but not by driblets."""
        target = lane.target(self._slots_of(lane).idle)
        lane.low = target // 2  # before looking at what is there: from here on the slots ring when it falls to that
        in_hand = len(lane.hand)
        if in_hand > target // 2 or in_hand >= target:
            return 0
        if lane.unsettled() > BEHIND * lane.source.max_claim:
            self._behind = True
            return 0
        return self._budget.take(min(target - in_hand, lane.source.max_claim))

    def _claim(self, look: Look, wanted: int) -> None:
        lane = look.lane
        quiet = self._busy is not None and not self._busy()
        was_woken, look.woken = look.woken, False
        sent_at = monotonic()
        try:
            claim = lane.source.claim_on(self._connection, wanted, lane.lease, lane.kinds)
        except Exception as error:  # noqa: BLE001 - a thread's outer edge: Patience judges and logs it
            self._budget.claimed(0, of=wanted)
            look.woken = was_woken or look.woken
            self._failed(error)
            return
        self._patience.succeeded()
        if claim.works:
            self._take_in_hand(lane, claim)
        elif quiet and not claim.full:
            look.dry = True
            self._checked()
        self._budget.claimed(len(claim.works), of=wanted)
        lane.hungry = claim.full
        if not claim.full:
            lane.low = -1
        look.found(len(claim.works), sent_at=sent_at, was_woken=was_woken, poll=self._poll * random.uniform(0.8, 1.2))

    def _take_in_hand(self, lane: Lane, claim: Claim) -> None:
        lane.tally.claimed += len(claim.works)
        lane.tally.reclaimed += claim.reclaimed
        batch = Batch(lane, claim)
        lane.open[claim.fence.token] = batch
        try:
            self._keeper.hold(batch)
        except BaseException:
            lane.open.pop(claim.fence.token)  # it lapses
            raise
        lane.put(batch)
        if self._stopping:
            lane.turn_back()
            self._settler.ring()
        else:
            self._slots_of(lane).wake()

    def _failed(self, error: Exception) -> None:
        pause, remake = self._patience.failed(error)
        if remake:
            self._connection.close()
        until = monotonic() + pause
        while not self._stopping and monotonic() < until:
            self.bell.wait(until - monotonic())

    def _pause(self) -> float | None:
        """Seconds until there may be something to do without a ring."""
        now = monotonic()
        until = min(look.at for look in self.looks)
        for lane in (look.lane for look in self.looks if look.lane.hand):
            self._give_back_stale(lane, now)
            until = min(until, now + STALE / 2)
        return None if until == float("inf") else max(0.0, until - now)

    def _give_back_stale(self, lane: Lane, now: float) -> None:
        """Let others have what waits in hand for slots that have become slow."""
        try:
            batch, _ = lane.hand[0]
        except IndexError:
            return
        if now - batch.claimed_at < STALE:
            return
        lane.slow_down()
        self._budget.give_back(lane.turn_back(beyond=lane.size or 1))
        self._settler.ring()
