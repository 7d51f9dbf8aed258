"""`timeout`: a handler that runs too long is ended, and what if it will not be."""

import asyncio
import threading
import time
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
from django.db import ProgrammingError, connection

from django_workqueue import HandlerTimeout, Item, PermanentError, Queue, Retry
from django_workqueue.worker import Counts, Worker, WornOut, timeouts
from tests.interleave import wait_until
from tests.worker.conftest import Rows, Running

Working = Callable[..., Running]

HOUR = timedelta(hours=1)
QUICK = timedelta(seconds=0.2)


def later(attempts: int) -> timedelta:
    return HOUR


def test_an_async_handler_is_cancelled(queue: Queue[str], rows: Rows) -> None:
    cancelled: list[str] = []

    @queue.handler(timeout=QUICK, backoff=later)
    async def slow(item: Item[str]) -> None:
        try:
            await asyncio.sleep(20)
        except asyncio.CancelledError:
            cancelled.append(item.key)
            raise

    queue.enqueue("a")
    assert Worker([queue]).drain() == Counts(failed=1, retried=1)
    assert cancelled == ["a"]
    assert (rows(queue)["a"].last_error or "").startswith("HandlerTimeout: ")


def test_a_sync_handler_gets_handler_timeout_raised_in_its_thread(queue: Queue[str], rows: Rows) -> None:
    raised: list[type[BaseException]] = []

    @queue.handler(timeout=QUICK, backoff=later)
    def slow(item: Item[str]) -> None:
        try:
            while True:
                time.sleep(0.01)
        except BaseException as error:
            raised.append(type(error))
            raise

    queue.enqueue("a")
    assert Worker([queue]).drain() == Counts(failed=1, retried=1)
    assert raised == [HandlerTimeout]
    assert "0.2 s" in (rows(queue)["a"].last_error or "")


@pytest.mark.parametrize("size", [None, 5])
def test_a_timeout_is_told_as_one_whatever_the_code_it_struck_made_of_it(
    queue: Queue[str], rows: Rows, caplog: pytest.LogCaptureFixture, size: int | None
) -> None:
    def slow(work: Any) -> None:
        try:
            while True:
                time.sleep(0.01)
        finally:
            raise ProgrammingError("can't change 'autocommit' now")

    decorate = queue.handler(timeout=QUICK, backoff=later)
    if size:
        decorate = queue.batch_handler(size=size, timeout=QUICK, backoff=later)
    decorate(slow)
    queue.enqueue("a")
    assert Worker([queue]).drain() == Counts(failed=1, retried=1)
    assert (rows(queue)["a"].last_error or "").startswith("HandlerTimeout: ")
    assert "can't change 'autocommit' now" in caplog.text


def test_a_handler_may_answer_its_timeout(queue: Queue[str], rows: Rows) -> None:
    answers: dict[str, BaseException] = {"retry": Retry(HOUR), "give up": PermanentError("too slow")}

    @queue.handler(timeout=QUICK, backoff=later)
    def slow(item: Item[str]) -> None:
        try:
            while True:
                time.sleep(0.01)
        except HandlerTimeout as error:
            raise answers[item.key] from error

    queue.enqueue(*answers)
    assert Worker([queue]).drain() == Counts(failed=1)
    found = rows(queue)
    assert (found["retry"].attempts, found["retry"].last_error) == (0, None)
    assert found["give up"].last_error == "PermanentError: too slow"


def test_the_timeout_never_hits_the_next_item_nor_the_worker(
    queue: Queue[str], caplog: pytest.LogCaptureFixture
) -> None:
    """Handlers that end at just about their timeout, many times: each either completes or fails with it."""
    ended: list[str] = []

    @queue.handler(timeout=timedelta(seconds=0.01), backoff=later, concurrency=4)
    def about_as_long(item: Item[str]) -> None:
        until = time.monotonic() + 0.0095 + (int(item.key) % 20) * 0.00005
        while time.monotonic() < until:
            pass
        ended.append(item.key)

    queue.enqueue_many(f"{number:03d}" for number in range(300))
    counts = Worker([queue], concurrency=4).drain()
    assert counts.completed + counts.failed == 300
    assert queue.stats().leased == 0
    assert not [record for record in caplog.records if "raised" in record.message]


def test_the_threads_connections_are_closed_afterwards(queue: Queue[str]) -> None:
    pids: list[int] = []

    @queue.handler(timeout=timedelta(seconds=0.3), backoff=later, concurrency=1)
    def query(item: Item[str]) -> None:
        with connection.cursor() as cursor:
            cursor.execute("SELECT pg_backend_pid()")
            pids.append(cursor.fetchone()[0])
            while item.key == "a":
                cursor.execute("SELECT pg_sleep(0.01)")

    queue.enqueue("a", priority=1)
    queue.enqueue("b")
    assert Worker([queue], concurrency=1).drain() == Counts(completed=1, failed=1, retried=1)
    assert len(set(pids)) == 2


def stubborn(until: threading.Event, started: list[str]) -> Callable[[Item[str]], None]:
    def swallow(item: Item[str]) -> None:
        started.append(item.key)
        while item.key.startswith("stubborn") and not until.is_set():
            try:
                until.wait(0.02)
            except BaseException:
                continue

    return swallow


def test_one_that_swallows_even_that_is_reported_and_its_slot_replaced(
    queue: Queue[str], working: Working, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(timeouts, "GRACE", 0.2)
    until, started = threading.Event(), list[str]()
    queue.handler(timeout=QUICK)(stubborn(until, started))
    queue.enqueue("stubborn")
    running = working(queue, concurrency=3)
    wait_until(lambda: "ignores its timeout" in caplog.text)
    shift: Any = running.worker._shift
    assert shift.crew.pool.leaked == 1
    queue.enqueue("b", "c", "d")
    wait_until(lambda: queue.stats().completed == 3)
    until.set()
    wait_until(lambda: shift.crew.pool.leaked == 0)


def test_when_half_the_slots_have_leaked_a_worker_in_process_stops(
    queue: Queue[str], working: Working, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(timeouts, "GRACE", 0.1)
    until, started = threading.Event(), list[str]()
    queue.handler(timeout=QUICK)(stubborn(until, started))
    queue.enqueue("stubborn-1", "stubborn-2")
    running = working(queue, concurrency=4, shutdown_timeout=0.1)
    running.thread.join(10)
    assert isinstance(running.error, WornOut)
    until.set()


def test_an_async_handler_that_swallows_its_cancellation_is_reported(
    queue: Queue[str], working: Working, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("django_workqueue.worker.loop.GRACE", 0.1)
    until = threading.Event()

    @queue.handler(timeout=QUICK)
    async def swallow(item: Item[str]) -> None:
        while not until.is_set():
            try:
                await asyncio.sleep(0.02)
            except asyncio.CancelledError:
                continue

    queue.enqueue("a")
    working(queue)
    wait_until(lambda: "ignores its timeout" in caplog.text)
    until.set()
