"""Group commit: many callers, one write in flight.

Knows nothing of queues or SQL: a lane supplies the write, the owner says which errors mean what.

Calls line up by lane. One thread, which alone uses the connection, takes the lanes in turn and writes what has
lined up since in one statement; so the busier it gets, the larger the batches, and nobody waits for a timer.
"""

from __future__ import annotations

import atexit
import itertools
import logging
import os
import random
import threading
import time
import weakref
from collections import Counter, OrderedDict, deque
from collections.abc import Callable, Collection, Iterator, Sequence
from enum import Enum
from typing import Any, Protocol, TypeVar

from .calls import Call, LoopCall, ThreadCall, lock_timeout, ring
from .exceptions import QueueClosed, WorkqueueError

logger = logging.getLogger(__name__)

E = TypeVar("E")
R_co = TypeVar("R_co", covariant=True)
R = TypeVar("R")

CONFLICT_TRIES = 6  # how often a batch is repeated after deadlocks and the like
CONFLICT_TRIES_ALONE = 2  # the same for the parts of a batch that failed as a whole
EXIT_PATIENCE = 5.0  # seconds that a dead database can hold up the interpreter's exit
NEVER = 1 << 62


class Lane(Protocol[E, R_co]):
    """What the calls of one queue have in common: how their entries are written. Hashed by identity."""

    name: str
    closed: bool  # False at first; `Batcher.close_lane` sets it

    def write(self, entries: list[E]) -> Sequence[R_co] | None:
        """Make the entries durable in one statement, as long as nothing is raised.

        They are in the order in which they arrived; a result, if there are any, for each. Time spent waiting
        is for the entries to know: one that carries a delay should carry the monotonic time it is meant from.
        """

    def after(self) -> None:
        """Called on the writing thread once the callers of a batch were answered. Errors are logged."""


class Disposition(Enum):
    """What an error of a write calls for."""

    RETRY = "retry"  # deadlock, serialisation: the same again, a few times
    RECONNECT = "reconnect"  # the connection or the server is gone: the same again on a new one until it works
    REFUSE = "refuse"  # somebody's entries are at fault


class Batcher:
    """Merges the calls of all threads and event loops of the process into one stream of writes.

    `batch_max` is asked for each batch, `idle_after` (seconds) for each pause. `disconnect` drops the
    connection, on the thread that writes; `forget` drops what a forked child has inherited of it without a
    word to the server. At most `pending_max` entries are taken on ahead of being written.
    """

    def __init__(
        self,
        *,
        name: str,
        batch_max: Callable[[], int],
        classify: Callable[[BaseException], Disposition],
        disconnect: Callable[[], None],
        forget: Callable[[], None],
        idle_after: Callable[[], float],
        pending_max: int = 10_000,
    ) -> None:
        self.name = name
        self._batch_max = batch_max
        self._classify = classify
        self._disconnect = disconnect
        self._forget = forget
        self._idle_after = idle_after
        self._pending_max = pending_max
        self._closed = False
        self._begin()
        _batchers.add(self)

    def _begin(self) -> None:
        """As new: no calls, no thread, nobody holding a lock."""
        self._pid = os.getpid()
        self._writing = threading.Lock()  # held while writing, by whoever does; guards the connection
        self._lock = threading.Lock()  # guards everything below, and the counters of each call
        self._lines: OrderedDict[Lane[Any, Any], deque[Call]] = OrderedDict()  # next lane to serve first
        self._outside: deque[Call] = deque()  # those in line that are not fully admitted
        self._room = self._pending_max
        self._in_line = 0  # calls
        self._batch: _Batch | None = None
        self._thread: threading.Thread | None = None
        self._resting = False
        self._wake = threading.Lock()  # acquired by the thread to sleep, released to wake it
        self._wake.acquire()
        self._wanted = NEVER  # calls in line at which it wants to be woken
        self._writers: set[int] = set()  # threads that would wait for themselves
        self._write_took = 0.0
        self._away_since: float | None = None

    # callers

    def submit(self, lane: Lane[E, R], entries: Sequence[E], timeout: float | None = None) -> list[R] | None:
        """Return when the entries are durable, with their results in order (None if the lane has none).

        A call of more than a batch is written in several, in order; if one of them is refused, those before it
        have landed and those after it are not written. Raises the write's own error, `QueueClosed`, or
        `EnqueueTimeout` after `timeout` seconds (None: never), which says what is still likely to land.
        """
        _check(timeout)
        call = ThreadCall(lane.name, entries)
        try:
            if self._enter(lane, call):
                answered = call.wait(timeout)
            else:
                answered = self._lead(call, timeout)
        except BaseException:
            self._leave(lane, call)
            raise
        if not answered and not self._leave(lane, call):
            raise call.late(timeout)
        return call.outcome()

    async def asubmit(self, lane: Lane[E, R], entries: Sequence[E], timeout: float | None = None) -> list[R] | None:
        """As `submit`, awaiting. A cancelled caller leaves as one that timed out does."""
        _check(timeout)
        call = LoopCall(lane.name, entries)
        try:
            if self._enter(lane, call):
                answered = await call.wait(timeout)
            else:
                answered = self._lead(call, timeout)
        except BaseException:
            self._leave(lane, call)
            raise
        if not answered and not self._leave(lane, call):
            raise call.late(timeout)
        return call.outcome()

    def flush(self, timeout: float | None = None) -> bool:
        """Wait until everything submitted so far is answered; False when the time passed first."""
        return self._flush(None, timeout)

    def rest(self, timeout: float | None = None) -> bool:
        """Flush, let go of the connection and end the thread; the next submit begins afresh.

        For whoever needs the database to have no connections. False when the time passed first.
        """
        deadline = _deadline(timeout)
        if not self._flush(None, timeout):
            return False
        return self._stop(deadline)

    def close_lane(self, lane: Lane[Any, Any], timeout: float | None = None) -> None:
        """Flush one lane and take no more for it; its callers that are not answered in time get an error."""
        with self._lock:
            lane.closed = True
        if not self._flush([lane], timeout):
            self._forsake([lane])

    def close(self, timeout: float | None = None) -> None:
        """Flush and take no more; callers that are not answered in time get an error. Idempotent."""
        with self._lock:
            self._closed = True
        self._finish(timeout)

    # lining up and leaving

    def _enter(self, lane: Lane[Any, Any], call: Call) -> bool:
        """Line the call up; whether there is a thread to see to it."""
        if self._pid != os.getpid():
            _after_fork(self)
        if threading.get_ident() in self._writers:
            raise RuntimeError(f"Queue {lane.name!r}: an enqueue on the thread that writes would wait for itself")
        with self._lock:
            if self._closed or lane.closed:
                raise QueueClosed(f"Queue {lane.name!r} is closed. Nothing of this call was enqueued.")
            return self._line_up(lane, call)

    def _line_up(self, lane: Lane[Any, Any], call: Call) -> bool:
        line = self._lines.get(lane)
        if line is None:
            line = self._lines[lane] = deque()
        line.append(call)
        self._in_line += 1
        if call.size <= self._room:
            call.admitted = call.size
            self._room -= call.size
        else:
            self._outside.append(call)
            self._admit()
        if self._in_line >= self._wanted:
            self._nudge()
        return self._thread is not None or self._start()

    def _admit(self) -> None:
        """Give the room there is to those who have waited longest for it."""
        while self._outside:
            call = self._outside[0]
            granted = min(call.size - call.admitted, self._room)
            call.admitted += granted
            self._room -= granted
            if call.admitted < call.size:
                return
            self._outside.popleft()

    def _leave(self, lane: Lane[Any, Any], call: Call) -> bool:
        """The caller will not wait any longer; True if it was answered just now after all.

        What was admitted stays and is written; the rest is withdrawn.
        """
        with self._lock:
            if not call.done and call.admitted < call.size:
                call.truncate()
                _discard(self._outside, call)
                if call.taken == call.size:
                    self._drop(lane, call)
            self._nudge()  # the caller may have been interrupted just before it did
            return call.done

    def _drop(self, lane: Lane[Any, Any], call: Call) -> None:
        """Take the call out of its line."""
        line = self._lines.get(lane)
        if line is not None and _discard(line, call):
            self._in_line -= 1
            self._room += call.admitted - min(call.admitted, call.taken)
            if not line:
                del self._lines[lane]
