"""Locks for what a forked child goes on using: it finds them free, whoever held them in its parent."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from typing import Any
from weakref import WeakSet


class Lock:
    """A lock to be held by a `with` statement that does not fork."""

    def __init__(self, make: Callable[[], Any] = threading.Lock) -> None:
        self._make = make
        self.begin()
        _locks.add(self)

    def begin(self) -> None:
        """Nobody holds it: at first, and in a forked child, where the thread that did is not."""
        self._lock = self._make()

    def __enter__(self) -> None:
        self._lock.acquire()

    def __exit__(self, *_error: object) -> None:
        self._lock.release()


_locks: WeakSet[Lock] = WeakSet()


def _after_fork_in_child() -> None:
    for lock in _locks:
        lock.begin()


os.register_at_fork(after_in_child=_after_fork_in_child)
