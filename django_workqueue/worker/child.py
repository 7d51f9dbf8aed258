"""A worker process as its supervisor sees it: its line, and the claims it has in hand."""

from __future__ import annotations

import marshal
import socket
from time import monotonic
from typing import Any

from .counts import Counts
from .lane import Lane
from .line import Reader, Writer, pack
from .timeouts import GRACE


class Child:
    """One worker process, as its supervisor sees it."""

    def __init__(self, number: int, pid: int, line: socket.socket) -> None:
        self.number = number
        self.pid = pid
        self.line = line
        self.reader = Reader()
        self.writer = Writer(line)
        self.began = self.heard_at = monotonic()
        self.claims: dict[int, Claimed] = {}  # by token
        self.counts = Counts()
        self.finished = False  # it has said that there is nothing left to do
        self.stopped = False  # by SIGSTOP: it runs nothing, so others may have its work when its leases lapse


class Claimed:
    """One claim of a child. What it names is only unpacked when it is to be renewed, which few claims live to see."""

    def __init__(self, child: Child, lane: Lane, token: int, packed: bytes) -> None:
        self.child = child
        self.lane = lane
        self.token = token
        self._packed = packed
        self._gone: set[Any] = set()

    def held(self) -> list[Any]:
        """The idents to renew: none while the child is stopped, or once it has been silent past the lane's timeouts."""
        if self.child.stopped:
            return []
        if self.lane.longest is not None and monotonic() - self.child.heard_at > self.lane.longest + GRACE:
            return []
        return [ident for ident in marshal.loads(self._packed) if ident not in self._gone]  # noqa: S302 - our own

    def renewed(self, deadline: float) -> None:
        """Tell the child."""
        self.child.writer.send(pack("renewed", self.token, deadline))

    def lost(self, idents: list[Any]) -> None:
        """Tell the child; it knows whether it has settled them itself."""
        self._gone.update(idents)
        self.child.writer.send(pack("lost", self.token, idents))

    def ended(self, idents: list[Any]) -> None:
        """The same of what nobody took from it."""
        self._gone.update(idents)
        self.child.writer.send(pack("ended", self.token, idents))

    def drop(self, idents: list[Any]) -> None:
        """Renew these no longer."""
        self._gone.update(idents)
