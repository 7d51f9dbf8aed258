"""A database that comes and goes: how long to wait, and saying so once.

What was to be done, and on which connection, is the caller's business.
"""

from __future__ import annotations

import random
import threading
import time

from django.db import DatabaseError, InterfaceError

from django_workqueue.database import Verdict, verdict

from . import journal

FIRST, CEILING = 0.1, 5.0  # seconds


class Outage:
    """One alias's state, shared by the threads that use it: the first to fail says so, and the last to recover."""

    def __init__(self, alias: str) -> None:
        self.alias = alias
        self.failing: set[str] = set()  # the parts whose last try failed
        self._since = 0.0
        self._lock = threading.Lock()  # guards both

    def began(self, part: str, error: BaseException) -> None:
        """A part has failed."""
        with self._lock:
            first = not self.failing
            self.failing.add(part)
            if first:
                self._since = time.monotonic()
        if first:
            journal.gone(self.alias, part, error)

    def ended(self, part: str) -> None:
        """A part that had failed has succeeded."""
        with self._lock:
            self.failing.discard(part)
            over, seconds = not self.failing, time.monotonic() - self._since
        if over:
            journal.back(self.alias, seconds)


class Patience:
    """How long one thread waits before it tries again: longer each time, with jitter."""

    def __init__(self, part: str, outage: Outage) -> None:
        self.part = part
        self.outage = outage
        self._wait = FIRST
        self._refused = False

    def succeeded(self) -> None:
        """All is well."""
        self._wait = FIRST
        self._refused = False
        if self.part in self.outage.failing:
            self.outage.ended(self.part)

    def failed(self, error: BaseException) -> tuple[float, bool]:
        """What to do about a failure: seconds to wait, and whether the connection must be remade."""
        if not isinstance(error, (DatabaseError, InterfaceError)):
            journal.broken(self.part, error)
            return self._longer(), True
        judged = verdict(error)
        if judged is Verdict.RETRY:
            return random.random() * 0.02, False
        if judged is Verdict.LOCKED:
            return 0.05 + random.random() * 0.1, False
        if judged is Verdict.RECONNECT:
            self.outage.began(self.part, error)
        elif not self._refused:
            self._refused = True
            journal.refused(self.outage.alias, self.part, error)
        return self._longer(), True

    def _longer(self) -> float:
        wait, self._wait = self._wait, min(self._wait * 2, CEILING)
        return wait * (0.5 + random.random())
