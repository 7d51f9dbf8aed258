"""Django's connections around each handler, at no cost to handlers that use none.

What `request_started` and `request_finished` do around a request: connections that are too old or broken are
closed, the query log is emptied. Which threads have connections at all is learnt from `connection_created`.
"""

from __future__ import annotations

import threading
from contextvars import ContextVar
from typing import Any, Protocol

from django.db import close_old_connections, connections, reset_queries
from django.db.backends.signals import connection_created

connected: set[int] = set()  # threads of ours, by ident, that have opened connections
_ours: set[int] = set()


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


def tidy() -> bool:
    """Close what is too old or broken in the calling thread, which has opened connections; whether any are left."""
    reset_queries()
    close_old_connections()
    left = any(connection.connection is not None for connection in connections.all(initialized_only=True))
    if not left:
        connected.discard(threading.get_ident())
    return left


def close() -> bool:
    """Close all that the calling thread opened: a handler was cut off in the middle of who knows what."""
    connections.close_all()
    connected.discard(threading.get_ident())
    return False


def _note(**_: Any) -> None:
    found = holder.get(None)
    if found is not None:
        found.connected = True
        return
    ident = threading.get_ident()
    if ident in _ours:
        connected.add(ident)
