"""What jobs ask of the worker beyond what keys do: kinds, starts that are marked, results, cancelling."""

import asyncio
import itertools
import os
import threading
from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import Any

import pytest

from django_workqueue import Job, JobQueue, PermanentError, Retry
from django_workqueue.models import WorkJob
from django_workqueue.worker import Counts, Worker
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


def test_a_result_that_is_not_json_fails_the_job_not_the_worker(jobs: JobQueue) -> None:
    jobs.handler("job", backoff=lambda attempts: timedelta(hours=1))(lambda job: object())
    jobs.enqueue("job")
    assert Worker([jobs]).drain() == Counts(failed=1, retried=1)


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


@pytest.mark.parametrize("is_async", [False, True])
def test_a_cancelled_job_is_noticed_and_its_outcome_dropped(jobs: JobQueue, working: Working, is_async: bool) -> None:
    """Within seconds, though the lease is a minute."""
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
    wait_until(lambda: WorkJob.objects.filter(queue=jobs.name, lease_until__gt="1980-01-01T00:00Z").count() == 1)
    threading.Event().wait(1.5)  # what has just begun is not looked at
    assert jobs.cancel(number) == 1
    wait_until(lambda: seen == ["started", "cancelled"])
    assert running.stop() == Counts()
    assert row(jobs, number).outcome == "cancelled"


def test_a_process_that_dies_uses_up_the_attempts_of_what_it_started_only(shop: Shop) -> None:
    queue = JobQueue("shop-jobs")
    WorkJob.objects.filter(queue=queue.name).delete()
    # The first to start kills its process; behind it many with one attempt each are in hand.
    killer = queue.enqueue("die", priority=1, max_attempts=1)
    others = queue.enqueue_many("note", range(300), max_attempts=1)
    shop.start("shop-jobs", "--poll", "0.2", "--concurrency", "1", lease=1)
    wait_until(lambda: WorkJob.objects.filter(queue=queue.name, outcome="completed").count() == 300, 30)
    wait_until(lambda: row(queue, killer).outcome == "dead", 30)
    assert len(others) == 300
