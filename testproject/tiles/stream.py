"""Server-sent events: what `activity` tells, as a page shows it, to one client for as long as it listens.

Begins with what happened before, so that a client that comes back misses nothing.
"""

import asyncio
from collections.abc import AsyncIterator
from typing import Final

from asgiref.sync import sync_to_async
from django.db import close_old_connections
from django.template.loader import render_to_string

from django_workqueue import Subscriber
from django_workqueue.pubsub import Messages

from . import activity, history
from .activity import Event, What

KEEP_ALIVE: Final = 15.0  # seconds of silence, after which proxies, and we, want to know whether anybody is there
AGAIN: Final = 2000  # ms until a client that was cut off comes back

_listening: Final[set[Subscriber]] = set()


async def live() -> AsyncIterator[str]:
    """The state of things, then each event as it is told. However it is left, the subscriber is closed."""
    async with Subscriber() as subscriber, subscriber.messages(activity.CHANNEL) as messages:
        _listening.add(subscriber)
        try:
            yield await state()
            async for text in _told(messages):
                yield text
        finally:
            _listening.discard(subscriber)


async def _told(messages: Messages) -> AsyncIterator[str]:
    while True:
        try:
            message = await asyncio.wait_for(anext(messages), KEEP_ALIVE)
        except TimeoutError:
            yield ": still here\n\n"
        except StopAsyncIteration:
            return
        else:
            if event := Event.told(message):
                yield _event(event)


async def state() -> str:
    """The state of things, as an event."""
    return await sync_to_async(_state)()


def end() -> None:
    """End every stream of this process, so that a server that stops need not wait for its clients to go."""
    for subscriber in list(_listening):
        subscriber.stop()


def sent(name: str, text: str) -> str:
    """One server-sent event."""
    data = "\n".join(f"data: {line}" for line in text.strip().splitlines())
    return f"event: {name}\n{data}\n\n"


def _event(event: Event) -> str:
    if event.what == What.RENDERED:  # many, and all alike: they are only counted
        return sent(event.what, event.whom)
    return sent(event.what, render_to_string("tiles/event.html", {"event": event}))


def _state() -> str:
    context = {"events": history.recent(), "counts": history.counts()}
    close_old_connections()  # the request may last for hours, and has no further use for it
    return f"retry: {AGAIN}\n" + sent("state", render_to_string("tiles/state.html", context))
