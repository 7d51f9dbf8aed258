"""The keyed queue's engine: what all `Queue` objects of one name in a process share.

Owns merging, the inbox, folding, claims and settlements on encoded keys. The typed face is `queues.Queue`.
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from functools import partial
from typing import Any, Generic, TypeVar, cast

from django.db import DatabaseError, connections

from . import database, lanes, lapses, metrics
from .backoff import exponential
from .database import Connection, Verdict, verdict
from .engine import Claim, Fence, Outcome, Settled, Source, Verb
from .exceptions import KeyDecodeError
from .inbox import Inbox
from .keys import CheckedCodec
from .leasing import LeasingSource, Row, Take, apart, by_claim, chunks, in_rounds
from .managers import Claimed, Ended, Interval, WorkItemQuerySet, microseconds
from .text import error_text

logger = logging.getLogger("django_workqueue")

K = TypeVar("K")
T = TypeVar("T")

KEPT_ERROR = timedelta(hours=24)  # of an item that ended in PermanentError, where nothing else is retained
NO_FENCE = Fence(0, 0.0)
INBOX_OF_BATCHES = 0  # stands where an inbox row names its transaction

# An enqueue on its way into a batch: encoded key, priority, and the monotonic second it is due, 0.0 for now.
Waiting = tuple[str, int, float]


@dataclass(frozen=True)
class Item(Generic[K]):
    """A claimed key. `attempts` is 1 on the first delivery; `reclaimed` tells that an earlier lease lapsed."""

    key: K
    queue: str
    priority: int = 0
    attempts: int = 1
    reclaimed: bool = False
    _text: str = field(default="", repr=False, compare=False)
    _fence: Fence = field(default=NO_FENCE, repr=False, compare=False)
    _due: int = field(default=0, repr=False, compare=False)  # µs since the server's epoch

    @property
    def lease_lost(self) -> bool:
        """Whether the lease is known to be gone: somebody else may be working the key, and the outcome is dropped."""
        return self._text in self._fence.lost


@dataclass(frozen=True)
class Settings:
    """What two `Queue` objects of one name must agree on."""

    key: CheckedCodec[Any]
    max_attempts: int
    retention: timedelta
    max_claim: int
    reap_batch: int
    min_wake_interval: timedelta

    def difference_from(self, living: Source) -> str | None:
        """How a living source of the same name differs, in words; None if it does not."""
        if not isinstance(living, KeyedSource):
            return "it is a JobQueue"
        for name, here in vars(self).items():
            there = getattr(living.settings, name)
            if here != there:
                return f"{name} is {there!r} there and {here!r} here"
        return None


class KeyedSource(LeasingSource):
    """One keyed queue of one process."""

    face = "items"
    first_ident = ""

    def __init__(self, name: str, using: str | None, settings: Settings) -> None:
        super().__init__(name, using)
        self.settings = settings
        self.max_claim = settings.max_claim
        self.max_attempts = settings.max_attempts
        self.min_wake_interval = settings.min_wake_interval
        self.inbox = Inbox(name)
        # A lane outlives its source in the batcher, so it must not hold on to it: queues live by their references.
        self.lane = KeyLane(name, self.face, using, self.described())

    def table(self, connection: Connection | None = None) -> WorkItemQuerySet:
        """The statements: on the calling thread's connection, or on one of our own."""
        return item_table(self.using, connection)

    # producing

    def enqueue_inside(self, waiting: Sequence[Waiting]) -> None:
        """Put keys into the inbox, in the calling thread's open transaction."""
        connection = connections[self.alias]
        tx = database.transaction_token(connection)
        for chunk in chunks(waiting):
            self.table().enqueue_later(self.name, *merged(chunk), tx)
        lanes.enqueued_inside(self.alias, self.name, {"": len(waiting)})
        alias, name = self.alias, self.name
        database.after_commit(connection, ("wake", name), lambda: lanes.wake_later(alias, name))

    # consuming

    def claim_here(self, limit: int, lease: timedelta, kinds: list[str] | None = None) -> list[Item[Any]]:
        """Claim on the calling thread's connection."""
        table = self.table()
        if not database.inside_transaction(self.alias):
            return self._claim(table.persistent(), limit, lease).works
        self.inbox.fold_own(table, database.transaction_token(connections[self.alias]))
        if self.settings.max_attempts:
            stalled = table.stall(self.name, self.settings.max_attempts, limit=self.settings.reap_batch)
            if stalled:
                database.after_commit(
                    connections[self.alias], object(), partial(_tell_of, self.alias, self.name, stalled)
                )
        claim, rows = self.lease_rows_inside(table, self._taker(table, lease), limit, lease)
        return self._delivered(table, claim, rows).works

    def claim_on(
        self, connection: Connection, limit: int, lease: timedelta, kinds: Iterable[str] | None = None
    ) -> Claim:
        """Lease due items; keys that do not decode are released with their error."""
        return self._claim(self.table(connection), limit, lease)

    def next_due_on(self, connection: Connection, kinds: Iterable[str] | None, within: timedelta) -> timedelta | None:
        """In how long the first of what is scheduled comes due; None: not within that time."""
        return self.next_due_among(self.table(connection), self.floors, within)

    def _claim(self, table: WorkItemQuerySet, limit: int, lease: timedelta) -> Claim:
        claim, rows = self.lease_rows(table, self._taker_of_folded(table, lease), limit, lease, self.floors)
        most = self.settings.max_attempts
        if most and not claim.full and not self.floors.dear:
            self.sparing.do(lambda: self._stall(table))
        return self._delivered(table, claim, rows)

    def _taker(self, table: WorkItemQuerySet, lease: timedelta) -> Any:
        def take(intervals: Sequence[Interval], limit: int, token: int, *, ask: bool = False) -> Claimed:
            most = self.settings.max_attempts
            return table.claim(self.name, limit, lease, token=token, max_attempts=most, intervals=intervals, ask=ask)

        return take

    def _taker_of_folded(self, table: WorkItemQuerySet, lease: timedelta) -> Take:
        take = self._taker(table, lease)

        def take_folded(*where: Any) -> Claimed:
            return self.inbox.fold_first(table, partial(take, *where))

        return take_folded

    def _delivered(self, table: WorkItemQuerySet, claim: Claim, rows: list[Row]) -> Claim:
        """The claim with its items. A key that does not decode fails by itself, not the claim."""
        codec, name, fence = self.settings.key, self.name, claim.fence
        works = claim.works
        for text, priority, attempts, available, reclaimed, _ in rows:
            try:
                key = codec.decode(text)
            except KeyDecodeError as error:
                self._refuse(table, text, attempts, fence.token, error)
                continue
            item = Item.__new__(Item)  # a frozen dataclass's own __init__ costs three times as much
            item.__dict__.update(
                key=key,
                queue=name,
                priority=priority,
                attempts=attempts,
                reclaimed=reclaimed,
                _text=text,
                _fence=fence,
                _due=available,
            )
            works.append(item)
        return claim

    def _refuse(self, table: WorkItemQuerySet, text: str, attempts: int, token: int, error: KeyDecodeError) -> None:
        logger.error("queue %r: %s; released for later", self.name, error)
        table.release(
            self.name,
            [text],
            [token],
            delays=[microseconds(exponential()(attempts))],
            errors=[error_text(error)],
            uncounts=[0],
            max_attempts=self.settings.max_attempts,
        )

    # by hand, on the calling thread's connection

    def complete_here(self, items: Sequence[Item[Any]], texts: Sequence[str]) -> int:
        """Finish items of their own leases, and keys of whatever lease is there."""
        keep = self.settings.retention > timedelta(0)
        done = 0
        for chunk in apart(items, lambda item: item._text):
            named, tokens = fenced(chunk)
            done += self.announced(self.here(lambda table: table.complete(self.name, named, tokens, keep=keep)))  # noqa: B023
        return done + self.in_pieces(
            texts, lambda table, keys: self.announced(table.complete(self.name, keys, keep=keep))
        )

    def announced(self, ended: Ended) -> int:
        """How many leases have ended; whoever waits is woken if any of the work comes due again."""
        if ended.again is not None:
            self.wake()
        return ended.number

    def release_here(self, items: Sequence[Item[Any]], texts: Sequence[str], *, delay: int, error: str | None) -> int:
        """Give items of their own leases back, and keys of whatever lease is there."""

        def released(named: Sequence[str], tokens: list[int] | None) -> int:
            count = len(named)
            options: dict[str, Any] = {
                "delays": [delay] * count,
                "errors": [error] * count,
                "uncounts": [0] * count,
                "max_attempts": self.settings.max_attempts,
            }
            return self.announced(self.here(lambda table: table.release(self.name, named, tokens, **options)))

        fenced_off = sum(
            released([item._text for item in chunk], [item._fence.token for item in chunk])
            for chunk in apart(items, lambda item: item._text)
        )
        return fenced_off + sum(released(keys, None) for keys in chunks(sorted(set(texts))))

    def extend_here(self, items: Sequence[Item[Any]], lease: timedelta) -> list[Item[Any]]:
        """Renew leases; the items still held."""
        return self.extended(items, lease, lambda item: item._text)

    def remove_here(self, texts: Sequence[str]) -> int:
        """Delete keys, out of the inbox too."""
        return self.in_pieces(texts, lambda table, keys: table.remove(self.name, keys))

    # for the worker

    def idents(self, works: Sequence[Any]) -> list[Any]:
        """The encoded keys."""
        return [work._text for work in works]

    def start_on(self, connection: Connection, works: Sequence[Any]) -> list[Any]:
        """All of them: an item's attempt counts from its claim."""
        return list(works)

    def settle(self, table: WorkItemQuerySet, outcomes: Sequence[Outcome]) -> Settled:
        """Write what became of the work, fenced, in statements of one queue each."""
        completed = [outcome for outcome in outcomes if outcome.verb is Verb.COMPLETE]
        settled = self._complete(table, completed)
        if len(completed) < len(outcomes):
            for verb in (Verb.FINISH, Verb.FAIL, Verb.SNOOZE, Verb.RETURN):
                write = self._finish if verb is Verb.FINISH else self._release
                for chunk in apart([each for each in outcomes if each.verb is verb], _text_of):
                    settled.add(write(table, chunk))
        return settled

    def _complete(self, table: WorkItemQuerySet, outcomes: Sequence[Outcome]) -> Settled:
        settled = Settled()
        keep = self.settings.retention > timedelta(0)
        for group in by_claim(outcomes, _text_of):
            done, _, again = table.complete(self.name, *fenced([outcome.work for outcome in group]), keep=keep)
            settled.add(Settled(completed=done, lost=len(group) - done, again_in=_seconds(again)))
        return settled

    def _finish(self, table: WorkItemQuerySet, outcomes: Sequence[Outcome]) -> Settled:
        done, _, again = table.finish(
            self.name,
            [outcome.work._text for outcome in outcomes],
            [outcome.work._fence.token for outcome in outcomes],
            [error_text(outcome.error) or "" for outcome in outcomes],
        )
        return Settled(failed=done, dead=done, lost=len(outcomes) - done, again_in=_seconds(again))

    def _release(self, table: WorkItemQuerySet, outcomes: Sequence[Outcome]) -> Settled:
        verb = outcomes[0].verb
        released, stalled, again = table.release(
            self.name,
            [outcome.work._text for outcome in outcomes],
            [outcome.work._fence.token for outcome in outcomes],
            delays=[microseconds(max(outcome.delay, timedelta(0))) for outcome in outcomes],
            errors=[error_text(outcome.error) if verb is Verb.FAIL else None for outcome in outcomes],
            uncounts=[0 if verb is Verb.FAIL else 1] * len(outcomes),
            max_attempts=self.settings.max_attempts,
        )
        settled = Settled(lost=len(outcomes) - released, again_in=_seconds(again))
        if verb is Verb.FAIL:
            settled.failed, settled.retried, settled.dead = released, released - stalled, stalled
        elif verb is Verb.SNOOZE:
            settled.snoozed = released
        else:
            settled.returned = released
        return settled

    def described(self) -> dict[str, Any]:
        """The settings, for people."""
        return {
            "max_attempts": self.settings.max_attempts,
            "retention": self.settings.retention.total_seconds(),
        }

    def maintain_on(self, connection: Connection) -> None:
        """Fold, stall what lapsed on its last attempt, reap: a bounded share of each."""
        self.inbox.fold(self.table(connection))
        super().maintain_on(connection)

    def mark_spent(self, table: WorkItemQuerySet, rounds: int | None = None) -> None:
        """Stall lapsed last attempts."""
        if self.settings.max_attempts:
            in_rounds(rounds, self.settings.reap_batch, lambda: self._stall(table))

    def delete_old(self, table: WorkItemQuerySet, rounds: int | None = None) -> int:
        """Delete what was retained long enough; how many were deleted."""
        limit, retention = self.settings.reap_batch, self.settings.retention or KEPT_ERROR
        return in_rounds(rounds, limit, lambda: table.reap(self.name, retention, limit=limit))

    def _stall(self, table: WorkItemQuerySet) -> int:
        stalled = table.stall(self.name, self.settings.max_attempts, limit=self.settings.reap_batch)
        if stalled:
            _tell_of(self.alias, self.name, stalled)
        return len(stalled)


def _tell_of(alias: str, name: str, stalled: Sequence[str]) -> None:
    """Count what has stalled, and have it in the log."""
    metrics.ledger(alias).count(name, dead=len(stalled))
    lapses.stalled(name, stalled)


def _seconds(again: int | None) -> float:
    return math.inf if again is None else again / 1e6


def _text_of(outcome: Outcome) -> str:
    text: str = outcome.work._text
    return text


class KeyLane(lanes.CommitLane[Waiting, None]):
    """A keyed queue's lane in the group commit: merges a batch and writes it."""

    def count(self, ledger: metrics.Ledger, entries: list[Waiting]) -> None:
        """Count each enqueue, also of the same key."""
        ledger.count(self.name, enqueued=len(entries))

    def write_on(self, connection: Connection, entries: list[Waiting]) -> None:
        """Write one merged batch. Where an open transaction holds one of its rows, the batch goes to the inbox."""
        table = item_table(self.using, connection)
        try:
            table.enqueue(self.name, *merged(entries))
        except DatabaseError as error:
            if verdict(error) is not Verdict.LOCKED:
                raise
            # Merged anew: what was waited for the lock has come off the delays.
            table.enqueue_later(self.name, *merged(entries), INBOX_OF_BATCHES)


def item_table(using: str | None, connection: Connection | None = None) -> WorkItemQuerySet:
    """The items' statements: on the calling thread's connection to the alias, or on one of our own."""
    from .models import WorkItem  # noqa: PLC0415 - the app registry may not be ready when queues are made

    if connection is not None and (known := connection.tables.get(WorkItem)) is not None:
        return cast("WorkItemQuerySet", known)
    rows: WorkItemQuerySet = WorkItem.objects.using(database.resolve(using))
    return rows if connection is None else connection.tables.setdefault(WorkItem, rows.on(connection))


def merged(waiting: Iterable[Waiting]) -> tuple[list[str], list[int], list[int]]:
    """Keys in byte order, with their priorities and delays in µs, merged as the table would merge them.

    The louder priority and the earlier time win. (Python orders text by code points, which is the order of
    its UTF-8 bytes, which is the order of the database's "C" collation.)
    """
    best: dict[str, tuple[int, float]] = {}
    for text, priority, due in waiting:
        known = best.get(text)
        best[text] = (priority, due) if known is None else (max(known[0], priority), min(known[1], due))
    now = time.monotonic()
    texts = sorted(best)
    priorities, delays = [], []
    for text in texts:
        priority, due = best[text]
        priorities.append(priority)
        delays.append(0 if due <= now else int((due - now) * 1_000_000))
    return texts, priorities, delays


def fenced(items: Sequence[Item[Any]]) -> tuple[list[str], list[int] | int]:
    """The items' encoded keys, with the token that they have in common, or else the token of each."""
    tokens = [item._fence.token for item in items]
    return [item._text for item in items], tokens[0] if len(set(tokens)) == 1 else tokens
