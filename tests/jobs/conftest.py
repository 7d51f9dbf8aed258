"""Fixtures for the job queue. As for the keyed one, each test has a queue of its own, and no transaction around it.

What lies in `tests.keyed` and is not about keys serves here too.
"""

from collections.abc import Callable, Iterator

import psycopg
import pytest

from django_workqueue import JobQueue
from tests import conftest as house
from tests.conftest import Connect
from tests.jobs.table import JobTable
from tests.keyed.conftest import db, looking_from_the_beginning_is_cheap, name, own

__all__ = ["connect", "db", "looking_from_the_beginning_is_cheap", "make_queue", "name", "own", "queue", "table"]

MakeQueue = Callable[..., JobQueue]


@pytest.fixture
def make_queue(db: None, name: str) -> Iterator[MakeQueue]:
    """`make_queue(**options)`: a `JobQueue` of the test's own name, or of `name=`. Its rows are deleted afterwards."""
    made: list[JobQueue] = []

    def make(*, name: str = name, **options: object) -> JobQueue:
        made.append(JobQueue(name, **options))  # type: ignore[arg-type]
        return made[-1]

    yield make
    places = {(queue.using, queue.name) for queue in made}
    for queue in made:
        queue.close(timeout=10)
    for alias, each in places:
        with psycopg.connect(house.database_url(alias), autocommit=True) as connection:
            JobTable(connection, each).clear()


@pytest.fixture
def connect(make_queue: MakeQueue, connect: Connect) -> Connect:
    """The house's, closed before the rows are deleted: a failed test leaves its transactions open."""
    return connect


@pytest.fixture
def queue(make_queue: MakeQueue) -> JobQueue:
    """A job queue with the default settings: five attempts."""
    return make_queue()


@pytest.fixture
def table(connect: Connect, name: str) -> JobTable:
    """The test's queue, as another connection sees it."""
    return JobTable(connect(), name)
