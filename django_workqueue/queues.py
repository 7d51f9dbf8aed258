"""`Queue`: a set of keys to be worked, typed by its keys.

The typed face of the engine in `keyed.py`: encodes, checks arguments, and chooses how a call reaches the
database. Knows no SQL.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Generic, TypeVar, overload

from asgiref.sync import sync_to_async

from . import arguments, database, engine, stats, tracing
from .backoff import Backoff, exponential
from .faces import Face
from .keyed import Item, KeyedSource, Settings, Waiting
from .keys import CheckedCodec, KeyCodec, check_name, check_priority
from .lanes import commits, due_after
from .managers import microseconds
from .stats import QueueStats
from .text import error_text

K = TypeVar("K")
F = TypeVar("F", bound=Callable[..., Any])


@dataclass(frozen=True)
class Entry(Generic[K]):
    """A key to enqueue, with a priority (higher is sooner) and a delay of its own."""

    key: K
    priority: int = 0
    delay: timedelta = timedelta(0)


class Queue(Face[KeyedSource], Generic[K]):
    """A durable set of keys of type `K`, worked at least once for each time they are enqueued.

    `key` is `str`, `int`, `UUID`, an enum, a dataclass, named tuple or tuple of these, or a `KeyCodec`.
    `using` is the database alias (None: `WORKQUEUE_DATABASE`). `max_attempts` 0 means without end; `retention`
    0 deletes on completion. All objects of one name in a process must agree, or `ValueError` is raised.
    """

    @overload
    def __init__(
        self: Queue[str],
        name: str,
        *,
        using: str | None = ...,
        max_attempts: int = ...,
        retention: timedelta = ...,
        max_claim: int = ...,
        reap_batch: int = ...,
        min_wake_interval: timedelta = ...,
    ) -> None: ...

    @overload
    def __init__(
        self,
        name: str,
        *,
        key: type[K] | KeyCodec[K],
        using: str | None = ...,
        max_attempts: int = ...,
        retention: timedelta = ...,
        max_claim: int = ...,
        reap_batch: int = ...,
        min_wake_interval: timedelta = ...,
    ) -> None: ...

    def __init__(
        self,
        name: str,
        *,
        key: Any = str,
        using: str | None = None,
        max_attempts: int = 0,
        retention: timedelta = timedelta(hours=24),
        max_claim: int = 500,
        reap_batch: int = 1000,
        min_wake_interval: timedelta = timedelta(milliseconds=100),
    ) -> None:
        name = check_name(name)
        settings = Settings(
            key=CheckedCodec(key, queue=name),
            max_attempts=arguments.whole("max_attempts", max_attempts, least=0),
            retention=arguments.not_negative("retention", retention),
            max_claim=arguments.whole("max_claim", max_claim, least=1),
            reap_batch=arguments.whole("reap_batch", reap_batch, least=1),
            min_wake_interval=arguments.not_negative("min_wake_interval", min_wake_interval),
        )
        super().__init__(
            engine.register(using, name, lambda: KeyedSource(name, using, settings), settings.difference_from)
        )

    # Producing

    def enqueue(
        self, *keys: K, priority: int = 0, delay: timedelta = timedelta(0), timeout: float | None = None
    ) -> None:
        """Ask for keys to be worked, `delay` from now; returns when they are durable.

        Inside `atomic()` on the queue's database they become so with the commit. `timeout` is in seconds
        (None: `WORKQUEUE_ENQUEUE_TIMEOUT`). Raises `InvalidKey`, `QueueClosed`, `EnqueueTimeout`; of a call
        that a key is refused of, nothing is enqueued.
        """
        self._enqueue(self._waiting(keys, priority, delay), timeout)

    def enqueue_many(self, entries: Iterable[Entry[K] | K], *, timeout: float | None = None) -> None:
        """The same for many keys, each a bare key or an `Entry` with its own priority and delay."""
        self._enqueue(self._waiting_entries(entries), timeout)

    async def aenqueue(
        self, *keys: K, priority: int = 0, delay: timedelta = timedelta(0), timeout: float | None = None
    ) -> None:
        """`enqueue` for coroutines: awaits, and takes no thread."""
        await self._aenqueue(self._waiting(keys, priority, delay), timeout)

    async def aenqueue_many(self, entries: Iterable[Entry[K] | K], *, timeout: float | None = None) -> None:
        """`enqueue_many` for coroutines."""
        await self._aenqueue(self._waiting_entries(entries), timeout)

    def _waiting(self, keys: tuple[K, ...], priority: int, delay: timedelta) -> list[Waiting]:
        priority = check_priority(priority)
        due = due_after(arguments.delay(delay))
        encode = self.source.settings.key.encode
        return [(encode(key), priority, due) for key in keys]

    def _waiting_entries(self, entries: Iterable[Entry[K] | K]) -> list[Waiting]:
        encode = self.source.settings.key.encode
        waiting: list[Waiting] = []
        for entry in arguments.several("entries", entries, one="key"):
            if isinstance(entry, Entry):
                due = due_after(arguments.delay(entry.delay))
                waiting.append((encode(entry.key), check_priority(entry.priority), due))
            else:
                waiting.append((encode(entry), 0, 0.0))
        return waiting

    def _enqueue(self, waiting: list[Waiting], timeout: float | None) -> None:
        timeout = self._admit(timeout)
        if not waiting:
            return
        source = self.source
        with tracing.enqueueing(self.name, len(waiting)):
            alias = source.alias
            if database.inside_transaction(alias):
                source.enqueue_inside(waiting)
            else:
                commits(alias).batcher.submit(source.lane, waiting, timeout)
        engine.enqueued(source)

    async def _aenqueue(self, waiting: list[Waiting], timeout: float | None) -> None:
        timeout = self._admit(timeout)
        if not waiting:
            return
        source = self.source
        with tracing.enqueueing(self.name, len(waiting)):
            inside, timeout = await self._ainside(timeout)
            if inside:
                await sync_to_async(source.enqueue_inside)(waiting)
            else:
                await source.commits.batcher.asubmit(source.lane, waiting, timeout)
        if engine.after_enqueue:
            await sync_to_async(engine.enqueued)(source)

    # Consuming by hand

    def claim(self, limit: int | None = None, lease: timedelta = timedelta(seconds=30)) -> list[Item[K]]:
        """Lease up to `limit` due items (None: `max_claim`), the loudest and longest waiting first.

        Raises `ValueError` for a limit or lease that is not positive.
        """
        most = self.source.max_claim
        return self.source.claim_here(
            most if limit is None else min(arguments.whole("limit", limit, least=1), most),
            arguments.positive("lease", lease),
        )

    def complete(self, *items_or_keys: Item[K] | K) -> int:
        """Finish leased items; how many were, those that are to run once more included.

        An `Item` is fenced on its lease; a bare key acts on whatever lease is there.
        """
        return self.source.complete_here(*self._held(items_or_keys))

    def release(
        self,
        *items_or_keys: Item[K] | K,
        delay: timedelta = timedelta(0),
        error: BaseException | str | None = None,
    ) -> int:
        """Give leased items back, due again after `delay`; how many were. Fenced like `complete`."""
        pause = microseconds(arguments.delay(delay))
        return self.source.release_here(*self._held(items_or_keys), delay=pause, error=error_text(error))

    def extend(self, *items: Item[K], lease: timedelta) -> list[Item[K]]:
        """Let leases end no sooner than `lease` from now; the items still held."""
        return self.source.extend_here(self._own(items), arguments.positive("lease", lease))

    def remove(self, *keys: K) -> int:
        """Delete keys, whatever their state; how many there were. A run that is under way is not stopped."""
        return self.source.remove_here([self.source.settings.key.encode(key) for key in keys])

    def reap(self) -> int:
        """Delete what was completed longer ago than the retention; how much. Lapsed last attempts become stalled."""
        return self.source.reap_here()

    def stats(self, *, exact: bool = True) -> QueueStats:
        """How many items are in which state; `exact=False` bounds the cost, and counts over 10,000 are estimates."""
        read = stats.exact if exact else stats.bounded
        return read(self.source.table(), self.name, max_attempts=self.source.settings.max_attempts)

    async def aclaim(self, limit: int | None = None, lease: timedelta = timedelta(seconds=30)) -> list[Item[K]]:
        """`claim` for coroutines."""
        return await sync_to_async(self.claim)(limit, lease)

    async def acomplete(self, *items_or_keys: Item[K] | K) -> int:
        """`complete` for coroutines."""
        return await sync_to_async(self.complete)(*items_or_keys)

    async def arelease(
        self,
        *items_or_keys: Item[K] | K,
        delay: timedelta = timedelta(0),
        error: BaseException | str | None = None,
    ) -> int:
        """`release` for coroutines."""
        return await sync_to_async(self.release)(*items_or_keys, delay=delay, error=error)

    async def aextend(self, *items: Item[K], lease: timedelta) -> list[Item[K]]:
        """`extend` for coroutines."""
        return await sync_to_async(self.extend)(*items, lease=lease)

    async def aremove(self, *keys: K) -> int:
        """`remove` for coroutines."""
        return await sync_to_async(self.remove)(*keys)

    async def areap(self) -> int:
        """`reap` for coroutines."""
        return await sync_to_async(self.reap)()

    async def astats(self, *, exact: bool = True) -> QueueStats:
        """`stats` for coroutines."""
        return await sync_to_async(self.stats)(exact=exact)

    # Consuming with the worker

    @overload
    def handler(self, fn: F) -> F: ...

    @overload
    def handler(
        self,
        fn: None = None,
        *,
        lease: timedelta = ...,
        timeout: timedelta | None = ...,
        backoff: Backoff = ...,
        concurrency: int | None = ...,
    ) -> Callable[[F], F]: ...

    def handler(
        self,
        fn: Any = None,
        *,
        lease: timedelta = timedelta(seconds=60),
        timeout: timedelta | None = None,
        backoff: Backoff = exponential(),
        concurrency: int | None = None,
    ) -> Any:
        """Decorate the function, sync or async, that the worker calls with each `Item`.

        Return completes; an exception releases after `backoff(attempts)`. `lease` is renewed while the handler
        runs, up to `timeout`. `concurrency` bounds how many run at once in one process.
        """
        decorate = self._decorator(
            kind=None, lease=lease, timeout=timeout, backoff=backoff, concurrency=concurrency, size=None
        )
        return decorate if fn is None else decorate(fn)

    @overload
    def batch_handler(self, fn: F) -> F: ...

    @overload
    def batch_handler(
        self,
        fn: None = None,
        *,
        size: int = ...,
        lease: timedelta = ...,
        timeout: timedelta | None = ...,
        backoff: Backoff = ...,
        concurrency: int | None = ...,
    ) -> Callable[[F], F]: ...

    def batch_handler(
        self,
        fn: Any = None,
        *,
        size: int = 100,
        lease: timedelta = timedelta(seconds=60),
        timeout: timedelta | None = None,
        backoff: Backoff = exponential(),
        concurrency: int | None = None,
    ) -> Any:
        """The same for a function that takes a list of up to `size` items; `PartialFailure` fails only some."""
        most = arguments.whole("size", size, least=1)
        decorate = self._decorator(
            kind=None, lease=lease, timeout=timeout, backoff=backoff, concurrency=concurrency, size=most
        )
        return decorate if fn is None else decorate(fn)

    # Inside

    def _held(self, items_or_keys: Iterable[Item[K] | K]) -> tuple[list[Item[K]], list[str]]:
        items, texts = [], []
        for each in items_or_keys:
            if isinstance(each, Item):
                items.append(each)
            else:
                texts.append(self.source.settings.key.encode(each))
        return self._own(items), texts

    def _own(self, items: Iterable[Item[K]]) -> list[Item[K]]:
        items = list(items)
        for item in items:
            if not isinstance(item, Item):
                raise TypeError(f"expected items that were claimed from queue {self.name!r}, not {item!r}")
            if item.queue != self.name:
                raise ValueError(f"{item!r} was claimed from queue {item.queue!r}, not from {self.name!r}")
        return items
