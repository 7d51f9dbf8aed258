"""A stage for one scenario: a server, workers and producers as processes, the faults injected, the verdict."""

from __future__ import annotations

import contextlib
import os
import random
import signal
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import psycopg

from testproject.postgres import Server
from tests.interleave import wait_until

from . import checker, history

PROJECT = Path(__file__).resolve().parent.parent.parent
SCALE = float(os.environ.get("FAULTS_SCALE") or "1")
LEFT = f"SELECT count(*) FROM ({checker.LEFT}) AS left_over"
QUEUES = ["faults-keys", "faults-async", "faults-jobs"]  # what workers work where nothing else is said


def scaled(number: int) -> int:
    """A count as the machine affords it: `FAULTS_SCALE=10` is the full one."""
    return max(1, round(number * SCALE))


class Stage:
    """Everything of one scenario. `url` is how its processes reach the server, which may be through something."""

    def __init__(self, folder: Path, server: Server, *, url: str | None = None) -> None:
        self.folder = folder
        self.server = server
        self.url = url or server.url
        self.history = folder / "history"
        self.history.mkdir()
        self.logs = folder / "logs"
        self.logs.mkdir()
        self.started: list[subprocess.Popen[bytes]] = []
        self.workers: list[subprocess.Popen[bytes]] = []
        self.producers: list[subprocess.Popen[bytes]] = []
        self.queues = set(QUEUES)
        self.faults: list[tuple[float, str]] = []
        self.heals: list[float] = []
        self.chance = random.Random(folder.name)
        self.run("migrate", "-v0", url=server.url)

    # processes

    def environment(self, url: str | None = None, **env: str) -> dict[str, str]:
        ours = {
            "DJANGO_SETTINGS_MODULE": "tests.faults.settings",
            "DATABASE_URL": url or self.url,
            "PYTHONPATH": str(PROJECT),
            "PYTHONFAULTHANDLER": "1",
            history.FOLDER: str(self.history),
        }
        return os.environ | ours | env

    def run(self, *arguments: str, url: str | None = None) -> None:
        """A management command, to its end."""
        manage = [sys.executable, str(PROJECT / "testproject" / "manage.py")]
        subprocess.run([*manage, *arguments], env=self.environment(url), check=True, timeout=120)

    def start(self, *command: str, **env: str) -> subprocess.Popen[bytes]:
        log = (self.logs / f"{len(self.started)}.log").open("wb")
        process = subprocess.Popen(
            command, env=self.environment(**env), stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT
        )
        log.close()
        self.started.append(process)
        return process

    def work(self, *arguments: str, queues: Sequence[str] = QUEUES, **env: str) -> subprocess.Popen[bytes]:
        """A worker."""
        self.queues.update(queues)
        words = ["workqueue_work", *queues, "--poll", "1", "--concurrency", "4", *arguments]
        process = self.start(sys.executable, str(PROJECT / "testproject" / "manage.py"), *words, **env)
        self.workers.append(process)
        return process

    def produce(self, *arguments: str, **env: str) -> subprocess.Popen[bytes]:
        """A producer."""
        return self.run_to_end("-m", "tests.faults.producing", *arguments, **env)

    def run_to_end(self, *arguments: str, **env: str) -> subprocess.Popen[bytes]:
        """Python with these arguments, whose end is waited for and should be a good one."""
        self.producers.append(self.start(sys.executable, *arguments, **env))
        return self.producers[-1]

    def said(self) -> str:
        """All that the processes have said."""
        return "\n".join(path.read_text(errors="replace") for path in sorted(self.logs.glob("*.log")))

    # looking

    @contextlib.contextmanager
    def session(self, **parameters: Any) -> Iterator[psycopg.Connection[Any]]:
        """A connection straight to the server."""
        with psycopg.connect(self.server.url, autocommit=True, **parameters) as session:
            yield session

    def ask_server(self, statement: str, params: Any = None) -> list[Any]:
        with self.session() as session:
            cursor = session.execute(statement, params)
            return cursor.fetchall() if cursor.description else []

    def ended(self) -> int:
        """Runs that have ended by now; cheap enough to ask often."""
        return sum(path.read_bytes().count(b'"what": "end"') for path in self.history.glob("*.jsonl"))

    def wait_for_runs(self, number: int, deadline: float = 60) -> None:
        wait_until(lambda: self.ended() >= number, deadline, message=f"{number} runs; {self.ended()} so far")

    def left(self) -> int:
        try:
            return int(self.ask_server(LEFT, {"queues": sorted(self.queues)})[0][0])
        except psycopg.OperationalError:
            return -1

    def is_over(self) -> bool:
        return all(each.poll() is not None for each in self.producers) and self.left() == 0

    # faults

    def fault(self, name: str) -> None:
        """Note that one is injected now."""
        self.faults.append((time.monotonic(), name))

    def healed(self) -> None:
        """Note that what the last fault took away is there again."""
        self.heals.append(time.monotonic())

    def finish(
        self, rules: checker.Rules | None = None, *, deadline: float = 120, more: dict[str, Any] | None = None
    ) -> dict[str, Any]:
        """Wait until all work is done, stop the workers in order, and have the history checked; the figures."""
        wait_until(self.is_over, deadline, message=f"the end; {self.left()} left, {self._producing()} producing")
        ran = self.ended()
        self.stop_workers()
        assert self.ended() == ran, "something ran although everything was over"
        noted = history.read(self.history)
        with self.session() as session:
            findings = checker.check(noted, session, rules)
        for promise, broken in findings.broken.items():
            raise AssertionError(f"{promise}, {len(broken)} times:\n" + "\n".join(broken[:10]))
        for producer in self.producers:
            assert producer.returncode == 0, self.said()[-3000:]
        return findings.figures() | {"faults": len(self.faults)} | self._recovery(noted) | (more or {})

    def stop_workers(self, within: float = 40) -> None:
        living = [worker for worker in self.workers if worker.poll() is None]
        for worker in living:
            worker.send_signal(signal.SIGTERM)
        for worker in living:
            code = worker.wait(within)
            # Until the interpreter has come to our code, a signal is its own to answer.
            assert code == 0 or (code == -signal.SIGTERM and not self._log(worker).read_bytes()), self.said()[-3000:]

    def close(self) -> None:
        """Leave no process behind."""
        for process in self.started:
            if process.poll() is None:
                with contextlib.suppress(ProcessLookupError):
                    process.send_signal(signal.SIGCONT)
                process.kill()
            process.wait(20)
        self.server.close()

    def _log(self, process: subprocess.Popen[bytes]) -> Path:
        return self.logs / f"{self.started.index(process)}.log"

    def _producing(self) -> int:
        return sum(each.poll() is None for each in self.producers)

    def _recovery(self, noted: history.History) -> dict[str, Any]:
        """How long it took, at worst, until something asked for after a fault was over had started.

        And, over the whole scenario, how long something acknowledged waited for its start.
        """
        starts: dict[tuple[str, str], list[float]] = defaultdict(list)
        for run in sorted(noted.runs, key=lambda run: run.started):
            starts[run.queue, run.name].append(run.started)
        waits = [
            (ask.began, next(at for at in starts[ask.queue, ask.name] if at >= ask.began), ask.acked)
            for ask in noted.asks
            if ask.acked is not None
        ]
        back = [min((start for began, start, _ in waits if began > heal), default=heal) - heal for heal in self.heals]
        figures = {"worst_wait_s": round(max(start - acked for _, start, acked in waits), 2)} if waits else {}
        return figures | ({"worst_recovery_s": round(max(back), 2)} if back else {})


def children_of(pid: int) -> list[int]:
    try:
        return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    except FileNotFoundError:
        return []


def timed(call: Callable[[], Any]) -> float:
    begun = time.monotonic()
    call()
    return time.monotonic() - begun
