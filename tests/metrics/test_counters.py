"""The minute counters: exact over real work, added to by many, never in the way."""

import contextlib
import io
import os
import re
import threading
import time
from datetime import timedelta

import pytest
from django.core.management import call_command
from django.db import connection, transaction
from django.test import override_settings

from django_workqueue import PermanentError, Retry, histogram, lanes, metrics
from django_workqueue.database import Connection
from django_workqueue.models import Minute, WorkItem, WorkJob
from django_workqueue.worker import Worker, maintain
from tests.interleave import wait_until

SOON = timedelta(milliseconds=1)


def soon(attempts):
    return SOON


def lapse(model, queue):
    with connection.cursor() as cursor:
        cursor.execute(
            f"UPDATE {model._meta.db_table} SET lease_until = statement_timestamp() - interval '1 s' "
            "WHERE queue = %s AND lease_until > 'epoch'",
            [queue.name],
        )


def test_a_run_of_the_worker_is_counted_exactly_retries_and_dead_ones_included(queue, counted):
    @queue.handler(backoff=soon)
    def work(item):
        if item.key.startswith("bad"):
            raise PermanentError
        if item.key.startswith("once") and item.attempts == 1:
            raise ValueError
        if item.key == "snoozed" and not snoozed:
            snoozed.append(item)
            raise Retry(SOON)

    snoozed = []
    queue.enqueue(*(f"good-{n}" for n in range(100)), "once-1", "once-2", "bad-1", "snoozed")
    queue.enqueue("good-1", priority=1)
    run = Worker([queue], concurrency=2, poll=0.05)
    thread = threading.Thread(target=run.run)
    thread.start()
    wait_until(lambda: not WorkItem.objects.filter(queue=queue.name, completed_at=None).exists())
    assert run.stop(5)
    thread.join()
    found = counted(queue)
    assert found["enqueued"] == 105
    assert found["started"] == found["waits"] == found["runs"] == 104 + 2 + 1
    assert found["completed"] == 103
    assert found["failed"] == 3
    assert found["dead"] == 1
    assert found["reclaimed"] == found["lost"] == 0


def test_jobs_are_counted_by_kind(make_jobs, counted):
    jobs = make_jobs(max_attempts=2)
    jobs.handler("good")(lambda job: None)

    @jobs.handler("bad", backoff=soon)
    def bad(job):
        raise ValueError

    jobs.enqueue_many("good", [1, 2, 3])
    jobs.enqueue("bad")
    jobs.enqueue("unknown")
    Worker([jobs], poll=0.05).drain()
    dead = WorkJob.objects.filter(queue=jobs.name, outcome="dead")
    wait_until(lambda: dead.exists() or Worker([jobs]).drain() is None)
    found = counted(jobs, "good")
    assert (found["enqueued"], found["started"], found["completed"], found["failed"]) == (3, 3, 3, 0)
    found = counted(jobs, "bad")
    assert (found["enqueued"], found["started"], found["completed"], found["failed"], found["dead"]) == (1, 2, 0, 2, 1)
    assert dict(counted(jobs, "unknown")) == {"enqueued": 1}


def test_what_was_taken_over_and_what_was_lost_is_counted(queue, counted, working):
    entered, leave = threading.Event(), threading.Event()

    @queue.handler(lease=timedelta(seconds=60))
    def work(item):
        if not item.reclaimed:
            entered.set()
            leave.wait(10)

    queue.enqueue("a")
    first = working(queue, concurrency=1)  # busy: it takes nothing over itself
    assert entered.wait(10)
    lapse(WorkItem, queue)
    (item,) = queue.claim()
    assert item.reclaimed
    leave.set()
    wait_until(
        lambda: first.worker._shift.crew.lanes[0].tally.settled.lost + first.worker._shift.crew.lanes[0].tally.lost
    )
    first.stop()  # or it would be woken, and take what is given back
    queue.release(item)
    lapse(WorkItem, queue)
    assert counted(queue)["lost"] == 1
    claimed = queue.claim()
    assert claimed
    lapse(WorkItem, queue)
    Worker([queue]).drain()
    found = counted(queue)
    assert (found["reclaimed"], found["completed"], found["started"]) == (1, 1, 2)


def lapsed_at_last(make_queue, make_jobs):
    """A queue of either face with one piece of work each, whose only lease has lapsed."""
    queue, jobs = make_queue(max_attempts=1), make_jobs(max_attempts=1)
    queue.enqueue("a")
    queue.claim()
    jobs.enqueue("kind")
    jobs.claim()
    lapse(WorkItem, queue)
    lapse(WorkJob, jobs)
    return queue, jobs


def test_last_attempts_that_lapsed_are_counted_as_dead(make_queue, make_jobs, counted):
    queue, jobs = lapsed_at_last(make_queue, make_jobs)
    queue.reap()
    jobs.source.reap_here()
    assert counted(queue)["dead"] == 1
    assert counted(jobs, "kind")["dead"] == 1


def test_last_attempts_that_lapsed_are_counted_where_a_transaction_ends_them_if_it_commits(
    make_queue, make_jobs, counted
):
    queue, jobs = lapsed_at_last(make_queue, make_jobs)
    with transaction.atomic():
        queue.claim()
        jobs.claim()
        transaction.set_rollback(True)
    with transaction.atomic():
        queue.claim()
        jobs.claim()
    assert counted(queue)["dead"] == 1
    assert counted(jobs, "kind")["dead"] == 1


def test_waits_are_from_when_it_was_due_and_runs_are_what_the_handler_took(queue, counted):
    queue.handler(lambda item: time.sleep(0.05))
    queue.enqueue("a")
    with connection.cursor() as cursor:
        cursor.execute(
            "UPDATE workqueue_item SET available_at = available_at - interval '90 s' WHERE queue = %s", [queue.name]
        )
    Worker([queue]).drain()
    found = counted(queue)
    assert 90e6 <= found["wait_us"] < 100e6
    assert 50e3 <= found["run_us"] < 1e6
    (minute,) = Minute.objects.filter(queue=queue.name, started=1)
    assert minute.wait_histogram[histogram.bucket(found["wait_us"])] == 1
    assert minute.run_histogram[histogram.bucket(found["run_us"])] == 1


def test_the_start_of_a_long_run_is_counted_before_its_end(queue, counted, working):
    entered, leave = threading.Event(), threading.Event()

    @queue.handler
    def work(item):
        entered.set()
        leave.wait(10)

    queue.enqueue("a")
    running = working(queue)
    assert entered.wait(10)
    running.worker._shift.crew._settlers[0].ring()
    wait_until(lambda: counted(queue)["started"] == 1)
    assert counted(queue)["runs"] == 0
    leave.set()
    running.stop()
    assert counted(queue)["runs"] == 1


def test_an_enqueue_in_a_transaction_counts_once_that_commits_and_not_with_a_savepoint_that_does_not(queue, counted):
    with contextlib.suppress(ZeroDivisionError), transaction.atomic():
        queue.enqueue("never")
        raise ZeroDivisionError
    with transaction.atomic():
        queue.enqueue("a")
        queue.enqueue("b", "c")
        with contextlib.suppress(ZeroDivisionError), transaction.atomic():
            queue.enqueue("undone")
            raise ZeroDivisionError
        with transaction.atomic():
            queue.enqueue("d")
        assert counted(queue)["enqueued"] == 0
    assert counted(queue)["enqueued"] == 4


def test_jobs_in_a_transaction_count_by_kind(make_jobs, counted):
    jobs = make_jobs()
    with transaction.atomic():
        jobs.enqueue("a")
        jobs.enqueue_many("b", [1, 2])
    assert counted(jobs, "a")["enqueued"] == 1
    assert counted(jobs, "b")["enqueued"] == 2


def test_a_producer_writes_its_counters_when_it_rests(queue):
    queue.enqueue("a", "b")
    lanes.rest(10)
    assert Minute.objects.get(queue=queue.name).enqueued == 2


def test_a_producer_writes_its_counters_within_seconds(queue, monkeypatch):
    monkeypatch.setattr(metrics, "EVERY", 0.1)
    with transaction.atomic():
        queue.enqueue("a", "b")
    wait_until(lambda: Minute.objects.filter(queue=queue.name, enqueued=2).exists(), deadline=3)


def test_processes_add_to_the_same_minute(queue, manage):
    code = f"from django_workqueue import Queue; q = Queue({queue.name!r}); [q.enqueue(str(n)) for n in range(50)]"
    for process in [manage("shell", "-c", code) for _ in range(2)]:
        output, _ = process.communicate(timeout=60)
        assert process.returncode == 0, output
    minutes = list(Minute.objects.filter(queue=queue.name))
    assert len(minutes) <= 2  # they may fall into two minutes
    assert sum(minute.enqueued for minute in minutes) == 100


def test_one_ledger_adds_to_what_others_wrote_place_by_place(queue, own):
    one, two = metrics.Ledger("default"), metrics.Ledger("default")
    one.count(queue.name, completed=2, runs=[100, 300_000])
    two.count(queue.name, completed=1, runs=[250])
    two.count(queue.name, "kind", failed=1)
    one.write(own)
    two.write(own)
    rows = {row.kind: row for row in Minute.objects.filter(queue=queue.name)}
    assert (rows[""].completed, rows[""].run_us) == (3, 300_350)
    assert rows[""].run_histogram == histogram.counted([100, 250, 300_000])
    assert rows[""].wait_histogram == []
    assert rows["kind"].failed == 1


def test_what_cannot_be_written_is_kept_for_the_next_time(queue, own, connect):
    ledger = metrics.Ledger("default")
    ledger.count(queue.name, completed=1, waits=[5])
    broken = Connection("default", application="the test")
    broken.raw.close()
    with pytest.raises(Exception, match="closed"):
        ledger.write(broken)
    ledger.count(queue.name, completed=1, waits=[5])
    ledger.write(own)
    row = Minute.objects.get(queue=queue.name)
    assert (row.completed, row.wait_us, row.wait_histogram) == (2, 10, [2])
    ledger.write(own)
    assert Minute.objects.get(queue=queue.name).completed == 2


def test_a_row_that_somebody_holds_does_not_hold_up_the_batcher(queue, connect, monkeypatch):
    monkeypatch.setattr(metrics, "EVERY", 0.0)
    queue.enqueue("a")
    lanes.commits("default").batcher.flush(5)
    wait_until(lambda: Minute.objects.filter(queue=queue.name).exists())
    holder = connect(autocommit=False)
    holder.execute("SELECT 1 FROM workqueue_minute WHERE queue = %s FOR UPDATE", [queue.name])
    began = time.monotonic()
    queue.enqueue("b")
    queue.enqueue("c")
    assert time.monotonic() - began < 2
    holder.rollback()
    wait_until(lambda: Minute.objects.filter(queue=queue.name, enqueued=3).exists())


def test_a_forked_child_begins_with_nothing(queue):
    ledger = metrics.ledger("default")
    ledger.count(queue.name, completed=1)
    pid = os.fork()
    if pid == 0:
        os._exit(0 if ledger.due_in() == float("inf") else 1)
    assert os.waitpid(pid, 0)[1] == 0
    assert ledger.due_in() < float("inf")


def happened(name, *ages):
    """Minutes of a queue, so many seconds ago."""
    with connection.cursor() as cursor:
        for age in ages:
            cursor.execute(
                "INSERT INTO workqueue_minute (queue, minute) VALUES (%s, statement_timestamp() - %s * interval '1 s')",
                [name, age],
            )


def ages(*names):
    return [Minute.objects.filter(queue=name).count() for name in names]


def test_history_is_pruned_of_every_queue_whoever_works_it(queue, own, monkeypatch):
    monkeypatch.setattr(metrics, "PRUNE_BATCH", 2)
    nobodys = f"{queue.name}, that nobody works any more"
    for name in (queue.name, nobodys):
        happened(name, 1, 100_000, 700_000, 800_000, 900_000)
    metrics.prune(own, enough=lambda: True)
    assert ages(queue.name, nobodys) == [5, 5]
    assert metrics.prune(own) >= 6
    assert ages(queue.name, nobodys) == [2, 2]
    with override_settings(WORKQUEUE_HISTORY=timedelta(hours=1)):
        assert metrics.prune(own) >= 2
    assert ages(queue.name, nobodys) == [1, 1]
    Minute.objects.filter(queue__startswith=queue.name).delete()


def test_minutes_that_somebody_else_is_deleting_are_left_to_them(queue, own, connect):
    happened(queue.name, 700_000)
    holder = connect(autocommit=False)
    holder.execute("SELECT 1 FROM workqueue_minute WHERE queue = %s FOR UPDATE", [queue.name])
    metrics.prune(own)
    assert ages(queue.name) == [1]
    holder.rollback()
    metrics.prune(own)
    assert ages(queue.name) == [0]


def test_a_worker_and_a_reap_by_hand_prune_the_minutes_of_queues_that_nobody_works(queue, working, monkeypatch):
    nobodys = f"{queue.name}, that nobody works any more"
    happened(nobodys, 700_000)
    queue.handler(lambda item: None)
    monkeypatch.setattr(maintain, "PRUNING", timedelta(milliseconds=50))
    running = working(queue)
    wait_until(lambda: ages(nobodys) == [0])
    running.stop()
    happened(nobodys, 700_000)
    out = io.StringIO()
    call_command("workqueue_reap", database="default", stdout=out)
    assert re.search(r"^minute counters on default: \d+ deleted$", out.getvalue(), re.MULTILINE)
    assert ages(nobodys) == [0]


def test_a_duration_is_in_the_bucket_that_the_histogram_says():
    durations = metrics.Durations()
    values = [-3, 0, 99, 100, 100.5, 141, 1e6, 1e6, 5e5, 1e15, *(float(bound) for bound in histogram.BOUNDS)]
    durations.add(values)
    assert histogram.trimmed(durations.counts) == histogram.counted(max(value, 0) for value in values)
    assert durations.total == round(sum(max(value, 0) for value in values))
