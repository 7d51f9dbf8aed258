"""Starts a contestant's processes, reads what their meters saw, and stops them: by their ids, and only these.

Knows nothing of what is measured.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from array import array
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

ROOT = Path(__file__).parent.parent
START_LIMIT = 60.0  # seconds from starting a worker to its first job
STOP_LIMIT = 15.0
VERB_LIMIT = 300.0


class Failed(Exception):
    """A contestant did not do what was asked of it; the message has the end of its log."""


@dataclass(frozen=True)
class Command:
    """How to run a contestant's verbs: the words before the verb, and its environment."""

    words: Sequence[str]
    environment: Mapping[str, str]

    def call(self, verb: str, options: Mapping[str, Any], extra: Mapping[str, str]) -> dict[str, Any]:
        """Run a verb to its end and return its answer."""
        try:
            done = subprocess.run(
                [*self.words, verb, json.dumps(options)],
                check=False,
                env={**self.environment, **extra},
                cwd=ROOT,
                capture_output=True,
                text=True,
                timeout=VERB_LIMIT,
            )
        except subprocess.TimeoutExpired as late:
            raise Failed(f"{verb}: not done after {VERB_LIMIT:.0f} s") from late
        if done.returncode:
            raise Failed(f"{verb}: {tail(done.stderr or done.stdout)}")
        lines = done.stdout.strip().splitlines()
        return dict(json.loads(lines[-1])) if lines and lines[-1].startswith("{") else {}


class Workers:
    """Worker processes on one database, with the meter that their handlers write to."""

    def __init__(self, commands: Sequence[Command], *, size: int, extra: Mapping[str, str], gated: bool) -> None:
        self.commands = commands
        self.size = size
        self.extra = extra
        self.gated = gated
        self.directory = Path(tempfile.mkdtemp(prefix="workqueue-meter-"))
        self.processes: list[subprocess.Popen[bytes]] = []

    def __enter__(self) -> Self:
        environment = {"BENCH_METER": str(self.directory), "BENCH_METER_SIZE": str(self.size), **self.extra}
        for index, command in enumerate(self.commands):
            with (self.directory / f"{index}.log").open("wb") as log:
                process = subprocess.Popen(
                    command.words,
                    env={**command.environment, **environment},
                    cwd=ROOT,
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=subprocess.STDOUT,
                    start_new_session=True,
                )
            self.processes.append(process)
        if self.gated:
            try:
                self.open_gate()
            except BaseException:
                self.__exit__()
                raise
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()
        shutil.rmtree(self.directory, ignore_errors=True)

    def open_gate(self) -> None:
        """Let the workers begin once all of them have imported what they need."""
        deadline = time.monotonic() + START_LIMIT
        while len(list(self.directory.glob("*.ready"))) < len(self.processes):
            self.check(deadline)
            time.sleep(0.02)
        (self.directory / "go").touch()

    def check(self, deadline: float) -> None:
        """Raise if a worker has ended by itself or the deadline has passed."""
        if any(process.poll() is not None for process in self.processes):
            raise Failed(f"a worker ended: {self.log()}")
        if time.monotonic() > deadline:
            raise Failed(f"no job started in time: {self.log()}")

    def runs(self) -> int:
        """How many starts there were, over all processes and repeats."""
        return sum(map(self.last_slot, self.directory.glob("*.starts")))

    def starts(self) -> array[int]:
        """For each job the monotonic nanosecond of its earliest start, or 0."""
        merged = array("q", bytes(8 * self.size))
        for path in self.directory.glob("*.starts"):
            slots = self.slots(path)
            if not any(merged):
                merged = slots[: self.size]
                continue
            for number, at in enumerate(slots[: self.size]):
                if at and (not merged[number] or at < merged[number]):
                    merged[number] = at
        return merged

    def last_slot(self, path: Path) -> int:
        """How many starts one process has seen, without reading the rest of its meter."""
        with path.open("rb") as file:
            file.seek(8 * self.size)
            return int.from_bytes(file.read(8), sys.byteorder)

    def slots(self, path: Path) -> array[int]:
        """The content of one process's meter."""
        slots = array("q")
        content = path.read_bytes()
        # A Node process may just be writing its file for the first time.
        slots.frombytes(content if len(content) == 8 * (self.size + 1) else bytes(8 * (self.size + 1)))
        return slots

    def wait_started(self, count: int, *, limit: float = START_LIMIT) -> None:
        """Return when so many different jobs have started, or fail."""
        deadline = time.monotonic() + limit
        while self.size - self.starts().count(0) < count:
            self.check(deadline)
            time.sleep(0.05)

    def wait_runs(self, count: int, *, limit: float) -> None:
        """Return when there were so many starts, which is all that a meter of size 0 knows, or fail."""
        deadline = time.monotonic() + limit
        while self.runs() < count:
            self.check(deadline)
            time.sleep(0.05)

    def log(self) -> str:
        """The end of what the workers said."""
        return " | ".join(tail(path.read_text(errors="replace")) for path in sorted(self.directory.glob("*.log")))

    def stop(self) -> None:
        """Ask each worker to stop; end those that do not."""
        for process in self.processes:
            if process.poll() is None:
                process.send_signal(signal.SIGTERM)
        deadline = time.monotonic() + STOP_LIMIT
        for process in self.processes:
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(max(0.0, deadline - time.monotonic()))
            # Each was started as the leader of its own session, so this reaches its children and nobody else's.
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()


def tail(text: str, size: int = 300) -> str:
    """The end of a log on one line."""
    return " ".join(text.strip().splitlines()[-4:])[-size:]
