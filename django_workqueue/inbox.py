"""The inbox: what was enqueued inside transactions, and how it is folded into the set before a claim.

Owns the order and the patience of folding; how an enqueue merges with what is there is the statement's business.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from datetime import timedelta

from django.db import DatabaseError

from .database import Verdict, verdict
from .floors import InboxFloor, Sparing
from .forks import Lock
from .managers import Claimed, WorkItemQuerySet

FOLD_LIMIT = 1000
FOLD_ROUNDS = 20  # of one claim; the rest waits for the next
PATIENCE = timedelta(milliseconds=100)  # for a row that an open transaction has inserted …
HASTE = timedelta(milliseconds=10)  # … and while finding out which one it is
WAITS = 5  # of one claim
ASIDE = 10.0  # seconds for which such a row's entries are left alone


class Inbox:
    """What one process knows of one queue's inbox. Thread-safe."""

    def __init__(self, queue: str, clock: Callable[[], float] = time.monotonic) -> None:
        self.queue = queue
        self.floor = InboxFloor(clock)
        self._sparing = Sparing(clock)  # of asking whether there is anything to fold
        self._clock = clock
        self._lock = Lock()  # guards what follows
        self._limit = FOLD_LIMIT
        self._busy = False  # whether the last fold found something
        self._aside: dict[int, float] = {}  # ids of entries, and until when they are left alone

    def fold_first(self, table: WorkItemQuerySet, take: Callable[..., Claimed]) -> Claimed:
        """A claim from the set into which all that can be is folded.

        `take(ask=…)` claims; told to ask, it finds out at the same time whether there is anything to fold, and takes
        nothing then. After a fold that found something the next is unasked, and so it is where asking is too dear,
        the inbox being full of what is dead; then the fold looks from its floor.
        """
        if not self._busy and self._sparing.may():
            claimed = take(ask=True)
            self._sparing.took(claimed.asking / 1e6)
            if not claimed.unfolded:
                return claimed
        self._busy = self.fold(table)
        return take(ask=False)

    def fold(self, table: WorkItemQuerySet) -> bool:
        """Fold what is committed into the set, past the rows that others hold; whether there was anything.

        The statement skips a row that somebody's open transaction has locked. One that it has inserted nobody
        else can see, and so not skip: that one the statement waits for, briefly, and then the fold goes around it.
        """
        since, limit, waits, found = self.floor.since(), self._limit, 0, False
        for _ in range(FOLD_ROUNDS):
            patience = PATIENCE if limit in (1, FOLD_LIMIT) else HASTE
            aside = self._left_alone()
            try:
                looked, _held, highest, took = table.fold(
                    self.queue, since=since, limit=limit, aside=aside, patience=patience
                )
            except DatabaseError as error:
                if verdict(error) is not Verdict.LOCKED:
                    raise
                if limit == 1:
                    self._leave_alone(table.first_in_inbox(self.queue, since=since, aside=aside))
                self._limit = limit = max(1, limit // 10)
                waits += 1
                found = True
                if waits == WAITS:
                    break
                continue
            found = found or looked > 0
            self.floor.learn(since, highest, took, looked)
            short = looked < limit
            self._limit = limit = min(limit * 10, FOLD_LIMIT)
            if short or highest is None:
                break
            since = highest + 1
        return found

    def fold_own(self, table: WorkItemQuerySet, tx: int) -> None:
        """Fold what the open transaction `tx` has enqueued, and nobody else's."""
        since = 0
        while True:
            looked, highest = table.fold_own(self.queue, tx=tx, since=since, limit=FOLD_LIMIT)
            if looked < FOLD_LIMIT or highest is None:
                return
            since = highest + 1

    def _left_alone(self) -> list[int]:
        with self._lock:
            now = self._clock()
            self._aside = {entry: until for entry, until in self._aside.items() if until > now}
            return list(self._aside)

    def _leave_alone(self, entry: int | None) -> None:
        if entry is not None:
            with self._lock:
                self._aside[entry] = self._clock() + ASIDE
