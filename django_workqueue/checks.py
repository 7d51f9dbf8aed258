"""System checks: what is wrong with the settings or the surroundings, said before the first failure says it."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterator
from importlib.util import find_spec
from typing import Any

from django.conf import settings
from django.core import checks
from django.core.checks import CheckMessage, Error, Info
from django.core.exceptions import ImproperlyConfigured
from django.db import connections

from . import conf, database
from .batcher import threads_available
from .exceptions import UnsupportedDatabase


def check_all(**_: Any) -> list[CheckMessage]:
    """Every check that needs no server."""
    return [*_unknown_settings(), *_bad_values(), *_aliases(), *_drivers(), *_threads()]


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
    )
    for read in readers:
        try:
            read()
        except ImproperlyConfigured as error:
            yield Error(str(error), id="workqueue.E001")


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
