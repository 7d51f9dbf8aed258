"""Lists of jobs and items, page by page, whose cost does not depend on how many there are.

Pages go on where the last one ended (keyset paging), a count stops at 10,000, and what is asked for without an index
is looked for among so many rows at a time. Reads only.
"""

from __future__ import annotations

import base64
import binascii
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from typing import Any, ClassVar, Generic, TypeVar

from django.db import OperationalError

from . import database, inventory, keyed, listed, reading
from .database import Rows
from .inventory import KnownQueue
from .managers import microseconds
from .sql import Statement
from .sql import browse as sql

PAGE = 100  # rows of a page
LOOK = 10_000  # rows that one page looks at, and as far as a count goes
LEAST = 200  # of these, that one stream gets
RANKS = 32  # priorities of a queue that are looked at; there is no list by state of those below
PATIENCE = timedelta(seconds=1)
PLANNING = {"jit": "off", "enable_seqscan": "off", "enable_bitmapscan": "off", "enable_sort": "off"}

FAR = 250_000_000_000_000_000  # µs: later than anything
LAST_ID = 2**63 - 1

R = TypeVar("R", bound="Row")
Cursor = tuple[int, int, Any, str]  # rank, µs, ident, queue: where a page ended


class TookTooLong(Exception):
    """The server gave up. Another filter may be easier."""


@dataclass(frozen=True, slots=True)
class Row:
    """One row of a list. `state` is "ready", "scheduled", "leased", "spent", or how it ended."""

    queue: str
    ident: Any
    priority: int
    state: str
    attempts: int
    enqueued_at: datetime
    available_at: datetime
    lease_until: datetime
    ended_at: datetime | None


@dataclass(frozen=True, slots=True)
class JobRow(Row):
    """A job."""

    kind: str
    max_attempts: int
    payload: str | None
    error: str | None


@dataclass(frozen=True, slots=True)
class ItemRow(Row):
    """An item."""

    requeue_at: datetime | None
    error: str | None


@dataclass(frozen=True, slots=True)
class Arriving:
    """An enqueue that no claim has taken in yet."""

    id: int
    queue: str
    key: str
    priority: int
    available_at: datetime
    is_due: bool


@dataclass(frozen=True, slots=True)
class Filters:
    """What is asked for. None asks for nothing; `payload` is JSON, `within` and `beyond` are ages."""

    queue: str | None = None
    state: str | None = None
    kind: str | None = None
    payload: str | None = None
    prefix: str | None = None
    within: timedelta | None = None
    beyond: timedelta | None = None


@dataclass(slots=True)
class Page(Generic[R]):
    """Some rows, and where the next page begins: None at the end. `unfinished` says that more may match further on."""

    rows: list[R] = field(default_factory=list)
    next: Cursor | None = None
    unfinished: bool = False


@dataclass(frozen=True, slots=True)
class _Stream:
    """A stretch of an index: one queue's, of one rank where it goes by rank."""

    queue: str
    rank: int = 0
    most: int = 0


class Browser(Generic[R]):
    """The list of one kind of work on one alias."""

    face: ClassVar[str]
    states: ClassVar[tuple[str, ...]]
    first: ClassVar[Any]  # ident before all others …
    last: ClassVar[Any]  # … and after all others
    begun: ClassVar[sql.Listing]
    later: ClassVar[sql.Listing]
    closed: ClassVar[Mapping[str, sql.Listing]]
    ranks: ClassVar[Statement]
    state: ClassVar[Statement]

    def __init__(self, alias: str) -> None:
        self.alias = alias
        self._known: list[KnownQueue] | None = None

    @property
    def queues(self) -> list[KnownQueue]:
        """The queues that hold such work."""
        if self._known is None:
            self._known = [queue for queue in inventory.queues(using=self.alias) if queue.face == self.face]
        return self._known

    def page(self, filters: Filters, after: Cursor | None = None, *, limit: int = PAGE) -> Page[R]:
        """The rows that match, after where another page ended. Raises `TookTooLong`."""
        listing, streams, params = self._plan(filters, after)
        if not streams:
            return Page()
        look = max(LOOK // len(streams), LEAST, limit + 1)
        rows = self._ask(listing.page, {**params, "look": look, "limit": limit + 1})
        page: Page[R] = Page()
        last: Cursor | None = None
        for matches, nth, *columns in rows:
            if len(page.rows) == limit:
                page.next = last
                return page
            last = self._cursor(listing, columns)
            if matches:
                page.rows.append(self._row(columns))
            if nth == look:  # what other streams have behind this place waits for the next page
                page.next, page.unfinished = last, True
                return page
        return page

    def count(self, filters: Filters) -> tuple[int, bool]:
        """How many match, and whether there may be more than that."""
        listing, streams, params = self._plan(filters, None)
        if not streams:
            return 0, False
        look = max(LOOK // len(streams), LEAST) + 1
        ((found, more),) = self._ask(listing.count, {**params, "look": look, "limit": 0})
        return min(found, LOOK), bool(more)

    def state_of(self, queue: str, ident: Any) -> str | None:
        """How one row stands, by the server's clock; None if it is gone."""
        most = next((each.source.described()["max_attempts"] for each in self.queues if each.name == queue), 0)
        rows = self._ask(self.state, {"queue": queue, "ident": ident, "max": most})
        return str(rows[0][0]) if rows else None

    def _plan(self, filters: Filters, after: Cursor | None) -> tuple[sql.Listing, list[_Stream], dict[str, Any]]:
        """Which listing, over which streams, with what."""
        known = [queue for queue in self.queues if filters.queue in (None, queue.name)]
        by_queue = [_Stream(queue.name, most=queue.source.described()["max_attempts"]) for queue in known]
        listing, states = self._listing(filters)
        if listing in (self.begun, self.later):
            streams = self._by_rank(by_queue)
            if after is not None:
                streams = [stream for stream in streams if stream.rank >= after[0]]
            begin: Cursor = (0, 0, self.first, "")
        else:
            streams = self._streams(filters, by_queue, after)
            begin = (0, FAR, self.last, "")
        starts = [after if after is not None and stream.rank == after[0] else begin for stream in streams]
        return (
            listing,
            streams,
            {
                "queues": [stream.queue for stream in streams],
                "ranks": [stream.rank for stream in streams],
                "maxima": [stream.most for stream in streams],
                "since": [start[1] for start in starts],
                "after": [start[2] for start in starts],
                "past": [start[3] for start in starts],
                "queue": filters.queue,
                "states": states,
                "kind": filters.kind,
                "payload": filters.payload,
                "prefix": filters.prefix,
                "below": None if filters.prefix is None else after_prefix(filters.prefix),
                "within": None if filters.within is None else microseconds(filters.within),
                "beyond": None if filters.beyond is None else microseconds(filters.beyond),
            },
        )

    def _listing(self, filters: Filters) -> tuple[sql.Listing, list[str] | None]:
        if filters.state is not None and filters.state in self.closed:
            return self.closed[filters.state], None
        if filters.state == "scheduled":
            return self.later, ["scheduled"]
        return self.begun, ["leased", "spent"] if filters.state == "leased" else ["ready"]

    def _streams(self, filters: Filters, by_queue: list[_Stream], after: Cursor | None) -> list[_Stream]:
        return by_queue

    def _by_rank(self, by_queue: list[_Stream]) -> list[_Stream]:
        queues = {stream.queue: stream for stream in by_queue}
        if not queues:
            return []
        rows = self._ask(self.ranks, {"queues": list(queues), "limit": RANKS})
        return [replace(queues[queue], rank=rank) for queue, rank in rows]

    def _row(self, columns: Sequence[Any]) -> R:
        raise NotImplementedError

    def _cursor(self, listing: sql.Listing, columns: Sequence[Any]) -> Cursor:
        """Where a row stands in the order of its listing."""
        queue, ident, rank, available, ended = columns[:5]
        if listing in (self.begun, self.later):
            return rank, available, ident, queue
        return 0, ended if listing in self.closed.values() else 0, ident, queue

    def _ask(self, statement: Statement, params: Mapping[str, Any]) -> Rows:
        try:
            return reading.rows(self.alias, statement.text, params, patience=PATIENCE, **PLANNING)
        except OperationalError as error:
            if database.sqlstate(error) != database.CANCELLED:
                raise
            raise TookTooLong from error


class JobBrowser(Browser[JobRow]):
    """Jobs. Without a state they come by id, the newest first."""

    face = listed.ListedSource.face
    states = ("ready", "scheduled", "leased", "completed", "dead", "cancelled")
    first, last = 0, LAST_ID
    begun, later, closed, ranks = sql.JOBS_BEGUN, sql.JOBS_LATER, sql.JOBS_FINISHED, sql.JOB_RANKS
    state = sql.JOB_STATE_OF

    def _listing(self, filters: Filters) -> tuple[sql.Listing, list[str] | None]:
        return super()._listing(filters) if filters.state else (sql.JOBS_NEWEST, None)

    def _streams(self, filters: Filters, by_queue: list[_Stream], after: Cursor | None) -> list[_Stream]:
        return by_queue if filters.state or not by_queue else [_Stream(by_queue[0].queue)]

    def _row(self, columns: Sequence[Any]) -> JobRow:
        queue, ident, rank, _available, _ended, state, kind, attempts, most, *rest = columns
        enqueued_at, available_at, lease_until, ended_at, payload, error, message = rest
        return JobRow(
            queue=queue,
            ident=ident,
            priority=-rank,
            state=state,
            attempts=attempts,
            enqueued_at=enqueued_at,
            available_at=available_at,
            lease_until=lease_until,
            ended_at=ended_at,
            kind=kind,
            max_attempts=most,
            payload=payload,
            error=None if error is None else f"{error.rpartition('.')[2]}: {message or ''}",
        )


class ItemBrowser(Browser[ItemRow]):
    """Items. Without a state, or with a prefix, they come by queue and key."""

    face = keyed.KeyedSource.face
    states = ("ready", "scheduled", "leased", "stalled", "completed")
    first, last = "", ""
    begun, later, closed, ranks = sql.ITEMS_BEGUN, sql.ITEMS_LATER, sql.ITEMS_CLOSED, sql.ITEM_RANKS
    state = sql.ITEM_STATE_OF

    def arriving(self, filters: Filters, after: int = 0, *, limit: int = PAGE) -> list[Arriving]:
        """What was enqueued inside transactions and no claim has taken in yet."""
        params = {"after": after, "look": LOOK, "limit": limit, "queue": filters.queue, "prefix": filters.prefix}
        return [Arriving(*row) for row in self._ask(sql.INBOX, params)]

    def _listing(self, filters: Filters) -> tuple[sql.Listing, list[str] | None]:
        if filters.state and not filters.prefix:
            return super()._listing(filters)
        return sql.ITEMS_BY_KEY, None if filters.state is None else super()._listing(filters)[1] or [filters.state]

    def _streams(self, filters: Filters, by_queue: list[_Stream], after: Cursor | None) -> list[_Stream]:
        if after is None or (filters.state and not filters.prefix):
            return by_queue
        # By queue and key: what comes before the last page's queue is done with.
        return [replace(each, rank=int(each.queue > after[3])) for each in by_queue if each.queue >= after[3]]

    def _row(self, columns: Sequence[Any]) -> ItemRow:
        queue, ident, rank, _available, _ended, state, attempts, *rest = columns
        enqueued_at, available_at, lease_until, ended_at, requeue_at, error = rest
        return ItemRow(
            queue=queue,
            ident=ident,
            priority=-rank,
            state=state,
            attempts=attempts,
            enqueued_at=enqueued_at,
            available_at=available_at,
            lease_until=lease_until,
            ended_at=ended_at,
            requeue_at=requeue_at,
            error=error,
        )


def after_prefix(prefix: str) -> str | None:
    """The least text that sorts after all that begin so, by bytes; None if there is none."""
    for end in range(len(prefix) - 1, -1, -1):
        code = ord(prefix[end])
        if code < 0x10FFFF:
            following = 0xE000 if code == 0xD7FF else code + 1
            return prefix[:end] + chr(following)
    return None


def told_cursor(cursor: Cursor | None) -> str:
    """A cursor as it goes into an address."""
    return "" if cursor is None else base64.urlsafe_b64encode(json.dumps(cursor).encode()).decode()


def read_cursor(text: str, ident: type[Any]) -> Cursor | None:
    """A cursor from an address; None for what is none."""
    try:
        rank, at, place, queue = json.loads(base64.urlsafe_b64decode(text.encode()))
        told = f"{place}{queue}".encode()  # or it holds a lone surrogate
    except (ValueError, TypeError, binascii.Error):
        return None
    whole = all(isinstance(number, int) and abs(number) < 2**63 for number in (rank, at))
    fits = isinstance(place, ident) and not (isinstance(place, int) and abs(place) >= 2**63)
    if not whole or not fits or not isinstance(queue, str) or b"\x00" in told:
        return None
    return rank, at, place, queue
