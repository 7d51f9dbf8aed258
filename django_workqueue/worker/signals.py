"""SIGTERM and SIGINT: the first asks to stop, the second ends the process at once.

What stopping means is for whoever asks for `on_stop`.
"""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import sys
import threading
from collections.abc import Callable
from types import FrameType
from typing import Any, Self

ASKS = (signal.SIGTERM, signal.SIGINT)


class Signals:
    """Receives signals between `__enter__` and `__exit__`; on another thread than the main one, where it cannot, none.

    `wakeup` becomes readable when any signal arrives, for a loop that waits on sockets.
    """

    def __init__(self) -> None:
        self.received = 0
        self.signum = 0
        self.at_once: Callable[[], None] | None = None  # done before the second signal ends the process
        self.wakeup, self._sender = socket.socketpair()
        for end in (self.wakeup, self._sender):
            end.settimeout(0.0)
        self._on_stop: Callable[[], None] | None = None
        self._previous: dict[int, Any] = {}
        self._previous_fd = -1

    def __enter__(self) -> Self:
        if threading.current_thread() is threading.main_thread():
            self._previous_fd = signal.set_wakeup_fd(self._sender.fileno(), warn_on_full_buffer=False)
            for signum in ASKS:
                self._previous[signum] = signal.signal(signum, self._receive)
            self._previous[signal.SIGCHLD] = signal.signal(signal.SIGCHLD, _nothing)
        return self

    def __exit__(self, *_: object) -> None:
        for signum, handler in self._previous.items():
            signal.signal(signum, handler if handler is not None else signal.SIG_DFL)
        if self._previous:
            signal.set_wakeup_fd(self._previous_fd)
            self._previous.clear()
        self.wakeup.close()
        self._sender.close()

    def on_stop(self, call: Callable[[], None]) -> None:
        """Have `call` called at the first signal; now, if that has come already."""
        self._on_stop = call
        if self.received:
            call()

    def in_child(self) -> None:
        """In a forked child: SIGTERM asks to stop, however often; what the terminal sends is for the supervisor."""
        self._previous.clear()
        signal.set_wakeup_fd(-1)
        self.received = 0
        self._on_stop = None
        signal.signal(signal.SIGTERM, self._receive_in_child)
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        self.wakeup.close()
        self._sender.close()

    def poke(self) -> None:
        """Make `wakeup` readable, from any thread."""
        try:
            self._sender.send(b"\0")
        except OSError:  # full: it is readable
            return

    def drain_wakeup(self) -> None:
        """Read what made `wakeup` readable."""
        try:
            while self.wakeup.recv(4096):
                pass
        except BlockingIOError:
            return

    def _receive(self, signum: int, _frame: FrameType | None) -> None:
        self.received += 1
        self.signum = signum
        if self.received > 1:
            self._end_at_once()
        if self._on_stop is not None:
            self._on_stop()

    def _receive_in_child(self, _signum: int, _frame: FrameType | None) -> None:
        self.received += 1
        if self._on_stop is not None:
            self._on_stop()

    def _end_at_once(self) -> None:
        if self.at_once is not None:
            self.at_once()
        flush_output()
        os._exit(128 + self.signum)


def flush_output() -> None:
    """Write what was printed before the process forks or ends at once, if there is anything to write it to."""
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError, RuntimeError, AttributeError):  # None, where it was never open
            stream.flush()


def _nothing(_signum: int, _frame: FrameType | None) -> None:
    """A handler that is there so that the signal wakes the wakeup socket."""
