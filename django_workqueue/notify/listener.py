"""One LISTEN connection: on a thread of its own, kept up for as long as somebody wants to hear.

Knows nothing of queues, nor what a receiver does with what it hears.
"""

from __future__ import annotations

import contextlib
import logging
import random
import socket
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from enum import Enum
from typing import Protocol

from django_workqueue.backoff import exponential

from .condition import Condition
from .session import Session, Unheard

logger = logging.getLogger(__name__)

LINGER = 0.5  # seconds that a connection outlives its last receiver
CHECK_EVERY = 30.0  # seconds of silence after which the connection is tried
DEAF_PAUSE = 300.0  # seconds between tries where LISTEN does not work
RECONNECT = exponential(timedelta(milliseconds=100), timedelta(seconds=30), jitter=0.5)


class Receiver(Protocol):
    """Who wants to hear. Its methods are called on the listener's thread and return at once. Hashed by identity."""

    channels: frozenset[str]

    def wanted_until(self) -> float:
        """The `time.monotonic()` after which it may be forgotten; `math.inf` while it wants to hear."""

    def listening(self) -> None:
        """All its channels are listened on from now on; something may have been missed before."""

    def receive(self, channel: str, payload: str) -> None:
        """A notification on one of its channels."""

    def cut_off(self) -> None:
        """The connection was closed on purpose: it hears nothing more unless it joins again. On any thread."""


class Status(Enum):
    """How a LISTEN connection fares."""

    OFF = "off"  # nobody in this process wants one
    CONNECTING = "connecting"
    LISTENING = "listening"
    LOST = "lost"  # trying again, with a backoff
    DEAF = "deaf"  # connected, but a proxy in between keeps what we should hear; trying again, rarely


@dataclass(frozen=True, slots=True)
class ListenerState:
    """What `listener_state` and `probe` report. `error` says why it is not listening, where it is not."""

    alias: str
    status: Status
    error: str | None = None
    channels: frozenset[str] = frozenset()


class Listener:
    """One LISTEN connection on one thread. Ends when nobody wants it any more; then there is a new one at need."""

    def __init__(self, alias: str, changed: Condition, gone: Callable[[Listener], None]) -> None:
        self.alias = alias
        self.changed = changed  # guards what the switchboard sees of it: receivers, state, closing
        self._gone = gone
        self.receivers: dict[Receiver, bool] = {}  # whether it was told that it is listened for
        self.state = ListenerState(alias, Status.CONNECTING)
        self.session: Session | None = None
        self.closing = False
        self.thread = threading.Thread(target=self._run, name=f"workqueue-listen-{alias}", daemon=True)
        self._nudged, self._nudge = socket.socketpair()
        self._nudged.settimeout(0)
        self._nudge.settimeout(0)
        self._deserted_at: float | None = None
        self._failures = 0
        self._hurried = False

    def start(self) -> None:
        """Start the thread, or leave nothing behind."""
        try:
            self.thread.start()
        except BaseException:
            self._put_away()
            raise

    def nudge(self) -> None:
        """Have the thread look up. Takes no lock."""
        with contextlib.suppress(OSError):  # full of nudges, or at its end
            self._nudge.send(b"!")

    def hurry(self) -> None:
        """Try again now, if it waits for the next try: the database can be reached."""
        if self.state.status is Status.LOST:
            self._hurried = True
            self.nudge()

    def _run(self) -> None:
        try:
            while self._patience() is not None:
                try:
                    self._serve()
                except Exception as error:  # noqa: BLE001 - the thread's outer edge: a listener never gives up
                    self._pause(self._failed(error))
        finally:
            self._ended()

    def _serve(self) -> None:
        """Connect and pass on what is heard, until nobody wants to hear."""
        with Session(self.alias, self._nudged) as session:
            self.session = session  # for a child to forget
            session.verify()
            while (patience := self._patience()) is not None:
                self._tune(session)
                quiet = time.monotonic() - session.heard_at
                if quiet >= CHECK_EVERY:
                    session.verify()
                    continue
                for channel, payload in session.hear(min(patience, CHECK_EVERY - quiet)):
                    self._pass_on(channel, payload)

    def _patience(self) -> float | None:
        """Seconds until somebody may have lost interest; None when nobody wants us any more."""
        now = time.monotonic()
        with self.changed:
            if self.closing:
                return None
            until = {receiver: receiver.wanted_until() for receiver in self.receivers}
            for receiver, end in until.items():
                if end <= now:
                    del self.receivers[receiver]
            if self.receivers:
                self._deserted_at = None
                return min(end for end in until.values() if end > now) - now
            self._deserted_at = self._deserted_at or now
            left = self._deserted_at + LINGER - now
            if left > 0:
                return left
            self.closing = True
            self._gone(self)
            return None

    def _tune(self, session: Session) -> None:
        """Listen on what the receivers want, and tell those that are new."""
        with self.changed:
            wanted = frozenset().union(*(receiver.channels for receiver in self.receivers))
            new = [receiver for receiver, told in self.receivers.items() if not told]
        if wanted != session.channels:
            self._listen(session, wanted)
        self._succeeded(wanted)
        if not new:
            return
        with self.changed:
            self.receivers.update((receiver, True) for receiver in new if receiver in self.receivers)
            self.changed.notify_all()
        for receiver in new:
            receiver.listening()

    def _listen(self, session: Session, wanted: frozenset[str]) -> None:
        refused = set(session.refused)
        session.tune(wanted)
        for channel in session.refused.keys() - refused:
            logger.error("The server will not listen on channel %r: %s", channel, session.refused[channel])

    def _pass_on(self, channel: str, payload: str) -> None:
        with self.changed:
            concerned = [receiver for receiver in self.receivers if channel in receiver.channels]
        for receiver in concerned:
            receiver.receive(channel, payload)

    def _succeeded(self, channels: frozenset[str]) -> None:
        if self.state.status is Status.LISTENING and self.state.channels == channels:
            return
        if self._failures:
            logger.warning("Listening again on database alias %r", self.alias)
        self._failures = 0
        self._become(ListenerState(self.alias, Status.LISTENING, channels=channels))

    def _failed(self, error: Exception) -> float:
        """Note what went wrong; seconds to wait before the next try."""
        was, self._failures = self.state.status, self._failures + 1
        told = str(error).strip() or type(error).__name__
        deaf = isinstance(error, Unheard) and was is not Status.LISTENING
        self._become(ListenerState(self.alias, Status.DEAF if deaf else Status.LOST, told))
        if deaf:
            if was is not Status.DEAF:
                logger.warning(_DEAF, self.alias, told)
            return DEAF_PAUSE * (1 + 0.2 * random.random())
        if was not in (Status.LOST, Status.DEAF):
            logger.warning(_LOST, self.alias, told)
        return RECONNECT(self._failures).total_seconds()

    def _become(self, state: ListenerState) -> None:
        with self.changed:
            self.state = state
            if state.status is not Status.LISTENING:
                self.receivers = dict.fromkeys(self.receivers, False)
            self.changed.notify_all()

    def _pause(self, seconds: float) -> None:
        """Wait before the next try, unless it is hurried, or until nobody wants one."""
        until = time.monotonic() + seconds
        while (
            not self._hurried and (patience := self._patience()) is not None and (left := until - time.monotonic()) > 0
        ):
            self._nudged.settimeout(min(patience, left))
            with contextlib.suppress(TimeoutError, BlockingIOError):
                self._nudged.recv(4096)
        self._nudged.settimeout(0)
        self._hurried = False

    def _ended(self) -> None:
        with self.changed:
            self._gone(self)
            self.changed.notify_all()
        self._put_away()

    def _put_away(self) -> None:
        self._nudged.close()
        self._nudge.close()


_LOST = "No LISTEN connection on database alias %r: %s. Idle workers poll until it is back."
_DEAF = (
    "LISTEN on database alias %r hears nothing: %s. It looks as if a transaction-pooling proxy sat in between. Name an "
    "alias that reaches the server directly in WORKQUEUE_LISTEN_DATABASE; until then idle workers poll and subscribers "
    "hear nothing."
)
