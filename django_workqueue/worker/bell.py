"""A bell that wakes one waiting thread. Knows nothing of why."""

from __future__ import annotations

from queue import Empty, SimpleQueue


class Bell:
    """Rung from any thread, or from a signal handler; rings that nobody has answered yet are one.

    The waiter looks for itself what there is to do, after each wait.
    """

    __slots__ = ("_queue", "_rung")

    def __init__(self) -> None:
        self._rung = False
        self._queue: SimpleQueue[None] = SimpleQueue()  # reentrant, unlike a Condition: a signal handler may put

    def ring(self) -> None:
        """Wake the waiter, now or as soon as it waits."""
        if not self._rung:
            self._rung = True
            self._queue.put(None)

    def wait(self, timeout: float | None = None) -> bool:
        """Wait until rung, at most `timeout` seconds; whether it was."""
        try:
            self._queue.get(timeout=None if timeout is None else max(0.0, timeout))
        except Empty:
            return False
        self._rung = False
        return True
