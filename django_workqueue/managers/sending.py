"""How a statement is sent: where to, and its values as the server is to read them.

Which statements there are is for `items` and `jobs`.
"""

from __future__ import annotations

import secrets
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, ClassVar, Self, TypeVar, cast

import psycopg
from django.core.exceptions import SynchronousOnlyOperation
from django.db import DatabaseError, connections, models

from .. import database, unmigrated
from ..database import Connection, Rows
from ..sql import Statement

M = TypeVar("M", bound=models.Model)

# Where a claim may look: (lowest rank, floor's µs, floor's key, highest rank); a rank is a negated priority.
Interval = tuple[int, int, Any, int]
EVERYWHERE: tuple[Interval, ...] = ((-(2**31) + 1, 0, "", 2**31 - 1),)


def columns(intervals: Sequence[Interval]) -> dict[str, list[Any]]:
    """Where to look, as the claims' statements name it."""
    lo, since, after, hi = map(list, zip(*intervals, strict=True))
    return {"lo": lo, "since": since, "after": after, "hi": hi}


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

    A row is `(key, priority, attempts, available µs, reclaimed, …)`.
    """

    at: int
    took: int
    rows: list[tuple[Any, ...]]
    skipped: int = 0  # due, but left for a later claim
    paused: bool = False  # nothing was looked for
    unfolded: bool = False  # nor here: first, the inbox is to be folded
    asking: int = 0  # what it cost, in µs, to find out about that


class WorkQuerySet(models.QuerySet[M]):
    """Sends statements where the queryset's alias, or a connection of our own, says."""

    statements: ClassVar[Any]  # the table's
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

    def get(self, *args: Any, **kwargs: Any) -> M:
        """One row, as any queryset's."""
        try:
            return super().get(*args, **kwargs)
        except SynchronousOnlyOperation as error:
            database.name_twins(error)
            raise

    def discover(self, queue: str, *, limit: int) -> list[int]:
        """The ranks (negated priorities) in use, lowest first."""
        return [rank for (rank,) in self.send(self.statements.DISCOVER, queue, {"limit": limit})]

    def next_due(
        self, queue: str, known: Sequence[int], *, discover: int, within: timedelta, kinds: list[str] | None = None
    ) -> int | None:
        """In how many µs the first of what is scheduled comes due, if it does within that time.

        Looks at the ranks that are known, and first for up to `discover` others. `kinds` is for jobs.
        """
        params = {"ranks": list(known), "discover": discover, "within": microseconds(within), "kinds": kinds}
        return cast("int | None", self.send(self.statements.NEXT_DUE, queue, params)[0][0])

    def _send(self, statement: Statement, queue: str, params: Mapping[str, Any]) -> Rows:
        text = statement.of(queue)
        params = {name: sent(value) for name, value in params.items()}
        alias = self._db or database.writes_to(self.model) if self._own is None else self._own.alias
        try:
            if self._own is None:
                return self._send_here(alias, statement, text, params)
            if statement.silent:
                self._own.run(text, params)
                return []
            return self._own.execute(text, params, prepare=statement.prepare, ordered=statement.ordered)
        except DatabaseError as error:
            unmigrated.hint(error, alias)
            raise
        except SynchronousOnlyOperation as error:
            database.name_twins(error)
            raise

    def _send_here(self, alias: str, statement: Statement, text: str, params: Mapping[str, Any]) -> Rows:
        connection = connections[alias]
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
