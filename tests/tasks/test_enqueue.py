"""Enqueueing a task: the job it becomes, the transaction it rides, the signal and the log."""

import asyncio
import logging
from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from asgiref.sync import async_to_sync
from django.db import transaction
from django.test import override_settings
from django.utils import timezone

from django_workqueue import InvalidPayload, JobQueue
from django_workqueue.backend import WorkqueueBackend
from django_workqueue.listed import JobLane, Waiting
from django_workqueue.models import WorkJob
from tests.conftest import Connect
from tests.tasks.conftest import with_options
from tests.tasks.native import NAME, READY, TaskResultDoesNotExist, default_task_backend, task_enqueued
from tests.tasks.shop import tasks

pytestmark = pytest.mark.usefixtures("db")


@pytest.fixture
def sent() -> Iterator[list[tuple[Any, Any]]]:
    """What `task_enqueued` was sent with: sender and result."""
    got: list[tuple[Any, Any]] = []

    def receive(sender: Any, task_result: Any, **_: Any) -> None:
        got.append((sender, task_result))

    task_enqueued.connect(receive)
    yield got
    task_enqueued.disconnect(receive)


def row(result: Any) -> WorkJob:
    return WorkJob.objects.get(id=int(result.id))


def undone(enqueue: Callable[[], Any]) -> Any:
    """What enqueueing returns in a transaction that is then rolled back."""
    with transaction.atomic():
        result = enqueue()
        transaction.set_rollback(True)
    return result


def test_a_task_is_a_job_whose_kind_is_its_module_path() -> None:
    job = row(tasks.echo.using(priority=-7, queue_name="queue_1").enqueue(1, "two", three=[4]))
    assert (job.queue, job.kind) == ("queue_1", "tests.tasks.shop.tasks.echo")
    assert job.payload == {"args": [1, "two"], "kwargs": {"three": [4]}}
    assert (job.priority, job.max_attempts, job.attempts) == (-7, 1, 0)


def test_run_after_is_when_the_job_is_due() -> None:
    moment = datetime(2100, 1, 2, 3, 4, 5, 678901, tzinfo=UTC)
    result = tasks.noop.using(run_after=moment).enqueue()
    assert row(result).available_at == moment
    assert default_task_backend.get_result(result.id).task.run_after == moment


def test_a_run_after_that_is_past_means_now() -> None:
    job = row(tasks.noop.using(run_after=timezone.now() - timedelta(days=1)).enqueue())
    assert job.available_at == job.enqueued_at


def test_a_naive_run_after_is_local_time_where_use_tz_is_off() -> None:
    with override_settings(USE_TZ=False, TIME_ZONE="Europe/Berlin"):
        noon = datetime(2100, 7, 1, 12)  # noqa: DTZ001 - that is the point
        result = tasks.noop.using(run_after=noon).enqueue()
    assert row(result).available_at == datetime(2100, 7, 1, 10, tzinfo=UTC)


def test_arguments_are_normalised_as_django_does() -> None:
    result = tasks.echo.enqueue((1, 2), b"text", key={"a": ("b",)}, number={1: 2})
    assert (result.args, result.kwargs) == ([[1, 2], "text"], {"key": {"a": ["b"]}, "number": {"1": 2}})
    assert default_task_backend.get_result(result.id) == result


def test_an_argument_that_json_has_no_word_for_is_named() -> None:
    with pytest.raises(InvalidPayload, match=r"payload.args\[1\].x"):
        tasks.echo.enqueue(0, {"x": float("nan")})
    with pytest.raises(InvalidPayload, match=r"payload.kwargs.text"):
        async_to_sync(tasks.echo.aenqueue)(text="a\0b")
    assert not WorkJob.objects.filter(metadata__has_key="task").exists()


def test_an_enqueue_rides_the_transaction_it_is_made_in(connect: Connect) -> None:
    other = connect()
    with transaction.atomic():
        result = tasks.noop.enqueue()
        assert result.enqueued_at is not None
        assert default_task_backend.get_result(result.id) == result
        assert other.execute("SELECT count(*) FROM workqueue_job WHERE id = %s", [result.id]).fetchone() == (0,)
    assert other.execute("SELECT count(*) FROM workqueue_job WHERE id = %s", [result.id]).fetchone() == (1,)


def test_an_enqueue_is_gone_with_the_transaction_that_is_rolled_back() -> None:
    result = undone(tasks.noop.enqueue)
    with pytest.raises(TaskResultDoesNotExist):
        result.refresh()


def test_aenqueue_in_async_code_called_inside_a_transaction_rides_it() -> None:
    result = undone(async_to_sync(tasks.noop.aenqueue))
    with pytest.raises(TaskResultDoesNotExist):
        result.refresh()


def test_aenqueue_does_not_block_the_event_loop(second: Any) -> None:
    second.execute("BEGIN")
    second.execute("LOCK TABLE workqueue_job IN SHARE MODE")

    async def main() -> list[str]:
        events = []
        enqueued = asyncio.create_task(tasks.noop.aenqueue())
        for _ in range(5):
            await asyncio.sleep(0)
        events.append("the loop goes on")
        second.execute("COMMIT")
        await enqueued
        events.append("enqueued")
        return events

    assert async_to_sync(main)() == ["the loop goes on", "enqueued"]


def lose_answers(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Enqueues land and are not told when; the ids of those that do."""
    insert, ids = JobLane._insert, []

    def insert_and_forget_when(lane: JobLane, table: Any, entries: Sequence[Waiting]) -> Any:
        landed = list(insert(lane, table, entries))
        for entry in entries:
            ids.append(entry.id)
            entry.enqueued_at = None
        return landed

    monkeypatch.setattr(JobLane, "_insert", insert_and_forget_when)
    return ids


def test_an_enqueue_whose_answer_was_lost_and_whose_task_is_over_and_gone_has_landed_all_the_same(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    ids = lose_answers(monkeypatch)
    queue = default_task_backend.queue("default")
    wait = queue.source.commits.batcher.submit

    def submit_and_let_it_be_worked(*arguments: Any, **options: Any) -> Any:
        landed = wait(*arguments, **options)
        WorkJob.objects.filter(id__in=ids).delete()
        return landed

    monkeypatch.setattr(queue.source.commits.batcher, "submit", submit_and_let_it_be_worked)
    result = tasks.noop.enqueue()
    assert (result.id, result.status) == (str(ids[0]), READY)
    assert abs(result.enqueued_at - timezone.now()) < timedelta(minutes=1)


def test_an_enqueue_whose_answer_was_lost_has_its_time_all_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    lose_answers(monkeypatch)
    for result in (tasks.noop.enqueue(), async_to_sync(tasks.noop.aenqueue)()):
        assert result.enqueued_at is not None
        assert default_task_backend.get_result(result.id) == result


def test_many_threads_enqueue_at_once_and_none_is_mixed_up(aside: Callable[..., Any]) -> None:
    results = [each.result(30) for each in [aside(tasks.echo.enqueue, number) for number in range(20)]]
    assert [default_task_backend.get_result(result.id).args for result in results] == [[at] for at in range(20)]
    assert [default_task_backend.get_result(result.id) for result in results] == results


def test_task_enqueued_is_sent_with_the_backends_class_and_the_result(sent: list[tuple[Any, Any]]) -> None:
    first = tasks.noop.enqueue(1)
    second = async_to_sync(tasks.noop.aenqueue)(2)
    assert sent == [(WorkqueueBackend, first), (WorkqueueBackend, second)]
    assert [result.status for _, result in sent] == [READY, READY]


def test_an_async_receiver_hears_of_it_too() -> None:
    heard = []

    async def receive(task_result: Any, **_: Any) -> None:
        heard.append(task_result.id)

    task_enqueued.connect(receive)
    try:
        ids = [tasks.noop.enqueue().id, async_to_sync(tasks.noop.aenqueue)().id]
    finally:
        task_enqueued.disconnect(receive)
    assert heard == ids


def test_enqueueing_is_logged_as_django_does(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG, logger=NAME)
    result = tasks.noop.enqueue()
    (record,) = [record for record in caplog.records if record.name == NAME]
    assert record.levelno == logging.DEBUG
    assert record.getMessage() == (f"Task id={result.id} path=tests.tasks.shop.tasks.noop enqueued backend=default")


def test_a_queue_is_shared_with_the_jobs_of_its_name_whichever_is_first() -> None:
    jobs = JobQueue("queue_1", max_attempts=3)
    result = tasks.noop.using(queue_name="queue_1").enqueue()
    job = jobs.enqueue("something else")
    assert (row(result).queue, row(result).max_attempts) == ("queue_1", 1)
    assert (jobs.get(job).queue, jobs.get(job).max_attempts) == ("queue_1", 3)
    assert jobs.cancel(job) == 1


def test_jobs_may_set_up_a_queue_that_tasks_are_on_already() -> None:
    tasks.noop.using(queue_name="queue_1").enqueue()
    jobs = JobQueue("queue_1", max_attempts=3, retention=timedelta(days=9))
    job = jobs.enqueue("something else")
    assert jobs.get(job).max_attempts == 3
    assert jobs.cancel(job) == 1
    with pytest.raises(ValueError, match="max_attempts is 3 there and 4 here"):
        JobQueue("queue_1", max_attempts=4)


def test_a_retention_of_both_has_to_be_the_same() -> None:
    jobs = JobQueue("queue_1", retention=timedelta(days=9))
    differs = pytest.raises(ValueError, match="retention is")
    with override_settings(TASKS=with_options(retention=timedelta(days=8))), differs:
        tasks.noop.using(queue_name="queue_1").enqueue()
    with override_settings(TASKS=with_options(retention=timedelta(days=9))):
        assert row(tasks.noop.using(queue_name="queue_1").enqueue()).queue == jobs.name
