"""Where tracing takes hold: nothing happens here until somebody sets `tracer`, and nothing is imported for it.

Knows no tracing library; `otel` brings one.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any, Protocol

METADATA = "trace"  # under this key, a job's metadata has the context of its enqueue


class Sending:
    """An enqueue that is traced: `carried` travels with the jobs, and `sent` is told their ids."""

    carried: Mapping[str, str] = {}

    def sent(self, ids: Sequence[int]) -> None:
        """These are the jobs."""


class Tracer(Protocol):
    """What is told of everything that happens."""

    def enqueueing(self, queue: str, number: int, kind: str | None) -> AbstractContextManager[Sending]:
        """Around an enqueue of so many keys, or jobs of a kind."""

    def claimed(self, queue: str, works: Sequence[Any], seconds: float) -> None:
        """After a worker's claim that took so long and has brought this."""

    def around(self, handler: Any, fn: Callable[[Any], Any]) -> Callable[[Any], Any]:
        """A handler's function, with what goes around each call."""

    def flush(self) -> None:
        """The process ends without ceremony."""


tracer: Tracer | None = None


def enqueueing(queue: str, number: int, kind: str | None = None) -> AbstractContextManager[Sending]:
    """Around an enqueue, traced or not."""
    return _UNTRACED if tracer is None else tracer.enqueueing(queue, number, kind)


def claimed(queue: str, works: Sequence[Any], seconds: float) -> None:
    """After a claim."""
    if tracer is not None:
        tracer.claimed(queue, works, seconds)


def around(handler: Any, fn: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """A handler's function, traced or as it is."""
    return fn if tracer is None else tracer.around(handler, fn)


def flush() -> None:
    """Let nothing be lost when the process ends without ceremony."""
    if tracer is not None:
        tracer.flush()


_UNTRACED = nullcontext(Sending())
