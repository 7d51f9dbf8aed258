"""Telling other processes that a queue has work: NOTIFY, few, and never in a caller's own commit.

Knows nothing of who listens. The connection and the thread it is used on are the group commit's.

NOTIFY takes a lock that the whole server shares, and holds it until its transaction is committed, to the disk.
So it is sent by itself, after the rows it speaks of are committed: then there is nothing left to write.
"""

from __future__ import annotations

import atexit
import contextlib
import logging
import math
import os
import threading
import time
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any
from weakref import WeakSet

from django.db import Error

from django_workqueue import conf
from django_workqueue.backoff import exponential
from django_workqueue.batcher import threads_available
from django_workqueue.batcher.process import exiting
from django_workqueue.database import Connection, Errand, Verdict, verdict
from django_workqueue.exceptions import EnqueueTimeout, QueueClosed

from .wakeup import wake_local

logger = logging.getLogger(__name__)

INTERVAL = 0.010  # seconds between two NOTIFYs of one queue
TIMER_IDLE = 1.0  # seconds after which an unused timer thread ends
EXIT_PATIENCE = 1.0
TRY_AGAIN = exponential(timedelta(milliseconds=50), timedelta(seconds=30))

NOTIFY = "SELECT pg_notify('workqueue', queue) FROM unnest(%(queues)s::text[]) AS queue"
NOTIFY_ONE = "SELECT pg_notify('workqueue', %(queue)s)"

# Of a `Batcher`: (lane, entries, timeout), and (lane, entries).
Submit = Callable[[Any, Sequence[str], float], object]
Post = Callable[[Any, Sequence[str]], object]


class Waker:
    """Sends the wakes of one alias, for each queue at most one an interval: the first at once, the rest together.

    It is a lane of the batcher that owns `connection`, so that a wake which does not follow a batch (the one
    after a caller's own commit, the last of a row) is sent by the batcher's thread on its connection like any
    other: `submit` and `post` are that batcher's.
    """

    name = "wakes"

    def __init__(self, alias: str, connection: Connection, submit: Submit, post: Post) -> None:
        self.alias = alias
        self._connection = connection
        self._submit = submit
        self._post = post
        self.begin()
        _wakers.add(self)

    def begin(self) -> None:
        """Nothing to send: at first, and in a forked child, whose parent sends what it had to."""
        # Guards the rest. Held by itself, not by the condition: an interrupt of whoever enqueues could leave that held.
        self._lock = threading.RLock()
        self._changed = threading.Condition(self._lock)
        self._due: dict[str, float] = {}  # queues to wake, and when; 0.0 if the sending thread has been told
        self._sent: dict[str, float] = {}  # when that was last done, for as long as it matters
        self._along: dict[str, Errand] = {}  # those that go along with what is written
        self._asked: set[str] = set()  # for which there is more to tell than the last that went along told
        self._failures = 0
        self._timer: threading.Thread | None = None
        self._looks_at = 0.0  # when the timer does, unless it is told
        self._ends_well = False  # whether the process's end is provided for

    def send_along(self, queue: str) -> None:
        """Have the wake for what is written next go along behind it, if it is time for one.

        For whoever has the connection, on whatever thread: an interrupt may come anywhere here.
        """
        now = time.monotonic()
        if self._sent.get(queue, -INTERVAL) + INTERVAL <= now and conf.notify():
            errand = self._along[queue] = Errand((NOTIFY_ONE, {"queue": queue}))  # asked for anew if it does not leave
            self._sent[queue] = now
            self._asked.discard(queue)
            self._connection.behind = errand
        else:
            self._asked.add(queue)

    def wake(self, queue: str) -> None:
        """Wake the queue's workers, after a commit."""
        if not self._went_along(queue) or queue in self._asked:
            self._ask(queue)
        self._send()

    def wake_later(self, queue: str) -> None:
        """The same from any other thread: returns at once."""
        if self._ask(queue):
            self._have_sent([queue])

    def flush(self, timeout: float = EXIT_PATIENCE) -> None:
        """Send now what was put off, from any thread but the one that owns the connection."""
        with self._lock:
            self._due = dict.fromkeys(self._due, 0.0)
            queues = list(self._due)
            self._changed.notify()
        if queues:
            with contextlib.suppress(EnqueueTimeout, QueueClosed):
                self._submit(self, queues, timeout)

    # the lane

    def write(self, entries: Sequence[str]) -> None:
        """Called by the batcher, on its thread. The entries only say that there is something to send."""
        self._send()

    def after(self, entries: Sequence[str]) -> None:
        """Nothing."""

    def _ask(self, queue: str) -> bool:
        """Note that the queue is to be woken; whether that is now, and not when its interval has passed."""
        wake_local(self.alias, queue)
        if not conf.notify():
            return False
        now = time.monotonic()
        with self._lock:
            if not self._ends_well:
                self._ends_well = True
                _watch_exit()
            due = self._sent.get(queue, -INTERVAL) + INTERVAL
            if due <= now or _ending or exiting() or not self._set_timer(due):
                due = 0.0
            self._due[queue] = min(due, self._due.get(queue, due))
            self._asked.add(queue)
            return due == 0.0

    def _went_along(self, queue: str) -> bool:
        """Whether the wake was sent behind what it is for."""
        errand = self._along.pop(queue, None)
        if errand is None:
            return False
        if not errand.sent:  # what was written travels otherwise, or came to nothing
            self._sent.pop(queue, None)
            return False
        self._connection.finish()
        if errand.error is not None:
            self._failed([queue], errand.error)
        elif not errand.done:
            return False
        else:
            self._failures = 0
            with self._lock:
                if queue not in self._asked:  # what others have committed meanwhile may not have been there yet
                    self._due.pop(queue, None)
        wake_local(self.alias, queue)
        return True

    def _send(self) -> None:
        """Send what is due; what fails is tried again later, for the batch it follows has long been answered."""
        now = time.monotonic()
        with self._lock:
            self._sent = {queue: at for queue, at in self._sent.items() if at + INTERVAL > now}
            if _ending or self._timer is None:
                horizon = math.inf  # nobody will remind us of the rest
            elif min(self._due.values(), default=math.inf) <= now:
                horizon = now + INTERVAL / 2  # what is almost due comes along
            else:
                return
            queues = sorted(queue for queue, due in self._due.items() if due <= horizon)
            for queue in queues:
                del self._due[queue]
                self._sent[queue] = now
        if not queues:
            return
        try:
            self._connection.execute(NOTIFY, {"queues": queues})
        except Error as error:
            self._failed(queues, error)
        else:
            self._failures = 0

    def _failed(self, queues: Sequence[str], error: Exception) -> None:
        judged = verdict(error)
        if judged is Verdict.RECONNECT:
            self._connection.close()
        if judged is Verdict.REFUSED and not self._failures:
            logger.warning("The server refuses to wake other processes: %s. They poll.", error)
        self._failures += 1
        again = time.monotonic() + TRY_AGAIN(self._failures).total_seconds()
        with self._lock:
            for queue in queues:
                self._due.setdefault(queue, again)
            self._set_timer(again)

    def _have_sent(self, queues: Sequence[str]) -> None:
        with contextlib.suppress(QueueClosed):
            self._post(self, queues)

    # the timer

    def _set_timer(self, due: float) -> bool:
        """Have the thread look at what is due by then; whether there is one. The lock is held."""
        if self._timer is not None:
            if due < self._looks_at:
                self._looks_at = due
                self._changed.notify()
            return True
        if not threads_available():
            return False
        self._looks_at = due
        timer = threading.Thread(target=self._time, name=f"workqueue-wake-{self.alias}", daemon=True)
        try:
            timer.start()
        except RuntimeError:  # no more threads to be had, or the interpreter is ending
            return False
        self._timer = timer
        return True

    def _time(self) -> None:
        """Remind the sending thread of what has come due and no batch has taken along."""
        while (queues := self._wait_for_due()) is not None:
            self._have_sent(queues)

    def _wait_for_due(self) -> list[str] | None:
        """The queues that have come due; None when there has been nothing to wait for."""
        with self._lock:
            while True:
                now = time.monotonic()
                waiting = {queue: due for queue, due in self._due.items() if due}
                queues = [queue for queue, due in waiting.items() if due <= now]
                if queues:
                    self._due.update(dict.fromkeys(queues, 0.0))
                    return queues
                self._looks_at = min(waiting.values(), default=now + TIMER_IDLE)
                if not self._changed.wait(self._looks_at - now) and not self._due:
                    self._timer = None
                    return None


def announce(connection: Connection, queue: str) -> None:
    """Wake a queue's workers on a connection that is no group commit's, now. Raises what the database raises."""
    wake_local(connection.alias, queue)
    if conf.notify():
        connection.execute(NOTIFY_ONE, {"queue": queue})


_wakers: WeakSet[Waker] = WeakSet()
_ending = False  # from now on nothing is put off


def _watch_exit() -> None:
    # At the first wake, not at import: multiprocessing clears a forked child's exit functions.
    atexit.unregister(_flush_at_exit)
    atexit.register(_flush_at_exit)


def _flush_at_exit() -> None:
    global _ending  # noqa: PLW0603
    _ending = True
    for waker in list(_wakers):
        waker.flush()


def _after_fork_in_child() -> None:
    for waker in _wakers:
        waker.begin()


os.register_at_fork(after_in_child=_after_fork_in_child)
