"""How much may be claimed in all."""

from __future__ import annotations

import threading


class Budget:
    """How much may still be claimed, of `--max-items`; without end if None."""

    def __init__(self, limit: int | None) -> None:
        self._left = limit
        self._asked_for = 0  # by claims that are under way
        self._lock = threading.Lock()  # guards both

    def take(self, wanted: int) -> int:
        """So much of what is wanted may be claimed."""
        if self._left is None:
            return wanted
        with self._lock:
            granted = min(wanted, self._left)
            self._left -= granted
            self._asked_for += granted
            return granted

    def claimed(self, number: int, *, of: int) -> None:
        """So much was claimed of what might be."""
        if self._left is not None:
            with self._lock:
                self._asked_for -= of
                self._left += of - number

    @property
    def is_limited(self) -> bool:
        """Whether it has an end."""
        return self._left is not None

    def give_back(self, number: int) -> None:
        """So much of it was not started."""
        if self._left is not None:
            with self._lock:
                self._left += number

    @property
    def spent(self) -> bool:
        """Whether nothing more may be claimed."""
        return self._left == 0 and not self._asked_for
