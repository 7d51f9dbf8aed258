"""Keeping leases alive, on a thread and connection of its own.

Renews whatever it was given, in whichever process it runs: a worker's own, or its supervisor. What a renewal
or a loss means for the work is for whoever holds the lease.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import timedelta
from functools import partial
from time import monotonic
from typing import Any

import psycopg
from django.db import OperationalError

from django_workqueue.database import Connection
from django_workqueue.engine import Source

from .lane import Lane
from .outage import Outage, Patience
from .thread import Thread

AGAIN = 1.0  # seconds at most until leases that could not be renewed are tried again
CHECK_EVERY = 1.0  # seconds from one look whether running work was cancelled to the next, the first one as late …
CHECK_SHARE = 20  # … but a look that took x is not followed by another within 20 x
CHECK_AT_ONCE = 1000  # pieces of work that one statement looks at
LEAST_PATIENCE, MOST_PATIENCE = 0.5, 30.0  # seconds that the server may take to answer


class Lease:
    """One claim's lease: `held()` are the idents to renew; `renewed` is told the new deadline, `lost` what is gone.

    Of what is gone, `ended` (else `lost` as well) is told what nobody took from us: it was cancelled, removed, or ended
    by hand.
    """

    __slots__ = ("began", "deadline", "ended", "held", "key", "lane", "lost", "renew_at", "renewed", "token")

    def __init__(
        self,
        lane: Lane,
        token: int,
        deadline: float,
        *,
        held: Callable[[], list[Any]],
        renewed: Callable[[float], None],
        lost: Callable[[list[Any]], None],
        ended: Callable[[list[Any]], None] | None = None,
        key: Any = None,
    ) -> None:
        self.lane = lane
        self.token = token
        self.key = token if key is None else key
        self.held = held
        self.renewed = renewed
        self.lost = lost
        self.ended = ended or lost
        self.deadline = deadline
        self.renew_at = deadline - lane.seconds * 2 / 3
        self.began = monotonic()

    def gone(self, idents: Iterable[Any], tokens: Mapping[Any, int]) -> None:
        """Tell of what is no longer ours, by the tokens that the rows have now."""
        lapsed = monotonic() > self.deadline
        taken, ended = list[Any](), list[Any]()
        for ident in sorted(idents):
            (taken if lapsed or tokens.get(ident) else ended).append(ident)
        if taken:
            self.lost(taken)
        if ended:
            self.ended(ended)


class Renewer:
    """Renews the leases of one alias when a third of them has passed.

    Where work can be cancelled while it runs, it also looks every second whether what has run for as long is still
    ours. Quick work costs nothing by that.
    """

    def __init__(self, alias: str, outage: Outage, *, shortest: float) -> None:
        self.alias = alias
        self.leases: dict[Any, Lease] = {}  # set and popped by other threads: single operations, atomic
        self._tick = min(max(shortest / 12, 0.02), CHECK_EVERY / 4)
        # In time for another try before the shortest lease, renewed when a third of it has passed, has lapsed.
        self._answered_in = timedelta(seconds=min(max(shortest / 4, LEAST_PATIENCE), MOST_PATIENCE))
        self._check_at = 0.0
        self._outage = outage
        self._thread: threading.Thread | None = None
        self._stop = threading.Event()

    def start(self) -> None:
        """Renew from now on."""
        self._stop = threading.Event()
        self._thread = Thread(target=self._run, args=(self._stop,), name=f"workqueue-renew-{self.alias}", daemon=True)
        self._thread.start()

    def stop(self, timeout: float) -> bool:
        """Renew no longer; waits for the thread, and returns whether it has ended."""
        self._stop.set()
        if self._thread is not None:
            self._thread.join(timeout)
            if self._thread.is_alive():
                return False
            self._thread = None
        return True

    def add(self, lease: Lease) -> None:
        """Keep a lease alive until `discard`."""
        self.leases[lease.key] = lease

    def discard(self, key: Any) -> None:
        """A lease is done with."""
        self.leases.pop(key, None)

    def _run(self, stop: threading.Event) -> None:
        connection = Connection(self.alias, application="django_workqueue renew", patience=self._answered_in)
        patience = Patience("renew", self._outage)
        while not stop.wait(self._tick):
            if not self.leases:
                patience.is_idle()
            for task in self._due(monotonic()):
                try:
                    task(connection)
                except Exception as error:  # noqa: BLE001 - a thread's outer edge: Patience judges and logs it
                    pause, remake = patience.failed(error)
                    if remake:
                        connection.close()
                    stop.wait(pause)
                    break
                patience.succeeded()
                if stop.is_set():
                    break
        connection.close()

    def _due(self, now: float) -> Iterator[Callable[[Connection], None]]:
        """What is to be done now: renewals first."""
        leases = list(self.leases.values())
        for lease in leases:
            if lease.renew_at <= now:
                yield partial(_renew, lease)
        if now < self._check_at:
            return
        old: dict[Source, list[Lease]] = {}
        for lease in leases:
            if lease.lane.source.cancels and now - lease.began >= CHECK_EVERY:
                old.setdefault(lease.lane.source, []).append(lease)
        for source, some in old.items():
            self._check_at = now + CHECK_EVERY
            yield partial(self._check, source, some)

    def _check(self, source: Source, leases: Sequence[Lease], connection: Connection) -> None:
        """See which work of these leases is no longer ours."""
        began = monotonic()
        held = [(lease, lease.held()) for lease in leases]
        idents = sorted({ident for _, some in held for ident in some})
        tokens: dict[Any, int] = {}
        for start in range(0, len(idents), CHECK_AT_ONCE):
            tokens.update(source.tokens_on(connection, idents[start : start + CHECK_AT_ONCE]))
        for lease, some in held:
            gone = [ident for ident in some if tokens.get(ident) != lease.token]
            if gone:
                _believe(connection)
                lease.gone(gone, tokens)
        now = monotonic()
        self._check_at = max(self._check_at, now + CHECK_SHARE * (now - began))


def _renew(lease: Lease, connection: Connection) -> None:
    """Renew one lease as far as possible, and find out about the rest of it."""
    source: Source = lease.lane.source
    idents = lease.held()
    before = monotonic()
    if not idents:
        lease.renew_at = before + AGAIN
        return
    missing = set(idents).difference(source.extend_on(connection, lease.token, idents, lease.lane.lease))
    if missing:
        still_held = set(source.held_on(connection, lease.token, sorted(missing)))
        gone = missing - still_held
        if gone:
            tokens = source.tokens_on(connection, sorted(gone))
            _believe(connection)
            lease.gone(gone, tokens)
        missing = still_held
    if missing:
        # Somebody's transaction holds these rows, perhaps the handler's own. Nobody else can claim them meanwhile.
        lease.renew_at = before + min(AGAIN, lease.lane.seconds / 6)
        return
    lease.deadline = before + lease.lane.seconds
    lease.renewed(lease.deadline)
    lease.renew_at = before + lease.lane.seconds / 3


def _believe(connection: Connection) -> None:
    """Raise if what was read may be the past: on a server that no longer takes, or does not yet take, writes."""
    if not connection.takes_writes:
        raise OperationalError("the server is a read-only standby") from psycopg.errors.ReadOnlySqlTransaction()
