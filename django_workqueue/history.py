"""What happened to queues minute by minute, and which processes work them: what the dashboard plots.

Reads the minute counters and the table of workers; writes neither. A long time with many queues is judged by some of
its minutes, always in the same proportion.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any

from django.db import OperationalError

from . import database, histogram, reading
from .sql import Statement
from .sql import history as sql

MOST = 10_000  # rows of minutes that one look reads
STRIDES = (1, 7, 11, 13, 17, 19, 23, 29, 31, 37, 41, 43, 47, 53, 59)  # prime to the hour: they meet each of its minutes
PATIENCE = timedelta(milliseconds=250)
PLANNING = {"jit": "off", "enable_seqscan": "off"}
MOST_WORKERS = 500


@dataclass(frozen=True, slots=True)
class Span:
    """A stretch of time up to the last full minute, in buckets of `per` minutes."""

    name: str
    minutes: int
    per: int

    @property
    def buckets(self) -> int:
        """How many there are."""
        return self.minutes // self.per


HOUR = Span("1h", 60, 1)
DAY = Span("24h", 24 * 60, 15)
WEEK = Span("7d", 7 * 24 * 60, 120)
SPANS = {span.name: span for span in (HOUR, DAY, WEEK)}


@dataclass(slots=True)
class Counts:
    """One queue's counters, a number for each bucket, oldest first. Times are sums in µs."""

    enqueued: list[int]
    started: list[int]
    completed: list[int]
    failed: list[int]
    dead: list[int]
    wait: list[int]
    run: list[int]

    @classmethod
    def nothing(cls, span: Span) -> Counts:
        """No counts at all."""
        return cls(*([0] * span.buckets for _ in cls.__slots__))

    def add(self, other: Counts) -> None:
        """Add the other's to these."""
        for name in self.__slots__:
            mine, theirs = getattr(self, name), getattr(other, name)
            setattr(self, name, [one + two for one, two in zip(mine, theirs, strict=True)])

    def failure_rates(self) -> list[float | None]:
        """The share of attempts that failed, where any ended."""
        return [
            failed / (failed + completed) if failed + completed else None
            for failed, completed in zip(self.failed, self.completed, strict=True)
        ]

    def mean_waits(self) -> list[float | None]:
        """How long what was started had waited, in µs."""
        return [wait / started if started else None for wait, started in zip(self.wait, self.started, strict=True)]


@dataclass(slots=True)
class History:
    """What happened in a span that ended at `until`. `one_in` minutes was looked at; `partly` tells that time ran out.

    `quantiles["wait"][0.95]` has a duration in µs, or None, for each bucket.
    """

    span: Span
    until: datetime
    one_in: int = 1
    partly: bool = False
    queues: dict[str, Counts] = field(default_factory=dict)
    quantiles: dict[str, dict[float, list[float | None]]] = field(default_factory=dict)

    def of(self, queue: str) -> Counts:
        """One queue's counts."""
        return self.queues.get(queue) or Counts.nothing(self.span)

    def total(self) -> Counts:
        """All queues' counts together."""
        total = Counts.nothing(self.span)
        for counts in self.queues.values():
            total.add(counts)
        return total

    def start_of(self, bucket: int) -> datetime:
        """When a bucket began."""
        return self.until - timedelta(minutes=self.span.minutes - bucket * self.span.per)


@dataclass(frozen=True, slots=True)
class Worker:
    """A worker process as its row tells it. `silence` is how long ago it said that."""

    id: str
    host: str
    pid: int
    queues: list[str]
    concurrency: int
    in_flight: int
    started_at: datetime
    silence: timedelta
    age: timedelta


def history(alias: str, span: Span, *, queue: str | None = None, fractions: Sequence[float] = ()) -> History:
    """What happened on an alias, to one queue or (None) to all; with quantiles where fractions are asked for."""
    (density, until), *_ = _ask(alias, sql.DENSITY, queue=queue) or [(0, None)]
    moment = datetime.fromtimestamp(until / 1_000_000, UTC) if until is not None else datetime.now(UTC)
    one_in = next((stride for stride in STRIDES if float(density) * span.minutes / stride <= MOST), STRIDES[-1])
    found = History(span, moment, one_in, partly=until is None)
    how = {"span": span.minutes, "per": span.per, "every": one_in, "queue": queue}
    rows = _ask(alias, sql.COUNTS, **how)
    found.partly = found.partly or rows is None
    for name, bucket, *counts in rows or ():
        series = found.queues.setdefault(name, Counts.nothing(span))
        for column, count in zip(Counts.__slots__, counts, strict=True):
            getattr(series, column)[bucket] += count * one_in
    if fractions:
        _add_quantiles(alias, found, how, fractions)
    return found


def _add_quantiles(alias: str, found: History, how: dict[str, Any], fractions: Sequence[float]) -> None:
    rows = _ask(alias, sql.HISTOGRAMS, **how)
    found.partly = found.partly or rows is None
    histograms: dict[tuple[str, int], list[int]] = defaultdict(lambda: [0] * histogram.BUCKETS)
    for bucket, what, place, count in rows or ():
        if place <= histogram.BUCKETS:
            histograms[what, bucket][place - 1] += count
    for what in ("wait", "run"):
        found.quantiles[what] = {
            fraction: [histogram.quantile(histograms[what, bucket], fraction) for bucket in range(found.span.buckets)]
            for fraction in fractions
        }


def workers(alias: str, *, limit: int = MOST_WORKERS) -> list[Worker]:
    """The worker processes that have a row, by host."""
    return [
        Worker(
            id,
            host,
            pid,
            [str(name) for name in (json.loads(queues) if isinstance(queues, str) else queues)],
            concurrency,
            in_flight,
            started_at,
            timedelta(microseconds=silence),
            timedelta(microseconds=age),
        )
        for id, host, pid, queues, concurrency, in_flight, started_at, silence, age in _ask(  # noqa: A001
            alias, sql.WORKERS, limit=limit
        )
        or ()
    ]


def _ask(alias: str, statement: Statement, **params: Any) -> database.Rows | None:
    """The statement's rows, or None if the server took too long."""
    try:
        return reading.rows(alias, statement.text, params, patience=PATIENCE, **PLANNING)
    except OperationalError as error:
        if database.sqlstate(error) != database.CANCELLED:
            raise
        return None
