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
    """One alias's state, shared by the threads that use it: the first to fail says so, the first to succeed too."""

    def __init__(self, alias: str) -> None:
        self.alias = alias
        self.since: float | None = None
        self._lock = threading.Lock()  # guards since

    def began(self, part: str, error: BaseException) -> None:
        """Something failed."""
        with self._lock:
            if self.since is not None:
                return
            self.since = time.monotonic()
        journal.gone(self.alias, part, error)

    def ended(self) -> None:
        """Something succeeded."""
        if self.since is None:
            return
        with self._lock:
            since, self.since = self.since, None
        if since is not None:
            journal.back(self.alias, time.monotonic() - since)


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
        if self.outage.since is not None:
            self.outage.ended()

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
