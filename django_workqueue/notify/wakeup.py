"""Waiting for work: a latch for each waiter, set by the server's notifications and by enqueues of this process.

Knows neither connections nor SQL. A wake says "look"; whether there is work is for the caller to find out.
"""

from __future__ import annotations

import contextlib
import math
import os
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import timedelta
from weakref import WeakSet, WeakValueDictionary

from django_workqueue import conf

from .condition import Condition
from .switchboard import switchboard

CHANNEL = "workqueue"  # where enqueues of other processes say which queue has work
LINGER = timedelta(seconds=1)
PAUSE_MAX = 3600.0  # threads cannot wait for ever and a day
STOP_SLICE = 0.05  # how often a wait looks at a stop event, which has no way to tell it


def subscribe(alias: str, queue: str) -> Wakeup:
    """A wakeup for a worker: listens until it is closed, and is woken as soon as it listens.

    Make it before the first claim: then nothing that is enqueued after that claim is missed.
    """
    wakeup = Wakeup(alias, queue, linger=None)
    wakeup.attend()
    return wakeup


def occasional(alias: str, queue: str) -> Wakeup:
    """A wakeup for waits by hand: listens while somebody waits and a second longer, so that it need not be closed.

    What came while it did not listen counts as a wake, but for the time before its first wait.
    """
    return Wakeup(alias, queue, linger=LINGER)


def reachable(alias: str) -> None:
    """An alias can be reached again, as somebody has found out: what waits to listen there need not wait any longer."""
    switchboard().hurry(conf.listen_alias(alias))


def wake_local(alias: str, queue: str) -> None:
    """Wake this process's own waiters for the queue, without the server."""
    with _lock:
        wakeups = list(_wakeups.get((alias, queue), ()))
    for wakeup in wakeups:
        wakeup.set()


class Wakeup:
    """A latch that is set whenever its queue may have got work; any number of threads and coroutines wait for it.

    A wake that comes while nobody waits is kept for the next wait. One that comes while several wait is for
    all of them. With `WORKQUEUE_NOTIFY` off, or while there is no connection, only this process's wakes come.
    """

    channels = frozenset({CHANNEL})

    def __init__(self, alias: str, queue: str, *, linger: timedelta | None) -> None:
        self.alias = alias
        self.queue = queue
        self._linger = None if linger is None else linger.total_seconds()
        self._closed = False
        self._rung = 0  # wakes so far
        self._answered = 0  # of those, the ones that a wait has returned for
        self._answered_at = -math.inf
        self._lingers_until = -math.inf
        self._has_listened = False
        self.begin()
        with _lock:
            self._peers = _wakeups.setdefault((alias, queue), WeakSet())
            self._peers.add(self)

    def begin(self) -> None:
        """Nobody waits: at first, and in a forked child, where whoever did is not."""
        self._changed = Condition()  # guards the rest
        self._waiters = 0

    def wait(self, timeout: float, stop: threading.Event | None = None, *, floor: float = 0.0) -> bool:
        """Wait for a wake, at most `timeout` seconds; whether there was one. False at once when `stop` is set.

        With a `floor`, wakes are answered at least that many seconds apart; one that comes sooner is kept
        until then.
        """
        with self._waiting():
            wait = _Wait(self._answered, time.monotonic() + timeout, stop, floor)
            with self._changed.lock:
                while not self._is_over(wait):
                    self._changed.wait(wait.pause)
            return wait.woken

    async def await_wake(self, timeout: float, *, floor: float = 0.0) -> bool:
        """`wait` for coroutines. Cancelling it loses no wake."""
        with self._waiting():
            wait = _Wait(self._answered, time.monotonic() + timeout, None, floor)
            while True:
                with self._changed.lock:
                    if self._is_over(wait):
                        return wait.woken
                    future = self._changed.pausing()
                await self._changed.pause(future, wait.pause)

    def set(self) -> None:
        """Wake whoever waits, or the next to wait."""
        with self._changed.lock:
            self._rung += 1
            self._changed.notify_all()

    def clear(self) -> None:
        """Forget a wake that nobody has waited for yet."""
        with self._changed.lock:
            self._answered = self._rung

    def close(self) -> None:
        """Stop listening, and end every wait with False. Idempotent."""
        with self._changed.lock:
            self._closed = True
            self._changed.notify_all()
        switchboard().leave(self)

    def attend(self) -> None:
        """Listen, if that is wanted and not done already."""
        if conf.notify() and not self._closed:
            with contextlib.suppress(RuntimeError):  # no thread to be had: the poll goes on
                switchboard().join(conf.listen_alias(self.alias), self)

    def _is_over(self, wait: _Wait) -> bool:
        """Whether the wait has come to its end; else it is to look again after `wait.pause`. The lock is held."""
        now = time.monotonic()
        if self._closed or (wait.stop is not None and wait.stop.is_set()):
            return True
        due = math.inf
        if self._rung > wait.heard:
            # Answered already: it was answered to somebody who waited beside us, and is for us as well.
            due = now if self._answered == self._rung else self._answered_at + wait.floor
        if due <= now:
            if self._answered != self._rung:
                self._answered, self._answered_at = self._rung, now
            wait.woken = True
            return True
        wait.pause = min(min(due, wait.deadline) - now, STOP_SLICE if wait.stop is not None else PAUSE_MAX)
        return now >= wait.deadline

    @contextlib.contextmanager
    def _waiting(self) -> Iterator[None]:
        with self._changed.lock:
            self._waiters += 1
        try:
            self.attend()
            yield
        finally:
            with self._changed.lock:
                self._waiters -= 1
                lingering = self._linger is not None and not self._waiters
                self._lingers_until = time.monotonic() + (self._linger or 0.0)
            if lingering:
                switchboard().nudge()

    # for the listener

    def wanted_until(self) -> float:
        if self._closed:
            return -math.inf
        return math.inf if self._linger is None or self._waiters else self._lingers_until

    def listening(self) -> None:
        if self._linger is None or self._has_listened:
            self.set()
        self._has_listened = True

    def cut_off(self) -> None:
        self.set()  # to wait again is to listen again

    def receive(self, channel: str, payload: str) -> None:
        if payload == self.queue:
            self.set()


@dataclass(slots=True)
class _Wait:
    """How far one wait has come."""

    heard: int  # the wakes before it, which are not for it
    deadline: float
    stop: threading.Event | None
    floor: float
    pause: float = 0.0
    woken: bool = False


_lock = threading.Lock()  # guards the registry
_wakeups: WeakValueDictionary[tuple[str, str], WeakSet[Wakeup]] = WeakValueDictionary()  # each kept by its members


def _after_fork_in_child() -> None:
    global _lock  # noqa: PLW0603
    _lock = threading.Lock()
    for wakeups in _wakeups.values():
        for wakeup in wakeups:
            wakeup.begin()


os.register_at_fork(after_in_child=_after_fork_in_child)
