"""OpenTelemetry, with the `[otel]` extra: spans for enqueues, claims and runs, once `instrument()` was called.

Follows the semantic conventions for messaging. The context of an enqueue travels in its job's metadata, and the run is
its child and linked to it. A key is no message: many enqueues are one item, so the run of an item begins a trace.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from opentelemetry import propagate, trace
from opentelemetry.context import Context
from opentelemetry.trace import Link, Span, SpanKind, Status, StatusCode, TracerProvider

from django_workqueue import tracing
from django_workqueue.engine import Handler
from django_workqueue.exceptions import Retry
from django_workqueue.tracing import METADATA, Sending

SYSTEM = "django_workqueue"
MOST_LINKS = 128  # of one claim


def instrument(tracer_provider: TracerProvider | None = None) -> None:
    """Trace from now on, with the provider given or the global one. To be called before workers start: in the settings,
    in an app's `ready()`, or where the SDK is set up. Calling it again changes the provider."""
    tracing.tracer = _Tracer(tracer_provider)


def uninstrument() -> None:
    """Trace no more. Workers that run go on tracing their handlers until they end."""
    tracing.tracer = None


class _Tracer:
    """What `tracing` tells of everything that happens."""

    def __init__(self, provider: TracerProvider | None) -> None:
        self._provider = provider
        self._tracer = trace.get_tracer("django_workqueue", tracer_provider=provider)

    @contextmanager
    def enqueueing(self, queue: str, number: int, kind: str | None) -> Iterator[Sending]:
        """A span around the enqueue; what it carries is its context."""
        attributes = _attributes("send", "enqueue", queue)
        if number > 1:
            attributes["messaging.batch.message_count"] = number
        if kind is not None:
            attributes["workqueue.job.kind"] = kind
        with self._tracer.start_as_current_span(
            f"enqueue {queue}", kind=SpanKind.PRODUCER, attributes=attributes, set_status_on_exception=False
        ) as span:
            sending = _Sending(span)
            if kind is not None:
                propagate.inject(sending.carried)
            try:
                yield sending
            except BaseException as error:
                _fail(span, error)
                raise

    def claimed(self, queue: str, works: Sequence[Any], seconds: float) -> None:
        """A span of a claim that is over, linked to the enqueues of its jobs."""
        ended = time.time_ns()
        contexts = [context for work in works if (context := _carried_by(work))][:MOST_LINKS]
        span = self._tracer.start_span(
            f"claim {queue}",
            context=Context(),
            kind=SpanKind.CLIENT,
            attributes=_attributes("receive", "claim", queue) | {"messaging.batch.message_count": len(works)},
            links=[link for context in contexts for link in _links(context)],
            start_time=ended - int(seconds * 1_000_000_000),
        )
        span.end(ended)

    def around(self, handler: Handler, fn: Callable[[Any], Any]) -> Callable[[Any], Any]:
        """The function with a span around each call."""
        if handler.is_async:

            async def call_async(work: Any) -> Any:
                with self._running(handler, work):
                    return await fn(work)

            return call_async

        def call(work: Any) -> Any:
            with self._running(handler, work):
                return fn(work)

        return call

    def flush(self) -> None:
        """Have the SDK export what it holds."""
        flush = getattr(self._provider or trace.get_tracer_provider(), "force_flush", None)
        if flush is not None:
            flush(1000)

    @contextmanager
    def _running(self, handler: Handler, work: Any) -> Iterator[None]:
        context = None if isinstance(work, list) else _carried_by(work)
        with self._tracer.start_as_current_span(
            f"run {handler.source.name}",
            context=context or Context(),
            kind=SpanKind.CONSUMER,
            attributes=_attributes("process", "run", handler.source.name) | _about(handler, work),
            links=_links(context) if context else (),
            record_exception=False,
            set_status_on_exception=False,
        ) as span:
            try:
                yield
            except Retry:
                span.set_attribute("workqueue.snoozed", True)  # noqa: FBT003 - OpenTelemetry's signature
                raise
            except BaseException as error:
                span.record_exception(error)
                _fail(span, error)
                raise


class _Sending(Sending):
    def __init__(self, span: Span) -> None:
        self.carried: dict[str, str] = {}
        self._span = span

    def sent(self, ids: Sequence[int]) -> None:
        if len(ids) == 1:
            self._span.set_attribute("messaging.message.id", str(ids[0]))


def _attributes(operation: str, name: str, queue: str) -> dict[str, Any]:
    return {
        "messaging.system": SYSTEM,
        "messaging.operation.type": operation,
        "messaging.operation.name": name,
        "messaging.destination.name": queue,
    }


def _about(handler: Handler, work: Any) -> dict[str, Any]:
    about: dict[str, Any] = {"code.function.name": handler.name}
    if isinstance(work, list):
        return about | {"messaging.batch.message_count": len(work)}
    about["workqueue.attempt"] = work.attempts
    if handler.kind is not None:
        about |= {"messaging.message.id": str(work.id), "workqueue.job.kind": work.kind}
    return about


def _carried_by(work: Any) -> Context | None:
    """The context of the enqueue of a job, if there is one."""
    metadata = getattr(work, "metadata", None)
    carried = metadata.get(METADATA) if isinstance(metadata, Mapping) else None
    if not isinstance(carried, Mapping):
        return None
    context = propagate.extract(carried, context=Context())
    return context if trace.get_current_span(context).get_span_context().is_valid else None


def _links(context: Context) -> list[Link]:
    return [Link(trace.get_current_span(context).get_span_context())]


def _fail(span: Span, error: BaseException) -> None:
    kind = type(error)
    module = "" if kind.__module__ == "builtins" else f"{kind.__module__}."
    span.set_attribute("error.type", f"{module}{kind.__qualname__}")
    span.set_status(Status(StatusCode.ERROR, str(error)))
