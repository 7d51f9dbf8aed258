"""Connections: our own, opened through Django's wrapper, and what errors and transactions mean to us.

Knows nothing of queues; every statement it is given commits by itself.
"""

from __future__ import annotations

import asyncio
import contextlib
import copy
import logging
import math
import random
import secrets
import time
from collections.abc import Callable, Generator, Iterator, Mapping
from dataclasses import dataclass
from datetime import timedelta
from enum import Enum
from typing import Any, TypeVar, cast

import psycopg
from asgiref.sync import AsyncToSync, SyncToAsync, sync_to_async
from django.core.exceptions import SynchronousOnlyOperation
from django.db import (
    DEFAULT_DB_ALIAS,
    DatabaseError,
    InterfaceError,
    OperationalError,
    connections,
    router,
    transaction,
)
from django.db.backends.base.base import BaseDatabaseWrapper
from django.db.utils import load_backend

from . import conf
from .exceptions import UnsupportedDatabase
from .wire import Command, Wire

logger = logging.getLogger("django_workqueue")

T = TypeVar("T")
Rows = list[tuple[Any, ...]]

MINIMUM_VERSION = (14, 0)
PATIENCE = timedelta(seconds=60)  # how long a server may take over one statement of ours …
AFTER_PATIENCE = timedelta(seconds=2)  # … and how much later it gives up itself
# What a connection that is silently gone is noticed by, unless OPTIONS say otherwise. (Seconds; milliseconds.)
NOTICING = {
    "connect_timeout": 10,
    "keepalives_idle": 15,
    "keepalives_interval": 5,
    "keepalives_count": 3,
    "tcp_user_timeout": 20_000,
}
CANCELLED = "57014"  # query_canceled: by statement_timeout, or by somebody
UNDEFINED_TABLE = "42P01"
UNIQUE_VIOLATION = "23505"

TWINS = "In a coroutine, await the twin of the same name with an `a` in front: astats() for stats(), and so on."


class Verdict(Enum):
    """What to do about a database error."""

    RETRY = "retry"  # deadlock or serialisation failure: the same again
    LOCKED = "locked"  # lock_timeout: somebody's open transaction holds a row
    RECONNECT = "reconnect"  # the connection or the server is gone, full, or a read-only standby
    REFUSED = "refused"  # the statement itself is at fault


_RETRY = {"40001", "40P01"}
_RECONNECT = {
    "25006",  # read_only_sql_transaction: the primary became a standby
    "57P01",  # admin_shutdown
    "57P02",  # crash_shutdown
    "57P03",  # cannot_connect_now
    "57P05",  # idle_session_timeout
    "25P02",  # in_failed_sql_transaction: a pooler handed us somebody's leftovers
    "25P03",  # idle_in_transaction_session_timeout
    "26000",  # invalid_sql_statement_name: a pooler swapped the server under us
    "42P05",  # duplicate_prepared_statement
    "58030",  # io_error
    "XX000",  # internal error, "cache lookup failed" among them
}


ERRORS = (DatabaseError, InterfaceError, psycopg.Error)  # the database's, as opposed to anybody's


def verdict(error: BaseException) -> Verdict:
    """Judge a database error, Django's or psycopg's."""
    if not isinstance(error, ERRORS):
        return Verdict.REFUSED
    state = sqlstate(error)
    if state is None:
        lost = (OperationalError, InterfaceError, psycopg.OperationalError, psycopg.InterfaceError)
        return Verdict.RECONNECT if isinstance(error, lost) else Verdict.REFUSED
    if state in _RETRY or (state == "23514" and _is_of_partition(error)):
        return Verdict.RETRY
    if state == "55P03":
        return Verdict.LOCKED
    if state in _RECONNECT or state[:2] in {"08", "53"} or (state == "0A000" and "cached plan" in str(error)):
        return Verdict.RECONNECT
    return Verdict.REFUSED


def _is_of_partition(error: BaseException) -> bool:
    # A row on its way into DEFAULT just as its queue was given a partition of its own. (A CHECK has a name.)
    cause: BaseException | None = error
    while cause is not None and not isinstance(cause, psycopg.Error):
        cause = cause.__cause__
    return cause is not None and cause.diag.constraint_name is None


def sqlstate(error: BaseException | None) -> str | None:
    """The SQLSTATE of a Django or psycopg error, if it has one."""
    while error is not None and not isinstance(error, psycopg.Error):
        error = error.__cause__
    return error.sqlstate if error is not None else None


class Connection:
    """One connection of our own to an alias, for one thread at a time; opened when first used.

    Every statement commits by itself, at READ COMMITTED whatever OPTIONS says, outside Django's pool and
    outside any transaction of the calling thread. Where a transaction-pooling proxy sits in between, nothing
    is prepared and no session state is relied upon: each statement then travels as one message with its own
    BEGIN and SET LOCAL.

    With `ordered` the planner never sorts if an index has the order: what only claims runs its statements prepared.

    A statement that has no answer within `patience`, or by the monotonic time `until`, raises as if the connection were
    lost: TCP tells nobody that the network has gone silent, or a proxy in it.

    What is set as `behind` is sent in the same message as the next statement that returns nothing, `run`, and after it
    is committed; `finish` waits for its answer.

    Errors come out as `django.db.utils` errors with psycopg's as their cause.
    """

    def __init__(
        self,
        alias: str,
        *,
        application: str,
        lock_timeout: timedelta | None = None,
        synchronous_commit: bool = True,
        ordered: bool = False,
        patience: timedelta = PATIENCE,
    ) -> None:
        self.alias = alias
        self.application = application
        self.patience = patience
        self.until = math.inf
        self.behind: Errand | None = None
        self._outstanding: Errand | None = None
        self.pooled = False
        self.tables: dict[
            Any, Any
        ] = {}  # by model, the queryset that sends here: one costs as much as a short statement
        # Each of our statements has an index to go by. A plan kept from when a table was small must not scan it later.
        # How long a statement may take is ours to say: another's limit would be taken for a refusal. The server's comes
        # after the patience is over. It would never notice that nobody waits any more for what itself waits for a lock.
        self._session = {
            "default_transaction_isolation": "read committed",
            "enable_seqscan": "off",
            "jit": "off",
            "statement_timeout": _milliseconds(patience + AFTER_PATIENCE),
        }
        if lock_timeout is not None:
            self._session["lock_timeout"] = _milliseconds(lock_timeout)
        if not synchronous_commit:
            self._session["synchronous_commit"] = "off"
        self._ordered = ordered
        if ordered:
            self._session["enable_sort"] = "off"
        self._wrapper: BaseDatabaseWrapper | None = None
        self._cursor: psycopg.Cursor[tuple[Any, ...]] | None = None
        self._wire: Wire | None = None

    @property
    def is_open(self) -> bool:
        """Whether a server connection is held."""
        return self._wrapper is not None

    @property
    def takes_writes(self) -> bool:
        """Whether the last answer came from a server that takes writes.

        A read does not fail on a standby, nor on a primary that has been demoted; but what it tells there is the past.
        """
        if self._wrapper is None or self._wrapper.connection is None:
            return False
        status = self._wrapper.connection.info.parameter_status  # the server reports these by itself
        return "on" not in (status("in_hot_standby"), status("default_transaction_read_only"))

    @property
    def raw(self) -> psycopg.Connection[Any]:
        """The psycopg connection, opened if need be."""
        return self._open()[1].connection

    def execute(
        self,
        statement: str,
        params: Mapping[str, Any] | None = None,
        *,
        prepare: bool = True,
        ordered: bool = False,
    ) -> Rows:
        """Run one statement in a transaction of its own; its rows, or an empty list. See `Statement` on `ordered`."""
        wrapper, cursor = self._open()
        alone = ordered and not self._ordered
        if alone:
            statement = BY_INDEX + statement
        self.finish()
        with wrapper.wrap_database_errors:
            if self.pooled:
                return self._execute_pooled(cursor, statement, params)
            if alone:
                return last_rows(psycopg.ClientCursor(cursor.connection).execute(statement, params))
            cursor.execute(statement, params, prepare=prepare or ordered)
            return cursor.fetchall() if cursor.description else []

    def run(self, statement: str, params: Mapping[str, Any]) -> None:
        """Run one statement that returns nothing, prepared, in a transaction of its own."""
        wrapper, _ = self._open()
        wire = self._wire
        if wire is None or not wire.takes(statement, params):
            self.execute(statement, params)
            return
        self.finish()
        errand, self.behind = self.behind, None
        with wrapper.wrap_database_errors:
            wire.execute((statement, params), None if errand is None else errand.command)
        self._outstanding = errand
        if errand is not None:
            errand.sent = True

    def finish(self) -> None:
        """Wait for the answer to what went along behind the last statement, if that is outstanding; it is told so."""
        if self._wire is None:
            return
        errand, self._outstanding = self._outstanding, None
        try:
            self._wire.finish()
        except psycopg.Error as error:
            if errand is not None:
                errand.error = error
        else:
            if errand is not None:
                errand.done = True

    def close(self) -> None:
        """Give the connection back. Idempotent; the next statement opens another."""
        wrapper, self._wrapper, self._cursor = self._wrapper, None, None
        self._wire = self._outstanding = None
        if wrapper is not None:
            with contextlib.suppress(Exception):
                wrapper.close()

    def forget(self) -> None:
        """In a forked child: drop the parent's connection without a word to the server."""
        wrapper, self._wrapper, self._cursor = self._wrapper, None, None
        self._wire = self._outstanding = None
        self.behind, self.until = None, math.inf  # of whoever was sending in the parent
        if wrapper is not None and wrapper.connection is not None:
            _abandoned.append(wrapper.connection)

    def _open(self) -> tuple[BaseDatabaseWrapper, psycopg.Cursor[tuple[Any, ...]]]:
        if self._wrapper is not None and self._cursor is not None:
            return self._wrapper, self._cursor
        settings = copy.deepcopy(connections.settings[self.alias])
        settings.update(AUTOCOMMIT=True, CONN_MAX_AGE=None, CONN_HEALTH_CHECKS=False)
        options = settings["OPTIONS"]
        options.pop("pool", None)
        options.pop("isolation_level", None)
        options["application_name"] = self.application
        for name, value in NOTICING.items():
            options.setdefault(name, value)
        wrapper: BaseDatabaseWrapper = load_backend(settings["ENGINE"]).DatabaseWrapper(settings, self.alias)
        require_postgresql(wrapper)
        wrapper.inc_thread_sharing()
        self._wrapper = wrapper
        try:
            wrapper.ensure_connection()
            with wrapper.wrap_database_errors:
                self._cursor = self._prepare_session(wrapper.connection)
        except BaseException:
            self.close()
            raise
        return wrapper, self._cursor

    def _prepare_session(self, raw: psycopg.Connection[Any]) -> psycopg.Cursor[tuple[Any, ...]]:
        patience = self.patience.total_seconds()
        bound(raw, lambda: min(patience, self.until - time.monotonic()))
        # A pooling proxy answers the start-up with a backend pid of its own invention.
        (pid,) = psycopg.ClientCursor(raw).execute("SELECT pg_backend_pid()").fetchone() or (None,)
        self.pooled = pid != raw.info.backend_pid
        if self.pooled:
            return psycopg.ClientCursor(raw)
        raw.prepare_threshold = 5
        raw.prepared_max = 1000
        settings = ", ".join(f"set_config('{name}', '{value}', false)" for name, value in self._session.items())
        raw.execute(f"SELECT {settings}")
        if psycopg.Pipeline.is_supported():
            self._wire = Wire(raw)
        return psycopg.Cursor(raw)

    def _execute_pooled(
        self, cursor: psycopg.Cursor[tuple[Any, ...]], statement: str, params: Mapping[str, Any] | None
    ) -> Rows:
        settings = "".join(
            f"SET LOCAL {name} = '{value}'; " for name, value in self._session.items() if "iso" not in name
        )
        try:
            cursor.execute(f"BEGIN ISOLATION LEVEL READ COMMITTED; {settings}{statement}; COMMIT", params)
        except psycopg.Error:
            with contextlib.suppress(psycopg.Error):
                cursor.connection.rollback()
                cursor.execute("ROLLBACK")
            raise
        return last_rows(cursor)


@dataclass(slots=True, eq=False)
class Errand:
    """What goes along behind a statement, and how far it has come: `done`, or `error`, once it is answered."""

    command: Command
    sent: bool = False
    done: bool = False
    error: psycopg.Error | None = None


def bound(raw: psycopg.Connection[Any], seconds: Callable[[], float]) -> None:
    """Let no statement on a connection wait for longer than what is said when it begins."""
    wait = raw.wait

    def bounded(answering: Generator[Any, Any, T], *args: Any, **kwargs: Any) -> T:
        return wait(_within(seconds(), answering), *args, **kwargs)

    raw.wait = bounded  # type: ignore[method-assign, assignment]


def _within(seconds: float, answering: Generator[Any, Any, T]) -> Generator[Any, Any, T]:
    # psycopg sends what the socket is ready for, every now and then nothing.
    until = time.monotonic() + seconds
    try:
        wanted = next(answering)
        while True:
            ready = yield wanted
            if not ready and time.monotonic() > until:
                raise psycopg.OperationalError(f"the server has not answered for {seconds:g} s")
            wanted = answering.send(ready)
    except StopIteration as end:
        return cast("T", end.value)


# In front of a statement, in one message with it and so for it alone.
BY_INDEX = "SET LOCAL enable_sort = off; SET LOCAL enable_seqscan = off; "


def last_rows(cursor: Any) -> Rows:
    """Of several statements sent as one message, the rows of the last that has any."""
    rows: Rows = []
    more: bool | None = True
    while more:
        if cursor.description:
            rows = cursor.fetchall()
        more = cursor.nextset()
    return rows


_abandoned: list[Any] = []  # connections of the parent process, kept so that no finaliser closes its sockets


def resolve(using: str | None) -> str:
    """The alias a queue lives on: `using`, or the setting's."""
    return using if using is not None else conf.database()


def writes_to(model: Any) -> str:
    """The alias that `model` is written to when the caller names none: the router's, or the setting's."""
    alias = router.db_for_write(model)
    return conf.database() if alias == DEFAULT_DB_ALIAS else alias


def require_postgresql(connection: BaseDatabaseWrapper) -> None:
    """Raise `UnsupportedDatabase` on anything but PostgreSQL (postgis included) through psycopg 3."""
    if connection.vendor != "postgresql":
        raise UnsupportedDatabase(
            f"django_workqueue needs PostgreSQL 14 or newer, but the database alias {connection.alias!r} is "
            f"{connection.vendor!r}. Name a PostgreSQL alias in WORKQUEUE_DATABASE or with using=, and keep this app's "
            "migrations off the others with a database router's allow_migrate()."
        )


def require_version(connection: BaseDatabaseWrapper) -> None:
    """Raise `UnsupportedDatabase` on a PostgreSQL that is too old."""
    require_postgresql(connection)
    version = connection.get_database_version()
    if version < MINIMUM_VERSION:
        raise UnsupportedDatabase(
            f"django_workqueue needs PostgreSQL 14 or newer, but the database alias {connection.alias!r} is version "
            f"{'.'.join(map(str, version))}. Upgrade the server, or name another alias in WORKQUEUE_DATABASE."
        )


def inside_transaction(alias: str) -> bool:
    """Whether the calling thread's connection is in `atomic()` or has autocommit off. Opens no connection."""
    connection = connections[alias]
    guard = connection.__dict__.get("connect")
    if guard is not None and hasattr(guard, "wrapped"):  # when it has gone, it leaves the real method in its place
        guard()  # SimpleTestCase forbids this database: let it say so on the caller's own stack
    if connection.in_atomic_block:
        return True
    autocommit = connection.autocommit if connection.connection is not None else connection.settings_dict["AUTOCOMMIT"]
    return not autocommit


async def ainside_transaction(alias: str, timeout: float) -> bool:
    """The same for a coroutine: whether the sync code behind it, if there is any, holds a transaction.

    Raises `TimeoutError` where that code's thread, which alone can tell, is busy with something else for so long.
    """
    if not _sync_thread_behind():
        return False
    asking = asyncio.ensure_future(sync_to_async(inside_transaction)(alias))
    try:
        done, _ = await asyncio.wait({asking}, timeout=timeout)
    finally:
        asking.cancel()
    if not done:
        raise TimeoutError
    return asking.result()


def _sync_thread_behind() -> bool:
    # asgiref runs thread-sensitive code in the thread that entered async_to_sync, or in one it made for the
    # context. Where neither exists yet there is no transaction to find, and asking would only start a thread.
    try:
        if getattr(AsyncToSync.executors, "current", None) is not None:
            return True
        context = SyncToAsync.thread_sensitive_context.get(None)
        if context is not None:
            return context in SyncToAsync.context_to_thread_executor
        return bool(AsyncToSync.loop_thread_executors) or bool(SyncToAsync.single_thread_executor._threads)
    except AttributeError:
        return True


def name_twins(error: SynchronousOnlyOperation) -> None:
    """Let Django's refusal to work in a coroutine say what does: whatever of ours asks a database has a twin."""
    if TWINS not in getattr(error, "__notes__", ()):
        error.add_note(TWINS)


def retrying(call: Callable[[], T], *, attempts: int = 10) -> T:
    """Run a self-committing call again after a deadlock or serialisation failure."""
    for attempt in range(1, attempts):
        try:
            return call()
        except DatabaseError as error:
            if verdict(error) is not Verdict.RETRY:
                raise
            time.sleep(random.random() * 0.01 * attempt)
    return call()


@contextlib.contextmanager
def brief(alias: str, patience: timedelta, **settings: str) -> Iterator[None]:
    """A block of reads on the calling thread's connection, each given up by the server after `patience`.

    `sqlstate` of the error is then `CANCELLED`. The server's `settings` hold within the block, which leaves nothing
    behind: it is rolled back, in a transaction of the caller's to where it began.
    """
    require_postgresql(connections[alias])
    settings["statement_timeout"] = _milliseconds(patience)
    try:
        with transaction.atomic(using=alias):
            with connections[alias].cursor() as cursor:
                made = ", ".join("set_config(%s, %s, true)" for _ in settings)
                cursor.execute(f"SELECT {made}", [each for setting in settings.items() for each in setting])
            yield
            with connections[alias].cursor() as cursor:  # what undoes it must not be given up half-way
                cursor.execute("SET LOCAL statement_timeout = 0")
            transaction.set_rollback(True, using=alias)
    except SynchronousOnlyOperation as error:
        name_twins(error)
        raise


@contextlib.contextmanager
def impatient(alias: str, patience: timedelta) -> Iterator[None]:
    """A transaction on the calling thread's connection that waits for nobody's lock for longer than `patience`.

    `verdict` of the error is then `LOCKED`. Within a transaction of the caller's it is a savepoint, which leaves the
    setting as it was.
    """
    connection = connections[alias]
    within = inside_transaction(alias)
    with transaction.atomic(using=alias):
        with connection.cursor() as cursor:
            cursor.execute(
                "WITH before AS MATERIALIZED (SELECT current_setting('lock_timeout') AS it)"
                " SELECT it, set_config('lock_timeout', %s, true) FROM before",
                [_milliseconds(patience)],
            )
            before = cursor.fetchone()[0]
        yield
        if within:
            with connection.cursor() as cursor:
                cursor.execute("SELECT set_config('lock_timeout', %s, true)", [before])


def transaction_token(connection: BaseDatabaseWrapper) -> int:
    """A random number that stands for the outermost transaction open on `connection`.

    Drawn once per transaction. It is tied to a commit hook, which Django drops with the transaction or
    savepoint that it was registered in: as long as the hook is there, so is everything written under the
    number.
    """
    held = connection.__dict__.get("_workqueue_transaction")
    if held is not None:
        token, hook = held
        if hook is None:
            # Manual transaction management has no hooks; a transaction ends when the server says so, and was over
            # before an atomic() that has begun one of its own.
            over = connection.connection is None or (
                connection.connection.info.transaction_status == psycopg.pq.TransactionStatus.IDLE
            )
            if not over and not (connection.in_atomic_block and connection.commit_on_exit):
                return int(token)
        elif any(registered[1] == hook.committed for registered in connection.run_on_commit):
            return int(token)
    token = secrets.randbits(62) + 1
    hook = _CommitHook() if connection.in_atomic_block else None
    if hook is not None:
        connection.on_commit(hook.committed, robust=True)
    connection.__dict__["_workqueue_transaction"] = (token, hook)
    return token


def _milliseconds(duration: timedelta) -> str:
    """A time limit as the server's settings are written. 0 would be none."""
    return f"{max(1, round(duration.total_seconds() * 1000))}ms"


class _CommitHook:
    """Wakes, after the commit, the queues that the transaction enqueued to."""

    def __init__(self) -> None:
        self.after: dict[Any, Callable[[], None]] = {}

    def committed(self) -> None:
        """What Django calls: a method, because some releases of it want the name of one that fails."""
        for call in self.after.values():
            try:
                call()
            except Exception:
                logger.exception("after a commit: the others are told all the same")


def after_commit(connection: BaseDatabaseWrapper, key: Any, call: Callable[[], None]) -> None:
    """Run `call` after the open transaction commits, once per `key`. Manual transactions have no such moment."""
    transaction_token(connection)
    hook = connection.__dict__["_workqueue_transaction"][1]
    if hook is not None:
        hook.after.setdefault(key, call)
