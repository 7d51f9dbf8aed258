"""Tasks in a project's own tests: `django_workqueue.testing` in a `TestCase`'s transaction."""

from datetime import timedelta
from typing import Any

import pytest
from django.test import override_settings
from django.utils import timezone

from django_workqueue.models import WorkJob
from django_workqueue.testing import assert_enqueued, drain, immediate
from django_workqueue.worker import Counts
from tests.tasks.conftest import with_options
from tests.tasks.native import FAILED, READY, SUCCESSFUL, default_task_backend, task
from tests.tasks.shop import tasks

pytestmark = pytest.mark.django_db  # pytest-django's own transaction around each test: what a `TestCase` has


def at_once(attempts: int) -> timedelta:
    """A backoff that does not wait."""
    return timedelta(0)


@pytest.fixture(autouse=True)
def nothing_waits(_django_db_helper: None) -> None:
    """Delete what other tests have left."""
    WorkJob.objects.filter(queue="default").delete()


def test_drain_runs_tasks_sync_and_async_in_the_tests_own_transaction() -> None:
    results = [tasks.meaning_of_life.enqueue(), tasks.meaning_of_life_async.enqueue(), tasks.result_id.enqueue()]
    bad = tasks.fail_with_value_error.enqueue()
    assert drain("default") == Counts(completed=3, failed=1)
    for result in (*results, bad):
        result.refresh()
    assert [result.return_value for result in results] == [42, 42, results[2].id]
    assert (bad.status, bad.attempts, bad.errors[0].exception_class) == (FAILED, 1, ValueError)


def test_drain_runs_the_louder_task_first_whatever_its_kind() -> None:
    quiet, loud = tasks.noop.enqueue(), tasks.echo.using(priority=9).enqueue()
    drain("default")
    quiet.refresh()
    loud.refresh()
    assert loud.finished_at < quiet.finished_at


def test_drain_retries_and_the_context_counts() -> None:
    with override_settings(TASKS=with_options(max_attempts=3, backoff=at_once)):
        result = tasks.succeed_at.enqueue(3)
        assert drain("default") == Counts(completed=1, failed=2, retried=2)
        result.refresh()
        assert (result.return_value, result.attempts, len(result.errors)) == (3, 3, 2)
        assert result.started_at < result.last_attempted_at


def test_drain_leaves_what_is_to_run_later_unless_told_otherwise() -> None:
    result = tasks.noop.using(run_after=timezone.now() + timedelta(days=1)).enqueue()
    assert drain("default") == Counts()
    assert_enqueued(default_task_backend.queue("default"), tasks.noop.module_path, run_at=result.task.run_after)
    assert drain("default", ignore_delays=True) == Counts(completed=1)


def later() -> None:
    """A task that is only made when something runs."""


def make_and_enqueue() -> str:
    made: Any = task()(later)
    return str(made.enqueue().id)


def test_drain_runs_a_task_that_was_not_there_before() -> None:
    result = task()(make_and_enqueue).enqueue()
    assert drain("default") == Counts(completed=2)
    result.refresh()
    assert default_task_backend.get_result(result.return_value).status == SUCCESSFUL


def test_immediate_runs_a_task_as_it_is_enqueued() -> None:
    with immediate():
        result = tasks.meaning_of_life.enqueue()
    assert result.status == READY
    result.refresh()
    assert result.return_value == 42
