"""The demo's worker: `workqueue_work` as a process of its own, with child processes that render and send."""

import os
import signal
import subprocess
import sys
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import IO, Final, Self

import testproject
from testproject.tiles.queues import letters, tiles

MANAGE: Final = Path(testproject.__file__).with_name("manage.py")
PATIENCE: Final = 15.0  # seconds, for what is being rendered to be finished


class Workers:
    """A worker on both queues, from `start()` to `stop()`; what it says goes to `output`, or to ours."""

    def __init__(
        self, *, processes: int, environment: Mapping[str, str] | None = None, output: IO[bytes] | None = None
    ) -> None:
        self.processes = processes
        self._environment = os.environ | (environment or {})
        self._output = output
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        queues = (tiles.name, letters.name)
        self._process = subprocess.Popen(
            [sys.executable, str(MANAGE), "workqueue_work", *queues, "--processes", str(self.processes)],
            env=self._environment,
            stdin=subprocess.DEVNULL,
            stdout=self._output,
            stderr=self._output and subprocess.STDOUT,
            start_new_session=True,  # a Ctrl-C at the terminal is ours to pass on: a second signal would cut it short
        )

    def ended(self) -> int | None:
        """The exit status, if it is not running any more."""
        return self._process.poll() if self._process else None

    def wait(self) -> int:
        """Wait until it ends; its exit status."""
        assert self._process is not None  # noqa: S101
        return self._process.wait()

    def stop(self) -> None:
        if self._process is None or self._process.poll() is not None:
            return
        self._process.terminate()
        try:
            self._process.wait(PATIENCE)
        finally:
            self._kill()

    def _kill(self) -> None:
        """Of a worker that ended as it should, nothing is left to be killed."""
        assert self._process is not None  # noqa: S101
        with suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *exc: object) -> None:
        self.stop()
