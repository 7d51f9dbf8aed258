"""What people do to queues by hand: to some of their work, to all that matches, or to all there is.

Each call is a number of statements that commit by themselves, in batches or for one row each; what does not fit into
the time it has is left for the next call. What was done is known also where a call fails half-way. Permissions and the
log are for the pages.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from typing import Any, TypeVar

from django.db import DatabaseError

from . import conf, database, keyed, lanes, listed
from .browsing import Browser, Cursor, Filters
from .inventory import KnownQueue
from .keys import CheckedCodec, check_priority
from .leasing import LeasingSource
from .sql import Statement
from .sql import steer as sql

BATCH = 1000  # rows of one statement …
FIRST = 10  # … and of a call's first, as nobody knows how long a row takes …
GROWTH = 4  # … and how many times as many the next has
BUDGET = timedelta(seconds=5)  # of one call
PATIENCE = timedelta(seconds=1)  # with a transaction that holds a row

T = TypeVar("T")
Deed = Callable[[KnownQueue, Sequence[Any], Mapping[str, Any]], int]


class Held(Exception):
    """Somebody's open transaction holds a row, and did not let go of it. What was sent with it was not done."""


def retry(queue: KnownQueue, ids: Sequence[int], _options: Mapping[str, Any]) -> int:
    """Let dead and cancelled jobs start afresh."""
    return _jobs(queue).retry_here(ids)


def cancel(queue: KnownQueue, ids: Sequence[int], _options: Mapping[str, Any]) -> int:
    """Cancel pending and running jobs."""
    return _jobs(queue).cancel_here(ids)


def delete(queue: KnownQueue, ids: Sequence[int], _options: Mapping[str, Any]) -> int:
    """Delete jobs, whatever their state. The outcome of one that runs is dropped."""
    return _send(queue.source, sql.JOB_DELETE, ids, {})


def hurry(queue: KnownQueue, idents: Sequence[Any], _options: Mapping[str, Any]) -> int:
    """Let what waits for its time be due now."""
    source = queue.source
    return _woken(
        source, source.in_pieces(idents, lambda table, some: table.hurry(source.name, some, limit=BATCH), BATCH)
    )


def prioritize_jobs(queue: KnownQueue, ids: Sequence[int], options: Mapping[str, Any]) -> int:
    """Give pending jobs another priority."""
    return _send(queue.source, sql.JOB_PRIORITY, ids, {"priority": check_priority(options["priority"])})


def prioritize_items(queue: KnownQueue, keys: Sequence[str], options: Mapping[str, Any]) -> int:
    """Give waiting items another priority."""
    return _send(queue.source, sql.ITEM_PRIORITY, keys, {"priority": check_priority(options["priority"])})


def release(queue: KnownQueue, keys: Sequence[str], options: Mapping[str, Any]) -> int:
    """Let items be due now: those leased are given back, those scheduled do not wait any longer."""
    released = _items(queue).release_here([], keys, delay=0, error=None)
    return _woken(queue.source, released) + hurry(queue, keys, options)


def complete(queue: KnownQueue, keys: Sequence[str], _options: Mapping[str, Any]) -> int:
    """Finish leased items, whoever holds them."""
    if queue.configured:
        return _items(queue).complete_here([], keys)
    # Nobody here says for how long it is kept: the reaper of those who know will.
    source = _items(queue)
    return source.in_pieces(
        keys, lambda table, some: source.announced(table.complete(queue.name, some, keep=True)), BATCH
    )


def remove(queue: KnownQueue, keys: Sequence[str], _options: Mapping[str, Any]) -> int:
    """Delete items, whatever their state, and what of them is still to be taken in."""
    return _items(queue).remove_here(keys)


def revive(queue: KnownQueue, keys: Sequence[str], _options: Mapping[str, Any]) -> int:
    """Let stalled items start afresh."""
    return _send(queue.source, sql.ITEM_REVIVE, keys, {})


JOB_DEEDS: dict[str, Deed] = {
    "retry": retry,
    "cancel": cancel,
    "hurry": hurry,
    "priority": prioritize_jobs,
    "delete": delete,
}
ITEM_DEEDS: dict[str, Deed] = {
    "release": release,
    "complete": complete,
    "revive": revive,
    "priority": prioritize_items,
    "remove": remove,
}


class Pace:
    """The time that a call has, and how many `rows` its next statement takes: few at first, then as many as fit."""

    def __init__(self, budget: timedelta) -> None:
        self.rows = min(FIRST, BATCH)
        self._since = time.monotonic()
        self._deadline = self._since + budget.total_seconds()

    def goes_on(self, rows: int) -> bool:
        """Note that so many rows were done since the last; whether there is time for more."""
        now = time.monotonic()
        took, self._since = now - self._since, now
        left = self._deadline - now
        if left > 0 and rows and took > 0:
            fitting = int(left / took * rows)
            self.rows = max(1, min(self.rows * GROWTH, BATCH, fitting))
            return fitting > 0
        return left > 0


@dataclass(slots=True)
class Progress:
    """How much was done so far, and where to go on: None at the beginning, and when all is."""

    done: int = 0
    next: Cursor | None = None


def to_some(
    queues: Mapping[str, KnownQueue], deed: Deed, chosen: Sequence[tuple[str, Any]], **options: Any
) -> Iterator[int]:
    """Do it to the work named by queue and ident, queue by queue; how much was changed in each.

    Queues that there are not are passed over. Raises `Held`.
    """
    by_queue: dict[str, list[Any]] = {}
    for queue, ident in chosen:
        by_queue.setdefault(queue, []).append(ident)
    for queue, idents in sorted(by_queue.items()):
        if queue in queues:
            yield _impatiently(queues[queue], partial(deed, queues[queue], sorted(set(idents)), options))


def to_each(
    queues: Mapping[str, KnownQueue],
    deed: Deed,
    chosen: Iterable[tuple[str, Any]],
    *,
    budget: timedelta = BUDGET,
    **options: Any,
) -> Iterator[tuple[tuple[str, Any], bool | None]]:
    """Do it to the work named by queue and ident, one after the other, for as long as `budget` lasts.

    Each that it was done to comes as soon as it was, and whether that changed it; None for one that is held.
    """
    pace = Pace(budget)
    for each in chosen:
        changed = None
        with suppress(Held):
            changed = any(to_some(queues, deed, [each], **options))
        yield each, changed
        if not pace.goes_on(1):
            return


def to_all(
    browser: Browser[Any],
    filters: Filters,
    deed: Deed,
    progress: Progress,
    *,
    budget: timedelta = BUDGET,
    **options: Any,
) -> None:
    """Do it to all that matches from `progress` on, batch by batch, for as long as `budget` lasts. Raises `Held`."""
    pace = Pace(budget)
    queues = {queue.name: queue for queue in browser.queues}
    while True:
        page = browser.page(filters, progress.next, limit=pace.rows)
        for changed in to_some(queues, deed, [(row.queue, row.ident) for row in page.rows], **options):
            progress.done += changed
        progress.next = page.next
        if not pace.goes_on(len(page.rows)) or page.next is None:
            return


def retry_all(queue: KnownQueue, progress: Progress, *, budget: timedelta = BUDGET) -> bool:
    """Let all that is dead or stalled start afresh, for as long as `budget` lasts; whether there is more.

    What somebody's open transaction holds is left alone. Raises `Held` where that is the table.
    """
    statement = sql.JOB_RETRY_ALL if queue.face == "jobs" else sql.ITEM_REVIVE_ALL
    try:
        return _drained(queue, [statement], progress, budget)
    finally:
        _woken(queue.source, progress.done)


PURGES = ("waiting", "finished", "leased")


def purge(queue: KnownQueue, what: Sequence[str], progress: Progress, *, budget: timedelta = BUDGET) -> bool:
    """Delete all that waits, is finished or is leased, for as long as `budget` lasts; whether there is more.

    What somebody's open transaction holds is left alone. Raises `Held` where that is the table.
    """
    purges = sql.JOB_PURGES if queue.face == "jobs" else sql.ITEM_PURGES
    statements = [statement for each in what for statement in purges[each]]
    return _drained(queue, statements, progress, budget)


def pause(queue: KnownQueue) -> None:
    """Note that the queue is paused. Raises `Held`."""
    _impatiently(queue, queue.source.pause_here)


def resume(queue: KnownQueue) -> None:
    """Note that it is not. Raises `Held`."""
    _impatiently(queue, queue.source.resume_here)


def enqueue(queue: KnownQueue, key: str, *, priority: int = 0, delay: timedelta = timedelta(0)) -> str:
    """Add an encoded key by hand; the key as it is stored.

    Of what decodes to equal keys one text is stored, where this process has the queue's codec. Raises `InvalidKey` for
    a key that cannot be, `KeyDecodeError` for one that the codec does not take.
    """
    source = _items(queue)
    CheckedCodec(str, queue=source.name).encode(key)
    stored = source.settings.key.canonical(key)
    waiting = (stored, check_priority(priority), lanes.due_after(delay))
    if database.inside_transaction(source.alias):
        source.enqueue_inside([waiting])
    else:
        source.commits.batcher.submit(source.lane, [waiting], conf.enqueue_timeout().total_seconds())
    return stored


def _items(queue: KnownQueue) -> keyed.KeyedSource:
    assert isinstance(queue.source, keyed.KeyedSource)  # noqa: S101 - the pages know which is which
    return queue.source


def _jobs(queue: KnownQueue) -> listed.ListedSource:
    assert isinstance(queue.source, listed.ListedSource)  # noqa: S101 - the pages know which is which
    return queue.source


def _send(source: LeasingSource, statement: Statement, idents: Sequence[Any], params: Mapping[str, Any]) -> int:
    def send(table: Any, some: list[Any]) -> int:
        count: int = table.send(statement, source.name, {"idents": some, **params})[0][0]
        return count

    return _woken(source, source.in_pieces(idents, send, BATCH))


def _drained(queue: KnownQueue, statements: Sequence[Statement], progress: Progress, budget: timedelta) -> bool:
    source = queue.source

    def send(statement: Statement, rows: int) -> int:
        count: int = source.here(lambda table: table.send(statement, source.name, {"limit": rows})[0][0])
        return count

    pace, left = Pace(budget), list(statements)
    while left:
        statement, rows = left[0], pace.rows
        batch = _impatiently(queue, partial(send, statement, rows))
        progress.done += batch
        if batch < rows:
            left.pop(0)
        if not pace.goes_on(batch) and left:
            return True
    return False


def _impatiently(queue: KnownQueue, call: Callable[[], T]) -> T:
    """Make a call in a transaction that gives up where it waits for a lock: again after a deadlock, as `here` does."""

    def once() -> T:
        with database.impatient(queue.alias, PATIENCE):
            return call()

    try:
        return once() if database.inside_transaction(queue.alias) else database.retrying(once)
    except DatabaseError as error:
        if database.verdict(error) is not database.Verdict.LOCKED:
            raise
        raise Held from error


def _woken(source: LeasingSource, done: int) -> int:
    if done:
        source.wake()
    return done
