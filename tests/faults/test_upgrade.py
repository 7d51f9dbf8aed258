"""A rolling upgrade: workers and producers of old and new code side by side, on an old and on a new schema."""

import contextlib
import time

import django
import psycopg
import pytest

from tests.interleave import wait_until

from . import history
from .checker import Rules
from .conftest import Report
from .stage import QUEUES, Stage, scaled

OF_KIND = "SELECT count(*), sum(attempts) FROM workqueue_job WHERE kind = %s AND outcome IS NULL"
OF_NOVEL = """
    SELECT (SELECT count(*) FROM workqueue_item WHERE queue = 'faults-novel' AND attempts = 0 AND completed_at IS NULL)
         + (SELECT count(DISTINCT key) FROM workqueue_inbox WHERE queue = 'faults-novel')
"""
LATER = [
    "ALTER TABLE workqueue_item ADD COLUMN later text",
    "CREATE INDEX later_item ON workqueue_item (queue, later)",
    "ALTER TABLE workqueue_job ADD COLUMN later jsonb NOT NULL DEFAULT '{}'",
    "ALTER TABLE workqueue_inbox ADD COLUMN later timestamptz DEFAULT now()",
    "ALTER TABLE workqueue_queue ADD COLUMN later integer",
    "ALTER TABLE workqueue_worker ADD COLUMN later text",
    "ALTER TABLE workqueue_minute ADD COLUMN later bigint NOT NULL DEFAULT 0",
    "CREATE INDEX later_job ON workqueue_job (queue, kind) WHERE later <> '{}'",
    "INSERT INTO django_migrations (app, name, applied) VALUES ('workqueue', '9999_later', now())",
]


@pytest.mark.timeout(300)
def test_what_only_the_new_code_knows_waits_for_it(stage: Stage, report: Report) -> None:
    """A kind, and a queue."""
    for _ in range(2):
        stage.work("--processes", "1", FAULTS_VERSION="old")
    stage.produce("faults-jobs", "faults-novel", "--count", str(scaled(1000)), "--atomic")
    wait_until(lambda: stage.producers[0].poll() is not None, 120)
    wait_until(lambda: stage.ask_server(OF_KIND, ["plain"])[0][0] == 0, 60)
    waiting, attempts = stage.ask_server(OF_KIND, ["async"])[0]
    assert waiting > 0
    assert attempts == 0
    assert stage.ask_server(OF_NOVEL) == [(scaled(1000),)]
    stage.fault("upgrade")
    new = stage.work("--processes", "1", queues=[*QUEUES, "faults-novel"])
    stage.wait_for_runs(stage.ended() + 1)
    stage.workers[0].terminate()
    assert stage.workers[0].wait(40) == 0
    figures = stage.finish(Rules(max_attempts=2), more={"waited_for_the_new": waiting + scaled(1000)})
    assert new.returncode == 0
    report(figures)


@pytest.mark.timeout(300)
@pytest.mark.skipif(django.VERSION < (6, 0), reason="Django has no tasks")
def test_a_task_that_was_renamed_waits_for_code_that_knows_both_names(stage: Stage, report: Report) -> None:
    """Old and new producers and workers at once; then the old are gone, and what they left has no function any more."""
    tasks, number = {"FAULTS_TASKS": "1"}, scaled(300)
    old = stage.work("--processes", "2", queues=["faults-tasks"], FAULTS_VERSION="old", **tasks)
    new = stage.work("--processes", "2", queues=["faults-tasks"], **tasks)
    rate = ("--count", str(number), "--rate", str(number / 2 / scaled(4)))
    stage.produce("faults-tasks", *rate, "--tag", "old", "--atomic", FAULTS_VERSION="old", **tasks)
    stage.produce("faults-tasks", *rate, "--tag", "new", "--atomic", **tasks)
    wait_until(lambda: min(ran(stage, "old-"), ran(stage, "new-")) >= 20, 60)
    stage.fault("upgrade")
    old.terminate()
    assert old.wait(40) == 0
    stage.workers.remove(old)
    late = ("--count", str(scaled(50)), "--tag", "old-late")  # the other may be through: workers take long to start
    stage.produce("faults-tasks", *late, FAULTS_VERSION="old", **tasks)
    wait_until(lambda: all(each.poll() is not None for each in stage.producers), 60)
    module = "tests.faults.works.renamed"
    wait_until(lambda: stage.ask_server(OF_KIND, [f"{module}.proclaim"])[0][0] == 0, 60)
    waiting, attempts = stage.ask_server(OF_KIND, [f"{module}.announce"])[0]
    assert waiting > 0
    assert attempts == 0
    complaint = f"{module}.announce wait, but it cannot be imported"
    wait_until(lambda: complaint in stage.said(), 60)  # workers look for such now and then
    stage.work("--processes", "1", queues=["faults-tasks"], FAULTS_VERSION="both", **tasks)
    figures = stage.finish(Rules(max_attempts=1), more={"waited_for_both": waiting})
    assert new.returncode == 0
    assert stage.said().count(complaint) <= 3
    report(figures)


@pytest.mark.timeout(300)
def test_the_schema_of_a_later_version_comes_under_running_workers_and_producers(stage: Stage, report: Report) -> None:
    """Columns and indexes are added, a queue is given partitions of its own and back; this code works on."""
    for _ in range(2):
        stage.work("--processes", "2")
    producing = ("--count", str(scaled(2000)), "--rate", str(scaled(2000) / 2 / scaled(12)), "--atomic")
    stage.produce(*QUEUES, *producing)
    stage.wait_for_runs(100)
    begun, tries = time.monotonic(), 0
    with stage.session() as session:
        session.execute("SET lock_timeout = '300ms'")
        for statement in LATER:
            stage.fault(statement)
            while True:
                tries += 1
                with contextlib.suppress(psycopg.errors.LockNotAvailable, psycopg.errors.DeadlockDetected):
                    session.execute(statement)
                    break
                time.sleep(0.1)
            stage.wait_for_runs(stage.ended() + 5)
    stage.work("--processes", "1")
    stage.produce(*QUEUES, *producing, "--tag", "later")
    for queue in ("faults-keys", "faults-jobs"):
        stage.run("workqueue_partition", "create", queue, "--force")
    stage.run("workqueue_stats")
    stage.run("workqueue_doctor")
    for queue in ("faults-keys", "faults-jobs"):
        stage.run("workqueue_partition", "drop", queue)
    figures = stage.finish(Rules(max_attempts=2), more={"tries": tries, "took_s": round(time.monotonic() - begun, 1)})
    report(figures)


def ran(stage: Stage, prefix: str) -> int:
    return sum(run.name.startswith(prefix) for run in history.read(stage.history).runs)
