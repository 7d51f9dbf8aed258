"""What a worker's lanes add to the minute counters: starts, waits, runs, outcomes.

Counts a batch at a time, on the claimer's and the settler's threads; handler threads only note when they begin.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from operator import attrgetter, itemgetter
from typing import Any, TypeVar

from django_workqueue.engine import Claim, Outcome, Settled, Verb
from django_workqueue.metrics import Ledger

from .lane import Batch, Lane

T = TypeVar("T")

MICROSECONDS = 1_000_000
NOT_RUN = Verb.RETURN


def claimed(ledger: Ledger, lane: Lane, claim: Claim) -> None:
    """Count what was taken over from leases that had lapsed."""
    if claim.reclaimed:
        for kind, works in _by_kind(lane, [work for work in claim.works if work.reclaimed], _itself).items():
            ledger.count(lane.source.name, kind, reclaimed=len(works))


def started(ledger: Ledger, batch: Batch) -> None:
    """Count what has begun since last time, and how long it had been due: by the server's clock, carried on by ours."""
    fresh = batch.begun[batch.counted :]
    if not fresh:
        return
    batch.counted += len(fresh)
    lane, offset = batch.lane, batch.fence.offset
    for kind, begun in _by_kind(lane, fresh, _first).items():
        waits = [at * MICROSECONDS + offset - work._due for work, at in begun] if offset else ()
        ledger.count(lane.source.name, kind, started=len(begun), waits=waits)


def settled(ledger: Ledger, lane: Lane, settled: Settled, outcomes: Sequence[Outcome]) -> None:
    """Count what became of these outcomes, as the database says, and how long the handlers took."""
    groups = _by_kind(lane, outcomes, _work_of)
    for kind, each in (settled.kinds or {"": settled}).items():
        ledger.count(
            lane.source.name,
            kind,
            completed=each.completed,
            failed=each.failed,
            dead=each.dead,
            lost=each.lost,
            runs=_runs(groups.get(kind, ())),
        )


def lost(ledger: Ledger, lane: Lane, outcomes: Sequence[Outcome]) -> None:
    """Count outcomes that are dropped because their lease is known to be lost, or the database refuses them."""
    for kind, some in _by_kind(lane, outcomes, _work_of).items():
        ledger.count(lane.source.name, kind, lost=len(some), runs=_runs(some))


def ended(ledger: Ledger, lane: Lane, outcomes: Sequence[Outcome]) -> None:
    """Count the runs of outcomes that are dropped because their work has ended otherwise."""
    for kind, some in _by_kind(lane, outcomes, _work_of).items():
        ledger.count(lane.source.name, kind, runs=_runs(some))


def _runs(outcomes: Sequence[Outcome]) -> list[float]:
    return [each.ran * MICROSECONDS for each in outcomes if each.verb is not NOT_RUN]


def _by_kind(lane: Lane, these: Sequence[T], work_of: Callable[[T], Any]) -> Mapping[str, Sequence[T]]:
    """These by the kind of their work."""
    if len(lane.calls) == 1:
        (kind,) = lane.calls
        return {kind or "": these}
    groups: dict[str, list[T]] = {}
    for each in these:
        groups.setdefault(work_of(each).kind, []).append(each)
    return groups


_first = itemgetter(0)
_work_of = attrgetter("work")


def _itself(work: Any) -> Any:
    return work
