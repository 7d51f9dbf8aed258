"""Claim floors: where in the index a claim may begin, so that it does not wade through what is dead or leased.

Behind the last claimed position of a priority lie only entries of rows that are leased, gone, or kept alive by
somebody's old snapshot. A process remembers, for each priority, how far it got, and starts there. Looking from
the beginning is what finds lapsed leases and late commits: as long as that is cheap it is done at every claim,
and where it is dear at bounded intervals. Knows nothing of SQL; docs/explanation/floors.md tells the whole story.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from .forks import Lock

Position = tuple[int, str | int]  # available_at in µs since the epoch, then key or id: opaque to Python
Interval = tuple[int, int, str | int, int]  # lowest rank, position in two parts, highest rank

LOWEST_RANK, HIGHEST_RANK = -(2**31) + 1, 2**31 - 1  # a rank is a negated priority
MAX_RANKS = 64

SETTLED = 1_000_000  # µs: no floor is later than this long ago, so that a commit in flight is not passed by
RECENT_EVERY = 1.0  # seconds between looks from the floors of a while ago
RECENT_AGE = 2.0
RESCAN_EVERY = 10.0
RESCAN_LEAST = 1.0  # if it was the machine that was slow, that is soon found out
DISCOVER_EVERY = 10.0
CHEAP = 2_000  # µs that a look from the beginning may take …
CHEAP_PER_ROW = 7  # … plus this for each row it leases
SPARING = 100  # what is done sparingly may be done again after so many times what it took


@dataclass(slots=True)
class Look:
    """One claim's view: its intervals, whether they begin at the beginning, and the server's time known before."""

    intervals: list[Interval]
    beginning: bool
    known_at: int

    def began(self) -> dict[int, Position]:
        """Where it began at each priority that has a floor; at all others at the beginning."""
        return {low: (since, after) for low, since, after, high in self.intervals if low == high}


def rescan_in(took: float) -> float:
    """When to look from the beginning again after a look that took so long, in seconds: in a hundredth of the time.

    Of what takes longer than a tenth of a second that would be too seldom: every ten seconds then, as long as that is
    no more than a fiftieth of the time.
    """
    return max(RESCAN_LEAST, min(SPARING * took, max(RESCAN_EVERY, 50 * took)))


class Floors:
    """What one process knows of one queue's claim index. Thread-safe."""

    def __init__(self, start: str | int, clock: Callable[[], float] = time.monotonic) -> None:
        self._start: Position = (0, start)
        self._clock = clock
        self._lock = Lock()  # guards all below
        self._floors: dict[int, Position] = {}
        self._history: deque[tuple[float, dict[int, Position]]] = deque()
        self._at = 0  # the server's time by the latest claim, in µs
        self._dear = False
        self._over_budget = 0
        self._rescan_at = 0.0
        self._recent_at = 0.0
        self._discover_at = 0.0

    @property
    def dear(self) -> bool:
        """Whether looking from the beginning has become too dear to do at every claim."""
        return self._dear

    @property
    def ranks(self) -> list[int]:
        """The priorities in use, as far as is known."""
        with self._lock:
            return list(self._floors)

    def wants_discovery(self) -> bool:
        """Whether the priorities in use should be asked for before the next look; the answer holds for a while."""
        with self._lock:
            now = self._clock()
            due = now >= self._discover_at and (not self._dear or now >= self._rescan_at)
            if due:
                self._discover_at = now + DISCOVER_EVERY
            return due

    def discovered(self, ranks: Sequence[int]) -> None:
        """Take the priorities in use; those no longer there are forgotten."""
        with self._lock:
            self._floors = {rank: self._floors.get(rank, self._start) for rank in sorted(ranks)[:MAX_RANKS]}

    def look(self) -> Look:
        """Where the next claim looks."""
        with self._lock:
            now = self._clock()
            if not self._dear or now >= self._rescan_at:
                self._rescan_at = now + RESCAN_EVERY  # one process, one rescan at a time
                return self._from_the_beginning()
            floors = self._floors
            if now >= self._recent_at:
                self._recent_at = now + RECENT_EVERY
                floors = self._recent(now)
            return Look(self._intervals(floors), beginning=False, known_at=self._at)

    def look_again(self) -> Look | None:
        """A look from the beginning, after one that did not and came back short, if it is cheap enough."""
        with self._lock:
            return None if self._dear else self._from_the_beginning()

    def learn(self, look: Look, at: int, took: int, *, limit: int, last: dict[int, Position], count: int) -> None:
        """Take in what a claim found: the server's time and cost in µs, and the last position of each rank."""
        with self._lock:
            if look.beginning:
                self._judge(took, count)
            settled: Position = (at - SETTLED, self._start[1])
            self._tell_the_time(look, at, settled)
            for rank in last:
                if rank not in self._floors and len(self._floors) < MAX_RANKS:
                    self._floors[rank] = self._start
            # A short claim has seen the end of every rank; a full one the end of those before its last.
            end = max(last) if count >= limit and last else HIGHEST_RANK + 1
            began = look.began()
            for rank, floor in self._floors.items():
                if rank > end or began.get(rank, self._start) > floor:
                    continue  # not seen, or not from the floor on: that has been set back since
                reached = settled if rank < end else min(last[rank], settled)
                # What a full look from the beginning found may have lain behind the floor, and more of it may follow.
                self._floors[rank] = reached if rank == end and look.beginning else max(floor, reached)
            self._remember()

    def left(self, look: Look, rank: int, position: Position) -> None:
        """What a claim found due behind this position it has left there: no floor may be past that."""
        with self._lock:
            began = look.began()
            for known, floor in self._floors.items():
                if known == rank:
                    self._floors[known] = min(floor, position)
                elif known > rank:
                    self._floors[known] = min(floor, began.get(known, self._start))

    def _tell_the_time(self, look: Look, at: int, settled: Position) -> None:
        """Take no floor from another clock: a server that was failed over to may be behind the one before it."""
        if at < look.known_at:
            self._floors = {rank: min(floor, settled) for rank, floor in self._floors.items()}
            self._at = at
        self._at = max(self._at, at)

    def _judge(self, took: int, count: int) -> None:
        budget = CHEAP + CHEAP_PER_ROW * count
        if took <= (budget / 2 if self._dear else budget):
            self._dear, self._over_budget = False, 0
            return
        # Once may be the machine's mood; twice running, or by far, is the index.
        self._over_budget += 1
        if self._dear or self._over_budget >= 2 or took > 10 * budget:
            self._dear = True
            self._rescan_at = self._clock() + rescan_in(took / 1e6)

    def _from_the_beginning(self) -> Look:
        floors = dict.fromkeys(self._floors, self._start)
        return Look(self._intervals(floors), beginning=True, known_at=self._at)

    def _intervals(self, floors: dict[int, Position]) -> list[Interval]:
        intervals: list[Interval] = []
        low = LOWEST_RANK
        for rank in sorted(floors):
            if low < rank:
                intervals.append((low, *self._start, rank - 1))
            intervals.append((rank, *floors[rank], rank))
            low = rank + 1
        if low <= HIGHEST_RANK:
            intervals.append((low, *self._start, HIGHEST_RANK))
        return intervals

    def _remember(self) -> None:
        now = self._clock()
        if not self._history or now - self._history[-1][0] >= RECENT_EVERY / 2:
            self._history.append((now, dict(self._floors)))
        while len(self._history) > 1 and now - self._history[1][0] >= RECENT_AGE:
            self._history.popleft()

    def _recent(self, now: float) -> dict[int, Position]:
        then = next((floors for age, floors in self._history if now - age >= RECENT_AGE), {})
        if not then:
            return self._floors
        return {rank: min(floor, then.get(rank, self._start)) for rank, floor in self._floors.items()}


class Sparing:
    """Does what may be as dear as a look from the beginning: whenever asked while cheap, else 1 % of the time.

    Nobody waits for it as for a lapsed lease, so that holds however dear it is.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._again_at = 0.0

    def do(self, call: Callable[[], object]) -> None:
        """Make the call, or leave it for later."""
        if self.may():
            began = self._clock()
            call()
            self.took(self._clock() - began)

    def may(self) -> bool:
        """Whether it is time to do it."""
        return self._clock() >= self._again_at

    def took(self, seconds: float) -> None:
        """It was done, at that cost."""
        if seconds * 1e6 > CHEAP:
            self._again_at = self._clock() + max(RESCAN_LEAST, SPARING * seconds)


class InboxFloor:
    """From which id the fold looks: the first while that is cheap, else the highest seen a minute ago.

    Never from the newest: ids commit out of order, and a transaction may stay open for long; so every
    `RESCAN_EVERY`, or 50 times what it cost, the fold looks from the first all the same.
    """

    AGE = 60.0
    CHEAP = 5_000  # µs

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._lock = Lock()  # guards all below
        self._seen: deque[tuple[float, int]] = deque()
        self._dear = False
        self._rescan_at = 0.0

    def since(self) -> int:
        """The id to look from."""
        with self._lock:
            now = self._clock()
            if not self._dear or now >= self._rescan_at:
                self._rescan_at = now + RESCAN_EVERY
                return 0
            return self._seen[0][1] if self._seen and now - self._seen[0][0] >= self.AGE else 0

    def learn(self, since: int, highest: int | None, took: int, count: int) -> None:
        """Take in what a fold saw."""
        with self._lock:
            now = self._clock()
            if highest is not None and (not self._seen or now - self._seen[-1][0] >= 1.0):
                self._seen.append((now, highest))
            while len(self._seen) > 1 and now - self._seen[1][0] >= self.AGE:
                self._seen.popleft()
            if since == 0:
                self._dear = took > self.CHEAP + 20 * count
                self._rescan_at = now + max(RESCAN_EVERY, rescan_in(took / 1e6))
