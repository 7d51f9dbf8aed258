"""What the typed faces, `Queue` and `JobQueue`, have in common: waiting, pausing, closing, handlers.

Knows neither keys nor payloads.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable
from datetime import timedelta
from typing import Any, Generic, Self, TypeVar

from asgiref.sync import sync_to_async
from django.conf import settings

from . import arguments, conf, database, engine, notify
from .backoff import Backoff
from .exceptions import EnqueueTimeout, QueueClosed
from .leasing import LeasingSource

S = TypeVar("S", bound=LeasingSource)
F = TypeVar("F", bound=Callable[..., Any])


class Face(Generic[S]):
    """One object's view of the source that all objects of its name share."""

    def __init__(self, source: S) -> None:
        self.name = source.name
        self.source = source
        self._closed = False
        self._wakeup: notify.Wakeup | None = None
        if settings.configured:
            self._awaken()  # so that a wake from before the first wait is kept; it listens only while waiting

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.name!r}>"

    def __deepcopy__(self, memo: dict[int, Any]) -> Self:
        """Itself: it is a handle. (Django copies what `setUpTestData` assigns to the class.)"""
        return self

    @property
    def using(self) -> str:
        """The database alias, as the settings have it now."""
        return self.source.alias

    def wait(self, poll: timedelta, stop: threading.Event | None = None) -> bool:
        """Wait up to `poll` for an enqueue; True if woken before. `stop` being set ends the wait."""
        seconds = arguments.positive("poll", poll).total_seconds()
        return self._awaken().wait(seconds, stop, floor=self.source.min_wake_interval.total_seconds())

    async def await_wake(self, poll: timedelta) -> bool:
        """`wait` for coroutines. Cancel it to end it."""
        seconds = arguments.positive("poll", poll).total_seconds()
        return await self._awaken().await_wake(seconds, floor=self.source.min_wake_interval.total_seconds())

    def pause(self) -> None:
        """Let nobody claim any more, durably, until `resume`. What is leased goes on."""
        self.source.pause_here()

    def resume(self) -> None:
        """Let claims go on."""
        self.source.resume_here()

    def is_paused(self) -> bool:
        """Whether the queue is paused."""
        return self.source.is_paused_here()

    def close(self, timeout: float | None = None) -> None:
        """Flush what this process enqueued to the queue, and refuse more through this object. Idempotent.

        What is not written in `timeout` seconds (None: however long it takes) is given up: whoever still waits for it
        gets `EnqueueTimeout`.
        """
        if timeout is not None:
            arguments.seconds("timeout", timeout)
        self._closed = True
        if self._wakeup is not None:
            self._wakeup.close()
        self.source.commits.batcher.finish_lane(self.source.lane, timeout)

    async def apause(self) -> None:
        """`pause` for coroutines."""
        await sync_to_async(self.pause)()

    async def aresume(self) -> None:
        """`resume` for coroutines."""
        await sync_to_async(self.resume)()

    async def ais_paused(self) -> bool:
        """`is_paused` for coroutines."""
        return await sync_to_async(self.is_paused)()

    async def aclose(self, timeout: float | None = None) -> None:
        """`close` for coroutines."""
        await asyncio.to_thread(self.close, timeout)

    def _admit(self, timeout: float | None) -> float:
        """The seconds an enqueue may take. Raises `QueueClosed`, `TypeError` or `ValueError`."""
        if self._closed:
            raise QueueClosed(
                f"queue {self.name!r} is closed in this process. Nothing was enqueued; make a new object."
            )
        if self._wakeup is None:  # made before there were settings: the wake of this enqueue is to be kept
            self._awaken()
        if timeout is None:
            return conf.enqueue_timeout().total_seconds()
        if not arguments.seconds("timeout", timeout) > 0:
            raise ValueError(f"timeout is a positive number of seconds, not {timeout!r}")
        return timeout

    async def _ainside(self, timeout: float) -> tuple[bool, float]:
        """Whether a coroutine's enqueue rides a transaction, and the seconds left. Raises `EnqueueTimeout`."""
        began = time.monotonic()
        try:
            inside = await database.ainside_transaction(self.source.alias, timeout)
        except TimeoutError:
            raise EnqueueTimeout(
                f"Queue {self.name!r}: nothing was enqueued in {timeout:g} s. The thread of this coroutine's sync code "
                "is busy, and only there can be seen whether a transaction is open."
            ) from None
        return inside, max(timeout - (time.monotonic() - began), 0.001)

    def _decorator(
        self,
        *,
        kind: str | None,
        lease: timedelta,
        timeout: timedelta | None,
        backoff: Backoff,
        concurrency: int | None,
        size: int | None,
    ) -> Callable[[F], F]:
        """What `handler(…)` returns: registers a function, and gives it back as it is."""
        checked: dict[str, Any] = {
            "kind": kind,
            "lease": arguments.positive("lease", lease),
            "timeout": None if timeout is None else arguments.positive("timeout", timeout),
            "backoff": backoff,
            "concurrency": None if concurrency is None else arguments.whole("concurrency", concurrency, least=1),
            "size": size,
        }
        if not callable(backoff):
            raise TypeError(f"backoff is a callable that takes the number of attempts, not {backoff!r}")

        def decorate(function: F) -> F:
            engine.add_handler(function, self.source, **checked)
            return function

        return decorate

    def _awaken(self) -> notify.Wakeup:
        alias = self.source.alias
        if self._wakeup is None or self._wakeup.alias != alias:
            self._wakeup = notify.occasional(alias, self.name)
        return self._wakeup
