"""A thread of the worker's. What it does is its part's business."""

from __future__ import annotations

import threading


class Thread(threading.Thread):
    """A thread that may be joined although it was never started, or could not be: there is nothing to wait for."""

    def join(self, timeout: float | None = None) -> None:
        """Wait for its end, at most `timeout` seconds."""
        if self.ident is not None:
            super().join(timeout)
