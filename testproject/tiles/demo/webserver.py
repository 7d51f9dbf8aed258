"""The demo's web server: this project on the loopback interface, served by a thread of this process.

An ASGI server, since the activity page is fed for as long as it is open.
"""

import errno
import logging
import socket
from threading import Thread
from typing import Final, Self

import uvicorn
from django.contrib.staticfiles.handlers import ASGIStaticFilesHandler
from django.core.asgi import get_asgi_application

from testproject.tiles import stream

from .errors import DemoError, PortTakenError

PATIENCE: Final = 3  # seconds, for requests that are being answered


class WebServer:
    """Listens from the moment it is made, serves from `start()` to `stop()`. Port 0 is any free one."""

    def __init__(self, port: int) -> None:
        try:
            self._socket = socket.create_server(("127.0.0.1", port), backlog=128)
        except OSError as error:
            if error.errno == errno.EADDRINUSE:
                raise PortTakenError(
                    f"Port {port} is taken: stop what listens there, or choose another one, "
                    f"as in: make demo ARGS='--port {port + 1}'"
                ) from error
            raise DemoError(f"The web server cannot listen on port {port}: {error.strerror}") from error
        self.url = f"http://127.0.0.1:{self._socket.getsockname()[1]}/"
        self._server: uvicorn.Server | None = None
        self._thread: Thread | None = None

    def start(self) -> None:
        self._server = uvicorn.Server(
            uvicorn.Config(
                ASGIStaticFilesHandler(get_asgi_application()),
                lifespan="off",
                ws="none",
                log_config=None,
                log_level=logging.ERROR,  # a map asks for a lot
                access_log=False,
                timeout_graceful_shutdown=PATIENCE,
            )
        )
        sockets = [self._socket]
        self._thread = Thread(target=self._server.run, args=(sockets,), name="demo-web-server", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        if self._server and self._thread:
            self._server.should_exit = True
            stream.end()
            self._thread.join()
        self._socket.close()

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *exc: object) -> None:
        self.stop()
