"""Running tasks with a worker: the cases of Django's tests/tasks/test_immediate_backend.py, and retries beyond them."""

import logging
import threading
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from asgiref.sync import async_to_sync
from django.test import override_settings
from django.utils import timezone

from django_workqueue import HandlerTimeout, InvalidPayload, JobQueue, PermanentError
from django_workqueue.backend import WorkqueueBackend
from django_workqueue.engine import worker_id
from django_workqueue.models import WorkJob
from django_workqueue.worker import Counts, Worker, crew
from tests.interleave import wait_until
from tests.tasks.conftest import TASKS, with_options
from tests.tasks.native import (
    FAILED,
    NAME,
    READY,
    RUNNING,
    SUCCESSFUL,
    default_task_backend,
    task_finished,
    task_started,
)
from tests.tasks.shop import tasks

Work = Callable[..., Counts]


def at_once(attempts: int) -> timedelta:
    """A backoff that does not wait."""
    return timedelta(0)


def in_a_day(attempts: int) -> timedelta:
    """A backoff that waits long."""
    return timedelta(days=1)


TRIES_THREE = with_options(max_attempts=3, backoff=at_once)


@pytest.fixture
def sent() -> Iterator[list[tuple[str, Any, str, Any, int]]]:
    """What `task_started` and `task_finished` were sent with: signal, sender, and the result's id, status, attempts."""
    got: list[tuple[str, Any, str, Any, int]] = []

    def started(sender: Any, task_result: Any, **_: Any) -> None:
        got.append(("started", sender, task_result.id, task_result.status, task_result.attempts))

    def finished(sender: Any, task_result: Any, **_: Any) -> None:
        got.append(("finished", sender, task_result.id, task_result.status, task_result.attempts))

    task_started.connect(started)
    task_finished.connect(finished)
    yield got
    task_started.disconnect(started)
    task_finished.disconnect(finished)


def refreshed(result: Any) -> Any:
    result.refresh()
    return result


def texts(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.name == NAME]


@pytest.mark.parametrize("task", [tasks.noop, tasks.noop_async])
def test_a_task_that_returns_is_successful(task: Any, work: Work) -> None:
    result = task.enqueue(1, two=3)
    assert work() == Counts(completed=1)
    result.refresh()
    assert (result.status, result.is_finished, result.return_value) == (SUCCESSFUL, True, None)
    assert result.enqueued_at <= result.started_at == result.last_attempted_at <= result.finished_at
    assert (result.task, result.args, result.kwargs) == (task, [1], {"two": 3})
    assert (result.attempts, result.worker_ids, result.errors) == (1, [worker_id()], [])


def test_aenqueue_and_arefresh_do_the_same(work: Work) -> None:
    result = async_to_sync(tasks.noop_async.aenqueue)()
    work()
    async_to_sync(result.arefresh)()
    assert (result.status, result.attempts, result.return_value) == (SUCCESSFUL, 1, None)


@pytest.mark.parametrize(
    ("task", "error", "says"),
    [
        (tasks.fail_with_value_error, ValueError, "This Task failed due to ValueError"),
        (tasks.fail_with_system_exit, SystemExit, "This Task failed due to SystemExit"),
        (tasks.fail_with_keyboard_interrupt, KeyboardInterrupt, "This Task failed due to KeyboardInterrupt"),
        (tasks.fail_async, ValueError, "This async Task failed"),
    ],
)
def test_a_task_that_raises_has_failed_with_its_error(task: Any, error: Any, says: str, work: Work) -> None:
    result = task.enqueue()
    assert work() == Counts(failed=1)
    result.refresh()
    assert (result.status, result.is_finished, result.attempts) == (FAILED, True, 1)
    assert result.enqueued_at <= result.started_at == result.last_attempted_at <= result.finished_at
    with pytest.raises(ValueError, match="Task failed"):
        _ = result.return_value
    (told,) = result.errors
    assert told.exception_class is error
    assert told.traceback.endswith(f"{error.__name__}: {says}\n")
    assert f'raise {error.__name__}("{says}")' in told.traceback


def test_an_exception_that_cannot_be_pickled_is_told_all_the_same(work: Work) -> None:
    result = tasks.fail_with_an_error_that_cannot_be_pickled.enqueue()
    work()
    (told,) = refreshed(result).errors
    assert told.exception_class is ValueError
    assert 'ValueError(ValueError("This task failed"))' in told.traceback


def test_a_return_value_that_is_not_json_fails_the_task(work: Work) -> None:
    results = [tasks.return_what_is_not_json.enqueue(), tasks.return_nan.enqueue()]
    assert work() == Counts(failed=2)
    assert [refreshed(result).status for result in results] == [FAILED, FAILED]
    assert [result._return_value for result in results] == [None, None]
    assert [result.errors[0].exception_class for result in results] == [TypeError, InvalidPayload]
    assert "Unsupported type" in results[0].errors[0].traceback
    assert "result is nan" in results[1].errors[0].traceback


def test_a_return_value_is_kept_as_django_normalises_it(work: Work) -> None:
    results = [tasks.meaning_of_life.enqueue(), tasks.meaning_of_life_async.enqueue()]
    normalised = tasks.return_bytes_and_tuples.enqueue()
    echoed = tasks.echo.enqueue(1, [2], three={"four": None})
    work()
    assert [refreshed(result).return_value for result in results] == [42, 42]
    assert refreshed(normalised).return_value == {"bytes": "text", "tuple": [1, 2]}
    assert refreshed(echoed).return_value == [[1, [2]], {"three": {"four": None}}]


def test_a_task_that_takes_context_knows_its_result(work: Work) -> None:
    results = [tasks.result_id.enqueue(), tasks.result_id_async.enqueue()]
    work()
    assert [refreshed(result).return_value for result in results] == [result.id for result in results]


def test_the_context_counts_the_attempt_that_is_running(work: Work) -> None:
    with override_settings(TASKS=TRIES_THREE):
        results = [tasks.succeed_at.enqueue(3), tasks.succeed_at_async.enqueue(2)]
        assert work() == Counts(completed=2, failed=3, retried=3)
        assert [refreshed(result).return_value for result in results] == [3, 2]
        assert [result.attempts for result in results] == [3, 2]


def test_while_it_runs_a_task_is_running_and_its_attempt_is_counted(work: Work) -> None:
    result = tasks.told.enqueue()
    work()
    assert refreshed(result).return_value == [1, RUNNING, 0, True]


def test_a_result_keeps_every_attempts_error_and_its_first_start(work: Work) -> None:
    with override_settings(TASKS=TRIES_THREE):
        result = tasks.succeed_at.enqueue(3)
        work()
        result.refresh()
        assert (result.status, result.attempts, result.worker_ids) == (SUCCESSFUL, 3, [worker_id()] * 3)
        assert [error.exception_class for error in result.errors] == [ValueError, ValueError]
        assert ["not at attempt 1" in result.errors[0].traceback, "not at attempt 2" in result.errors[1].traceback] == [
            True,
            True,
        ]
        assert result.enqueued_at <= result.started_at < result.last_attempted_at <= result.finished_at


def test_between_two_attempts_a_task_is_ready(work: Work) -> None:
    with override_settings(TASKS=with_options(max_attempts=2, backoff=in_a_day)):
        result = tasks.succeed_at.enqueue(2)
        assert work() == Counts(failed=1, retried=1)
        result.refresh()
        assert (result.status, result.is_finished, result.attempts, len(result.errors)) == (READY, False, 1, 1)
        assert result.started_at == result.last_attempted_at
        assert result.finished_at is None
        with pytest.raises(ValueError, match="has not finished yet"):
            _ = result.return_value
        job = WorkJob.objects.get(id=int(result.id))
        assert job.available_at - timezone.now() > timedelta(hours=23)


def test_a_task_is_tried_once_unless_told_otherwise(work: Work) -> None:
    result = tasks.succeed_at.enqueue(2)
    assert work() == Counts(failed=1)
    assert (refreshed(result).status, result.attempts) == (FAILED, 1)


def test_at_max_attempts_a_task_has_failed_with_every_error(work: Work) -> None:
    with override_settings(TASKS=TRIES_THREE):
        result = tasks.fail_with_value_error.enqueue()
        assert work() == Counts(failed=3, retried=2)
        assert (refreshed(result).status, result.attempts, len(result.errors)) == (FAILED, 3, 3)


def test_permanent_error_is_not_tried_again(work: Work) -> None:
    with override_settings(TASKS=TRIES_THREE):
        result = tasks.fail_for_good.enqueue()
        assert work() == Counts(failed=1)
        assert (refreshed(result).status, result.errors[0].exception_class) == (FAILED, PermanentError)


def test_retry_runs_a_task_again_without_counting_an_attempt(work: Work, tmp_path: Path) -> None:
    result = tasks.snooze_once.enqueue(str(tmp_path / "snoozed"))
    assert work() == Counts(completed=1)
    assert (refreshed(result).return_value, result.attempts, result.errors) == (1, 1, [])


def test_a_failed_task_that_is_retried_by_hand_goes_on_counting(work: Work) -> None:
    result = tasks.succeed_at.enqueue(2)
    work()
    assert JobQueue("default").retry(int(result.id)) == 1
    assert (refreshed(result).status, result.finished_at) == (READY, None)
    work()
    result.refresh()
    assert (result.return_value, result.attempts, len(result.errors)) == (2, 2, 1)
    assert result.started_at < result.last_attempted_at


def test_a_cancelled_task_has_failed_and_says_why(work: Work) -> None:
    result = tasks.noop.enqueue()
    assert JobQueue("default").cancel(int(result.id)) == 1
    assert work() == Counts()
    result.refresh()
    assert (result.status, result.is_finished, result.attempts) == (FAILED, True, 0)
    assert result.errors[0].exception_class_path == "asyncio.CancelledError"
    assert issubclass(result.errors[0].exception_class, BaseException)


def test_a_task_with_a_later_run_after_waits(work: Work) -> None:
    later = tasks.noop.using(run_after=timezone.now() + timedelta(days=1)).enqueue()
    now = tasks.noop.using(run_after=timezone.now() - timedelta(days=1)).enqueue()
    assert work() == Counts(completed=1)
    assert (refreshed(later).status, refreshed(now).status) == (READY, SUCCESSFUL)


def test_the_higher_priority_runs_first_and_within_one_the_earlier(work: Work) -> None:
    order = [tasks.noop.using(priority=priority).enqueue() for priority in (-100, 0, 0, 100)]
    Worker(["default"], concurrency=1).drain()
    starts = [refreshed(result).started_at for result in order]
    assert sorted(starts) == [starts[3], starts[1], starts[2], starts[0]]


def test_each_queue_is_worked_by_itself(work: Work) -> None:
    here, there = tasks.noop.enqueue(), tasks.noop.using(queue_name="queue_1").enqueue()
    assert work("queue_1") == Counts(completed=1)
    assert (refreshed(here).status, refreshed(there).status) == (READY, SUCCESSFUL)


def test_what_a_task_does_not_take_fails_it(work: Work) -> None:
    result = tasks.meaning_of_life.enqueue("too", many="arguments")
    work()
    assert refreshed(result).errors[0].exception_class is TypeError


@pytest.mark.parametrize("task", [tasks.sleep, tasks.sleep_async])
def test_a_task_that_runs_past_its_timeout_has_failed(task: Any, work: Work, sent: list[Any]) -> None:
    with override_settings(TASKS=with_options(timeout=0.2)):
        result = task.enqueue(30)
        assert work() == Counts(failed=1)
        result.refresh()
        assert (result.status, result.errors[0].exception_class) == (FAILED, HandlerTimeout)
        assert "ran past its timeout of 0.2 s" in result.errors[0].traceback
        assert [(name, status) for name, _, _, status, _ in sent] == [("started", RUNNING), ("finished", FAILED)]


@pytest.mark.parametrize("task", [tasks.noop, tasks.noop_async])
def test_started_and_finished_are_sent_with_the_backends_class_and_the_result(
    task: Any, work: Work, sent: list[Any]
) -> None:
    result = task.enqueue()
    work()
    assert sent == [
        ("started", WorkqueueBackend, result.id, RUNNING, 1),
        ("finished", WorkqueueBackend, result.id, SUCCESSFUL, 1),
    ]


class Louder(WorkqueueBackend):
    """A backend of somebody's own."""


def test_a_task_runs_under_the_alias_it_was_enqueued_with(work: Work, sent: list[Any]) -> None:
    louder = {"BACKEND": f"{__name__}.{Louder.__qualname__}", "QUEUES": ["default"]}
    with override_settings(TASKS={**TASKS, "louder": louder}):
        results = [tasks.alias.enqueue(), tasks.alias.using(backend="louder").enqueue()]
        work()
        assert [refreshed(result).return_value for result in results] == ["default", "louder"]
    senders = {(number, sender) for _, sender, number, *_ in sent}
    assert senders == {(results[0].id, WorkqueueBackend), (results[1].id, Louder)}


@pytest.mark.parametrize("task", [tasks.fail_with_value_error, tasks.fail_async])
def test_finished_is_sent_once_and_started_for_each_attempt(task: Any, work: Work, sent: list[Any]) -> None:
    with override_settings(TASKS=TRIES_THREE):
        task.enqueue()
        work()
    assert [(name, status, attempts) for name, _, _, status, attempts in sent] == [
        ("started", RUNNING, 1),
        ("started", RUNNING, 2),
        ("started", RUNNING, 3),
        ("finished", FAILED, 3),
    ]


def test_the_result_that_finished_is_sent_with_is_what_get_result_says(work: Work) -> None:
    got: list[Any] = []

    def receive(task_result: Any, **_: Any) -> None:
        got.append(task_result)

    task_finished.connect(receive)
    try:
        results = [tasks.meaning_of_life.enqueue(), tasks.fail_with_value_error.enqueue()]
        work()
    finally:
        task_finished.disconnect(receive)
    for result in results:
        (heard,) = [each for each in got if each.id == result.id]
        stored = default_task_backend.get_result(result.id)
        assert abs(heard.finished_at - stored.finished_at) < timedelta(seconds=5)
        for name in ("status", "args", "kwargs", "_return_value", "worker_ids", "started_at", "enqueued_at", "task"):
            assert getattr(heard, name) == getattr(stored, name), name
        assert [error.exception_class for error in heard.errors] == [error.exception_class for error in stored.errors]


@pytest.mark.parametrize("task", [tasks.meaning_of_life, tasks.meaning_of_life_async])
def test_a_receiver_that_raises_stops_neither_the_task_nor_other_receivers(
    task: Any, work: Work, sent: list[Any]
) -> None:
    def receive(**_: Any) -> None:
        raise ValueError("a receiver")

    task_started.connect(receive)
    task_finished.connect(receive)
    try:
        result = task.enqueue()
        assert work() == Counts(completed=1)
    finally:
        task_started.disconnect(receive)
        task_finished.disconnect(receive)
    assert refreshed(result).return_value == 42
    assert [name for name, *_ in sent] == ["started", "finished"]


@pytest.mark.parametrize("task", [tasks.noop, tasks.noop_async])
def test_an_async_receiver_hears_of_runs_too(task: Any, work: Work) -> None:
    heard: list[str] = []

    async def receive(task_result: Any, **_: Any) -> None:
        heard.append(task_result.id)

    task_started.connect(receive)
    task_finished.connect(receive)
    try:
        result = task.enqueue()
        work()
    finally:
        task_started.disconnect(receive)
        task_finished.disconnect(receive)
    assert heard == [result.id, result.id]


@pytest.mark.parametrize("task", [tasks.noop, tasks.noop_async])
def test_a_run_is_logged_as_django_does(task: Any, work: Work, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG, logger=NAME)
    result = task.enqueue()
    work()
    said = texts(caplog)
    assert [f"id={result.id}" in text for text in said] == [True, True, True]
    assert ["enqueued" in said[0], "state=RUNNING" in said[1], "state=SUCCESSFUL" in said[2]] == [True, True, True]
    assert not any("None" in text for text in said)


@pytest.mark.parametrize("task", [tasks.fail_with_value_error, tasks.fail_async])
def test_a_failure_is_logged_as_django_does(task: Any, work: Work, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG, logger=NAME)
    result = task.enqueue()
    work()
    last = [record for record in caplog.records if record.name == NAME][-1]
    assert (last.levelno, "state=FAILED" in last.getMessage(), result.id in last.getMessage()) == (
        logging.ERROR,
        True,
        True,
    )
    assert last.exc_info is not None
    assert last.exc_info[0] is ValueError


def test_a_task_has_its_threads_connection(work: Work) -> None:
    result = tasks.server_version.enqueue()
    work()
    assert refreshed(result).return_value == 7


def test_a_task_that_a_worker_has_in_hand_is_ready_until_it_starts(work: Work, tmp_path: Path) -> None:
    go = tmp_path / "go"
    first = tasks.wait_for.enqueue(str(go))
    rest = [tasks.noop.enqueue() for _ in range(5)]
    worker = Worker(["default"], concurrency=1)
    thread = threading.Thread(target=worker.drain, name="the test's worker")
    thread.start()
    wait_until(lambda: refreshed(first).status == RUNNING)
    assert {refreshed(result).status for result in rest} == {READY}
    assert {(result.attempts, result.started_at) for result in rest} == {(0, None)}
    go.touch()
    thread.join(30)
    assert {refreshed(result).status for result in (first, *rest)} == {SUCCESSFUL}


@pytest.mark.parametrize("task", [tasks.wait_for, tasks.wait_and_fail, tasks.wait_async])
def test_a_running_task_that_is_cancelled_has_failed_whatever_comes_of_it(
    task: Any, work: Work, sent: list[Any], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", "django_workqueue")
    go = tmp_path / "go"
    result = task.enqueue(str(go))
    thread = threading.Thread(target=Worker(["default"]).drain, name="the test's worker")
    thread.start()
    wait_until(lambda: refreshed(result).status == RUNNING)
    assert JobQueue("default").cancel(int(result.id)) == 1
    wait_until(lambda: "1 run had ended already: cancelled" in caplog.text, 30)
    go.touch()
    thread.join(30)
    assert not thread.is_alive()
    assert (refreshed(result).status, result.errors[-1].exception_class_path) == (FAILED, "asyncio.CancelledError")
    assert [name for name, _, number, *_ in sent if number == result.id] == ["started"]
    assert "will not be counted" not in caplog.text


@pytest.mark.parametrize("task", [tasks.wait_for, tasks.wait_async])
def test_a_stop_gives_a_task_back_without_counting_its_attempt(
    task: Any, work: Work, sent: list[Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(crew, "FLUSH", 20.0)  # on a busy machine, what is given back takes time to be written
    go = tmp_path / "go"
    result = task.enqueue(str(go))
    worker = Worker(["default"], shutdown_timeout=0.1)
    thread = threading.Thread(target=worker.run, name="the test's worker")
    thread.start()
    wait_until(lambda: refreshed(result).status == RUNNING, 30)
    worker.stop()
    thread.join(60)
    assert not thread.is_alive()
    assert (refreshed(result).status, result.attempts, result.started_at) == (READY, 0, None)
    assert [name for name, _, number, *_ in sent if number == result.id and name == "finished"] == []
    go.touch()  # ends the thread of the sync one, which goes on by itself
    WorkJob.objects.filter(id=int(result.id)).delete()


def test_a_job_of_a_tasks_kind_runs_the_task(work: Work) -> None:
    jobs = JobQueue("default")
    number, empty = jobs.enqueue(tasks.echo.module_path, {"args": [1]}), jobs.enqueue(tasks.echo.module_path)
    wrong = jobs.enqueue(tasks.echo.module_path, [1])
    assert work() == Counts(completed=2, failed=1)
    assert (jobs.get(number).result, jobs.get(empty).result) == ([[1], {}], [[], {}])
    assert "a task's payload is" in (jobs.get(wrong).last_error or "")
    WorkJob.objects.filter(id__in=[number, empty, wrong]).delete()


def test_a_kind_that_is_no_task_stays(work: Work) -> None:
    jobs = JobQueue("default")
    number = jobs.enqueue("os.getcwd")
    assert work() == Counts()
    assert (jobs.get(number).outcome, jobs.get(number).attempts) == (None, 0)
    jobs.cancel(number)
