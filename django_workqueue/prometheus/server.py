"""A small HTTP server for the metrics: on a thread of its own, which can be stopped and started again around forks.

Knows nothing of workers.
"""

from __future__ import annotations

import socket
import threading
from http.server import BaseHTTPRequestHandler, HTTPServer
from time import monotonic
from typing import Any

from django.db import DatabaseError, InterfaceError, close_old_connections, connections
from prometheus_client import CollectorRegistry
from prometheus_client.exposition import choose_encoder

from .collector import WorkqueueCollector

CLIENT_PATIENCE = 5.0  # seconds that a client may take over its request, or over reading the answer
TICK = 0.1  # seconds after which a stop is noticed
FRESH = 5.0  # seconds after which a queue is looked at again …
SHARE = 10  # … or where a look takes long, so many times that after the last one
INTEREST = 300.0  # seconds after a scrape for which this goes on


class MetricsServer:
    """Serves `GET /metrics` on a port (0: any that is free) from `start()` on; one that is in use is an `OSError`."""

    def __init__(self, port: int, *, address: str = "", collector: WorkqueueCollector | None = None) -> None:
        registry = CollectorRegistry()
        self._collector = collector or WorkqueueCollector()
        self._collector.is_kept_fresh = True
        registry.register(self._collector)
        self._server = _Server((address, port), type("Handler", (_Handler,), {"registry": registry}))
        self.port: int = self._server.server_address[1]
        host = str(self._server.server_address[0])
        self.url = f"http://{f'[{host}]' if ':' in host else host}:{self.port}/metrics"
        self._thread: threading.Thread | None = None
        self._stop = threading.Event()
        self._refresh_at = 0.0

    def start(self) -> None:
        """Answer from now on."""
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, args=(self._stop,), name="workqueue-metrics", daemon=True)
        self._thread.start()

    def stop(self, timeout: float) -> bool:
        """Answer no more until started again; whether the thread has ended. Who asks meanwhile waits."""
        self._stop.set()
        if self._thread is not None:
            self._thread.join(timeout)
            if self._thread.is_alive():
                return False
            self._thread = None
        return True

    def close(self) -> None:
        """Let go of the port; in a forked child, of its share in it."""
        self._server.server_close()

    def _run(self, stop: threading.Event) -> None:
        try:
            while not stop.is_set():
                self._server.handle_request()
                if monotonic() < self._server.asked_at + INTEREST and monotonic() >= self._refresh_at:
                    self._refresh()
        finally:
            connections.close_all()

    def _refresh(self) -> None:
        """Look at one queue between scrapes, as long as there are any, so that these are quick."""
        began = monotonic()
        try:
            looked = self._collector.refresh(older_than=FRESH)
        except (DatabaseError, InterfaceError):  # the next scrape says so
            looked = True
            connections.close_all()
        self._refresh_at = monotonic() + (SHARE * (monotonic() - began) if looked else 1.0)


class _Server(HTTPServer):
    timeout = TICK
    asked_at = float("-inf")
    request_queue_size = 32

    def __init__(self, address: tuple[str, int], handler: type[BaseHTTPRequestHandler]) -> None:
        if ":" in address[0]:
            self.address_family = socket.AF_INET6
        super().__init__(address, handler)

    def server_bind(self) -> None:
        """Without HTTPServer's look at the name service, which may take long."""
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        self.socket.bind(self.server_address)
        self.server_address = self.socket.getsockname()
        self.server_name, self.server_port = str(self.server_address[0]), int(self.server_address[1])

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that went away is no matter."""


class _Handler(BaseHTTPRequestHandler):
    registry: CollectorRegistry
    timeout = CLIENT_PATIENCE

    def do_GET(self) -> None:
        """Answer."""
        if self.path.split("?")[0] not in ("/metrics", "/"):
            self.send_error(404)
            return
        encode, content_type = choose_encoder(self.headers.get("Accept", ""))
        if isinstance(self.server, _Server):
            self.server.asked_at = monotonic()
        close_old_connections()
        try:
            body = encode(self.registry)
        finally:
            close_old_connections()
        self.send_response(200)
        self.send_header("Content-Type", content_type)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - http.server's name
        """Not a line for each scrape."""
