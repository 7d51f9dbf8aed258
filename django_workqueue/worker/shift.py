"""One process's working time: a crew at work until it is told to stop or has nothing left to do.

In this process, or as the life of a supervised child.
"""

from __future__ import annotations

import socket
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import timedelta
from time import monotonic

from django.core.exceptions import ImproperlyConfigured

from django_workqueue import conf, tracing
from django_workqueue import lanes as enqueues

from .counts import Counts
from .crew import Crew
from .keeper import Keeper, OwnKeeper
from .lane import Lane
from .line import Line, misconfigured
from .signals import Signals
from .supervise import WORN_OUT

CONCURRENCY = 8  # enough to keep a core busy with handlers that wait for a database, few enough for its connections
# Of the GIL, in a process of our own: handlers that compute let claims and completions through five times as soon.
SWITCH_INTERVAL = 0.001
SHUTDOWN_TIMEOUT = timedelta(seconds=25)  # what the usual 30 s of a service manager leave room for


@dataclass(frozen=True, slots=True)
class Options:
    """How to work. `max_items` and `max_seconds` end it; None is without end."""

    concurrency: int = CONCURRENCY
    processes: int = 1
    poll: timedelta | None = None
    shutdown_timeout: timedelta = SHUTDOWN_TIMEOUT
    drain: bool = False
    max_items: int | None = None
    max_seconds: float | None = None


class Shift:
    """A crew's working time."""

    def __init__(
        self,
        lanes: Sequence[Lane],
        options: Options,
        *,
        max_items: int | None = None,
        keeper: Callable[[Crew], Keeper] | None = None,
    ) -> None:
        self.stop_within = options.shutdown_timeout.total_seconds()
        self.crew = Crew(
            lanes,
            concurrency=options.concurrency,
            poll=(options.poll or conf.poll_interval()).total_seconds(),
            drain=options.drain,
            max_items=max_items,
            keeper=keeper,
        )
        self.gave_up: str | None = None  # why, if a drain did
        self.in_the_way: str | None = None  # of a drain that was ended early: what kept it from its work
        self._asked = False

    def stop(self) -> None:
        """Ask for the end. For any thread, and for signal handlers."""
        self._asked = True
        self.crew.bell.ring()

    def run(self, *, max_seconds: float | None = None) -> Counts:
        """Work until asked to stop, until nothing is left to do, or for so long."""
        until = float("inf") if max_seconds is None else monotonic() + max_seconds
        if self._asked:
            return Counts()
        crew = self.crew
        try:
            crew.start()
            while monotonic() < until and not self._is_over():
                crew.bell.wait(min(1.0, until - monotonic()))
                self.gave_up = crew.gave_up
            if not crew.finished:
                self.in_the_way = crew.in_the_way
            if not self._is_over():
                self.gave_up = self.in_the_way  # the time is up
        finally:
            crew.stop(self.stop_within)
        return crew.counts

    def _is_over(self) -> bool:
        return self._asked or self.crew.finished or self.gave_up is not None


def child_shift(
    lanes: Sequence[Lane], options: Options, signals: Signals, *, line: socket.socket, number: int, done: Counts
) -> int:
    """The life of a supervised process, the `number`th, whose predecessors did `done`; its exit code."""
    keepers: list[Line] = []

    def keeper(crew: Crew) -> Line:
        own = OwnKeeper(crew.lanes, crew.outages, lost=crew.lost)
        keepers.append(Line(line, lost=crew.lost, own=own, alone=lambda: shift.stop(), counts=lambda: crew.counts))  # noqa: PLW0108 - not there yet
        return keepers[0]

    sys.setswitchinterval(SWITCH_INTERVAL)
    try:
        shift = Shift(lanes, options, max_items=_share(options, number, done), keeper=keeper)
    except ImproperlyConfigured as error:
        misconfigured(line, str(error))
        return 1
    signals.on_stop(shift.stop)
    shift.run()
    crew = shift.crew
    enqueues.rest(1.0)  # the process ends without ceremony: let go of the last wakes, counters and spans
    tracing.flush()
    keepers[0].say_goodbye(
        finished=crew.finished and not crew.worn_out, gave_up=shift.gave_up, in_the_way=shift.in_the_way
    )
    return WORN_OUT if crew.worn_out else 0


def _share(options: Options, number: int, done: Counts) -> int | None:
    """How much of `max_items` one of the processes does."""
    if options.max_items is None:
        return None
    share, rest = divmod(options.max_items, options.processes)
    return max(0, share + (number < rest) - done.completed - done.failed)
