"""Fixtures for the keyed queue: queues of a test's own, and their rows as another connection sees them.

Every test here has its own queue, so nothing needs to be flushed between them: they run outside any transaction, as a
worker does, and their queue's rows are deleted afterwards. Tests that are about Django's test cases use those.
"""

import itertools
from collections.abc import Callable, Iterator
from typing import Any

import psycopg
import pytest
from django.db import connections
from pytest_django.plugin import DjangoDbBlocker

from django_workqueue import Queue, floors
from django_workqueue.database import Connection
from tests import conftest as house
from tests.conftest import Connect
from tests.keyed.table import Table

MakeQueue = Callable[..., Queue[Any]]

_numbers = itertools.count(1)


@pytest.fixture
def db(django_db_setup: None, django_db_blocker: DjangoDbBlocker) -> Iterator[None]:
    """The test databases, without a transaction around the test and without a flush after it."""
    with django_db_blocker.unblock():
        yield
        connections.close_all()


@pytest.fixture(autouse=True)
def looking_from_the_beginning_is_cheap(monkeypatch: pytest.MonkeyPatch) -> None:
    """A busy machine must not make a queue of three rows look dear; test_floors.py is about what is."""
    monkeypatch.setattr(floors, "CHEAP", 10_000_000)


@pytest.fixture
def name(request: pytest.FixtureRequest) -> str:
    """A queue name that no other test has."""
    return f"{request.node.originalname[:90]} {next(_numbers)}"


@pytest.fixture
def make_queue(db: None, name: str) -> Iterator[MakeQueue]:
    """`make_queue(**options)`: a `Queue` of the test's own name, or of `name=`. Its rows are deleted afterwards."""
    made: list[Queue[Any]] = []

    def make(*, name: str = name, **options: Any) -> Queue[Any]:
        made.append(Queue(name, **options))
        return made[-1]

    yield make
    places = {(queue.using, queue.name) for queue in made}
    for queue in made:
        queue.close(timeout=10)
    for alias, each in places:
        with psycopg.connect(house.database_url(alias), autocommit=True) as connection:
            Table(connection, each).clear()


@pytest.fixture
def connect(make_queue: MakeQueue, connect: Connect) -> Connect:
    """The house's, closed before the rows are deleted: a failed test leaves its transactions open."""
    return connect


@pytest.fixture
def own(db: None) -> Iterator[Connection]:
    """A connection such as a worker claims on. (That of the group commit is its thread's, which goes on using it.)"""
    connection = Connection("default", application="test")
    yield connection
    connection.close()


@pytest.fixture
def queue(make_queue: MakeQueue) -> Queue[str]:
    """A queue of `str` keys with the default settings."""
    return make_queue()


@pytest.fixture
def table(connect: Connect, name: str) -> Table:
    """The test's queue, as another connection sees it."""
    return Table(connect(), name)
