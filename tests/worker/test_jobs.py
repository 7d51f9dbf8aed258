"""What jobs ask of the worker beyond what keys do: kinds, starts that are marked, results, cancelling."""

import asyncio
import itertools
import math
import os
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any

import pytest
from django.utils import timezone

from django_workqueue import Job, JobQueue, PermanentError, Queue, Retry
from django_workqueue.database import Connection
from django_workqueue.models import WorkJob
from django_workqueue.worker import Counts, Worker
from django_workqueue.worker.lane import lanes_of
from django_workqueue.worker.outage import Outage
from django_workqueue.worker.renew import Lease, Renewer
from django_workqueue.worker.signals import Signals
from tests.interleave import wait_until
from tests.worker.conftest import Running, Shop

Working = Callable[..., Running]

_numbers = itertools.count(1)


@pytest.fixture
def jobs(db: None) -> Iterator[JobQueue]:
    """A job queue of the test's own."""
    queue = JobQueue(f"worker-jobs-{os.getpid()}-{next(_numbers)}")
    yield queue
    WorkJob.objects.filter(queue=queue.name).delete()


def row(queue: JobQueue, number: int) -> WorkJob:
    return WorkJob.objects.get(queue=queue.name, id=number)


def test_each_kind_goes_to_its_own_handler_sync_or_async_and_results_are_kept(jobs: JobQueue) -> None:
    @jobs.handler("double")
    def double(job: Job) -> Any:
        return job.payload * 2  # type: ignore[operator]

    @jobs.handler("triple")
    async def triple(job: Job) -> Any:
        await asyncio.sleep(0)
        return job.payload * 3  # type: ignore[operator]

    @jobs.handler("quiet", concurrency=1, timeout=timedelta(seconds=5))
    def quiet(job: Job) -> None: ...

    doubled, tripled, quieted = jobs.enqueue("double", 2), jobs.enqueue("triple", 2), jobs.enqueue("quiet")
    unknown = jobs.enqueue("nobody's", 2)
    assert Worker([jobs]).drain() == Counts(completed=3)
    assert [row(jobs, number).result for number in (doubled, tripled, quieted)] == [4, 6, None]
    assert (row(jobs, unknown).outcome, row(jobs, unknown).attempts) == (None, 0)


def test_an_exception_retries_permanent_error_buries_and_retry_snoozes(jobs: JobQueue) -> None:
    @jobs.handler("job", backoff=lambda attempts: timedelta(0))
    def work(job: Job) -> None:
        if job.payload == "fail":
            raise ValueError("no")
        if job.payload == "permanent":
            raise PermanentError("never")
        if job.payload == "snooze":
            raise Retry(timedelta(hours=1))

    failing, permanent, snoozing = (jobs.enqueue("job", what) for what in ("fail", "permanent", "snooze"))
    assert Worker([jobs]).drain() == Counts(failed=6, retried=4)
    assert (row(jobs, failing).outcome, row(jobs, failing).attempts) == ("dead", 5)
    assert (row(jobs, permanent).outcome, row(jobs, permanent).attempts) == ("dead", 1)
    assert (row(jobs, snoozing).outcome, row(jobs, snoozing).attempts) == (None, 0)


def test_the_log_says_which_attempt_of_a_job_failed_when_the_next_is_and_when_it_is_dead(
    jobs: JobQueue, caplog: pytest.LogCaptureFixture
) -> None:
    @jobs.handler("flaky", backoff=lambda attempts: timedelta(0) if attempts < 2 else timedelta(hours=2))
    def flaky(job: Job) -> None:
        raise PermanentError("no") if job.payload else ValueError("no")

    jobs.enqueue("flaky")
    short, hopeless = jobs.enqueue("flaky", max_attempts=2), jobs.enqueue("flaky", "hopeless")
    Worker([jobs]).drain()
    assert f"job {short}: attempt 1 of 2 failed; again in 0 s: " in caplog.text
    assert f"job {short}: attempt 2 of 2 failed; it is a dead letter now: ValueError" in caplog.text
    assert f"job {hopeless}: attempt 1 of 5 failed; it is a dead letter now: PermanentError" in caplog.text
    assert "attempt 2 of 5 failed; again in 2:00:00: " in caplog.text


def test_a_result_that_is_not_json_fails_the_job_not_the_worker(jobs: JobQueue) -> None:
    """With an error that says what it is, after the handler's own backoff."""
    jobs.handler("job", backoff=lambda attempts: timedelta(hours=1))(lambda job: {"at": [job.payload, object()]})
    jobs.handler("good")(lambda job: job.payload)
    failed, good = jobs.enqueue("job"), jobs.enqueue("good", 1, priority=-1)
    assert Worker([jobs]).drain() == Counts(completed=1, failed=1, retried=1)
    last_error = row(jobs, failed).last_error
    assert last_error is not None
    assert last_error.startswith("InvalidPayload: result.at[1] is a object, which is not JSON")
    assert row(jobs, failed).available_at > timezone.now() + timedelta(minutes=59)
    assert row(jobs, good).result == 1


@pytest.mark.parametrize("is_async", [False, True])
def test_the_start_of_a_last_attempt_is_marked_just_before_it(jobs: JobQueue, working: Working, is_async: bool) -> None:
    gate, seen = threading.Event(), list[bool]()

    def work(job: Job) -> None:
        seen.append(row(jobs, job.id).started_at is not None)
        gate.wait(20)

    async def awork(job: Job) -> None:
        seen.append((await WorkJob.objects.aget(queue=jobs.name, id=job.id)).started_at is not None)
        while not gate.is_set():  # noqa: ASYNC110 - a thread opens it
            await asyncio.sleep(0.01)

    jobs.handler("job", concurrency=2)(awork if is_async else work)
    jobs.enqueue_many("job", range(20), max_attempts=1)
    working(jobs)
    wait_until(lambda: len(seen) == 2)
    assert WorkJob.objects.filter(queue=jobs.name, started_at__isnull=False).count() == 2
    gate.set()
    wait_until(lambda: WorkJob.objects.filter(queue=jobs.name, outcome="completed").count() == 20)
    assert seen == [True] * 20


def test_a_stop_that_gives_work_back_counts_no_attempt(jobs: JobQueue, working: Working) -> None:
    started = threading.Event()

    @jobs.handler("job", concurrency=1)
    async def work(job: Job) -> None:
        started.set()
        await asyncio.sleep(30)

    number = jobs.enqueue("job", max_attempts=1)
    running = working(jobs)
    assert started.wait(10)
    running.stop(0)
    assert (row(jobs, number).outcome, row(jobs, number).attempts) == (None, 0)


@pytest.mark.parametrize("after", [0.0, 1.5])
@pytest.mark.parametrize("is_async", [False, True])
def test_a_cancelled_job_is_noticed_within_about_a_second_and_its_outcome_dropped(
    jobs: JobQueue, working: Working, settings: Any, is_async: bool, after: float
) -> None:
    """Though the lease is a minute, and no wake gets through; whether it has just begun or not."""
    settings.WORKQUEUE_NOTIFY = False
    seen: list[str] = []

    def work(job: Job) -> None:
        seen.append("started")
        wait_until(lambda: job.cancelled, 8)
        seen.append("cancelled")

    async def awork(job: Job) -> None:
        seen.append("started")
        try:
            await asyncio.sleep(30)
        except asyncio.CancelledError:
            seen.append("cancelled")
            raise

    jobs.handler("job")(awork if is_async else work)
    number = jobs.enqueue("job")
    running = working(jobs, poll=60)
    wait_until(lambda: seen)
    threading.Event().wait(after)
    assert jobs.cancel(number) == 1
    cancelled = time.monotonic()
    wait_until(lambda: seen == ["started", "cancelled"])
    assert time.monotonic() - cancelled < 4  # on a busy machine
    assert running.stop() == Counts()
    assert row(jobs, number).outcome == "cancelled"


def test_a_job_that_is_scheduled_runs_when_it_comes_due_though_nobody_wakes_the_worker_then(
    jobs: JobQueue, working: Working
) -> None:
    jobs.handler("job")(lambda job: job.payload)
    wait_until(working(jobs, poll=60).is_idle)
    made = [jobs.enqueue("job", each, delay=timedelta(seconds=each)) for each in (1, 0.5)]
    wait_until(lambda: all(row(jobs, number).outcome for number in made), 20)
    assert [row(jobs, number).result for number in made] == [1, 0.5]


def test_each_failed_attempt_is_on_record_with_its_start_and_its_end(jobs: JobQueue) -> None:
    @jobs.handler("job", backoff=lambda attempts: timedelta(0))
    def work(job: Job) -> None:
        time.sleep(0.05)
        raise ValueError("no")

    number = jobs.enqueue("job", max_attempts=3)
    assert Worker([jobs]).drain().failed == 3
    errors = jobs.get(number).errors
    assert [error["attempt"] for error in errors] == [1, 2, 3]
    times = [datetime.fromisoformat(error[when]) for error in errors for when in ("started", "at")]
    assert times == sorted(times)
    assert all(end - start >= timedelta(seconds=0.05) for start, end in zip(times[::2], times[1::2], strict=True))


def test_a_job_that_is_cancelled_while_it_waits_in_hand_is_not_started(jobs: JobQueue, working: Working) -> None:
    gate, ran = threading.Event(), list[Any]()

    @jobs.handler("job", concurrency=1)
    def work(job: Job) -> None:
        ran.append(job.payload)
        if job.payload == 0:
            gate.wait(20)

    first, *rest = jobs.enqueue_many("job", range(20))
    running = working(jobs, poll=0.2)
    wait_until(lambda: ran)
    assert jobs.cancel(*rest) == 19
    threading.Event().wait(2.5)
    gate.set()
    wait_until(lambda: row(jobs, first).outcome == "completed")
    running.stop()
    assert ran == [0]
    assert {row(jobs, number).outcome for number in rest} == {"cancelled"}


def test_cancelling_costs_nothing_to_work_that_is_done_within_a_second(jobs: JobQueue) -> None:
    jobs.handler("job")(lambda job: None)
    keyed = Queue[str](f"{jobs.name}, keyed")
    keyed.handler(lambda item: None)
    renewer = Renewer("default", Outage("default"), shortest=60)
    leases = [
        Lease(lane, number, time.monotonic() + 60, held=list, renewed=print, lost=print)
        for number, lane in enumerate(lanes_of([keyed.source, jobs.source]))
    ]
    for lease in leases:
        renewer.add(lease)
    began = leases[-1].began
    assert list(renewer._due(began + 0.99)) == []
    assert len(list(renewer._due(began + 1.0))) == 1  # jobs only: keys cannot be cancelled
    assert list(renewer._due(began + 1.5)) == []
    renewer.discard(1)
    assert list(renewer._due(began + 10)) == []


@pytest.mark.parametrize("kind", ["linger", "linger-async"])
def test_a_supervised_process_hears_of_a_cancelled_job(shop: Shop, kind: str) -> None:
    queue = JobQueue("shop-jobs")
    WorkJob.objects.filter(queue=queue.name).delete()
    number = queue.enqueue(kind, "a")
    shop.start("shop-jobs", "--poll", "60")
    shop.wait_for("started", "a")
    assert queue.cancel(number) == 1
    cancelled = time.monotonic()
    shop.wait_for("cancelled", "a", deadline=10)
    assert time.monotonic() - cancelled < 5
    assert row(queue, number).outcome == "cancelled"


def test_a_worker_sends_no_more_than_a_dozen_statements_for_a_thousand_jobs(jobs: JobQueue, sent: Counter[str]) -> None:
    jobs.handler("tile")(lambda job: None)
    jobs.enqueue_many("tile", [{"number": number} for number in range(10_000)])
    sent.clear()
    assert Worker([jobs]).drain() == Counts(completed=10_000)
    assert 0 < sent.total() <= 120, sent


def test_a_job_that_is_failed_by_hand_is_tried_again_by_an_idle_worker(jobs: JobQueue, working: Working) -> None:
    ran: list[int] = []
    number = jobs.enqueue("job")
    (job,) = jobs.claim()
    jobs.handler("job")(lambda job: ran.append(job.id))
    wait_until(working(jobs, poll=60).is_idle)
    assert jobs.fail(job, ValueError("no"), retry_in=timedelta(seconds=0.3)) == "pending"
    wait_until(lambda: ran == [number], 5)


def test_what_is_scheduled_for_others_is_not_asked_for_unless_a_handler_may_be_found(jobs: JobQueue) -> None:
    own, minute = Connection("default", application="test"), timedelta(minutes=1)
    jobs.enqueue("theirs", delay=timedelta(seconds=10))
    jobs.enqueue("ours", delay=timedelta(seconds=30))

    def next_due(kinds: list[str] | None) -> int:
        due = jobs.source.next_due_on(own, kinds, minute)
        return 0 if due is None else math.ceil(due.total_seconds() / 10)

    assert [next_due(kinds) for kinds in (None, ["theirs", "ours"], ["ours"], ["nobody's"])] == [1, 1, 3, 0]
    jobs.source.finder = lambda kind: None
    assert next_due(["ours"]) == 1
    own.close()


def test_a_result_that_changes_after_it_was_returned_is_kept_as_it_was(jobs: JobQueue) -> None:
    shared: dict[str, int] = {}

    @jobs.handler("job", concurrency=1)
    def work(job: Job) -> Any:
        shared[str(job.payload)] = 1
        return shared

    ids = jobs.enqueue_many("job", range(30))
    assert Worker([jobs]).drain() == Counts(completed=30)
    assert [len(row(jobs, number).result) for number in ids] == list(range(1, 31))


def test_jobs_start_in_the_order_of_priority_then_time_then_id(jobs: JobQueue) -> None:
    ran: list[Any] = []
    jobs.handler("job", concurrency=1)(lambda job: ran.append(job.id))
    expected = []
    for priority in (5, 0, -5):
        jobs.enqueue("job", priority=priority, delay=timedelta(hours=1))
        expected += [*jobs.enqueue_many("job", range(20), priority=priority), jobs.enqueue("job", priority=priority)]
    assert Worker([jobs]).drain() == Counts(completed=63)
    assert ran == expected


def test_what_is_wrong_with_a_handlers_backoff_does_not_cost_its_jobs(
    jobs: JobQueue, caplog: pytest.LogCaptureFixture
) -> None:
    def broken(attempts: int) -> timedelta:
        raise ZeroDivisionError

    backoffs: dict[str, Any] = {
        "raises": broken,
        "is no timedelta": lambda attempts: 5,
        "is past": lambda attempts: timedelta(days=-5),
        "is beyond the calendar": lambda attempts: timedelta.max,
    }
    for kind, backoff in backoffs.items():
        jobs.handler(kind, backoff=backoff)(fail)
    ids = {kind: jobs.enqueue(kind, max_attempts=2) for kind in backoffs}
    assert Worker([jobs]).drain() == Counts(failed=5, retried=4)
    due = {kind: row(jobs, number).available_at - timezone.now() for kind, number in ids.items()}
    assert timedelta(0) < due["raises"] < timedelta(seconds=3)
    assert timedelta(0) < due["is no timedelta"] < timedelta(seconds=3)
    assert row(jobs, ids["is past"]).outcome == "dead"
    assert due["is beyond the calendar"] > timedelta(days=300_000)
    assert caplog.text.count("is broken") == 2


def fail(job: Job) -> None:
    raise ValueError("no")


@pytest.mark.parametrize("is_async", [False, True])
def test_retry_and_chained_permanent_errors_mean_the_same_from_either_world(jobs: JobQueue, is_async: bool) -> None:
    def work(job: Job) -> None:
        if job.payload == "chained":
            raise ValueError("no") from PermanentError("never")
        raise Retry(timedelta.max)

    async def awork(job: Job) -> None:
        work(job)

    jobs.handler("job")(awork if is_async else work)
    chained, snoozed = jobs.enqueue("job", "chained"), jobs.enqueue("job", "snoozed", max_attempts=1)
    assert Worker([jobs]).drain() == Counts(failed=1)
    assert (row(jobs, chained).outcome, row(jobs, chained).last_error) == ("dead", "ValueError: no")
    assert (row(jobs, snoozed).outcome, row(jobs, snoozed).attempts, row(jobs, snoozed).worker_ids) == (None, 0, [])


def test_max_items_counts_no_job_whose_start_was_denied(jobs: JobQueue, monkeypatch: pytest.MonkeyPatch) -> None:
    start, denials, ran = jobs.source.start_on, [1, 1, 1], list[int]()

    def start_on(connection: Connection, works: Sequence[Any]) -> list[Any]:
        """As if a renewal, or anybody, had the rows locked at that moment."""
        return [] if denials and denials.pop() else start(connection, works)

    monkeypatch.setattr(jobs.source, "start_on", start_on)
    jobs.handler("last")(lambda job: ran.append(job.id))
    jobs.enqueue_many("last", [None] * 10, max_attempts=1)
    worker = Worker([jobs], concurrency=1, poll=60)
    with Signals() as signals:
        assert worker.work(replace(worker.options, max_items=5), signals) == Counts(completed=5)
    assert (len(ran), denials) == (5, [])


def test_a_process_that_dies_with_500_jobs_in_hand_uses_up_the_attempts_of_what_it_started_only(shop: Shop) -> None:
    queue = JobQueue("shop-jobs")
    WorkJob.objects.filter(queue=queue.name).delete()
    queue.enqueue_many("note", range(300), priority=2)  # quick ones, so that the worker takes many in hand
    killer = queue.enqueue("die", "killer", priority=1, max_attempts=1)
    others = queue.enqueue_many("note", range(500), max_attempts=1)
    in_hand = WorkJob.objects.filter(queue=queue.name, id__in=others).exclude(lease_token=0)
    shop.start("shop-jobs", "--poll", "0.2", "--concurrency", "1", lease=3)
    shop.wait_for("started", "killer")
    wait_until(lambda: in_hand.count() > 400)
    wait_until(lambda: WorkJob.objects.filter(queue=queue.name, outcome="completed").count() == 800, 40)
    wait_until(lambda: row(queue, killer).outcome == "dead", 30)
    rows = list(WorkJob.objects.filter(id__in=others, queue=queue.name))
    assert {(each.attempts, len(each.worker_ids)) for each in rows} == {(1, 1)}
    assert (row(queue, killer).attempts, len(row(queue, killer).worker_ids)) == (1, 1)


def test_an_exception_that_cannot_be_shown_is_kept_as_far_as_it_can(jobs: JobQueue) -> None:
    class Unrelated(Exception):
        @property
        def __context__(self) -> Any:
            return 1 / 0

        @__context__.setter
        def __context__(self, context: Any) -> None: ...

    @jobs.handler("job", backoff=lambda attempts: timedelta(hours=1))
    def work(job: Job) -> None:
        raise Unrelated

    number = jobs.enqueue("job")
    assert Worker([jobs]).drain() == Counts(failed=1, retried=1)
    ((error,), attempts) = row(jobs, number).errors, row(jobs, number).attempts
    assert attempts == 1
    assert "in work\n    raise Unrelated\n" in error["traceback"]
    assert "Unrelated" in error["message"] + error["type"]
