"""System checks: what is wrong with the settings or the surroundings, said before the first failure says it."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterator
from importlib.util import find_spec
from typing import Any

import django
from django.apps import apps
from django.conf import settings
from django.core import checks
from django.core.checks import CheckMessage, Error, Info
from django.core.exceptions import ImproperlyConfigured
from django.db import connections
from django.utils.module_loading import import_string, module_has_submodule

from . import conf, database
from .batcher import threads_available
from .exceptions import UnsupportedDatabase


def check_all(**_: Any) -> list[CheckMessage]:
    """Every check that needs no server."""
    return [
        *_unknown_settings(),
        *_bad_values(),
        *_middleware(),
        *_autodiscover(),
        *_aliases(),
        *_task_backends(),
        *_drivers(),
        *_threads(),
    ]


def _unknown_settings() -> Iterator[CheckMessage]:
    for name in dir(settings):
        if name.startswith("WORKQUEUE_") and name not in conf.DEFAULTS:
            near = difflib.get_close_matches(name, conf.DEFAULTS, n=1, cutoff=0)
            yield checks.Warning(
                f"The setting {name} is not known.",
                hint=f"The nearest known one is {near[0]}. All: {', '.join(sorted(conf.DEFAULTS))}.",
                id="workqueue.W001",
            )


def _bad_values() -> Iterator[CheckMessage]:
    readers: tuple[Callable[[], object], ...] = (
        conf.poll_interval,
        conf.enqueue_timeout,
        conf.batch_max,
        conf.history,
        conf.middleware,
        conf.autodiscover,
        _notify,
    )
    for read in readers:
        try:
            read()
        except ImproperlyConfigured as error:
            yield Error(str(error), id="workqueue.E001")


def _notify() -> None:
    # At its use it is taken for what it is worth: there is nobody to be told on the thread that sends wakes.
    value = getattr(settings, "WORKQUEUE_NOTIFY", True)
    if not isinstance(value, bool):
        raise ImproperlyConfigured(f"WORKQUEUE_NOTIFY must be True or False, not {value!r}")


def _middleware() -> Iterator[CheckMessage]:
    try:
        entries = conf.middleware()
    except ImproperlyConfigured:
        return
    for entry in entries:
        try:
            conf.middleware_factory(entry)
        except ImproperlyConfigured as error:
            yield Error(f"WORKQUEUE_MIDDLEWARE: {error}.", id="workqueue.E004")


def _autodiscover() -> Iterator[CheckMessage]:
    """Whether a name that the project chose is any module's; of a dotted one the first part: nothing is imported."""
    try:
        module = conf.autodiscover()
    except ImproperlyConfigured:
        return
    if not module or module == conf.DEFAULTS["WORKQUEUE_AUTODISCOVER"]:
        return
    first = module.partition(".")[0]
    if not any(module_has_submodule(app.module, first) for app in apps.get_app_configs()):
        yield checks.Warning(
            f"WORKQUEUE_AUTODISCOVER is {module!r}, but no installed app has such a module: no handlers are found.",
            hint="It is the name of a module in each app that has handlers, or None where the project imports them.",
            id="workqueue.W004",
        )


def _aliases() -> Iterator[CheckMessage]:
    named = {"WORKQUEUE_DATABASE": conf.database(), "WORKQUEUE_LISTEN_DATABASE": conf.listen_database()}
    for setting, alias in named.items():
        if alias is None:
            continue
        if alias not in connections.settings:
            known = ", ".join(sorted(connections.settings))
            what = f"{setting} names {alias!r}, which is not in DATABASES."
            yield Error(what, hint=f"Known: {known}.", id="workqueue.E002")
            continue
        try:
            database.require_postgresql(connections[alias])
        except UnsupportedDatabase as error:
            yield Error(str(error), hint=f"{setting} is {alias!r}.", id="workqueue.E003")


def _task_backends() -> Iterator[CheckMessage]:
    """Whether the backends of ours are there. How they are set up they check themselves."""
    named = {alias: given.get("BACKEND", "") for alias, given in (getattr(settings, "TASKS", None) or {}).items()}
    ours = {alias: path for alias, path in named.items() if path.startswith(f"{__package__}.")}
    for alias, path in ours.items():
        try:
            import_string(path)
        except ImportError as error:
            yield Error(f"TASKS[{alias!r}]: {error}.", id="workqueue.E005")
            return
    if ours and django.VERSION < (6, 0) and not apps.is_installed("django_tasks"):
        yield checks.Warning(
            "TASKS is set, but the backport of Django's tasks is not installed as an app: nobody checks the setting.",
            hint="Add 'django_tasks' to INSTALLED_APPS.",
            id="workqueue.W003",
        )


def _drivers() -> Iterator[CheckMessage]:
    if find_spec("psycopg2") is not None:
        yield Info(
            "psycopg2 is installed, but Django uses psycopg 3, which django_workqueue depends on.",
            hint="Nothing to do if the project runs well on psycopg 3; see Django's notes on the PostgreSQL drivers.",
            id="workqueue.I001",
        )


def _threads() -> Iterator[CheckMessage]:
    if not threads_available():
        yield checks.Warning(
            "This uWSGI runs without threads, so enqueues cannot share their commits: each is a statement of its own.",
            hint="Set enable-threads = true.",
            id="workqueue.W002",
        )
