"""All the parts of one working process, put together, and taken apart within a deadline.

For each alias a claimer, a settler and a maintainer; the threads and the event loop that run the handlers;
whoever keeps the leases. Signals, forks and commands are for others.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from time import monotonic
from typing import Any

from django_workqueue import unmigrated
from django_workqueue.engine import Outcome, Verb

from . import journal
from .bell import Bell
from .budget import Budget
from .claim import Claimer, Slots
from .counts import Counts
from .keeper import Keeper, OwnKeeper
from .lane import Batch, Lane
from .loop import Group, Loop
from .maintain import Maintainer, Presence
from .outage import Outage
from .pool import Pool
from .settle import Settler
from .starts import Starter

GIVE_UP = 30.0  # seconds that a drain does without its database, or with one that refuses, before it ends
FLUSH = 1.5  # seconds beyond the deadline in which the last outcomes are written


class Crew:
    """Works `lanes` from `start` to `stop`. `keeper` makes the keeper, where that is not this process itself."""

    def __init__(
        self,
        lanes: Sequence[Lane],
        *,
        concurrency: int,
        poll: float,
        drain: bool = False,
        max_items: int | None = None,
        keeper: Callable[[Crew], Keeper] | None = None,
    ) -> None:
        self.lanes = list(lanes)
        self.concurrency = concurrency
        self.bell = Bell()  # rung when there may be reason to end
        self.worn_out = False
        self._draining = drain
        self._budget = Budget(max_items)
        self.outages = {alias: Outage(alias) for alias in sorted({lane.source.alias for lane in lanes})}
        self._starter = Starter(self.outages)
        self._slots: dict[int, Slots] = {}  # by lane number
        self.pool = self._make_pool()
        self.loop = self._make_loop()
        self.keeper = keeper(self) if keeper else OwnKeeper(self.lanes, self.outages, lost=self.lost)
        self._claimers: list[Claimer] = []
        self._settlers: list[Settler] = []
        self._maintainers: list[Maintainer] = []
        presence = Presence([lane.source.name for lane in lanes], concurrency, self.in_flight)
        for alias, outage in self.outages.items():
            self._staff(alias, outage, poll, presence)

    @property
    def counts(self) -> Counts:
        """What was done so far."""
        return sum((lane.tally.counts() for lane in self.lanes), Counts())

    @property
    def finished(self) -> bool:
        """Whether there is nothing left to do: worn out, `max_items` reached, or drained."""
        if self.worn_out:
            return True
        # In this order: a claim that is under way is neither spent nor drained, and one that has come is busy.
        at_an_end = self._budget.spent or (self._draining and all(claimer.drained for claimer in self._claimers))
        return at_an_end and not self.busy()

    @property
    def gave_up(self) -> str | None:
        """In words, why a drain cannot come to its end. Who works on and on waits instead."""
        return self._lasting(GIVE_UP, f"could not be used for {GIVE_UP:g} s")

    @property
    def in_the_way(self) -> str | None:
        """In words, what keeps a drain from its work just now, or has from the first."""
        why = self._lasting(0.0, "could not be used in the end")
        silent = [alias for alias, outage in self.outages.items() if not outage.reached]
        if why is None and self._draining and silent:
            return f"database {silent[0]!r} has not answered in time, so not all that is due was done"
        return why

    def _lasting(self, seconds: float, how: str) -> str | None:
        """What has kept a drain from its work for so long."""
        if not self._draining:
            return None
        for alias, outage in self.outages.items():
            error = outage.lasting(seconds)
            if error is None:
                continue
            if unmigrated.is_cause(error):
                return journal.no_tables(alias, error)
            return f"database {alias!r} {how}, so not all that is due was done: {journal.first_line(error)}"
        return None

    def busy(self) -> bool:
        """Whether anything is in hand, running, or not settled."""
        return any(lane.open for lane in self.lanes)

    def in_flight(self) -> int:
        """How much is in hand or running."""
        batches = [batch for lane in self.lanes for batch in list(lane.open.values())]
        return sum(max(0, len(batch.works) - len(batch.done)) for batch in batches)  # what was given back may end still

    def start(self) -> None:
        """Begin to work."""
        journal.started((lane.source.name for lane in self.lanes), concurrency=self.concurrency, pid=os.getpid())
        self.keeper.start()
        if self.pool is not None:
            self.pool.start()
        if self.loop is not None:
            self.loop.start()
        for settler in self._settlers:
            settler.start()
        for claimer in self._claimers:
            claimer.start()
        for maintainer in self._maintainers:
            maintainer.start()

    def stop(self, seconds: float) -> bool:
        """End in order: claim no more, give back what was not started, let the rest run for so long; then give
        that back as well. Whether all threads ended."""
        if not self.finished:
            journal.stopping(pid=os.getpid(), seconds=seconds)
        deadline = monotonic() + seconds
        for claimer in self._claimers:
            claimer.stop()
        for maintainer in self._maintainers:
            maintainer.stop()
        self._turn_back()
        for claimer in self._claimers:
            claimer.join(max(deadline, monotonic() + FLUSH / 2))  # a claim under way brings more to give back
        self._wait_for_handlers(deadline)
        end = max(deadline, monotonic()) + FLUSH
        self._abandon()
        ended = [settler.close(end) for settler in self._settlers]
        self.keeper.stop(max(0.0, min(end - monotonic(), 1.0)))
        self._starter.close()
        soon = monotonic() + min(1.0, max(0.1, end - monotonic()))
        ended += [claimer.join(soon) for claimer in self._claimers] + [
            maintainer.close(soon) for maintainer in self._maintainers
        ]
        ended += [part.close(soon) for part in (self.pool, self.loop) if part is not None]
        journal.stopped(self.counts, pid=os.getpid())
        return all(ended)

    def lost(self, batch: Batch, idents: Sequence[Any], *, ended: bool) -> None:
        """Leases that are gone: nothing of it is started, async handlers are cancelled, sync ones can see it."""
        works = batch.lose(idents, ended=ended)
        if works:
            (journal.ended if ended else journal.lost)(batch.lane.source.name, len(works))
            if self.loop is not None:
                self.loop.cancel(works, None)

    # making

    def _make_pool(self) -> Pool | None:
        lanes = [lane for lane in self.lanes if not lane.is_async]
        if not lanes:
            return None
        pool = Pool(lanes, self.concurrency, starter=self._starter, dropped=self._dropped, worn_out=self._wear_out)
        self._slots.update((lane.number, pool) for lane in lanes)
        return pool

    def _make_loop(self) -> Loop | None:
        lanes = [lane for lane in self.lanes if lane.is_async]
        if not lanes:
            return None
        loop = Loop(worn_out=self._wear_out)
        shared = [lane for lane in lanes if lane.bound is None]
        for group in ([shared] if shared else []) + [[lane] for lane in lanes if lane.bound is not None]:
            size = group[0].bound or self.concurrency
            made = Group(loop, group, size, starter=self._starter, dropped=self._dropped)
            self._slots.update((lane.number, made) for lane in group)
        return loop

    def _staff(self, alias: str, outage: Outage, poll: float, presence: Presence) -> None:
        lanes = [lane for lane in self.lanes if lane.source.alias == alias]
        settler = Settler(
            alias, lanes, outage=outage, budget=self._budget, closed=self._closed, due_again=self._due_again
        )
        claimer = Claimer(
            alias,
            lanes,
            slots_of=lambda lane: self._slots[lane.number],
            keeper=self.keeper,
            settler=settler,
            outage=outage,
            budget=self._budget,
            poll=poll,
            busy=self.busy if self._draining else None,
            checked=self.bell.ring,
        )
        for lane in lanes:
            slots = self._slots[lane.number]
            lane.prepare(slots=slots.size, bell=claimer.bell, settler=settler)
        sources = list({id(lane.source): lane.source for lane in lanes}.values())
        self._settlers.append(settler)
        self._claimers.append(claimer)
        self._maintainers.append(Maintainer(alias, sources, outage, presence=presence, ring=settler.ring))

    # told by the parts

    def _closed(self, batch: Batch) -> None:
        self.keeper.forget(batch)
        for claimer in self._claimers:
            claimer.closed()
        if self._budget.spent or self._draining:
            self.bell.ring()

    def _due_again(self, lane: Lane, delays: Sequence[float]) -> None:
        for claimer in self._claimers:
            claimer.due_again(lane, delays)

    def _dropped(self, batch: Batch, works: Sequence[object]) -> None:
        self.keeper.drop(batch, works)

    def _wear_out(self) -> None:
        self.worn_out = True
        self.bell.ring()

    # ending

    def _turn_back(self) -> None:
        for lane in self.lanes:
            if lane.turn_back():
                lane.settler.ring()

    def _wait_for_handlers(self, deadline: float) -> None:
        while self.in_flight() and monotonic() < deadline:
            self._turn_back()  # what a claim under way has brought in the meantime gives itself back
            self.bell.wait(min(0.02, deadline - monotonic()))

    def _abandon(self) -> None:
        """Give back what still runs. Async handlers are cancelled and answer for themselves if they are quick."""
        number = 0
        if self.loop is not None:
            self.loop.cancel([work for lane in self.lanes for _, work in lane.running()], Verb.RETURN)
            self._wait_for_async()
        for lane in self.lanes:
            for batch, work in lane.running():
                batch.done.append(Outcome(work, Verb.RETURN))
                number += 1
            lane.settler.ring()
        if number:
            journal.abandoned(number)

    def _wait_for_async(self) -> None:
        until = monotonic() + 0.5
        while monotonic() < until and any(lane.is_async and lane.running() for lane in self.lanes):
            self.bell.wait(0.01)
