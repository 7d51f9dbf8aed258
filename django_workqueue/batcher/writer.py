"""What becomes of a batch: written, repeated, halved, answered.

Decides nothing about when; the batcher calls it, from one thread at a time.
"""

from __future__ import annotations

import logging
import math
import random
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from enum import Enum
from typing import Any

from ..exceptions import WorkqueueError
from .calls import Call, Lane, ring, seconds_until
from .lines import Lines

logger = logging.getLogger("django_workqueue.batcher")

CONFLICT_TRIES = 6  # how often a batch that meets deadlocks and the like is written before it counts as refused
CONFLICT_TRIES_SPLIT = 2  # the same for the parts of such a batch
PAUSE = 0.01  # seconds before the first repetition; doubles
PAUSE_MAX = 1.0
HELD_PAUSE = 0.1  # seconds that go to other lanes, if they have anything, before a batch that met a lock is tried again
HELD_PAUSE_IDLE = 0.02  # the same if they have not
ALONE_BEGINS_WITHIN = 1.0  # seconds until a caller who took a batch for itself is no longer waited for
HELD_TOLD = 1.0  # seconds of that before the log hears of it


class Disposition(Enum):
    """What an error of a write calls for."""

    RETRY = "retry"  # deadlock, serialisation: the same again, a few times
    RECONNECT = "reconnect"  # connection or server gone: the same again on a new connection, until it works
    WAIT = "wait"  # somebody has locked the table: the same again until it works, other lanes meanwhile
    REFUSE = "refuse"  # somebody's entries are at fault: find out whose
    STRANGE = "strange"  # not the database's: as well, unless it was an interrupt of whoever wrote


class Writer:
    """Takes batches from the lines and writes them, on the thread that holds `turn`.

    `lock` is the batcher's, and guards the lines, the calls in them, `batch`, the one in hand, and `held`, those that
    wait for a table's lock. No write happens under it.
    """

    def __init__(
        self,
        *,
        name: str,
        lock: threading.Lock,
        lines: Lines,
        batch_max: Callable[[], int],
        classify: Callable[[BaseException], Disposition],
        disconnect: Callable[[], None],
        answer_by: Callable[[float | None], None],
    ) -> None:
        self.turn = threading.Lock()  # guards the connection
        self.threads: set[int] = set()  # those that write, and so would wait for themselves
        self.batch: Batch | None = None
        self.held: list[Batch] = []  # no two of a lane
        self.took = 0.0  # seconds of the last write
        self.to_follow: deque[Batch] = deque()  # what callers have written themselves, and nothing has followed
        self.followed_at = -math.inf  # when there last was any of that
        self._name = name
        self._lock = lock
        self._lines = lines
        self._batch_max = batch_max
        self._classify = classify
        self._disconnect = disconnect
        self._answer_by = answer_by
        self._gone_since: float | None = None
        self._gone_told = False  # whether the log has heard of it
        self._trouble: str | None = None  # why the database has not answered since

    def is_me(self) -> bool:
        """Whether the calling thread is one that writes, from a lane's own code for instance."""
        me = threading.get_ident()
        # By an interrupt in the wrong place a batch can have a writer who is not at it any more.
        return me in self.threads or ((batch := self.batch) is not None and batch.writer == me and self.turn.locked())

    def write_batch(self, deadline: float | None = None) -> Batch | None:
        """Write one batch, all of it or until the deadline or a lock. None: nobody is in line.

        What is refused as a whole is written in halves, down to single calls: only the culprits see the error.
        A batch left over at a deadline is gone on with by whoever writes next.
        """
        self._take_over()
        batch = self.batch or self._next()
        if batch is None or batch.is_its_callers():
            return None
        batch.writer = 0  # who has not begun by now does not any more
        while batch.groups:
            try:
                results = self._write(batch, deadline)
            except _OutOfTime:
                return batch
            except _Held as held:
                self._hold(batch, held.error)
                return batch
            except Exception as error:  # noqa: BLE001 - whatever it is, it is the callers' to see
                self._refuse(batch, error)
            else:
                self._answer(batch, results)
        with self._lock:
            self.batch = None
        self._follow(batch.lane, batch.landed)
        return batch

    def write_alone(self, batch: Batch, deadline: float | None) -> None:
        """Write the batch in hand, of a single call, on its caller's own thread, in one attempt.

        What does not succeed at once stays in hand for the thread. Nothing is done here but to send the statement and
        take its answer: wherever the caller is interrupted, it must leave nothing half done that others depend on.
        """
        (call,) = batch.calls()
        batch.sent = list(call.part())
        try:
            self._answer_by(deadline)
            results = batch.lane.write(batch.sent)
        except Exception as error:
            disposition = self._classify(error)
            if disposition is Disposition.STRANGE:
                self.drop_connection()
                raise
            if disposition is Disposition.RECONNECT:
                self._gone(error)
            return
        except BaseException:
            self.drop_connection()
            raise
        finally:
            self._answer_by(None)
            batch.writer = 0
        self._answer(batch, results)
        self.to_follow.append(batch)
        with self._lock:
            self.batch = None

    def _take_over(self) -> None:
        """Go on with what callers who wrote for themselves have left, interrupted or not."""
        self._answer_by(None)
        if not self.to_follow:
            return
        self.followed_at = time.monotonic()
        self._back()
        landed: dict[Lane[Any, Any], list[Any]] = {}
        while self.to_follow:
            batch = self.to_follow.popleft()
            landed.setdefault(batch.lane, []).extend(batch.landed)
        for lane, entries in landed.items():
            self._follow(lane, entries)

    def _follow(self, lane: Lane[Any, Any], entries: list[Any]) -> None:
        """What comes after the callers of these entries were answered."""
        if entries:
            try:
                lane.after(entries)
            except Exception:
                logger.exception("%s: after a batch of queue %r", self._name, lane.name)

    def drop_connection(self) -> None:
        """A new one is opened by the next write."""
        try:
            self._disconnect()
        except Exception:
            logger.exception("%s: could not drop the connection", self._name)

    def trouble_of(self, lane: Lane[Any, Any]) -> str | None:
        """Why the lane's calls are not written, if anything prevents it."""
        with self._lock:
            of_its_own = next((batch.trouble for batch in self.in_hand() if batch.lane is lane), None)
        return of_its_own or self._trouble

    def in_hand(self) -> list[Batch]:
        """What was taken from the lines and is not written yet. The lock is held."""
        return self.held if self.batch is None else [*self.held, self.batch]

    def _next(self) -> Batch | None:
        """What met a lock a while ago, else the next from the lines, else what met a lock just now."""
        most = max(self._batch_max(), 1)
        now = time.monotonic()
        with self._lock:
            again = next((batch for batch in self.held if batch.again <= now), None)
            if again is None:
                taken = self._lines.take(most, [batch.lane for batch in self.held])
                if taken is not None:
                    self.batch = Batch(*taken, most)
                    return self.batch
                if not self.held:
                    return None
                again = self.held[0]
            self.held.remove(again)
            self.batch = again
        if again.again > now:
            time.sleep(min(again.again - now, HELD_PAUSE_IDLE))
        return again

    def _hold(self, batch: Batch, error: Exception) -> None:
        """The batch's next group met a lock: it is tried again when others have had their turn."""
        now = time.monotonic()
        if batch.trouble is None:
            batch.trouble, batch.held_since = str(error).strip(), now
        elif now - batch.held_since >= HELD_TOLD and not batch.told:
            batch.told = True
            logger.warning(
                "%s: queue %r waits for a lock that somebody holds on its table: %s",
                self._name,
                batch.lane.name,
                error,
            )
        batch.again = now + HELD_PAUSE
        with self._lock:
            self.batch = None
            self.held.append(batch)

    def _write(self, batch: Batch, deadline: float | None) -> Sequence[Any] | None:
        """Write the batch's next group, repeatedly while an error of the moment prevents it."""
        tries = batch.tries
        pause = PAUSE
        while True:
            calls = batch.groups[-1] = [call for call in batch.groups[-1] if not call.done]
            batch.sent = entries = [entry for call in calls for entry in call.part()]
            if not entries:
                return None
            started = time.monotonic()
            try:
                results = batch.lane.write(entries)
            except Exception as error:
                disposition = self._classify(error)
                if disposition in (Disposition.REFUSE, Disposition.STRANGE):
                    raise
                if disposition is Disposition.WAIT:
                    raise _Held(error) from error
                if disposition is Disposition.RECONNECT:
                    self._gone(error)
                elif tries == 1:
                    raise
                else:
                    tries -= 1
            else:
                self.took = time.monotonic() - started
                self._back()
                return results
            left = seconds_until(deadline)
            if left == 0:
                raise _OutOfTime
            time.sleep(min(pause * random.uniform(0.5, 1), pause if left is None else left))
            pause = min(pause * 2, PAUSE_MAX)

    def _answer(self, batch: Batch, results: Sequence[Any] | None) -> None:
        """The batch's next group has landed."""
        calls = batch.groups[-1]
        sizes = [call.taken - call.written for call in calls]
        if results is not None and len(results) != sum(sizes):
            raise WorkqueueError(
                f"Queue {batch.lane.name!r}: the write gave {len(results)} results for {sum(sizes)} entries"
            )
        answered = []
        with self._lock:
            batch.groups.pop()
            if not batch.answered:
                batch.behind = self._lines.calls
            at = 0
            for call, size in zip(calls, sizes, strict=True):
                part = None if results is None else results[at : at + size]
                at += size
                if not call.done and call.land(part):  # done, but not by us: given up meanwhile
                    answered.append(call)
        ring(answered)
        batch.landed += batch.sent
        batch.answered += len(answered)

    def _refuse(self, batch: Batch, error: Exception) -> None:
        """The batch's next group was refused: halve it, or if it is a single call answer that."""
        disposition = self._classify(error)
        if disposition is Disposition.STRANGE:  # it may have struck between a statement and its answer
            self.drop_connection()
        with self._lock:
            calls = batch.groups.pop()
            if len(calls) > 1:
                half = len(calls) // 2
                batch.groups += [calls[half:], calls[:half]]
                if disposition is Disposition.RETRY:
                    batch.tries = CONFLICT_TRIES_SPLIT
                return
            (call,) = calls
            if call.done:
                return
            call.fail(error)
        ring(calls)
        batch.answered += 1
        if call.left:
            logger.error(
                "%s: entries of queue %r were refused when nobody waited any more",
                self._name,
                batch.lane.name,
                exc_info=error,
            )

    def _gone(self, error: BaseException) -> None:
        self._trouble = str(error).strip() or type(error).__name__
        if self._gone_since is None:  # perhaps only of a connection that was cut while nobody used it
            self._gone_since = time.monotonic()
            logger.info("%s: the connection was lost, another is opened: %s", self._name, error)
        elif not self._gone_told:
            self._gone_told = True
            logger.warning("%s: the database is gone, trying until it is back: %s", self._name, error)
        self.drop_connection()

    def _back(self) -> None:
        if self._gone_told and self._gone_since is not None:
            logger.warning("%s: the database is back after %.1f s", self._name, time.monotonic() - self._gone_since)
        self._gone_since = self._trouble = None
        self._gone_told = False


class Batch:
    """What was taken from a lane at once, in the groups in which it is still to be written, the next one last."""

    __slots__ = (
        "again",
        "answered",
        "behind",
        "groups",
        "held_since",
        "landed",
        "lane",
        "most",
        "sent",
        "taken_at",
        "told",
        "tries",
        "trouble",
        "writer",
    )

    def __init__(self, lane: Lane[Any, Any], calls: list[Call], most: int) -> None:
        self.lane = lane
        self.groups = [calls]
        self.most = most  # entries
        self.tries = CONFLICT_TRIES
        self.sent: list[Any] = []  # the entries of the group that is being written
        self.landed: list[Any] = []  # those that were
        self.writer = 0  # the thread that is to write it, if that is its caller's own …
        self.taken_at = time.monotonic()  # … since when
        self.answered = 0  # calls
        self.behind = 0  # calls that were in line when the first of these were answered
        self.trouble: str | None = None  # the lock that it waits for
        self.told = False  # whether the log has heard of that
        self.held_since = self.again = 0.0  # when it first met that, and when it is to be tried again

    def is_its_callers(self) -> bool:
        """Whether its caller is about to write it, which takes no time: then it has been interrupted."""
        return self.writer != 0 and time.monotonic() - self.taken_at < ALONE_BEGINS_WITHIN

    def calls(self) -> list[Call]:
        """Those still to be written."""
        return [call for group in self.groups for call in group]


class _OutOfTime(Exception):
    """The deadline of the caller who is writing has passed."""


class _Held(Exception):
    """Somebody holds a lock on the table."""

    def __init__(self, error: Exception) -> None:
        self.error = error
