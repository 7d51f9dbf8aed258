"""One server connection that listens: LISTEN, UNLISTEN, what was heard, and whether anything is heard at all.

Knows nothing of who listens, nor what to do when the connection is lost.

It is driven through libpq's nonblocking calls: on a connection whose other end has silently gone, a plain
`execute` would wait for the quarter of an hour that TCP takes to notice.
"""

from __future__ import annotations

import contextlib
import secrets
import selectors
import socket
import time
from collections import deque
from collections.abc import Set as AbstractSet
from typing import Self

import psycopg
from psycopg import sql
from psycopg.pq import ConnStatus, ExecStatus

from django_workqueue.database import Connection

WITHIN = 5.0  # seconds in which the server answers, and a wake to ourselves comes back

LISTEN = sql.SQL("LISTEN {channel}")
UNLISTEN = sql.SQL("UNLISTEN {channel}")
CALL_OURSELVES = sql.SQL("NOTIFY {channel}, {token}")
CALL_FROM_OUTSIDE = "SELECT pg_notify(%(channel)s, %(token)s)"

Note = tuple[str, str]  # channel, payload


class Unheard(Exception):
    """A wake sent to ourselves did not come back."""


class Session:
    """A listening connection to `alias`, used by one thread. Every method raises when the connection is lost.

    `nudge` is a socket that ends `hear` as soon as there is something to read on it.
    """

    def __init__(self, alias: str, nudge: socket.socket) -> None:
        self.channels: frozenset[str] = frozenset()
        self.refused: dict[str, str] = {}  # channels the server will not listen on, with its words
        self.heard_at = time.monotonic()
        self._connection = Connection(alias, application="django_workqueue listen")
        self._private = f"workqueue_{secrets.token_hex(8)}"
        self._echo = ""
        self._heard: deque[Note] = deque()
        self._nudge = nudge
        self._resources = contextlib.ExitStack()

    def __enter__(self) -> Self:
        try:
            self._open()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def pooled(self) -> bool:
        """Whether some proxy sits between us and the server."""
        return self._connection.pooled

    def close(self) -> None:
        """Leave the server. Idempotent."""
        self._resources.close()
        self._connection.close()

    def forget(self) -> None:
        """In a forked child: let go of what is the parent's without a word to the server."""
        self._connection.forget()

    def tune(self, channels: AbstractSet[str]) -> None:
        """Listen on exactly these channels."""
        for channel in sorted(self.channels - channels):
            self._execute(UNLISTEN.format(channel=sql.Identifier(channel)))
            self.channels -= {channel}
        for channel in sorted(channels - self.channels - self.refused.keys()):
            try:
                self._execute(LISTEN.format(channel=sql.Identifier(channel)))
            except psycopg.DatabaseError as error:
                if self._lost():
                    raise
                self.refused[channel] = str(error)
            else:
                self.channels |= {channel}

    def hear(self, timeout: float) -> list[Note]:
        """What was heard, in order; waits for it up to `timeout` seconds, or until nudged."""
        self._collect()
        if not self._heard:
            if any(key.fileobj is self._nudge for key, _ in self._idle.select(max(timeout, 0.0))):
                self._nudge.recv(4096)
            self._pgconn.consume_input()
            self._collect()
        heard = list(self._heard)
        self._heard.clear()
        return heard

    def verify(self) -> None:
        """Send a wake to ourselves and hear it; raises `Unheard` if it does not come back."""
        token = secrets.token_hex(8)
        if self.pooled:
            self._call_from_outside(token)
        else:
            self._execute(CALL_OURSELVES.format(channel=sql.Identifier(self._private), token=sql.Literal(token)))
        deadline = time.monotonic() + WITHIN
        self._collect()
        while self._echo != token:
            remaining = deadline - time.monotonic()
            if remaining <= 0:
                if self.pooled:  # the server's connection lives on, in the proxy
                    self._execute(UNLISTEN.format(channel=sql.Identifier(self._private)))
                raise Unheard(f"a wake to ourselves did not come back within {WITHIN:g} s")
            self._wait(self._alone, remaining)
            self._pgconn.consume_input()
            self._collect()

    def _open(self) -> None:
        raw = self._connection.raw
        self._pgconn = raw.pgconn
        self._encoding = raw.info.encoding
        self._alone = self._resources.enter_context(selectors.DefaultSelector())
        self._idle = self._resources.enter_context(selectors.DefaultSelector())
        for selector in (self._alone, self._idle):
            selector.register(self._pgconn.socket, selectors.EVENT_READ)
        self._idle.register(self._nudge, selectors.EVENT_READ)
        self._execute(LISTEN.format(channel=sql.Identifier(self._private)))

    def _call_from_outside(self, token: str) -> None:
        # Through a transaction-pooling proxy, what we send ourselves would come back with the answer, and prove
        # nothing: the server's connection is ours for just that long.
        outside = Connection(self._connection.alias, application="django_workqueue listen")
        try:
            outside.execute(CALL_FROM_OUTSIDE, {"channel": self._private, "token": token})
        finally:
            outside.close()

    def _execute(self, command: sql.Composed) -> None:
        """Run one command, answered within bounds."""
        self._pgconn.send_query(command.as_bytes(self._connection.raw))
        deadline = time.monotonic() + WITHIN
        refusal: str | None = None
        while True:
            unsent = self._pgconn.flush()
            if not unsent and not self._pgconn.is_busy():
                result = self._pgconn.get_result()
                if result is None:
                    break
                if result.status == ExecStatus.FATAL_ERROR:
                    refusal = result.get_error_message(self._encoding)
                continue
            self._alone.modify(self._pgconn.socket, selectors.EVENT_READ | (selectors.EVENT_WRITE if unsent else 0))
            if not self._wait(self._alone, deadline - time.monotonic()):
                raise psycopg.OperationalError(f"no answer from the server within {WITHIN:g} s")
            self._pgconn.consume_input()
        if refusal is not None:
            raise psycopg.DatabaseError(refusal)

    def _wait(self, selector: selectors.BaseSelector, timeout: float) -> bool:
        return bool(selector.select(max(timeout, 0.0)))

    def _collect(self) -> None:
        # libpq may have read notifications along with an answer: they are in its memory, not in the socket.
        while (note := self._pgconn.notifies()) is not None:
            self.heard_at = time.monotonic()
            channel, payload = note.relname.decode(self._encoding), note.extra.decode(self._encoding)
            if channel == self._private:
                self._echo = payload
            else:
                self._heard.append((channel, payload))

    def _lost(self) -> bool:
        return bool(self._pgconn.status != ConnStatus.OK)
