"""Producers whose transactions stay open on the same keys: no wait, no deadlock, no loss, nothing rolled back runs."""

import contextlib
import os
import random
import re
import signal
import sys
import time
import urllib.error
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from threading import Event

import psycopg
import pytest

from tests.interleave import wait_until

from . import history
from .conftest import Report
from .stage import LEFT, QUEUES, Stage, children_of, scaled
from .test_forks import free_port, listens

LEDGER = "CREATE TABLE faults_ledger (name text PRIMARY KEY)"
ALL = [*QUEUES, "faults-ledger"]
WORST = 2.0  # seconds that an enqueue inside a transaction may take on a busy machine; there is nothing to wait for


def worst_enqueue(stage: Stage) -> float:
    return max(float(each) for each in re.findall(r"enqueued within ([\d.]+)", stage.said()))


def nothing_undone_ran(stage: Stage) -> list[history.Run]:
    """All runs; the server and the handlers have nothing to complain of."""
    runs = history.read(stage.history).runs
    assert not [run for run in runs if run.name.startswith("undone")]
    assert not [run for run in runs if run.outcome == "LookupError"], "ran before what it is about was committed"
    assert "deadlock" not in stage.said() + stage.server.log.read_text(errors="replace")
    return runs


@pytest.mark.timeout(400)
def test_open_transactions_hold_up_nobody_and_lose_nothing(stage: Stage, report: Report) -> None:
    """12 seconds; two minutes with FAULTS_SCALE=10. Some of the transactions last as long."""
    stage.ask_server(LEDGER)
    stage.work("--processes", "2", queues=ALL)
    for _ in range(2):
        stage.run_to_end(
            *("-m", "tests.faults.transacting", str(scaled(12)), "--of_all_lengths", "8", "--lasting", "4")
        )
    stage.produce("faults-keys", "--count", str(scaled(2000)), "--names", "20", "--tag", "shared", "--threads", "4")
    figures = stage.finish(deadline=scaled(12) + 120)
    runs = nothing_undone_ran(stage)
    assert sum("-lasting" in run.name for run in runs) >= 8 * 4
    worst = worst_enqueue(stage)
    assert worst < WORST
    report(figures | {"worst_enqueue_s": worst, "longest_transaction_s": scaled(12)})


@pytest.mark.timeout(400)
def test_producers_killed_inside_their_transactions_leave_nothing_half_done(stage: Stage, report: Report) -> None:
    """8 kills; 80 with FAULTS_SCALE=10."""
    stage.ask_server(LEDGER)
    stage.work("--processes", "2", queues=ALL)
    for _ in range(scaled(8)):
        producer = stage.start(sys.executable, "-m", "tests.faults.transacting", "60", "--of_all_lengths", "4")
        wait_until((stage.history / f"{producer.pid}.jsonl").exists, 30)
        time.sleep(stage.chance.uniform(0, 1))
        stage.fault("SIGKILL")
        producer.kill()
        producer.wait(20)
    figures = stage.finish()
    nothing_undone_ran(stage)
    report(figures)


@pytest.mark.timeout(300)
def test_each_of_two_databases_has_its_own_transactions(stage: Stage, report: Report) -> None:
    """Queues on both; what is enqueued inside a transaction of the other database is there at once, and stays."""
    stage.ask_server("CREATE DATABASE second")
    url = stage.server.url.replace("/workqueue", "/second")
    env = {"FAULTS_SECOND_URL": url}
    stage.run("migrate", "-v0", url=url)
    stage.work("--processes", "2", queues=[*QUEUES, "faults-second"], **env)
    for _ in range(2):
        stage.run_to_end("-m", "tests.faults.transacting", str(scaled(8)), "--two_databases", "6", **env)
    with psycopg.connect(url, autocommit=True) as second:

        def left() -> int:
            (count,) = second.execute(LEFT, {"queues": ["faults-second"]}).fetchone() or (1,)
            return int(count)

        wait_until(lambda: stage.is_over() and left() == 0, scaled(8) + 120, message="the end of both")
    figures = stage.finish()
    runs = nothing_undone_ran(stage)
    assert any(run.queue == "faults-second" for run in runs)
    worst = worst_enqueue(stage)
    assert worst < WORST
    report(figures | {"worst_enqueue_s": worst})


@pytest.mark.timeout(300)
@pytest.mark.parametrize("server", ["gunicorn", "uvicorn"])
def test_with_atomic_requests_what_a_view_enqueued_is_there_if_it_answered_and_is_not_if_it_failed(
    stage: Stage, report: Report, server: str
) -> None:
    """Sync and async views, with web workers that are killed: 4 of them; 40 with FAULTS_SCALE=10."""
    pytest.importorskip(server)
    stage.ask_server(LEDGER)
    port, number = free_port(), scaled(1000)
    where = {
        "gunicorn": (
            "tests.faults.works.wsgi",
            "-w",
            "3",
            "-k",
            "gthread",
            "--threads",
            "4",
            "-b",
            f"127.0.0.1:{port}",
        ),
        "uvicorn": ("tests.faults.works.asgi:application", "--workers", "3", "--port", str(port)),
    }[server]
    web = stage.start(sys.executable, "-m", server, *where, FAULTS_ATOMIC_REQUESTS="1")
    stage.workers.append(web)  # it is stopped as they are
    stage.work("--processes", "1", queues=ALL)
    wait_until(lambda: listens(port), 60)
    over, killed = Event(), 0

    def get(at: int) -> tuple[str, int]:
        how = random.choice(["answer", "answer", "fail", "set_rollback", "savepoint"])
        paths = ["transact", "atransact"] if server == "uvicorn" else ["transact"]
        name = f"{'undone' if how in ('fail', 'set_rollback') else 'web'}-{at}"
        url = f"http://127.0.0.1:{port}/{random.choice(paths)}?name={name}&how={how}"
        try:
            with urllib.request.urlopen(url, timeout=20) as answer:
                return name, answer.status
        except urllib.error.HTTPError as error:
            return name, error.code
        except OSError:  # its worker was killed, or it came while there was none
            over.wait(0.05)
            return name, 0

    with ThreadPoolExecutor(8) as clients:
        answers = [clients.submit(get, at) for at in range(number)]
        stage.wait_for_runs(30)
        while not all(each.done() for each in answers):
            over.wait(stage.chance.uniform(0.5, 1.5))
            if killed < scaled(4) and (children := children_of(web.pid)):
                stage.fault("SIGKILL")
                killed += 1
                with contextlib.suppress(ProcessLookupError):
                    os.kill(stage.chance.choice(children), signal.SIGKILL)
        answered = [each.result() for each in answers]
    figures = stage.finish()
    runs = nothing_undone_ran(stage)
    ran = {(run.queue, run.name) for run in runs if run.outcome == "ok"}
    for name, status in answered:
        assert status in (0, 200) if not name.startswith("undone") else status in (0, 200, 500), (name, status)
        if status == 200 and not name.startswith("undone"):
            assert {(queue, name) for queue in ("faults-keys", "faults-jobs", "faults-ledger")} <= ran
    counts = {
        "answered": sum(status == 200 for _, status in answered),
        "cut_off": sum(not code for _, code in answered),
    }
    report(figures | counts)
