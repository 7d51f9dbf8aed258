"""Who hears what is published: callbacks on a thread, coroutines that iterate; and when a message is dropped.

The connection is `notify`'s, shared with the wakeups of the process.
"""

from __future__ import annotations

import asyncio
import inspect
import itertools
import logging
import os
import threading
import weakref
from collections.abc import AsyncIterator, Callable
from typing import Self, TypeVar, overload

from django.db import close_old_connections, connections, reset_queries

from django_workqueue import arguments, conf, notify

from .publishing import Message, check_channel

logger = logging.getLogger(__name__)

BUFFER = 1_000  # messages
START_PATIENCE = 10.0  # seconds

Callback = Callable[[Message], object]
F = TypeVar("F", bound=Callback)


class Subscriber:
    """Hands the messages of some channels to callbacks, or to coroutines that iterate over them.

    Callbacks take a `Message` and run one after the other on a thread of the subscriber's. What one raises is
    logged, and the next message delivered. A lost connection is replaced; what was published meanwhile is
    missed. Whoever falls `buffer` messages behind loses the oldest, which is logged.

    Starts once, in the process that is to hear: after a fork, not before. All subscribers and workers of a
    process share one connection for each alias.
    """

    def __init__(self, using: str | None = None, *, buffer: int = BUFFER) -> None:
        _check_buffer(buffer)
        self.using = using
        self._buffer = buffer
        self._callbacks: dict[str, list[Callback]] = {}
        self._lock = threading.Lock()  # guards what follows
        self._mailbox: notify.Mailbox | None = None  # the callbacks'; there once it is started
        self._thread: threading.Thread | None = None
        self._iterated: weakref.WeakSet[notify.Mailbox] = weakref.WeakSet()
        self._stopped = False
        self._pid = os.getpid()

    @overload
    def handle(self, channel: str, fn: F) -> F: ...
    @overload
    def handle(self, channel: str, fn: None = None) -> Callable[[F], F]: ...

    def handle(self, channel: str, fn: F | None = None) -> F | Callable[[F], F]:
        """Have `fn(message)` called for each message on the channel; also a decorator. Before the start."""
        check_channel(channel)
        if fn is None:
            return lambda decorated: self.handle(channel, decorated)
        _check_callback(channel, fn)
        with self._lock:
            if self._mailbox is not None or self._stopped:
                raise RuntimeError(f"handle({channel!r}) comes too late: this subscriber has started already")
            self._callbacks.setdefault(str.__str__(channel), []).append(fn)
        return fn

    def start(self) -> bool:
        """Begin to hear. Returns once what is published from then on is heard: True.

        False when that takes over ten seconds or cannot be done: the log says why, and it is tried again until
        `stop`. Raises `RuntimeError` when started before.
        """
        mailbox = self._begin()
        return _hears(notify.switchboard().settled(self._alias, mailbox, START_PATIENCE))

    async def astart(self) -> bool:
        """`start` for coroutines."""
        mailbox = self._begin()
        return _hears(await notify.switchboard().asettled(self._alias, mailbox, START_PATIENCE))

    def stop(self, timeout: float | None = None) -> bool:
        """Hear no more. Waits up to `timeout` seconds (None: as long as it takes) for a callback to return.

        Whether it has. Messages not yet handed over are dropped, and every iteration ends. Idempotent.
        """
        if timeout is not None:
            arguments.seconds("timeout", timeout)
        thread = self._end()
        if thread is None:
            return True
        thread.join(timeout)
        return not thread.is_alive()

    async def astop(self, timeout: float | None = None) -> bool:
        """`stop` for coroutines."""
        if timeout is not None:
            arguments.seconds("timeout", timeout)
        return True if self._end() is None else await asyncio.to_thread(self.stop, timeout)

    def messages(self, channel: str, *, buffer: int | None = None) -> Messages:
        """Iterate over the messages on the channel: `async for message in subscriber.messages(channel)`.

        Ends when the subscriber stops; needs no `start`. To be sure that nothing is missed from some moment
        on, enter it first: `async with subscriber.messages(channel) as messages` returns once it listens.
        """
        check_channel(channel)
        size = self._buffer if buffer is None else buffer
        _check_buffer(size)
        mailbox = notify.Mailbox(frozenset({str.__str__(channel)}), size=size)
        with self._lock:
            self._check_alive()
            self._iterated.add(mailbox)
        notify.switchboard().join(self._alias, mailbox)
        return Messages(self._alias, mailbox)

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    async def __aenter__(self) -> Self:
        await self.astart()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.astop()

    @property
    def _alias(self) -> str:
        return conf.listen_alias(self.using or conf.database())

    def _begin(self) -> notify.Mailbox:
        with self._lock:
            self._check_alive()
            if self._mailbox is not None:
                raise RuntimeError("this subscriber has started already")
            # Without callbacks too: it opens the connection that iterations then find open.
            mailbox = self._mailbox = notify.Mailbox(frozenset(self._callbacks), size=self._buffer)
            self._pid = os.getpid()
            if self._callbacks:
                name = f"workqueue-subscriber-{next(_numbers)}"
                self._thread = threading.Thread(target=self._run, args=(mailbox,), name=name, daemon=True)
                self._thread.start()
        notify.switchboard().join(self._alias, mailbox)
        return mailbox

    def _end(self) -> threading.Thread | None:
        """Close the mailboxes; the thread to wait for, if there is one."""
        if self._pid != os.getpid():
            return None  # the parent's; there is nothing of it here
        with self._lock:
            self._stopped = True
            mailboxes = [*self._iterated, *([] if self._mailbox is None else [self._mailbox])]
        for mailbox in mailboxes:
            mailbox.close()
        return None if self._thread is threading.current_thread() else self._thread

    def _check_alive(self) -> None:
        if self._stopped:
            raise RuntimeError("this subscriber was stopped; make another")
        if self._mailbox is not None and self._pid != os.getpid():
            raise RuntimeError("this subscriber was started in the parent process; make another after the fork")

    def _run(self, mailbox: notify.Mailbox) -> None:
        try:
            while (note := mailbox.take()) is not None:
                message = Message(*note)
                for callback in self._callbacks[message.channel]:
                    _call(callback, message)
        finally:
            connections.close_all()


class Messages(AsyncIterator[Message]):
    """The messages on one channel, for one coroutine at a time."""

    def __init__(self, alias: str, mailbox: notify.Mailbox) -> None:
        self._alias = alias
        self._mailbox = mailbox
        # `async for` does not say when it is left.
        weakref.finalize(self, mailbox.abandon).atexit = False

    async def __anext__(self) -> Message:
        note = await self._mailbox.atake()
        if note is None:
            raise StopAsyncIteration
        return Message(*note)

    async def __aenter__(self) -> Self:
        await notify.switchboard().asettled(self._alias, self._mailbox, START_PATIENCE)
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()

    async def aclose(self) -> None:
        """Hear no more."""
        self._mailbox.close()

    @property
    def dropped(self) -> int:
        """How many messages were lost for want of being taken in time."""
        return self._mailbox.dropped


_numbers = itertools.count(1)


def _call(callback: Callback, message: Message) -> None:
    """One callback, as if it were a request of its own."""
    close_old_connections()
    reset_queries()
    try:
        callback(message)
    except BaseException:
        logger.exception("A callback for channel %r failed: %r", message.channel, callback)
    finally:
        close_old_connections()


def _hears(state: notify.ListenerState) -> bool:
    return state.status is notify.Status.LISTENING


def _check_buffer(size: int) -> None:
    if size < 1:
        raise ValueError(f"a buffer holds at least one message, not {size!r}")


def _check_callback(channel: str, fn: object) -> None:
    if not callable(fn):
        raise TypeError(f"a callback is called with a message, and {fn!r} cannot be called")
    if inspect.iscoroutinefunction(fn) or inspect.iscoroutinefunction(type(fn).__call__):
        raise TypeError(f"callbacks run on a thread, and {fn!r} is async: iterate over messages({channel!r}) instead")
