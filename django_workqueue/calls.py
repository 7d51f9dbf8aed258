"""One caller's entries on their way through the batcher: how far they have come, and who is to be told.

Knows neither the batcher nor the database. The batcher alone moves a call's counters, under its lock.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Iterable, Sequence
from typing import Any

from .exceptions import EnqueueTimeout


class Call:
    """Entries that one caller wants written, of which `written <= taken <= size`.

    `taken` counts those that a batch has picked up; between `written` and `taken` lie those in flight, and a
    call has at most one such part at a time. The first `admitted` will be written even if the caller leaves.
    """

    __slots__ = ("admitted", "done", "entries", "error", "lane", "results", "size", "taken", "written")

    def __init__(self, lane: str, entries: Sequence[Any]) -> None:
        self.lane = lane
        self.entries = tuple(entries)
        self.size = len(self.entries)
        self.admitted = 0
        self.taken = 0
        self.written = 0
        self.results: list[Any] | None = None
        self.error: BaseException | None = None
        self.done = False

    def part(self) -> Sequence[Any]:
        """The entries in flight."""
        if self.taken - self.written == self.size:
            return self.entries
        return self.entries[self.written : self.taken]

    def landed(self, results: Sequence[Any] | None) -> None:
        """The part in flight is durable."""
        self.written = self.taken
        if results is not None:
            self.results = [*self.results, *results] if self.results else list(results)

    def truncate(self) -> None:
        """The caller has left: what was not admitted will not be written."""
        self.size = max(self.admitted, self.taken)
        self.entries = self.entries[: self.size]

    def outcome(self) -> list[Any] | None:
        """What the caller came for: its results, or its error raised.

        Each error has one caller, so no traceback is shared; and nothing here is left holding it, or the
        frames it holds would hold it in turn.
        """
        if self.error is None:
            return self.results
        error, self.error = self.error, None
        try:
            raise error
        finally:
            del error

    def late(self, timeout: float | None) -> EnqueueTimeout:
        """What to tell the caller whose time is up, once the call was truncated."""
        after = f"Queue {self.lane!r}: not durable after {timeout:g} s" if timeout else f"Queue {self.lane!r}: left"
        if not self.size:
            return EnqueueTimeout(f"{after}; too much was waiting already. Nothing of this call was enqueued.")
        return EnqueueTimeout(f"{after}; what was taken on ({self.size:,}) is still likely to land.")

    def forsaken(self) -> EnqueueTimeout:
        """What to tell the caller that is not waited for any longer."""
        if not self.taken:
            return EnqueueTimeout(f"Queue {self.lane!r}: closed before its turn. Nothing of this call was enqueued.")
        return EnqueueTimeout(f"Queue {self.lane!r}: closed while being written. The call may or may not have landed.")


class ThreadCall(Call):
    """A call whose caller blocks a thread. A bare lock, acquired twice, is the cheapest thing to wait on."""

    __slots__ = ("_bell",)

    def __init__(self, lane: str, entries: Sequence[Any]) -> None:
        super().__init__(lane, entries)
        self._bell = threading.Lock()
        self._bell.acquire()

    def wait(self, timeout: float | None) -> bool:
        """Whether it was answered in time."""
        return self._bell.acquire(timeout=lock_timeout(timeout))

    def ring(self) -> None:
        """Wake the caller."""
        self._bell.release()


class LoopCall(Call):
    """A call whose caller awaits, on the event loop that is running now."""

    __slots__ = ("_future", "loop")

    def __init__(self, lane: str, entries: Sequence[Any]) -> None:
        super().__init__(lane, entries)
        self.loop = asyncio.get_running_loop()
        self._future: asyncio.Future[bool] = self.loop.create_future()

    async def wait(self, timeout: float | None) -> bool:
        """Whether it was answered in time."""
        if timeout is None:
            return await self._future
        timer = self.loop.call_later(timeout, self.settle, False)
        try:
            return await self._future
        finally:
            timer.cancel()

    def settle(self, answered: bool) -> None:
        """End the wait, unless it has ended. On the loop's own thread."""
        if not self._future.done():
            self._future.set_result(answered)


def ring(calls: Iterable[Call]) -> None:
    """Wake the callers: threads one by one, awaiting ones in one hop for each event loop."""
    loops: dict[asyncio.AbstractEventLoop, list[LoopCall]] = {}
    for call in calls:
        if isinstance(call, ThreadCall):
            call.ring()
        elif isinstance(call, LoopCall):
            loops.setdefault(call.loop, []).append(call)
    for loop, answered in loops.items():
        with contextlib.suppress(RuntimeError):  # the loop has closed, and nobody awaits any more
            loop.call_soon_threadsafe(_settle, answered)


def _settle(calls: list[LoopCall]) -> None:
    for call in calls:
        call.settle(True)


def lock_timeout(seconds: float | None) -> float:
    """As `Lock.acquire` wants it: -1 for ever, and no more than the platform can count."""
    return -1 if seconds is None else min(max(seconds, 0), threading.TIMEOUT_MAX)
