"""Fixtures for tasks: `TASKS` with our backend, the shop's tasks, workers in this process and beside it.

As for the worker, tests run outside any transaction, and nothing is flushed: each starts with no task on record.
"""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from django.db import connection, connections
from django.test import override_settings
from pytest_django.plugin import DjangoDbBlocker

from django_workqueue.worker import Counts, Worker
from tests import conftest as house
from tests.tasks.native import IMMEDIATE

BACKEND = "django_workqueue.backend.WorkqueueBackend"
TASKS: dict[str, Any] = {
    "default": {"BACKEND": BACKEND, "QUEUES": ["default", "queue_1"]},
    "immediate": {"BACKEND": IMMEDIATE, "QUEUES": []},
    "missing": {"BACKEND": "does.not.exist"},
}


def with_options(**options: Any) -> dict[str, Any]:
    """`TASKS` whose default backend has these options."""
    return {**TASKS, "default": {**TASKS["default"], "OPTIONS": options}}


with override_settings(TASKS=TASKS):  # what a task is made of is its backend's task_class
    from tests.tasks.shop import keywords, tasks, unlisted  # noqa: F401


@pytest.fixture
def db(django_db_setup: None, django_db_blocker: DjangoDbBlocker) -> Iterator[None]:
    """The test databases, without a transaction around the test and without a flush after it."""
    with django_db_blocker.unblock():
        with connection.cursor() as cursor:
            cursor.execute("DELETE FROM workqueue_job WHERE metadata ? 'task'")
        yield
        connections.close_all()


@pytest.fixture(autouse=True)
def tasks_setting() -> Iterator[None]:
    """`TASKS` as above, for each test here."""
    with override_settings(TASKS=TASKS):
        yield


@pytest.fixture
def work(db: None) -> Callable[..., Counts]:
    """`work(*queues)`: a worker of this process that works them (none: "default") until nothing is due."""
    return lambda *queues: Worker(queues or ["default"]).drain()


class Shop:
    """Worker processes with the tasks of `tests.tasks.shop`, and what these have noted."""

    def __init__(self, log: Path) -> None:
        self.log = log
        self.log.touch()
        self.started: list[subprocess.Popen[str]] = []

    def start(self, *arguments: str, tasks: dict[str, Any] | None = None, **env: str) -> subprocess.Popen[str]:
        """`workqueue_work` with these arguments, under these `TASKS`."""
        settings = {
            "DJANGO_SETTINGS_MODULE": "tests.tasks.settings",
            "SHOP_LOG": str(self.log),
            "SHOP_TASKS": json.dumps({"default": TASKS["default"]} if tasks is None else tasks),
            "PYTHONPATH": str(house.PROJECT),
        }
        process = subprocess.Popen(
            [sys.executable, str(house.PROJECT / "testproject" / "manage.py"), "workqueue_work", *arguments],
            env=os.environ | house.environment() | settings | env,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        self.started.append(process)
        return process

    def drain(self, *arguments: str, tasks: dict[str, Any] | None = None, code: int = 0, **env: str) -> str:
        """Let a worker process work until nothing is due; what it said."""
        process = self.start("--drain", *arguments, tasks=tasks, **env)
        output, _ = process.communicate(timeout=60)
        assert process.returncode == code, output
        return output

    @property
    def notes(self) -> list[list[str]]:
        """What was noted, word by word."""
        return [line.split() for line in self.log.read_text().splitlines()]


@pytest.fixture
def shop(db: None, tmp_path: Path) -> Iterator[Shop]:
    """Worker processes, ended with the test."""
    shop = Shop(tmp_path / "shop.log")
    yield shop
    for process in shop.started:
        if process.poll() is None:
            process.send_signal(signal.SIGTERM)
            process.send_signal(signal.SIGTERM)
        process.communicate(timeout=20)
