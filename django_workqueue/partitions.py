"""Partitions of a queue's own: made, listed and given up while workers go on.

The rows move in one transaction, under locks taken first and waited for briefly: whoever works the tables
meanwhile waits for the move, and loses nothing. docs/how-to/partitions.md tells when one is worth it.
"""

from __future__ import annotations

import hashlib
import random
import re
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from django.db import DatabaseError, connections, transaction
from django.utils.translation import gettext as _
from psycopg import sql

from . import unmigrated
from .database import Verdict, resolve, verdict
from .exceptions import WorkqueueError
from .figures import age
from .keys import check_name

TABLES = {"items": "workqueue_item", "jobs": "workqueue_job"}
ROWS_PER_SECOND = 100_000  # that move, on a small machine
FREE = timedelta(seconds=2)  # of holding the lock, without being asked for
LOCK_TIMEOUT = timedelta(milliseconds=500)  # how long everybody queues behind us before we step back
PATIENCE = timedelta(minutes=2)  # for which the locks are tried again
STORAGE = (
    "fillfactor = 50, autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_insert_scale_factor = 0.05, "
    "autovacuum_analyze_scale_factor = 0.05"
)


class PartitionError(WorkqueueError):
    """A partition cannot be made or given up; the message says why."""


@dataclass(frozen=True, slots=True)
class Partition:
    """One partition: the queue it is for (None: DEFAULT), its table, estimated rows, and bytes with its indexes."""

    face: str
    queue: str | None
    table: str
    rows: int
    bytes: int


def partitions(using: str | None = None) -> list[Partition]:
    """Every partition of both tables."""
    with connections[resolve(using)].cursor() as cursor:
        cursor.execute(
            """
            SELECT p.relname, c.relname, pg_get_expr(c.relpartbound, c.oid),
             greatest(c.reltuples, 0)::bigint, pg_total_relation_size(c.oid)
            FROM pg_inherits i JOIN pg_class p ON p.oid = i.inhparent JOIN pg_class c ON c.oid = i.inhrelid
            WHERE p.oid IN (to_regclass('workqueue_item'), to_regclass('workqueue_job')) ORDER BY 1, 2
            """
        )
        rows = cursor.fetchall()
    faces = {table: face for face, table in TABLES.items()}
    return [
        Partition(faces[parent], None if bound == "DEFAULT" else _named(bound), table, count, size)
        for parent, table, bound, count, size in rows
    ]


def face_of(queue: str, using: str | None = None) -> str:
    """Either "items" or "jobs": what the queue is known to hold. Raises `PartitionError` if nobody knows."""
    faces = _faces(queue, resolve(using))
    if not faces:
        raise PartitionError(
            _("nobody has used a queue %(queue)r yet; say whether it holds items or jobs (--face)") % {"queue": queue}
        )
    return _the_one(faces, queue)


def to_create(queue: str, face: str | None = None, using: str | None = None) -> str:
    """The face whose table would get the partition. Raises `PartitionError` if it cannot, or nobody knows of it."""
    _refuse_name(queue)
    face = face or face_of(queue, using)
    _refuse(queue, face, resolve(using))
    return face


def to_drop(queue: str, face: str | None = None, using: str | None = None) -> str:
    """The face whose table would give the partition up. Raises `PartitionError` if there is none, or one of each."""
    own = [partition.face for partition in partitions(using) if partition.queue == queue]
    face = face or _the_one(own or ["items"], queue)
    _required(queue, face, resolve(using))
    return face


def stall(queue: str, face: str, using: str | None = None) -> timedelta:
    """For how long creating or dropping the queue's partition would hold up its table: an estimate."""
    alias = resolve(using)
    with unmigrated.hinting(alias), connections[alias].cursor() as cursor:
        counting = sql.SQL("SELECT count(*) FROM {} WHERE queue = {}")
        cursor.execute(counting.format(sql.Identifier(TABLES[face]), sql.Literal(queue)))
        (rows,) = cursor.fetchone() or (0,)
    return timedelta(seconds=round(rows / ROWS_PER_SECOND, 3))


def create(queue: str, face: str, using: str | None = None) -> Partition:
    """Give the queue a partition of its own, and move its rows there. Raises `PartitionError` if it cannot have one."""
    alias = resolve(using)
    parent = TABLES[face]
    _refuse(queue, face, alias)
    names = {
        "parent": sql.Identifier(parent),
        "rest": sql.Identifier(f"{parent}_default"),
        "own": sql.Identifier(_table(parent, queue)),
        "queue": sql.Literal(queue),
        "storage": sql.SQL(STORAGE),
    }

    def carve(run: Callable[[str], None]) -> None:
        # The parent first, as every statement takes them, and from everybody: one that got past it has chosen its
        # partitions, would wait for DEFAULT, and then find the rows gone that it came to complete or to renew.
        run("LOCK TABLE ONLY {parent} IN ACCESS EXCLUSIVE MODE")
        run("LOCK TABLE {rest} IN ACCESS EXCLUSIVE MODE")
        run("CREATE TABLE {own} (LIKE {rest} INCLUDING ALL EXCLUDING IDENTITY) WITH ({storage})")
        run("ALTER TABLE {own} ALTER COLUMN queue SET STATISTICS 0")
        run("COMMENT ON TABLE {own} IS {queue}")
        run(
            "WITH moved AS (DELETE FROM {rest} WHERE queue = {queue} RETURNING *) INSERT INTO {own} SELECT * FROM moved"
        )
        run("ALTER TABLE {parent} ATTACH PARTITION {own} FOR VALUES IN ({queue})")

    _persist(alias, names, carve)
    _run_alone(alias, sql.SQL("ANALYZE {own}").format(**names))
    made = _own(queue, face, alias)
    assert made is not None  # noqa: S101 - it was just committed
    return made


def drop(queue: str, face: str, using: str | None = None, *, purge: bool = False) -> None:
    """Give the queue's partition up: its rows move back to DEFAULT, or with `purge` are deleted."""
    alias = resolve(using)
    parent = TABLES[face]
    own = _required(queue, face, alias)
    names = {
        "parent": sql.Identifier(parent),
        "rest": sql.Identifier(f"{parent}_default"),
        "own": sql.Identifier(own.table),
        "queue": sql.Literal(queue),
    }

    def fill_in(run: Callable[[str], None]) -> None:
        if purge and face == "items":
            run("DELETE FROM workqueue_inbox WHERE queue = {queue}")  # before any lock on items that a fold wants
        run("LOCK TABLE {parent} IN ACCESS EXCLUSIVE MODE")  # DETACH wants it; and so all partitions, in order
        run("ALTER TABLE {parent} DETACH PARTITION {own}")
        if not purge:
            run("INSERT INTO {rest} SELECT * FROM {own}")
        run("DROP TABLE {own}")

    _persist(alias, names, fill_in)


def _persist(alias: str, names: dict[str, Any], steps: Callable[[Callable[[str], None]], None]) -> None:
    """Run the steps in one transaction; step back from locks that are not to be had at once, and try again."""
    connection = connections[alias]
    if connection.in_atomic_block:
        raise PartitionError(_("partitions are made and dropped in a transaction of their own, not inside atomic()"))
    deadline = time.monotonic() + PATIENCE.total_seconds()
    while True:
        try:
            with unmigrated.hinting(alias), transaction.atomic(using=alias), connection.cursor() as cursor:
                waiting = f"{LOCK_TIMEOUT // timedelta(milliseconds=1)}ms"
                cursor.execute("SELECT set_config('lock_timeout', %s, true)", [waiting])
                steps(lambda text: cursor.execute(sql.SQL(text).format(**names)))
        except DatabaseError as error:
            if verdict(error) not in (Verdict.LOCKED, Verdict.RETRY):
                raise
            if time.monotonic() > deadline:
                raise PartitionError(
                    _("the locks were not to be had within %(age)s: some transaction holds rows of the table open")
                    % {"age": age(PATIENCE)}
                ) from error
            time.sleep(random.uniform(0.05, 0.5))
        else:
            return


def _run_alone(alias: str, statement: sql.Composed) -> None:
    with connections[alias].cursor() as cursor:
        cursor.execute(statement)


def _required(queue: str, face: str, alias: str) -> Partition:
    own = _own(queue, face, alias)
    if own is None:
        raise PartitionError(_("queue %(queue)r has no partition of its own") % {"queue": queue})
    return own


def _refuse_name(queue: str) -> None:
    try:
        check_name(queue)
    except ValueError as error:
        raise PartitionError(str(error)) from error


def _refuse(queue: str, face: str, alias: str) -> None:
    """Raise unless a queue of this name and face may get a partition. The faces do not share a name."""
    _refuse_name(queue)
    if _own(queue, face, alias) is not None:
        raise PartitionError(_("queue %(queue)r has a partition of its own already") % {"queue": queue})
    faces = _faces(queue, alias)
    if faces and face not in faces:
        kind = _("queue %(queue)r is a job queue") if "jobs" in faces else _("queue %(queue)r is a keyed queue")
        raise PartitionError(kind % {"queue": queue})


def _faces(queue: str, alias: str) -> list[str]:
    """What the queue is recorded as; else what it has rows of."""
    with unmigrated.hinting(alias), connections[alias].cursor() as cursor:
        cursor.execute(
            """
            SELECT true, face FROM workqueue_queue WHERE name = %(queue)s
            UNION ALL SELECT false, 'items' WHERE EXISTS (SELECT 1 FROM workqueue_item WHERE queue = %(queue)s)
             OR EXISTS (SELECT 1 FROM workqueue_inbox WHERE queue = %(queue)s)
            UNION ALL SELECT false, 'jobs' WHERE EXISTS (SELECT 1 FROM workqueue_job WHERE queue = %(queue)s)
            """,
            {"queue": queue},
        )
        found = cursor.fetchall()
    return [face for is_record, face in found if is_record] or [face for _is_record, face in found]


def _the_one(faces: list[str], queue: str) -> str:
    if len(faces) > 1:
        raise PartitionError(
            _("which face? there are items and jobs of the name %(queue)r; say which are meant (--face)")
            % {"queue": queue}
        )
    return faces[0]


def _own(queue: str, face: str, alias: str) -> Partition | None:
    for partition in partitions(alias):
        if partition.face == face and partition.queue == queue:
            return partition
    return None


def _table(parent: str, queue: str) -> str:
    readable = re.sub(r"[^a-z0-9]+", "_", queue.lower()).strip("_")[:24]
    return f"{parent}_{readable}_{hashlib.sha256(queue.encode()).hexdigest()[:8]}"


def _named(bound: str) -> str:
    """The queue of a partition, by its bound; that of several queues, which is not ours, has them as SQL names them."""
    values = bound.removeprefix("FOR VALUES IN (").removesuffix(")")
    return values[1:-1].replace("''", "'") if _LITERAL.fullmatch(values) else values


_LITERAL = re.compile("'([^']|'')*'")
