"""A receiver that keeps what it hears until its one consumer, a thread or a coroutine, comes for it.

Knows neither what the messages mean nor who the consumer is.
"""

from __future__ import annotations

import logging
import math
from collections import deque

from .condition import Condition
from .session import Note
from .switchboard import switchboard

logger = logging.getLogger(__name__)

PAUSE = 3600.0  # seconds, after which a consumer looks for itself


class Mailbox:
    """Holds up to `size` notes; one more, and the oldest is dropped, counted, and the first of a row logged."""

    def __init__(self, channels: frozenset[str], *, size: int) -> None:
        self.channels = channels
        self.dropped = 0
        self._size = size
        self._changed = Condition()  # guards the rest
        self._notes: deque[Note] = deque()
        self._overflowing = False
        self._closed = False

    def take(self) -> Note | None:
        """The next note, waiting for it; None when the mailbox is closed."""
        with self._changed:
            while not self._closed and not self._notes:
                self._changed.wait()
            return self._next()

    async def atake(self) -> Note | None:
        """The same, awaiting. Cancelling it loses no note."""
        while True:
            with self._changed:
                if self._closed or self._notes:
                    return self._next()
                future = self._changed.pausing()
            await self._changed.pause(future, PAUSE)

    def close(self) -> None:
        """Hear no more, and let the consumer know; what it has not taken is dropped. Idempotent."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()
        switchboard().leave(self)

    def abandon(self) -> None:
        """Hear no more: there is no consumer. Takes no lock: a finaliser may call it."""
        self._closed = True
        switchboard().nudge()

    def _next(self) -> Note | None:
        self._overflowing = self._overflowing and len(self._notes) > self._size // 2
        return None if self._closed else self._notes.popleft()

    # for the listener

    def wanted_until(self) -> float:
        return -math.inf if self._closed else math.inf

    def listening(self) -> None:
        """What was missed is lost; there is nobody to tell."""

    def cut_off(self) -> None:
        self.close()

    def receive(self, channel: str, payload: str) -> None:
        with self._changed:
            self._notes.append((channel, payload))
            overflows = len(self._notes) > self._size
            news = overflows and not self._overflowing
            if overflows:
                self._notes.popleft()
                self.dropped += 1
                self._overflowing = True
            self._changed.notify_all()
        if news:
            logger.warning(
                "A consumer of channel %r is %d messages behind: it loses the oldest until it catches up",
                channel,
                self._size,
            )
