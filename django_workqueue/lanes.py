"""The process's group commits: one batcher for each database alias, with its connection and its wakes.

Knows nothing of what is written: a lane's owner writes on the connection it is handed.
"""

from __future__ import annotations

import json
import logging
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Sequence
from datetime import timedelta
from typing import Any, Generic, TypeVar

from django.core import mail

from . import conf, notify
from .batcher import Batcher, Disposition
from .database import Connection, Verdict, verdict
from .sql import queues

logger = logging.getLogger("django_workqueue")

E = TypeVar("E")
R = TypeVar("R")

LOCK_TIMEOUT = timedelta(milliseconds=100)  # how long a stranger's open transaction can hold up a batch
IDLE_AFTER = 60.0  # seconds after which an unused connection is given back …
IDLE_AFTER_IN_TESTS = 1.0  # … soon enough for DROP DATABASE, which waits 5 s for sessions to go

_DISPOSITIONS = {
    Verdict.RETRY: Disposition.RETRY,
    Verdict.LOCKED: Disposition.RETRY,
    Verdict.RECONNECT: Disposition.RECONNECT,
    Verdict.REFUSED: Disposition.REFUSE,
}


class Commits:
    """One alias's group commit."""

    def __init__(self, alias: str) -> None:
        self.alias = alias
        self.connection = Connection(alias, application="django_workqueue enqueue", lock_timeout=LOCK_TIMEOUT)
        self.batcher = Batcher(
            name=f"workqueue-enqueue-{alias}",
            batch_max=conf.batch_max,
            classify=lambda error: _DISPOSITIONS[verdict(error)],
            disconnect=self.connection.close,
            forget=self.connection.forget,
            idle_after=_idle_after,
        )
        self.waker = notify.Waker(alias, self.connection, self.batcher.submit)

    def post(self, lane: CommitLane[E, Any], entries: Sequence[E]) -> None:
        """Have entries written without waiting for it."""
        self.batcher.post(lane, entries)


class CommitLane(ABC, Generic[E, R]):
    """What the calls of one queue have in common in the group commit."""

    def __init__(self, name: str, face: str, using: str | None, described: dict[str, Any]) -> None:
        self.name = name
        self.closed = False
        self.using = using
        self._face = face
        self._described = described
        self._registered = False

    @property
    def commits(self) -> Commits:
        """The group commit of the queue's alias, as the settings have it now."""
        return commits(self.using if self.using is not None else conf.database())

    def write(self, entries: list[E]) -> Sequence[R] | None:
        """Called by the batcher, on its thread."""
        return self.write_on(self.commits.connection, entries)

    def after(self) -> None:
        """Wake idle workers; and, once, let people know that there is such a queue."""
        commits = self.commits
        commits.waker.wake(self.name)
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


def rest(timeout: float | None = None) -> None:
    """Flush and give back every connection; the next enqueue starts afresh."""
    for each in list(_commits.values()):
        each.waker.flush()
        each.batcher.rest(timeout)


def register_queue(connection: Connection, name: str, face: str, described: dict[str, Any]) -> None:
    """Note in the table of queues, for people, that a queue exists and how it is set up."""
    connection.execute(queues.REGISTER.of(name), {"face": face, "settings": json.dumps(described)})


def _idle_after() -> float:
    under_test = hasattr(mail, "outbox")
    return IDLE_AFTER_IN_TESTS if under_test else IDLE_AFTER


_commits: dict[str, Commits] = {}
_lock = threading.Lock()  # guards _commits
