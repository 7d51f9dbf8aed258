"""Fixtures for the worker: queues of a test's own, a worker on a thread, worker processes.

As for the keyed queue, each test has queues of its own and runs outside any transaction; nothing is flushed.
"""

import itertools
import os
import signal
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from django.db import connection, connections
from pytest_django.plugin import DjangoDbBlocker

from django_workqueue import Queue
from django_workqueue.database import Connection
from django_workqueue.models import WorkItem
from django_workqueue.worker import Worker
from tests import conftest as house
from tests.interleave import wait_until

MakeQueue = Callable[..., Queue[str]]
Rows = Callable[[Queue[Any]], dict[str, WorkItem]]

_numbers = itertools.count(1)


@pytest.fixture
def db(django_db_setup: None, django_db_blocker: DjangoDbBlocker) -> Iterator[None]:
    """The test databases, without a transaction around the test and without a flush after it."""
    with django_db_blocker.unblock():
        yield
        connections.close_all()


@pytest.fixture
def make_queue(db: None) -> Iterator[MakeQueue]:
    """`make_queue(**options)`: a keyed queue that nobody else uses."""
    made: list[Queue[str]] = []

    def make(name: str | None = None, **options: Any) -> Queue[str]:
        made.append(Queue[str](name or f"worker-{os.getpid()}-{next(_numbers)}", **options))
        return made[-1]

    yield make
    for queue in made:
        WorkItem.objects.filter(queue=queue.name).delete()


@pytest.fixture
def queue(make_queue: MakeQueue) -> Queue[str]:
    """A queue of the test's own."""
    return make_queue()


@pytest.fixture
def rows() -> Rows:
    """`rows(queue)`: its rows by key."""
    return lambda queue: {row.key: row for row in WorkItem.objects.filter(queue=queue.name)}


@pytest.fixture
def sent(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """How often each statement was sent on connections of our own."""
    statements = Counter[str]()

    def counting(send: Callable[..., Any]) -> Callable[..., Any]:
        def count(connection: Connection, statement: str, *args: Any, **options: Any) -> Any:
            statements[statement] += 1
            return send(connection, statement, *args, **options)

        return count

    for name in ("execute", "run"):
        monkeypatch.setattr(Connection, name, counting(getattr(Connection, name)))
    return statements


class Running:
    """A worker on a thread of its own."""

    def __init__(self, *queues: Queue[Any], **options: Any) -> None:
        self.worker = Worker(queues, **{"poll": 0.2, "shutdown_timeout": 5, **options})
        self.counts: Any = None
        self.error: BaseException | None = None
        self.thread = threading.Thread(target=self._run, name="the test's worker", daemon=True)
        self.thread.start()

    def stop(self, timeout: float | None = None) -> Any:
        """Stop it; its counts."""
        assert self.worker.stop(timeout)
        self.thread.join(5)
        assert not self.thread.is_alive()
        if self.error is not None:
            raise self.error
        return self.counts

    def is_idle(self) -> bool:
        """Whether it has looked, found nothing, and waits to be woken."""
        shift: Any = self.worker._shift
        looks = [look for claimer in shift.crew._claimers for look in claimer.looks] if shift else []
        listens = all(look.wakeup._has_listened for look in looks)
        return bool(looks) and listens and all(not look.lane.hungry and not look.woken for look in looks)

    def _run(self) -> None:
        try:
            self.counts = self.worker.run()
        except BaseException as error:
            self.error = error


@pytest.fixture
def working(db: None) -> Iterator[Callable[..., Running]]:
    """`working(*queues, **options)`: a worker that works them on a thread, stopped at the end of the test."""
    running: list[Running] = []

    def start(*queues: Queue[Any], **options: Any) -> Running:
        running.append(Running(*queues, **options))
        return running[-1]

    yield start
    for each in running:
        each.worker.stop(1)
        each.thread.join(10)


class Shop:
    """Worker processes with the handlers of `tests.worker.shop`, and what these have noted."""

    def __init__(self, log: Path) -> None:
        self.log = log
        self.log.touch()
        self.started: list[subprocess.Popen[str]] = []

    def start(
        self, *arguments: str, lease: float = 60, redirect: str = "", group: bool = False, **env: str
    ) -> subprocess.Popen[str]:
        """`workqueue_work` with these arguments; `redirect` as in a shell; `group`: in a process group of its own."""
        settings = {
            "DJANGO_SETTINGS_MODULE": "tests.worker.settings",
            "SHOP_LOG": str(self.log),
            "SHOP_LEASE": str(lease),
            "PYTHONPATH": str(house.PROJECT),
        }
        command = [str(house.PROJECT / "testproject" / "manage.py"), "workqueue_work"]
        process = subprocess.Popen(
            ["sh", "-c", f'exec "$@" {redirect}', "sh", sys.executable, *command, *arguments],
            env=os.environ | house.environment() | settings | env,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            process_group=0 if group else None,
        )
        self.started.append(process)
        return process

    def notes(self, event: str) -> list[tuple[str, int, int]]:
        """(key, attempt, pid) of each `event`, in order."""
        lines = [line.split() for line in self.log.read_text().splitlines()]
        return [(key, int(attempt), int(pid)) for noted, key, attempt, pid in lines if noted == event]

    def wait_for(self, event: str, key: str, *, attempt: int = 1, deadline: float = 30) -> int:
        """Wait for an event; the pid of its process."""

        def found() -> int | None:
            return next((pid for noted, tried, pid in self.notes(event) if (noted, tried) == (key, attempt)), None)

        return int(wait_until(found, deadline, message=f"{event} {key}, attempt {attempt}"))


@pytest.fixture
def shop(db: None, tmp_path: Path) -> Iterator[Shop]:
    """Worker processes, killed at the end of the test."""
    with connection.cursor() as cursor:
        cursor.execute("DELETE FROM workqueue_item WHERE queue LIKE 'shop-%%'")
    shop = Shop(tmp_path / "shop.log")
    yield shop
    for process in shop.started:
        if process.poll() is None:
            process.send_signal(signal.SIGTERM)
            process.send_signal(signal.SIGTERM)
        process.communicate(timeout=20)


@pytest.fixture
def goods(shop: Shop, make_queue: MakeQueue) -> Queue[str]:
    """The shop's sync queue, for enqueueing."""
    return make_queue("shop-sync")
