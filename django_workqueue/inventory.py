"""Every queue there is, what each holds, and tidying them: for commands, the admin and metrics.

A queue is known by an object in this process, by its record in the table of queues, or by rows of its own. One that
has no object here is asked as its record has it set up.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from django.db import OperationalError, connections

from . import conf, database, engine, keyed, listed, reading, stats, unmigrated
from .exceptions import WorkqueueError
from .keys import CheckedCodec
from .leasing import LeasingSource
from .sql import inventory as sql
from .stats import QueueStats

MOST = 1000  # queues that are found by their rows
PATIENCE = timedelta(milliseconds=250)  # for finding them


class UnknownQueue(WorkqueueError, LookupError):
    """There is no queue of that name. The message lists those there are."""


@dataclass(frozen=True, slots=True)
class KnownQueue:
    """A queue that there is. `configured` tells whether this process, or the record, says how it is set up."""

    source: LeasingSource
    paused: bool
    configured: bool

    @property
    def name(self) -> str:
        """The queue's name."""
        return self.source.name

    @property
    def alias(self) -> str:
        """The database alias it lives on."""
        return self.source.alias

    @property
    def face(self) -> str:
        """What it holds: "items" or "jobs"."""
        return self.source.face

    def stats(self, *, exact: bool = False) -> QueueStats:
        """How much it holds, by state."""
        read = stats.exact if exact else stats.bounded
        return read(self.source.table(), self.name, max_attempts=self.source.described()["max_attempts"])

    def reap(self) -> int | None:
        """Delete what was retained long enough; how many were. None if nobody says how long that is."""
        return self.source.reap_here() if self.configured else None


def queues(names: Iterable[str] = (), *, using: str | None = None) -> list[KnownQueue]:
    """The queues of these names, or all there are, in the order of their names.

    On the alias `using`; else on each that `WORKQUEUE_DATABASE` or a queue of this process names. Raises
    `UnknownQueue`.
    """
    known = [queue for alias in aliases(using) for queue in _queues_on(alias)]
    known.sort(key=lambda queue: (queue.name, queue.alias))
    wanted = set(names)
    missing = sorted(wanted - {queue.name for queue in known})
    if missing:
        there = ", ".join(dict.fromkeys(repr(queue.name) for queue in known)) or "none"
        raise UnknownQueue(f"there is no queue {', '.join(map(repr, missing))}. Those there are: {there}.")
    return [queue for queue in known if not wanted or queue.name in wanted]


def aliases(using: str | None = None) -> list[str]:
    """The one named; else each that `WORKQUEUE_DATABASE` or a queue of this process names."""
    if using is not None:
        return [using]
    return sorted({conf.database()} | {source.alias for source in engine.registered()})


def _queues_on(alias: str) -> list[KnownQueue]:
    with unmigrated.hinting(alias), connections[alias].cursor() as cursor:
        cursor.execute(sql.RECORDS.text)
        records = {name: (face, json.loads(settings), paused) for name, face, settings, paused in cursor.fetchall()}
    faces = {name: face for face, name in _faces_by_rows(alias)}
    faces |= {name: face for name, (face, _, _) in records.items()}
    sources = {source.name: source for source in engine.registered() if source.alias == alias}
    found = []
    for name in {*faces, *sources}:
        _, settings, paused = records.get(name, ("", {}, False))
        source = sources.get(name) or _stand_in(name, alias, faces[name], settings)
        assert isinstance(source, LeasingSource)  # noqa: S101 - there are no others
        found.append(KnownQueue(source, paused, name in sources or "retention" in settings))
    return found


def _faces_by_rows(alias: str) -> database.Rows:
    """Face and name of the queues that have rows; none if that takes too long to find out."""
    try:
        return reading.rows(alias, sql.NAMES.text, {"limit": MOST}, patience=PATIENCE)
    except OperationalError as error:
        if database.sqlstate(error) != database.CANCELLED:
            raise
        return []


def _stand_in(name: str, alias: str, face: str, settings: Mapping[str, Any]) -> LeasingSource:
    """A source for a queue that has none here. It is not registered: the next may be set up otherwise."""

    def duration(what: str) -> timedelta:
        return timedelta(seconds=settings.get(what, 0.0))

    most: int = settings.get("max_attempts", 0)
    if face == listed.ListedSource.face:
        kept = listed.Settings(
            max_attempts=most, retention=duration("retention"), dead_retention=duration("dead_retention")
        )
        return listed.ListedSource(name, alias, kept)
    keys = keyed.Settings(
        key=CheckedCodec(str, queue=name),
        max_attempts=most,
        retention=duration("retention"),
        max_claim=1,
        reap_batch=1000,
        min_wake_interval=timedelta(0),
    )
    return keyed.KeyedSource(name, alias, keys)
