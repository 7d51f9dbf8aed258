"""`WORKQUEUE_MIDDLEWARE`: around each handler, in order, in the handler's own world."""

import asyncio
import threading
from collections.abc import Callable
from typing import Any

import pytest
from asgiref.sync import iscoroutinefunction, markcoroutinefunction
from django.core.exceptions import ImproperlyConfigured, MiddlewareNotUsed
from django.test import override_settings
from django.utils.decorators import async_only_middleware, sync_and_async_middleware, sync_only_middleware

from django_workqueue import Item, PermanentError, Queue
from django_workqueue.worker import Counts, Worker
from tests.worker.conftest import Rows

log: list[str] = []
HERE = "tests.worker.test_middleware"


@pytest.fixture(autouse=True)
def empty_log() -> None:
    log.clear()


def drain(queue: Queue[Any], *names: str) -> Counts:
    with override_settings(WORKQUEUE_MIDDLEWARE=[f"{HERE}.{name}" for name in names]):
        return Worker([queue]).drain()


@sync_only_middleware
def plain(following: Callable[[Any], Any]) -> Callable[[Any], Any]:
    def call(delivery: Any) -> Any:
        log.append(f"plain in {delivery.queue} {delivery.handler.fn.__name__} {[item.key for item in delivery.items]}")
        try:
            return following(delivery)
        finally:
            log.append("plain out")

    return call


@async_only_middleware
def only_async(following: Callable[[Any], Any]) -> Callable[[Any], Any]:
    async def call(delivery: Any) -> Any:
        await asyncio.sleep(0)
        log.append("only_async in")
        try:
            return await following(delivery)
        finally:
            log.append("only_async out")

    return call


@sync_and_async_middleware
def both(following: Callable[[Any], Any]) -> Callable[[Any], Any]:
    if iscoroutinefunction(following):

        async def acall(delivery: Any) -> Any:
            log.append("both, async")
            return await following(delivery)

        return acall

    def call(delivery: Any) -> Any:
        log.append("both, sync")
        return following(delivery)

    return call


class AsClass:
    sync_capable = True
    async_capable = True

    def __init__(self, following: Callable[[Any], Any]) -> None:
        self.following = following
        if iscoroutinefunction(following):
            markcoroutinefunction(self)

    def __call__(self, delivery: Any) -> Any:
        log.append("class")
        return self.following(delivery)


def unused(following: Callable[[Any], Any]) -> Callable[[Any], Any]:
    raise MiddlewareNotUsed


def refuses(following: Callable[[Any], Any]) -> Callable[[Any], Any]:
    def call(delivery: Any) -> Any:
        raise PermanentError("not today")

    return call


def incapable(following: Callable[[Any], Any]) -> Callable[[Any], Any]:
    return following


incapable.sync_capable = False  # type: ignore[attr-defined]


def named(item: Item[str]) -> None:
    log.append("handler")


async def anamed(item: Item[str]) -> None:
    await asyncio.sleep(0)
    log.append("handler")


def test_the_first_is_outermost_and_sees_the_delivery(queue: Queue[str]) -> None:
    queue.handler(named)
    queue.enqueue("a")
    assert drain(queue, "plain", "AsClass", "both") == Counts(completed=1)
    assert log == [f"plain in {queue.name} named ['a']", "class", "both, sync", "handler", "plain out"]


def test_an_async_handler_has_async_middleware_where_it_can_be(queue: Queue[str]) -> None:
    queue.handler(anamed)
    queue.enqueue("a")
    assert drain(queue, "both", "only_async", "AsClass") == Counts(completed=1)
    assert log == ["both, async", "only_async in", "class", "handler", "only_async out"]


def test_sync_only_middleware_works_around_an_async_handler(queue: Queue[str]) -> None:
    queue.handler(anamed)
    queue.enqueue("a")
    assert drain(queue, "plain", "both") == Counts(completed=1)
    assert log == [f"plain in {queue.name} anamed ['a']", "both, async", "handler", "plain out"]


def test_async_only_middleware_works_around_a_sync_handler(queue: Queue[str]) -> None:
    threads: set[str] = set()

    @queue.handler
    def work(item: Item[str]) -> None:
        threads.add(threading.current_thread().name)
        named(item)

    queue.enqueue("a")
    assert drain(queue, "only_async", "both") == Counts(completed=1)
    assert log == ["only_async in", "both, sync", "handler", "only_async out"]
    assert next(iter(threads)).startswith("workqueue-handler")


def test_a_batch_handlers_delivery_has_all_its_items(queue: Queue[str]) -> None:
    @queue.batch_handler
    def work(items: list[Item[str]]) -> None:
        log.append(f"handler {len(items)}")

    queue.enqueue("a", "b")
    assert drain(queue, "plain") == Counts(completed=2)
    assert log == [f"plain in {queue.name} work ['a', 'b']", "handler 2", "plain out"]


def test_what_middleware_raises_counts_as_the_handlers(queue: Queue[str], rows: Rows) -> None:
    queue.handler(named)
    queue.enqueue("a")
    assert drain(queue, "refuses") == Counts(failed=1)
    assert log == []
    assert rows(queue)["a"].last_error == "PermanentError: not today"


def test_middleware_that_is_not_used_is_left_out(queue: Queue[str]) -> None:
    queue.handler(named)
    queue.enqueue("a")
    assert drain(queue, "unused") == Counts(completed=1)


def test_middleware_that_can_live_nowhere_is_refused(queue: Queue[str]) -> None:
    queue.handler(named)
    with pytest.raises(ImproperlyConfigured, match="incapable"):
        drain(queue, "incapable")
