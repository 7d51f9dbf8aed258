"""`WORKQUEUE_MIDDLEWARE`: what is called around each handler.

Follows Django's own convention: a middleware is a factory that is given `next` and returns a callable taking
the delivery; `sync_capable` and `async_capable` on the factory say in which world it can live. Without
middleware the handler is called with nothing in between.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from asgiref.sync import async_to_sync, iscoroutinefunction, markcoroutinefunction, sync_to_async
from django.core.exceptions import ImproperlyConfigured, MiddlewareNotUsed

from django_workqueue import conf
from django_workqueue.engine import Handler


@dataclass(frozen=True, slots=True)
class Delivery:
    """What a handler is called with: the `items` of a keyed queue, or one `job`; with its queue and handler."""

    queue: str
    handler: Handler
    items: tuple[Any, ...] = ()
    job: Any = None


Next = Callable[[Delivery], Any]


def around(handler: Handler) -> Callable[[Any], Any]:
    """The handler's function with the configured middleware around it."""
    paths = conf.middleware()
    if not paths:
        return handler.fn
    chain, is_async = _innermost(handler), handler.is_async
    for path in reversed(paths):
        chain, is_async = _wrap(path, chain, is_async=is_async, prefer_async=handler.is_async)
    chain = _adapt(chain, is_async=is_async, to_async=handler.is_async)
    name, batch, job = handler.source.name, handler.size is not None, handler.kind is not None

    def call(work: Any) -> Any:
        if job:
            return chain(Delivery(name, handler, job=work))
        return chain(Delivery(name, handler, items=tuple(work) if batch else (work,)))

    return markcoroutinefunction(call) if handler.is_async else call


def load() -> None:
    """Import what is configured. Raises `ImproperlyConfigured` if that cannot be."""
    for path in conf.middleware():
        conf.middleware_factory(path)


def _innermost(handler: Handler) -> Next:
    fn = handler.fn
    if handler.kind is not None:
        return lambda delivery: fn(delivery.job)
    if handler.size is not None:
        return lambda delivery: fn(list(delivery.items))
    return lambda delivery: fn(delivery.items[0])


def _wrap(path: Any, chain: Next, *, is_async: bool, prefer_async: bool) -> tuple[Next, bool]:
    factory = conf.middleware_factory(path)
    can_async = getattr(factory, "async_capable", False)
    can_sync = getattr(factory, "sync_capable", True)
    wants_async = can_async if prefer_async else not can_sync
    inner = _adapt(chain, is_async=is_async, to_async=wants_async)
    try:
        made = factory(_marked(inner) if wants_async else inner)
    except MiddlewareNotUsed:
        return chain, is_async
    except Exception as error:  # the project's code: any of these means that no handler can be called
        raise ImproperlyConfigured(f"middleware {path} cannot be made: {conf.in_words(error)}") from error
    if made is None:
        raise ImproperlyConfigured(f"middleware {path} returned None instead of a callable")
    return made, wants_async


def _adapt(chain: Next, *, is_async: bool, to_async: bool) -> Next:
    if is_async == to_async:
        return chain
    if to_async:
        return sync_to_async(chain, thread_sensitive=True)
    return async_to_sync(_marked(chain))


def _marked(chain: Next) -> Next:
    """The same as a coroutine function, so that a middleware good for both worlds can tell which it is in."""
    if iscoroutinefunction(chain):
        return chain

    async def call(delivery: Delivery) -> Any:
        return await chain(delivery)

    return call
