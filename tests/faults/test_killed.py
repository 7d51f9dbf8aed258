"""Workers that are killed, and workers that are stopped for longer than their leases."""

import os
import signal
import time

import pytest

from tests.interleave import wait_until

from . import history
from .checker import Rules
from .conftest import Report
from .stage import QUEUES, Stage, children_of, scaled

LEASE = 3.0


@pytest.mark.timeout(600)
def test_workers_killed_at_random_moments_lose_nothing(stage: Stage, report: Report) -> None:
    """20 kills over 10,000 items; the full 200 over 100,000 with FAULTS_SCALE=10."""
    kills, each = scaled(20), scaled(3334)
    for _ in range(3):
        stage.work("--processes", "2", FAULTS_LEASE=str(LEASE))
    stage.produce(*QUEUES, "--count", str(each), "--atomic", "--rate", str(each / scaled(15)))
    stage.wait_for_runs(50)
    killed: set[int] = set()
    while len(stage.faults) < kills:
        before = stage.ended()
        time.sleep(stage.chance.uniform(0.1, 1.0))
        living = [worker for worker in stage.workers if worker.poll() is None]
        supervisor = stage.chance.choice(living)
        children = children_of(supervisor.pid)
        victim = stage.chance.choice([supervisor.pid, *children])
        stage.fault("SIGKILL")
        os.kill(victim, signal.SIGKILL)
        killed.update([victim, *children] if victim == supervisor.pid else [victim])
        if victim == supervisor.pid:
            supervisor.wait(10)
            stage.work("--processes", "2", FAULTS_LEASE=str(LEASE))
        if not stage.is_over():
            wait_until(lambda: stage.ended() > before or stage.is_over(), 60)  # noqa: B023
    figures = stage.finish(Rules(excused=frozenset(killed)), deadline=300)
    figures["worst_rerun_s"] = worst_rerun(stage, killed)
    report(figures)


@pytest.mark.timeout(600)
def test_workers_stopped_for_longer_than_their_leases_are_fenced_when_they_wake(stage: Stage, report: Report) -> None:
    """8 stops of whole workers or of single processes; 80 with FAULTS_SCALE=10."""
    each = scaled(2000)
    for _ in range(3):
        stage.work("--processes", "2", FAULTS_LEASE="2", FAULTS_PACE="5")
    stage.produce(*QUEUES, "--count", str(each), "--rate", str(each / scaled(20)))
    stage.wait_for_runs(50)
    stopped: set[int] = set()
    while len(stage.faults) < scaled(8):
        supervisor = stage.chance.choice(stage.workers)
        children = children_of(supervisor.pid)
        victims = [supervisor.pid, *children] if stage.chance.random() < 0.6 else [stage.chance.choice(children)]
        stage.fault("SIGSTOP")
        for victim in victims:
            os.kill(victim, signal.SIGSTOP)
        stopped.update(victims)
        time.sleep(2 + stage.chance.uniform(0.5, 2))
        for victim in victims:
            os.kill(victim, signal.SIGCONT)
        time.sleep(0.2)
    report(stage.finish(Rules(excused=frozenset(stopped)), deadline=300))


def worst_rerun(stage: Stage, killed: set[int]) -> float:
    """The longest from the start of a run that was cut off to the next start of the same."""
    runs = sorted(history.read(stage.history).runs, key=lambda run: run.started)
    worst = 0.0
    for number, run in enumerate(runs):
        if run.ended is None:
            after = (each for each in runs[number + 1 :] if (each.queue, each.name) == (run.queue, run.name))
            again = next(after, None)
            worst = max(worst, again.started - run.started if again else 0.0)
    return round(worst, 2)
