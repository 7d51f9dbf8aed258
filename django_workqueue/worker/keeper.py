"""Who keeps a process's leases alive: here, the process itself.

Its counterpart for supervised processes is `line.Line`.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Protocol

from .lane import Batch, Lane
from .outage import Outage
from .renew import Lease, Renewer


class Lost(Protocol):
    """Told which of a claim are no longer ours: another's, or `ended`, so that nobody has them."""

    def __call__(self, batch: Batch, idents: list[Any], *, ended: bool) -> None: ...


class Keeper(Protocol):
    """Told of every claim; sees to it that its fence's deadline moves on, or that its loss is known."""

    def start(self) -> None:
        """Keep from now on."""

    def hold(self, batch: Batch) -> None:
        """A claim was made; called before any of its work is handed out."""

    def forget(self, batch: Batch) -> None:
        """All of a claim is settled."""

    def drop(self, batch: Batch, works: Sequence[Any]) -> None:
        """Renew these no longer: they ran past their timeout."""

    def stop(self, timeout: float) -> bool:
        """Keep no longer; whether that is so within the timeout."""


class OwnKeeper:
    """Renews on threads of this process, one for each alias. A handler that holds the GIL stops it."""

    def __init__(self, lanes: Iterable[Lane], outages: dict[str, Outage], *, lost: Lost) -> None:
        self._lost = lost
        self._renewers: dict[str, Renewer] = {}
        lanes = list(lanes)
        for alias, outage in outages.items():
            shortest = min(lane.seconds for lane in lanes if lane.source.alias == alias)
            self._renewers[alias] = Renewer(alias, outage, shortest=shortest)

    def start(self) -> None:
        """Start the threads."""
        for renewer in self._renewers.values():
            renewer.start()

    def hold(self, batch: Batch) -> None:
        """Keep a claim's lease alive."""
        fence = batch.fence

        def renewed(deadline: float) -> None:
            fence.deadline = max(fence.deadline, deadline)

        lease = Lease(
            batch.lane,
            fence.token,
            fence.deadline,
            held=batch.held,
            renewed=renewed,
            lost=lambda idents: self._lost(batch, idents, ended=False),
            ended=lambda idents: self._lost(batch, idents, ended=True),
        )
        self._of(batch.lane).add(lease)

    def forget(self, batch: Batch) -> None:
        """A claim is done with."""
        self._of(batch.lane).discard(batch.fence.token)

    def drop(self, batch: Batch, works: Sequence[Any]) -> None:
        """Leave some of a claim out of its renewal."""
        batch.dropped.update(batch.lane.source.idents(works))

    def stop(self, timeout: float) -> bool:
        """End the threads."""
        return all([renewer.stop(timeout) for renewer in self._renewers.values()])  # noqa: C419 - every one of them

    def _of(self, lane: Lane) -> Renewer:
        return self._renewers[lane.source.alias]
