"""The chores of the queues and of the worker's own row, on jittered timers; a thread and connection for each alias.

Any worker may do them, and two at once do no harm. What they are is the queues' business.
"""

from __future__ import annotations

import json
import os
import random
import socket
import threading
from collections.abc import Callable, Iterable, Sequence
from datetime import timedelta
from time import monotonic

from django_workqueue import metrics, planner
from django_workqueue.database import Connection
from django_workqueue.engine import Source, worker_id
from django_workqueue.managers import microseconds
from django_workqueue.sql import workers

from .outage import Outage, Patience
from .thread import Thread

CHORES = timedelta(seconds=15)  # how often the queues are looked after
PRUNING = timedelta(hours=1)  # how often minute counters are, of which there may be one for each kind and minute
PLANNING = timedelta(seconds=5)  # how often it is asked whether the planner's figures are far off
PRESENCE = timedelta(seconds=10)  # how often the worker's row says that it is there
FORGOTTEN = timedelta(days=1)  # how long the row of a worker that could not say goodbye is kept


class Presence:
    """What the worker's row says. `in_flight` is asked at each writing."""

    def __init__(self, queues: Iterable[str], concurrency: int, in_flight: Callable[[], int]) -> None:
        self._queues = json.dumps(sorted(set(queues)))
        self._concurrency = concurrency
        self._in_flight = in_flight
        self._began = monotonic()

    def write(self, connection: Connection) -> None:
        """Say that the worker is there."""
        params = {
            "id": worker_id(),
            "host": socket.gethostname(),
            "pid": os.getpid(),
            "age": microseconds(timedelta(seconds=monotonic() - self._began)),
            "queues": self._queues,
            "concurrency": self._concurrency,
            "in_flight": self._in_flight(),
        }
        connection.execute(workers.SEEN.text, params)
        connection.execute(workers.FORGET.text, {"age": microseconds(FORGOTTEN)})

    def remove(self, connection: Connection) -> None:
        """Say goodbye."""
        connection.execute(workers.GONE.text, {"id": worker_id()})


class _Chore:
    """Something to be done every so often, first at a random time within the first interval."""

    def __init__(self, call: Callable[[Connection], None], every: timedelta, *, at_once: bool = False) -> None:
        self.call = call
        self.every = every.total_seconds()
        self.due = monotonic() + (0.0 if at_once else random.random() * self.every)

    def again(self) -> None:
        """It was done."""
        self.due = monotonic() + self.every * random.uniform(0.7, 1.3)


class Maintainer:
    """Looks after the sources of one alias. `ring` has the starts of runs counted that are under way."""

    def __init__(
        self, alias: str, sources: Sequence[Source], outage: Outage, *, presence: Presence, ring: Callable[[], None]
    ) -> None:
        self._presence = presence
        self._chores = [_Chore(presence.write, PRESENCE, at_once=True)]
        self._chores += [_Chore(source.register_on, timedelta(hours=1), at_once=True) for source in sources]
        self._chores += [_Chore(source.maintain_on, CHORES) for source in sources]
        self._chores.append(_Chore(self._prune_minutes, PRUNING))
        self._chores.append(_Chore(self._count, timedelta(seconds=metrics.EVERY)))
        self._chores.append(_Chore(planner.correct, PLANNING))
        self._ledger = metrics.ledger(alias)
        self._ring = ring
        self._connection = Connection(
            alias,
            application="django_workqueue maintain",
            lock_timeout=timedelta(seconds=1),
            synchronous_commit=False,
        )
        self._patience = Patience("maintain", outage)
        self._stopping = threading.Event()
        self._closing = threading.Event()
        self._thread = Thread(target=self._run, name=f"workqueue-maintain-{alias}", daemon=True)

    def start(self) -> None:
        """Look after them from now on."""
        self._thread.start()

    def stop(self) -> None:
        """Do no more than what is being done."""
        self._stopping.set()

    def close(self, deadline: float) -> bool:
        """Nothing more happens: write what was counted, say goodbye, end by `deadline`; whether it has ended."""
        self._stopping.set()
        self._closing.set()
        self._thread.join(max(0.0, deadline - monotonic()))
        return not self._thread.is_alive()

    def _run(self) -> None:
        while True:
            chore = min(self._chores, key=lambda chore: chore.due)
            if self._stopping.wait(max(0.0, chore.due - monotonic())):
                break
            self._do(chore)
        self._closing.wait()
        if self._ledger.due_in() < float("inf"):
            self._try(self._ledger.write)
        if self._connection.is_open:
            self._try(self._presence.remove)
        self._connection.close()

    def _count(self, connection: Connection) -> None:
        self._ring()
        self._ledger.write(connection)

    def _prune_minutes(self, connection: Connection) -> None:
        metrics.prune(connection, enough=self._stopping.is_set)

    def _do(self, chore: _Chore) -> None:
        pause = self._try(chore.call)
        if pause is None:
            chore.again()
        else:
            chore.due = monotonic() + pause

    def _try(self, call: Callable[[Connection], None]) -> float | None:
        """None, or how long to wait after a failure."""
        try:
            call(self._connection)
        except Exception as error:  # noqa: BLE001 - a thread's outer edge: Patience judges and logs it
            pause, remake = self._patience.failed(error)
            if remake:
                self._connection.close()
            return pause
        self._patience.succeeded()
        return None
