"""The callers: how they line up, wait and leave, and what becomes of them when the process forks, closes or ends.

Calls line up by lane. One thread serves the lanes in turn and writes what has lined up meanwhile in one statement: the
busier it gets the larger the batches. A lone caller waits for nobody: where nothing is in line or being written, it
writes its own call in the place of the thread, which goes on with it if that does not succeed at once.
"""

from __future__ import annotations

import logging
import math
import os
import threading
from collections import Counter
from collections.abc import Callable, Collection, Sequence
from typing import Any, TypeVar

from .. import arguments
from ..exceptions import QueueClosed
from . import process
from .calls import Call, Lane, LoopCall, ThreadCall, deadline_in, is_free_within, ring, seconds_until
from .lines import Lines
from .thread import WritingThread
from .writer import Batch, Disposition, Writer

logger = logging.getLogger("django_workqueue.batcher")

E = TypeVar("E")
R = TypeVar("R")

ALONE_LEAST = 1.0  # seconds that a caller must have who writes for itself: if they pass, it costs the connection
POST_PATIENCE = 1.0  # seconds for which a post may hold up its caller where there is no thread to leave it to

_forking = threading.Lock()  # held by the thread that was first to find itself in a child


class Batcher:
    """Merges the calls of all threads and event loops of a process into one stream of writes.

    `batch_max` is asked for each batch, `idle_after` (seconds) for each pause. `disconnect` drops the
    connection, on the writing thread; `forget` drops what a forked child has inherited of it, without a word
    to the server. `chores` is called on the writing thread when nobody is in line, does what it has to do on the
    connection, and says in how many seconds it has more. At most `pending_max` entries are taken on ahead of
    their write. `at_hand` says whether there is a connection for a caller to write on itself, and `answer_by` is told
    by which monotonic time that must have answered, or None when the caller is done with it.
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
        chores: Callable[[], float] = lambda: math.inf,
        at_hand: Callable[[], bool] = lambda: False,
        answer_by: Callable[[float | None], None] = lambda _: None,
        pending_max: int = 10_000,
    ) -> None:
        if pending_max < 1:
            raise ValueError(f"pending_max must be at least 1, not {pending_max}")
        self.name = name
        self._batch_max = batch_max
        self._classify = classify
        self._disconnect = disconnect
        self._forget = forget
        self._idle_after = idle_after
        self._chores = chores
        self._at_hand = at_hand
        self._answer_by = answer_by
        self._pending_max = pending_max
        self._closed = False
        self._begin()
        process.watch(self)

    def _begin(self) -> None:
        self._pid = os.getpid()
        self._lock = threading.Lock()  # guards the lines, the calls in them, and what follows
        self._lines = Lines(self._pending_max)
        self._writer = Writer(
            name=self.name,
            lock=self._lock,
            lines=self._lines,
            batch_max=self._batch_max,
            classify=self._classify,
            disconnect=self._disconnect,
            answer_by=self._answer_by,
        )
        self._thread = WritingThread(
            name=self.name,
            lock=self._lock,
            lines=self._lines,
            writer=self._writer,
            idle_after=self._idle_after,
            chores=self._chores,
            failed=self._break_down,
        )

    def submit(
        self, lane: Lane[E, R], entries: Sequence[E], timeout: float | None = None, *, weight: int = 1
    ) -> list[R] | None:
        """Return when the entries are durable, with their results in order (None if the lane has none).

        A call of more than a batch is written in several, in order; when one of those is refused, the ones
        before it have landed and the ones after it are not written. Each of its entries takes the place of `weight`
        in a batch. Raises the write's own error, `QueueClosed`, or after `timeout` seconds (None: never)
        `EnqueueTimeout`, which says what is still likely to land.
        """
        self._check(lane, timeout)
        call = ThreadCall(lane, entries, weight)
        try:
            batch = self._take_alone(call, timeout) if self._thread.rests else None
            if batch is not None:
                answered = self._write_alone(call, batch, timeout)
            else:
                answered = call.wait(timeout) if self._enter(call) else self._write_here(call, timeout)
        except BaseException:
            self._leave(call)
            raise
        if not answered and not self._leave(call):
            raise call.late(timeout, self._writer.trouble_of(lane))
        return call.outcome()

    async def asubmit(
        self,
        lane: Lane[E, R],
        entries: Sequence[E],
        timeout: float | None = None,
        *,
        weight: int = 1,
    ) -> list[R] | None:
        """As `submit`, awaiting. A caller that is cancelled leaves as one that timed out does."""
        self._check(lane, timeout)
        call = LoopCall(lane, entries, weight)
        try:
            answered = await call.wait(timeout) if self._enter(call) else self._write_here(call, timeout)
        except BaseException:
            self._leave(call)
            raise
        if not answered and not self._leave(call):
            raise call.late(timeout, self._writer.trouble_of(lane))
        return call.outcome()

    def post(self, lane: Lane[E, Any], entries: Sequence[E]) -> int:
        """Have entries written without waiting for it; how many of them, from the first on, were taken on.

        Nobody hears what becomes of them, so a refusal is logged. Raises `QueueClosed`.
        """
        call = Call(lane, entries)
        call.left = True
        if not self._enter(call) and not self._writer.is_me():
            self._write_here(call, POST_PATIENCE)
        self._leave(call)
        return call.size

    def flush(self, timeout: float | None = None) -> bool:
        """Wait until everything submitted so far is answered. False: the time passed first."""
        return self._flush(self._busy_lanes(), timeout)

    def rest(self, timeout: float | None = None) -> bool:
        """Flush, drop the connection, end the thread; the next submit starts afresh. False: not in time.

        For whoever needs a database that nobody is connected to.
        """
        deadline = deadline_in(timeout)
        return self.flush(timeout) and self._thread.end(seconds_until(deadline))

    def finish_lane(self, lane: Lane[Any, Any], timeout: float | None = None) -> None:
        """Flush one lane; what cannot be written in time is given up, its callers told, and logged."""
        if not self._flush([busy for busy in self._busy_lanes() if busy is lane], timeout):
            self._give_up([lane], Call.forsaken)

    def close(self, timeout: float | None = None) -> None:
        """Flush, take no more, end the thread. Callers not answered in time get an error. Idempotent."""
        deadline = deadline_in(timeout)
        self._notice_fork()
        with self._lock:
            self._closed = True
        self.finish(seconds_until(deadline))

    def finish(self, timeout: float | None = None) -> None:
        """Flush and end the thread; what cannot be written in time is given up, its callers told, and logged."""
        deadline = deadline_in(timeout)
        if not self.flush(timeout):
            self._give_up(None, Call.forsaken)
        self._thread.end(seconds_until(deadline))

    def forked(self) -> None:
        """Begin anew in a child: the thread, the callers and their entries are the parent's."""
        self._begin()
        try:
            self._forget()
        except Exception:
            logger.exception("%s: could not forget the connection of the parent process", self.name)

    # Callers, in line

    def _check(self, lane: Lane[Any, Any], timeout: float | None) -> None:
        if timeout is not None and arguments.seconds("timeout", timeout) <= 0:
            raise ValueError(f"timeout must be positive or None, not {timeout!r}")
        if self._writer.is_me():
            raise RuntimeError(f"Queue {lane.name!r}: the thread that writes cannot wait for itself to write")

    def _enter(self, call: Call) -> bool:
        """Line the call up; whether there is a thread to write it."""
        self._notice_fork()
        with self._lock:
            if self._closed:
                raise QueueClosed(f"Queue {call.lane.name!r} is closed in this process. Nothing was enqueued.")
            return self._line_up(call)

    def _line_up(self, call: Call) -> bool:
        self._lines.append(call)
        return self._thread.call()

    def _take_alone(self, call: Call, timeout: float | None) -> Batch | None:
        """A batch of nothing but the call, in hand, if its caller is to write it. The thread rests meanwhile."""
        if (timeout is not None and timeout < ALONE_LEAST) or not self._at_hand():
            return None
        self._notice_fork()
        most = max(self._batch_max(), 1)
        with self._lock:
            if self._closed or not self._thread.rests or self._lines or self._writer.in_hand():
                return None
            if call.size * call.weight > most:
                return None
            call.admitted = call.taken = call.size
            batch = Batch(call.lane, [call], most)
            batch.writer = threading.get_ident()
            self._writer.batch = batch
            return batch

    def _write_alone(self, call: ThreadCall, batch: Batch, timeout: float | None) -> bool:
        """Write on the caller's own thread, or if that does not succeed at once have the other go on with it."""
        deadline = deadline_in(timeout)
        with self._writer.turn:
            if batch.writer and not call.done:  # nobody has taken it over or given it up
                self._writer.write_alone(batch, deadline)
        if call.done:
            self._thread.stood_in()
            return True
        with self._lock:
            self._thread.wake()
            threaded = self._thread.available()
        left = seconds_until(deadline)
        return call.wait(left) if threaded else self._write_here(call, left)

    def _leave(self, call: Call) -> bool:
        """The caller goes; True if it was answered in the last moment."""
        with self._lock:
            if (batch := self._writer.batch) is not None and batch.writer == threading.get_ident():
                batch.writer = 0  # it was about to write for itself
            if not call.done:
                self._lines.leave(call)
            self._thread.wake()  # the caller may have been interrupted just before it did
            return call.done

    def _notice_fork(self) -> None:
        """uWSGI, for one, forks without a word to Python unless it is asked to."""
        if self._pid != os.getpid():
            with _forking:
                if self._pid != os.getpid():
                    self.forked()

    def _busy_lanes(self) -> list[Lane[Any, Any]]:
        """Those with anything unanswered."""
        self._notice_fork()
        with self._lock:
            return list(dict.fromkeys([*self._lines.lanes(), *(batch.lane for batch in self._writer.in_hand())]))

    def _flush(self, lanes: Collection[Lane[Any, Any]], timeout: float | None) -> bool:
        """Send an empty call down each lane, behind everything that is in it."""
        deadline = deadline_in(timeout)
        for lane in lanes:
            call = ThreadCall(lane, ())
            with self._lock:
                threaded = self._line_up(call)
            left = seconds_until(deadline)
            answered = call.wait(left) if threaded else self._write_here(call, left)
            if not answered or call.error is not None:
                with self._lock:
                    self._lines.remove(call)
                return False
        return True

    def _give_up(self, lanes: Collection[Lane[Any, Any]] | None, reason: Callable[[Call], BaseException]) -> None:
        """Answer every call of these lanes (None: of all), each with an error of its own."""
        with self._lock:
            calls = self._lines.clear(self._lines.lanes() if lanes is None else lanes)
            for batch in self._writer.in_hand():
                if lanes is None or batch.lane in lanes:
                    calls += batch.calls()
            calls = [call for call in dict.fromkeys(calls) if not call.done]
            for call in calls:
                call.fail(reason(call))
        ring(calls)
        lost: Counter[str] = Counter()
        for call in calls:
            lost[call.lane.name] += call.size - call.written
        for name, count in sorted((+lost).items()):
            logger.error("%s: gave up on %d entries of queue %r", self.name, count, name)

    def _write_here(self, call: Call, timeout: float | None) -> bool:
        """Without a thread: write on the caller's own until its call is answered, those of others included."""
        deadline = deadline_in(timeout)
        writer = self._writer
        if not is_free_within(writer.turn, timeout):
            return False
        me = threading.get_ident()
        with writer.turn:
            try:
                writer.threads.add(me)
                while not call.done and seconds_until(deadline) != 0:
                    if writer.write_batch(deadline) is None:  # an interrupt has lost the call
                        break
                if process.exiting():  # nobody comes by later to find it idle
                    writer.drop_connection()
            except Exception as error:  # noqa: BLE001 - logged, and raised to every caller
                self._break_down(error)
            except BaseException:
                writer.drop_connection()
                raise
            finally:
                writer.threads.discard(me)
        return call.done

    def _break_down(self, error: BaseException) -> None:
        """Something is broken that is nobody's entries: answer everybody, so that nobody waits for ever."""
        logger.error("%s: failed, with everything in line", self.name, exc_info=error)
        self._give_up(None, lambda call: call.broken(error))
