"""The one thread that writes: when it starts, sleeps, waits a moment for more, lets go of its connection and ends.

While it rests because nobody is in line, a caller may write in its place. What follows a write is always its own.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

from . import process
from .calls import is_free_within, lock_timeout
from .lines import Lines
from .writer import Batch, Writer

GATHER_SHARE = 0.5  # of the last write's duration: how long to wait for the callers just answered to come again
GATHER_MAX = 0.001  # seconds
GATHER_SKIP_MAX = 64  # batches until the next attempt, where they do not come
FOLLOWS_WITHIN = 0.01  # seconds until what somebody has written in its place is followed up …
FOLLOWS_OFTEN = 0.1  # … and for which, after that, it looks for more as often, and need not be woken
NEVER = 1 << 62


class WritingThread:
    """Writes as long as there is something in line; after one idle period disconnects, after another ends.

    `lock` is the batcher's and guards all of this; a method that wants it held says so. `failed` is called on
    the thread, which has then ended, with what broke it.
    """

    def __init__(
        self,
        *,
        name: str,
        lock: threading.Lock,
        lines: Lines,
        writer: Writer,
        idle_after: Callable[[], float],
        chores: Callable[[], float],
        failed: Callable[[BaseException], None],
    ) -> None:
        self._name = name
        self._lock = lock
        self._lines = lines
        self._writer = writer
        self._idle_after = idle_after
        self._chores = chores
        self._failed = failed
        self._thread: threading.Thread | None = None
        self._ending = False
        self._wanted = NEVER  # calls in line at which to wake it
        self._wake = threading.Lock()  # acquired to sleep, released to wake
        self._wake.acquire()
        self._gather_missed = self._gather_skip = 0
        self.rests = False  # whether it sleeps because nobody is in line …
        self._rests_until = 0.0  # … and if so, until when
        self._stood_in = False  # whether somebody has written in its place meanwhile

    def call(self) -> bool:
        """Somebody has lined up: see to it. False if no thread can. The lock is held."""
        if self._lines.calls >= self._wanted:
            self.wake()
        return self.available()

    def available(self) -> bool:
        """Whether there is a thread, after starting it if need be. The lock is held."""
        return self._thread is not None or self._start()

    def wake(self) -> None:
        """The lock is held, or two could release what was acquired once."""
        self._wanted = NEVER
        self.rests = False
        if self._wake.locked():
            self._wake.release()

    def stood_in(self) -> None:
        """Somebody has written in its place; what follows that, it is to do soon."""
        self._stood_in = True
        if self._rests_until - time.monotonic() > FOLLOWS_WITHIN:
            with self._lock:
                self.wake()

    def end(self, timeout: float | None) -> bool:
        """Have it disconnect and end as soon as nobody is in line; False if it takes longer."""
        with self._lock:
            thread = self._thread
            self._ending = thread is not None
            self.wake()
        if thread is not None:
            thread.join(timeout)
            return not thread.is_alive()
        if not is_free_within(self._writer.turn, timeout):
            return False
        with self._writer.turn:
            self._writer.drop_connection()
        return True

    def _start(self) -> bool:
        if process.exiting() or not process.threads_available():
            return False
        process.watch_exit()
        # A daemon: the interpreter joins the others before it lets anybody end them.
        thread = threading.Thread(target=self._run, name=self._name, daemon=True)
        try:
            thread.start()
        except RuntimeError:  # there are no more threads to be had, or the interpreter is ending
            return False
        self._thread = thread
        return True

    def _run(self) -> None:
        me = threading.get_ident()
        try:
            self._writer.threads.add(me)
            self._serve()
        except BaseException as error:  # noqa: BLE001 - logged, and raised to every caller
            with self._lock:
                self._thread = None
            self._failed(error)
        finally:
            self._writer.threads.discard(me)

    def _serve(self) -> None:
        idle = False
        while True:
            with self._writer.turn:
                batch = self._writer.write_batch()
            if batch is not None:
                idle = False
                self._gather(batch)
                continue
            pause, chores_due = self._idle_after(), self._do_chores()
            often = time.monotonic() - self._writer.followed_at < FOLLOWS_OFTEN
            rest = min(pause, chores_due, FOLLOWS_WITHIN if often else pause)
            if not self._ending and (self._rest(rest) or rest < pause):
                continue
            if not idle:
                with self._writer.turn:
                    self._writer.drop_connection()
            if (idle or self._ending) and self._retire():
                return
            idle = True

    def _do_chores(self) -> float:
        """What can wait until nobody is in line; seconds until there is more of it."""
        with self._writer.turn:
            return self._chores()

    def _gather(self, batch: Batch) -> None:
        """Give callers that were answered together the time to come again together, where they do.

        Otherwise the first to come is written alone while the others wait, or they fall into two halves of
        which each waits for the other's write.
        """
        together = batch.behind + batch.answered
        with self._lock:
            filled = self._lines.admitted >= batch.most or not self._lines.only(batch.lane)
        if filled or together < 2:
            return
        if self._gather_skip:
            self._gather_skip -= 1
            return
        self._sleep(together, min(self._writer.took * GATHER_SHARE, GATHER_MAX))
        if self._lines.calls - batch.behind >= batch.answered / 2:
            self._gather_missed = 0
        else:
            self._gather_missed += 1
            self._gather_skip = min(2**self._gather_missed, GATHER_SKIP_MAX)

    def _rest(self, timeout: float) -> bool:
        """Wait until anybody is in line; False when the time passed first, and nobody has written."""
        self._stood_in = False
        self._rests_until = time.monotonic() + timeout
        return self._sleep(1, timeout, rests=True) or self._stood_in

    def _sleep(self, calls: int, timeout: float, *, rests: bool = False) -> bool:
        """Wait until so many calls are in line; False when the time passed first. May wake for nothing."""
        with self._lock:
            if self._ending or self._lines.calls >= calls or (rests and self._writer.to_follow):
                return True
            self._wanted = calls
            self.rests = rests
        woken = self._wake.acquire(timeout=lock_timeout(timeout))
        if not woken or self.rests:  # … or by what woke nobody before
            with self._lock:
                self._wanted = NEVER
                self.rests = False
        return woken

    def _retire(self) -> bool:
        """Be gone, unless somebody has lined up."""
        with self._lock:
            if self._lines or self._writer.in_hand() or self._writer.to_follow:
                return False
            self._thread = None
            self._ending = False
            return True
