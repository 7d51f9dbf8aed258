"""System checks: each says what is wrong, and what to do."""

import sys
from types import SimpleNamespace

import django
import pytest
from django.apps import apps
from django.conf import settings
from django.core.checks import run_checks
from django.test import override_settings

from django_workqueue.checks import check_all


def ids() -> set[str]:
    return {message.id for message in check_all()}


def test_a_sound_project_hears_nothing():
    assert ids() <= {"workqueue.I001"}


def test_an_unknown_setting_is_a_warning_that_names_the_nearest():
    with override_settings(WORKQUEUE_POLL_INTERVALL=3):
        (message,) = [message for message in check_all() if message.id == "workqueue.W001"]
    assert "WORKQUEUE_POLL_INTERVALL" in message.msg
    assert "WORKQUEUE_POLL_INTERVAL." in message.hint


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("WORKQUEUE_POLL_INTERVAL", 0),
        ("WORKQUEUE_POLL_INTERVAL", -1),
        ("WORKQUEUE_POLL_INTERVAL", "soon"),
        ("WORKQUEUE_POLL_INTERVAL", float("inf")),
        ("WORKQUEUE_POLL_INTERVAL", float("nan")),
        ("WORKQUEUE_ENQUEUE_TIMEOUT", -1),
        ("WORKQUEUE_BATCH_MAX", 0),
        ("WORKQUEUE_HISTORY", None),
        ("WORKQUEUE_MIDDLEWARE", "a.b.C"),
        ("WORKQUEUE_AUTODISCOVER", 7),
        ("WORKQUEUE_NOTIFY", "False"),
        ("WORKQUEUE_NOTIFY", 0),
    ],
)
def test_a_setting_of_a_wrong_value_is_an_error_that_shows_it(name, value):
    with override_settings(**{name: value}):
        (message,) = [message for message in check_all() if message.id == "workqueue.E001"]
    assert name in message.msg
    assert message.msg.endswith(f", not {value!r}")


@pytest.mark.parametrize("module", ["taskz", "taskz.handlers"])
def test_a_module_that_no_app_has_is_a_warning_that_names_it(module):
    with override_settings(WORKQUEUE_AUTODISCOVER=module):
        (message,) = [message for message in check_all() if message.id == "workqueue.W004"]
    assert f"WORKQUEUE_AUTODISCOVER is {module!r}" in message.msg


@pytest.fixture
def app_with(tmp_path, monkeypatch):
    """`app_with(module)`: the settings of a project whose one app has such a module, which cannot be imported."""

    def make(module):
        package = tmp_path / "app_of_the_check"
        (package / module).parent.mkdir(parents=True)
        (package / "__init__.py").touch()
        (package / module).write_text("1 / 0")
        monkeypatch.syspath_prepend(tmp_path)
        return [*settings.INSTALLED_APPS, "app_of_the_check"]

    yield make
    sys.modules.pop("app_of_the_check", None)


@pytest.mark.parametrize(
    ("module", "file"), [("handlers", "handlers.py"), ("work.handlers", "work/__init__.py"), (None, "other.py")]
)
def test_a_module_that_some_app_has_is_none_nor_is_it_imported(app_with, module, file):
    with override_settings(WORKQUEUE_AUTODISCOVER=module, INSTALLED_APPS=app_with(file)):
        assert "workqueue.W004" not in ids()
    assert not [name for name in sys.modules if name.startswith("app_of_the_check.")]


def test_no_app_needs_a_module_of_the_default_name():
    with override_settings(INSTALLED_APPS=["django_workqueue"]):
        assert "workqueue.W004" not in ids()
        with override_settings(WORKQUEUE_AUTODISCOVER="tasks"):
            assert "workqueue.W004" not in ids()


def never_made(get_result):
    raise AssertionError("a check makes no middleware")


def of_neither_world(get_result): ...


of_neither_world.sync_capable = of_neither_world.async_capable = False


@pytest.mark.parametrize(
    ("entry", "says"),
    [
        ("shop.middleware.log", "shop.middleware.log cannot be imported: No module named"),
        ("tests.test_checks.nothing", "tests.test_checks.nothing cannot be imported: Module"),
        ("nodots", "nodots cannot be imported: nodots"),
        ("tests.test_checks.__name__", "tests.test_checks.__name__ is no middleware: it cannot be called"),
        (7, "7 is no middleware: it cannot be called"),
        ("tests.test_checks.of_neither_world", "is neither sync_capable nor async_capable"),
    ],
)
def test_a_middleware_that_cannot_be_is_an_error_that_names_it(entry, says):
    good = ["tests.test_checks.never_made", never_made]
    with override_settings(WORKQUEUE_MIDDLEWARE=[*good, entry]):
        (message,) = [message for message in check_all() if message.id == "workqueue.E004"]
    assert says in message.msg


@pytest.mark.parametrize("name", ["WORKQUEUE_DATABASE", "WORKQUEUE_LISTEN_DATABASE"])
def test_an_alias_that_is_not_there_is_an_error_that_lists_those_that_are(name):
    with override_settings(**{name: "nowhere"}):
        (message,) = [message for message in check_all() if message.id == "workqueue.E002"]
    assert "'nowhere'" in message.msg
    assert "default" in message.hint


def test_a_database_that_is_not_postgresql_is_an_error(monkeypatch):
    from django.db import connections

    monkeypatch.setattr(type(connections["default"]), "vendor", "sqlite")
    (message,) = [message for message in check_all() if message.id == "workqueue.E003"]
    assert "PostgreSQL 14" in message.msg


def test_psycopg2_beside_psycopg_is_mentioned(monkeypatch):
    monkeypatch.setitem(sys.modules, "psycopg2", SimpleNamespace(__spec__=SimpleNamespace(name="psycopg2")))
    assert "workqueue.I001" in ids()


def test_uwsgi_without_threads_is_a_warning(monkeypatch):
    monkeypatch.setitem(sys.modules, "uwsgi", SimpleNamespace(opt={}))
    assert "workqueue.W002" in ids()
    monkeypatch.setitem(sys.modules, "uwsgi", SimpleNamespace(opt={"enable-threads": True}))
    assert "workqueue.W002" not in ids()


def test_what_is_wrong_with_a_task_backend_is_said_too():
    pytest.importorskip("django.tasks")
    ours = {"BACKEND": "django_workqueue.backend.WorkqueueBackend", "OPTIONS": {"max_atempts": 3}}
    with override_settings(TASKS={"default": ours}):
        apps.get_app_config("workqueue").ready()
        messages = run_checks()
    (message,) = [message for message in messages if message.id == "workqueue.E102"]
    assert "max_atempts" in message.msg


def test_a_backend_of_ours_that_is_not_there_is_an_error():
    with override_settings(TASKS={"default": {"BACKEND": "django_workqueue.backends.WorkqueueBackend"}}):
        (message,) = [message for message in check_all() if message.id == "workqueue.E005"]
    assert "TASKS['default']: No module named 'django_workqueue.backends'" in message.msg


def test_the_backport_wants_to_be_an_app_so_that_its_checks_run():
    installed = [app for app in settings.INSTALLED_APPS if app != "django_tasks"]
    with override_settings(TASKS={"default": {"BACKEND": "django_workqueue.backend.WorkqueueBackend"}}):
        with override_settings(INSTALLED_APPS=installed):
            assert ("workqueue.W003" in ids()) == (django.VERSION < (6, 0))
        with override_settings(INSTALLED_APPS=[*installed, "django_tasks"] if django.VERSION < (6, 0) else installed):
            assert "workqueue.W003" not in ids()


def test_the_checks_are_registered():
    with override_settings(WORKQUEUE_NONSENSE=1):
        assert "workqueue.W001" in {message.id for message in run_checks()}
