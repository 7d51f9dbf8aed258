"""Timeouts of sync handlers: an exception raised in the handler's thread, and what if that does not help.

Async handlers are cancelled by their loop.
"""

from __future__ import annotations

import ctypes
import threading
import time
from collections.abc import Callable
from typing import Any, TypeVar

from django_workqueue.exceptions import HandlerTimeout

from . import journal
from .bell import Bell

T = TypeVar("T")

GRACE = 5.0  # seconds that a handler has to end after its timeout was raised in it


class Alarm:
    """One thread's timeout. Armed by that thread around a handler, rung by the watchdog.

    The lock is what keeps the exception inside the handler: it is raised only while armed, at most once, and
    `disarm` takes the lock, so that after it nothing is on its way any more. `disarm` itself may be where it
    arrives: see `guarded`.
    """

    __slots__ = ("_ident", "_lock", "deadline", "given_up", "rang_at")

    def __init__(self) -> None:
        self._ident = threading.get_ident()
        self._lock = threading.Lock()  # guards all of this
        self.deadline: float | None = None
        self.rang_at: float | None = None
        self.given_up = False

    def arm(self, deadline: float) -> None:
        """The handler starts."""
        with self._lock:
            self.deadline, self.rang_at, self.given_up = deadline, None, False

    def disarm(self) -> bool:
        """The handler has ended; whether the alarm rang."""
        with self._lock:
            self.deadline = None
        if self.rang_at is not None:
            _raise_in(self._ident, None)
        return self.rang_at is not None

    def look(self, now: float) -> tuple[float | None, str | None]:
        """What the watchdog sees: when to look again, and "rang" or "given up" if that has just happened."""
        with self._lock:
            if self.deadline is None or self.given_up:
                return None, None
            if self.rang_at is None:
                if now < self.deadline:
                    return self.deadline, None
                self.rang_at = now
                _raise_in(self._ident, HandlerTimeout)
                return now + GRACE, "rang"
            if now < self.rang_at + GRACE:
                return self.rang_at + GRACE, None
            self.given_up = True
            return None, "given up"


class Watchdog:
    """The thread that rings alarms. `rang` and `given_up` are told of the slot whose alarm it was."""

    def __init__(self, rang: Callable[[Any], None], given_up: Callable[[Any], None]) -> None:
        self._events = {"rang": rang, "given up": given_up}
        self._alarms: dict[Any, Alarm] = {}
        self._bell = Bell()
        self._next = float("inf")
        self._stopping = False
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """Watch from now on."""
        self._thread = threading.Thread(target=self._run, name="workqueue-watchdog", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Watch no longer."""
        self._stopping = True
        self._bell.ring()

    def add(self, slot: Any) -> Alarm:
        """An alarm for the calling thread."""
        alarm = self._alarms[slot] = Alarm()
        return alarm

    def remove(self, slot: Any) -> None:
        """The slot's thread ends."""
        self._alarms.pop(slot, None)

    def guarded(
        self, alarm: Alarm, seconds: float, call: Callable[[], T]
    ) -> tuple[T | None, BaseException | None, bool]:
        """Call with a timeout: (result, exception, whether the alarm rang). Raises nothing."""
        result, error, rang = None, None, False
        try:
            self._arm(alarm, seconds)
            result = call()
        except BaseException as raised:  # noqa: BLE001 - a handler's SystemExit is that item's failure
            error = raised
        finally:
            # The exception may arrive at any bytecode until disarm has taken the lock, its first one included.
            # It comes at most once: the second try is undisturbed.
            try:
                rang = alarm.disarm()
            except HandlerTimeout:
                rang = alarm.disarm()
        return result, error, rang

    def _arm(self, alarm: Alarm, seconds: float) -> None:
        deadline = time.monotonic() + seconds
        alarm.arm(deadline)
        if deadline < self._next:
            self._bell.ring()

    def _run(self) -> None:
        while not self._stopping:
            self._next = float("inf")
            soonest = float("inf")
            now = time.monotonic()
            for slot, alarm in list(self._alarms.items()):
                look_again, event = alarm.look(now)
                if event is not None:
                    self._tell(event, slot)
                if look_again is not None:
                    soonest = min(soonest, look_again)
            self._next = soonest
            self._bell.wait(None if soonest == float("inf") else soonest - time.monotonic())

    def _tell(self, event: str, slot: Any) -> None:
        try:
            self._events[event](slot)
        except Exception as error:  # noqa: BLE001 - a thread's outer edge: the other slots' alarms are to ring, too
            journal.broken("the watchdog", error)


def _raise_in(ident: int, error: type[BaseException] | None) -> None:
    """Have `error` raised in a thread when it next runs bytecode; None takes back what was not yet raised."""
    ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(ident), error and ctypes.py_object(error))
