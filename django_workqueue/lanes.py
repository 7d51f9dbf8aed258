"""The process's group commits: one batcher for each database alias, with its connection and its wakes.

Knows nothing of what is written: a lane's owner writes on the connection it is handed.
"""

from __future__ import annotations

import json
import logging
import math
import time
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import Any, Generic, TypeVar

from django.core import mail
from django.db import connections

from . import conf, metrics, notify
from .batcher import Batcher, Disposition
from .database import ERRORS, Connection, Verdict, verdict
from .forks import Lock
from .sql import queues

logger = logging.getLogger("django_workqueue")

E = TypeVar("E")
R = TypeVar("R")

LOCK_TIMEOUT = timedelta(milliseconds=100)  # how long a stranger's open transaction can hold up a batch
PATIENCE = timedelta(seconds=30)  # how long the server may take over a batch before it counts as gone
COUNTS_PATIENCE = 0.05  # seconds that writing the counters of many queues may hold up enqueues
IDLE_AFTER = 60.0  # seconds after which an unused connection is given back …
IDLE_AFTER_IN_TESTS = 1.0  # … soon enough for DROP DATABASE, which waits 5 s for sessions to go

_DISPOSITIONS = {
    Verdict.RETRY: Disposition.RETRY,
    Verdict.LOCKED: Disposition.WAIT,
    Verdict.RECONNECT: Disposition.RECONNECT,
    Verdict.REFUSED: Disposition.REFUSE,
}


class Commits:
    """One alias's group commit."""

    def __init__(self, alias: str) -> None:
        self.alias = alias
        self.connection = Connection(
            alias, application="django_workqueue enqueue", lock_timeout=LOCK_TIMEOUT, patience=PATIENCE
        )
        self.batcher = Batcher(
            name=f"workqueue-enqueue-{alias}",
            batch_max=conf.batch_max,
            classify=_disposition,
            disconnect=self._disconnect,
            forget=self.connection.forget,
            idle_after=_idle_after,
            chores=self.write_counts,
            at_hand=lambda: self.connection.is_open,
            answer_by=self._answer_by,
        )
        self.ledger = metrics.ledger(alias)
        self.lost = False  # whether the last write found the connection broken
        self._refused = False  # whether it was said already that counters cannot be written
        self.waker = notify.Waker(alias, self.connection, self.batcher.submit, self.batcher.post)

    def post(self, lane: CommitLane[E, Any], entries: Sequence[E]) -> None:
        """Have entries written without waiting for it."""
        self.batcher.post(lane, entries)

    def write_counts(self, *, all_of_them: bool = False) -> float:
        """Write the minute counters if it is time; seconds until it will be. On the batcher's thread."""
        due_in = self.ledger.due_in()
        if due_in > 0 and not all_of_them:
            return due_in
        try:
            self.ledger.write(self.connection, patience=math.inf if all_of_them else COUNTS_PATIENCE)
        except Exception as error:  # noqa: BLE001 - whatever it is, no enqueue may suffer from it
            if verdict(error) is Verdict.RECONNECT:
                self.connection.close()
            elif verdict(error) is Verdict.REFUSED and not self._refused:
                self._refused = True
                logger.warning("The minute counters cannot be written: %s", error)
        return max(self.ledger.due_in(), 0.0)

    def _answer_by(self, deadline: float | None) -> None:
        """Let no statement wait for longer than until this monotonic time (None: than it would anyway)."""
        self.connection.until = math.inf if deadline is None else deadline

    def _disconnect(self) -> None:
        """Give the connection back. It takes along what was counted, unless it is broken, or a test's to be closed."""
        if not self.lost and self.ledger.due_in() < math.inf and (self.connection.is_open or not _under_test()):
            self.write_counts(all_of_them=True)
        self.connection.close()


class CommitLane(ABC, Generic[E, R]):
    """What the calls of one queue have in common in the group commit."""

    def __init__(self, name: str, face: str, using: str | None, described: dict[str, Any]) -> None:
        self.name = name
        self.using = using
        self._face = face
        self._described = described
        self._registered = False

    @property
    def commits(self) -> Commits:
        """The group commit of the queue's alias, as the settings have it now."""
        return commits(self.using if self.using is not None else conf.database())

    def write(self, entries: list[E]) -> Sequence[R] | None:
        """Called by the batcher, on its thread or a caller's own."""
        commits = self.commits
        commits.waker.send_along(self.name)
        try:
            results = self.write_on(commits.connection, entries)
        except BaseException as error:
            commits.lost = _disposition(error) in (Disposition.RECONNECT, Disposition.STRANGE)
            raise
        finally:
            commits.connection.behind = None
        commits.lost = False
        return results

    def count(self, ledger: metrics.Ledger, entries: list[E]) -> None:
        """Count what was written, if it was enqueued."""

    def after(self, entries: list[E]) -> None:
        """Wake idle workers; now and then, write what was counted; once, let people know that there is such a queue."""
        commits = self.commits
        self.count(commits.ledger, entries)
        commits.waker.wake(self.name)
        commits.write_counts()
        if not self._registered:
            self._registered = True
            register_queue(commits.connection, self.name, self._face, self._described)

    @abstractmethod
    def write_on(self, connection: Connection, entries: list[E]) -> Sequence[R] | None:
        """Make the entries durable in one statement; a result for each, or None."""


def commits(alias: str) -> Commits:
    """The process's group commit on an alias."""
    found = _commits.get(alias)
    if found is None:
        with _lock:
            found = _commits.get(alias)
            if found is None:
                found = _commits[alias] = Commits(alias)
    return found


def due_after(delay: timedelta) -> float:
    """When a delayed enqueue is due on the monotonic clock, so that waiting in memory counts; 0.0 for now."""
    return time.monotonic() + delay.total_seconds() if delay > timedelta(0) else 0.0


def wake_later(alias: str, queue: str) -> None:
    """Wake a queue's workers, from any thread, at once and without waiting."""
    commits(alias).waker.wake_later(queue)


def enqueued_inside(alias: str, name: str, kinds: Mapping[str, int]) -> None:
    """Count what the calling thread's open transaction enqueued, by kind, once it has committed."""
    metrics.after_commit(connections[alias], name, kinds, then=lambda: commits(alias).batcher.post(_NUDGE, ()))


def rest(timeout: float | None = None) -> None:
    """Flush and give back every connection; the next enqueue starts afresh."""
    for each in list(_commits.values()):
        each.waker.flush()
        each.batcher.rest(timeout)


def register_queue(connection: Connection, name: str, face: str, described: dict[str, Any]) -> None:
    """Note in the table of queues, for people, that a queue exists and how it is set up."""
    connection.execute(queues.REGISTER.of(name), {"face": face, "settings": json.dumps(described)})


def _disposition(error: BaseException) -> Disposition:
    if not isinstance(error, ERRORS):
        return Disposition.STRANGE
    return _DISPOSITIONS[verdict(error)]


def _idle_after() -> float:
    return IDLE_AFTER_IN_TESTS if _under_test() else IDLE_AFTER


def _under_test() -> bool:
    return hasattr(mail, "outbox")


class _Nudge:
    """Writes nothing, but has the batcher's thread look at its chores."""

    name = "counters"

    def write(self, entries: list[Any]) -> None: ...

    def after(self, entries: list[Any]) -> None: ...


_NUDGE = _Nudge()


_commits: dict[str, Commits] = {}
_lock = Lock()  # guards _commits
