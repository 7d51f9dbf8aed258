"""What happens to the queues, counted: in memory as it happens, and every few seconds added to the minute's row.

Owns the counters of this process and how they reach the table. Who counts, and on which thread and connection they
are written, is for others.
"""

from __future__ import annotations

import contextlib
import os
import threading
from bisect import bisect_left, bisect_right
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from time import monotonic
from typing import Any

from django.db.backends.base.base import BaseDatabaseWrapper

from . import conf, histogram
from .database import Connection
from .sql import minutes

EVERY = 5.0  # seconds between two writes
PRUNE_BATCH = 5000


@dataclass(slots=True)
class Durations:
    """Durations in µs: their sum, and how many are in each bucket."""

    total: int = 0
    counts: list[int] = field(default_factory=lambda: [0] * histogram.BUCKETS)

    def add(self, durations: Iterable[float]) -> None:
        """Count these. Sorted, hundreds fall into buckets by a few searches; those of one claim nearly are already."""
        ordered = sorted(durations)
        if ordered and ordered[0] < 0:
            ordered = [max(duration, 0.0) for duration in ordered]
        self.total += round(sum(ordered))
        at, end = 0, len(ordered)
        while at < end:
            place = bisect_left(_BOUNDS, ordered[at])
            past = end if place == len(_BOUNDS) else bisect_right(ordered, _BOUNDS[place], at)
            self.counts[place] += past - at
            at = past

    def merge(self, other: Durations) -> None:
        """Add the other's to these."""
        self.total += other.total
        self.counts = histogram.merged(self.counts, other.counts)


@dataclass(slots=True)
class Events:
    """What happened to one queue, or to one kind of its jobs.

    `started` and `wait` are counted when a handler begins, `run` and the outcomes when these are written. `failed` are
    runs that raised; `dead` is what will not run again by itself: of these, and of last attempts whose lease lapsed.
    """

    enqueued: int = 0
    started: int = 0
    completed: int = 0
    failed: int = 0
    dead: int = 0
    reclaimed: int = 0
    lost: int = 0
    wait: Durations = field(default_factory=Durations)
    run: Durations = field(default_factory=Durations)

    def merge(self, other: Events) -> None:
        """Add the other's to these."""
        for name in _NUMBERS:
            setattr(self, name, getattr(self, name) + getattr(other, name))
        self.wait.merge(other.wait)
        self.run.merge(other.run)


class Ledger:
    """The counters of one database alias in this process. Counted into by any thread, a batch at a time."""

    def __init__(self, alias: str) -> None:
        self.alias = alias
        self.begin()

    def begin(self) -> None:
        """Begin with nothing; in a forked child, where what was counted is the parent's."""
        self._lock = threading.Lock()  # guards the rest
        self._events: dict[tuple[str, str], Events] = {}
        self._due = float("inf")

    def count(
        self,
        queue: str,
        kind: str = "",
        *,
        waits: Iterable[float] = (),
        runs: Iterable[float] = (),
        **numbers: int,
    ) -> None:
        """Add to the numbers of a queue, or of one kind of its jobs; durations in µs."""
        with self._lock:
            events = self._events.get((queue, kind))
            if events is None:
                events = self._events[queue, kind] = Events()
                if self._due == float("inf"):
                    self._due = monotonic() + EVERY
            for name, number in numbers.items():
                setattr(events, name, getattr(events, name) + number)
            if waits:
                events.wait.add(waits)
            if runs:
                events.run.add(runs)

    def due_in(self) -> float:
        """Seconds until what was counted is to be written; infinite if nothing was."""
        return self._due - monotonic()

    def write(self, connection: Connection, *, patience: float = float("inf")) -> None:
        """Write what was counted, in a statement for each queue; what is not written after `patience`, next time.

        Raises what the database raises; what could not be written is kept.
        """
        until = monotonic() + patience
        left = self._take()
        try:
            for queue in sorted({queue for queue, _ in left}):
                if monotonic() > until:
                    break
                kinds = sorted(kind for of, kind in left if of == queue)
                connection.execute(minutes.ADD.of(queue), _columns({kind: left[queue, kind] for kind in kinds}))
                for kind in kinds:
                    del left[queue, kind]
        finally:
            self._put_back(left)

    def _take(self) -> dict[tuple[str, str], Events]:
        with self._lock:
            taken, self._events = self._events, {}
            self._due = float("inf")
            return taken

    def _put_back(self, left: Mapping[tuple[str, str], Events]) -> None:
        with self._lock:
            for key, events in left.items():
                if key in self._events:
                    self._events[key].merge(events)
                else:
                    self._events[key] = events
            if self._events:
                self._due = monotonic() + EVERY


def ledger(alias: str) -> Ledger:
    """The process's counters of an alias."""
    found = _ledgers.get(alias)
    return found if found is not None else _ledgers.setdefault(alias, Ledger(alias))


def after_commit(
    connection: BaseDatabaseWrapper, queue: str, enqueued: Mapping[str, int], then: Callable[[], Any]
) -> None:
    """Count what was enqueued, by kind, once the caller's transaction commits, unless its savepoint is rolled back.

    `then` is called after it was counted. Manual transactions have no such moment: it is counted at once.
    """
    if not connection.in_atomic_block:
        _Enqueued(connection.alias, queue, Counter(enqueued), then).committed()
        return
    if connection.run_on_commit:
        savepoints, hook, *_ = connection.run_on_commit[-1]
        last = getattr(hook, "__self__", None)
        # What is in the same savepoints has the same fate.
        if isinstance(last, _Enqueued) and last.queue == queue and savepoints == set(connection.savepoint_ids):
            last.enqueued.update(enqueued)
            return
    connection.on_commit(_Enqueued(connection.alias, queue, Counter(enqueued), then).committed, robust=True)


def prune(connection: Connection, *, enough: Callable[[], bool] = lambda: False) -> int:
    """Delete the minutes of all queues that are older than `WORKQUEUE_HISTORY`, or until it is `enough`; how many.

    A few at a time, the oldest first, each batch of one queue. What somebody else is deleting is left to them.
    """
    params = {"history": conf.history() // timedelta(microseconds=1), "limit": PRUNE_BATCH}
    pruned, before = 0, -1
    while pruned > before and not enough():
        before = pruned
        for (queue,) in sorted(connection.execute(minutes.OLD.text, params, prepare=False)):
            pruned += connection.execute(minutes.PRUNE.of(queue), params, prepare=False)[0][0]
    return pruned


def prune_here(alias: str) -> int:
    """The same on a connection for the purpose."""
    with contextlib.closing(Connection(alias, application="django_workqueue reap")) as connection:
        return prune(connection)


@dataclass(slots=True)
class _Enqueued:
    """What a transaction has enqueued to one queue, as one of its commit hooks."""

    alias: str
    queue: str
    enqueued: Counter[str]
    then: Callable[[], Any]

    def committed(self) -> None:
        """What Django calls."""
        for kind, number in self.enqueued.items():
            ledger(self.alias).count(self.queue, kind, enqueued=number)
        self.then()


def _columns(kinds: Mapping[str, Events]) -> dict[str, Any]:
    """As the statement takes them."""
    events = list(kinds.values())
    columns: dict[str, Any] = {name: _array([getattr(each, name) for each in events]) for name in _NUMBERS}
    return columns | {
        "kinds": list(kinds),
        "wait_us": _array([each.wait.total for each in events]),
        "run_us": _array([each.run.total for each in events]),
        "wait_histogram": [_array(histogram.trimmed(each.wait.counts)) for each in events],
        "run_histogram": [_array(histogram.trimmed(each.run.counts)) for each in events],
    }


def _array(numbers: Sequence[int]) -> str:
    """As the server reads it. psycopg would type a list by its largest member: each type a prepared statement."""
    return f"{{{','.join(map(str, numbers))}}}"


def _forked() -> None:
    for each in _ledgers.values():
        each.begin()


_NUMBERS = ("enqueued", "started", "completed", "failed", "dead", "reclaimed", "lost")
_BOUNDS = tuple(map(float, histogram.BOUNDS))
_ledgers: dict[str, Ledger] = {}

os.register_at_fork(after_in_child=_forked)
