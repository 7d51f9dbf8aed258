"""What an async handler can do to the event loop that it shares with others, and what becomes of these."""

import asyncio
import sys
from collections.abc import Awaitable, Callable
from datetime import timedelta
from typing import Any

import pytest
from django.db import connection

from django_workqueue import Item, Queue
from django_workqueue.worker import Counts, Worker, WornOut
from tests.worker.conftest import Rows, Running

Working = Callable[..., Running]

HOUR = timedelta(hours=1)


def later(attempts: int) -> timedelta:
    return HOUR


async def leave(error: BaseException) -> None:
    raise error


async def in_gather(error: BaseException) -> None:
    await asyncio.gather(leave(error))


async def in_a_group(error: BaseException) -> None:
    async with asyncio.TaskGroup() as group:
        group.create_task(leave(error))
        await asyncio.sleep(20)


@pytest.mark.parametrize("error", [SystemExit(3), KeyboardInterrupt()])
@pytest.mark.parametrize("raised", [in_gather, in_a_group])
def test_an_exit_in_a_handlers_own_task_fails_its_item_and_touches_no_other(
    queue: Queue[str],
    rows: Rows,
    caplog: pytest.LogCaptureFixture,
    error: BaseException,
    raised: Callable[[BaseException], Awaitable[None]],
) -> None:
    @queue.handler(backoff=later)
    async def work(item: Item[str]) -> None:
        await (raised(error) if item.key == "exits" else asyncio.sleep(0.1))

    queue.enqueue("exits", "a", "b", "c", "d")
    assert Worker([queue], concurrency=2).drain() == Counts(completed=4, failed=1, retried=1)
    row = rows(queue)["exits"]
    assert (row.attempts, (row.last_error or "").partition(":")[0]) == (1, type(error).__name__)
    assert caplog.text.count("beside the handlers raised") == 1


@pytest.mark.parametrize("stop", [lambda loop: loop.stop(), lambda loop: loop.call_soon(sys.exit, 3)])
def test_a_loop_that_a_handler_stops_goes_on(
    queue: Queue[str], caplog: pytest.LogCaptureFixture, stop: Callable[[asyncio.AbstractEventLoop], Any]
) -> None:
    @queue.handler
    async def work(item: Item[str]) -> None:
        if item.key == "stops":
            stop(asyncio.get_running_loop())
        await asyncio.sleep(0.01)

    queue.enqueue("stops", "a", "b", "c", "d")
    assert Worker([queue], concurrency=2).drain() == Counts(completed=5)
    assert caplog.text.count("going on") == 1


def test_a_worker_whose_loop_cannot_go_on_ends(queue: Queue[str], working: Working) -> None:
    def fail() -> None:
        raise OSError("no more events")

    @queue.handler
    async def work(item: Item[str]) -> None:
        asyncio.get_running_loop()._run_once = fail  # type: ignore[attr-defined]

    queue.enqueue("a")
    running = working(queue, shutdown_timeout=0.1)
    running.thread.join(10)
    assert isinstance(running.error, WornOut)


def cancel_all() -> None:
    for task in asyncio.all_tasks():
        task.cancel()


def test_a_handler_that_cancels_all_tasks_fails_what_has_started_and_loses_no_slot(queue: Queue[str]) -> None:
    """More slots than items, so that some are cancelled before their first step: these are run again at once."""
    ran: list[str] = []

    @queue.handler(backoff=later)
    async def work(item: Item[str]) -> None:
        ran.append(item.key)
        if len(ran) == 1:
            cancel_all()
        await asyncio.sleep(0.01)

    queue.enqueue_many(f"{number:02d}" for number in range(20))
    assert Worker([queue], concurrency=10).drain() == Counts(completed=19, failed=1, retried=1)
    assert len(ran) == 20
    assert queue.stats().leased == 0


def test_a_handler_cancelled_by_another_fails_with_that(queue: Queue[str], rows: Rows) -> None:
    begun = asyncio.Event()

    @queue.handler(backoff=later)
    async def work(item: Item[str]) -> None:
        if item.key == "victim":
            begun.set()
            await asyncio.sleep(20)
        await begun.wait()
        cancel_all()

    queue.enqueue("victim", "murderer")
    assert Worker([queue], concurrency=2).drain() == Counts(completed=1, failed=1, retried=1)
    row = rows(queue)["victim"]
    assert (row.attempts, (row.last_error or "").partition(":")[0]) == (1, "CancelledError")


def test_connections_are_tidied_though_the_handler_has_cancelled_its_own_task(queue: Queue[str]) -> None:
    from asgiref.sync import sync_to_async

    pids: list[int] = []

    @sync_to_async
    def query() -> None:
        with connection.cursor() as cursor:
            cursor.execute("SELECT pg_backend_pid()")
            pids.append(cursor.fetchone()[0])

    @queue.handler(concurrency=1)
    async def work(item: Item[str]) -> None:
        await query()
        cancel_all()

    queue.enqueue("a", "b", "c")
    assert connection.settings_dict["CONN_MAX_AGE"] == 0
    assert Worker([queue]).drain() == Counts(completed=3)
    assert len(set(pids)) == 3
