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
ESSENTIAL = ("claim", "settle")  # of a worker's parts


class Outage:
    """One alias's state, shared by the threads that use it: the first to fail says so, and the last to recover.

    `trouble` is, for each part whose last try failed for whatever reason and that tries again, since when it has done
    nothing else, and the error of the last.
    """

    def __init__(self, alias: str) -> None:
        self.alias = alias
        self.trouble: dict[str, tuple[float, BaseException]] = {}  # single operations, atomic
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

    def lasting(self, seconds: float) -> BaseException | None:
        """The last error of a part without which no work comes to its end, if it has failed for so long."""
        for since, error in filter(None, map(self.trouble.get, ESSENTIAL)):
            if time.monotonic() - since >= seconds:
                return error
        return None


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
        self.rests()
        if self.part in self.outage.failing:
            self.outage.ended(self.part)

    def rests(self) -> None:
        """There is nothing to be tried for the moment."""
        if self.outage.trouble:
            self.outage.trouble.pop(self.part, None)

    def failed(self, error: BaseException) -> tuple[float, bool]:
        """What to do about a failure: seconds to wait, and whether the connection must be remade."""
        if not isinstance(error, (DatabaseError, InterfaceError)):
            journal.broken(self.part, error)
            self._note(error)
            return self._longer(), True
        judged = verdict(error)
        if judged is Verdict.RETRY:
            return random.random() * 0.02, False
        if judged is Verdict.LOCKED:
            return 0.05 + random.random() * 0.1, False
        self._note(error)
        if judged is Verdict.RECONNECT:
            self.outage.began(self.part, error)
        elif not self._refused:
            self._refused = True
            journal.refused(self.outage.alias, self.part, error)
        return self._longer(), True

    def _note(self, error: BaseException) -> None:
        since, _ = self.outage.trouble.get(self.part, (time.monotonic(), None))
        self.outage.trouble[self.part] = (since, error)

    def _longer(self) -> float:
        wait, self._wait = self._wait, min(self._wait * 2, CEILING)
        return wait * (0.5 + random.random())
