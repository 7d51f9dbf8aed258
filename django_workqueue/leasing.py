"""How any queue hands out work: claims that begin at their floors, and look again from the beginning.

Owns the loop, the ordering and the floors; which table is asked, and what a row becomes, is for its children.
"""

from __future__ import annotations

import itertools
import time
from abc import abstractmethod
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from datetime import timedelta
from operator import itemgetter
from typing import Any, TypeVar

from django.db import connections

from . import database, lanes
from .database import Connection
from .engine import Claim, Fence, Outcome, Settled, Source
from .floors import MAX_RANKS, Floors, Position, Sparing
from .managers import Claimed, Interval, WorkQuerySet, new_token
from .sql import Statement, queues

T = TypeVar("T")
W = TypeVar("W")

MAX_STATEMENT = 1000  # rows that one statement of ours names
MAINTAIN_ROUNDS = 10

# (ident, priority, attempts, available µs, reclaimed, …)
Row = tuple[Any, ...]
Take = Callable[[Sequence[Interval], int, int], Claimed]  # intervals, limit, token


class LeasingSource(Source):
    """A source whose claims are a statement over intervals of the claim index."""

    face: str
    first_ident: str | int
    lane: lanes.CommitLane[Any, Any]

    def __init__(self, name: str, using: str | None) -> None:
        self.name = name
        self.using = using
        self.handlers = []
        self.floors = Floors(self.first_ident)
        self.sparing = Sparing()  # of marking what is out of attempts

    @property
    def alias(self) -> str:
        """The database alias the queue lives on."""
        return database.resolve(self.using)

    @property
    def commits(self) -> lanes.Commits:
        """The group commit that the queue's enqueues join."""
        return self.lane.commits

    @abstractmethod
    def table(self, connection: Connection | None = None) -> Any:
        """The statements: on the calling thread's connection, or on one of our own."""

    def here(self, call: Callable[[Any], T]) -> T:
        """Send on the calling thread's connection: again after a deadlock, unless in a transaction of the caller's."""
        table = self.table()
        return call(table if database.inside_transaction(self.alias) else table.persistent())

    def in_pieces(self, idents: Iterable[Any], call: Callable[[Any, list[Any]], int], size: int = MAX_STATEMENT) -> int:
        """Send `call(table, some)` for all of the idents, each once and in order, `size` at a time; the sum."""

        def of(some: list[Any]) -> int:
            return self.here(lambda table: call(table, some))

        return sum(of(list(some)) for some in chunks(sorted(set(idents)), size))

    def extended(self, works: Sequence[W], lease: timedelta, ident: Callable[[W], Any]) -> list[W]:
        """Renew leases by hand; the works still held. Rows that others hold for a moment are tried again."""
        by_token: dict[int, set[Any]] = {}
        for work in works:
            by_token.setdefault(_token(work), set()).add(ident(work))
        kept = {token: self._extended(token, sorted(idents), lease) for token, idents in by_token.items()}
        return [work for work in works if ident(work) in kept[_token(work)]]

    def _extended(self, token: int, idents: list[Any], lease: timedelta) -> set[Any]:
        extended: set[Any] = set()
        for patience in (0.0, 0.01, 0.05, 0.2, 0.5):
            time.sleep(patience)
            missing = [ident for ident in idents if ident not in extended]
            for chunk in chunks(missing):
                extended.update(self.here(lambda table: table.extend(self.name, chunk, token, lease)))  # noqa: B023
            missing = [ident for ident in missing if ident not in extended]
            if not missing or not self.here(lambda table: table.held(self.name, missing, token)):  # noqa: B023
                break
        return extended

    @abstractmethod
    def claim_here(self, limit: int, lease: timedelta, kinds: list[str] | None = None) -> list[Any]:
        """Claim on the calling thread's connection."""

    def settle_on(self, connection: Connection, outcomes: Sequence[Outcome]) -> Settled:
        """Write what became of the work, on a connection of ours."""
        return self.settle(self.table(connection), outcomes)

    @abstractmethod
    def settle(self, table: Any, outcomes: Sequence[Outcome]) -> Settled:
        """Write what became of the work, fenced, in statements of one queue each."""

    def extend_on(self, connection: Connection, token: int, idents: Sequence[Any], lease: timedelta) -> list[Any]:
        """Renew leases without waiting; the idents renewed."""
        renewed: list[Any] = self.table(connection).extend(self.name, idents, token, lease)
        return renewed

    def held_on(self, connection: Connection, token: int, idents: Sequence[Any]) -> list[Any]:
        """The idents whose rows still carry the token."""
        held: list[Any] = self.table(connection).held(self.name, idents, token)
        return held

    def tokens_on(self, connection: Connection, idents: Sequence[Any]) -> dict[Any, int]:
        """The tokens that the rows carry; 0 for those that nobody holds."""
        tokens: dict[Any, int] = self.table(connection).tokens(self.name, idents)
        return tokens

    def register_on(self, connection: Connection) -> None:
        """Tell the table of queues that this one exists."""
        lanes.register_queue(connection, self.name, self.face, self.described())

    @abstractmethod
    def described(self) -> dict[str, Any]:
        """The settings, for people."""

    def reap_here(self) -> int:
        """Mark what is out of attempts, delete what was retained long enough, all there is; how many were deleted."""
        return self.here(self._reap)

    def _reap(self, table: Any) -> int:
        self.mark_spent(table)
        return self.delete_old(table)

    def maintain_on(self, connection: Connection) -> None:
        """Mark and delete a bounded share; of the time too, as marking reads all that is ready."""
        table = self.table(connection)
        self.sparing.do(lambda: self.mark_spent(table, rounds=MAINTAIN_ROUNDS))
        self.delete_old(table, rounds=MAINTAIN_ROUNDS)

    @abstractmethod
    def mark_spent(self, table: Any, rounds: int | None = None) -> None:
        """Mark what is out of attempts, in up to so many rounds."""

    @abstractmethod
    def delete_old(self, table: Any, rounds: int | None = None) -> int:
        """Delete what was retained long enough, in up to so many rounds; how many were deleted."""

    def pause_here(self) -> None:
        """Note that the queue is paused."""
        self._queues_here(queues.PAUSE, {"face": self.face})

    def resume_here(self) -> None:
        """Note that it is not, and wake whoever waits."""
        self._queues_here(queues.RESUME, {})
        self.wake()

    def wake(self) -> None:
        """Wake whoever waits: now, or when the caller's open transaction has committed."""
        alias, name = self.alias, self.name
        if database.inside_transaction(alias):
            database.after_commit(connections[alias], ("wake", name), lambda: lanes.wake_later(alias, name))
        else:
            lanes.wake_later(alias, name)

    def is_paused_here(self) -> bool:
        """Whether it is."""
        return bool(self._queues_here(queues.IS_PAUSED, {}))

    def _queues_here(self, statement: Statement, params: dict[str, Any]) -> Any:
        return self.here(lambda table: table.send(statement, self.name, params))

    def lease_rows(
        self, table: WorkQuerySet[Any], take: Take, limit: int, lease: timedelta, floors: Floors
    ) -> tuple[Claim, list[Row]]:
        """Claim on a connection that commits each statement: rows in the order to work them, under one fence."""
        fence = Fence(new_token(), time.monotonic() + lease.total_seconds())
        if floors.wants_discovery():
            floors.discovered(self.discover(table))
        look: Any = floors.look()
        rows: list[Row] = []
        while look is not None:
            claimed = take(look.intervals, limit - len(rows), fence.token)
            fence.offset = claimed.at + claimed.took - time.monotonic() * 1_000_000
            claimed.rows.sort(key=_position)
            rows += claimed.rows
            if claimed.paused:
                break
            if claimed.skipped:
                floors.left(look, *max((-row[1], (row[3], row[0])) for row in claimed.rows if row[4]))
                return self._ordered(fence, lease, rows, full=True)
            floors.learn(
                look,
                claimed.at,
                claimed.took,
                limit=limit - len(rows) + len(claimed.rows),
                last=_last(claimed.rows),
                count=len(claimed.rows),
            )
            look = floors.look_again() if len(rows) < limit and not look.beginning else None
        return self._ordered(fence, lease, rows, full=len(rows) >= limit, paused=claimed.paused)

    def next_due_among(
        self, table: Any, floors: Floors, within: timedelta, kinds: list[str] | None = None
    ) -> timedelta | None:
        """In how long the first of what is scheduled comes due; None: not within that time.

        At the priorities in use: where these are not cheap to find out, at those known.
        """
        discover = 0 if floors.dear else MAX_RANKS
        due = table.next_due(self.name, floors.ranks, discover=discover, within=within, kinds=kinds)
        return None if due is None else timedelta(microseconds=due)

    def lease_rows_inside(
        self, table: WorkQuerySet[Any], take: Take, limit: int, lease: timedelta
    ) -> tuple[Claim, list[Row]]:
        """The same inside the caller's transaction. It may be rolled back, so the floors neither serve nor learn."""
        fence = Fence(new_token(), time.monotonic() + lease.total_seconds())
        floors = Floors(self.first_ident)
        floors.discovered(self.discover(table))
        claimed = take(floors.look().intervals, limit, fence.token)
        return self._ordered(fence, lease, claimed.rows, full=len(claimed.rows) >= limit)

    @staticmethod
    def _ordered(
        fence: Fence, lease: timedelta, rows: list[Row], *, full: bool, paused: bool = False
    ) -> tuple[Claim, list[Row]]:
        rows.sort(key=_position)
        rows.sort(key=_priority, reverse=True)
        return Claim(fence, lease, [], sum(row[4] for row in rows), full, paused), rows

    def discover(self, table: Any) -> list[int]:
        """The ranks in use, the loudest `MAX_RANKS` of them."""
        ranks: list[int] = table.discover(self.name, limit=MAX_RANKS)
        return ranks


def _token(work: Any) -> int:
    token: int = work._fence.token
    return token


_position = itemgetter(3, 0)
_priority = itemgetter(1)


def _last(rows: Collection[Row]) -> dict[int, Position]:
    """The furthest position of each rank, of rows in the order of their positions."""
    return {-row[1]: (row[3], row[0]) for row in rows}


def at_once(weight: int) -> int:
    """How many rows of such weight one statement names."""
    return max(MAX_STATEMENT // weight, 1)


def chunks(sequence: Sequence[T], size: int = MAX_STATEMENT) -> Iterator[Sequence[T]]:
    """The sequence in pieces of one statement's size."""
    for start in range(0, len(sequence), size):
        yield sequence[start : start + size]


def apart(outcomes: Sequence[T], ident: Callable[[T], Any], size: int = MAX_STATEMENT) -> Iterator[Sequence[T]]:
    """Sorted pieces that name nothing twice (a straggler and its successor may settle together)."""
    rest = sorted(outcomes, key=ident)
    while len(set(map(ident, rest))) < len(rest):
        chunk: dict[Any, T] = {}
        later: list[T] = []
        for outcome in rest:
            if len(chunk) == size or chunk.setdefault(ident(outcome), outcome) is not outcome:
                later.append(outcome)  # noqa: PERF401
        yield list(chunk.values())
        rest = later
    yield from chunks(rest, size)


def by_claim(outcomes: Sequence[Outcome], ident: Callable[[Outcome], Any]) -> Iterator[Sequence[Outcome]]:
    """Sorted pieces of one claim each where claims are large, else of many small ones together.

    A statement fenced by one token is cheaper than one fenced by an array of them.
    """
    groups: dict[Fence, list[Outcome]] = {}
    for outcome in outcomes:
        fence = outcome.work._fence
        if fence in groups:
            groups[fence].append(outcome)
        else:
            groups[fence] = [outcome]
    small: list[Outcome] = []
    for group in groups.values():
        if len(group) >= 32 or len(groups) == 1:
            yield from chunks(sorted(group, key=ident), MAX_STATEMENT)  # one claim names nothing twice
        else:
            small += group
    yield from apart(small, ident)


def in_rounds(rounds: int | None, limit: int, call: Callable[[], int]) -> int:
    """Repeat a call that does up to `limit`, until it does less or the rounds are over; how much it did."""
    done = 0
    for _ in itertools.repeat(None) if rounds is None else range(rounds):
        batch = call()
        done += batch
        if batch < limit:
            break
    return done
