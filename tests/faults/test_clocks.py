"""Workers and producers whose clock is a day wrong, or jumps backwards: only the server's clock decides."""

from pathlib import Path

import pytest

from .conftest import Report
from .stage import QUEUES, Stage, scaled

LIBRARY = "*/faketime/libfaketimeMT.so.1"


@pytest.mark.timeout(300)
@pytest.mark.parametrize("shift", ["+1d", "-1d", "-0.9", "+0 x1.2"], ids=["ahead", "behind", "jumps_back", "fast"])
def test_workers_under_a_shifted_clock_behave_the_same(stage: Stage, report: Report, shift: str) -> None:
    found = [str(path) for path in Path("/usr/lib").glob(LIBRARY)]
    if not found:
        pytest.skip("libfaketime is not installed")
    # The wall clock only: the monotonic one does not jump on a real machine either.
    wrong = {"LD_PRELOAD": found[0], "FAKETIME": shift, "FAKETIME_DONT_FAKE_MONOTONIC": "1"}
    stage.work("--processes", "2", **wrong)
    stage.work("--processes", "2")
    each = str(scaled(500))
    stage.produce(*QUEUES, "--count", each, "--atomic", "--tag", "wrong", **wrong)
    stage.produce(*QUEUES, "--count", each, "--atomic", "--tag", "right")
    stage.fault(shift)
    report(stage.finish())
