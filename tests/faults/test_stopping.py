"""Workers stopped at random moments, start-up included, and twice: what was only given back does not count."""

import random
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

import pytest

from tests.interleave import wait_until

from . import history
from .checker import Rules
from .conftest import Report
from .stage import QUEUES, Stage, children_of, scaled, timed

TIMEOUT = 5.0


@pytest.mark.timeout(600)
def test_a_stop_at_any_moment_is_in_order_and_costs_no_attempt(stage: Stage, report: Report) -> None:
    """10 stops, some of them twice over; 100 with FAULTS_SCALE=10."""
    arguments = ("--processes", "2", "--shutdown-timeout", str(TIMEOUT))
    steady = stage.work(*arguments)
    stage.produce(*QUEUES, "--count", str(scaled(1500)), "--rate", str(scaled(1500) / scaled(15)), "--atomic")
    stage.wait_for_runs(20)
    worst = 0.0
    for number in range(scaled(10)):
        worker = stage.work(*arguments)
        # Until the interpreter has come to our code, a signal is its own to answer.
        time.sleep(stage.chance.uniform(0.0, 4.0))
        stage.fault("SIGTERM")
        worker.send_signal(signal.SIGTERM if number % 2 else signal.SIGINT)
        worst = max(worst, timed(lambda: worker.wait(60)))  # noqa: B023
        stage.workers.remove(worker)
    assert worst < TIMEOUT + 10
    assert steady.poll() is None
    # Those whose first attempt fails have two; no more, although half of the workers gave back what they had.
    report(stage.finish(Rules(max_attempts=2), more={"worst_stop_s": round(worst, 1)}))


IN_ORDER = (0, -signal.SIGTERM, -signal.SIGINT)  # the latter two before the interpreter has come to our code
AT_ONCE = (128 + signal.SIGTERM, 128 + signal.SIGINT)
LEASED = """
    SELECT (SELECT count(*) FROM workqueue_item WHERE lease_until > 'epoch')
         + (SELECT count(*) FROM workqueue_job WHERE lease_until > 'epoch')
"""
ENQUEUE = """
import django; django.setup()
from tests.faults.works.tasks import hard
hard.enqueue_many({kind!r}, {names!r}, max_attempts={most})
"""
JOBS = "SELECT payload #>> '{}', outcome, attempts FROM workqueue_job WHERE queue = 'faults-hard'"


def enqueue_hard(stage: Stage, kind: str, names: list[str], *, most: int = 1) -> None:
    assert stage.start(sys.executable, "-c", ENQUEUE.format(kind=kind, names=names, most=most)).wait(60) == 0


@pytest.mark.timeout(600)
def test_a_stop_while_it_starts_up_leaves_nothing_behind(stage: Stage, report: Report) -> None:
    """12 stops, a little later each, until it is at work for sure; 120 with FAULTS_SCALE=10."""
    stage.produce(*QUEUES, "--count", str(scaled(1000)))
    wait_until(lambda: stage.producers[0].poll() is not None, 60)
    ended: Counter[int] = Counter()
    worst = 0.0
    for number in range(scaled(12)):
        worker = stage.work("--processes", str(1 + number % 2), "--shutdown-timeout", str(TIMEOUT))
        time.sleep(number / scaled(12) * 2.0)
        stage.fault("SIGTERM")
        worker.terminate()
        worst = max(worst, timed(lambda: worker.wait(60)))  # noqa: B023
        stage.workers.remove(worker)
        assert worker.returncode in IN_ORDER, stage.said()[-3000:]
        ended[worker.returncode] += 1
        assert stage.ask_server(LEASED) == [(0,)]
    assert ended[0] > 0
    assert worst < TIMEOUT + 5
    stage.work("--processes", "2")
    report(stage.finish(Rules(max_attempts=2), more={"worst_stop_s": round(worst, 2), "in_order": ended[0]}))


@pytest.mark.timeout(600)
def test_a_second_signal_ends_it_at_once_with_all_its_processes(stage: Stage, report: Report) -> None:
    """10 of them; 100 with FAULTS_SCALE=10. What they were at runs again when its leases have lapsed, as if killed."""
    env = {"FAULTS_LEASE": "3", "FAULTS_PACE": "10"}
    stage.work("--processes", "2", **env)
    stage.produce(*QUEUES, "--count", str(scaled(500)), "--rate", str(scaled(500) / scaled(15)))
    ended: Counter[int] = Counter()
    killed: set[int] = set()
    worst = 0.0
    for _ in range(scaled(10)):
        worker = stage.work("--processes", "2", **env)
        wait_until(lambda: len(children_of(worker.pid)) == 2, 30)  # noqa: B023
        time.sleep(stage.chance.uniform(0.3, 1.5))
        children = children_of(worker.pid)
        killed.update(children)
        stage.fault("twice")
        worker.send_signal(random.choice([signal.SIGTERM, signal.SIGINT]))
        time.sleep(stage.chance.uniform(0.0, 0.4))
        worker.send_signal(random.choice([signal.SIGTERM, signal.SIGINT]))
        worst = max(worst, timed(lambda: worker.wait(60)))  # noqa: B023
        stage.workers.remove(worker)
        assert worker.returncode in (*IN_ORDER, *AT_ONCE), stage.said()[-3000:]
        ended[worker.returncode] += 1
        wait_until(lambda: not [pid for pid in children if Path(f"/proc/{pid}").exists()], 5)  # noqa: B023
    assert worst < 3
    figures = stage.finish(Rules(excused=frozenset(killed)))
    report(figures | {"worst_stop_s": round(worst, 2), "at_once": sum(ended[code] for code in AT_ONCE)})


@pytest.mark.timeout(600)
@pytest.mark.parametrize("timeout", ["10", "0.2"], ids=["finished", "given_back"])
def test_of_what_was_in_hand_a_stop_takes_no_ones_only_attempt(stage: Stage, report: Report, timeout: str) -> None:
    """6 stops of workers with more in hand than runs; 60 with FAULTS_SCALE=10. Handlers finish, or are given back."""
    seconds = "0.05" if timeout == "10" else "0.4"
    number = scaled(800 if timeout == "10" else 60)
    enqueue_hard(stage, "sync", [f"long-{seconds}"] * number)
    arguments = ("--processes", "2", "--concurrency", "2", "--shutdown-timeout", timeout)
    most, stops = 0, 0
    while stops < scaled(6) and None in {outcome for _, outcome, _ in stage.ask_server(JOBS)}:
        before = len(history.read(stage.history).runs)
        worker = stage.work(*arguments, queues=["faults-hard"])
        wait_until(lambda: len(history.read(stage.history).runs) > before, 30)  # noqa: B023
        time.sleep(stage.chance.uniform(0, 0.7))
        most = max(most, stage.ask_server(LEASED)[0][0])
        stage.fault("SIGTERM")
        stops += 1
        worker.terminate()
        assert worker.wait(30) == 0
        stage.workers.remove(worker)
        assert stage.ask_server(LEASED) == [(0,)]
        assert {row[1:] for row in stage.ask_server(JOBS)} <= {(None, 0), ("completed", 1)}
    stage.work(*arguments, queues=["faults-hard"])
    wait_until(lambda: None not in {outcome for _, outcome, _ in stage.ask_server(JOBS)}, 120)
    stage.stop_workers()
    assert {row[1:] for row in stage.ask_server(JOBS)} == {("completed", 1)}
    runs = history.read(stage.history).runs
    if timeout == "10":
        assert len(runs) == number
    report({"items": number, "runs": len(runs), "faults": stops, "most_in_hand": most})


@pytest.mark.timeout(300)
def test_handlers_that_ignore_everything_do_not_keep_a_stop_from_its_deadline(stage: Stage, report: Report) -> None:
    """They swallow what is raised in them, hold the GIL, block the event loop, by themselves and all at once."""
    ignoring = [("sync", "ignore-60"), ("async", "ignore-60")]
    gil, block = ("sync", "gil-60"), ("async", "block-60")
    took: dict[str, float] = {}
    env = {"FAULTS_LEASE": "3"}
    number = 0
    for name, some in {"ignore": ignoring, "gil": [gil], "block": [block], "all": [*ignoring, gil, block]}.items():
        worker = stage.work("--processes", "2", "--shutdown-timeout", "2", queues=["faults-hard"], **env)
        for kind, whim in some:
            enqueue_hard(stage, kind, [whim], most=3)
        number += len(some)
        wait_until(lambda: len(history.read(stage.history).runs) == number, 60)  # noqa: B023
        stage.fault(name)
        took[name] = round(stop(worker), 1)
        stage.workers.remove(worker)
        if name == "ignore":  # given back; a process whose GIL is held can only be killed, with all that runs in it
            assert {attempts for _, _, attempts in stage.ask_server(JOBS)} == {0}
        stage.ask_server("UPDATE workqueue_job SET available_at = now() + interval '1 hour' WHERE outcome IS NULL")
    assert max(took.values()) < 2 + 5 + 3
    stage.ask_server("UPDATE workqueue_job SET available_at = now() - interval '1 second' WHERE outcome IS NULL")
    stage.work(queues=["faults-hard"], FAULTS_TAME="1", **env)
    wait_until(lambda: None not in {outcome for _, outcome, _ in stage.ask_server(JOBS)}, 60)
    stage.stop_workers()
    assert {outcome for _, outcome, _ in stage.ask_server(JOBS)} == {"completed"}
    report({"items": number, "faults": len(took), "stopped_after_s": took, "deadline_s": 2})


def stop(worker: subprocess.Popen[bytes]) -> float:
    worker.terminate()
    took = timed(lambda: worker.wait(60))
    assert worker.returncode == 0
    return took
