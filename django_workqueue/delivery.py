"""A job in the hands of who works it, and how an attempt's error is kept.

Knows neither where jobs come from nor what becomes of them.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from django.conf import settings
from django.utils import timezone

from . import payloads
from .engine import Fence, worker_id
from .text import cut, exception_path, message, shown

MAX_TRACEBACK = 20_000  # characters
NO_FENCE = Fence(0, 0.0)


@dataclass(frozen=True, slots=True)
class Start:
    """What was noted of a job's start: the server's time, and all who have started it, this process last."""

    at: datetime
    worker_ids: list[str]


@dataclass(frozen=True)
class Job:
    """A claimed job. `attempts` is 1 on the first delivery; times are aware under `USE_TZ`, else local."""

    id: int
    queue: str
    kind: str
    payload: payloads.JSON = field(hash=False)
    attempts: int
    max_attempts: int
    priority: int
    run_at: datetime
    enqueued_at: datetime
    last_error: str | None = None
    reclaimed: bool = False
    metadata: dict[str, Any] = field(default_factory=dict, repr=False, compare=False)
    _fence: Fence = field(default=NO_FENCE, repr=False, compare=False)
    _due: int = field(default=0, repr=False, compare=False)  # µs since the server's epoch
    _enqueued: int = field(default=0, repr=False, compare=False)
    _start: Start | None = field(default=None, repr=False, compare=False)

    def __getattr__(self, name: str) -> Any:
        """What claims leave out of the job until it is asked for: few handlers look at it."""
        make = _LATER.get(name)
        if make is None:
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")
        value = self.__dict__[name] = make(self)
        return value

    @property
    def cancelled(self) -> bool:
        """Whether the job was cancelled, or its lease is lost: the outcome is dropped, so the handler may stop."""
        return self.id in self._fence.lost


def error_entry(error: BaseException | None) -> str | None:
    """One attempt's error, as the history keeps it. The server adds the time and the attempt's number."""
    if error is None:
        return None
    entry = {
        "type": cut(exception_path(error)),
        "message": cut(message(error)),
        "traceback": cut(shown(error), MAX_TRACEBACK, keep_end=True),
        "worker": worker_id(),
    }
    return json.dumps(entry)


def moment(epoch_us: int) -> datetime:
    """A server's time for people: aware, or local without a zone where `USE_TZ` is off."""
    aware = datetime.fromtimestamp(epoch_us / 1_000_000, UTC)
    return aware if settings.USE_TZ else timezone.make_naive(aware)


_LATER: dict[str, Callable[[Job], Any]] = {
    "run_at": lambda job: moment(job._due),
    "enqueued_at": lambda job: moment(job._enqueued),
    "metadata": lambda _: {},
}
