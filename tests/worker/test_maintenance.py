"""The chores that workers do on timers, and the row that shows a worker to people."""

import json
import os
import socket
from collections.abc import Callable
from datetime import timedelta

import psycopg
import pytest

from django_workqueue import Queue
from django_workqueue.database import Connection
from django_workqueue.models import QueueRecord, WorkerRecord
from django_workqueue.sql import workers
from django_workqueue.worker import maintain
from tests.interleave import wait_until
from tests.worker.conftest import MakeQueue, Rows, Running

Working = Callable[..., Running]


@pytest.fixture
def often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(maintain, "CHORES", timedelta(seconds=0.1))
    monkeypatch.setattr(maintain, "PRESENCE", timedelta(seconds=0.1))


def test_workers_reap_what_was_retained_long_enough(
    make_queue: MakeQueue, working: Working, often: None, rows: Rows
) -> None:
    queue = make_queue(retention=timedelta(seconds=0.3))
    queue.handler(lambda item: None)
    queue.enqueue("a")
    working(queue)
    wait_until(lambda: queue.stats().completed == 1)
    wait_until(lambda: not rows(queue))


def test_workers_stall_what_lapsed_on_its_last_attempt(
    make_queue: MakeQueue, working: Working, often: None, rows: Rows
) -> None:
    queue = make_queue(max_attempts=1)
    queue.handler(lambda item: None)
    queue.enqueue("a")
    assert queue.claim(1, lease=timedelta(milliseconds=1))
    working(queue)
    wait_until(lambda: rows(queue)["a"].stalled_at)


def test_workers_say_once_as_an_error_what_stalled_since_its_last_lease_lapsed(
    make_queue: MakeQueue, working: Working, often: None, rows: Rows, caplog: pytest.LogCaptureFixture
) -> None:
    queue = make_queue(max_attempts=1)
    seen: list[str] = []
    queue.handler(lambda item: seen.append(item.key))
    queue.enqueue("a")
    assert queue.claim(1, lease=timedelta(milliseconds=1))
    running = working(queue)
    wait_until(lambda: rows(queue)["a"].stalled_at)
    queue.enqueue("b")
    wait_until(lambda: seen)
    running.stop()
    told = [record.getMessage() for record in caplog.records if record.levelname == "ERROR"]
    assert told == [f"{queue.name}: 1 item is stalled now, since the lease of its last attempt lapsed: 'a'"]


def test_two_workers_at_once_do_no_harm(make_queue: MakeQueue, working: Working, often: None) -> None:
    queue = make_queue(retention=timedelta(seconds=0.2))
    seen: list[str] = []
    queue.handler(lambda item: seen.append(item.key))
    workers = [working(queue) for _ in range(2)]
    queue.enqueue_many(str(number) for number in range(500))
    wait_until(lambda: len(seen) >= 500, 20)
    total = sum((running.stop() for running in workers[1:]), workers[0].stop())
    assert total.completed == len(seen) == 500


def test_a_worker_shows_itself_while_it_works(queue: Queue[str], working: Working, often: None) -> None:
    queue.handler(lambda item: None)
    running = working(queue, concurrency=3)

    def mine() -> WorkerRecord | None:
        return next((row for row in WorkerRecord.objects.all() if queue.name in json.dumps(row.queues)), None)

    row = wait_until(mine)
    assert (row.host, row.pid, row.concurrency) == (socket.gethostname(), os.getpid(), 3)
    seen_at = row.seen_at
    wait_until(lambda: mine().seen_at > seen_at)  # type: ignore[union-attr]
    running.stop()
    assert mine() is None


def test_the_row_of_a_worker_that_could_not_say_goodbye_is_forgotten_after_a_day(
    queue: Queue[str], working: Working, often: None, second: psycopg.Connection[object]
) -> None:
    params = {"id": "gone", "host": "h", "pid": 1, "age": 0, "queues": "[]", "concurrency": 1, "in_flight": 0}
    connection = Connection("default", application="test")
    connection.execute(workers.SEEN.text, params)
    connection.close()
    second.execute("UPDATE workqueue_worker SET seen_at = now() - interval '25 h' WHERE id = 'gone'")
    queue.handler(lambda item: None)
    working(queue)
    wait_until(lambda: not WorkerRecord.objects.filter(id="gone").exists())


def test_a_worked_queue_is_known_to_the_table_of_queues(queue: Queue[str], working: Working) -> None:
    queue.handler(lambda item: None)
    working(queue)
    wait_until(lambda: QueueRecord.objects.filter(name=queue.name).exists())
