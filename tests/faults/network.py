"""The network between the processes and the server: a TCP proxy that delays, tears, cuts, and goes silent.

Whatever it does goes for all connections through it, or for those whose start-up names one application.
"""

from __future__ import annotations

import contextlib
import random
import socket
import struct
import threading
import time
from collections.abc import Callable
from pathlib import Path

MOST_LATE = 5.0  # seconds between two tries of TCP's, in here


class Network:
    """Listens on a port of the loopback and passes on to `target`, the folder of a server's socket."""

    def __init__(self, target: str) -> None:
        self.target = target
        self.delay = 0.0  # seconds that every piece of data takes longer, both ways
        self.jitter = 0.0  # and up to so many more
        self.loss = 0.0  # the share of pieces that are lost, and come as late as TCP sends them again
        self.piece = 65536  # bytes that are passed on at once
        self.refusing = False  # new connections are closed at once
        self.silent = False  # new connections are accepted and never answered
        self.links: list[Link] = []
        self._listener = socket.create_server(("127.0.0.1", 0), backlog=256)
        self.port: int = self._listener.getsockname()[1]
        threading.Thread(target=self._accept, name="network", daemon=True).start()

    @property
    def url(self) -> str:
        return f"postgresql://postgres@127.0.0.1:{self.port}/workqueue?sslmode=disable&gssencmode=disable"

    def those(self, application: str = "") -> list[Link]:
        """The open connections of an application, such as `django_workqueue listen`."""
        return [link for link in self.links if link.open and application in link.application]

    def cut(self, application: str = "") -> int:
        """Close connections, at both ends."""
        return len([link.close() for link in self.those(application)])

    def blackhole(self, application: str = "") -> int:
        """Pass nothing on any more, in neither direction, on these connections; they stay open."""
        return len([link.passing.clear() for link in self.those(application)])

    def late(self) -> float:
        """Seconds until the next piece is there. What is lost is sent again after 0.2 s, 0.4 s, 0.8 s, …"""
        seconds, wait = self.delay + self.jitter * random.random(), 0.2
        while random.random() < self.loss and wait < MOST_LATE:
            seconds, wait = seconds + wait, wait * 2
        return seconds

    def close(self) -> None:
        self.refusing = True
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self.cut()

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            if self.refusing:
                client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                client.close()
                continue
            self.links = [link for link in self.links if link.open]
            self.links.append(Link(self, client))


class Link:
    """One connection through it."""

    def __init__(self, network: Network, client: socket.socket) -> None:
        self.network = network
        self.client = client
        self.client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.server: socket.socket | None = None
        self.application = ""
        self.open = True
        self.passing = threading.Event()
        if not network.silent:
            self.passing.set()
        self._start(self._up)

    def close(self) -> None:
        self.open = False
        self.passing.set()
        for end in filter(None, (self.client, self.server)):
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)

    def _start(self, work: Callable[[], None]) -> None:
        threading.Thread(target=work, name="network-link", daemon=True).start()

    def _up(self) -> None:
        with contextlib.suppress(OSError):
            first = self.client.recv(65536)
            self.application = first.partition(b"application_name\0")[2].partition(b"\0")[0].decode()
            self.passing.wait()
            self.server = socket.socket(socket.AF_UNIX)
            self.server.connect(str(Path(self.network.target) / ".s.PGSQL.5432"))
            self._start(self._down)
            if first:
                self.server.sendall(first)
                self._pump(self.client, self.server)
        self.close()
        self.client.close()

    def _down(self) -> None:
        assert self.server is not None
        with contextlib.suppress(OSError):
            self._pump(self.server, self.client)
        self.close()
        self.server.close()

    def _pump(self, source: socket.socket, sink: socket.socket) -> None:
        while data := source.recv(65536):
            for start in range(0, len(data), self.network.piece):
                if late := self.network.late():
                    time.sleep(late)
                self.passing.wait()
                if not self.open:
                    return
                sink.sendall(data[start : start + self.network.piece])
