"""A TCP relay in front of the test server, for what networks and proxies do to a connection.

`freeze()` makes the open connections go silent without being closed, `swallow()` keeps what the server answers on them
from the client, and `cut()` closes them. With `pooling`, it does to notifications what a
transaction-pooling proxy does: they get through only while the client has a statement under way, and the client is told
a backend pid that is not the server's.
"""

from __future__ import annotations

import contextlib
import copy
import socket
import struct
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, BinaryIO

from django.db import connections

from django_workqueue import lanes


class Relay:
    def __init__(self, target: str | tuple[str, int], *, pooling: bool) -> None:
        self.target = target
        self.pooling = pooling
        self.links: list[Link] = []
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.port = self.listener.getsockname()[1]
        threading.Thread(target=self._accept, name="relay", daemon=True).start()

    def freeze(self) -> None:
        """Pass nothing on any more on the connections that are open now; new ones are not affected."""
        for link in self.links:
            link.thawed.clear()

    def swallow(self) -> None:
        """From now on the client hears no answer on the connections that are open now, but the server hears it."""
        for link in self.links:
            link.answers = False

    def cut(self) -> None:
        """Close the connections that are open now."""
        for link in self.links:
            link.close()

    def close(self) -> None:
        """Close every connection, and refuse new ones."""
        with contextlib.suppress(OSError):
            self.listener.shutdown(socket.SHUT_RDWR)  # closing alone would not end the accept that is under way
        self.listener.close()
        for link in self.links:
            link.close()

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self.listener.accept()
            except OSError:
                return
            self.links.append(Link(client, self._connect(), pooling=self.pooling))

    def _connect(self) -> socket.socket:
        if isinstance(self.target, tuple):
            return socket.create_connection(self.target)
        server = socket.socket(socket.AF_UNIX)
        server.connect(self.target)
        return server


class Link:
    def __init__(self, client: socket.socket, server: socket.socket, *, pooling: bool) -> None:
        self.client = client
        self.server = server
        self.thawed = threading.Event()
        self.thawed.set()
        self.answers = True
        self.under_way = 1  # statements the client has no answer to; its start-up counts as one
        up, down = (self._upwards, self._downwards) if pooling else (self._bytes, self._bytes)
        for pump, source, sink in ((up, client, server), (down, server, client)):
            threading.Thread(target=self._pump, args=(pump, source, sink), name="relay-link", daemon=True).start()

    def close(self) -> None:
        self.thawed.set()
        for end in (self.client, self.server):
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)

    def _pump(
        self, pump: Callable[[socket.socket], Iterator[bytes]], source: socket.socket, sink: socket.socket
    ) -> None:
        with contextlib.suppress(OSError):
            for data in pump(source):
                self.thawed.wait()
                if sink is self.server or self.answers:
                    sink.sendall(data)
        self.thawed.wait()
        self.close()
        source.close()

    def _bytes(self, source: socket.socket) -> Iterator[bytes]:
        while data := source.recv(65536):
            yield data

    def _upwards(self, source: socket.socket) -> Iterator[bytes]:
        """The client's messages; the first has no type."""
        stream = source.makefile("rb")
        head = stream.read(4)
        yield head + stream.read(struct.unpack("!i", head)[0] - 4)
        while kind := stream.read(1):
            if kind in b"QS":
                self.under_way += 1
            yield kind + self._rest(stream)

    def _downwards(self, source: socket.socket) -> Iterator[bytes]:
        stream = source.makefile("rb")
        while kind := stream.read(1):
            rest = self._rest(stream)
            if kind == b"Z":
                self.under_way -= 1
            elif kind == b"K":
                rest = rest[:4] + struct.pack("!i", 1) + rest[8:]
            elif kind == b"A" and not self.under_way:
                continue
            yield kind + rest

    def _rest(self, stream: BinaryIO) -> bytes:
        head = stream.read(4)
        if len(head) < 4:
            raise OSError("closed")
        return bytes(head + stream.read(struct.unpack("!i", head)[0] - 4))


@contextlib.contextmanager
def relayed(*, pooling: bool = False) -> Iterator[Relay]:
    """The alias `other` reaches the database of `default` through this relay. (Test cases let no new aliases in.)"""
    settings = copy.deepcopy(connections.settings["default"])
    host, port = settings["HOST"] or "/var/run/postgresql", int(settings["PORT"] or 5432)
    relay = Relay(str(Path(host) / f".s.PGSQL.{port}") if host.startswith("/") else (host, port), pooling=pooling)
    settings.update(HOST="127.0.0.1", PORT=relay.port)
    settings["OPTIONS"] = {**settings["OPTIONS"], "sslmode": "disable", "gssencmode": "disable"}
    with replaced("other", settings):
        try:
            yield relay
        finally:
            relay.close()


@contextlib.contextmanager
def replaced(alias: str, settings: dict[str, Any]) -> Iterator[None]:
    """Connections of our own to the alias use these settings, and none that was open before or is afterwards."""
    before = connections.settings[alias]
    lanes.rest(10)
    connections.settings[alias] = settings
    try:
        yield
    finally:
        connections.settings[alias] = before
        lanes.rest(10)
