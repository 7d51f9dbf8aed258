"""The twins for coroutines: they do what the others do, and block no event loop."""

import asyncio
import inspect
import threading
import time
from datetime import timedelta

import pytest
from asgiref.sync import sync_to_async
from django.core.exceptions import SynchronousOnlyOperation
from django.db import connections

from django_workqueue import EnqueueTimeout, Entry, Item, JobQueue, Queue, QueueClosed, publish
from tests.keyed.test_enqueue import HOUR, MINUTE, about
from tests.keyed.test_transactions import keys

TWINS = {
    "aenqueue": "enqueue",
    "aenqueue_many": "enqueue_many",
    "aclaim": "claim",
    "acomplete": "complete",
    "arelease": "release",
    "aextend": "extend",
    "aremove": "remove",
    "areap": "reap",
    "astats": "stats",
    "apause": "pause",
    "aresume": "resume",
    "ais_paused": "is_paused",
    "aclose": "close",
}


def run(main):
    """Run a coroutine as a program would, and leave no connection behind."""

    async def wrapped():
        try:
            return await main
        finally:
            await sync_to_async(connections.close_all)()

    return asyncio.run(wrapped())


@pytest.mark.parametrize(("twin", "method"), TWINS.items())
def test_every_method_that_touches_the_database_has_a_twin_of_the_same_parameters(twin, method):
    assert inspect.iscoroutinefunction(getattr(Queue, twin))
    ours, theirs = (inspect.signature(getattr(Queue, name)).parameters for name in (twin, method))
    assert [(each.name, each.kind, each.default) for each in ours.values()] == [
        (each.name, each.kind, each.default) for each in theirs.values()
    ]


def test_no_method_is_without_its_twin():
    public = {name for name, _ in inspect.getmembers(Queue, inspect.isfunction) if not name.startswith("_")}
    elsewhere = {"wait", "await_wake", "handler", "batch_handler"}
    assert public - elsewhere == {*TWINS, *TWINS.values()}


def test_the_twins_do_what_the_others_do(make_queue, table):
    async def main():
        queue = make_queue(max_attempts=1, retention=HOUR)
        await queue.aenqueue("a", "b", priority=2)
        await queue.aenqueue_many(["c", Entry("d", delay=HOUR)])
        items = await queue.aclaim(2, MINUTE)
        assert keys(items) == ["a", "b"]
        assert await queue.aextend(*items, lease=HOUR) == items
        assert await queue.acomplete(items[0]) == 1
        assert await queue.arelease(items[1], delay=MINUTE, error="no") == 1
        assert await queue.aremove("c", "unknown") == 1
        assert await queue.areap() == 0
        await queue.apause()
        assert await queue.ais_paused() is True
        await queue.aresume()
        assert await queue.ais_paused() is False
        stats = await queue.astats()
        assert (stats.scheduled, stats.stalled, stats.completed) == (1, 1, 1)
        await queue.aclose()
        with pytest.raises(QueueClosed):
            await queue.aenqueue("a")

    run(main())
    assert (table.state("a"), table.state("b"), table.state("c")) == ("completed", "stalled", "absent")
    assert table.row("b").last_error == "no"


IN_COROUTINES = {
    "claim": lambda queue, jobs: queue.claim(),
    "complete": lambda queue, jobs: queue.complete("a"),
    "release": lambda queue, jobs: queue.release("a"),
    "extend": lambda queue, jobs: queue.extend(Item("a", queue.name), lease=HOUR),
    "remove": lambda queue, jobs: queue.remove("a"),
    "reap": lambda queue, jobs: queue.reap(),
    "stats": lambda queue, jobs: queue.stats(),
    "stats at bounded cost": lambda queue, jobs: queue.stats(exact=False),
    "pause": lambda queue, jobs: queue.pause(),
    "is_paused": lambda queue, jobs: queue.is_paused(),
    "claim of jobs": lambda queue, jobs: jobs.claim(),
    "cancel": lambda queue, jobs: jobs.cancel(1),
    "retry": lambda queue, jobs: jobs.retry(1),
    "get": lambda queue, jobs: jobs.get(1),
    "prune": lambda queue, jobs: jobs.prune(HOUR),
    "stats of jobs": lambda queue, jobs: jobs.stats(),
    "publish": lambda queue, jobs: publish("channel", "a"),
}


@pytest.mark.parametrize("call", IN_COROUTINES)
def test_what_django_refuses_in_a_coroutine_names_the_twin_that_is_for_it(queue, name, call):
    jobs = JobQueue(f"{name}-jobs")

    async def main():
        with pytest.raises(SynchronousOnlyOperation) as refused:
            IN_COROUTINES[call](queue, jobs)
        (note,) = refused.value.__notes__
        assert "the twin of the same name with an `a` in front" in note

    run(main())


async def ticking(call):
    """What the call returns, and how often the loop came round meanwhile."""
    ticks = 0
    task = asyncio.ensure_future(call)
    while not task.done():
        await asyncio.sleep(0.001)
        ticks += 1
    return await task, ticks


@pytest.mark.parametrize("verb", ["acomplete", "arelease", "aremove"])
def test_a_call_that_waits_for_a_row_does_not_block_the_loop(queue, connect, verb):
    queue.enqueue("a")
    queue.claim()
    holder = connect(autocommit=False)
    holder.execute("SELECT FROM workqueue_item WHERE queue = %s FOR UPDATE", [queue.name])

    async def main():
        asyncio.get_running_loop().call_later(0.15, holder.rollback)
        return await ticking(getattr(queue, verb)("a"))

    done, ticks = run(main())
    assert done == 1
    assert ticks > 10


def test_an_enqueue_that_waits_for_its_commit_does_not_block_the_loop(queue, connect, table):
    holder = connect(autocommit=False)
    holder.execute("LOCK TABLE workqueue_item IN ACCESS EXCLUSIVE MODE")

    async def main():
        asyncio.get_running_loop().call_later(0.05, holder.rollback)
        return await ticking(queue.aenqueue("a"))

    _, ticks = run(main())
    assert ticks > 5
    assert table.stored() == ["a"]


def test_many_coroutines_enqueue_together(queue, table):
    async def main():
        await asyncio.gather(*(queue.aenqueue(f"{number:03}") for number in range(200)))

    run(main())
    assert len(table.stored()) == 200


def test_an_aenqueue_that_is_not_durable_in_time_times_out(queue, connect, table, wait_until):
    holder = connect(autocommit=False)
    holder.execute("LOCK TABLE workqueue_item, workqueue_inbox IN ACCESS EXCLUSIVE MODE")

    async def main():
        with pytest.raises(EnqueueTimeout, match=r"(?i)still likely to land"):
            await queue.aenqueue("a", timeout=0.1)

    run(main())
    holder.rollback()
    wait_until(lambda: table.stored() + table.inbox() == ["a"])


@pytest.mark.parametrize("make", [Queue, JobQueue])
def test_an_aenqueue_keeps_its_timeout_while_the_thread_of_sync_code_is_busy(db, name, make):
    slow = make(name)
    over = threading.Event()

    async def main():
        busy = asyncio.ensure_future(sync_to_async(over.wait)(30))
        await asyncio.sleep(0.05)
        with pytest.raises(EnqueueTimeout, match=r"nothing was enqueued in 0\.1 s"):
            await slow.aenqueue("a", timeout=0.1)
        over.set()
        await busy
        await slow.aenqueue("b", timeout=10)

    run(main())
    assert slow.stats().ready == 1


def test_await_wake_returns_early_on_a_wake_and_false_after_poll(queue):
    async def main():
        await queue.await_wake(timedelta(milliseconds=1))  # what the queue's making may have left
        started = time.monotonic()
        assert await queue.await_wake(timedelta(milliseconds=30)) is False
        waiting = asyncio.ensure_future(queue.await_wake(timedelta(seconds=30)))
        await asyncio.sleep(0)
        await queue.aenqueue("a")
        assert await waiting is True
        assert time.monotonic() - started < 15

    run(main())


@pytest.mark.parametrize("poll", [timedelta(0), -MINUTE])
def test_await_wake_of_no_length_raises(queue, poll):
    with pytest.raises(ValueError, match="poll is positive"):
        run(queue.await_wake(poll))


def test_a_negative_delay_of_a_twin_counts_as_none(queue, table):
    run(queue.aenqueue("a", delay=-HOUR))
    assert table.row("a").due_in == about(0)
