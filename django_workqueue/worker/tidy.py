"""Django's connections around each handler, at no cost to handlers that use none.

What `request_started` and `request_finished` do around a request: connections that are too old or broken are
closed, the query log is emptied; and no transaction of one handler reaches the next. Which threads have connections
at all is learnt from `connection_created`.
"""

from __future__ import annotations

import threading
from contextvars import ContextVar
from typing import Any, Protocol

from django.db import close_old_connections, connections, reset_queries
from django.db.backends.signals import connection_created
from psycopg.pq import TransactionStatus

from django_workqueue.engine import Handler

from . import journal

connected: set[int] = set()  # threads of ours, by ident, that have opened connections
_ours: set[int] = set()
_told: set[tuple[str, str]] = set()  # queues and aliases of which it was said that a handler left a transaction open


class Holder(Protocol):
    """What async handlers' connections are noted on: they are opened in threads that asgiref chooses."""

    connected: bool


holder: ContextVar[Holder] = ContextVar("workqueue_connections")


def listen() -> None:
    """Learn from now on of the connections that are opened."""
    connection_created.connect(_note, dispatch_uid="django_workqueue.worker")


def watch() -> int:
    """Note from now on whether the calling thread opens connections; its ident."""
    listen()
    ident = threading.get_ident()
    _ours.add(ident)
    connected.discard(ident)
    return ident


def unwatch() -> None:
    """The calling thread ends: close what it opened."""
    ident = threading.get_ident()
    connections.close_all()
    _ours.discard(ident)
    connected.discard(ident)


def after(handler: Handler, *, cut_off: bool) -> bool:
    """Tidy up after a handler, which may have been `cut_off` by its timeout; whether any connections are left.

    Raises nothing: the handler's outcome does not hang on it.
    """
    try:
        return close() if cut_off else tidy(handler)
    except BaseException as error:  # noqa: BLE001 - drivers, routers and signal handlers: anything may be raised here
        journal.broken("tidying connections", error)
        return True


def tidy(handler: Handler | None = None) -> bool:
    """Close what is too old or broken, or was left in a transaction by `handler`, in the calling thread, which has
    opened connections; whether any are left."""
    for connection in connections.all(initialized_only=True):
        if _is_in_transaction(connection):
            _drop(connection)
            _tell(handler, connection.alias)
    reset_queries()
    close_old_connections()
    left = any(connection.connection is not None for connection in connections.all(initialized_only=True))
    if not left:
        connected.discard(threading.get_ident())
    return left


def close() -> bool:
    """Close all that the calling thread opened: a handler was cut off in the middle of who knows what."""
    for connection in connections.all(initialized_only=True):
        _drop(connection)
    connected.discard(threading.get_ident())
    return False


def _is_in_transaction(connection: Any) -> bool:
    """Whether Django has it in an `atomic()`, or the server in a transaction that was begun by hand."""
    if connection.in_atomic_block or connection.needs_rollback or connection.closed_in_transaction:
        return True
    raw = connection.connection
    return raw is not None and connection.vendor == "postgresql" and raw.info.transaction_status in _OPEN


def _drop(connection: Any) -> None:
    """Close it and have Django forget it: what is closed inside `atomic()` stays closed until that is left."""
    try:
        connection.close()
    finally:
        del connections[connection.alias]


def _tell(handler: Handler | None, alias: str) -> None:
    if handler is not None and (handler.source.name, alias) not in _told:
        _told.add((handler.source.name, alias))
        journal.left_open(handler, alias)


_OPEN = (TransactionStatus.ACTIVE, TransactionStatus.INTRANS, TransactionStatus.INERROR)


def _note(**_: Any) -> None:
    found = holder.get(None)
    if found is not None:
        found.connected = True
        return
    ident = threading.get_ident()
    if ident in _ours:
        connected.add(ident)
