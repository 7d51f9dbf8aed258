"""The raw statements, on encoded keys, as managers of the models.

Each method sends one statement on the alias that `using()` or `db_manager()` names (else the router's, else
`WORKQUEUE_DATABASE`), on the calling thread's Django connection, or with `on(connection)` on one of our own.
Codecs, floors, retries and group commit are for the typed faces above.
"""

from __future__ import annotations

import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Self, TypeVar

from django.db import connections, models

from . import database
from .database import Connection, Rows
from .sql import Statement, items

if TYPE_CHECKING:
    from .models import WorkItem, WorkJob  # noqa: F401 - in the strings of generic bases

M = TypeVar("M", bound=models.Model)

# Where a claim may look: (lowest rank, floor's µs, floor's key, highest rank); a rank is a negated priority.
Interval = tuple[int, int, Any, int]
EVERYWHERE: tuple[Interval, ...] = ((-(2**31) + 1, 0, "", 2**31 - 1),)


def microseconds(duration: timedelta) -> int:
    """A duration as it crosses to the server."""
    return duration // timedelta(microseconds=1)


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


class WorkQuerySet(models.QuerySet[M]):
    """Sends statements where the queryset's alias, or a connection of our own, says."""

    _own: Connection | None = None
    _db: str | None

    def on(self, connection: Connection) -> Self:
        """The same, sending on a connection of our own."""
        clone = self.all()
        clone._own = connection
        return clone

    def send(self, statement: Statement, queue: str, params: Mapping[str, Any]) -> Rows:
        """Send one statement for `queue`; its rows."""
        text = statement.of(queue)
        if self._own is not None:
            return self._own.execute(text, params, prepare=statement.prepare)
        alias = self._db or database.writes_to(self.model)
        with connections[alias].cursor() as cursor:
            cursor.execute(text, params)
            return cursor.fetchall() if cursor.description else []

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

    def fold(self, queue: str, *, since: int, limit: int) -> tuple[int, int, int | None, int]:
        """Fold inbox rows from id `since` on into the set: (looked at, left for later, highest id, cost in µs)."""
        looked, held, highest, took = self.send(items.FOLD, queue, {"since": since, "limit": limit})[0]
        return looked, held, highest, took

    def fold_own(self, queue: str, *, tx: int, limit: int) -> int:
        """Fold the inbox rows of one open transaction; how many were looked at."""
        return self._number(items.FOLD_OWN, queue, {"tx": tx, "limit": limit})

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

    def remove(self, queue: str, keys: Sequence[str]) -> int:
        """Delete keys in whatever state, out of the inbox too; how many there were."""
        return self._number(items.REMOVE, queue, {"keys": keys})

    def reap(self, queue: str, retention: timedelta, *, limit: int) -> int:
        """Delete up to `limit` items completed longer ago than `retention`."""
        return self._number(items.REAP, queue, {"retention": microseconds(retention), "limit": limit})

    def stall(self, queue: str, max_attempts: int, *, limit: int) -> int:
        """Mark lapsed last attempts as stalled."""
        params = {"max": max_attempts, "limit": limit, "error": "the lease of the last attempt lapsed"}
        return self._number(items.STALL, queue, params)

    def stats(self, queue: str, *, max_attempts: int = 0) -> tuple[int, int, int, int, int, int]:
        """Exact counts: ready, scheduled, leased, stalled, completed; and the oldest ready item's age in µs."""
        ready, scheduled, leased, stalled, completed, oldest = self.send(items.STATS, queue, {"max": max_attempts})[0]
        return ready, scheduled, leased, stalled, completed, oldest


class WorkItemManager(models.Manager.from_queryset(WorkItemQuerySet)):  # type: ignore[misc]
    """`WorkItem.objects`."""

    use_in_migrations = False


class WorkJobQuerySet(WorkQuerySet["WorkJob"]):
    """The job queue's statements."""


class WorkJobManager(models.Manager.from_queryset(WorkJobQuerySet)):  # type: ignore[misc]
    """`WorkJob.objects`."""

    use_in_migrations = False
