"""Keeping leases alive, on a thread and connection of its own.

Renews whatever it was given, in whichever process it runs: a worker's own, or its supervisor. What a renewal
or a loss means for the work is for whoever holds the lease.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from time import monotonic
from typing import Any

from django_workqueue.database import Connection
from django_workqueue.engine import Source

from .lane import Lane
from .outage import Outage, Patience

CHECK_SHARE = 20  # a round that took x is not followed by a check within 20 x
AGAIN = 1.0  # seconds at most until leases that could not be renewed are tried again


class Lease:
    """One claim's lease: `held()` are the idents to renew; `renewed` is told the new deadline, `lost` what is gone."""

    __slots__ = ("began", "check", "held", "key", "lane", "lost", "renew_at", "renewed", "token")

    def __init__(
        self,
        lane: Lane,
        token: int,
        deadline: float,
        *,
        held: Callable[[], list[Any]],
        renewed: Callable[[float], None],
        lost: Callable[[list[Any]], None],
        key: Any = None,
    ) -> None:
        self.lane = lane
        self.token = token
        self.key = token if key is None else key
        self.held = held
        self.renewed = renewed
        self.lost = lost
        self.renew_at = deadline - lane.seconds * 2 / 3
        self.began = monotonic()
        self.check = False  # whether it is to be seen before that if the work is still ours


class Renewer:
    """Renews the leases of one alias when a third of them has passed."""

    def __init__(self, alias: str, outage: Outage, *, shortest: float) -> None:
        self.alias = alias
        self.leases: dict[Any, Lease] = {}  # set and popped by other threads: single operations, atomic
        self._tick = min(max(shortest / 12, 0.02), AGAIN)
        self._check_at = 0.0
        self._outage = outage
        self._thread: threading.Thread | None = None
        self._stop = threading.Event()

    def start(self) -> None:
        """Renew from now on."""
        self._stop = threading.Event()
        self._thread = threading.Thread(
            target=self._run, args=(self._stop,), name=f"workqueue-renew-{self.alias}", daemon=True
        )
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

    def check(self, lane: Lane) -> None:
        """See soon whether what runs long in this lane is still ours: it may have been cancelled."""
        now = monotonic()
        if now < self._check_at:
            return
        self._check_at = now + AGAIN
        for lease in list(self.leases.values()):
            if lease.lane is lane and now - lease.began > AGAIN:
                lease.check = True

    def _run(self, stop: threading.Event) -> None:
        connection = Connection(self.alias, application="django_workqueue renew")
        patience = Patience("renew", self._outage)
        while not stop.wait(self._tick):
            now = monotonic()
            for lease in list(self.leases.values()):
                if lease.renew_at > now and not lease.check:
                    continue
                try:
                    if lease.renew_at > now:
                        _check(connection, lease)
                    else:
                        _renew(connection, lease)
                except Exception as error:  # noqa: BLE001 - a thread's outer edge: Patience judges and logs it
                    pause, remake = patience.failed(error)
                    if remake:
                        connection.close()
                    stop.wait(pause)
                    break
                patience.succeeded()
                if stop.is_set():
                    break
            self._check_at = max(self._check_at, monotonic() + CHECK_SHARE * (monotonic() - now))
        connection.close()


def _check(connection: Connection, lease: Lease) -> None:
    """See which of a lease's work is no longer ours."""
    lease.check = False
    idents = lease.held()
    gone = set(idents).difference(lease.lane.source.held_on(connection, lease.token, idents)) if idents else ()
    if gone:
        lease.lost(sorted(gone))


def _renew(connection: Connection, lease: Lease) -> None:
    """Renew one lease as far as possible, and find out about the rest of it."""
    source: Source = lease.lane.source
    idents = lease.held()
    if not idents:
        lease.renew_at = float("inf")
        return
    before = monotonic()
    missing = set(idents).difference(source.extend_on(connection, lease.token, idents, lease.lane.lease))
    if missing:
        still_held = set(source.held_on(connection, lease.token, sorted(missing)))
        gone = missing - still_held
        if gone:
            lease.lost(sorted(gone))
        missing = still_held
    if missing:
        # Somebody's transaction holds these rows, perhaps the handler's own. Nobody else can claim them meanwhile.
        lease.renew_at = before + min(AGAIN, lease.lane.seconds / 6)
        return
    lease.renewed(before + lease.lane.seconds)
    lease.renew_at = before + lease.lane.seconds / 3
