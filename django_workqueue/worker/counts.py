"""What a worker did, in numbers."""

from __future__ import annotations

from dataclasses import dataclass, field

from django_workqueue.engine import Settled


@dataclass(slots=True)
class Counts:
    """How the work of one `run()` or `drain()` ended.

    `failed` are runs that raised; `retried` of them will run again by themselves. `reclaimed` is the work
    taken over from a lease that had lapsed.
    """

    completed: int = 0
    failed: int = 0
    retried: int = 0
    reclaimed: int = 0

    def __add__(self, other: Counts) -> Counts:
        return Counts(
            self.completed + other.completed,
            self.failed + other.failed,
            self.retried + other.retried,
            self.reclaimed + other.reclaimed,
        )

    def __str__(self) -> str:
        return (
            f"{self.completed} completed, {self.failed} failed ({self.retried} to be retried), "
            f"{self.reclaimed} reclaimed"
        )


@dataclass(slots=True)
class Tally:
    """What one lane did since its worker started. Each number has one writing thread."""

    claimed: int = 0  # the claimer's
    reclaimed: int = 0
    settled: Settled = field(default_factory=Settled)  # the settler's
    lost: int = 0  # the settler's: known to be lost before anything was written

    def counts(self) -> Counts:
        """The same, as the caller of a worker sees it."""
        settled = self.settled
        return Counts(settled.completed, settled.failed, settled.retried, self.reclaimed)
