"""The supervisor: forks the worker processes, replaces those that die, keeps their leases, passes on signals.

It runs no handlers, so whatever these do to their process, leases are renewed. It has no thread and no
connection at the moment it forks.
"""

from __future__ import annotations

import gc
import os
import random
import selectors
import signal
import socket
import time
from collections.abc import Callable, Sequence
from time import monotonic
from typing import Any, NoReturn, Protocol

from django.core.exceptions import ImproperlyConfigured
from django.db import connections

from . import journal
from .child import Child, Claimed
from .counts import Counts
from .lane import Lane
from .outage import Outage
from .renew import Lease, Renewer
from .signals import ASKS, Signals, flush_output
from .timeouts import GRACE

WORN_OUT = 75  # the exit code of a process that wants to be replaced
KILL_AFTER = 5.0  # seconds beyond the shutdown timeout
FIRST_RESTART, LAST_RESTART = 0.5, 30.0  # seconds until a process that died is replaced
SETTLED_IN = 60.0  # seconds a process lives that did not die of how it was started
TICK = 0.03  # seconds between two looks at the lines: their messages are many and nothing hangs on them
QUIET_WITHIN = 5.0  # seconds that a renewal under way may hold up a fork
ASLEEP = 5.0  # seconds between two looks after which it is the supervisor that was stopped, not its children
NEVER = float("inf")

# A child's whole life: its line, its number, what its predecessors of that number did; its exit code.
Work = Callable[[socket.socket, int, Counts], int]


class Unavailable(RuntimeError):
    """A drain came to no end: the database was away, or refused what was to be done. What is due remains so."""


class Threaded(Protocol):
    """What has a thread in the supervisor, which is stopped while it forks."""

    def start(self) -> None:
        """Begin, or go on."""

    def stop(self, timeout: float) -> bool:
        """Have neither thread nor connection; whether that came about in time."""


class Beside(Threaded, Protocol):
    """What else runs in the supervisor, such as a server of metrics."""

    def close(self) -> None:
        """In a child: let go of what is the supervisor's."""


class Supervisor:
    """Keeps `processes` children at `work` until they are finished, or it is told to stop."""

    def __init__(
        self,
        lanes: Sequence[Lane],
        work: Work,
        *,
        processes: int,
        shutdown_timeout: float,
        max_seconds: float | None = None,
        signals: Signals,
        beside: Sequence[Beside] = (),
    ) -> None:
        self._lanes = {lane.number: lane for lane in lanes}
        self._work = work
        self.stop_within = shutdown_timeout
        self._signals = signals
        self._children: dict[int, Child] = {}  # by pid
        self._to_start = [(0.0, number) for number in range(processes)]  # when, which
        self._restart_wait = FIRST_RESTART
        self._stop_asked = False
        self._stop_at = NEVER if max_seconds is None else monotonic() + max_seconds
        self._kill_at = NEVER
        self._done = [Counts() for _ in range(processes)]  # of the processes that have ended
        self._gave_up: str | None = None  # why, if a child did
        self._in_the_way: str | None = None  # of a child, when it ended
        self._time_is_up = False
        self._misconfigured: str | None = None  # how, if a child could not begin for that
        self._looked_at = monotonic()
        self._selector = selectors.DefaultSelector()
        self._selector.register(signals.wakeup, selectors.EVENT_READ)
        self._renewers: dict[str, Renewer] = {}
        for alias in {lane.source.alias for lane in lanes}:
            shortest = min(lane.seconds for lane in lanes if lane.source.alias == alias)
            self._renewers[alias] = Renewer(alias, Outage(alias), shortest=shortest)
        self._beside = beside
        self._threads: list[Threaded] = [*self._renewers.values(), *beside]
        # A handler without a timeout may hold the GIL for as long as it likes.
        timeouts = [lane.longest for lane in lanes]
        leases = max(lane.seconds for lane in lanes)
        self._silence = NEVER if None in timeouts else max(filter(None, timeouts)) + leases + GRACE

    def run(self) -> Counts:
        """Supervise until all is done. Raises `Unavailable` or `ImproperlyConfigured` if that cannot be."""
        self._signals.at_once = self._kill_all
        self._signals.on_stop(self.stop)
        while self._children or (self._to_start and not self._stop_asked):
            now = monotonic()
            if now >= self._stop_at and not self._stop_asked:
                self._time_is_up = True
                self.stop()
            if self._stop_asked and self._kill_at == NEVER:
                self._ask_children()
            self._start_due(now)
            self._listen(self._timeout(monotonic()))
            self._reap()
            self._look_after(monotonic())
        for thread in self._threads:
            thread.stop(1.0)
        self._selector.close()
        if self._misconfigured is not None:
            raise ImproperlyConfigured(self._misconfigured)
        counts = sum(self._done, Counts())
        why = self._gave_up or (self._in_the_way if self._time_is_up else None)
        if why is not None:
            raise Unavailable(f"{why}. Until then: {counts}.")
        return counts

    def stop(self) -> None:
        """Ask for the end. For any thread, and for signal handlers."""
        self._stop_asked = True
        self._signals.poke()

    # children

    def _start_due(self, now: float) -> None:
        """Fork the children that are due. Meanwhile there is no thread or connection for them to inherit."""
        due = [number for at, number in self._to_start if at <= now]
        if not due or self._stop_asked:
            return
        if not all([thread.stop(QUIET_WITHIN) for thread in self._threads]):  # noqa: C419 - every one
            self._to_start = [(max(at, now + 1.0), number) for at, number in self._to_start]
        else:
            self._to_start = [(at, number) for at, number in self._to_start if number not in due]
            for number in due:
                self._fork(number)
        for thread in self._threads:
            thread.start()

    def _fork(self, number: int) -> None:
        connections.close_all()
        gc.freeze()  # a collection in either process would take a copy of every page that they share
        flush_output()
        ends: tuple[socket.socket, ...] = ()
        blocked = signal.pthread_sigmask(signal.SIG_BLOCK, {*ASKS, signal.SIGCHLD})
        try:
            ours, theirs = ends = socket.socketpair()
            pid = os.fork()
        except OSError as error:  # there are too many processes or files for now
            for end in ends:
                end.close()
            signal.pthread_sigmask(signal.SIG_SETMASK, blocked)
            journal.not_forked(error, again_in=self._start_later(number))
            return
        if pid == 0:
            self._be_child(number, ours, theirs, blocked)
        theirs.close()
        ours.settimeout(0.0)
        self._children[pid] = child = Child(number, pid, ours)
        self._selector.register(ours, selectors.EVENT_READ, child)
        signal.pthread_sigmask(signal.SIG_SETMASK, blocked)

    def _be_child(self, number: int, ours: socket.socket, theirs: socket.socket, blocked: Any) -> NoReturn:
        code = 1
        try:
            self._signals.in_child()
            signal.pthread_sigmask(signal.SIG_SETMASK, blocked)
            self._selector.close()
            ours.close()
            for each in self._beside:
                each.close()
            for sibling in self._children.values():
                sibling.line.close()  # or nobody would notice that the supervisor is gone
            code = self._work(theirs, number, self._done[number])
        except BaseException as error:  # noqa: BLE001 - the process's outer edge
            journal.broken("worker process", error)
        finally:
            flush_output()
            os._exit(code)

    def _ask_children(self) -> None:
        self._kill_at = monotonic() + self.stop_within + KILL_AFTER
        for pid in self._children:
            os.kill(pid, signal.SIGTERM)

    def _kill_all(self) -> None:
        for pid in self._children:
            os.kill(pid, signal.SIGKILL)

    def _reap(self) -> None:
        for pid, child in list(self._children.items()):
            ended, status = os.waitpid(pid, os.WNOHANG | os.WUNTRACED | os.WCONTINUED)
            if ended and (os.WIFSTOPPED(status) or os.WIFCONTINUED(status)):
                child.stopped = os.WIFSTOPPED(status)
                child.heard_at = monotonic()
                continue
            if not ended:
                continue
            self._read(child)
            del self._children[pid]
            self._selector.unregister(child.line)
            child.line.close()
            for token in list(child.claims):
                self._forget(child, token)
            self._done[child.number] += child.counts
            if not child.finished and not self._stop_asked:
                self._replace(child, status)

    def _replace(self, child: Child, status: int) -> None:
        code = os.waitstatus_to_exitcode(status)
        if code in (0, WORN_OUT) or monotonic() - child.began > SETTLED_IN:
            self._restart_wait = FIRST_RESTART
        journal.child_died(child.pid, journal.how_it_ended(code), again_in=self._start_later(child.number))

    def _start_later(self, number: int) -> float:
        """In how many seconds a process is started: later each time."""
        wait = self._restart_wait * random.uniform(0.8, 1.2)
        self._restart_wait = min(self._restart_wait * 2, LAST_RESTART)
        self._to_start.append((monotonic() + wait, number))
        return wait

    # listening

    def _timeout(self, now: float) -> float:
        soonest = min([now + 1.0, self._kill_at, self._stop_at, *(at for at, _ in self._to_start)])
        return max(0.0, soonest - now)

    def _listen(self, timeout: float) -> None:
        for key, _ in self._selector.select(timeout):
            if key.data is None:
                self._signals.drain_wakeup()
            else:
                self._read(key.data)
        time.sleep(TICK)

    def _read(self, child: Child) -> None:
        while True:
            try:
                data = child.line.recv(1 << 18)
            except BlockingIOError:
                return
            except OSError:
                data = b""
            if not data:
                return
            child.heard_at = monotonic()
            for verb, *message in child.reader.feed(data):
                self._hear(child, verb, *message)

    def _hear(self, child: Child, verb: str, *message: Any) -> None:
        if verb == "hold":
            self._hold(child, *message)
        elif verb == "forget":
            self._forget(child, *message)
        elif verb == "drop":
            token, idents = message
            if token in child.claims:
                child.claims[token].drop(idents)
        elif verb == "anew":
            self._hold_anew(child, *message)
        elif verb == "counts":
            *numbers, child.finished = message
            child.counts = Counts(*numbers)
        elif verb == "gave_up":
            (self._gave_up,) = message
        elif verb == "in_the_way":
            (self._in_the_way,) = message
        elif verb == "misconfigured":
            (self._misconfigured,) = message
            child.finished = True
            self.stop()

    def _hold(self, child: Child, lane_number: int, token: int, deadline: float, packed: bytes) -> None:
        lane = self._lanes[lane_number]
        claim = child.claims[token] = Claimed(child, lane, token, packed)
        self._renewers[lane.source.alias].add(
            Lease(lane, token, deadline, held=claim.held, renewed=claim.renewed, lost=claim.lost, ended=claim.ended)
        )

    def _hold_anew(self, child: Child, claims: Sequence[tuple[int, int, float, bytes]]) -> None:
        """Hold these and nothing else: of what it told us before, something was lost."""
        for token in list(child.claims):
            self._forget(child, token)
        for claim in claims:
            self._hold(child, *claim)

    def _forget(self, child: Child, token: int) -> None:
        claim = child.claims.pop(token, None)
        if claim is not None:
            self._renewers[claim.lane.source.alias].discard(token)

    def _look_after(self, now: float) -> None:
        """Send what is left to send; kill what is silent or overdue."""
        slept, self._looked_at = now - self._looked_at, now
        for child in self._children.values():
            child.writer.flush()
            if slept > ASLEEP:
                child.heard_at = now  # it was us who did not listen
            elif now - child.heard_at > self._silence:
                journal.child_silent(child.pid, now - child.heard_at)
                os.kill(child.pid, signal.SIGKILL)
                child.heard_at = now
            elif now > self._kill_at:
                journal.child_overdue(child.pid)
                os.kill(child.pid, signal.SIGKILL)
        if now > self._kill_at:
            self._kill_at = now + KILL_AFTER
