"""Writing what became of the work, in groups, on a thread and connection of its own.

Takes whatever outcomes are there as soon as its last write is done, so that a single one never waits for
others, and many cost one statement. Those whose rows a stranger's transaction holds are set aside, and tried again
without waiting for a row; the fence decides later.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from time import monotonic
from typing import Any

from django.db import DatabaseError, InterfaceError

from django_workqueue import metrics, notify
from django_workqueue.database import Connection, Verdict, sqlstate, verdict
from django_workqueue.engine import Outcome, Settled, Verb
from django_workqueue.leasing import chunks

from . import journal, minutes
from .bell import Bell
from .budget import Budget
from .call import what
from .lane import Batch, Lane
from .outage import Outage, Patience
from .thread import Thread

AT_ONCE = 2000  # outcomes of one lane in one go
WHOLE = 0.05  # seconds that part of a claim may wait for the rest, while whole claims are there to be written
LOCK_TIMEOUT = timedelta(milliseconds=100)  # a row that a stranger's transaction holds must not stop the others
PATIENCE = timedelta(seconds=30)  # for one answer; what is to be written is small, and locked rows are not waited for
TELL_EVERY = 0.1  # seconds between two wakes of others for what has been asked for again: we look for it ourselves, too
LATER = 0.5  # seconds until such a row is tried again


@dataclass(slots=True)
class Aside:
    """An outcome whose row a stranger holds, with when to try it again."""

    due: float
    batch: Batch
    outcome: Outcome


Taken = list[tuple[Batch, list[Outcome]]]


class Settler:
    """Settles the lanes of one alias.

    `closed` is told of each claim that is done with, `due_again` in how many seconds work of a lane will be.
    """

    def __init__(
        self,
        alias: str,
        lanes: Sequence[Lane],
        *,
        outage: Outage,
        budget: Budget,
        closed: Callable[[Batch], None],
        due_again: Callable[[Lane, Sequence[float]], None],
    ) -> None:
        self.asleep = False
        self.lanes = lanes
        self._bell = Bell()
        self._closed = closed
        self._due_again = due_again
        self._budget = budget
        self._closing = threading.Event()
        self._abandoned = threading.Event()
        self._aside: dict[int, Aside] = {}  # by the outcome's id
        self._connection = Connection(
            alias, application="django_workqueue settle", lock_timeout=LOCK_TIMEOUT, patience=PATIENCE
        )
        self._patience = Patience("settle", outage)
        self._ledger = metrics.ledger(alias)
        self._thread = Thread(target=self._run, name=f"workqueue-settle-{alias}", daemon=True)

    def start(self) -> None:
        """Settle from now on."""
        self._thread.start()

    def ring(self) -> None:
        """There are outcomes."""
        self._bell.ring()

    def close(self, deadline: float) -> bool:
        """Write what is left, at most until `deadline`; whether all was written."""
        self._closing.set()
        self._bell.ring()
        self._thread.join(max(0.0, deadline - monotonic()))
        self._abandoned.set()
        left = sum(lane.unsettled() for lane in self.lanes) + len(self._aside)
        if left:
            journal.unsettled(left)
        return not left

    def _run(self) -> None:
        while not self._abandoned.is_set():
            if self._settle_all():
                continue
            if self._closing.is_set() and not self._aside:
                break
            self._count_starts()
            self.asleep = True
            if not any(lane.unsettled() for lane in self.lanes):
                self._bell.wait(min(each.due for each in self._aside.values()) - monotonic() if self._aside else None)
            self.asleep = False
        self._connection.close()

    def _settle_all(self) -> bool:
        """Write what all lanes have, and what one of them has set aside; whether any had anything new."""
        try:
            anything = any([self._settle(lane) for lane in self.lanes])  # noqa: C419 - each of them
            self._try_again()
        except Exception as error:  # noqa: BLE001 - a thread's outer edge: Patience logs it
            self._pause(self._patience.failed(error)[0])
            return True
        return anything

    def _settle(self, lane: Lane) -> bool:
        """Write what a lane has; whether it had anything."""
        taken = _take(lane)
        if not taken:
            return False
        outcomes: list[Outcome] = []
        for batch, some in taken:
            minutes.started(self._ledger, batch)
            outcomes += self._without_lost(batch, some) if batch.fence.lost else some
        for alike in _by_verb(outcomes):
            self._write(lane, alike)
        if self._budget.is_limited:
            self._give_back_budget(lane, taken)
        for batch, some in taken:
            batch.settled += len(some)
            self._close_if_done(batch)
        return True

    def _give_back_budget(self, lane: Lane, taken: Taken) -> None:
        """Have others claimed for those that were not run."""
        number = sum(outcome.verb is Verb.RETURN for _, some in taken for outcome in some)
        if number:
            self._budget.give_back(number)
            self._due_again(lane, [0.0])

    def _close_if_done(self, batch: Batch) -> None:
        if batch.settled >= len(batch.works) and not batch.aside:
            batch.lane.open.pop(batch.fence.token, None)
            self._closed(batch)

    def _write(self, lane: Lane, outcomes: list[Outcome], *, sifted: bool = False) -> None:
        """Write, however long the database takes to let us; what cannot be written holds up only itself.

        `sifted`: nobody held these rows a moment ago.
        """
        while not self._abandoned.is_set():
            try:
                settled = lane.source.settle_on(self._connection, outcomes)
            except Exception as error:  # noqa: BLE001 - a thread's outer edge: Patience judges and logs it
                if verdict(error) is Verdict.LOCKED:
                    (self._set_aside if sifted else self._sift)(lane, outcomes)
                    return
                if _is_its_own_fault(error, len(outcomes)):
                    self._part(lane, outcomes, error)
                    return
                self._wait_out(error)
            else:
                self._patience.succeeded()
                self._count(lane, settled, outcomes)
                return

    def _part(self, lane: Lane, outcomes: list[Outcome], error: Exception) -> None:
        if len(outcomes) > 1:
            half = len(outcomes) // 2
            self._write(lane, outcomes[:half])
            self._write(lane, outcomes[half:])
        else:
            journal.refused_outcome(lane.source.name, what(outcomes[0].work), error)
            lane.tally.lost += 1
            minutes.lost(self._ledger, lane, outcomes)

    def _sift(self, lane: Lane, outcomes: list[Outcome]) -> None:
        """Set aside those whose rows a stranger holds, and write the others."""
        try:
            held = self._held_by_others(lane, outcomes)
        except Exception as error:  # noqa: BLE001 - a thread's outer edge: Patience judges and logs it
            if verdict(error) is not Verdict.LOCKED:  # then it is the table that is locked
                self._wait_out(error)
            self._set_aside(lane, outcomes)
            return
        self._patience.succeeded()
        self._set_aside(lane, [outcome for outcome in outcomes if id(outcome) in held])
        for alike in _by_verb([outcome for outcome in outcomes if id(outcome) not in held]):
            self._write(lane, alike, sifted=True)

    def _held_by_others(self, lane: Lane, outcomes: list[Outcome]) -> set[int]:
        """The ids of those whose rows are still ours, and cannot be had. A renewal tells, which waits for no row."""
        claims: dict[int, dict[Any, Outcome]] = {}
        idents = lane.source.idents([outcome.work for outcome in outcomes])
        for ident, outcome in zip(idents, outcomes, strict=True):
            claims.setdefault(outcome.work._fence.token, {})[ident] = outcome
        held = set[int]()
        for token, of_ident in claims.items():
            renewed = lane.source.extend_on(self._connection, token, sorted(of_ident), lane.lease)
            missing = sorted(set(of_ident).difference(renewed))
            if missing:
                held |= {id(of_ident[ident]) for ident in lane.source.held_on(self._connection, token, missing)}
        return held

    def _set_aside(self, lane: Lane, outcomes: list[Outcome]) -> None:
        due = monotonic() + LATER
        for outcome in outcomes:
            batch = lane.open.get(outcome.work._fence.token)
            if batch is not None:  # else this is a second outcome, after the first was written
                self._aside[id(outcome)] = Aside(due, batch, outcome)
                batch.aside.add(id(outcome.work))

    def _try_again(self) -> None:
        """Write what was set aside, if its rows are free by now: of one lane, as its table may be locked as a whole."""
        now = monotonic()
        lane = next((each.batch.lane for each in self._aside.values() if each.due <= now), None)
        if lane is None:
            return
        due = [each for each in self._aside.values() if each.batch.lane is lane and each.due <= now]
        self._sift(lane, [each.outcome for each in due])
        for each in due:
            if self._aside[id(each.outcome)] is each:  # not set aside once more
                del self._aside[id(each.outcome)]
                each.batch.aside.discard(id(each.outcome.work))
                self._close_if_done(each.batch)

    def _wait_out(self, error: Exception) -> None:
        pause, remake = self._patience.failed(error)
        if remake:
            self._connection.close()
        self._pause(pause)

    def _without_lost(self, batch: Batch, outcomes: list[Outcome]) -> list[Outcome]:
        source, lost = batch.lane.source, batch.fence.lost
        idents = source.idents([outcome.work for outcome in outcomes])
        kept = [outcome for ident, outcome in zip(idents, outcomes, strict=True) if ident not in lost]
        if len(kept) < len(outcomes):
            pairs = list(zip(idents, outcomes, strict=True))
            gone = [outcome for ident, outcome in pairs if ident in lost and ident not in batch.ended]
            batch.lane.tally.lost += len(gone)
            minutes.lost(self._ledger, batch.lane, gone)
            minutes.ended(self._ledger, batch.lane, [outcome for ident, outcome in pairs if ident in batch.ended])
        return kept

    def _count_starts(self) -> None:
        """Count those of runs that take long, too."""
        for lane in self.lanes:
            for batch in list(lane.open.values()):
                minutes.started(self._ledger, batch)

    def _count(self, lane: Lane, settled: Settled, outcomes: list[Outcome]) -> None:
        if settled.lost:
            self._tell_apart(lane, settled, outcomes)
        lane.tally.settled.add(settled)
        minutes.settled(self._ledger, lane, settled, outcomes)
        if settled.returned or (settled.again_in <= 0 and monotonic() >= lane.tell_at):  # it was asked for while it ran
            lane.tell_at = monotonic() + TELL_EVERY
            with suppress(DatabaseError):  # they poll
                notify.announce(self._connection, lane.source.name)
        if settled.failed or settled.snoozed:
            again = (Verb.FAIL, Verb.SNOOZE)
            delays = [outcome.delay.total_seconds() for outcome in outcomes if outcome.verb in again]
            if delays:
                self._due_again(lane, delays)
        if settled.again_in < math.inf:
            self._due_again(lane, [settled.again_in])

    def _tell_apart(self, lane: Lane, settled: Settled, outcomes: list[Outcome]) -> None:
        """Of outcomes that changed nothing, count as lost only those that another claim may have had."""
        may_be = sum(map(partial(self._may_be_lost, lane, self._tokens(lane, outcomes)), outcomes))
        ended = settled.lost - min(settled.lost, may_be)
        settled.lost -= ended
        if settled.lost:
            journal.lost(lane.source.name, settled.lost)
        if ended:
            journal.ended(lane.source.name, ended)
        for of_kind in settled.kinds.values():
            some = min(ended, of_kind.lost)
            of_kind.lost -= some
            ended -= some

    def _tokens(self, lane: Lane, outcomes: list[Outcome]) -> dict[Any, int] | None:
        """The tokens that the rows have now; None where they cannot be read."""
        idents = sorted(set(lane.source.idents([outcome.work for outcome in outcomes])))
        tokens: dict[Any, int] = {}
        try:
            for some in chunks(idents):
                tokens.update(lane.source.tokens_on(self._connection, some))
        except DatabaseError:  # no more than a word in the log and in a counter hangs on it
            return None
        return tokens

    def _may_be_lost(self, lane: Lane, tokens: dict[Any, int] | None, outcome: Outcome) -> bool:
        """Whether another has the work, or its lease may have lapsed, so that another may have had it."""
        fence, (ident,) = outcome.work._fence, lane.source.idents([outcome.work])
        batch = lane.open.get(fence.token)
        if tokens is None or fence.deadline < monotonic() or batch is None or ident in batch.dropped:
            return True
        return tokens.get(ident, 0) not in (0, fence.token)

    def _pause(self, seconds: float) -> None:
        if self._closing.is_set():
            self._abandoned.wait(min(seconds, 0.2))
        else:
            self._closing.wait(seconds)


def _take(lane: Lane) -> Taken:
    """The outcomes to write next: of whole claims if there are any, since one claim's cost one statement."""
    taken: Taken = []
    part: Taken = []
    now, number = monotonic(), 0
    for batch in list(lane.open.values()):
        some = batch.done[batch.settled :]
        if not some:
            continue
        number += len(some)
        late = now - batch.claimed_at > WHOLE
        (taken if late or batch.settled + len(some) >= len(batch.works) else part).append((batch, some))
        if number >= AT_ONCE:
            break
    return taken or part


def _by_verb(outcomes: list[Outcome]) -> Iterable[list[Outcome]]:
    """What is written in statements of its own, so that what landed is not written again when another fails."""
    if all(outcome.verb is Verb.COMPLETE for outcome in outcomes):
        return [outcomes] if outcomes else []
    by_verb: dict[Verb, list[Outcome]] = {}
    for outcome in outcomes:
        by_verb.setdefault(outcome.verb, []).append(outcome)
    return by_verb.values()


def _is_its_own_fault(error: Exception, number: int) -> bool:
    """Whether an outcome, rather than the database's state, is why the write failed."""
    if not isinstance(error, (DatabaseError, InterfaceError)):
        return True
    state = sqlstate(error) or ""
    if state == "57014":  # query_canceled: a statement timeout, perhaps for fewer it suffices
        return number > 1
    return state[:2] in {"22", "23", "54"}
