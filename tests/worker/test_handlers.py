"""What a handler's end means for its item, and what surrounds each call."""

import asyncio
import contextlib
import contextvars
import functools
import sys
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from datetime import timedelta
from typing import Any

import pytest
from asgiref.sync import markcoroutinefunction, sync_to_async
from django.conf import settings
from django.contrib.auth.models import Group
from django.db import DatabaseError, connection, connections, transaction
from django.db.backends.signals import connection_created
from django.utils import timezone, translation

from django_workqueue import Item, PartialFailure, PermanentError, Queue, Retry
from django_workqueue.worker import Counts, Worker
from tests.worker.conftest import MakeQueue, Rows

HOUR = timedelta(hours=1)


def drain(*queues: Queue[Any], **options: Any) -> Counts:
    return Worker(queues, **options).drain()


def test_a_return_completes_the_item(queue: Queue[str], rows: Rows) -> None:
    seen: list[str] = []
    queue.handler(lambda item: seen.append(item.key))
    queue.enqueue("a", "b")
    assert drain(queue) == Counts(completed=2)
    assert sorted(seen) == ["a", "b"]
    assert all(row.completed_at for row in rows(queue).values())


@pytest.mark.parametrize("error", [ValueError("no"), SystemExit(3), KeyboardInterrupt()])
def test_any_exception_releases_after_the_backoff_with_the_error(
    queue: Queue[str], rows: Rows, error: BaseException
) -> None:
    @queue.handler(backoff=lambda attempts: HOUR * attempts)
    def fail(item: Item[str]) -> None:
        raise error

    queue.enqueue("a")
    assert drain(queue) == Counts(failed=1, retried=1)
    row = rows(queue)["a"]
    assert row.last_error is not None
    assert row.last_error.startswith(type(error).__name__)
    assert row.attempts == 1
    assert timedelta(minutes=55) < row.available_at - timezone.now() < timedelta(minutes=65)


def test_retry_comes_again_after_its_delay_with_no_attempt_counted(queue: Queue[str], rows: Rows) -> None:
    @queue.handler
    def later(item: Item[str]) -> None:
        raise Retry(HOUR)

    queue.enqueue("a")
    assert drain(queue) == Counts()
    row = rows(queue)["a"]
    assert (row.attempts, row.last_error) == (0, None)
    assert row.available_at - timezone.now() > timedelta(minutes=55)


@pytest.mark.parametrize("chained", [False, True])
def test_permanent_error_raised_or_chained_from_finishes_the_item_with_its_error(
    queue: Queue[str], rows: Rows, chained: bool
) -> None:
    @queue.handler
    def give_up(item: Item[str]) -> None:
        if chained:
            raise ValueError("outer") from PermanentError("inner")
        raise PermanentError("never")

    queue.enqueue("a")
    assert drain(queue) == Counts(failed=1)
    row = rows(queue)["a"]
    assert row.completed_at is not None
    assert row.last_error == ("ValueError: outer" if chained else "PermanentError: never")


@pytest.mark.parametrize("backoff", [lambda attempts: 3, lambda attempts: 1 / 0, lambda: HOUR, sys.exit])
def test_a_broken_backoff_is_a_failure_with_the_default_delay(queue: Queue[str], rows: Rows, backoff: Any) -> None:
    @queue.handler(backoff=backoff)
    def fail(item: Item[str]) -> None:
        raise ValueError("no")

    queue.enqueue("a")
    assert drain(queue) == Counts(failed=1, retried=1)
    assert timedelta(0) < rows(queue)["a"].available_at - timezone.now() < timedelta(seconds=3)


class RateLimited(Retry):
    def __init__(self, said: str) -> None:
        Exception.__init__(self, said)  # and no `delay`


class Soon(Retry):
    delay: Any = 5

    def __init__(self, said: str) -> None:
        Exception.__init__(self, said)


class Unlooked(Exception):
    @property
    def __cause__(self) -> Any:
        sys.exit("not to be looked at")

    @__cause__.setter
    def __cause__(self, cause: Any) -> None: ...


class Unrelated(Exception):
    @property
    def __context__(self) -> Any:
        return 1 / 0

    @__context__.setter
    def __context__(self, context: Any) -> None: ...


class Classless(Exception):
    @property
    def __class__(self) -> Any:
        return 1 / 0


class Unsaid(Exception):
    def __str__(self) -> str:
        return str(1 / 0)

    __repr__ = __str__


AWKWARD = [RateLimited, Soon, Unlooked, Unrelated, Classless, Unsaid]
WAYS: list[dict[str, Any]] = [{}, {"timeout": timedelta(seconds=20)}, {"size": 5}]


def handle(queue: Queue[str], fn: Callable[[Any], Any], *, is_async: bool, **options: Any) -> None:
    """Have a queue handled by a function, or a coroutine function that does the same."""

    async def awaited(work: Any) -> Any:
        return fn(work)

    decorate = queue.batch_handler if "size" in options else queue.handler
    decorate(**options)(awaited if is_async else fn)


@pytest.mark.parametrize("is_async", [False, True])
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("kind", AWKWARD)
def test_an_exception_that_cannot_be_judged_is_a_failure(
    queue: Queue[str], rows: Rows, kind: type[Exception], way: dict[str, Any], is_async: bool
) -> None:
    def fail(work: Any) -> None:
        raise kind("no")

    handle(queue, fail, is_async=is_async, **way)
    queue.enqueue("a", "b")
    assert drain(queue) == Counts(failed=2, retried=2)
    for row in rows(queue).values():
        assert row.attempts == 1
        assert kind.__name__ in (row.last_error or "")
        assert timedelta(0) < row.available_at - timezone.now() < timedelta(seconds=3)


@pytest.mark.parametrize("is_async", [False, True])
@pytest.mark.parametrize("way", WAYS)
def test_what_was_started_has_failed_whatever_goes_wrong_beside_its_handler(
    queue: Queue[str], rows: Rows, monkeypatch: pytest.MonkeyPatch, way: dict[str, Any], is_async: bool
) -> None:
    def full(*_: Any, **__: Any) -> None:
        raise OSError("no space left for the log")

    def fail(work: Any) -> None:
        raise ValueError("no")

    monkeypatch.setattr("django_workqueue.worker.journal.failed", full)
    handle(queue, fail, is_async=is_async, **way)
    queue.enqueue("a", "b")
    assert drain(queue) == Counts(failed=2, retried=2)
    assert {(row.attempts, row.last_error) for row in rows(queue).values()} == {
        (1, "OSError: no space left for the log")
    }


def test_an_exception_in_one_never_touches_another(queue: Queue[str]) -> None:
    seen: list[str] = []

    @queue.handler
    def some_fail(item: Item[str]) -> None:
        if int(item.key) % 3 == 0:
            raise SystemExit
        seen.append(item.key)

    queue.enqueue_many(str(number) for number in range(300))
    assert drain(queue) == Counts(completed=200, failed=100, retried=100)
    assert len(seen) == 200


@pytest.mark.parametrize(
    ("most", "tries", "says"),
    [
        (0, 1, "attempt 1 failed; again in 4 s"),
        (5, 2, "attempt 2 of 5 failed; again in 4 s"),
        (2, 2, "attempt 2 of 2 failed; it is stalled now, unless it was enqueued again"),
    ],
)
def test_the_log_says_which_attempt_of_how_many_failed_and_what_is_next(
    make_queue: MakeQueue, caplog: pytest.LogCaptureFixture, most: int, tries: int, says: str
) -> None:
    queue = make_queue(max_attempts=most)

    @queue.handler(backoff=lambda attempts: timedelta(seconds=4 if attempts == tries else 0))
    def fail(item: Item[str]) -> None:
        raise ValueError("no")

    queue.enqueue("a")
    drain(queue)
    expected = f"fail on {queue.name} 'a': {says}: ValueError('no')"
    (record,) = [record for record in caplog.records if record.getMessage().endswith(expected)]
    assert record.levelname == ("ERROR" if tries == most else "WARNING")
    assert record.exc_info is not None


def test_the_log_says_that_an_item_is_finished_by_a_permanent_error(
    make_queue: MakeQueue, caplog: pytest.LogCaptureFixture
) -> None:
    queue = make_queue(max_attempts=3)

    @queue.handler
    def fail(item: Item[str]) -> None:
        raise PermanentError("no")

    queue.enqueue("a")
    drain(queue)
    assert "attempt 1 of 3 failed; it is finished, with its error kept: PermanentError('no')" in caplog.text


def test_out_of_attempts_the_item_stalls(make_queue: MakeQueue, rows: Rows) -> None:
    queue = make_queue(max_attempts=2)

    @queue.handler(backoff=lambda attempts: timedelta(0))
    def fail(item: Item[str]) -> None:
        raise ValueError(f"attempt {item.attempts}")

    queue.enqueue("a")
    assert drain(queue) == Counts(failed=2, retried=1)
    assert rows(queue)["a"].stalled_at is not None


def test_an_enqueue_during_the_run_has_the_item_run_once_more(queue: Queue[str]) -> None:
    runs: list[int] = []

    @queue.handler
    def again(item: Item[str]) -> None:
        runs.append(item.attempts)
        if len(runs) == 1:
            queue.enqueue(item.key)

    queue.enqueue("a")
    assert drain(queue) == Counts(completed=2)
    assert runs == [1, 1]


def test_a_batch_handler_gets_up_to_its_size_and_answers_for_the_whole_batch(queue: Queue[str]) -> None:
    sizes: list[int] = []

    @queue.batch_handler(size=7, concurrency=1)
    def batch(items: list[Item[str]]) -> None:
        sizes.append(len(items))

    queue.enqueue_many(str(number) for number in range(50))
    assert drain(queue) == Counts(completed=50)
    assert sum(sizes) == 50
    assert max(sizes) == 7
    assert sizes.count(7) >= 5


def test_a_batch_handlers_exception_fails_the_whole_batch(queue: Queue[str], rows: Rows) -> None:
    @queue.batch_handler(backoff=lambda attempts: HOUR)
    def batch(items: list[Item[str]]) -> None:
        raise ValueError("all")

    queue.enqueue("a", "b", "c")
    assert drain(queue).failed == 3
    assert {row.last_error for row in rows(queue).values()} == {"ValueError: all"}


def test_partial_failure_fails_only_those_named(queue: Queue[str], rows: Rows) -> None:
    @queue.batch_handler(backoff=lambda attempts: HOUR)
    def batch(items: list[Item[str]]) -> None:
        errors: dict[Any, BaseException] = {
            "bad": ValueError("bad"),
            "later": Retry(HOUR),
            "never": PermanentError("never"),
        }
        named = {item: errors[item.key] for item in items if item.key in errors}
        if named:
            raise PartialFailure(named)

    queue.enqueue("good", "bad", "later", "never")
    assert drain(queue) == Counts(completed=1, failed=2, retried=1)
    found = rows(queue)
    assert found["good"].completed_at is not None
    assert found["good"].last_error is None
    assert (found["bad"].completed_at, found["bad"].last_error) == (None, "ValueError: bad")
    assert (found["later"].attempts, found["later"].last_error) == (0, None)
    assert found["never"].completed_at is not None


def test_partial_failure_names_items_by_their_keys_too(make_queue: MakeQueue, rows: Rows) -> None:
    queue: Queue[Any] = make_queue(key=int)

    @queue.batch_handler(backoff=lambda attempts: HOUR)
    def batch(items: list[Item[int]]) -> None:
        raise PartialFailure(
            {2: ValueError("refused"), items[0]: ValueError("first"), items[0].key: ValueError("same")}
        )

    queue.enqueue(1, priority=1)
    queue.enqueue(2, 3)
    assert drain(queue) == Counts(completed=1, failed=2, retried=2)
    assert {key: row.last_error for key, row in rows(queue).items()} == {
        "1": "ValueError: first",
        "2": "ValueError: refused",
        "3": None,
    }


@pytest.mark.parametrize("is_async", [False, True])
def test_partial_failure_that_names_what_is_not_in_the_batch_completes_none(
    queue: Queue[str], rows: Rows, is_async: bool
) -> None:
    def batch(items: list[Item[str]]) -> None:
        raise PartialFailure({"a": Retry(HOUR), "A": ValueError("refused")})

    handle(queue, batch, is_async=is_async, size=10, backoff=lambda attempts: HOUR)
    queue.enqueue("a", "b")
    assert drain(queue) == Counts(failed=1, retried=1)
    found = rows(queue)
    assert (found["a"].attempts, found["a"].last_error) == (0, None)
    assert "not in the batch: 'A': ValueError('refused')" in (found["b"].last_error or "")


class Alike(str):
    __slots__ = ()
    __hash__ = str.__hash__

    def __eq__(self, other: object) -> bool:
        raise ValueError("not to be compared")


def test_partial_failure_whose_names_cannot_be_compared_completes_none(queue: Queue[str], rows: Rows) -> None:
    @queue.batch_handler(backoff=lambda attempts: HOUR)
    def batch(items: list[Item[str]]) -> None:
        raise PartialFailure({Alike("a"): ValueError("refused")})

    queue.enqueue("a", "b")
    assert drain(queue) == Counts(failed=2, retried=2)
    assert all("not to be compared" in (row.last_error or "") for row in rows(queue).values())


@pytest.mark.parametrize("is_async", [False, True])
def test_partial_failure_of_a_single_item_is_a_failure_like_any_other(
    queue: Queue[str], rows: Rows, is_async: bool
) -> None:
    def fail(item: Item[str]) -> None:
        raise PartialFailure({item: ValueError("refused")})

    handle(queue, fail, is_async=is_async, backoff=lambda attempts: HOUR)
    queue.enqueue("a")
    assert drain(queue) == Counts(failed=1, retried=1)
    assert (rows(queue)["a"].last_error or "").endswith("'a': ValueError('refused')")


def test_an_async_batch_handler_works_as_a_sync_one(queue: Queue[str]) -> None:
    sizes: list[int] = []

    @queue.batch_handler(size=10)
    async def batch(items: list[Item[str]]) -> None:
        sizes.append(len(items))
        if len(sizes) == 1:
            raise PartialFailure({items[0]: PermanentError("no")})

    queue.enqueue_many(str(number) for number in range(30))
    assert drain(queue) == Counts(completed=29, failed=1)


def test_a_handler_that_returns_a_coroutine_by_mistake_fails(queue: Queue[str], rows: Rows) -> None:
    async def work(item: Item[str]) -> None:
        raise AssertionError

    queue.handler(lambda item: work(item))  # noqa: PLW0108 - a sync function that returns a coroutine
    queue.enqueue("a")
    assert drain(queue).failed == 1
    assert "async def" in (rows(queue)["a"].last_error or "")


class Callee:
    def __init__(self, seen: list[str]) -> None:
        self.seen = seen

    async def __call__(self, item: Item[str]) -> None:
        self.seen.append(item.key)

    async def method(self, item: Item[str], **_: Any) -> None:
        self.seen.append(item.key)

    def marked(self) -> Any:
        return markcoroutinefunction(lambda item: self.method(item))  # noqa: PLW0108 - a plain function, but marked

    def partially(self) -> Any:
        return functools.partial(functools.partial(self.method, most=1), least=1)


@pytest.mark.parametrize(
    "made",
    [
        lambda callee: callee,
        lambda callee: callee.method,
        Callee.partially,
        functools.partial,
        Callee.marked,
        lambda callee: functools.partial(callee.marked()),
    ],
)
def test_whatever_is_to_be_awaited_is_an_async_handler(queue: Queue[str], made: Callable[[Callee], Any]) -> None:
    seen: list[str] = []
    queue.handler(made(Callee(seen)))
    queue.enqueue("a")
    assert drain(queue) == Counts(completed=1)
    assert seen == ["a"]


class Promise:
    def __await__(self) -> Iterator[None]:
        raise AssertionError


async def endless() -> AsyncIterator[int]:
    while True:
        yield 1


@pytest.mark.parametrize("is_async", [False, True])
@pytest.mark.parametrize("size", [None, 5])
@pytest.mark.parametrize("made", [Promise, asyncio.Future, endless, lambda: (number for number in "123")])
def test_a_handler_that_returns_work_that_nobody_does_fails(
    queue: Queue[str], rows: Rows, made: Callable[[], Any], size: int | None, is_async: bool
) -> None:
    loop = asyncio.new_event_loop()
    handle(
        queue,
        lambda work: made(loop=loop) if made is asyncio.Future else made(),  # type: ignore[call-arg]
        is_async=is_async,
        backoff=lambda attempts: HOUR,
        **({} if size is None else {"size": size}),
    )
    queue.enqueue("a", "b")
    assert drain(queue) == Counts(failed=2, retried=2)
    assert all((row.last_error or "").startswith("TypeError: ") for row in rows(queue).values())
    loop.close()


# What surrounds each call

colour = contextvars.ContextVar("colour", default="none")


@pytest.mark.parametrize("is_async", [False, True])
def test_language_time_zone_and_contextvars_are_reset_around_each_handler(queue: Queue[str], is_async: bool) -> None:
    seen: list[tuple[str, str, str]] = []

    def look_and_change(item: Item[str]) -> None:
        seen.append((translation.get_language(), timezone.get_current_timezone_name(), colour.get()))
        translation.activate("de")
        timezone.activate("Europe/Berlin")
        colour.set("blue")

    async def alook_and_change(item: Item[str]) -> None:
        look_and_change(item)

    queue.handler(concurrency=1)(alook_and_change if is_async else look_and_change)
    queue.enqueue("a", "b", "c")
    assert drain(queue).completed == 3
    assert seen == [(settings.LANGUAGE_CODE, settings.TIME_ZONE, "none")] * 3


def test_connections_too_old_are_closed_around_each_handler(queue: Queue[str]) -> None:
    pids: list[int] = []

    @queue.handler(concurrency=1)
    def query(item: Item[str]) -> None:
        with connection.cursor() as cursor:
            cursor.execute("SELECT pg_backend_pid()")
            pids.append(cursor.fetchone()[0])

    queue.enqueue("a", "b", "c")
    assert connection.settings_dict["CONN_MAX_AGE"] == 0
    assert drain(queue).completed == 3
    assert len(set(pids)) == 3


def test_a_connection_within_its_age_is_kept(queue: Queue[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(connections.settings["default"], "CONN_MAX_AGE", None)
    pids: list[int] = []

    @queue.handler(concurrency=1)
    def query(item: Item[str]) -> None:
        with connection.cursor() as cursor:
            cursor.execute("SELECT pg_backend_pid()")
            pids.append(cursor.fetchone()[0])

    queue.enqueue("a", "b", "c")
    assert drain(queue, concurrency=1).completed == 3
    assert len(set(pids)) == 1


def test_a_connection_broken_by_one_handler_does_not_reach_the_next(queue: Queue[str]) -> None:
    @queue.handler(concurrency=1, backoff=lambda attempts: HOUR)
    def break_or_query(item: Item[str]) -> None:
        with connection.cursor() as cursor:
            if item.key == "a-breaks":
                cursor.execute("SELECT pg_terminate_backend(pg_backend_pid())")
            cursor.execute("SELECT 1")

    queue.enqueue("a-breaks", priority=1)
    queue.enqueue("b", "c")
    assert drain(queue) == Counts(completed=2, failed=1, retried=1)


held: list[Any] = []  # so that nothing is left when it is collected


def enter_atomic() -> None:
    held.append(transaction.atomic())
    held[-1].__enter__()


def suspend_in_atomic() -> None:
    def numbers() -> Iterator[int]:
        with transaction.atomic():
            yield 1

    held.append(numbers())
    next(held[-1])


def break_atomic() -> None:
    enter_atomic()
    transaction.set_rollback(True)


def close_in_atomic() -> None:
    enter_atomic()
    connection.close()


def begin_by_hand() -> None:
    connection.cursor().execute("BEGIN")


def begin_and_fail() -> None:
    begin_by_hand()
    with contextlib.suppress(DatabaseError):
        connection.cursor().execute("SELECT 1 / 0")


def turn_autocommit_off() -> None:
    connection.set_autocommit(False)
    Group.objects.create(name="left open")


LEAVES = [
    enter_atomic,
    suspend_in_atomic,
    break_atomic,
    close_in_atomic,
    begin_by_hand,
    begin_and_fail,
    turn_autocommit_off,
]


@pytest.mark.parametrize("is_async", [False, True])
@pytest.mark.parametrize("timeout", [None, timedelta(seconds=20)])
@pytest.mark.parametrize("leave", LEAVES)
def test_a_transaction_that_a_handler_leaves_open_does_not_reach_the_next(
    queue: Queue[str],
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    leave: Callable[[], None],
    timeout: timedelta | None,
    is_async: bool,
) -> None:
    monkeypatch.setitem(connections.settings["default"], "CONN_MAX_AGE", None)

    def work(item: Item[str]) -> None:
        Group.objects.create(name=f"{queue.name} {item.key}")
        if item.key.startswith("leaves"):
            leave()

    queue.handler(concurrency=1, timeout=timeout)(sync_to_async(work) if is_async else work)
    queue.enqueue("leaves 1", priority=3)
    queue.enqueue("a", priority=2)
    queue.enqueue("leaves 2", priority=1)
    queue.enqueue("b")
    assert drain(queue) == Counts(completed=4)
    assert Group.objects.filter(name__startswith=queue.name).delete()[0] == 4
    assert not Group.objects.filter(name="left open").exists()
    assert caplog.text.count(f"on queue {queue.name!r} left a transaction open on database 'default'") == 1
    held.clear()


def test_a_timeout_inside_atomic_leaves_the_thread_usable(queue: Queue[str]) -> None:
    @queue.handler(concurrency=1, timeout=timedelta(seconds=0.2), backoff=lambda attempts: HOUR)
    def work(item: Item[str]) -> None:
        if item.key == "slow":
            enter_atomic()
            while True:
                connection.cursor().execute("SELECT pg_sleep(0.01)")
        with transaction.atomic():
            connection.cursor().execute("SELECT 1")

    queue.enqueue("slow", priority=1)
    queue.enqueue("a", "b")
    assert drain(queue) == Counts(completed=2, failed=1, retried=1)
    held.clear()


def test_the_query_log_is_emptied_around_each_handler(queue: Queue[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(settings, "DEBUG", True)
    monkeypatch.setitem(connections.settings["default"], "CONN_MAX_AGE", None)
    logged: list[int] = []

    @queue.handler
    def query(item: Item[str]) -> None:
        with connection.cursor() as cursor:
            cursor.execute("SELECT 1")
        logged.append(len(connection.queries_log))

    queue.enqueue("a", "b", "c")
    assert drain(queue, concurrency=1).completed == 3
    assert logged == [1, 1, 1]


def test_async_handlers_connections_are_closed_too(queue: Queue[str]) -> None:
    """Also in a process that has never run a sync one."""
    from django_workqueue.models import WorkItem

    connection_created.disconnect(dispatch_uid="django_workqueue.worker")
    counted: list[int] = []

    @queue.handler(concurrency=2)
    async def query(item: Item[str]) -> None:
        counted.append(await WorkItem.objects.filter(queue=queue.name).acount())

    queue.enqueue_many(str(number) for number in range(20))
    assert drain(queue).completed == 20
    assert counted == [20] * 20
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database()"
            " AND application_name = '' AND pid <> pg_backend_pid()"
        )
        assert cursor.fetchone() == (0,)


def test_no_thread_of_the_worker_is_left_behind(queue: Queue[str]) -> None:
    queue.handler(lambda item: None)
    queue.enqueue("a")
    drain(queue)
    ours = ("claim", "settle", "renew", "maintain", "handler", "loop", "watchdog", "start-")
    left = [thread.name for thread in threading.enumerate() if thread.name.startswith("workqueue-")]
    assert not [name for name in left if any(part in name for part in ours)]
