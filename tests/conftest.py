"""Fixtures for every test: connections beside Django's, waiting with a deadline, processes on the test database.

The server is the business of `tests/settings.py`. Under pytest-xdist each process has databases of its own on the one
server: what a test asks the server about (`pg_stat_activity`, `pg_locks`) it restricts to `current_database()`, and a
test that stops a server starts its own (`testproject.postgres.throwaway`).
"""

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import psycopg
import pytest
from django.apps import apps
from django.db import connections

from django_workqueue import engine
from tests import interleave

PROJECT = Path(__file__).resolve().parent.parent

# A shell starts what it puts in the background with SIGINT ignored, and so would be what tests interrupt.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

Connect = Callable[..., psycopg.Connection[Any]]
Manage = Callable[..., subprocess.Popen[str]]


@pytest.fixture(autouse=True)
def _nothing_left(request: pytest.FixtureRequest) -> None:
    """A test with the mark `django_db` begins with empty tables, whatever a test or a thread committed before it.

    For the queue's folders, whose `db` neither wraps a test in a transaction nor flushes, each test has its own queue.
    Queues on an alias that another test had to itself are forgotten, should anything hold them still.
    """
    for alias, name in list(engine._sources):
        if alias is not None and alias not in connections.settings:
            engine._sources.pop((alias, name), None)
    marker = request.node.get_closest_marker("django_db")
    if marker is None:
        return
    request.getfixturevalue("db")
    for alias in marker.kwargs.get("databases") or ["default"]:
        with connections[alias].cursor() as cursor:
            for model in sorted(apps.get_app_config("workqueue").get_models(), key=lambda model: model._meta.db_table):
                cursor.execute(f"DELETE FROM {model._meta.db_table}")


@pytest.fixture
def connect(db: None) -> Iterator[Connect]:
    """`connect(alias="default", **parameters)`: a psycopg connection of one's own to the test database, in autocommit.

    Closed at the end of the test. For more than what the test itself sees, the test is a transactional one.
    """
    opened: list[psycopg.Connection[Any]] = []

    def open_one(alias: str = "default", *, autocommit: bool = True, **parameters: Any) -> psycopg.Connection[Any]:
        opened.append(psycopg.connect(database_url(alias), autocommit=autocommit, **parameters))
        return opened[-1]

    yield open_one
    for connection in opened:
        connection.close()


@pytest.fixture
def second(connect: Connect) -> psycopg.Connection[Any]:
    """One connection beside Django's, for the other side of an interleaving."""
    return connect()


@pytest.fixture
def wait_until() -> Callable[..., Any]:
    """`wait_until(predicate, deadline=10)`: the predicate's first true value, or a failed test."""
    return interleave.wait_until


@pytest.fixture
def aside() -> Callable[..., Any]:
    """`aside(work, *args)`: run it in a thread of its own; a Future."""
    return interleave.aside


@pytest.fixture
def waiting(connect: Connect) -> Callable[[Callable[[], Any]], Future[Any]]:
    """`waiting(work)`: run it in a thread of its own until its Django connection waits for a lock; a Future."""
    observer = connect()

    def start(work: Callable[[], Any]) -> Future[Any]:
        pids: list[int] = []

        def run() -> Any:
            with connections["default"].cursor() as cursor:
                cursor.execute("SELECT pg_backend_pid()")
                pids.append(cursor.fetchone()[0])
            return work()

        future = interleave.aside(run)
        interleave.wait_until(lambda: future.done() or (pids and interleave.waits_for_lock(observer, pids[0])))
        assert not future.done(), f"it did not wait: {future.exception() or future.result()}"
        return future

    return start


@pytest.fixture
def manage(transactional_db: None) -> Iterator[Manage]:
    """`manage("workqueue_work", "--drain")`: a management command as a process of its own, on the test database.

    A `Popen` whose output is text in pipes, stderr in stdout's; killed at the end of the test if it still runs. More
    environment through `env={...}`.
    """
    started: list[subprocess.Popen[str]] = []

    def start(*arguments: str, env: dict[str, str] | None = None) -> subprocess.Popen[str]:
        process = subprocess.Popen(
            [sys.executable, str(PROJECT / "testproject" / "manage.py"), *arguments],
            env=os.environ | environment() | (env or {}),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        started.append(process)
        return process

    yield start
    for process in started:
        if process.poll() is None:
            process.kill()
        process.communicate()


def database_url(alias: str = "default") -> str:
    """The address of the test database of an alias, as libpq reads it."""
    connection = connections[alias]
    parameters = connection.get_connection_params()
    known = ("host", "port", "user", "password", "dbname", "sslmode")
    return psycopg.conninfo.make_conninfo(**{name: parameters[name] for name in known if parameters.get(name)})


def environment() -> dict[str, str]:
    """What makes `manage.py` in another process use the test databases."""
    from urllib.parse import quote

    settings = connections["default"].settings_dict
    user = quote(settings["USER"], safe="")
    password = ":" + quote(settings["PASSWORD"], safe="") if settings["PASSWORD"] else ""
    host = quote(settings["HOST"], safe="")
    port = f":{settings['PORT']}" if settings["PORT"] else ""
    return {
        "DJANGO_SETTINGS_MODULE": "tests.settings",
        "DATABASE_URL": f"postgresql://{user}{password}@{host}{port}/{quote(settings['NAME'], safe='')}",
        "WORKQUEUE_TEST_OTHER": connections["other"].settings_dict["NAME"],
    }
