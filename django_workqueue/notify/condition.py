"""A condition variable that threads wait for and event loops await.

Says nothing about what the condition is; as with `threading.Condition`, whoever was woken looks for itself.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
from typing import Any


class Condition(threading.Condition):
    """`threading.Condition` on a plain lock, whose `notify_all` also wakes the coroutines in `pause`."""

    def __init__(self) -> None:
        self.lock = threading.Lock()  # `with` it, and an interrupt cannot leave it held, as it could the condition
        super().__init__(self.lock)
        self._pausing: set[asyncio.Future[None]] = set()  # guarded by the lock itself

    def notify_all(self) -> None:
        """Wake every thread and every coroutine. The lock is held."""
        super().notify_all()
        for future in self._pausing:
            with contextlib.suppress(RuntimeError):  # its loop was closed in the meantime
                future.get_loop().call_soon_threadsafe(_finish, future)
        self._pausing.clear()

    def pausing(self) -> asyncio.Future[None]:
        """A future of the running loop that the next `notify_all` finishes. The lock is held."""
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._pausing.add(future)
        return future

    async def pause(self, future: asyncio.Future[None], seconds: float) -> None:
        """Await a future of `pausing`, at most so many seconds. The lock is not held."""
        try:
            await asyncio.wait([future], timeout=seconds)
        finally:
            with self:
                self._pausing.discard(future)


def _finish(future: asyncio.Future[Any]) -> None:
    if not future.done():
        future.set_result(None)
