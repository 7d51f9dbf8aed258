"""For a project's own tests: run what was enqueued, look at it, or run it at once.

Everything happens on the calling thread and its Django connection, each handler in a savepoint where there is a
transaction: so it works in a `TestCase`.
"""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import threading
from collections.abc import Iterator, Sequence
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any

from asgiref.sync import async_to_sync
from django.db import connections, transaction
from django.utils import timezone

from . import discovery, engine, payloads
from .engine import Handler, Outcome, Verb
from .jobs import JobQueue
from .keyed import KeyedSource
from .leasing import LeasingSource
from .listed import ListedSource
from .queues import Queue
from .worker import Counts, Worker
from .worker.call import Call

if TYPE_CHECKING:
    from django.db.models import QuerySet

LEASE = timedelta(hours=1)
# What a handler fails with: for a worker anything, here not Ctrl-C and what a test runner ends the test with.
_FAILURES = (Exception, SystemExit, GeneratorExit, asyncio.CancelledError)
MOST_RUNS = 10_000  # of one drain
SHOWN = 10  # rows, by an assertion that failed
NEAR = timedelta(seconds=10)  # how exactly a delay is compared, the test having taken some time


def drain(*queues: Queue[Any] | JobQueue | str, ignore_delays: bool = False, raise_errors: bool = False) -> Counts:
    """Run the handlers of these queues (none named: of all that have handlers) until nothing is due.

    With `ignore_delays`, what is scheduled for later is run as well; an item without end of attempts that fails is
    then left after its first failure. With `raise_errors`, the first exception of a handler (`Retry` is none) is
    raised once its outcome is written, and nothing is run after it; `KeyboardInterrupt` and what a test runner ends
    a test with pass at once. Raises `AssertionError` after 10,000 runs, for something re-enqueues itself.
    """
    sources = [source for source in Worker(queues or None).sources() if isinstance(source, LeasingSource)]
    return _Drain(sources, ignore_delays=ignore_delays, raise_errors=raise_errors).run()


def assert_enqueued(queue: Queue[Any] | JobQueue | str, key_or_kind: Any, **expect: Any) -> list[Any]:
    """Assert that a key (or jobs of a kind) is waiting or being worked; the rows found, the inbox included.

    The queue may be named. The kind of a task is its `module_path`. `expect` may hold `priority`, `delay` (a timedelta,
    to within 10 s), `attempts` and `count`; for jobs also `payload`, `run_at` and `max_attempts`. An error lists what
    there is of that name, or else in the queue.
    """
    source = _source(queue)
    rows = _items(source, key_or_kind) if isinstance(source, KeyedSource) else _jobs(source, key_or_kind)
    count = expect.pop("count", None)
    found = [row for row in rows if all(_matches(row, name, value) for name, value in expect.items())]
    wanted = f"{key_or_kind!r}" + "".join(f", {name}={value!r}" for name, value in expect.items())
    if count is None and not found:
        raise AssertionError(f"{wanted} is not enqueued on {queue!r}; {_what_there_is(source, rows)}")
    if count is not None and len(found) != count:
        there = _what_there_is(source, rows)
        raise AssertionError(f"{wanted} is enqueued {len(found)} times on {queue!r}, not {count}; {there}")
    return found


@contextlib.contextmanager
def immediate(*, raise_errors: bool = False) -> Iterator[None]:
    """Run the handlers of a queue as soon as anything is enqueued to it. A context manager and a decorator.

    What handlers enqueue is run too, after them. Only for the thread that enqueues. With `raise_errors`, the first
    exception of a handler is raised by the enqueue.
    """
    running = threading.local()

    def run(source: engine.Source) -> None:
        if isinstance(source, ListedSource) and source.finder is None:
            discovery.bring([source.name])
        waiting = getattr(running, "waiting", None)
        if waiting is not None:
            waiting.append(source)
            return
        running.waiting = [source]
        try:
            for each in running.waiting:
                if each.handlers and isinstance(each, LeasingSource):
                    _Drain([each], ignore_delays=False, raise_errors=raise_errors).run()
        finally:
            running.waiting = None

    engine.after_enqueue.append(run)
    try:
        yield
    finally:
        engine.after_enqueue.remove(run)


class _Drain:
    def __init__(self, sources: Sequence[LeasingSource], *, ignore_delays: bool, raise_errors: bool) -> None:
        self.sources = sources
        self.ignore_delays = ignore_delays
        self.raise_errors = raise_errors
        self.counts = Counts()
        self.runs = 0
        self.calls: dict[int, Call] = {}  # by the id of the handler, of which running may bring more
        self.failed: dict[int, set[Any]] = {id(source): set() for source in sources}

    def run(self) -> Counts:
        while any([self._once(source) for source in self.sources]):  # noqa: C419 - each of them
            pass
        return self.counts

    def _once(self, source: LeasingSource) -> bool:
        if self.ignore_delays:
            source.here(
                lambda table: table.hurry(source.name, None, skip=sorted(self.failed[id(source)]), limit=2**31 - 1)
            )
        of_kind = {str(handler.kind): handler for handler in source.handlers if handler.kind is not None}
        if of_kind:
            works = self._claim(source, sorted(of_kind))
            for work in works:
                self._work(source, of_kind[work.kind], [work])
            return bool(works)
        (handler,) = source.handlers
        works = self._claim(source, None)
        size = handler.size or 1
        for start in range(0, len(works), size):
            self._work(source, handler, works[start : start + size])
        return bool(works)

    def _claim(self, source: LeasingSource, kinds: list[str] | None) -> list[Any]:
        works = source.claim_here(source.max_claim, LEASE, kinds)
        self.counts.reclaimed += sum(work.reclaimed for work in works)
        return works

    def _work(self, source: LeasingSource, handler: Handler, works: list[Any]) -> None:
        self.runs += len(works)
        if self.runs > MOST_RUNS:
            raise AssertionError(
                f"drain() made {MOST_RUNS:,} runs, the last on {source.name!r}: does it enqueue itself?"
            )
        call = self.calls.get(id(handler)) or self.calls.setdefault(id(handler), Call(handler))
        outcomes = self._outcomes(call, works, source.alias)
        settled = source.here(lambda table: source.settle(table, outcomes))
        self.counts.completed += settled.completed
        self.counts.failed += settled.failed
        self.counts.retried += settled.retried
        endless = isinstance(source, KeyedSource) and not source.settings.max_attempts
        for outcome in outcomes:
            if outcome.verb is Verb.SNOOZE or (outcome.verb is Verb.FAIL and endless):
                self.failed[id(source)].add(source.idents([outcome.work])[0])
        error = next((each.error for each in outcomes if each.verb in (Verb.FAIL, Verb.FINISH)), None)
        if self.raise_errors and error is not None:
            raise error

    def _outcomes(self, call: Call, works: list[Any], alias: str) -> list[Outcome]:
        handler = call.handler
        fn = async_to_sync(call.fn) if handler.is_async else call.fn
        argument = works[0] if handler.size is None else works
        savepoint = transaction.atomic(using=alias) if connections[alias].in_atomic_block else contextlib.nullcontext()
        try:
            with savepoint:
                result = contextvars.copy_context().run(fn, argument)
        except _FAILURES as error:
            return call.all_raised(works, error)
        return [call.returned(works[0], result)] if handler.size is None else call.all_returned(works, result)


def _source(queue: Any) -> LeasingSource:
    """The source of a queue, or of that name."""
    if not isinstance(queue, str):
        source = getattr(queue, "source", None)
        if not isinstance(source, LeasingSource):
            raise TypeError(f"expected a queue or its name, not {queue!r}")
        return source
    discovery.bring([queue])
    found = [each for each in engine.registered() if each.name == queue and isinstance(each, LeasingSource)]
    if not found:
        names = ", ".join(sorted({repr(each.name) for each in engine.registered()})) or "none"
        raise ValueError(f"this process has no queue {queue!r}. Those it has: {names}.")
    if len(found) > 1:
        aliases = ", ".join(repr(each.alias) for each in found)
        raise ValueError(f"this process has a queue {queue!r} on each of {aliases}: give the queue, not its name.")
    return found[0]


def _items(source: KeyedSource, key: Any) -> list[Any]:
    text = source.settings.key.encode(key)
    return [row for rows in _enqueued(source) for row in rows.filter(key=text)]


def _jobs(source: LeasingSource, kind: Any) -> list[Any]:
    return [row for rows in _enqueued(source) for row in rows.filter(kind=kind)]


def _enqueued(source: LeasingSource) -> list[QuerySet[Any]]:
    """All that waits or is being worked, of each table that may hold it."""
    from .models import InboxEntry  # noqa: PLC0415 - models are not ready at import

    rows = source.table().filter(queue=source.name)
    if not isinstance(source, KeyedSource):
        return [rows.filter(outcome=None).order_by("id")]
    inbox = InboxEntry.objects.using(source.alias).filter(queue=source.name)
    return [rows.filter(completed_at=None, stalled_at=None).order_by("key"), inbox.order_by("id")]


def _what_there_is(source: LeasingSource, alike: Sequence[Any]) -> str:
    """What somebody needs to see who looked in vain: those alike, or else whatever is enqueued, of either a few."""
    if alike:
        return f"there is {_listed(alike, len(alike))}"
    tables = _enqueued(source)
    number = sum(rows.count() for rows in tables)
    if not number:
        return "nothing is enqueued there"
    some = [row for rows in tables for row in rows[:SHOWN]]
    return f"nothing of that name, but there is {_listed(some, number)}"


def _listed(rows: Sequence[Any], number: int) -> str:
    more = f" and {number - SHOWN:,} more" if number > SHOWN else ""
    return ", ".join(map(_shown, rows[:SHOWN])) + more


def _matches(row: Any, name: str, value: Any) -> bool:
    if name == "delay":
        return bool(abs(row.available_at - (_now() + value)) <= NEAR)
    if name == "run_at":
        return bool(row.available_at == value)
    if name == "payload":
        return bool(row.payload == payloads.loads(payloads.dumps(value)))
    if name not in ("priority", "attempts", "max_attempts"):
        known = "priority, delay, attempts, count; for jobs payload, run_at, max_attempts"
        raise TypeError(f"assert_enqueued() knows {known}; not {name!r}")
    return bool(getattr(row, name, 0) == value)


def _now() -> datetime:
    return timezone.now()


def _shown(row: Any) -> str:
    what = f"{row.key:.80}" if hasattr(row, "key") else f"job {row.id} {row.kind} {row.payload!r:.80}"
    return f"{what} (priority {row.priority}, due {row.available_at:%Y-%m-%d %H:%M:%S})"
