"""Stopping a worker of this process: what was not started goes back, what runs may end, and nothing outlasts it."""

import asyncio
import threading
import time
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import psycopg
import pytest

from django_workqueue import Item, Queue
from django_workqueue.worker import Counts, Worker
from tests.interleave import wait_until
from tests.worker.conftest import MakeQueue, Rows, Running

Working = Callable[..., Running]

OURS = tuple(f"workqueue-{part}" for part in ("renew", "watchdog", "handler", "loop", "settle", "claim", "maintain"))


async def no_sleep(item: Item[str]) -> None:
    """A handler."""


def test_what_was_not_started_is_given_back_with_no_attempt_counted(
    queue: Queue[str], working: Working, rows: Rows
) -> None:
    gate, started = threading.Event(), list[str]()

    @queue.batch_handler(size=5, concurrency=1)
    def work(items: list[Item[str]]) -> None:
        started.extend(item.key for item in items)
        gate.wait(20)

    queue.enqueue_many(str(number) for number in range(10))
    running = working(queue)
    wait_until(lambda: started)
    running.worker.stop(0)
    gate.set()
    found = rows(queue)
    assert {row.attempts for row in found.values()} == {0}
    assert queue.stats().ready == 10
    assert {row.last_error for row in found.values()} == {None}


def test_others_hear_of_what_is_given_back(queue: Queue[str], working: Working, connect: Any) -> None:
    gate, started = threading.Event(), threading.Event()

    @queue.batch_handler(size=5, concurrency=1)
    def work(items: list[Item[str]]) -> None:
        started.set()
        gate.wait(20)

    queue.enqueue_many(str(number) for number in range(10))
    running = working(queue)
    assert started.wait(10)
    listener = connect()
    listener.execute("LISTEN workqueue")
    running.worker.stop(0)
    note, *_ = listener.notifies(timeout=10, stop_after=1)
    assert note.payload == queue.name
    gate.set()


def test_running_handlers_may_finish_within_the_timeout(queue: Queue[str], working: Working) -> None:
    started = threading.Event()

    @queue.handler
    def work(item: Item[str]) -> None:
        started.set()
        time.sleep(0.5)

    queue.enqueue("a")
    running = working(queue)
    assert started.wait(10)
    assert running.stop(10) == Counts(completed=1)


def test_running_handlers_may_finish_also_while_a_stranger_holds_the_row_of_what_is_done(
    queue: Queue[str], working: Working, second: psycopg.Connection[Any]
) -> None:
    gates = {"quick": threading.Event(), "slow": threading.Event()}
    queue.handler(lambda item: gates[item.key].wait(30))
    queue.enqueue("quick", "slow")
    running = working(queue)
    wait_until(lambda: queue.stats().leased == 2)
    crew: Any = running.worker._shift.crew  # type: ignore[union-attr]
    tries, seen = crew._settlers[0]._connection, list[int]()
    execute = tries.execute
    tries.execute = lambda *args, **kwargs: (seen.append(crew.in_flight()), execute(*args, **kwargs))[1]
    with second.transaction():
        second.execute("SELECT 1 FROM workqueue_item WHERE queue = %s AND key = 'quick' FOR UPDATE", [queue.name])
        gates["quick"].set()
        wait_until(lambda: len(seen) >= 6)
        assert set(seen) == {1}
        stopping = threading.Thread(target=running.worker.stop, args=(20,))
        stopping.start()
        wait_until(lambda: running.worker._shift is None or crew._claimers[0]._stopping)
    gates["slow"].set()
    stopping.join(20)
    assert running.stop() == Counts(completed=2)


def test_leases_are_renewed_to_the_end_of_a_stop(queue: Queue[str], working: Working) -> None:
    started = threading.Event()

    @queue.handler(lease=timedelta(seconds=0.6))
    def work(item: Item[str]) -> None:
        started.set()
        time.sleep(2)

    queue.enqueue("a")
    running = working(queue)
    assert started.wait(10)
    stopping = threading.Thread(target=running.worker.stop, args=(10,))
    stopping.start()
    deadline = time.monotonic() + 1.7
    while time.monotonic() < deadline:
        assert queue.claim(1) == []
        time.sleep(0.05)
    stopping.join(10)
    assert queue.stats().completed == 1


def test_an_async_handler_over_time_is_cancelled_and_its_work_given_back(
    queue: Queue[str], working: Working, rows: Rows
) -> None:
    events: list[str] = []

    @queue.handler
    async def work(item: Item[str]) -> None:
        events.append("started")
        try:
            await asyncio.sleep(20)
        except asyncio.CancelledError:
            events.append("cancelled")
            raise

    queue.enqueue("a")
    running = working(queue)
    wait_until(lambda: events)
    assert running.stop(0.1) == Counts()
    assert events == ["started", "cancelled"]
    assert (rows(queue)["a"].attempts, rows(queue)["a"].last_error) == (0, None)
    assert queue.stats().ready == 1


def test_a_handler_that_ignores_everything_does_not_hold_up_the_stop(queue: Queue[str], working: Working) -> None:
    gate, started = threading.Event(), threading.Event()

    @queue.handler
    def ignore(item: Item[str]) -> None:
        started.set()
        gate.wait(30)

    queue.enqueue("a")
    running = working(queue)
    assert started.wait(10)
    begun = time.monotonic()
    running.stop(0.3)
    assert time.monotonic() - begun < 4
    assert queue.stats().ready == 1
    gate.set()


def test_a_claim_under_way_is_given_back_too(queue: Queue[str], working: Working, rows: Rows, monkeypatch: Any) -> None:
    claiming, go_on = threading.Event(), threading.Event()
    claim = queue.source.claim_on

    def slow_claim(*args: Any) -> Any:
        answer = claim(*args)
        if answer.works:
            claiming.set()
            go_on.wait(10)
        return answer

    monkeypatch.setattr(queue.source, "claim_on", slow_claim)
    started: list[str] = []
    queue.handler(lambda item: started.append(item.key))
    queue.enqueue("a")
    running = working(queue)
    assert claiming.wait(10)
    stopping = threading.Thread(target=running.worker.stop, args=(10,))
    stopping.start()
    wait_until(lambda: running.worker._shift is None or running.worker._shift._asked)  # type: ignore[union-attr]
    wait_until(lambda: running.worker._shift.crew._claimers[0]._stopping)  # type: ignore[union-attr]
    go_on.set()
    stopping.join(10)
    assert started == []
    assert (queue.stats().ready, rows(queue)["a"].attempts) == (1, 0)


@pytest.mark.parametrize("part", ["renew", "watchdog", "handler-2", "loop", "settle", "claim", "maintain"])
def test_a_worker_that_cannot_start_all_its_threads_leaves_none_at_work(
    make_queue: MakeQueue, monkeypatch: pytest.MonkeyPatch, part: str
) -> None:
    sync, coroutines, start = make_queue(), make_queue(), threading.Thread.start
    sync.handler(timeout=timedelta(seconds=30))(lambda item: None)
    coroutines.handler(no_sleep)
    before = set(threading.enumerate())

    def cannot(thread: threading.Thread) -> None:
        if thread.name.startswith(f"workqueue-{part}"):
            raise RuntimeError("can't start new thread")
        start(thread)

    monkeypatch.setattr(threading.Thread, "start", cannot)
    with pytest.raises(RuntimeError, match="can't start new thread"):
        Worker([sync, coroutines]).run()
    wait_until(lambda: not [thread for thread in set(threading.enumerate()) - before if thread.name.startswith(OURS)])


def test_stop_before_run_is_honoured(queue: Queue[str]) -> None:
    queue.handler(lambda item: None)
    queue.enqueue("a")
    worker = Worker([queue])
    worker.stop()
    assert worker.run() == Counts()
    assert worker.drain() == Counts(completed=1)


def test_stop_from_a_handler_does_not_wait_for_itself(queue: Queue[str], working: Working) -> None:
    answers: list[bool] = []

    @queue.handler
    def stop(item: Item[str]) -> None:
        answers.append(running.worker.stop())

    running = working(queue)
    queue.enqueue("a")
    running.thread.join(10)
    assert answers == [False]
    assert running.counts == Counts(completed=1)


def test_stop_is_idempotent_and_a_stopped_worker_can_run_again(queue: Queue[str], working: Working) -> None:
    queue.handler(lambda item: None)
    running = working(queue)
    wait_until(running.is_idle)
    assert running.stop() == Counts()
    assert running.worker.stop()
    queue.enqueue("a")
    running.worker._stop_asked = False
    assert running.worker.drain() == Counts(completed=1)


def test_one_worker_does_not_run_twice_at_once(queue: Queue[str], working: Working) -> None:
    queue.handler(lambda item: None)
    running = working(queue)
    wait_until(running.is_idle)
    with pytest.raises(RuntimeError, match="already"):
        running.worker.drain()
