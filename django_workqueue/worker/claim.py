"""Claiming: how much, and of which queue in turn; on a thread and connection of its own.

The next claim is sent while handlers run. A claim that is lost in a crash is only made again, so it need not
reach the disk.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Sequence
from datetime import timedelta
from time import monotonic, sleep
from typing import Protocol

from django_workqueue import metrics, tracing
from django_workqueue.database import Connection
from django_workqueue.engine import Claim

from . import minutes
from .bell import Bell
from .budget import Budget
from .keeper import Keeper
from .lane import Batch, Lane
from .look import Look
from .outage import Outage, Patience
from .settle import Settler
from .thread import Thread

BEHIND = 4  # so many full claims may wait to be settled before nothing more is claimed
BREATH = 0.00005  # seconds without the GIL, for the slot just woken to begin before the next claim is made up
STALE = 1.0  # seconds that work in hand may wait for a slot before it is given back for others to take


class Slots(Protocol):
    """What runs a lane's work, as its claimer sees it: `Pool` or `loop.Group`."""

    size: int

    @property
    def idle(self) -> int:
        """How many slots have nothing to do."""

    def wake(self) -> None:
        """There is work in hand."""


class Claimer:
    """Claims for the lanes of one alias.

    For a drain it is given `busy`, and `drained` becomes true, and `checked` is called, once nothing is due.
    """

    def __init__(
        self,
        alias: str,
        lanes: Sequence[Lane],
        *,
        slots_of: Callable[[Lane], Slots],
        keeper: Keeper,
        settler: Settler,
        outage: Outage,
        budget: Budget,
        poll: float,
        busy: Callable[[], bool] | None,
        checked: Callable[[], None],
    ) -> None:
        self.bell = Bell()
        self.looks = [Look(lane, self.bell.ring) for lane in lanes]
        self._slots_of = slots_of
        self._keeper = keeper
        self._settler = settler
        self._budget = budget
        self._poll = poll
        self._busy = busy  # of a drain: whether anything is in hand anywhere
        self._behind = False  # whether nothing is claimed because too much waits to be settled
        self._checked = checked
        self._turn = 0
        self._stopping = False
        self._connection = Connection(
            alias, application="django_workqueue claim", synchronous_commit=False, ordered=True
        )
        self._patience = Patience("claim", outage)
        self._ledger = metrics.ledger(alias)
        self._thread = Thread(target=self._run, name=f"workqueue-claim-{alias}", daemon=True)

    @property
    def drained(self) -> bool:
        """Whether nothing is due in any lane, as far as a look could tell."""
        return all(look.dry for look in self.looks)

    def start(self) -> None:
        """Claim from now on."""
        for look in self.looks:
            look.wakeup.attend()
        try:
            self._thread.start()
        except BaseException:
            for look in self.looks:
                look.wakeup.close()
            raise

    def stop(self) -> None:
        """Claim no more. What a claim under way brings is given back."""
        self._stopping = True
        self.bell.ring()

    def join(self, deadline: float) -> bool:
        """Wait for the thread until `deadline`; whether it has ended."""
        self._thread.join(max(0.0, deadline - monotonic()))
        return not self._thread.is_alive()

    def due_again(self, lane: Lane, delays: Sequence[float]) -> None:
        """Work of a lane will be due in so many seconds, each."""
        for look in self.looks:
            if look.lane is lane:
                look.due_in(delays)
        self.bell.ring()

    def closed(self) -> None:
        """A claim, of whichever alias, is done with: there may be more to do now, and room for it."""
        if self._busy is not None:
            for look in self.looks:
                look.dry = False
            self.bell.ring()
        elif self._behind:
            self.bell.ring()

    def _run(self) -> None:
        while not self._stopping:
            try:
                self._step()
            except Exception as error:  # noqa: BLE001 - a thread's outer edge: Patience logs it
                self._failed(error)
        for look in self.looks:
            look.wakeup.close()
        self._connection.close()

    def _step(self) -> None:
        look, wanted = self._neediest()
        if look is None:
            self._patience.rests()
            self.bell.wait(self._pause())
        else:
            self._claim(look, wanted)

    def _neediest(self) -> tuple[Look | None, int]:
        """The next lane, in turn, that wants work and may have some."""
        now = monotonic()
        self._behind = False
        for _ in self.looks:
            self._turn = (self._turn + 1) % len(self.looks)
            look = self.looks[self._turn]
            if look.is_due(now) or self._is_to_be_wrung_dry(look):
                wanted = self._wanted(look.lane)
                if wanted:
                    return look, wanted
        return None, 0

    def _is_to_be_wrung_dry(self, look: Look) -> bool:
        return self._busy is not None and not look.dry and not self._busy()

    def _wanted(self, lane: Lane) -> int:
        """How much to claim: enough to have the target in hand, but not by driblets."""
        target = lane.target(self._slots_of(lane).idle)
        lane.low = target // 2  # before looking at what is there: from here on the slots ring when it falls to that
        in_hand = len(lane.hand)
        if in_hand > target // 2 or in_hand >= target:
            return 0
        if lane.unsettled() > BEHIND * lane.source.max_claim:
            self._behind = True
            return 0
        return self._budget.take(min(target - in_hand, lane.source.max_claim))

    def _claim(self, look: Look, wanted: int) -> None:
        lane = look.lane
        quiet = self._busy is not None and not self._busy()
        was_woken, look.woken = look.woken, False
        sent_at = monotonic()
        try:
            claim = lane.source.claim_on(self._connection, wanted, lane.lease, lane.kinds)
        except Exception as error:  # noqa: BLE001 - a thread's outer edge: Patience judges and logs it
            self._budget.claimed(0, of=wanted)
            look.woken = was_woken or look.woken
            self._failed(error)
            return
        if claim.asked:
            self._patience.succeeded()
        if claim.works:
            tracing.claimed(lane.source.name, claim.works, monotonic() - sent_at)
            self._take_in_hand(lane, claim)
            if not claim.full:
                sleep(BREATH)
        elif quiet and not claim.full:
            look.dry = True
            self._checked()
        self._budget.claimed(len(claim.works), of=wanted)
        lane.hungry = claim.full
        if not claim.full:
            lane.low = -1
        look.found(len(claim.works), sent_at=sent_at, was_woken=was_woken, poll=self._poll * random.uniform(0.8, 1.2))
        if not (claim.full or claim.paused) and self._busy is None:
            self._ask_what_is_scheduled(look)

    def _ask_what_is_scheduled(self, look: Look) -> None:
        """Nobody rings when that comes due."""
        now = monotonic()
        if look.at > now and look.may_ask(now):
            lane, within = look.lane, timedelta(seconds=look.at - now)
            due = lane.source.next_due_on(self._connection, lane.kinds, within)
            look.scheduled(math.inf if due is None else due.total_seconds(), asked_at=now)

    def _take_in_hand(self, lane: Lane, claim: Claim) -> None:
        lane.tally.claimed += len(claim.works)
        lane.tally.reclaimed += claim.reclaimed
        minutes.claimed(self._ledger, lane, claim)
        batch = Batch(lane, claim)
        lane.open[claim.fence.token] = batch
        try:
            self._keeper.hold(batch)
        except BaseException:
            lane.open.pop(claim.fence.token)  # it lapses
            raise
        lane.put(batch)
        if self._stopping:
            lane.turn_back()
            self._settler.ring()
        else:
            self._slots_of(lane).wake()

    def _failed(self, error: Exception) -> None:
        pause, remake = self._patience.failed(error)
        if remake:
            self._connection.close()
        until = monotonic() + pause
        while not self._stopping and monotonic() < until:
            self.bell.wait(until - monotonic())

    def _pause(self) -> float | None:
        """Seconds until there may be something to do without a ring."""
        now = monotonic()
        until = min(look.at for look in self.looks)
        for lane in (look.lane for look in self.looks if look.lane.hand):
            self._give_back_stale(lane, now)
            until = min(until, now + STALE / 2)
        return None if until == float("inf") else max(0.0, until - now)

    def _give_back_stale(self, lane: Lane, now: float) -> None:
        """Let others have what waits in hand for slots that have become slow."""
        try:
            batch, _ = lane.hand[0]
        except IndexError:
            return
        if now - batch.claimed_at < STALE:
            return
        lane.slow_down()
        lane.turn_back(beyond=lane.size or 1)
        self._settler.ring()
