"""`Task` on our backend: the cases of Django's own suite, tests/tasks/test_tasks.py and test_custom_backend.py."""

import dataclasses
import pickle
from datetime import datetime, timedelta
from typing import Any
from unittest import mock

import pytest
from asgiref.sync import async_to_sync
from django.test import override_settings
from django.utils import timezone
from django.utils.module_loading import import_string

from django_workqueue.backend import WorkqueueBackend
from tests.tasks.conftest import BACKEND, TASKS
from tests.tasks.native import (
    DEFAULT_TASK_QUEUE_NAME,
    PICKLES,
    READY,
    TASK_MAX_PRIORITY,
    TASK_MIN_PRIORITY,
    InvalidTask,
    InvalidTaskBackend,
    Task,
    TaskError,
    TaskResultDoesNotExist,
    TaskResultMismatch,
    default_task_backend,
    task,
    task_backends,
)
from tests.tasks.shop import tasks

pytestmark = pytest.mark.usefixtures("db")

NAIVE = datetime(2026, 1, 2, 3, 4)  # noqa: DTZ001 - that is the point
ANY_QUEUE = {"default": {"BACKEND": BACKEND, "QUEUES": []}}


def test_the_setting_names_our_backend() -> None:
    assert default_task_backend == task_backends["default"]
    assert isinstance(task_backends["default"], WorkqueueBackend)
    assert (default_task_backend.alias, default_task_backend.options) == ("default", {})


def test_all_four_features_are_supported() -> None:
    backend = task_backends["default"]
    assert backend.supports_defer
    assert backend.supports_async_task
    assert backend.supports_get_result
    assert backend.supports_priority


def test_the_decorator_makes_tasks_with_and_without_brackets_sync_and_async() -> None:
    for each in (tasks.noop, tasks.noop_async, tasks.noop_bare):
        assert isinstance(each, Task)


@pytest.mark.parametrize("each", [tasks.noop, tasks.noop_async])
def test_enqueue_returns_a_result_that_is_ready(each: Any) -> None:
    result = each.enqueue(1, two=3)
    assert (result.status, result.is_finished, result.attempts, result.errors) == (READY, False, 0, [])
    assert (result.started_at, result.last_attempted_at, result.finished_at) == (None, None, None)
    assert (result.task, result.args, result.kwargs, result.backend) == (each, [1], {"two": 3}, "default")
    assert abs(result.enqueued_at - timezone.now()) < timedelta(minutes=1)
    assert isinstance(result.id, str)
    assert 0 < len(result.id) < 64
    with pytest.raises(ValueError, match="Task has not finished yet"):
        _ = result.return_value
    assert default_task_backend.get_result(result.id) == result


@pytest.mark.parametrize("each", [tasks.noop, tasks.noop_async])
def test_aenqueue_returns_a_result_that_is_ready(each: Any) -> None:
    async def main() -> None:
        result = await each.aenqueue(1, two=3)
        assert (result.status, result.is_finished, result.attempts) == (READY, False, 0)
        assert (result.task, result.args, result.kwargs) == (each, [1], {"two": 3})
        assert await default_task_backend.aget_result(result.id) == result

    async_to_sync(main)()


def test_an_argument_that_is_not_json_raises_type_error() -> None:
    with pytest.raises(TypeError, match="Unsupported type"):
        tasks.noop.enqueue(NAIVE)
    with pytest.raises(TypeError, match="Unsupported type"):
        async_to_sync(tasks.noop.aenqueue)(when=NAIVE)


def test_using_priority_makes_another_task() -> None:
    assert tasks.noop.priority == 0
    assert tasks.noop.using(priority=1).priority == 1
    assert tasks.noop.priority == 0


def test_using_queue_name_makes_another_task() -> None:
    assert tasks.noop.queue_name == DEFAULT_TASK_QUEUE_NAME
    assert tasks.noop.using(queue_name="queue_1").queue_name == "queue_1"
    assert tasks.noop.queue_name == DEFAULT_TASK_QUEUE_NAME


def test_using_run_after_makes_another_task() -> None:
    now = timezone.now()
    assert tasks.noop.run_after is None
    assert tasks.noop.using(run_after=now).run_after == now
    assert tasks.noop.run_after is None


def test_using_an_unknown_backend_is_refused() -> None:
    with pytest.raises(InvalidTaskBackend, match="The connection 'unknown' doesn't exist"):
        tasks.noop.using(backend="unknown")


def test_using_a_backend_that_cannot_be_imported_is_refused() -> None:
    with pytest.raises(InvalidTaskBackend, match=r"Could not find backend 'does\.not\.exist'"):
        tasks.noop.using(backend="missing")


def test_using_nothing_makes_an_equal_task() -> None:
    assert tasks.noop.using() == tasks.noop
    assert tasks.noop.using() is not tasks.noop


def test_using_adds_up() -> None:
    now = timezone.now()
    later = tasks.noop.using(run_after=now)
    urgent = later.using(priority=10)
    assert (urgent.priority, urgent.run_after) == (10, now)
    assert later.priority == 0


def test_refreshing_what_has_not_changed_changes_nothing() -> None:
    async def main() -> None:
        result = await tasks.noop.using(run_after=timezone.now(), priority=3).aenqueue(1, a="b")
        before = dataclasses.asdict(result)
        await result.arefresh()
        assert dataclasses.asdict(result) == before

    async_to_sync(main)()
    result = tasks.noop.enqueue()
    before = dataclasses.asdict(result)
    result.refresh()
    assert dataclasses.asdict(result) == before


def test_a_naive_run_after_is_refused_under_use_tz() -> None:
    with pytest.raises(InvalidTask, match="run_after must be an aware datetime"):
        tasks.noop.using(run_after=NAIVE)


@pytest.mark.parametrize("priority", [TASK_MIN_PRIORITY - 1, TASK_MAX_PRIORITY + 1, 3.1])
def test_a_priority_out_of_range_or_not_whole_is_refused(priority: Any) -> None:
    with pytest.raises(InvalidTask, match="priority must be a whole number between -100 and 100"):
        tasks.noop.using(priority=priority)


@pytest.mark.parametrize("priority", [-100, 0, 100, 7.0])
def test_a_priority_from_minus_100_to_100_is_kept(priority: Any) -> None:
    result = tasks.noop.using(priority=priority).enqueue()
    assert default_task_backend.get_result(result.id).task.priority == priority


def test_an_unknown_queue_name_is_refused_unless_queues_is_empty() -> None:
    with pytest.raises(InvalidTask, match="Queue 'queue-2' is not valid for backend"):
        tasks.noop.using(queue_name="queue-2")
    with override_settings(TASKS=ANY_QUEUE):
        assert tasks.noop.using(queue_name="queue-2").queue_name == "queue-2"


@pytest.mark.parametrize("name", ["", "a\nb", "x" * 129])
def test_a_name_that_no_queue_can_have_is_refused_where_queues_is_empty(name: str) -> None:
    with override_settings(TASKS=ANY_QUEUE), pytest.raises(InvalidTask, match="queue's name"):
        tasks.noop.using(queue_name=name)


def test_a_task_can_be_called() -> None:
    assert tasks.meaning_of_life.call() == 42
    assert tasks.meaning_of_life_async.call() == 42
    assert async_to_sync(tasks.meaning_of_life.acall)() == 42
    assert async_to_sync(tasks.meaning_of_life_async.acall)() == 42


def test_a_task_finds_its_results() -> None:
    result = default_task_backend.enqueue(tasks.noop, (), {})
    assert tasks.noop.get_result(result.id) == result
    assert async_to_sync(tasks.noop.aget_result)(result.id) == result


@pytest.mark.parametrize("unknown", ["123456789012", "0", "-1", "", "abc", "1 ", "٣", "01", "9" * 5000, "1.0", None])
def test_a_result_that_does_not_exist_is_told(unknown: Any) -> None:
    for each in (tasks.noop, default_task_backend):
        with pytest.raises(TaskResultDoesNotExist):
            each.get_result(unknown)
        with pytest.raises(TaskResultDoesNotExist):
            async_to_sync(each.aget_result)(unknown)


def test_the_result_of_another_task_is_a_mismatch() -> None:
    result = default_task_backend.enqueue(tasks.noop_async, (), {})
    with pytest.raises(TaskResultMismatch, match="Task does not match"):
        tasks.noop.get_result(result.id)
    with pytest.raises(TaskResultMismatch, match="Task does not match"):
        async_to_sync(tasks.noop.aget_result)(result.id)


def test_only_a_function_at_module_level_can_be_a_task() -> None:
    def inner() -> None: ...

    for function in (any, inner, TestCase().method):
        with pytest.raises(InvalidTask, match="must be defined at a module level"):
            task()(function)


class TestCase:
    __test__ = False

    def method(self) -> None: ...


def test_a_task_knows_its_backend() -> None:
    assert isinstance(tasks.noop.get_backend(), WorkqueueBackend)
    assert not isinstance(tasks.noop.using(backend="immediate").get_backend(), WorkqueueBackend)


def test_name_and_module_path_are_the_functions() -> None:
    for each, name in ((tasks.noop, "noop"), (tasks.noop_async, "noop_async")):
        assert each.name == name
        assert each.module_path == f"tests.tasks.shop.tasks.{name}"
        assert import_string(each.module_path) is each


def test_no_backends_no_tasks() -> None:
    with override_settings(TASKS={}), pytest.raises(InvalidTaskBackend):
        tasks.noop.enqueue()


@pytest.mark.parametrize(
    ("path", "error", "says"),
    [
        ("subprocess.run", ValueError, "'subprocess.run' does not reference a valid exception"),
        ("does.not.exist", ImportError, "No module named 'does'"),
    ],
)
def test_an_error_whose_class_is_none_says_so(path: str, error: type[Exception], says: str) -> None:
    with pytest.raises(error, match=says):
        _ = TaskError(exception_class_path=path, traceback="").exception_class


def test_a_task_that_takes_context_has_it_as_its_first_argument() -> None:
    with pytest.raises(InvalidTask, match="does not have a first argument of 'context'"):
        task(takes_context=True)(tasks.meaning_of_life.func)


def test_run_after_is_not_for_the_decorator() -> None:
    with pytest.raises(TypeError, match="run_after"):
        task(run_after=timezone.now())(tasks.meaning_of_life.func)  # type: ignore[call-overload]


def test_validation_heeds_what_a_backend_supports() -> None:
    with (
        mock.patch.multiple(WorkqueueBackend, supports_async_task=False),
        pytest.raises(InvalidTask, match=r"Backend does not support async [Tt]asks"),
    ):
        default_task_backend.validate_task(tasks.noop_async)
    with (
        mock.patch.multiple(WorkqueueBackend, supports_priority=False),
        pytest.raises(InvalidTask, match="Backend does not support setting priority of tasks"),
    ):
        tasks.noop.using(priority=10)
    with (
        mock.patch.multiple(WorkqueueBackend, supports_defer=False),
        pytest.raises(InvalidTask, match="Backend does not support run_after"),
    ):
        tasks.noop.using(run_after=timezone.now())


def test_enqueue_validates_once_more() -> None:
    elsewhere = tasks.noop.using(queue_name="queue_1")
    with override_settings(TASKS={**TASKS, "default": {"BACKEND": BACKEND, "QUEUES": ["default"]}}):
        with pytest.raises(InvalidTask, match="Queue 'queue_1' is not valid for backend"):
            elsewhere.enqueue()
        with pytest.raises(InvalidTask, match="Queue 'queue_1' is not valid for backend"):
            async_to_sync(elsewhere.aenqueue)()


def test_a_class_of_ones_own_may_extend_the_backend() -> None:
    path = f"{__name__}.{LouderBackend.__qualname__}"
    with override_settings(TASKS={"default": {"BACKEND": path, "OPTIONS": {"max_attempts": 2}}}):
        assert isinstance(default_task_backend.get_result(tasks.noop.enqueue().id).task.get_backend(), LouderBackend)


class LouderBackend(WorkqueueBackend):
    """Somebody's own."""


if PICKLES:  # tasks have only been picklable since Django 6.1

    def test_a_task_pickles() -> None:
        assert pickle.loads(pickle.dumps(tasks.noop)) == tasks.noop

    def test_a_result_pickles() -> None:
        result = tasks.noop.enqueue()
        assert pickle.loads(pickle.dumps(result)) == result

    @pytest.mark.parametrize("path", ["does.not.exist.fake_task", "builtins.any"])
    def test_a_pickle_of_what_is_no_task_is_refused(path: str) -> None:
        with pytest.raises(ValueError, match=f"Expected '{path}' to point to a Task instance"):
            Task._reconstruct({"func": path})
