"""One caller's entries on their way through the batcher: how far they have come, and how the caller is told.

Only the batcher moves a call's counters, under its lock.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time
from collections.abc import Iterable, Sequence
from typing import Any, Protocol, TypeVar

from .. import arguments
from ..exceptions import EnqueueTimeout, WorkqueueError

FREE_EVERY = 0.002  # seconds: how often a caller who writes without a thread looks whether another is done

E = TypeVar("E")
R_co = TypeVar("R_co", covariant=True)


class Lane(Protocol[E, R_co]):
    """What the calls of one queue have in common: how their entries are written. Hashed by identity."""

    name: str

    def write(self, entries: list[E]) -> Sequence[R_co] | None:
        """Make the entries durable in one statement; return a result for each, or None.

        They come in the order in which they arrived. How long they waited is for them to know: an entry with
        a delay carries the monotonic time at which it is due, and the write sends what is left of it. Entries
        come again when the connection broke before the answer, though they may have landed.
        """

    def after(self, entries: list[E]) -> None:
        """Called on the writing thread once the callers of these entries were answered. Errors are logged."""


class Call:
    """Entries that one caller wants written, `written <= taken <= size` of them, each of which weighs as `weight` do.

    Those between `written` and `taken` are in flight, as the one part that a batch has of the call. The first
    `admitted` are written even if the caller leaves.
    """

    __slots__ = (
        "admitted",
        "asked",
        "done",
        "entries",
        "error",
        "lane",
        "left",
        "results",
        "size",
        "taken",
        "weight",
        "written",
    )

    def __init__(self, lane: Lane[Any, Any], entries: Sequence[Any], weight: int = 1) -> None:
        self.lane = lane
        self.entries = tuple(entries)
        self.asked = self.size = len(self.entries)
        self.weight = weight
        self.admitted = 0
        self.taken = 0
        self.written = 0
        self.results: list[Any] | None = None
        self.error: BaseException | None = None
        self.done = False
        self.left = False

    def part(self) -> Sequence[Any]:
        """The entries in flight."""
        if self.taken - self.written == len(self.entries):
            return self.entries
        return self.entries[self.written : self.taken]

    def land(self, results: Sequence[Any] | None) -> bool:
        """What was in flight is durable, and these are its results; whether that was the last of it."""
        self.written = self.taken
        self.done = self.written == self.size
        if results is not None:
            self.results = self.results or []
            self.results += results
        return self.done

    def fail(self, error: BaseException) -> None:
        """Nothing more of the call will be written, for this reason."""
        self.error = error
        self.done = True

    def truncate(self) -> None:
        """Keep only what was admitted."""
        self.size = max(self.admitted, self.taken)
        self.entries = self.entries[: self.size]

    def outcome(self) -> list[Any] | None:
        """What the caller came for: the results, or the error raised. To be asked once.

        An error has one caller, so its traceback is not shared. It holds this frame, which must not hold it.
        """
        if self.error is None:
            return self.results
        error, self.error = self.error, None
        try:
            raise error
        finally:
            del error

    def late(self, timeout: float | None, trouble: str | None) -> EnqueueTimeout:
        """For the caller whose `timeout` has passed; the call is truncated already. `trouble` is the database's."""
        if not self.size:
            fate = "Nothing of the call was enqueued: too much is waiting already."
        elif self.size == self.asked:
            fate = "Taken on, and still likely to land."
        else:
            fate = f"Of {self.asked:,} entries the first {self.size:,} are still likely to land, the others will not."
        why = "" if trouble is None else f" The database does not answer: {trouble}"
        return EnqueueTimeout(f"Queue {self.lane.name!r}: not durable after {timeout:g} s. {fate}{why}")

    def forsaken(self) -> EnqueueTimeout:
        """For the caller that is no longer waited for."""
        return EnqueueTimeout(f"Queue {self.lane.name!r}: closed before the call was written. {self._fate()}")

    def broken(self, cause: BaseException) -> WorkqueueError:
        """For the caller of a batcher that broke down."""
        error = WorkqueueError(f"Queue {self.lane.name!r}: the batcher failed. {self._fate()}")
        error.__cause__ = cause
        return error

    def _fate(self) -> str:
        return "Nothing of it was enqueued." if not self.taken else "It may or may not have landed, wholly or in part."


class ThreadCall(Call):
    """A call whose caller blocks its thread, on a lock that is acquired twice: nothing cheaper can be waited on."""

    __slots__ = ("bell",)

    def __init__(self, lane: Lane[Any, Any], entries: Sequence[Any], weight: int = 1) -> None:
        super().__init__(lane, entries, weight)
        self.bell = threading.Lock()  # released to wake the caller
        self.bell.acquire()

    def wait(self, timeout: float | None) -> bool:
        """Whether it was answered in time."""
        return self.bell.acquire(timeout=lock_timeout(timeout))


class LoopCall(Call):
    """A call whose caller awaits, on the event loop that is running now."""

    __slots__ = ("_answered", "loop")

    def __init__(self, lane: Lane[Any, Any], entries: Sequence[Any], weight: int = 1) -> None:
        super().__init__(lane, entries, weight)
        self.loop = asyncio.get_running_loop()
        self._answered: asyncio.Future[bool] = self.loop.create_future()

    async def wait(self, timeout: float | None) -> bool:
        """Whether it was answered in time."""
        if timeout is None:
            return await self._answered
        timer = self.loop.call_later(timeout, self.expire)
        try:
            return await self._answered
        finally:
            timer.cancel()

    def answer(self) -> None:
        """End the wait, if it has not ended. On the loop."""
        if not self._answered.done():
            self._answered.set_result(True)

    def expire(self) -> None:
        """The time has passed. On the loop."""
        if not self._answered.done():
            self._answered.set_result(False)


def ring(calls: Iterable[Call]) -> None:
    """Wake the callers: threads one by one, awaiting ones with one hop to each event loop."""
    loops: dict[asyncio.AbstractEventLoop, list[LoopCall]] = {}
    for call in calls:
        if type(call) is ThreadCall:
            call.bell.release()
        elif isinstance(call, LoopCall):
            loops.setdefault(call.loop, []).append(call)
    for loop, answered in loops.items():
        with contextlib.suppress(RuntimeError):  # the loop is closed, so nobody awaits any more
            loop.call_soon_threadsafe(_answer, answered)


def _answer(calls: list[LoopCall]) -> None:
    for call in calls:
        call.answer()


def deadline_in(seconds: float | None) -> float | None:
    """The monotonic time in so many seconds; None for never. Raises `TypeError` for what is no number."""
    return None if seconds is None else time.monotonic() + arguments.seconds("timeout", seconds)


def seconds_until(deadline: float | None) -> float | None:
    """What is left until then, at least 0."""
    return None if deadline is None else max(deadline - time.monotonic(), 0.0)


def lock_timeout(seconds: float | None) -> float:
    """As `Lock.acquire` wants it: -1 for ever, and no more than the platform can count."""
    return -1 if seconds is None else min(max(seconds, 0), threading.TIMEOUT_MAX)


def is_free_within(lock: threading.Lock, seconds: float | None) -> bool:
    """Wait until nobody holds the lock, and leave it so; False if the time passed first.

    For a `with` statement to follow. Between `acquire`, which could wait by itself, and what is to release the lock
    again an interrupt would leave it held for ever; within `with` there is no such moment.
    """
    deadline = deadline_in(seconds)
    while lock.locked():
        if seconds_until(deadline) == 0:
            return False
        time.sleep(FREE_EVERY)
    return True
