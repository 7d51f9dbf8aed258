"""Workers stopped in order at random moments, start-up included: what was only given back does not count."""

import signal
import time

import pytest

from .checker import Rules
from .conftest import Report
from .stage import QUEUES, Stage, scaled, timed

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
