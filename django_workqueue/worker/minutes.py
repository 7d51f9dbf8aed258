"""What a worker's lanes add to the minute counters: starts, waits, runs, outcomes.

Counts a batch at a time, on the claimer's and the settler's threads; handler threads only note when they begin.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from django_workqueue.engine import Claim, Outcome, Settled, Verb
from django_workqueue.metrics import Ledger

from .lane import Batch, Lane

MICROSECONDS = 1_000_000
NOT_RUN = Verb.RETURN


def claimed(ledger: Ledger, lane: Lane, claim: Claim) -> None:
    """Count what was taken over from leases that had lapsed."""
    if claim.reclaimed:
        for kind, works in _by_kind(lane, ((work, work) for work in claim.works if work.reclaimed)).items():
            ledger.count(lane.source.name, kind, reclaimed=len(works))


def started(ledger: Ledger, batch: Batch) -> None:
    """Count what has begun since last time, and how long it had been due: by the server's clock, carried on by ours."""
    fresh = batch.begun[batch.counted :]
    batch.counted += len(fresh)
    lane, offset = batch.lane, batch.fence.offset
    for kind, begun in _by_kind(lane, ((work, (work, at)) for work, at in fresh)).items():
        waits = [at * MICROSECONDS + offset - work._due for work, at in begun] if offset else ()
        ledger.count(lane.source.name, kind, started=len(begun), waits=waits)


def settled(ledger: Ledger, lane: Lane, settled: Settled, outcomes: Sequence[Outcome]) -> None:
    """Count what became of these outcomes, as the database says, and how long the handlers took."""
    runs = _by_kind(lane, ((each.work, each.ran * MICROSECONDS) for each in outcomes if each.verb is not NOT_RUN))
    for kind, each in (settled.kinds or {"": settled}).items():
        ledger.count(
            lane.source.name,
            kind,
            completed=each.completed,
            failed=each.failed,
            dead=each.dead,
            lost=each.lost,
            runs=runs.get(kind, ()),
        )


def lost(ledger: Ledger, lane: Lane, outcomes: Iterable[Outcome]) -> None:
    """Count outcomes that are dropped because their lease is known to be lost, or the database refuses them."""
    for kind, some in _by_kind(lane, ((each.work, each) for each in outcomes)).items():
        runs = [each.ran * MICROSECONDS for each in some if each.verb is not NOT_RUN]
        ledger.count(lane.source.name, kind, lost=len(some), runs=runs)


def _by_kind(lane: Lane, pairs: Iterable[tuple[Any, Any]]) -> Mapping[str, list[Any]]:
    """The second of each pair, by the kind of the work that is the first; nothing of nothing."""
    groups: dict[str, list[Any]] = {}
    if lane.has_kinds:
        for work, each in pairs:
            groups.setdefault(work.kind, []).append(each)
    elif plain := [each for _, each in pairs]:
        groups[""] = plain
    return groups
