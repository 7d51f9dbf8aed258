"""One thread of the pool, and what it does with each piece of work.

This is the worker's innermost loop: what is done here is done for every item.
"""

from __future__ import annotations

from contextlib import suppress
from contextvars import Context
from itertools import repeat
from time import monotonic
from typing import TYPE_CHECKING, Any

from django_workqueue.engine import Outcome, Verb

from . import journal, tidy
from .call import ZERO, Call, late, what
from .lane import Batch, Lane
from .thread import Thread
from .timeouts import Alarm

if TYPE_CHECKING:
    from .pool import Pool

TURN = 0.01  # seconds on one lane before the others have their turn
NOTE = 0.001  # seconds of work after which the run time is noted


class Slot:
    """A thread. `current` is what it runs: the claim it is of, and the work (a list for a batch handler)."""

    def __init__(self, pool: Pool, number: int) -> None:
        self.pool = pool
        self.turn = number  # where in the lanes' order it looks next
        self.current: tuple[Batch, Any] | None = None
        self.leaked = False
        self.alarm: Alarm | None = None
        self.thread = Thread(target=self._run, name=f"workqueue-handler-{number}", daemon=True)

    def report_leak(self) -> None:
        """Say what it is that does not come back."""
        current = self.current
        if current is None:
            return
        batch, work = current
        first = work[0] if isinstance(work, list) else work
        call = batch.lane.calls[getattr(first, "kind", None)]
        journal.ran_past(call.handler, what(first), seconds=call.timeout or 0)

    def _run(self) -> None:
        pool = self.pool
        ident = tidy.watch()
        if pool.watchdog is not None:
            self.alarm = pool.watchdog.add(self)
        try:
            while not self.leaked:
                lane = pool.take(self)
                if lane is not None:
                    try:
                        self._work(lane, ident)
                    except BaseException as error:  # noqa: BLE001 - a thread's outer edge: see below
                        self._answer_for_current(error)
                    finally:
                        pool.leave(lane)
                elif pool.closing:
                    return
                elif not pool.rest(connected=ident in tidy.connected):
                    tidy.tidy()
        finally:
            pool.ended(self)
            tidy.unwatch()

    def _work(self, lane: Lane, ident: int) -> None:
        if lane.size is not None:
            self._work_batches(lane, ident)
        elif lane.is_plain:
            self._work_plainly(lane, ident)
        else:
            self._work_with_care(lane, ident)

    def _answer_for_current(self, error: BaseException) -> None:
        """Something went wrong beside the handler. Work without an outcome would be renewed for ever."""
        current, self.current = self.current, None
        if current is not None:
            batch, work = current
            batch.answer_for(work if isinstance(work, list) else [work], error)
            batch.lane.settler.ring()
        with suppress(BaseException):  # where it is the logging that went wrong, the thread goes on all the same
            journal.broken("a handler thread", error)

    def _work_plainly(self, lane: Lane, ident: int) -> None:  # noqa: C901, PLR0912, PLR0915 - calls cost too much here
        """No timeouts: the fast path."""
        hand, margin, calls, settler = lane.hand, lane.margin, lane.calls, lane.settler
        of_keys = calls.get(None)
        popleft, connected = hand.popleft, tidy.connected
        begun = now = monotonic()
        until = now + TURN if self.pool.shared else float("inf")
        number = 0
        while now < until:
            try:
                batch, work = self.current = popleft()
            except IndexError:
                break
            if len(hand) <= lane.low:
                lane.ask()
            fence = batch.fence
            if (fence.lost or fence.deadline - now < margin) and not batch.may_start(work):
                batch.done.append(Outcome(work, Verb.RETURN))
                settler.ring()
                continue
            if batch.marks:
                if number:
                    lane.ran(number, now - begun)
                self._work_one(lane, batch, work, ident)
                begun = now = monotonic()
                number = 0
                continue
            call = of_keys or calls[work.kind]
            if ident in connected:
                tidy.tidy()
            began = now
            batch.begun.append((work, now))
            try:
                result = Context().run(call.fn, work)
            except BaseException as error:  # noqa: BLE001 - a handler's SystemExit is that item's failure
                now = monotonic()
                outcome = call.raised(work, error, now - began)
            else:
                now = monotonic()
                ran = now - began
                if result is None:
                    outcome = Outcome(work, _COMPLETE, ZERO, None, None, ran)
                else:
                    outcome = call.returned(work, result, ran)
            self.current = None
            batch.done.append(outcome)
            if settler.asleep:
                settler.ring()
            if ident in connected:
                tidy.after(call.handler, cut_off=False)
            number += 1
            if now - begun > NOTE:
                lane.ran(number, now - begun)
                begun, number = now, 0
        if number:
            lane.ran(number, now - begun)
        self.current = None

    def _work_with_care(self, lane: Lane, ident: int) -> None:
        """With timeouts."""
        until = monotonic() + TURN
        while not self.leaked:
            taken = lane.take()
            if taken is None:
                break
            batch, (work,) = taken
            self.current = (batch, work)
            self._work_one(lane, batch, work, ident)
            if monotonic() > until and self.pool.shared:
                break

    def _work_one(self, lane: Lane, batch: Batch, work: Any, ident: int) -> None:
        """One piece, whose start may have to be marked and whose handler may have a timeout."""
        if self._admitted(lane, batch, work):
            call = lane.only or lane.calls[work.kind]
            batch.begun.append((work, monotonic()))
            result, error, ran = self._call(call, work, ident)
            batch.done.append(call.returned(work, result, ran) if error is None else call.raised(work, error, ran))
            lane.ran(1, ran)
        else:
            batch.done.append(Outcome(work, Verb.RETURN))
        self.current = None
        lane.settler.ring()

    def _work_batches(self, lane: Lane, ident: int) -> None:
        """A batch handler."""
        (call,) = lane.calls.values()
        until = monotonic() + TURN
        while not self.leaked:
            taken = lane.take()
            if taken is None:
                break
            batch, works = taken
            self.current = taken
            startable = [work for work in works if batch.may_start(work)]
            if len(startable) < len(works):
                may = set(map(id, startable))
                batch.done.extend(Outcome(work, Verb.RETURN) for work in works if id(work) not in may)
            if startable:
                batch.begun.extend(zip(startable, repeat(monotonic())))
                result, error, ran = self._call(call, list(startable), ident)
                batch.done += (
                    call.all_returned(startable, result, ran)
                    if error is None
                    else call.all_raised(startable, error, ran)
                )
                lane.ran(len(startable), ran)
            self.current = None
            lane.settler.ring()
            if monotonic() > until and self.pool.shared:
                break

    def _admitted(self, lane: Lane, batch: Batch, work: Any) -> bool:
        if not batch.may_start(work):
            return False
        if batch.marks and lane.source.marks_start(work):
            return self.pool.starter.start(lane, batch, work) and batch.may_start(work)
        return True

    def _call(self, call: Call, argument: Any, ident: int) -> tuple[Any, BaseException | None, float]:
        """Result, exception, and the seconds it took."""
        if ident in tidy.connected:
            tidy.tidy()
        began = monotonic()
        result, error, rang = None, None, False
        try:
            if call.timeout is None or self.alarm is None or self.pool.watchdog is None:
                result = Context().run(call.fn, argument)
            else:
                fn = call.fn
                result, error, rang = self.pool.watchdog.guarded(
                    self.alarm, call.timeout, lambda: Context().run(fn, argument)
                )
        except BaseException as raised:  # noqa: BLE001 - a handler's SystemExit is that item's failure
            error = raised
        ran = monotonic() - began
        if rang:
            error = late(error)
        if ident in tidy.connected:
            tidy.after(call.handler, cut_off=rang)
        return result, error, ran


_COMPLETE = Verb.COMPLETE
