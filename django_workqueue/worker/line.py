"""The line between a worker process and its supervisor: claims go up, renewals and losses come down.

A message is a marshalled tuple behind its length. Neither side ever waits for the other: what the socket does
not take is kept and sent later. A process whose messages had become too many to keep tells its claims anew.
"""

from __future__ import annotations

import contextlib
import marshal
import select
import socket
import struct
import threading
from collections import deque
from collections.abc import Callable, Sequence
from time import monotonic
from typing import Any

from . import journal
from .bell import Bell
from .counts import Counts
from .keeper import Lost, OwnKeeper
from .lane import Batch

HEARTBEAT = 1.0  # seconds at most between two messages of a living process
KEPT = 4 << 20  # bytes of messages kept for the other side; beyond that they are dropped, and what matters told anew

_LENGTH = struct.Struct("!I")


def pack(*message: Any) -> bytes:
    """A message as it travels."""
    body = marshal.dumps(message)
    return _LENGTH.pack(len(body)) + body


class Reader:
    """Puts messages together from what a socket brings."""

    def __init__(self) -> None:
        self._buffer = bytearray()

    def feed(self, data: bytes) -> list[tuple[Any, ...]]:
        """The messages that are now complete."""
        self._buffer += data
        messages, start = [], 0
        while len(self._buffer) - start >= _LENGTH.size:
            (length,) = _LENGTH.unpack_from(self._buffer, start)
            end = start + _LENGTH.size + length
            if len(self._buffer) < end:
                break
            messages.append(marshal.loads(bytes(self._buffer[start + _LENGTH.size : end])))  # noqa: S302 - our own
            start = end
        del self._buffer[:start]
        return messages


class Writer:
    """Sends what it can at once, and keeps the rest in order. For several threads."""

    def __init__(self, sock: socket.socket) -> None:
        self._socket = sock
        self._kept: deque[bytes] = deque()
        self._size = 0
        self._lock = threading.Lock()  # guards both, and the order of sending

    def send(self, message: bytes) -> bool:
        """Send a message, now or at a later `flush`; False if too much is kept already."""
        with self._lock:
            self._flush()
            if self._size > KEPT:
                return False
            if not self._kept:
                message = message[self._try(message) :]
            if message:
                self._kept.append(message)
                self._size += len(message)
        return True

    def flush(self) -> bool:
        """Send what was kept; whether all of it is gone."""
        with self._lock:
            return self._flush()

    def _flush(self) -> bool:
        while self._kept:
            first = self._kept[0]
            sent = self._try(first)
            self._size -= sent
            if sent < len(first):
                self._kept[0] = first[sent:]
                return False
            self._kept.popleft()
        return True

    def _try(self, data: bytes) -> int:
        try:
            return self._socket.send(data, socket.MSG_DONTWAIT | socket.MSG_NOSIGNAL)
        except BlockingIOError:
            return 0
        except OSError:  # the other side is gone; whoever reads notices
            return len(data)


def misconfigured(sock: socket.socket, why: str) -> None:
    """Tell the supervisor that this process cannot begin, and nor could another."""
    with contextlib.suppress(OSError):
        sock.sendall(pack("misconfigured", why))


class Line:
    """A supervised process's keeper: the supervisor renews. If that goes, `alone` is called and `own` keeps.

    Each heartbeat tells the `counts` so far, so that a process that is killed is not forgotten.
    """

    def __init__(
        self,
        sock: socket.socket,
        *,
        lost: Lost,
        own: OwnKeeper,
        alone: Callable[[], None],
        counts: Callable[[], Counts],
    ) -> None:
        self._socket = sock
        self._writer = Writer(sock)
        self._batches: dict[int, Batch] = {}
        self._behind = False  # whether the supervisor missed something of them
        self._lock = threading.Lock()  # guards _behind, and the order in which the supervisor is told of claims
        self._lost = lost
        self._own = own
        self._is_alone = False
        self._alone = alone
        self._counts = counts
        self._finished = False
        self._bell = Bell()
        self._stopping = False
        self._reading = threading.Thread(target=self._read, name="workqueue-line", daemon=True)
        self._beating = threading.Thread(target=self._beat, name="workqueue-heartbeat", daemon=True)

    def start(self) -> None:
        """Talk from now on."""
        self._reading.start()
        self._beating.start()

    def hold(self, batch: Batch) -> None:
        """Tell of a claim, before any of it starts: from here on a handler may hold the GIL."""
        token = batch.fence.token
        claim = _claim(batch, batch.lane.source.idents(batch.works))
        with self._lock:
            self._batches[token] = batch
            self._tell("hold", *claim)
        if self._is_alone:
            self._own.hold(batch)

    def forget(self, batch: Batch) -> None:
        """A claim is done with."""
        token = batch.fence.token
        with self._lock:
            self._batches.pop(token, None)
            self._tell("forget", token)
        if self._is_alone:
            self._own.forget(batch)

    def drop(self, batch: Batch, works: Sequence[Any]) -> None:
        """Leave some of a claim out of its renewal."""
        idents = batch.lane.source.idents(works)
        batch.dropped.update(idents)
        with self._lock:
            self._tell("drop", batch.fence.token, idents)

    def say_goodbye(self, *, finished: bool, gave_up: str | None = None, in_the_way: str | None = None) -> None:
        """Tell what was done in all, and what was `in_the_way` of more. Nobody need come after us if we are
        `finished`, there being nothing left to do, or `gave_up`, for the reason that it tells."""
        self._finished = finished or gave_up is not None
        self._flush(1.0)
        self._report()
        if gave_up is not None:
            self._send("gave_up", gave_up)
        if in_the_way is not None:
            self._send("in_the_way", in_the_way)
        self._flush(1.0)

    def stop(self, timeout: float) -> bool:
        """Say the rest, within the timeout."""
        self._stopping = True
        self._bell.ring()
        self._flush(timeout)
        return not self._is_alone or self._own.stop(timeout)

    def _send(self, *message: Any) -> bool:
        return self._writer.send(pack(*message))

    def _tell(self, *message: Any) -> None:
        """Of a claim, under the lock. What is dropped is made up for by telling all of them anew, later."""
        if self._behind:
            self._catch_up()
        else:
            self._behind = not self._send(*message)

    def _catch_up(self) -> None:
        if self._behind and self._writer.flush():
            claims = [_claim(batch, batch.held()) for batch in list(self._batches.values())]
            self._behind = not self._send("anew", claims)

    def _report(self) -> None:
        counts = self._counts()
        self._send("counts", counts.completed, counts.failed, counts.retried, counts.reclaimed, self._finished)

    def _flush(self, timeout: float) -> bool:
        until = monotonic() + timeout
        while not self._writer.flush():
            if monotonic() >= until:
                return False
            select.select([], [self._socket], [], max(0.0, until - monotonic()))
        return True

    def _beat(self) -> None:
        while not self._stopping:
            self._report()
            if self._flush(HEARTBEAT):
                with self._lock:
                    self._catch_up()
                self._bell.wait(HEARTBEAT)

    def _read(self) -> None:
        reader = Reader()
        while not self._stopping:
            try:
                data = self._socket.recv(1 << 16)
            except OSError:
                data = b""
            if not data:
                break
            for message in reader.feed(data):
                self._hear(*message)
        if not self._stopping:
            self._go_on_alone()

    def _hear(self, verb: str, token: int, what: Any) -> None:
        batch = self._batches.get(token)
        if batch is None:
            return
        if verb == "renewed":
            batch.fence.deadline = max(batch.fence.deadline, what)
        else:
            self._lost(batch, what, ended=verb == "ended")

    def _go_on_alone(self) -> None:
        self._own.start()
        self._is_alone = True
        for batch in list(self._batches.values()):
            self._own.hold(batch)
        self._alone()
        journal.supervisor_gone()


def _claim(batch: Batch, idents: list[Any]) -> tuple[int, int, float, bytes]:
    """A claim as the supervisor is told of it."""
    return batch.lane.number, batch.fence.token, batch.fence.deadline, marshal.dumps(idents)
