"""The event loop that runs async handlers, on one thread of its own.

Each handler is a task in a fresh context, so that nothing that it sets reaches another. A slot keeps the
thread in which asgiref runs its database work, and so its connections. Claiming and settling is for others.
"""

from __future__ import annotations

import asyncio
import contextvars
from collections.abc import Callable, Sequence
from concurrent.futures import CancelledError as Cancelled
from concurrent.futures import Future
from concurrent.futures import TimeoutError as NotInTime
from functools import partial
from itertools import repeat
from time import monotonic
from typing import Any

from asgiref.sync import ThreadSensitiveContext, sync_to_async

from django_workqueue.engine import Handler, Outcome, Verb
from django_workqueue.exceptions import HandlerTimeout

from . import journal, tidy
from .call import Call, what
from .lane import Batch, Lane
from .starts import Starter
from .thread import Thread
from .timeouts import GRACE

A_MOMENT = 0.1  # seconds that closing takes when nothing runs any more, however late it is

Dropped = Callable[[Batch, Sequence[object]], None]


class Loop:
    """The thread, its event loop, and the groups of slots on it. `worn_out` is told when the loop cannot go on."""

    def __init__(self, *, worn_out: Callable[[], None]) -> None:
        self.loop = asyncio.new_event_loop()
        self.groups: list[Group] = []
        self._worn_out = worn_out
        self._closing = False
        self._thread = Thread(target=self._run, name="workqueue-loop", daemon=True)

    def start(self) -> None:
        """Run the loop from now on."""
        tidy.listen()
        self._thread.start()

    def cancel(self, works: Sequence[Any], verb: Verb | None) -> None:
        """From any thread: cancel the handlers of these, with what then becomes of the work (None: it is lost)."""
        wanted = {id(work) for work in works}
        for group in self.groups:
            self._soon(group.cancel, wanted, verb)

    def close(self, deadline: float) -> bool:
        """End what still runs, and the thread, by `deadline`; whether that worked. Idle connections are closed."""
        if self._thread.ident is None:
            self.loop.close()
            return True
        ending = self._close()
        try:
            closing: Future[None] = asyncio.run_coroutine_threadsafe(ending, self.loop)
            closing.result(max(A_MOMENT, deadline - monotonic()))
        except (NotInTime, Cancelled):
            pass
        except RuntimeError:  # the loop is closed
            ending.close()
        self._closing = True
        self._soon(self.loop.stop)
        self._thread.join(max(0.0, deadline - monotonic()))
        return not self._thread.is_alive()

    async def _close(self) -> None:
        for group in self.groups:
            await group.close()

    def _soon(self, call: Callable[..., None], *args: Any) -> None:
        try:
            self.loop.call_soon_threadsafe(call, *args)
        except RuntimeError:  # the loop is closed
            return

    def _run(self) -> None:
        asyncio.set_event_loop(self.loop)
        try:
            while not self._closing:
                self._run_on()
        except BaseException as error:  # noqa: BLE001 - a thread's outer edge
            journal.loop_ended(error)
            self._worn_out()
        finally:
            self.loop.close()

    def _run_on(self) -> None:
        """Run until told to stop. Whatever a handler brings that about with, the loop is whole and keeps all tasks."""
        try:
            self.loop.run_forever()
        except (SystemExit, KeyboardInterrupt) as error:  # asyncio lets these out, whichever task or callback raises
            journal.broken("a task or callback beside the handlers", error)
        else:
            if not self._closing:
                journal.loop_stopped()


class Slot:
    """One of a group's places: at most one handler at a time. Its context is what each handler's is copied from."""

    def __init__(self) -> None:
        self.context = contextvars.Context()
        self.connected = False  # see tidy.Holder
        self.current: tuple[Batch, Any] | None = None
        self.handler: Handler | None = None
        self.task: asyncio.Task[None] | None = None
        self.outcomes: list[Outcome] = []  # of what is current, as soon as they are known
        self.cancelled = False  # by us, as `verb` says
        self.verb: Verb | None = None
        self.timed_out = False
        self._thread_sensitive = ThreadSensitiveContext()
        self.context.run(self._enter)

    async def tidy(self) -> None:
        """Run in this slot's context."""
        if self.handler is not None:
            self.connected = await sync_to_async(tidy.after)(self.handler, cut_off=self.timed_out)

    async def close(self) -> None:
        """Run in this slot's context."""
        if self.connected:
            await sync_to_async(tidy.close)()
        await self._thread_sensitive.__aexit__(None, None, None)  # type: ignore[no-untyped-call]

    def _enter(self) -> None:
        """Enter the context manager, which waits for nothing: it only sets a context variable."""
        tidy.holder.set(self)
        entering = self._thread_sensitive.__aenter__()  # type: ignore[no-untyped-call]
        try:
            entering.send(None)
        except StopIteration:
            return


class Group:
    """`size` slots that work these lanes. Everything but `wake` and `idle` runs on the loop."""

    def __init__(self, loop: Loop, lanes: Sequence[Lane], size: int, *, starter: Starter, dropped: Dropped) -> None:
        self.lanes = list(lanes)
        self.size = size
        self.closing = False
        self._loop = loop.loop
        self._starter = starter
        self._dropped = dropped
        self._free: list[Slot] = []
        self._busy: set[Slot] = set()
        self._turn = 0
        self._woken = False
        loop.groups.append(self)

    @property
    def idle(self) -> int:
        """How many slots have nothing to do."""
        return self.size - len(self._busy)

    def wake(self) -> None:
        """From any thread: there is work in hand."""
        if not self._woken:
            self._woken = True
            try:
                self._loop.call_soon_threadsafe(self._pump)
            except RuntimeError:  # the loop is closed
                return

    def cancel(self, wanted: set[int], verb: Verb | None) -> None:
        """Cancel the handlers of these works."""
        for slot in list(self._busy):
            if slot.current is None or slot.task is None:
                continue
            works = slot.current[1] if isinstance(slot.current[1], list) else [slot.current[1]]
            if any(id(work) in wanted for work in works):
                slot.cancelled, slot.verb = True, verb
                slot.task.cancel()

    async def close(self) -> None:
        """Let go of the slots' threads and connections."""
        self.closing = True
        for slot in self._free:
            await self._loop.create_task(slot.close(), context=slot.context)
        self._free.clear()

    def _pump(self) -> None:
        """Start what can be started."""
        self._woken = False
        while len(self._busy) < self.size and not self.closing:
            taken = self._take()
            if taken is None:
                break
            lane, batch, works = taken
            slot = self._free.pop() if self._free else Slot()
            self._busy.add(slot)
            slot.current = (batch, works if lane.size is not None else works[0])
            slot.cancelled = slot.timed_out = False
            slot.outcomes = []
            slot.task = self._loop.create_task(self._one(slot, lane, batch, works), context=slot.context.copy())
            slot.task.add_done_callback(partial(self._ended, slot, lane, batch, works))
        if len(self._busy) < self.size:
            for lane in self.lanes:
                if lane.hungry and not lane.hand:
                    lane.ask()

    def _take(self) -> tuple[Lane, Batch, list[Any]] | None:
        """The next lane's next work, in turn."""
        for _ in self.lanes:
            self._turn = (self._turn + 1) % len(self.lanes)
            lane = self.lanes[self._turn]
            taken = lane.take()
            if taken is not None:
                return lane, *taken
        return None

    async def _one(self, slot: Slot, lane: Lane, batch: Batch, works: list[Any]) -> None:
        """One call of a handler, in a task and context of its own. Any code on the loop may cancel it at any point."""
        call = lane.only or lane.calls[works[0].kind]
        slot.handler = call.handler
        begun = monotonic()
        startable = [work for work in works if batch.may_start(work)]
        if startable and batch.marks and lane.source.marks_start(startable[0]):
            startable = startable if await self._mark(lane, batch, startable[0]) else []
        if startable:
            batch.begun.extend(zip(startable, repeat(monotonic())))
            argument = list(startable) if call.handler.size is not None else startable[0]
            slot.outcomes = await self._call(slot, call, batch, argument, startable)
        lane.ran(len(works), monotonic() - begun)

    def _ended(self, slot: Slot, lane: Lane, batch: Batch, works: list[Any], task: asyncio.Task[None]) -> None:
        """A task is over, whether or not it ever began: no slot and no work is lost to how it ended."""
        error = asyncio.CancelledError() if task.cancelled() else task.exception()
        slot.current = None
        batch.done.extend(slot.outcomes)
        if len(slot.outcomes) < len(works):
            batch.answer_for(works, error)
        lane.settler.ring()
        self._tidy(slot)
        if error is not None and not task.cancelled():
            journal.broken("a handler's task", error)

    async def _mark(self, lane: Lane, batch: Batch, work: Any) -> bool:
        future: asyncio.Future[bool] = self._loop.create_future()

        def answered(may: bool) -> None:  # noqa: FBT001 - the starter's callback
            if not future.done():
                future.set_result(may)

        self._starter.ask(lane, batch, work, lambda may: self._soon(answered, may))
        return await future and batch.may_start(work)

    async def _call(self, slot: Slot, call: Call, batch: Batch, argument: Any, works: list[Any]) -> list[Outcome]:
        timer = None
        if call.timeout is not None:
            timer = self._loop.call_later(call.timeout, self._ran_past, slot, call, batch, works)
        began = monotonic()
        try:
            result = await call.fn(argument)
        except BaseException as error:  # noqa: BLE001 - a handler's SystemExit is that item's failure
            return self._failed(slot, call, works, error, monotonic() - began)
        finally:
            if timer is not None:
                timer.cancel()
        ran = monotonic() - began
        if call.handler.size is not None:
            return call.all_returned(works, result, ran)
        return [call.returned(works[0], result, ran)]

    def _failed(self, slot: Slot, call: Call, works: list[Any], error: BaseException, ran: float) -> list[Outcome]:
        if slot.timed_out:
            timeout = HandlerTimeout()
            timeout.__cause__ = error
            error = timeout
        elif slot.cancelled and isinstance(error, asyncio.CancelledError):
            return [Outcome(work, slot.verb or Verb.RETURN) for work in works]
        return call.all_raised(works, error, ran)

    def _ran_past(self, slot: Slot, call: Call, batch: Batch, works: list[Any]) -> None:
        task = slot.task
        slot.timed_out = True
        self._dropped(batch, works)
        if task is None:
            return
        task.cancel()
        self._loop.call_later(GRACE, self._complain, slot, task, call, works[0])

    def _complain(self, slot: Slot, task: asyncio.Task[None], call: Call, work: Any) -> None:
        if slot.task is task and not task.done():
            journal.ran_past(call.handler, what(work), seconds=call.timeout or 0)

    def _tidy(self, slot: Slot) -> None:
        """Tidy the slot's connections if it has any, and let it be used again."""
        if slot.connected:
            tidying = self._loop.create_task(slot.tidy(), context=slot.context.copy())
            tidying.add_done_callback(partial(self._tidied, slot))
        else:
            self._let_go(slot)

    def _tidied(self, slot: Slot, task: asyncio.Task[None]) -> None:
        if task.cancelled():
            self._tidy(slot)
            return
        self._let_go(slot)
        error = task.exception()
        if error is not None:
            journal.broken("tidying connections", error)

    def _let_go(self, slot: Slot) -> None:
        self._busy.discard(slot)
        self._free.append(slot)
        self._pump()

    def _soon(self, call: Callable[..., None], *args: Any) -> None:
        try:
            self._loop.call_soon_threadsafe(call, *args)
        except RuntimeError:  # the loop is closed
            return
