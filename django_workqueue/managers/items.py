"""The keyed queue's statements."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

from django.db import models

from ..sql import Statement, items, stats
from .sending import EVERYWHERE, Claimed, Interval, WorkQuerySet, columns, microseconds

if TYPE_CHECKING:
    from ..models import WorkItem  # noqa: F401 - in the string of a generic base


class Ended(NamedTuple):
    """What an end of leases came to: how many ended, of these stalled, and in how many µs the first comes due again."""

    number: int
    stalled: int = 0
    again: int | None = None


class WorkItemQuerySet(WorkQuerySet["WorkItem"]):
    """The keyed queue's statements. Keys are encoded; waiting writers are given them in byte order."""

    statements: ClassVar[Any] = items

    def enqueue(self, queue: str, keys: Sequence[str], priorities: Sequence[int], delays: Sequence[int]) -> None:
        """Merge keys into the set; `delays` in µs. No key may appear twice."""
        self.send(items.ENQUEUE, queue, {"keys": keys, "priorities": priorities, "delays": delays})

    def enqueue_later(
        self, queue: str, keys: Sequence[str], priorities: Sequence[int], delays: Sequence[int], tx: int
    ) -> None:
        """Append to the inbox, under the number of the caller's transaction; waits for nobody."""
        self.send(items.INBOX, queue, {"keys": keys, "priorities": priorities, "delays": delays, "tx": tx})

    def fold(
        self,
        queue: str,
        *,
        since: int,
        limit: int,
        aside: Sequence[int] = (),
        patience: timedelta = timedelta(milliseconds=100),
    ) -> tuple[int, int, int | None, int]:
        """Fold inbox rows from id `since` on, but those `aside`: (looked at, held, highest id, cost in µs)."""
        params = {"since": since, "limit": limit, "aside": list(aside), "patience": f"{microseconds(patience)}us"}
        looked, held, highest, took = self.send(items.FOLD, queue, params)[0]
        return looked, held, highest, took

    def fold_own(self, queue: str, *, tx: int, since: int, limit: int) -> tuple[int, int | None]:
        """Fold the inbox rows of one open transaction, from id `since` on: (looked at, highest id)."""
        looked, _held, highest, _took = self.send(items.FOLD_OWN, queue, {"tx": tx, "since": since, "limit": limit})[0]
        return looked, highest

    def first_in_inbox(self, queue: str, *, since: int, aside: Sequence[int]) -> int | None:
        """The lowest id from `since` on, but those `aside`."""
        rows = self.send(items.INBOX_FIRST, queue, {"since": since, "aside": list(aside)})
        return rows[0][0] if rows else None

    def claim(
        self,
        queue: str,
        limit: int,
        lease: timedelta,
        *,
        token: int,
        max_attempts: int = 0,
        intervals: Sequence[Interval] = EVERYWHERE,
        ask: bool = False,
    ) -> Claimed:
        """Lease up to `limit` due items under `token`, interval by interval.

        Told to `ask`, it leases nothing as long as there is something to fold.
        """
        rows = self.send(
            items.CLAIM,
            queue,
            {
                **columns(intervals),
                "limit": limit,
                "lease": microseconds(lease),
                "token": token,
                "max": max_attempts,
                "ask": ask,
            },
        )
        at, took, paused, unfolded, asking = rows.pop()[-1]
        return Claimed(at, took - asking, rows, paused=bool(paused), unfolded=bool(unfolded), asking=asking)

    def complete(
        self, queue: str, keys: Sequence[str], tokens: Sequence[int] | int | None = None, *, keep: bool = True
    ) -> Ended:
        """Finish leased items: of one claim's token, of a token for each key, or (None) whoever holds them."""
        params: dict[str, Any] = {"keys": keys}
        if tokens is None:
            statement = items.COMPLETE_KEEP_ANY if keep else items.COMPLETE_DELETE_ANY
        elif isinstance(tokens, int):
            params["token"] = tokens
            statement = items.COMPLETE_KEEP if keep else items.COMPLETE_DELETE
        else:
            params["tokens"] = tokens
            statement = items.COMPLETE_KEEP_CLAIMS if keep else items.COMPLETE_DELETE_CLAIMS
        return self._ended(statement, queue, params)

    def finish(self, queue: str, keys: Sequence[str], tokens: Sequence[int], errors: Sequence[str]) -> Ended:
        """Finish leased items for good, keeping why."""
        return self._ended(items.FINISH, queue, {"keys": keys, "tokens": tokens, "errors": errors})

    def _ended(self, statement: Statement, queue: str, params: dict[str, Any]) -> Ended:
        count, again = self.send(statement, queue, params)[0]
        return Ended(count, again=again)

    def release(
        self,
        queue: str,
        keys: Sequence[str],
        tokens: Sequence[int] | None,
        *,
        delays: Sequence[int],
        errors: Sequence[str | None],
        uncounts: Sequence[int],
        max_attempts: int = 0,
    ) -> Ended:
        """Give leased items back."""
        params: dict[str, Any] = {
            "keys": keys,
            "delays": delays,
            "errors": errors,
            "uncounts": uncounts,
            "max": max_attempts,
        }
        statement = items.RELEASE_ANY if tokens is None else items.RELEASE
        if tokens is not None:
            params["tokens"] = tokens
        return Ended(*self.send(statement, queue, params)[0])

    def extend(self, queue: str, keys: Sequence[str], token: int, lease: timedelta) -> list[str]:
        """Renew leases without waiting and without shortening; the keys renewed."""
        rows = self.send(items.EXTEND, queue, {"keys": keys, "token": token, "lease": microseconds(lease)})
        return [key for (key,) in rows]

    def held(self, queue: str, keys: Sequence[str], token: int) -> list[str]:
        """Which of the keys are still leased under `token`."""
        return [key for (key,) in self.send(items.HELD, queue, {"keys": keys, "token": token})]

    def tokens(self, queue: str, keys: Sequence[str]) -> dict[str, int]:
        """The token that each of the keys carries; 0 if nobody holds it."""
        return dict(self.send(items.TOKENS, queue, {"keys": keys}))

    def hurry(self, queue: str, keys: Sequence[str] | None, *, skip: Sequence[str] = (), limit: int) -> int:
        """Let waiting items be due now: all (None), or these."""
        params = {"keys": None if keys is None else list(keys), "skip": list(skip), "limit": limit}
        return self._number(items.HURRY, queue, params)

    def remove(self, queue: str, keys: Sequence[str]) -> int:
        """Delete keys in whatever state, out of the inbox too; how many there were. Two statements."""
        unfolded = self.send(items.REMOVE_UNFOLDED, queue, {"keys": keys})
        return len({*unfolded, *self.send(items.REMOVE, queue, {"keys": keys})})

    def reap(self, queue: str, retention: timedelta, *, limit: int) -> int:
        """Delete up to `limit` items completed longer ago than `retention`."""
        return self._number(items.REAP, queue, {"retention": microseconds(retention), "limit": limit})

    def stall(self, queue: str, max_attempts: int, *, limit: int) -> list[str]:
        """Mark lapsed last attempts as stalled; their keys."""
        params = {"max": max_attempts, "limit": limit, "error": "the lease of the last attempt lapsed"}
        return [key for (key,) in self.send(items.STALL, queue, params)]

    def stats(self, queue: str, *, max_attempts: int = 0) -> tuple[int, int, int, int, int, int]:
        """Exact counts: ready, scheduled, leased, stalled, completed; and the oldest ready item's age in µs."""
        ready, scheduled, leased, stalled, completed, oldest = self.send(
            stats.ITEMS.exact, queue, {"max": max_attempts, "cap": None}
        )[0]
        return ready, scheduled, leased, stalled, completed, oldest


class WorkItemManager(models.Manager.from_queryset(WorkItemQuerySet)):  # type: ignore[misc]
    """`WorkItem.objects`."""

    use_in_migrations = False
