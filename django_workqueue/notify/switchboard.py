"""Which receivers of the process listen on which database alias; the listeners come and go with them.

Knows nothing of what they hear.
"""

from __future__ import annotations

import atexit
import math
import os
import time

from .condition import Condition
from .listener import Listener, ListenerState, Receiver, Status


class Switchboard:
    """Which receivers of this process listen on which alias."""

    def __init__(self) -> None:
        self.changed = Condition()  # guards the listeners, and the receivers and state of each
        self.listeners: dict[str, Listener] = {}

    def join(self, alias: str, receiver: Receiver) -> None:
        """Have the receiver hear its channels on `alias`; again and again is as good as once.

        Raises `RuntimeError` when the process cannot start a thread.
        """
        with self.changed:
            listener = self.listeners.get(alias)
            if listener is None:
                listener = Listener(alias, self.changed, self._gone)
                listener.start()
                self.listeners[alias] = listener
            elif receiver in listener.receivers:
                return
            listener.receivers[receiver] = False
            listener.nudge()

    def leave(self, receiver: Receiver) -> None:
        """Forget the receiver."""
        with self.changed:
            for listener in self.listeners.values():
                if listener.receivers.pop(receiver, None) is not None:
                    listener.nudge()

    def nudge(self) -> None:
        """Have every listener look again who still wants to hear. Takes no lock: a finaliser may call it."""
        for listener in tuple(self.listeners.values()):
            listener.nudge()

    def hurry(self, alias: str) -> None:
        """Have a listener that has lost its connection try again now."""
        with self.changed:
            if alias in self.listeners:
                self.listeners[alias].hurry()

    def state(self, alias: str) -> ListenerState:
        """How the connection to `alias` fares."""
        with self.changed:
            return self._state(alias)

    def settled(self, alias: str, receiver: Receiver, timeout: float) -> ListenerState:
        """The state once the receiver is listened for, or once that has failed; or what it is after `timeout`."""
        with self.changed:
            self.changed.wait_for(lambda: self._is_settled(alias, receiver), timeout)
            return self._state(alias)

    async def asettled(self, alias: str, receiver: Receiver, timeout: float) -> ListenerState:
        """The same, awaiting."""
        deadline = time.monotonic() + timeout
        while True:
            with self.changed:
                left = deadline - time.monotonic()
                if left <= 0 or self._is_settled(alias, receiver):
                    return self._state(alias)
                future = self.changed.pausing()
            await self.changed.pause(future, left)

    def close(self, timeout: float) -> bool:
        """Close every connection, and tell those who were to hear. Whether all was done in time."""
        with self.changed:
            closing = list(self.listeners.values())
            self.listeners.clear()
            for listener in closing:
                listener.closing = True
                listener.nudge()
            receivers = [receiver for listener in closing for receiver in listener.receivers]
        for receiver in receivers:
            receiver.cut_off()
        deadline = time.monotonic() + timeout
        for listener in closing:
            listener.thread.join(max(0.0, deadline - time.monotonic()))
        return not any(listener.thread.is_alive() for listener in closing)

    def forget(self) -> None:
        """In a forked child: let go of what is the parent's."""
        for listener in self.listeners.values():
            if listener.session is not None:
                listener.session.forget()

    def _gone(self, listener: Listener) -> None:
        if self.listeners.get(listener.alias) is listener:
            del self.listeners[listener.alias]

    def _state(self, alias: str) -> ListenerState:
        listener = self.listeners.get(alias)
        return ListenerState(alias, Status.OFF) if listener is None else listener.state

    def _is_settled(self, alias: str, receiver: Receiver) -> bool:
        listener = self.listeners.get(alias)
        if listener is None or listener.state.status in (Status.LOST, Status.DEAF):
            return True
        return listener.receivers.get(receiver, True)


class _Visitor:
    """Somebody who only wants to know whether one could hear."""

    channels: frozenset[str] = frozenset()

    def wanted_until(self) -> float:
        return math.inf

    def listening(self) -> None:
        pass

    def receive(self, channel: str, payload: str) -> None:
        pass

    def cut_off(self) -> None:
        pass


_switchboard = Switchboard()
_inherited: list[Switchboard] = []  # the parent's, kept so that nothing in them is finalised in a child


def switchboard() -> Switchboard:
    """This process's."""
    return _switchboard


def listener_state(alias: str) -> ListenerState:
    """How this process's LISTEN connection to `alias` (a listen alias) fares. Opens nothing."""
    return _switchboard.state(alias)


def probe(alias: str, timeout: float = 10.0) -> ListenerState:
    """How a LISTEN connection to `alias` fares, opening one if there is none, and waiting for it to be tried."""
    visitor = _Visitor()
    _switchboard.join(alias, visitor)
    try:
        return _switchboard.settled(alias, visitor, timeout)
    finally:
        _switchboard.leave(visitor)


def close(timeout: float = 5.0) -> bool:
    """Close this process's LISTEN connections now. Whether it was done in time.

    Wakeups are woken, and the next wait opens a connection again; subscribers stop.
    """
    return _switchboard.close(timeout)


def _after_fork_in_child() -> None:
    global _switchboard  # noqa: PLW0603
    _switchboard.forget()
    _inherited.append(_switchboard)
    _switchboard = Switchboard()


os.register_at_fork(after_in_child=_after_fork_in_child)
atexit.register(close, 1.0)
