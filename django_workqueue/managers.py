"""The raw statements, on encoded keys, as managers of the models.

Each method sends one statement on the alias that `using()` or `db_manager()` names (else the router's, else
`WORKQUEUE_DATABASE`), on the calling thread's Django connection, or with `on(connection)` on one of our own.
Codecs, floors, retries and group commit are for the typed faces above.
"""

from __future__ import annotations

import secrets
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any, Self, TypeVar

import psycopg
from django.db import connections, models

from . import database
from .database import Connection, Rows
from .sql import Statement, items, jobs, stats

if TYPE_CHECKING:
    from .models import WorkItem, WorkJob  # noqa: F401 - in the strings of generic bases

M = TypeVar("M", bound=models.Model)

# Where a claim may look: (lowest rank, floor's µs, floor's key, highest rank); a rank is a negated priority.
Interval = tuple[int, int, Any, int]
EVERYWHERE: tuple[Interval, ...] = ((-(2**31) + 1, 0, "", 2**31 - 1),)


def microseconds(duration: timedelta) -> int:
    """A duration as it crosses to the server."""
    return duration // timedelta(microseconds=1)


def sent(value: Any) -> Any:
    """The value as it is sent. Lists go as one text, whose type the statement's own cast then gives.

    psycopg would type a list of integers by its largest member; the cast would be a conversion, made anew for each
    row that looks at the array, and each type would be a prepared statement of its own. A list of texts it would
    escape member by member: seven times the cost for plain keys, thirteen times for JSON ones.
    """
    if not isinstance(value, list) or not value:
        return value
    if type(value[0]) is int:
        return f"{{{','.join(map(str, value))}}}"
    return _as_array_literal(value)


def _as_array_literal(texts: list[Any]) -> Any:
    """A text array as PostgreSQL reads it, or the list as it was if a member is no text or holds a line feed."""
    try:
        joined = "\n".join(texts)
    except TypeError:
        return texts
    if joined.count("\n") != len(texts) - 1:
        return texts
    escaped = joined.replace("\\", "\\\\").replace('"', '\\"').replace("\n", '","')
    return f'{{"{escaped}"}}'


def new_token() -> int:
    """A lease token: never 0, never met again."""
    return secrets.randbits(62) + 1


@dataclass(slots=True)
class Claimed:
    """What a claim statement answered: the server's time and cost in µs, and its rows.

    A row is `(key, priority, attempts, available µs, reclaimed)`; they come in the order of the index.
    """

    at: int
    took: int
    rows: list[tuple[Any, ...]]
    skipped: int = 0  # due, but left for a later claim


class WorkQuerySet(models.QuerySet[M]):
    """Sends statements where the queryset's alias, or a connection of our own, says."""

    _own: Connection | None = None
    _persistent = False
    _db: str | None

    def on(self, connection: Connection) -> Self:
        """The same, sending on a connection of our own."""
        clone = self.all()
        clone._own = connection
        return clone

    def persistent(self) -> Self:
        """The same, outside any transaction: each statement is sent again after a deadlock or serialisation failure."""
        clone = self.all()
        clone._own = self._own
        clone._persistent = True
        return clone

    def send(self, statement: Statement, queue: str, params: Mapping[str, Any]) -> Rows:
        """Send one statement for `queue`; its rows."""
        if self._persistent:
            return database.retrying(lambda: self._send(statement, queue, params))
        return self._send(statement, queue, params)

    def _send(self, statement: Statement, queue: str, params: Mapping[str, Any]) -> Rows:
        text = statement.of(queue)
        params = {name: sent(value) for name, value in params.items()}
        if self._own is not None:
            return self._own.execute(text, params, prepare=statement.prepare, ordered=statement.ordered)
        connection = connections[self._db or database.writes_to(self.model)]
        database.require_postgresql(connection)
        with connection.cursor() as cursor:
            # What is set for a statement would outlive it in a transaction; and where values are bound by the
            # server, a message has one statement.
            alone = (
                statement.ordered and connection.get_autocommit() and isinstance(cursor.cursor, psycopg.ClientCursor)
            )
            cursor.execute(database.BY_INDEX + text if alone else text, params)
            return database.last_rows(cursor)

    def brief(self, patience: timedelta, **settings: str) -> AbstractContextManager[None]:
        """`database.brief` where the statements go. (A connection of our own keeps its settings and its patience.)"""
        if self._own is not None:
            return nullcontext()
        return database.brief(self._db or database.writes_to(self.model), patience, **settings)

    def _number(self, statement: Statement, queue: str, params: Mapping[str, Any]) -> int:
        return int(self.send(statement, queue, params)[0][0])


class WorkItemQuerySet(WorkQuerySet["WorkItem"]):
    """The keyed queue's statements. Keys are encoded; waiting writers are given them in byte order."""

    def enqueue(self, queue: str, keys: Sequence[str], priorities: Sequence[int], delays: Sequence[int]) -> None:
        """Merge keys into the set; `delays` in µs. No key may appear twice."""
        self.send(items.ENQUEUE, queue, {"keys": keys, "priorities": priorities, "delays": delays})

    def enqueue_later(
        self, queue: str, keys: Sequence[str], priorities: Sequence[int], delays: Sequence[int], tx: int
    ) -> None:
        """Append to the inbox, under the number of the caller's transaction; waits for nobody."""
        self.send(items.INBOX, queue, {"keys": keys, "priorities": priorities, "delays": delays, "tx": tx})

    def fold(
        self,
        queue: str,
        *,
        since: int,
        limit: int,
        aside: Sequence[int] = (),
        patience: timedelta = timedelta(milliseconds=100),
    ) -> tuple[int, int, int | None, int]:
        """Fold inbox rows from id `since` on, but those `aside`: (looked at, held, highest id, cost in µs)."""
        params = {"since": since, "limit": limit, "aside": list(aside), "patience": f"{microseconds(patience)}us"}
        looked, held, highest, took = self.send(items.FOLD, queue, params)[0]
        return looked, held, highest, took

    def fold_own(self, queue: str, *, tx: int, since: int, limit: int) -> tuple[int, int | None]:
        """Fold the inbox rows of one open transaction, from id `since` on: (looked at, highest id)."""
        looked, _held, highest, _took = self.send(items.FOLD_OWN, queue, {"tx": tx, "since": since, "limit": limit})[0]
        return looked, highest

    def inbox_holds(self, queue: str) -> bool:
        """Whether there is anything to fold."""
        return bool(self.send(items.INBOX_HOLDS, queue, {})[0][0])

    def first_in_inbox(self, queue: str, *, since: int, aside: Sequence[int]) -> int | None:
        """The lowest id from `since` on, but those `aside`."""
        rows = self.send(items.INBOX_FIRST, queue, {"since": since, "aside": list(aside)})
        return rows[0][0] if rows else None

    def claim(
        self,
        queue: str,
        limit: int,
        lease: timedelta,
        *,
        token: int,
        max_attempts: int = 0,
        intervals: Sequence[Interval] = EVERYWHERE,
    ) -> Claimed:
        """Lease up to `limit` due items under `token`, interval by interval."""
        lo, since, after, hi = map(list, zip(*intervals, strict=True))
        rows = self.send(
            items.CLAIM,
            queue,
            {
                "lo": lo,
                "since": since,
                "after": after,
                "hi": hi,
                "limit": limit,
                "lease": microseconds(lease),
                "token": token,
                "max": max_attempts,
            },
        )
        at, took = rows[0][:2]
        return Claimed(at, took, [row[2:] for row in rows if row[2] is not None])

    def discover(self, queue: str, *, limit: int) -> list[int]:
        """The ranks (negated priorities) in use, lowest first."""
        return [rank for (rank,) in self.send(items.DISCOVER, queue, {"limit": limit})]

    def complete(
        self, queue: str, keys: Sequence[str], tokens: Sequence[int] | int | None = None, *, keep: bool = True
    ) -> int:
        """Finish leased items: of one claim's token, of a token for each key, or (None) whoever holds them."""
        params: dict[str, Any] = {"keys": keys}
        if tokens is None:
            statement = items.COMPLETE_KEEP_ANY if keep else items.COMPLETE_DELETE_ANY
        elif isinstance(tokens, int):
            params["token"] = tokens
            statement = items.COMPLETE_KEEP if keep else items.COMPLETE_DELETE
        else:
            params["tokens"] = tokens
            statement = items.COMPLETE_KEEP_CLAIMS if keep else items.COMPLETE_DELETE_CLAIMS
        return self._number(statement, queue, params)

    def finish(self, queue: str, keys: Sequence[str], tokens: Sequence[int], errors: Sequence[str]) -> int:
        """Finish leased items for good, keeping why."""
        return self._number(items.FINISH, queue, {"keys": keys, "tokens": tokens, "errors": errors})

    def release(
        self,
        queue: str,
        keys: Sequence[str],
        tokens: Sequence[int] | None,
        *,
        delays: Sequence[int],
        errors: Sequence[str | None],
        uncounts: Sequence[int],
        max_attempts: int = 0,
    ) -> tuple[int, int]:
        """Give leased items back; (released, of these stalled)."""
        params: dict[str, Any] = {
            "keys": keys,
            "delays": delays,
            "errors": errors,
            "uncounts": uncounts,
            "max": max_attempts,
        }
        statement = items.RELEASE_ANY if tokens is None else items.RELEASE
        if tokens is not None:
            params["tokens"] = tokens
        released, stalled = self.send(statement, queue, params)[0]
        return released, stalled

    def extend(self, queue: str, keys: Sequence[str], token: int, lease: timedelta) -> list[str]:
        """Renew leases without waiting and without shortening; the keys renewed."""
        rows = self.send(items.EXTEND, queue, {"keys": keys, "token": token, "lease": microseconds(lease)})
        return [key for (key,) in rows]

    def held(self, queue: str, keys: Sequence[str], token: int) -> list[str]:
        """Which of the keys are still leased under `token`."""
        return [key for (key,) in self.send(items.HELD, queue, {"keys": keys, "token": token})]

    def tokens(self, queue: str, keys: Sequence[str]) -> dict[str, int]:
        """The token that each of the keys carries; 0 if nobody holds it."""
        return dict(self.send(items.TOKENS, queue, {"keys": keys}))

    def hurry(self, queue: str, keys: Sequence[str] | None, *, skip: Sequence[str] = (), limit: int) -> int:
        """Let waiting items be due now: all (None), or these."""
        params = {"keys": None if keys is None else list(keys), "skip": list(skip), "limit": limit}
        return self._number(items.HURRY, queue, params)

    def remove(self, queue: str, keys: Sequence[str]) -> int:
        """Delete keys in whatever state, out of the inbox too; how many there were. Two statements."""
        unfolded = self.send(items.REMOVE_UNFOLDED, queue, {"keys": keys})
        return len({*unfolded, *self.send(items.REMOVE, queue, {"keys": keys})})

    def reap(self, queue: str, retention: timedelta, *, limit: int) -> int:
        """Delete up to `limit` items completed longer ago than `retention`."""
        return self._number(items.REAP, queue, {"retention": microseconds(retention), "limit": limit})

    def stall(self, queue: str, max_attempts: int, *, limit: int) -> int:
        """Mark lapsed last attempts as stalled."""
        params = {"max": max_attempts, "limit": limit, "error": "the lease of the last attempt lapsed"}
        return self._number(items.STALL, queue, params)

    def stats(self, queue: str, *, max_attempts: int = 0) -> tuple[int, int, int, int, int, int]:
        """Exact counts: ready, scheduled, leased, stalled, completed; and the oldest ready item's age in µs."""
        ready, scheduled, leased, stalled, completed, oldest = self.send(
            stats.ITEMS.exact, queue, {"max": max_attempts, "cap": None}
        )[0]
        return ready, scheduled, leased, stalled, completed, oldest


class WorkItemManager(models.Manager.from_queryset(WorkItemQuerySet)):  # type: ignore[misc]
    """`WorkItem.objects`."""

    use_in_migrations = False


@dataclass(slots=True)
class NewJobs:
    """Jobs to insert, as columns; delays and absolute times (0 for none) in µs."""

    kinds: list[str] = field(default_factory=list)
    payloads: list[str] = field(default_factory=list)
    priorities: list[int] = field(default_factory=list)
    maxima: list[int] = field(default_factory=list)
    delays: list[int] = field(default_factory=list)
    run_ats: list[int] = field(default_factory=list)
    metadata: list[str] = field(default_factory=list)

    def params(self) -> dict[str, Any]:
        """As the statements name them."""
        return {name: getattr(self, name) for name in self.__slots__}


@dataclass(slots=True)
class Settling:
    """Jobs with what became of them, as columns, sorted by id and none twice. Times in µs, errors in JSON."""

    ids: list[int]
    tokens: list[int]
    ran: list[int]
    worker: str

    @property
    def token(self) -> int | None:
        """The token that all have in common, if they do."""
        first = self.tokens[0]
        return first if self.tokens.count(first) == len(self.tokens) else None

    def params(self) -> dict[str, Any]:
        """As the statements name them."""
        return {name: getattr(self, name) for name in self.__slots__}


class WorkJobQuerySet(WorkQuerySet["WorkJob"]):
    """The job queue's statements. Payloads and results are JSON text."""

    def allot(self, count: int) -> list[int]:
        """Ids for jobs to come, ascending."""
        ids: list[int] = self.send(jobs.ALLOT, "", {"count": count})[0][0]
        return ids

    def enqueue_now(
        self,
        queue: str,
        ids: Sequence[int],
        *,
        kinds: Sequence[str],
        payloads: Sequence[str],
        priorities: Sequence[int],
        maxima: Sequence[int],
    ) -> None:
        """Insert jobs that are due at once; all of them, or an `IntegrityError` where one is there already."""
        params = {"ids": ids, "kinds": kinds, "payloads": payloads, "priorities": priorities, "maxima": maxima}
        self.send(jobs.ENQUEUE_NOW, queue, params)

    def enqueue(self, queue: str, ids: Sequence[int], new: NewJobs) -> list[int]:
        """Insert jobs under ids allotted before; the ids of those that were not there yet."""
        return [number for (number,) in self.send(jobs.ENQUEUE, queue, {"ids": ids, **new.params()})]

    def enqueue_timed(self, queue: str, ids: Sequence[int], new: NewJobs) -> dict[int, datetime]:
        """The same; their ids, and when they were enqueued."""
        return dict(self.send(jobs.ENQUEUE_TIMED, queue, {"ids": ids, **new.params()}))

    def enqueue_inside(self, queue: str, new: NewJobs) -> list[int]:
        """Insert jobs in a caller's transaction; their ids in order: fewer than jobs where an id was there already."""
        return sorted(number for (number,) in self.send(jobs.ENQUEUE_INSIDE, queue, new.params()))

    def enqueue_inside_timed(self, queue: str, new: NewJobs) -> dict[int, datetime]:
        """The same; their ids in order, and when they were enqueued."""
        return dict(sorted(self.send(jobs.ENQUEUE_INSIDE_TIMED, queue, new.params())))

    def take_back(self, queue: str, ids: Sequence[int]) -> int:
        """Delete jobs that the same transaction has inserted."""
        return self._number(jobs.TAKE_BACK, queue, {"ids": ids})

    def restamp(self, queue: str, ids: Sequence[int]) -> None:
        """Let pending jobs be available from now, not from before."""
        self.send(jobs.RESTAMP, queue, {"ids": ids})

    def claim(
        self,
        queue: str,
        limit: int,
        lease: timedelta,
        *,
        token: int,
        intervals: Sequence[Interval],
        kinds: list[str] | None,
        mark: bool,
        worker: str,
        lapsed: int,
    ) -> Claimed:
        """Lease up to `limit` due jobs under `token`, of which at most `lapsed` had a lease that lapsed.

        `mark` counts them as started at once.
        """
        lo, since, after, hi = map(list, zip(*intervals, strict=True))
        rows = self.send(
            jobs.CLAIM,
            queue,
            {
                "lo": lo,
                "since": since,
                "after": after,
                "hi": hi,
                "limit": limit,
                "lease": microseconds(lease),
                "token": token,
                "kinds": kinds,
                "mark": mark,
                "worker": worker,
                "lapsed": lapsed,
            },
        )
        at, took, skipped = rows[0][:3]
        return Claimed(at, took, [row[3:] for row in rows if row[3] is not None], skipped)

    def discover(self, queue: str, *, limit: int) -> list[int]:
        """The ranks (negated priorities) in use, lowest first."""
        return [rank for (rank,) in self.send(jobs.DISCOVER, queue, {"limit": limit})]

    def waiting_kinds(self, queue: str, *, known: list[str], hopeless: list[str], limit: int) -> list[str]:
        """Which kinds of task are due that are not known, among the first `limit` jobs that are not hopeless."""
        params = {"known": known, "hopeless": hopeless, "limit": limit}
        return [kind for (kind,) in self.send(jobs.WAITING_KINDS, queue, params)]

    def start(
        self, queue: str, ids: Sequence[int], tokens: Sequence[int], worker: str
    ) -> dict[int, tuple[datetime, str]]:
        """Count the attempts of leased jobs that are about to start; of those that may, when, and all their workers."""
        params = {"ids": ids, "tokens": tokens, "worker": worker}
        return {number: (at, workers) for number, at, workers in self.send(jobs.START, queue, params)}

    def complete(self, queue: str, settling: Settling, results: Sequence[str | None], *, keep: bool) -> int:
        """Finish leased jobs, with their results."""
        if not keep:
            return self._number(jobs.COMPLETE_DELETE, queue, {"ids": settling.ids, "tokens": settling.tokens})
        if settling.token is not None and not any(results):
            params = {"ids": settling.ids, "token": settling.token, "ran": settling.ran, "worker": settling.worker}
            return self._number(jobs.COMPLETE_KEEP_CLAIM, queue, params)
        return self._number(jobs.COMPLETE_KEEP, queue, settling.params() | {"results": results})

    def fail(
        self,
        queue: str,
        settling: Settling,
        *,
        delays: Sequence[int],
        errors: Sequence[str | None],
        finals: Sequence[bool],
        uncounts: Sequence[int],
    ) -> dict[int, str | None]:
        """Give leased jobs back or bury them; the outcome of each that was still ours."""
        params = {"delays": delays, "errors": errors, "finals": finals, "uncounts": uncounts}
        return dict(self.send(jobs.FAIL, queue, settling.params() | params))

    def extend(self, queue: str, ids: Sequence[int], token: int, lease: timedelta) -> list[int]:
        """Renew leases without waiting and without shortening; the ids renewed."""
        params = {"ids": ids, "token": token, "lease": microseconds(lease)}
        return [number for (number,) in self.send(jobs.EXTEND, queue, params)]

    def held(self, queue: str, ids: Sequence[int], token: int) -> list[int]:
        """Which of the jobs are still leased under `token`."""
        return [number for (number,) in self.send(jobs.HELD, queue, {"ids": ids, "token": token})]

    def tokens(self, queue: str, ids: Sequence[int]) -> dict[int, int]:
        """The token that each of the jobs carries; 0 if nobody holds it."""
        return dict(self.send(jobs.TOKENS, queue, {"ids": ids}))

    def cancel(self, queue: str, ids: Sequence[int]) -> int:
        """Cancel pending and running jobs."""
        return self._number(jobs.CANCEL, queue, {"ids": ids})

    def retry(self, queue: str, ids: Sequence[int]) -> int:
        """Let dead and cancelled jobs start afresh."""
        return self._number(jobs.RETRY, queue, {"ids": ids})

    def hurry(self, queue: str, ids: Sequence[int] | None, *, skip: Sequence[int] = (), limit: int) -> int:
        """Let pending jobs be due now: all (None), or these."""
        params = {"ids": None if ids is None else list(ids), "skip": list(skip), "limit": limit}
        return self._number(jobs.HURRY, queue, params)

    def bury(self, queue: str, error: str, *, limit: int) -> dict[str, int]:
        """Let jobs be dead whose last attempt started and lapsed; how many of each kind."""
        return dict(self.send(jobs.BURY, queue, {"error": error, "limit": limit}))

    def prune(self, queue: str, outcome: str, retention: timedelta, *, limit: int) -> int:
        """Delete up to `limit` jobs that ended so, longer ago than `retention`."""
        params = {"outcome": outcome, "retention": microseconds(retention), "limit": limit}
        return self._number(jobs.PRUNE, queue, params)

    def stats(self, queue: str, *, max_attempts: int = 0) -> tuple[int, int, int, int, int, int]:
        """Exact counts: ready, scheduled, leased, dead, completed; and the oldest ready job's age in µs."""
        ready, scheduled, leased, dead, completed, oldest = self.send(stats.JOBS.exact, queue, {})[0]
        return ready, scheduled, leased, dead, completed, oldest


class WorkJobManager(models.Manager.from_queryset(WorkJobQuerySet)):  # type: ignore[misc]
    """`WorkJob.objects`."""

    use_in_migrations = False
