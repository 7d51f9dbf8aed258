"""A rolling upgrade: workers of the old code, which does not know one of the kinds, beside workers of the new."""

import pytest

from tests.interleave import wait_until

from .checker import Rules
from .conftest import Report
from .stage import Stage, scaled

OF_KIND = "SELECT count(*), sum(attempts) FROM workqueue_job WHERE kind = %s AND outcome IS NULL"


@pytest.mark.timeout(300)
def test_what_only_the_new_code_knows_waits_for_it(stage: Stage, report: Report) -> None:
    for _ in range(2):
        stage.work("--processes", "1", FAULTS_VERSION="old")
    stage.produce("faults-jobs", "--count", str(scaled(1000)))
    wait_until(lambda: stage.producers[0].poll() is not None, 120)
    wait_until(lambda: stage.ask_server(OF_KIND, ["plain"])[0][0] == 0, 60)
    waiting, attempts = stage.ask_server(OF_KIND, ["async"])[0]
    assert waiting > 0
    assert attempts == 0
    stage.fault("upgrade")
    new = stage.work("--processes", "1")
    stage.wait_for_runs(stage.ended() + 1)
    stage.workers[0].terminate()
    assert stage.workers[0].wait(40) == 0
    figures = stage.finish(Rules(max_attempts=2), more={"waited_for_the_new": waiting})
    assert new.returncode == 0
    report(figures)
