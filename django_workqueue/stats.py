"""How much work a queue holds, by state: exactly, or at a bounded cost."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta

from .managers import WorkItemQuerySet, WorkJobQuerySet


@dataclass(frozen=True, slots=True)
class QueueStats:
    """Counts by state. `pending` is `ready` plus `scheduled`; a lapsed lease is ready again.

    `oldest_ready_age` is how long the longest waiting ready item has been due; zero if there is none.
    """

    pending: int
    ready: int
    scheduled: int
    leased: int
    stalled: int
    completed: int
    oldest_ready_age: timedelta


def exact(table: WorkItemQuerySet | WorkJobQuerySet, queue: str, *, max_attempts: int = 0) -> QueueStats:
    """Counted, which takes as long as the queue is."""
    ready, scheduled, leased, stalled, completed, oldest = table.stats(queue, max_attempts=max_attempts)
    return QueueStats(
        ready + scheduled, ready, scheduled, leased, stalled, completed, timedelta(microseconds=max(oldest, 0))
    )
