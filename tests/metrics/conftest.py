"""Fixtures for counters, doctor and exports: those of the worker's tests, and the minutes as they are in the table."""

import itertools
import os
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from django_workqueue import JobQueue, Queue, lanes, metrics
from django_workqueue.database import Connection
from django_workqueue.models import Minute, WorkJob
from django_workqueue.sql.minutes import COUNTERS
from tests.worker.conftest import db, make_queue, queue, working  # noqa: F401 - fixtures

_numbers = itertools.count(1)

Counted = Callable[..., Counter[str]]


@pytest.fixture
def make_jobs(db: None) -> Iterator[Callable[..., JobQueue]]:  # noqa: F811
    """`make_jobs(**options)`: a job queue that nobody else uses."""
    made: list[JobQueue] = []

    def make(**options: Any) -> JobQueue:
        made.append(JobQueue(f"metrics-jobs-{os.getpid()}-{next(_numbers)}", **options))
        return made[-1]

    yield make
    for jobs in made:
        WorkJob.objects.filter(queue=jobs.name).delete()


@pytest.fixture
def own() -> Iterator[Connection]:
    """A connection of ours, as workers have it."""
    connection = Connection("default", application="the test")
    yield connection
    connection.close()


@pytest.fixture
def counted(own: Connection) -> Counted:
    """`counted(queue, kind=None)`: what the table has of a queue, once this process has written what it counted."""

    def count(of: Queue[Any] | JobQueue, kind: str | None = None) -> Counter[str]:
        lanes.commits("default").batcher.flush(5)
        metrics.ledger("default").write(own)
        total: Counter[str] = Counter()
        for minute in Minute.objects.filter(queue=of.name, **({} if kind is None else {"kind": kind})):
            for name in COUNTERS:
                total[name] += getattr(minute, name)
            total["waits"] += sum(minute.wait_histogram)
            total["runs"] += sum(minute.run_histogram)
        return +total

    return count
