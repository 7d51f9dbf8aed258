"""Workers and producers whose clock is a day wrong, or jumps backwards: only the server's clock decides."""

import time
from pathlib import Path

import pytest

from .conftest import Report
from .stage import QUEUES, Stage, scaled

LIBRARY = "*/faketime/libfaketimeMT.so.1"


@pytest.mark.timeout(300)
@pytest.mark.parametrize("shift", ["+1d", "-1d"], ids=["ahead", "behind"])
def test_workers_and_producers_a_day_off_behave_the_same(stage: Stage, report: Report, shift: str) -> None:
    run_beside_the_right_ones(stage, {"FAKETIME": shift})
    stage.fault(shift)
    report(stage.finish())


@pytest.mark.timeout(300)
def test_a_clock_that_jumps_back_and_forth_while_it_is_used_changes_nothing(
    stage: Stage, report: Report, tmp_path: Path
) -> None:
    """A leap second, an hour of summer time, a correction of days, in both directions."""
    shift = tmp_path / "shift"
    shift.write_text("+0")
    run_beside_the_right_ones(stage, {"FAKETIME_TIMESTAMP_FILE": str(shift), "FAKETIME_CACHE_DURATION": "1"})
    for jump in ("-1", "+3600", "+0", "-3600", "+2d", "-2d", "+0"):
        stage.wait_for_runs(stage.ended() + 5)
        stage.fault(jump)
        shift.write_text(jump)
        time.sleep(1.2)  # until it is read again
    report(stage.finish())


def run_beside_the_right_ones(stage: Stage, wrong: dict[str, str]) -> None:
    """Workers and producers with a wrong clock, and as many with the right one."""
    found = list(Path("/usr/lib").glob(LIBRARY))
    if not found:
        pytest.skip("libfaketime is not installed")
    # The wall clock only: the monotonic one does not jump on a real machine either.
    wrong = {"LD_PRELOAD": str(found[0]), "FAKETIME_DONT_FAKE_MONOTONIC": "1", **wrong}
    stage.work("--processes", "2", **wrong)
    stage.work("--processes", "2")
    count = ("--count", str(scaled(500)), "--rate", str(scaled(500) / 2 / scaled(12)), "--atomic")
    stage.produce(*QUEUES, *count, "--tag", "wrong", **wrong)
    stage.produce(*QUEUES, *count, "--tag", "right")
