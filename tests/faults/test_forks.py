"""Forks: web servers that preload, multiprocessing, the interpreter's exit, SIGTERM in the middle of a flush."""

import json
import os
import signal
import socket
import sys
import time
import urllib.request
from concurrent.futures import ThreadPoolExecutor

import pytest

from tests.interleave import wait_until

from .conftest import Report
from .stage import Stage, scaled


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        return int(server.getsockname()[1])


def get(url: str) -> dict[str, object]:
    with urllib.request.urlopen(url, timeout=20) as answer:
        return dict(json.loads(answer.read()))


@pytest.mark.timeout(300)
@pytest.mark.parametrize("atomic", [False, True], ids=["", "atomic_requests"])
@pytest.mark.parametrize("kind", ["sync", "gthread", "uvicorn"])
def test_a_web_server_that_preloads_and_forks_enqueues_in_every_worker(
    stage: Stage, report: Report, kind: str, atomic: bool
) -> None:
    pytest.importorskip("gunicorn")
    port, env = free_port(), {"FAULTS_BEFORE_FORK": "1"} | ({"FAULTS_ATOMIC_REQUESTS": "1"} if atomic else {})
    if kind == "uvicorn":
        pytest.importorskip("uvicorn")
        server = stage.start(
            *(sys.executable, "-m", "uvicorn", "tests.faults.works.asgi:application"),
            *("--port", str(port), "--workers", "2", "--log-level", "warning"),
            **env,
        )
    else:
        server = stage.start(
            *(sys.executable, "-m", "gunicorn", "tests.faults.works.wsgi", "--preload", "-w", "2", "-k", kind),
            *("--threads", "8" if kind == "gthread" else "1", "-b", f"127.0.0.1:{port}"),
            **env,
        )
    stage.workers.append(server)  # it is stopped as they are
    stage.work("--processes", "1")
    wait_until(lambda: listens(port), 60)
    paths = ["enqueue", "aenqueue"] if not atomic else ["enqueue"]
    more = "&atomic=1" if atomic else ""
    pids: set[object] = set()
    with ThreadPoolExecutor(16) as clients:
        urls = [
            f"http://127.0.0.1:{port}/{paths[number % len(paths)]}?name=web-{number}{more}"
            for number in range(scaled(300))
        ]
        pids.update(answer["pid"] for answer in clients.map(get, urls))
    stage.wait_for_runs(scaled(300), 60)
    report(stage.finish(more={"processes": len(pids)}))


def listens(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


@pytest.mark.timeout(300)
@pytest.mark.parametrize("how", ["fork", "forkserver", "spawn"])
def test_enqueues_before_beside_and_after_multiprocessing(stage: Stage, report: Report, how: str) -> None:
    stage.work("--processes", "1")
    stage.run_to_end("-W", "ignore::DeprecationWarning", "-m", "tests.faults.forking", how)
    report(stage.finish())


@pytest.mark.timeout(300)
def test_what_was_enqueued_as_the_interpreter_exits_is_there(stage: Stage, report: Report) -> None:
    stage.work("--processes", "1")
    for _ in range(scaled(3)):
        assert stage.start(sys.executable, "-m", "tests.faults.forking", "exit").wait(60) == 0
    report(stage.finish())


@pytest.mark.timeout(300)
@pytest.mark.parametrize("signum", [signal.SIGTERM, signal.SIGKILL, signal.SIGINT])
def test_a_signal_in_the_middle_of_a_flush_loses_nothing_acknowledged(
    stage: Stage, report: Report, signum: signal.Signals
) -> None:
    stage.work("--processes", "1", FAULTS_PACE="0")
    for _ in range(scaled(3)):
        producer = stage.start(sys.executable, "-m", "tests.faults.forking", "flush")
        path = stage.history / f"{producer.pid}.jsonl"
        wait_until(path.exists, 30)
        time.sleep(stage.chance.uniform(0, 0.3))
        stage.fault(signum.name)
        os.kill(producer.pid, signum)
        producer.wait(20)
    report(stage.finish())
