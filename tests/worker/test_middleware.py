"""`WORKQUEUE_MIDDLEWARE`: around each handler, in order, in the handler's own world."""

import asyncio
import contextvars
import itertools
import threading
from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import Any

import pytest
from asgiref.sync import iscoroutinefunction, markcoroutinefunction
from django.core.exceptions import ImproperlyConfigured, MiddlewareNotUsed
from django.test import override_settings
from django.utils.decorators import async_only_middleware, sync_and_async_middleware, sync_only_middleware

from django_workqueue import Item, Job, JobQueue, PermanentError, Queue, Retry, testing
from django_workqueue.models import WorkJob
from django_workqueue.worker import Counts, Worker
from tests.interleave import wait_until
from tests.worker.conftest import Rows

log: list[str] = []
HERE = "tests.worker.test_middleware"

_numbers = itertools.count(1)


@pytest.fixture(autouse=True)
def empty_log() -> None:
    log.clear()


def drain(queue: Queue[Any] | JobQueue, *names: str) -> Counts:
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


# Jobs


@pytest.fixture
def jobs(db: None) -> Iterator[JobQueue]:
    """A job queue of the test's own."""
    queue = JobQueue(f"middleware {next(_numbers)}")
    yield queue
    WorkJob.objects.filter(queue=queue.name).delete()


@sync_and_async_middleware
def looking(following: Callable[[Any], Any]) -> Callable[[Any], Any]:
    def look(delivery: Any) -> None:
        log.append(f"{delivery.queue} {delivery.handler.kind} {delivery.job.payload} {delivery.items}")

    if iscoroutinefunction(following):

        async def acall(delivery: Any) -> Any:
            look(delivery)
            return [await following(delivery)]

        return acall

    def call(delivery: Any) -> Any:
        look(delivery)
        return [following(delivery)]

    return call


@sync_only_middleware
def forgiving(following: Callable[[Any], Any]) -> Callable[[Any], Any]:
    def call(delivery: Any) -> Any:
        try:
            return following(delivery)
        except LookupError as error:
            return f"forgiven {error}"

    return call


@async_only_middleware
def snoozing(following: Callable[[Any], Any]) -> Callable[[Any], Any]:
    async def call(delivery: Any) -> Any:
        try:
            return await following(delivery)
        except LookupError as error:
            raise Retry(timedelta(hours=1)) from error

    return call


variable = contextvars.ContextVar("variable", default="unset")


@sync_only_middleware
def setting(following: Callable[[Any], Any]) -> Callable[[Any], Any]:
    def call(delivery: Any) -> Any:
        variable.set("set by setting")
        return following(delivery)

    return call


@async_only_middleware
def asetting(following: Callable[[Any], Any]) -> Callable[[Any], Any]:
    async def call(delivery: Any) -> Any:
        variable.set("set by asetting")
        return await following(delivery)

    return call


def skipping(following: Callable[[Any], Any]) -> Callable[[Any], Any]:
    return lambda delivery: "skipped"


def handle(queue: JobQueue, fn: Callable[[Job], Any], *, is_async: bool) -> None:
    """Let `fn` be the handler, from either world."""

    async def afn(job: Job) -> Any:
        await asyncio.sleep(0)
        return fn(job)

    queue.handler("job")(afn if is_async else fn)


both_worlds = pytest.mark.parametrize("is_async", [False, True])


@both_worlds
@pytest.mark.parametrize("between", [[], ["plain_for_jobs"], ["only_async"]])
def test_a_jobs_delivery_has_the_job_and_what_is_returned_is_the_result(
    jobs: JobQueue, is_async: bool, between: list[str]
) -> None:
    handle(jobs, lambda job: job.payload, is_async=is_async)
    number = jobs.enqueue("job", 5)
    assert drain(jobs, "looking", *between, "looking") == Counts(completed=1)
    assert log.count(f"{jobs.name} job 5 ()") == 2
    assert jobs.get(number).result == [[5]]


@sync_only_middleware
def plain_for_jobs(following: Callable[[Any], Any]) -> Callable[[Any], Any]:
    def call(delivery: Any) -> Any:
        return following(delivery)

    return call


@both_worlds
def test_middleware_sees_what_the_handler_raises_and_may_make_something_else_of_it(
    jobs: JobQueue, is_async: bool
) -> None:
    def work(job: Job) -> Any:
        raise {"lookup": LookupError("it"), "value": ValueError("no")}[job.payload]

    handle(jobs, work, is_async=is_async)
    forgiven, failed = jobs.enqueue("job", "lookup", max_attempts=1), jobs.enqueue("job", "value", max_attempts=1)
    assert drain(jobs, "forgiving") == Counts(completed=1, failed=1)
    assert jobs.get(forgiven).result == "forgiven it"
    assert jobs.get(failed).last_error == "ValueError: no"
    snoozed = jobs.enqueue("job", "lookup", max_attempts=1)
    assert drain(jobs, "snoozing") == Counts()
    assert (jobs.get(snoozed).attempts, jobs.get(snoozed).status) == (0, "pending")


@both_worlds
@pytest.mark.parametrize(("name", "seen"), [("setting", "set by setting"), ("asetting", "set by asetting")])
def test_a_context_variable_that_middleware_sets_is_the_handlers_and_nobody_elses(
    jobs: JobQueue, is_async: bool, name: str, seen: str
) -> None:
    handle(jobs, lambda job: variable.get(), is_async=is_async)
    ids = jobs.enqueue_many("job", range(5))
    assert drain(jobs, name) == Counts(completed=5)
    assert {jobs.get(number).result for number in ids} == {seen}
    after = jobs.enqueue("job")
    assert drain(jobs) == Counts(completed=1)
    assert jobs.get(after).result == "unset"
    assert variable.get() == "unset"


def test_middleware_that_does_not_go_on_keeps_the_handler_from_running(jobs: JobQueue) -> None:
    jobs.handler("job")(lambda job: log.append("handler"))
    number = jobs.enqueue("job")
    assert drain(jobs, "skipping") == Counts(completed=1)
    assert log == []
    assert jobs.get(number).result == "skipped"


@pytest.mark.parametrize("names", [["both"], ["plain_for_jobs"], ["plain_for_jobs", "only_async"]], ids=str)
def test_a_timeout_reaches_an_async_handler_through_middleware_of_either_world(
    jobs: JobQueue, names: list[str]
) -> None:
    ended: list[str] = []

    @jobs.handler("job", timeout=timedelta(seconds=0.3))
    async def work(job: Job) -> None:
        try:
            await asyncio.sleep(20)
        except asyncio.CancelledError:
            ended.append("cancelled")
            raise

    number = jobs.enqueue("job", max_attempts=1)
    assert drain(jobs, *names) == Counts(failed=1)
    wait_until(lambda: ended)
    assert str(jobs.get(number).last_error).startswith("HandlerTimeout:")


@both_worlds
def test_projects_tests_have_the_middleware_too(jobs: JobQueue, is_async: bool) -> None:
    handle(jobs, lambda job: job.payload, is_async=is_async)
    number = jobs.enqueue("job", 5)
    with override_settings(WORKQUEUE_MIDDLEWARE=[f"{HERE}.looking"]):
        assert testing.drain(jobs) == Counts(completed=1)
    assert jobs.get(number).result == [5]


@pytest.mark.parametrize(
    ("names", "said"),
    [
        (["there_is_none"], "there_is_none cannot be imported: Module .* does not define"),
        (["no.such.module"], "no.such.module cannot be imported: No module named"),
        (["HERE"], "HERE is no middleware: it cannot be called"),
        (["nothing_made"], "nothing_made returned None"),
    ],
)
def test_middleware_that_cannot_be_made_stops_the_worker_as_it_starts(
    jobs: JobQueue, names: list[str], said: str
) -> None:
    jobs.handler("job")(lambda job: None)
    number = jobs.enqueue("job")
    with pytest.raises(ImproperlyConfigured, match=said):
        drain(jobs, *names)
    assert jobs.get(number).attempts == 0


def nothing_made(following: Callable[[Any], Any]) -> None: ...
