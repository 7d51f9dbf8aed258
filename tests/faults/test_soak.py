"""Mixed traffic for a while, without a fault: memory, threads, descriptors and sessions are flat, order is kept."""

import time
from pathlib import Path

import pytest

from .checker import Rules
from .conftest import Report
from .stage import QUEUES, Stage, children_of, scaled


def taken(pids: list[int]) -> dict[str, int]:
    """What the processes hold: kilobytes of memory, threads, descriptors."""
    memory = threads = descriptors = 0
    for pid in pids:
        words = dict(line.split(":", 1) for line in Path(f"/proc/{pid}/status").read_text().splitlines())
        memory += int(words["VmRSS"].split()[0])
        threads += int(words["Threads"])
        descriptors += len(list(Path(f"/proc/{pid}/fd").iterdir()))
    return {
        "rss_kb": memory,
        "threads": threads,
        "fds": sum(len(list(Path(f"/proc/{pid}/fd").iterdir())) for pid in pids),
    }


@pytest.mark.timeout(4000)
def test_nothing_grows_under_mixed_traffic(stage: Stage, report: Report) -> None:
    """45 seconds; an hour with FAULTS_SCALE=80."""
    seconds = scaled(45)
    worker = stage.work("--processes", "2")
    rate = 60
    count = str(rate * 2 * seconds)
    producer = stage.produce(*QUEUES, "--count", count, "--rate", str(rate), "--names", "2000", "--atomic")
    stage.wait_for_runs(1000)
    time.sleep(seconds / 3)
    pids = [worker.pid, *children_of(worker.pid)]
    sessions = "SELECT count(*) FROM pg_stat_activity WHERE application_name LIKE 'django_workqueue%'"
    early = taken(pids) | {"sessions": stage.ask_server(sessions)[0][0]}
    producer.wait(seconds * 3 + 120)
    late = taken(pids) | {"sessions": stage.ask_server(sessions)[0][0]}
    assert children_of(worker.pid) == pids[1:]
    assert late["rss_kb"] < early["rss_kb"] * 1.25
    assert late["threads"] <= early["threads"] + 2
    assert late["fds"] <= early["fds"] + 4
    assert late["sessions"] <= early["sessions"] + 2
    rows = stage.ask_server("SELECT count(*) FROM workqueue_item")[0][0]
    assert rows == 2 * 2000
    report(stage.finish(Rules(patience=10.0), more={"early": early, "late": late, "item_rows": rows}))
