"""The demo's web server: this project on the loopback interface, served by threads of this process."""

import errno
from threading import Thread
from typing import Any, Self

from django.contrib.staticfiles.handlers import StaticFilesHandler
from django.core.servers.basehttp import ThreadedWSGIServer, WSGIRequestHandler
from django.core.wsgi import get_wsgi_application

from .errors import DemoError, PortTakenError


class WebServer:
    """Listens from the moment it is made, serves from `start()` to `stop()`. Port 0 is any free one."""

    def __init__(self, port: int) -> None:
        try:
            self._server = ThreadedWSGIServer(("127.0.0.1", port), QuietHandler)
        except OSError as error:
            if error.errno == errno.EADDRINUSE:
                raise PortTakenError(
                    f"Port {port} is taken: stop what listens there, or choose another one, "
                    f"as in: make demo ARGS='--port {port + 1}'"
                ) from error
            raise DemoError(f"The web server cannot listen on port {port}: {error.strerror}") from error
        self._thread = Thread(target=self._server.serve_forever, name="demo-web-server", daemon=True)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._server.server_port}/"

    def start(self) -> None:
        self._server.set_app(StaticFilesHandler(get_wsgi_application()))
        self._thread.start()

    def stop(self) -> None:
        if self._thread.is_alive():
            self._server.shutdown()
            self._thread.join()
        self._server.server_close()

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *exc: object) -> None:
        self.stop()


class QuietHandler(WSGIRequestHandler):
    """Logs what went wrong only: a map asks for a lot."""

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002
        status = str(args[1]) if len(args) > 1 else ""
        if status.startswith("5"):
            super().log_message(format, *args)
