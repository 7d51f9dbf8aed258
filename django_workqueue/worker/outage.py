"""A database that comes and goes: how long to wait, and saying so once.

What was to be done, and on which connection, is the caller's business.
"""

from __future__ import annotations

import random
import threading
import time

from django.db import DatabaseError, InterfaceError

from django_workqueue import notify, unmigrated
from django_workqueue.database import UNDEFINED_TABLE, Verdict, sqlstate, verdict

from . import journal

FIRST, CEILING = 0.1, 5.0  # seconds
CALM = 15.0  # seconds without a refusal after which it is over: what was refused is tried again in half of that
ESSENTIAL = ("claim", "settle")  # of a worker's parts
OCCASIONAL = {"start", "renew"}  # those that may have nothing to do for long, and so do not find out that it is over


class Outage:
    """One alias's state, shared by the threads that use it: the first to fail twice says so, and the last to recover.

    A connection that fails once and then works was cut, perhaps in an outage that is over, and is no outage itself.

    `trouble` is, for each part whose last try failed for whatever reason and that tries again, since when it has done
    nothing else, and the error of the last. `reached` is whether anything was ever done.
    """

    def __init__(self, alias: str) -> None:
        self.alias = alias
        self.trouble: dict[str, tuple[float, BaseException]] = {}  # single operations, atomic
        self.failing: dict[str, BaseException] = {}  # the parts whose last try failed, with the first error since then
        self.refusing: set[tuple[str | None, str]] = set()  # what was refused, by kind; all that was said
        self.reached = False
        self._told = False
        self._since = 0.0
        self._refused_since = self._refused_at = 0.0
        self._lock = threading.Lock()  # guards all these

    def began(self, part: str, error: BaseException) -> None:
        """A part has failed."""
        with self._lock:
            if not self.failing:
                self._since = time.monotonic()
            is_news = part in self.failing and not self._told
            self._told = self._told or is_news
            self.failing.setdefault(part, error)
        if is_news:
            journal.gone(self.alias, part, error)

    def ended(self, part: str) -> None:
        """A part that had failed has succeeded."""
        with self._lock:
            error = self.failing.pop(part, None)
            over = not self.failing or (part in ESSENTIAL and self.failing.keys() <= OCCASIONAL)
            if over:
                self.failing.clear()
            told, seconds = self._told, time.monotonic() - self._since
            self._told = told and not over
        if told and over:
            journal.back(self.alias, seconds)
            notify.reachable(self.alias)
        elif error is not None and not told:
            journal.reconnected(self.alias, part, error)

    def idle(self, part: str) -> None:
        """A part that had failed has nothing to do any more: whether this is over, others may find out."""
        with self._lock:
            self.failing.pop(part, None)
            self._told = self._told and bool(self.failing)

    def refused(self, part: str, error: BaseException) -> None:
        """The database does not do what a part wants. That a table is missing is the same for all of them."""
        kind = (sqlstate(error), "" if unmigrated.is_cause(error) else part)
        with self._lock:
            self._refused_at = time.monotonic()
            if not self.refusing:
                self._refused_since = self._refused_at
            is_news = kind not in self.refusing
            self.refusing.add(kind)
        if is_news:
            journal.refused(self.alias, part, error)

    def accepted(self) -> None:
        """The database did what some part wants. A part may still be refused other things."""
        with self._lock:
            over = bool(self.refusing) and time.monotonic() - self._refused_at > CALM
            seconds = self._refused_at - self._refused_since
            unmade = all(state == UNDEFINED_TABLE for state, _ in self.refusing)
            if over:
                self.refusing.clear()
        if over:
            (journal.migrated if unmade else journal.accepted)(self.alias, seconds)

    def lasting(self, seconds: float) -> BaseException | None:
        """The last error of a part without which no work comes to its end, if it has failed for so long.

        That there are no tables is no passing state: then, if it has failed at all.
        """
        for since, error in filter(None, map(self.trouble.get, ESSENTIAL)):
            if time.monotonic() - since >= seconds or unmigrated.is_cause(error):
                return error
        return None


class Patience:
    """How long one thread waits before it tries again: longer each time, with jitter."""

    def __init__(self, part: str, outage: Outage) -> None:
        self.part = part
        self.outage = outage
        self._wait = FIRST

    def succeeded(self) -> None:
        """All is well."""
        self._wait = FIRST
        self.outage.reached = True
        self.rests()
        if self.outage.refusing:
            self.outage.accepted()
        if self.part in self.outage.failing:
            self.outage.ended(self.part)

    def rests(self) -> None:
        """There is nothing to be tried for the moment."""
        if self.outage.trouble:
            self.outage.trouble.pop(self.part, None)

    def is_idle(self) -> None:
        """There is nothing to be tried until who knows when."""
        self.rests()
        if self.part in self.outage.failing:
            self.outage.idle(self.part)

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
        else:
            self.outage.refused(self.part, error)
        return self._longer(), True

    def _note(self, error: BaseException) -> None:
        since, _ = self.outage.trouble.get(self.part, (time.monotonic(), None))
        self.outage.trouble[self.part] = (since, error)

    def _longer(self) -> float:
        wait, self._wait = self._wait, min(self._wait * 2, CEILING)
        return wait * (0.5 + random.random())
