"""A result by its id: from any process, and whatever has become of its queue, its alias or its function."""

import os
import subprocess
import sys
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from django.db import connection
from django.test import override_settings

from django_workqueue import JobQueue, lanes
from django_workqueue.models import WorkJob
from django_workqueue.worker import Counts
from tests import conftest as house
from tests.tasks.conftest import BACKEND, TASKS, with_options
from tests.tasks.native import (
    FAILED,
    NAME,
    READY,
    RUNNING,
    SUCCESSFUL,
    TaskResultDoesNotExist,
    TaskResultMismatch,
    default_task_backend,
    task_backends,
)
from tests.tasks.shop import tasks

pytestmark = pytest.mark.usefixtures("db")

Work = Callable[..., Counts]


def alter(result: Any, assignments: str, **values: Any) -> None:
    """Change a job's row behind everybody's back."""
    with connection.cursor() as cursor:
        cursor.execute(f"UPDATE workqueue_job SET {assignments} WHERE id = %(id)s", {"id": int(result.id), **values})


def elsewhere(code: str) -> str:
    """What a process of its own, with the shop's settings, prints."""
    settings = {"DJANGO_SETTINGS_MODULE": "tests.tasks.settings", "PYTHONPATH": str(house.PROJECT)}
    settings["SHOP_TASKS"] = '{"default": {"BACKEND": "%s"}}' % BACKEND  # noqa: UP031
    done = subprocess.run(
        [sys.executable, "-c", f"import django; django.setup()\nfrom {NAME} import default_task_backend\n{code}"],
        env=os.environ | house.environment() | settings,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_a_result_is_read_by_its_id_in_any_process(work: Work) -> None:
    good, bad = tasks.echo.using(queue_name="queue_1", priority=5).enqueue(1, two=[3]), tasks.fail_async.enqueue()
    work("default", "queue_1")
    told = elsewhere(
        f"good, bad = map(default_task_backend.get_result, {[good.id, bad.id]})\n"
        "print(good.status, good.return_value, good.task.module_path, good.task.queue_name, good.task.priority)\n"
        "print(bad.status, bad.attempts, bad.errors[0].exception_class.__name__)\n"
        "bad.refresh()"
    )
    assert told == ("SUCCESSFUL [[1], {'two': [3]}] tests.tasks.shop.tasks.echo queue_1 5\nFAILED 1 ValueError")


def test_a_result_enqueued_in_another_process_is_read_here() -> None:
    number = elsewhere("from tests.tasks.shop import tasks; print(tasks.echo.enqueue(7).id)")
    result = default_task_backend.get_result(number)
    assert (result.status, result.args, result.task) == (READY, [7], tasks.echo)
    assert tasks.echo.get_result(number) == result


def test_a_result_stays_readable_when_its_queue_has_left_queues(work: Work) -> None:
    result = tasks.meaning_of_life.using(queue_name="queue_1").enqueue()
    work("queue_1")
    with override_settings(TASKS={"default": {"BACKEND": BACKEND, "QUEUES": ["default"]}}):
        read = default_task_backend.get_result(result.id)
        assert (read.return_value, read.task.queue_name) == (42, "queue_1")
        read.refresh()
        result.refresh()
        assert tasks.meaning_of_life.get_result(result.id) == read


@pytest.mark.parametrize("errors", ['["a text"]', "[3, null]", "[[]]"])
def test_a_result_stays_readable_when_another_program_has_spoiled_its_history(errors: str, work: Work) -> None:
    result = tasks.meaning_of_life.enqueue()
    alter(result, "errors = %(errors)s::jsonb", errors=errors)
    assert default_task_backend.get_result(result.id).errors == []
    work()
    read = default_task_backend.get_result(result.id)
    assert (read.status, read.return_value, read.errors) == (SUCCESSFUL, 42, [])


def test_a_result_stays_readable_when_its_function_is_gone(work: Work) -> None:
    result = tasks.meaning_of_life.enqueue("an argument")
    for path in ("tests.tasks.shop.tasks.gone", "tests.tasks.no_such_module.gone", "gone", "tests.tasks.shop.tasks.os"):
        alter(result, "kind = %(kind)s", kind=path)
        read = default_task_backend.get_result(result.id)
        assert (read.status, read.args, read.task.backend) == (READY, ["an argument"], "default")
        assert read.task.name == path.rpartition(".")[2]
        assert read.task.module_path.endswith(path)
        read.refresh()
        assert read == default_task_backend.get_result(result.id)
        with pytest.raises(ImportError, match=f"the task .*{path} is gone"):
            read.task.call()
        with pytest.raises(TaskResultMismatch):
            tasks.meaning_of_life.get_result(result.id)


def test_a_result_stays_readable_when_its_module_cannot_be_imported(tmp_path: Path) -> None:
    (tmp_path / "broken_tasks.py").write_text("1 / 0\n")
    result = tasks.meaning_of_life.enqueue()
    alter(result, "kind = 'broken_tasks.task'")
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(tmp_path)
        assert default_task_backend.get_result(result.id).task.module_path == "broken_tasks.task"


def test_a_result_is_asked_for_again_with_the_alias_it_was_enqueued_with() -> None:
    both = {**TASKS, "another": {"BACKEND": BACKEND, "QUEUES": ["default"]}}
    with override_settings(TASKS=both):
        result = tasks.noop.using(backend="another").enqueue()
        assert (result.backend, result.task.backend) == ("another", "another")
        assert task_backends["default"].get_result(result.id) == result
        assert task_backends["another"].get_result(result.id) == result
    for changed in (TASKS, {**TASKS, "another": TASKS["immediate"]}, {**TASKS, "another": TASKS["missing"]}):
        with override_settings(TASKS=changed):
            read = default_task_backend.get_result(result.id)
            assert (read.backend, read.task.backend) == ("default", "default")
            read.refresh()


def test_a_job_that_is_no_task_is_no_result() -> None:
    number = JobQueue("default").enqueue("something")
    with pytest.raises(TaskResultDoesNotExist):
        default_task_backend.get_result(str(number))
    WorkJob.objects.filter(id=number).delete()


def test_a_task_whose_lease_lapsed_in_its_last_attempt_has_failed_and_says_why() -> None:
    result, queue = tasks.noop.enqueue(), JobQueue("default")
    assert queue.claim(lease=timedelta(hours=1), kinds=[tasks.noop.module_path])
    result.refresh()
    assert (result.status, result.attempts) == (RUNNING, 1)
    alter(result, "lease_until = statement_timestamp()")
    queue.source.reap_here()
    result.refresh()
    assert (result.status, result.attempts, result.is_finished) == (FAILED, 1, True)
    assert result.errors[0].exception_class.__name__ == "LeaseLapsed"
    assert "lapsed during the last attempt" in result.errors[0].traceback


IN_HAND = "lease_token = 7, lease_until = statement_timestamp() + interval '1 hour', attempts = attempts + 1"


def test_a_task_that_a_worker_has_in_hand_is_ready_until_it_starts() -> None:
    result = tasks.noop.enqueue()
    alter(result, IN_HAND)
    result.refresh()
    assert (result.status, result.attempts, result.started_at, result.last_attempted_at) == (READY, 0, None, None)


def test_a_task_in_hand_for_another_attempt_still_knows_its_last_one(work: Work) -> None:
    with override_settings(TASKS=with_options(max_attempts=2)):
        result = tasks.fail_with_value_error.enqueue()
        work()
        result.refresh()
        before = result.started_at
        alter(result, f"{IN_HAND}, started_at = NULL")
        result.refresh()
        assert (result.status, result.started_at, result.last_attempted_at) == (READY, before, before)


def test_a_task_that_a_dead_worker_never_started_has_lost_no_attempt(work: Work) -> None:
    with override_settings(TASKS=with_options(max_attempts=2)):
        result = tasks.succeed_at.enqueue(2)
        alter(result, "attempts = 1, lease_token = 7, lease_until = statement_timestamp() - interval '1 second'")
        assert work() == Counts(failed=1, retried=1, reclaimed=1)
        result.refresh()
        assert (result.status, result.attempts, len(result.errors)) == (READY, 1, 1)
        assert WorkJob.objects.get(id=int(result.id)).attempts == 1


def test_a_crash_before_the_last_attempt_is_counted_and_the_first_start_kept(work: Work) -> None:
    with override_settings(TASKS=with_options(max_attempts=3)):
        result = tasks.meaning_of_life.enqueue()
        alter(
            result,
            "attempts = 1, lease_token = 7, lease_until = statement_timestamp(), started_at = statement_timestamp(),"
            " worker_ids = '[\"gone\"]',"
            " metadata = jsonb_set(metadata, '{task,started_at}', '\"2026-01-02T03:04:05.678901Z\"')",
        )
        assert work() == Counts(completed=1, reclaimed=1)
        result.refresh()
        assert (result.return_value, result.attempts, result.worker_ids[0]) == (42, 2, "gone")
        assert result.started_at is not None
        assert result.started_at.isoformat() == "2026-01-02T03:04:05.678901+00:00"
        assert result.last_attempted_at > result.enqueued_at


def test_times_are_naive_and_local_where_use_tz_is_off(work: Work) -> None:
    with override_settings(USE_TZ=False, TIME_ZONE="UTC"):
        connection.close()
        lanes.rest(10)  # in here: whoever opens a connection anew does so under these settings
        result = tasks.noop.enqueue()
        assert default_task_backend.get_result(result.id) == result
        work()
        result.refresh()
        times = [result.enqueued_at, result.started_at, result.last_attempted_at, result.finished_at]
        assert times == sorted(times)
        assert all(each.tzinfo is None for each in times)
    connection.close()
    lanes.rest(10)


def test_retention_is_how_long_results_stay(work: Work) -> None:
    with override_settings(TASKS=with_options(retention=60)):
        result = tasks.noop.enqueue()
        work()
        assert JobQueue("default", retention=timedelta(seconds=60)).source.settings.retention == timedelta(seconds=60)
        alter(result, "finished_at = statement_timestamp() - interval '61 seconds'")
        JobQueue("default", retention=timedelta(seconds=60)).source.reap_here()
        with pytest.raises(TaskResultDoesNotExist):
            result.refresh()


def test_a_retention_of_zero_keeps_no_result_but_those_that_failed(work: Work) -> None:
    with override_settings(TASKS=with_options(retention=0)):
        good, bad = tasks.noop.enqueue(), tasks.fail_with_value_error.enqueue()
        work()
        with pytest.raises(TaskResultDoesNotExist):
            good.refresh()
        bad.refresh()
        assert bad.status == FAILED


def test_a_result_keeps_its_run_after_and_priority_through_retries(work: Work) -> None:
    with override_settings(TASKS=with_options(max_attempts=2)):
        from django.utils import timezone

        moment = timezone.now() - timedelta(hours=1)
        result = tasks.fail_with_value_error.using(run_after=moment, priority=-3).enqueue()
        work()
        read = default_task_backend.get_result(result.id)
        assert (read.task, read.task.run_after, read.task.priority) == (result.task, moment, -3)
        assert (read.status, SUCCESSFUL) == (READY, SUCCESSFUL)
