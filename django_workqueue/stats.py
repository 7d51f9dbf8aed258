"""How much work a queue holds, by state: exactly, or at a bounded cost.

Knows which statements to send and how to add up their answers; the statements are in `sql/stats.py`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any, TypeVar

from django.db import OperationalError

from . import database
from .database import Rows
from .managers import WorkItemQuerySet, WorkJobQuerySet
from .sql import Statement
from .sql import stats as sql

T = TypeVar("T")

EXACT_TO = 10_000  # counts up to this are exact at a bounded cost too
PAGES, ONE_IN = 1_000, 4  # of a big table, judged by one row in four of so many pages
FRONT, BACK = 3_000, 1_000  # rows looked at from either end of what has begun, shared by the priorities
RANKS = 64  # priorities looked at one by one
FEW = 10  # rows of a kind looked at where a look at more took too long
NEAR = 3 * EXACT_TO  # an estimate below this may be wrong enough to count
PATIENCE = timedelta(milliseconds=250)  # for one statement that has to get past what is dead or not committed yet
# Compiling takes longer than what is compiled, and the planner, who expects few rows, would sort them to group them.
PLANNING = {"jit": "off", "enable_sort": "off"}

ALL = 100.0  # percent
BEGUN = ("ready", "leased", "spent")  # their time has come
LATER = ("scheduled",)
CLOSED = ("completed", "stalled")


@dataclass(frozen=True, slots=True)
class QueueStats:
    """Counts by state. `pending` is `ready` plus `scheduled`; a lapsed lease is ready again.

    `oldest_ready_age` is how long the longest waiting ready item has been due; zero if there is none.
    """

    pending: int
    ready: int
    scheduled: int
    leased: int
    stalled: int
    completed: int
    oldest_ready_age: timedelta


def exact(table: WorkItemQuerySet | WorkJobQuerySet, queue: str, *, max_attempts: int = 0) -> QueueStats:
    """Counted, which takes as long as the queue is."""
    ready, scheduled, leased, stalled, completed, oldest = table.stats(queue, max_attempts=max_attempts)
    return QueueStats(
        ready + scheduled, ready, scheduled, leased, stalled, completed, timedelta(microseconds=max(oldest, 0))
    )


def bounded(table: WorkItemQuerySet | WorkJobQuerySet, queue: str, *, max_attempts: int = 0) -> QueueStats:
    """Counted as far as `EXACT_TO` rows of a kind, and estimated beyond, from a bounded number of rows.

    An age that had to be estimated is never too high.
    """
    return _Look(table, queue, max_attempts).stats()


@dataclass(slots=True)
class _Tally:
    """Rows by state, and the age in µs of the oldest ready one."""

    counts: Counter[str] = field(default_factory=Counter)
    oldest: int = 0

    def add(self, state: str, count: int, age: int | None) -> None:
        self.counts[state] += count
        if state == "ready" and age is not None:
            self.oldest = max(self.oldest, age)

    def total(self, states: Iterable[str]) -> int:
        return sum(self.counts[state] for state in states)


class _Look:
    """One bounded look at one queue."""

    def __init__(self, table: WorkItemQuerySet | WorkJobQuerySet, queue: str, max_attempts: int) -> None:
        self.table = table
        self.queue = queue
        self.params = {"max": max_attempts, "cap": EXACT_TO + 1}
        self.statements = sql.JOBS if isinstance(table, WorkJobQuerySet) else sql.ITEMS
        self.seen = _Tally()
        self.moves: list[tuple[str | None, str, int]] = []  # what a fold would change: from, to, how many

    def stats(self) -> QueueStats:
        """Count what is small, and judge the rest by a sample."""
        rows = self._briefly(self.statements.count)
        if rows is None:
            self._judge_unseen()
        else:
            pages, inbox_pages, inbox_entries = self._take(rows)
            self._judge(pages)
            if inbox_entries > EXACT_TO:
                self._stretch_moves(self._inbox_entries(inbox_pages) / inbox_entries)
        return self._summed()

    def _take(self, rows: Rows) -> tuple[int, int, int]:
        """Take in what was counted; the pages of table and inbox, and how many of the inbox's entries were seen."""
        pages = inbox_pages = inbox_entries = 0
        for part, was, state, count, entries, age, size in rows:
            if part == "moved":
                self.moves.append((was, state, count))
                self.seen.add(state, 0, age)
                inbox_pages, inbox_entries = size, inbox_entries + entries
            else:
                self.seen.add(state, count, age)
                pages = size
        return pages, inbox_pages, inbox_entries

    def _judge(self, pages: int) -> None:
        """Replace the counts that were cut short."""
        cut = [state for state in CLOSED if self.seen.counts[state] > EXACT_TO]
        crowded = self.seen.total(BEGUN + LATER) > EXACT_TO
        if not cut and not crowded:
            return
        ranks = self._ranks() if crowded and pages > PAGES else []
        judged, gaps = self._sample(pages, ranks[:RANKS])
        if 0 < len(ranks) <= RANKS:
            if gaps:
                self._count_if_near(judged, BEGUN, self.statements.begun, ranks)
            self._count_if_near(judged, LATER, self.statements.later, ranks)
        self._raise_to(judged, (*cut, *(BEGUN + LATER if crowded else ())))

    def _judge_unseen(self) -> None:
        """Estimate where too much is in the way to count: what is dead, or not committed yet. A few rows are seen."""
        pages, inbox_pages, inbox_entries = self._take(self._briefly(self.statements.count, cap=FEW) or [])
        if not pages:
            pages = sum(size for (size,) in self._ask(self.statements.pages))
        judged, _ = self._sample(pages, [])
        self._raise_to(judged, BEGUN + LATER + CLOSED)
        if self.statements is sql.ITEMS and not 0 < inbox_entries < FEW:
            inbox_pages = inbox_pages or self._ask(sql.INBOX_PAGES)[0][0]
            self.moves = [(None, "ready", self._inbox_entries(inbox_pages))]

    def _raise_to(self, judged: _Tally, states: Iterable[str]) -> None:
        """Take a judgement, but no less than what was seen."""
        for state in states:
            self.seen.counts[state] = max(self.seen.counts[state], judged.counts[state])
        self.seen.oldest = max(self.seen.oldest, judged.oldest)

    def _sample(self, pages: int, ranks: Sequence[int]) -> tuple[_Tally, int]:
        """What a sample says, with the ends of what has begun; and of how many ranks there is more between the ends."""
        percent = _percent(pages)
        one_in = ONE_IN if percent < ALL else 1
        share = max(len(ranks), 1)
        ends = {"front": max(FRONT // share, 1), "back": max(BACK // share, 1)}
        how = {"percent": percent, "mask": one_in - 1, **ends}
        rows = self._briefly(self.statements.sample, ranks=ranks, **how)
        if rows is None:
            rows = self._ask(self.statements.sample, ranks=[], **how)
        tally, gaps = _Tally(), 0
        for part, state, count, age in rows:
            if part == "gaps":
                gaps = count
            else:
                stands_for = one_in * ALL / percent if part == "sampled" else 1
                tally.add(state, round(count * stands_for), age)
        return tally, gaps

    def _count_if_near(self, judged: _Tally, states: Sequence[str], statement: Statement, ranks: Sequence[int]) -> None:
        """Count what may be few enough to be counted after all."""
        if judged.total(states) > NEAR:
            return
        rows = self._briefly(statement, ranks=ranks)
        if rows is None or sum(count for _, count, _ in rows) > EXACT_TO:
            return
        for state in states:
            judged.counts[state] = 0
        for state, count, age in rows:
            judged.add(state, count, age)

    def _ranks(self) -> list[int]:
        """The ranks in use; none if that is hard to say."""
        return self._within_patience(lambda: self.table.discover(self.queue, limit=RANKS + 1)) or []

    def _inbox_entries(self, pages: int) -> int:
        percent = _percent(pages)
        found: int = self._ask(sql.INBOX_SAMPLE, percent=percent)[0][0]
        return round(found * ALL / percent)

    def _stretch_moves(self, by: float) -> None:
        self.moves = [(was, state, round(count * max(by, 1))) for was, state, count in self.moves]

    def _summed(self) -> QueueStats:
        counts = self.seen.counts
        for was, state, count in self.moves:
            counts[state] += count
            if was is not None:
                counts[was] -= count
        ready, scheduled = max(counts["ready"], 0), max(counts["scheduled"], 0)
        return QueueStats(
            pending=ready + scheduled,
            ready=ready,
            scheduled=scheduled,
            leased=max(counts["leased"], 0),
            stalled=max(counts["stalled"] + counts["spent"], 0),
            completed=max(counts["completed"], 0),
            oldest_ready_age=timedelta(microseconds=max(self.seen.oldest, 0)),
        )

    def _ask(self, statement: Statement, **params: Any) -> Rows:
        return self.table.send(statement, self.queue, self.params | params)

    def _briefly(self, statement: Statement, **params: Any) -> Rows | None:
        return self._within_patience(lambda: self._ask(statement, **params))

    def _within_patience(self, call: Callable[[], T]) -> T | None:
        """What the call returns, or None if the server took too long."""
        try:
            with self.table.brief(PATIENCE, **PLANNING):
                return call()
        except OperationalError as error:
            if database.sqlstate(error) != database.CANCELLED:
                raise
            return None


def _percent(pages: int) -> float:
    """Of a table of so many pages, what makes `PAGES`."""
    return min(ALL, ALL * PAGES / pages) if pages else ALL
