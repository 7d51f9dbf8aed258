"""What is under way while a queue moves to a partition of its own finds its rows where they have gone."""

import threading
from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import Any

import psycopg
import pytest
from django.db import connection, connections

from django_workqueue import JobQueue, Queue
from django_workqueue.database import Connection
from django_workqueue.partitions import create, drop, partitions
from tests.interleave import aside, blocked_pids, wait_until

pytestmark = pytest.mark.django_db(transaction=True)

LEASE = timedelta(minutes=1)
VERBS: dict[str, tuple[str, Callable[[Any, Any], object]]] = {
    "complete an item": ("items", lambda queue, item: queue.complete(item)),
    "release an item": ("items", lambda queue, item: queue.release(item)),
    "extend an item": ("items", lambda queue, item: queue.extend(item, lease=LEASE)),
    "remove an item": ("items", lambda queue, item: queue.remove(item.key)),
    "look whether an item is held": (
        "items",
        lambda queue, item: on_a_connection_of_ours(queue.source.held_on, item._fence.token, [item.key]),
    ),
    "complete a job": ("jobs", lambda queue, job: queue.complete(job)),
    "fail a job": ("jobs", lambda queue, job: queue.fail(job, ValueError())),
    "extend a job": ("jobs", lambda queue, job: queue.extend(job, lease=LEASE)),
    "cancel a job": ("jobs", lambda queue, job: queue.cancel(job.id)),
    "look whether a job is held": (
        "jobs",
        lambda queue, job: on_a_connection_of_ours(queue.source.held_on, job._fence.token, [job.id]),
    ),
}


def on_a_connection_of_ours(call: Callable[..., Any], *arguments: Any) -> Any:
    own = Connection("default", application="test")
    try:
        return call(own, *arguments)
    finally:
        own.close()


@pytest.fixture(autouse=True)
def _no_partitions_left() -> Iterator[None]:
    yield
    for partition in partitions():
        if partition.queue is not None:
            drop(partition.queue, partition.face, purge=True)


@pytest.fixture
def moving() -> Iterator[Callable[[str], Callable[[], None]]]:
    """`moving(face)`: the queue "moving" is on its way, all locks taken; the call that is returned ends it."""
    go_on = threading.Event()

    def start(face: str) -> Callable[[], None]:
        there = threading.Event()

        def hold_up(execute: Any, statement: Any, *rest: Any) -> Any:
            if "ATTACH PARTITION" in str(statement):
                there.set()
                go_on.wait(20)
            return execute(statement, *rest)

        def move() -> None:
            with connection.execute_wrapper(hold_up):
                create("moving", face)

        moved = aside(move)
        assert there.wait(10)

        def end() -> None:
            go_on.set()
            moved.result(20)

        return end

    yield start
    go_on.set()


@pytest.mark.parametrize("verb", VERBS)
def test_a_statement_that_waits_for_the_move_finds_its_rows(
    moving: Callable[[str], Callable[[], None]], second: psycopg.Connection[Any], verb: str
) -> None:
    face, call = VERBS[verb]
    queue: Any
    if face == "items":
        queue = Queue("moving")
        queue.enqueue("a")
    else:
        queue = JobQueue("moving")
        queue.enqueue("kind")
    (work,) = queue.claim()
    connections.close_all()
    end = moving(face)
    calling = aside(call, queue, work)
    wait_until(lambda: blocked_pids(second))
    end()
    assert calling.result(20)


def test_a_statement_that_is_long_prepared_finds_them_too(
    moving: Callable[[str], Callable[[], None]], second: psycopg.Connection[Any]
) -> None:
    queue = Queue("moving")
    queue.enqueue("a")
    (item,) = queue.claim()
    connections.close_all()
    own = Connection("default", application="test")
    for _ in range(15):
        assert queue.source.held_on(own, item._fence.token, ["a"])
    end = moving("items")
    looking = aside(queue.source.held_on, own, item._fence.token, ["a"])
    wait_until(lambda: blocked_pids(second))
    end()
    assert looking.result(20)
    own.close()
