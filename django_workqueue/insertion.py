"""Jobs on their way in: by the group commit, or in a caller's transaction.

Owns their ids and their stamps. What is claimed, and what becomes of it, is for `listed`.
"""

from __future__ import annotations

import itertools
import json
import os
import time
from collections import Counter, deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, cast

from django.db import DatabaseError, IntegrityError

from . import database, lanes, metrics, payloads, tracing
from .database import UNIQUE_VIOLATION, Connection, Verdict, sqlstate, verdict
from .managers import NewJobs, WorkJobQuerySet

ALLOT_AT_LEAST = 200
RESTAMPED = 1000  # jobs of one statement


@dataclass(slots=True)
class Waiting:
    """A job on its way into a batch: `due` in monotonic seconds, `run_at` in µs since the epoch, 0 for now."""

    kind: str
    payload: str
    priority: int
    due: float
    run_at: int
    max_attempts: int
    metadata: str
    timed: bool = False  # whether `enqueued_at` is wanted
    id: int = 0  # 0 until one is allotted
    enqueued_at: datetime | None = None  # by the server; still None if it landed, but its answer was lost


def weight(entries: Iterable[Waiting]) -> int:
    """What each of these jobs weighs, in such as are light."""
    return payloads.weight(entry.payload for entry in entries)


class JobLane(lanes.CommitLane[Waiting, int]):
    """A job queue's lane in the group commit: allots ids, and inserts a batch."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self._pool: deque[int] = deque()
        self._pid = 0

    def write_on(self, connection: Connection, entries: list[Waiting]) -> list[int]:
        """Insert a batch. Repeated after a lost connection, it finds what has landed already by its ids."""
        table = job_table(self.using, connection)
        fresh = [entry for entry in entries if not entry.id]
        repeated = [entry for entry in entries if entry.id]
        self._allot(table, fresh)
        try:
            if not repeated and self._insert_now(table, entries):
                return [entry.id for entry in entries]
            landed = set(self._insert(table, entries))
        except DatabaseError as error:
            if verdict(error) is not Verdict.RECONNECT:
                for entry in fresh:
                    entry.id = 0  # nothing has landed: the next write may begin afresh
            raise
        # A sequence that was set back gives out ids anew. What was never sent before cannot be there already.
        fresh += self._displaced(table, [entry for entry in repeated if entry.id not in landed])
        skips = _ever_further()
        while taken := [entry for entry in fresh if entry.id not in landed]:
            self._pool.clear()
            table.pass_over(next(skips))
            self._allot(table, taken)
            landed.update(self._insert(table, taken))
        return [entry.id for entry in entries]

    def _displaced(self, table: WorkJobQuerySet, repeated: Sequence[Waiting]) -> list[Waiting]:
        """Those of what was sent before whose id somebody else's job has by now."""
        if not repeated:
            return []
        foreign = table.foreign(
            self.name,
            [entry.id for entry in repeated],
            kinds=[entry.kind for entry in repeated],
            payloads=[entry.payload for entry in repeated],
        )
        return [entry for entry in repeated if entry.id in foreign]

    def count(self, ledger: metrics.Ledger, entries: list[Waiting]) -> None:
        """Count by kind."""
        for kind, number in Counter([entry.kind for entry in entries]).items():
            ledger.count(self.name, kind, enqueued=number)

    def _insert_now(self, table: WorkJobQuerySet, entries: Sequence[Waiting]) -> bool:
        """Insert what is due at once, if all is that and none of the ids is taken; whether it was."""
        if any(entry.due or entry.run_at or entry.timed or entry.metadata != "{}" for entry in entries):
            return False
        try:
            table.enqueue_now(
                self.name,
                [entry.id for entry in entries],
                kinds=[entry.kind for entry in entries],
                payloads=[entry.payload for entry in entries],
                priorities=[entry.priority for entry in entries],
                maxima=[entry.max_attempts for entry in entries],
            )
        except IntegrityError as error:
            if sqlstate(error) != UNIQUE_VIOLATION:
                raise
            return False
        return True

    def _insert(self, table: WorkJobQuerySet, entries: Sequence[Waiting]) -> Iterable[int]:
        ids = [entry.id for entry in entries]
        if not any(entry.timed for entry in entries):
            return table.enqueue(self.name, ids, columns(entries))
        landed = table.enqueue_timed(self.name, ids, columns(entries))
        for entry in entries:
            entry.enqueued_at = landed.get(entry.id)
        return landed

    def _allot(self, table: WorkJobQuerySet, entries: Sequence[Waiting]) -> None:
        if self._pid != os.getpid():
            self._pid, self._pool = os.getpid(), deque()  # the parent's ids are the parent's
        if len(self._pool) < len(entries):
            self._pool.extend(table.allot(max(len(entries), ALLOT_AT_LEAST)))
        for entry in entries:
            entry.id = self._pool.popleft()


class RestampLane(lanes.CommitLane[Sequence[int], None]):
    """Stamps jobs anew whose transaction stayed open for long, from the batcher's own connection.

    An entry is as many ids as one statement takes, so that what the batcher takes on ahead bounds no transaction.
    """

    def write_on(self, connection: Connection, entries: list[Sequence[int]]) -> None:
        """Let these jobs be available from now. Repeated, it does no harm."""
        table = job_table(self.using, connection)
        for ids in entries:
            table.restamp(self.name, sorted(ids))

    def restamp_later(self, ids: Sequence[int]) -> None:
        """Have it done; returns at once."""
        self.commits.post(self, [ids[at : at + RESTAMPED] for at in range(0, len(ids), RESTAMPED)])


def insert_inside(table: WorkJobQuerySet, queue: str, entries: Sequence[Waiting]) -> list[int]:
    """Insert in the caller's transaction; ids in order, also where the sequence was set back to ids that are taken."""
    timed = any(entry.timed for entry in entries)
    for skip in _ever_further():
        if timed:
            times = table.enqueue_inside_timed(queue, columns(entries))
            ids = list(times)
        else:
            ids = table.enqueue_inside(queue, columns(entries))
        if len(ids) == len(entries):
            break
        table.take_back(queue, ids)
        table.pass_over(skip)
    if timed:
        for entry, number in zip(entries, ids, strict=True):
            entry.id, entry.enqueued_at = number, times[number]
    return ids


def _ever_further() -> Iterator[int]:
    """How many ids to pass over, from one conflict to the next, to get past however many are taken."""
    return (ALLOT_AT_LEAST * 2**tries for tries in itertools.count())


def job_table(using: str | None, connection: Connection | None = None) -> WorkJobQuerySet:
    """The jobs' statements: on the calling thread's connection to the alias, or on one of our own."""
    from .models import WorkJob  # noqa: PLC0415 - the app registry may not be ready when queues are made

    if connection is not None and (known := connection.tables.get(WorkJob)) is not None:
        return cast("WorkJobQuerySet", known)
    rows: WorkJobQuerySet = WorkJob.objects.using(database.resolve(using))
    return rows if connection is None else connection.tables.setdefault(WorkJob, rows.on(connection))


def columns(entries: Sequence[Waiting]) -> NewJobs:
    """Jobs as the statement takes them; of delays, what is left by now."""
    now = time.monotonic()
    return NewJobs(
        kinds=[entry.kind for entry in entries],
        payloads=[entry.payload for entry in entries],
        priorities=[entry.priority for entry in entries],
        maxima=[entry.max_attempts for entry in entries],
        delays=[0 if entry.due <= now else int((entry.due - now) * 1_000_000) for entry in entries],
        run_ats=[entry.run_at for entry in entries],
        metadata=[entry.metadata for entry in entries],
    )


def carry(carried: Mapping[str, str], entries: Iterable[Waiting]) -> None:
    """Let jobs carry a trace's context in their metadata."""
    if carried:
        for entry in entries:
            entry.metadata = json.dumps(json.loads(entry.metadata) | {tracing.METADATA: dict(carried)})
