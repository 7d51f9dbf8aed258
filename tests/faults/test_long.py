"""Handlers that outlast their leases, hold the GIL, block the loop, end their process, or eat its memory."""

import sys

import pytest

from tests.interleave import wait_until

from . import history
from .conftest import Report
from .stage import Stage

ENQUEUE = """
import django; django.setup()
from tests.faults.works.tasks import hard
hard.enqueue_many('sync', {sync!r})
hard.enqueue_many('async', {coroutines!r})
"""
OUTCOMES = "SELECT payload #>> '{}', outcome, attempts FROM workqueue_job WHERE queue = 'faults-hard'"


@pytest.mark.timeout(300)
def test_whatever_a_handler_does_to_its_process_max_attempts_ends_it(stage: Stage, report: Report) -> None:
    lasting = ["long-7", "long-8", "gil-6"]
    deadly = ["exit-1", "memory-1"]
    stage.work("--processes", "2", queues=["faults-hard"], FAULTS_LEASE="2")
    script = ENQUEUE.format(sync=lasting, coroutines=["block-6"])
    assert stage.start(sys.executable, "-c", script).wait(60) == 0

    def outcomes() -> dict[str, tuple[str | None, int]]:
        return {name: (outcome, attempts) for name, outcome, attempts in stage.ask_server(OUTCOMES)}

    wait_until(lambda: all(outcome for outcome, _ in outcomes().values()), 90)
    assert outcomes() == dict.fromkeys([*lasting, "block-6"], ("completed", 1))
    assert stage.start(sys.executable, "-c", ENQUEUE.format(sync=deadly, coroutines=[])).wait(60) == 0
    wait_until(lambda: all(outcome for outcome, _ in outcomes().values()), 120)
    ended = outcomes()
    assert ended["exit-1"] == ("dead", 3)
    assert ended["memory-1"] == ("dead", 3)
    runs = history.read(stage.history).runs
    assert sum(run.name == "exit-1" for run in runs) == 3
    stage.stop_workers()
    report({"items": 6, "runs": len(runs), "faults": 6})
