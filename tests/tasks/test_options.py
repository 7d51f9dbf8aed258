"""`OPTIONS`, the keyword arguments of `@task`, and what `check()` says of them."""

from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from django.core.exceptions import ImproperlyConfigured
from django.core.management import CommandError, call_command
from django.db import connections
from django.test import modify_settings, override_settings

from django_workqueue import JobQueue, Queue, discovery, exponential
from django_workqueue.backend.tasks import WorkqueueTask
from django_workqueue.models import WorkJob
from django_workqueue.worker import Counts
from tests.tasks.conftest import BACKEND, TASKS, with_options
from tests.tasks.native import FAILED, TAKES_KEYWORDS, InvalidTask, default_task_backend, task, task_backends
from tests.tasks.shop import keywords, tasks

Work = Callable[..., Counts]


def findings(**setting: Any) -> list[tuple[str, str]]:
    """What the check of the default backend says: id and message."""
    with override_settings(TASKS={"default": {"BACKEND": BACKEND, **setting}}):
        return [(found.id, found.msg) for found in default_task_backend.check()]


def handler_of(each: Any) -> Any:
    """The handler that a worker would run a task with."""
    default_task_backend.bring([])
    source = default_task_backend.queue("default").source
    (found,) = [handler for handler in source.handlers if handler.kind == each.module_path]
    return found


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"max_attempts": 5, "backoff": exponential(), "timeout": timedelta(seconds=3), "retention": timedelta(days=3)},
        {"backoff": "tests.tasks.shop.tasks.at_once", "timeout": 3.5, "retention": 0, "lease": 20, "database": "other"},
        {"timeout": None},
    ],
)
def test_check_has_nothing_to_say_of_good_options(options: dict[str, Any]) -> None:
    assert findings(OPTIONS=options) == []
    assert findings(OPTIONS=options, QUEUES=[]) == []


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"max_atempts": 2}, "there is no option 'max_atempts'; the nearest is 'max_attempts'"),
        ({"queue": "x"}, "there is no option 'queue'; the nearest is"),
        ({"max_attempts": 0}, "max_attempts lies between 1 and"),
        ({"max_attempts": "3"}, "max_attempts is a whole number, not '3'"),
        ({"max_attempts": True}, "max_attempts is a whole number, not True"),
        ({"timeout": 0}, "timeout is positive"),
        ({"timeout": "1"}, "timeout is a timedelta or number of seconds, not '1'"),
        ({"timeout": float("inf")}, "timeout is a timedelta or number of seconds, not inf"),
        ({"lease": float("nan")}, "lease is a timedelta or number of seconds, not nan"),
        ({"timeout": -1}, "timeout is positive; got -1"),
        ({"retention": -1}, "retention is not negative"),
        ({"lease": timedelta(0)}, "lease is positive"),
        ({"backoff": 3}, "backoff is a callable that takes the number of attempts, or its dotted path, not 3"),
        ({"backoff": "nodots"}, "backoff is a callable that takes the number of attempts, or its dotted path"),
        ({"database": 3}, "database is a str, not 3"),
    ],
)
@pytest.mark.usefixtures("db")
def test_a_bad_option_is_found_by_check_and_refused_by_enqueue(options: dict[str, Any], says: str) -> None:
    ((number, message),) = findings(OPTIONS=options)
    assert number == "workqueue.E102"
    assert message.startswith("TASKS['default']: OPTIONS: ")
    assert says in message
    with override_settings(TASKS=with_options(**options)):
        task()(tasks.noop.func)  # or nobody would come as far as the check
        with pytest.raises(ImproperlyConfigured) as raised:
            tasks.noop.enqueue()
        assert says in str(raised.value)


@pytest.mark.parametrize("given", [[], None, "max_attempts", 7])
@pytest.mark.usefixtures("db")
def test_options_that_are_no_dict_are_found_by_check_and_refused_by_enqueue(given: Any) -> None:
    assert findings(OPTIONS=given) == [("workqueue.E102", f"TASKS['default']: OPTIONS: it is a dict, not {given!r}.")]
    with override_settings(TASKS={"default": {"BACKEND": BACKEND, "OPTIONS": given}}):
        task()(tasks.noop.func)
        with pytest.raises(ImproperlyConfigured, match="it is a dict, not"):
            tasks.noop.enqueue()


@pytest.mark.parametrize("given", ["mail", b"mail", {"mail": 1}, None, 7, [["mail"]]])
@pytest.mark.usefixtures("db")
def test_queues_that_are_no_list_are_found_by_check_and_refused_by_all(given: Any) -> None:
    assert findings(QUEUES=given) == [
        ("workqueue.E106", f"TASKS['default']: QUEUES is a list of names, not {given!r}.")
    ]
    with override_settings(TASKS={"default": {"BACKEND": BACKEND, "QUEUES": given}}):
        task()(tasks.noop.func)
        for use in (tasks.noop.enqueue, discovery.bring):
            with pytest.raises(ImproperlyConfigured, match="is a list of names, not"):
                use()
        assert default_task_backend.queues == set()  # no letters


@pytest.mark.parametrize("given", [["default"], ("default",), {"default"}, {"default": 1}.keys()])
def test_queues_may_be_any_collection_of_names(given: Any) -> None:
    assert findings(QUEUES=given) == []


def test_check_finds_every_bad_option() -> None:
    assert len(findings(OPTIONS={"max_attempts": 0, "timeout": 0, "colour": "red"})) == 3


def test_check_finds_a_backoff_that_cannot_be_imported() -> None:
    ((number, message),) = findings(OPTIONS={"backoff": "tests.tasks.shop.tasks.nothing"})
    assert (number, "tests.tasks.shop.tasks.nothing cannot be imported" in message) == ("workqueue.E103", True)
    ((number, message),) = findings(OPTIONS={"backoff": "tests.tasks.conftest.TASKS"})
    assert (number, "is not callable" in message) == ("workqueue.E103", True)


def test_check_finds_a_database_that_there_is_not() -> None:
    ((number, message),) = findings(OPTIONS={"database": "nowhere"})
    assert (number, "'nowhere' is not in DATABASES" in message) == ("workqueue.E104", True)
    with override_settings(WORKQUEUE_DATABASE="nowhere"):
        assert [number for number, _ in findings()] == ["workqueue.E104"]


def test_check_finds_a_database_that_is_not_postgresql() -> None:
    connections.settings["lite"] = connections.settings["default"] | {"ENGINE": "django.db.backends.sqlite3"}
    try:
        ((number, message),) = findings(OPTIONS={"database": "lite"})
    finally:
        del connections.settings["lite"]
        del connections["lite"]
    assert number == "workqueue.E105"
    assert "PostgreSQL" in message


@modify_settings(INSTALLED_APPS={"remove": "django_workqueue"})
def test_check_finds_that_the_app_is_not_installed() -> None:
    assert ("workqueue.E101", "TASKS['default']: django_workqueue is not installed.") in findings()


def test_check_finds_names_that_no_queue_can_have() -> None:
    found = findings(QUEUES=["fine", "", "a\nb", "x" * 129, 3])
    assert [number for number, _ in found] == ["workqueue.E106"] * 4


def test_check_finds_a_queue_that_somebody_has_set_up_otherwise() -> None:
    jobs, keyed = JobQueue("set up otherwise", retention=timedelta(days=3)), Queue("set up as keyed")
    found = findings(QUEUES=[jobs.name, keyed.name, "default"], OPTIONS={"retention": timedelta(days=4)})
    assert [number for number, _ in found] == ["workqueue.E107"] * 2
    assert "retention is" in found[1][1] or "retention is" in found[0][1]
    assert "it is a keyed Queue" in found[0][1] + found[1][1]
    assert findings(QUEUES=[jobs.name]) == []


KEYED = """
from django_workqueue import Queue

drafts = Queue("a keyed queue of a tasks module")
"""


def test_check_finds_a_keyed_queue_that_only_a_tasks_module_makes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "drafting").mkdir()
    (tmp_path / "drafting" / "__init__.py").touch()
    (tmp_path / "drafting" / "tasks.py").write_text(KEYED)
    monkeypatch.syspath_prepend(tmp_path)
    with modify_settings(INSTALLED_APPS={"append": "drafting"}):
        ((number, message),) = findings(QUEUES=["a keyed queue of a tasks module"])
    assert (number, "it is a keyed Queue" in message) == ("workqueue.E107", True)


@pytest.mark.parametrize("command", ["workqueue_stats", "workqueue_reap", "workqueue_doctor", "workqueue_work"])
@pytest.mark.usefixtures("db")
def test_commands_say_in_a_sentence_that_a_queue_is_keyed(command: str) -> None:
    keyed = Queue("keyed, said a command")
    says = r"TASKS\['default'\]\['QUEUES'\]: .*it is a keyed Queue"
    setting = {"default": {"BACKEND": BACKEND, "QUEUES": [keyed.name]}}
    with override_settings(TASKS=setting), pytest.raises(CommandError, match=says):
        call_command(command)


@pytest.mark.usefixtures("db")
def test_commands_say_in_a_sentence_that_a_backend_is_not_there() -> None:
    with override_settings(TASKS={"default": {"BACKEND": "django_workqueue.backends.WorkqueueBackend"}}):
        for command in ("workqueue_stats", "workqueue_reap", "workqueue_doctor", "workqueue_work"):
            with pytest.raises(CommandError, match=r"TASKS\['default'\]: No module named"):
                call_command(command)


def test_check_finds_aliases_that_share_a_queue_and_differ() -> None:
    both = {
        "default": {"BACKEND": BACKEND, "OPTIONS": {"timeout": 3}},
        "slow": {"BACKEND": BACKEND, "OPTIONS": {"timeout": 300, "max_attempts": 9}},
    }
    with override_settings(TASKS=both):
        (found,) = [*task_backends["default"].check(), *task_backends["slow"].check()]
        assert found.id == "workqueue.E108"
        assert "'default' is a queue of TASKS['slow'] too, whose timeout is another" in found.msg
    both["slow"]["QUEUES"] = ["slow"]
    with override_settings(TASKS=both):
        assert [*task_backends["default"].check(), *task_backends["slow"].check()] == []


@pytest.mark.usefixtures("db")
def test_options_are_what_tasks_are_run_with() -> None:
    with override_settings(
        TASKS=with_options(max_attempts=4, backoff="tests.tasks.shop.tasks.at_once", timeout=3.5, lease=20)
    ):
        handler = handler_of(tasks.noop)
        assert (handler.timeout, handler.lease) == (timedelta(seconds=3.5), timedelta(seconds=20))
        assert handler.backoff(1) == timedelta(0)
        assert WorkJob.objects.get(id=int(tasks.noop.enqueue().id)).max_attempts == 4


@pytest.mark.usefixtures("db")
def test_the_defaults_are_one_attempt_no_timeout_and_the_queues_own_retention() -> None:
    handler = handler_of(tasks.noop)
    assert (handler.timeout, handler.lease) == (None, timedelta(seconds=60))
    assert timedelta(seconds=2) <= handler.backoff(1) <= timedelta(seconds=2.5)
    assert WorkJob.objects.get(id=int(tasks.noop.enqueue().id)).max_attempts == 1


@pytest.mark.usefixtures("db")
def test_a_tasks_own_options_go_before_its_backends() -> None:
    with override_settings(TASKS=with_options(max_attempts=4, timeout=60)):
        own = WorkqueueTask(func=function, max_attempts=2, timeout=3, backoff="tests.tasks.shop.tasks.at_once", **REST)
        handler = handler_of(own)
        assert (handler.timeout, handler.backoff(1)) == (timedelta(seconds=3), timedelta(0))
        assert WorkJob.objects.get(id=int(own.enqueue().id)).max_attempts == 2
        assert WorkJob.objects.get(id=int(own.using(priority=3).enqueue().id)).max_attempts == 2


def function() -> None: ...


REST = {"priority": 0, "backend": "default", "queue_name": "default", "run_after": None}


@pytest.mark.parametrize(
    ("option", "says"),
    [
        ({"max_attempts": 0}, "max_attempts lies between 1 and"),
        ({"backoff": 3}, "backoff is a callable"),
        ({"timeout": -1}, "timeout is positive"),
    ],
)
def test_a_tasks_own_bad_option_makes_it_invalid(option: dict[str, Any], says: str) -> None:
    with pytest.raises(InvalidTask, match=says):
        WorkqueueTask(func=function, **REST, **option)


if TAKES_KEYWORDS:  # from Django 6.1 on, and with the backport

    def test_the_decorator_takes_a_tasks_own_options() -> None:
        made = task(max_attempts=3, timeout=5, priority=10)(tasks.noop.func)  # type: ignore[call-overload]
        assert isinstance(made, WorkqueueTask)
        assert (made.max_attempts, made.timeout, made.backoff, made.priority) == (3, 5, None, 10)
        assert (made.takes_context, made.run_after) == (False, None)
        assert (tasks.noop.max_attempts, tasks.noop.timeout) == (None, None)

    def test_the_decorator_refuses_an_option_that_there_is_not() -> None:
        with pytest.raises(TypeError, match="unknown_param"):
            task(unknown_param=123)(tasks.noop.func)  # type: ignore[call-overload]

    @pytest.mark.usefixtures("db")
    def test_a_task_is_tried_as_often_as_its_decorator_says(work: Work) -> None:
        result = keywords.fail_three_times.enqueue()
        assert work() == Counts(failed=3, retried=2)
        result.refresh()
        assert (result.status, result.attempts, len(result.errors)) == (FAILED, 3, 3)

    @pytest.mark.usefixtures("db")
    def test_a_task_may_run_as_long_as_its_decorator_says(work: Work) -> None:
        result = keywords.sleep_for_long.enqueue()
        assert work() == Counts(failed=1)
        result.refresh()
        assert "ran past its timeout of 0.2 s" in result.errors[0].traceback


def test_the_setting_is_read_anew_when_it_changes() -> None:
    for attempts in (2, 3):
        with override_settings(TASKS={**TASKS, "default": {"BACKEND": BACKEND, "OPTIONS": {"max_attempts": attempts}}}):
            assert default_task_backend._setup.options.max_attempts == attempts
