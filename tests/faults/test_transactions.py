"""Producers whose transactions stay open on the same keys: no wait, no deadlock, no loss, nothing rolled back runs."""

import re

import pytest

from . import history
from .conftest import Report
from .stage import Stage, scaled


@pytest.mark.timeout(300)
def test_open_transactions_hold_up_nobody_and_lose_nothing(stage: Stage, report: Report) -> None:
    """12 seconds; two minutes with FAULTS_SCALE=10."""
    stage.work("--processes", "2")
    for _ in range(2):
        stage.run_to_end("-m", "tests.faults.transacting", str(scaled(12)))
    stage.produce("faults-keys", "--count", str(scaled(2000)), "--names", "20", "--tag", "shared", "--threads", "4")
    figures = stage.finish(deadline=200)
    said = stage.said()
    assert "deadlock" not in said
    worst = max(float(each) for each in re.findall(r"worst ([\d.]+)", said))
    assert worst < 2
    runs = history.read(stage.history).runs
    assert not [run for run in runs if run.name.startswith(("dropped-", "undone-"))]
    report(figures | {"worst_enqueue_s": worst})
