"""Pub/sub on PostgreSQL's notifications: what is published, to whom it is handed, and when it is dropped.

The connection is `notify`'s. Nothing is stored: a message reaches whoever listens when it is committed.
"""

from __future__ import annotations

import asyncio
import base64
import builtins
import contextlib
import inspect
import itertools
import json
import logging
import math
import os
import threading
import weakref
from collections import deque
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from typing import Any, Self, TypeVar, overload

from asgiref.sync import sync_to_async
from django.core.serializers.json import DjangoJSONEncoder
from django.db import close_old_connections, connections, reset_queries

from . import conf, database, notify
from .exceptions import InvalidPayload, PayloadTooLarge

logger = logging.getLogger("django_workqueue")

MAX_PAYLOAD = 7_999  # bytes: the server's limit
MAX_CHANNEL = 63  # bytes: likewise
BUFFER = 1_000  # messages
START_PATIENCE = 10.0  # seconds

PUBLISH = "SELECT pg_notify(%s, %s)"

JSON = str | int | float | bool | None | Mapping[str, Any] | Sequence[Any]
Callback = Callable[["Message"], object]
F = TypeVar("F", bound=Callback)


def publish(channel: str, payload: bytes | JSON = "", *, using: str | None = None) -> None:
    """Send a message to everybody who listens on the channel, if and when the caller's transaction commits.

    Outside a transaction it is sent at once. A `str` is sent as it is, `bytes` as base64, anything else as
    JSON text: what another program sees is what `LISTEN` shows it. A channel is any text of 1 to 63 bytes; on
    `workqueue` the name of a queue wakes its workers.

    Raises `PayloadTooLarge` over 7,999 bytes (as sent, in UTF-8), `InvalidPayload` for what is not JSON or
    holds NUL or a lone surrogate, and `ValueError` for such a channel.
    """
    _check_channel(channel)
    text = _encode(payload)
    connection = connections[database.resolve(using)]
    database.require_postgresql(connection)
    with connection.cursor() as cursor:
        cursor.execute(PUBLISH, [str.__str__(channel), text])


async def apublish(channel: str, payload: bytes | JSON = "", *, using: str | None = None) -> None:
    """`publish` for coroutines. Under `async_to_sync` it rides the transaction of the sync code behind it."""
    await sync_to_async(publish)(channel, payload, using=using)


class Message(str):
    """What was published, as its text, with the channel it came on."""

    __slots__ = ("channel",)

    channel: str

    def __new__(cls, channel: str, payload: str) -> Self:
        message = super().__new__(cls, payload)
        message.channel = channel
        return message

    def __getnewargs__(self) -> tuple[str, str]:
        return self.channel, self.payload

    def __repr__(self) -> str:
        return f"Message(channel={self.channel!r}, payload={self.payload!r})"

    @property
    def payload(self) -> str:
        """The text, as a plain `str`."""
        return str.__str__(self)

    def json(self) -> Any:
        """The value that was published as JSON; `ValueError` if the text is not JSON."""
        return json.loads(self.payload)

    def bytes(self) -> builtins.bytes:
        """The bytes that were published; `ValueError` if the text is not base64."""
        return base64.b64decode(self.payload, validate=True)


class Subscriber:
    """Hands the messages of some channels to callbacks, or to coroutines that iterate over them.

    Callbacks take a `Message` and run one after the other on a thread of the subscriber's. What one raises is
    logged, and the next message delivered. A lost connection is replaced; what was published meanwhile is
    missed. Whoever falls `buffer` messages behind loses the oldest, which is logged, and counted in `dropped`.

    Starts once, in the process that is to hear: after a fork, not before. All subscribers and workers of a
    process share one connection for each alias.
    """

    def __init__(self, using: str | None = None, *, buffer: int = BUFFER) -> None:
        if buffer < 1:
            raise ValueError(f"buffer must be at least one message, not {buffer!r}")
        self.using = using
        self._buffer = buffer
        self._callbacks: dict[str, list[Callback]] = {}
        self._lock = threading.Lock()  # guards what follows
        self._mailbox: _Mailbox | None = None  # the callbacks'; there once it is started
        self._mailboxes: weakref.WeakSet[_Mailbox] = weakref.WeakSet()
        self._thread: threading.Thread | None = None
        self._stopped = False
        self._pid = os.getpid()
        self._dropped = 0

    @overload
    def handle(self, channel: str, fn: F) -> F: ...
    @overload
    def handle(self, channel: str, fn: None = None) -> Callable[[F], F]: ...

    def handle(self, channel: str, fn: F | None = None) -> F | Callable[[F], F]:
        """Have `fn(message)` called for each message on the channel; also a decorator. Before the start."""
        _check_channel(channel)
        if fn is None:
            return lambda decorated: self.handle(channel, decorated)
        if inspect.iscoroutinefunction(fn) or inspect.iscoroutinefunction(getattr(fn, "__call__", None)):
            raise TypeError(f"{fn!r} is async, and callbacks run on a thread. Iterate over messages({channel!r}) instead.")
        if not callable(fn):
            raise TypeError(f"a callback takes a message; {fn!r} cannot be called")
        with self._lock:
            if self._mailbox is not None:
                raise RuntimeError(f"handle({channel!r}) after the start: this subscriber has started already")
            self._callbacks.setdefault(str.__str__(channel), []).append(fn)
        return fn
