"""The work in a process's hands: one lane for each way of claiming, one batch for each claim.

Holds it and knows how much to ask for. Who claims, runs and settles it is for others.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterable, Iterator
from datetime import timedelta
from itertools import repeat
from typing import TYPE_CHECKING, Any

from django_workqueue.backoff import exponential
from django_workqueue.engine import TO_BE_FOUND, Claim, Handler, Outcome, Source, Verb

from .bell import Bell
from .call import Call
from .counts import Tally

if TYPE_CHECKING:
    from .settle import Settler

HORIZON = 0.1  # seconds of work to have in hand: what a claim's round trip is hidden behind
FAMILIARITY = 32  # so many runs make the mean run time

_DELAY = exponential()  # of work whose own backoff cannot be asked


class Batch:
    """One claim's work, from the claim until all of it is settled.

    `done` grows by one outcome at a time, from whichever thread ran it; its first `settled` are written, but for those
    that are set `aside`. So does `begun`, by what is started and when, of which the first `counted` are in the minute
    counters.
    """

    __slots__ = (
        "aside",
        "begun",
        "claimed_at",
        "counted",
        "done",
        "dropped",
        "ended",
        "fence",
        "lane",
        "marks",
        "settled",
        "works",
    )

    def __init__(self, lane: Lane, claim: Claim) -> None:
        self.lane = lane
        self.fence = claim.fence
        self.works = claim.works
        self.marks = claim.marks
        self.begun: list[tuple[Any, float]] = []
        self.counted = 0
        self.done: list[Outcome] = []
        self.settled = 0
        self.aside: set[int] = set()  # ids of works whose rows a stranger holds, so that their outcomes must wait
        self.dropped: set[Any] = set()  # idents that are no longer renewed
        self.ended: set[Any] = set()  # idents of `fence.lost` that nobody took over
        self.claimed_at = time.monotonic()

    def may_start(self, work: Any) -> bool:
        """Whether the lease of `work` is still ours and long enough to start anything in."""
        fence = self.fence
        if fence.remaining() < self.lane.margin:
            return False
        return not fence.lost or self.lane.source.idents([work])[0] not in fence.lost

    def answer_for(self, works: Iterable[Any], error: BaseException | None) -> None:
        """Give an outcome to what has none, or it would be renewed for ever: what was started has failed, and the
        rest goes back."""
        done = {id(outcome.work) for outcome in list(self.done)}
        begun = {id(work) for work, _ in list(self.begun)}
        for work in works:
            if id(work) not in done:
                self.done.append(
                    Outcome(work, Verb.FAIL, _DELAY(work.attempts), error)
                    if id(work) in begun
                    else Outcome(work, Verb.RETURN)
                )

    def held(self) -> list[Any]:
        """The idents whose leases are to be renewed."""
        settled = {id(outcome.work) for outcome in self.done[: self.settled]} - self.aside
        idents = self.lane.source.idents([work for work in self.works if id(work) not in settled])
        gone = self.dropped | self.fence.lost
        return [ident for ident in idents if ident not in gone]

    def lose(self, idents: Iterable[Any], *, ended: bool = False) -> list[Any]:
        """Mark as lost, or ended, those of `idents` that have no outcome yet; their works."""
        done = {id(outcome.work) for outcome in list(self.done)}
        undone = [work for work in self.works if id(work) not in done]
        gone = set(idents) - self.fence.lost
        pairs = [(ident, work) for ident, work in zip(self.lane.source.idents(undone), undone, strict=True)]
        new = {ident for ident, _ in pairs if ident in gone}
        if ended:
            self.ended |= new
        self.fence.lost |= new
        return [work for ident, work in pairs if ident in gone]


class Lane:
    """Handlers of one source whose work is claimed together: same lease, same world (sync or async).

    A handler with a `concurrency` of its own, or that takes batches, has a lane to itself.
    """

    def __init__(self, handlers: list[Handler], *, number: int) -> None:
        first = handlers[0]
        self.number = number
        self.handlers = handlers
        self.source: Source = first.source
        self._kinds = None if first.kind is None else _kinds(handlers)
        self._seen = len(self.source.handlers)
        self.lease: timedelta = first.lease
        self.seconds = first.lease.total_seconds()
        self.size = first.size
        self.is_async = first.is_async
        self.bound = first.concurrency
        timeouts = [handler.timeout for handler in handlers]
        self.longest = None if None in timeouts else max(timeout.total_seconds() for timeout in timeouts if timeout)
        # Less than this of a lease is too little to start anything in.
        self.margin = min(self.seconds / 4, 5.0)
        self.horizon = min(HORIZON, self.seconds / 10)
        self.tally = Tally()

        self.calls: dict[str | None, Call] = {}
        self.hand: deque[tuple[Batch, Any]] = deque()
        self.open: dict[int, Batch] = {}  # by token: claimed and not yet all settled
        self.slots = 1
        self.permits: deque[None] | None = None
        self.run_time: float | None = None  # mean seconds of a slot for one piece of work
        self.hungry = False  # the last claim came back full
        self.low = -1  # with no more than this in hand, the claimer is rung
        self.tell_at = 0.0  # when others may be woken again for what we look for, too
        self.bell = Bell()  # the claimer's
        self.settler: Settler

    def prepare(self, *, slots: int, bell: Bell, settler: Settler) -> None:
        """Make ready to work with so many slots (threads or tasks) at most."""
        self.settler = settler
        self.calls = {handler.kind: Call(handler) for handler in self.handlers}
        self.slots = min(slots, self.bound) if self.bound is not None else slots
        self.permits = deque(repeat(None, self.bound)) if self.bound is not None and self.bound < slots else None
        self.bell = bell

    @property
    def only(self) -> Call | None:
        """The one call of a lane with a single handler."""
        return next(iter(self.calls.values())) if len(self.calls) == 1 else None

    @property
    def is_plain(self) -> bool:
        """Whether its handlers are called one piece at a time and without a timeout, and none are still to be found."""
        if self.size is not None or self.source.finder is not None:
            return False
        return all(call.timeout is None for call in self.calls.values())

    @property
    def kinds(self) -> list[str] | None:
        """Which kinds of job to claim: those that have a handler by now. None for keys."""
        if self.source.finder is not None and len(self.source.handlers) > self._seen:
            self._adopt()
        return self._kinds

    def _adopt(self) -> None:
        """Take in the handlers that were found since."""
        found = list(self.source.handlers)
        self._seen = len(found)
        for handler in found:
            alike = _together(handler) and (handler.lease, handler.is_async) == (self.lease, self.is_async)
            if alike and handler.kind not in self.calls:
                self.handlers.append(handler)
                self.calls[handler.kind] = Call(handler)
        self._kinds = _kinds(self.handlers)

    def put(self, batch: Batch) -> None:
        """Take a claim's work in hand."""
        self.hand.extend(zip(repeat(batch), batch.works))

    def take(self) -> tuple[Batch, list[Any]] | None:
        """The next works in hand: one, or for a batch handler up to its size, of one claim and so under one fence."""
        hand, works = self.hand, list[Any]()
        owner: Batch | None = None
        while len(works) < (self.size or 1):
            try:
                batch, work = hand.popleft()
            except IndexError:
                break
            if owner is not None and batch is not owner:
                hand.appendleft((batch, work))
                break
            owner = batch
            works.append(work)
        if len(hand) <= self.low:
            self.ask()
        return None if owner is None else (owner, works)

    def ask(self) -> None:
        """There is little left in hand: have more claimed."""
        self.low = -1
        self.bell.ring()

    def ran(self, number: int, seconds: float) -> None:
        """A slot worked on `number` pieces of work for so long. Called by many threads; a lost update is harmless."""
        mean = seconds / number
        known = self.run_time
        self.run_time = mean if known is None else known + (mean - known) * min(1.0, number / FAMILIARITY)

    def slow_down(self) -> None:
        """What is in hand waits for long: hold next to nothing until runs show that they are quick again."""
        self.run_time = max(self.run_time or 0.0, self.slots * self.horizon)

    def target(self, idle: int) -> int:
        """How much to have in hand, with so many slots idle."""
        per_slot = self.size or 1
        aim = min(idle, self.slots) * per_slot
        if self.run_time is not None:
            soon = self.slots * self.horizon / max(self.run_time, 1e-9)
            aim = max(aim, int(min(soon, 2 * self.source.max_claim)))
        if not self.open:
            aim = max(aim, per_slot)  # a place in the queue for the slots, however busy the others keep them
        return aim

    def turn_back(self, *, beyond: int = 0) -> int:
        """Give back what is in hand and was not started, but for the first `beyond`; how much that was."""
        number = 0
        while len(self.hand) > beyond:
            try:
                batch, work = self.hand.pop()
            except IndexError:
                break
            batch.done.append(Outcome(work, Verb.RETURN))
            number += 1
        return number

    def unsettled(self) -> int:
        """How many outcomes wait to be written."""
        return sum(len(batch.done) - batch.settled for batch in list(self.open.values()))

    def running(self) -> list[tuple[Batch, Any]]:
        """What was started and has no outcome."""
        waiting = {id(work) for _, work in list(self.hand)}
        found = []
        for batch in list(self.open.values()):
            done = {id(outcome.work) for outcome in list(batch.done)}
            found += [(batch, work) for work in batch.works if id(work) not in done and id(work) not in waiting]
        return found


def lanes_of(sources: Iterable[Source]) -> list[Lane]:
    """The lanes that work these sources, in an order that is the same in every process forked from this one."""
    return [Lane(handlers, number=number) for number, handlers in enumerate(_groups(sources))]


def _groups(sources: Iterable[Source]) -> Iterator[list[Handler]]:
    for source in sources:
        together: dict[tuple[timedelta, bool], list[Handler]] = {}
        for handler in source.handlers:
            if _together(handler):
                together.setdefault((handler.lease, handler.is_async), []).append(handler)
            else:
                yield [handler]
        yield from together.values()


def _together(handler: Handler) -> bool:
    """Whether it may share a lane."""
    return handler.kind is not None and handler.concurrency is None and handler.size is None


def _kinds(handlers: Iterable[Handler]) -> list[str]:
    return sorted(str(handler.kind) for handler in handlers if handler.kind != TO_BE_FOUND)
