"""What every queue is to a worker: a source of leased work, whose outcomes it takes back.

Owns the vocabulary that `Queue`, `JobQueue` and the worker share. Knows nothing of SQL, keys or threads.
"""

from __future__ import annotations

import functools
import gc
import inspect
import math
import os
import secrets
import socket
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Container, Iterable, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from enum import Enum
from typing import TYPE_CHECKING, Any, TypeVar, cast
from weakref import WeakValueDictionary

from asgiref.sync import iscoroutinefunction
from django.conf import settings

from . import conf
from .backoff import Backoff
from .forks import Lock

if TYPE_CHECKING:
    from .database import Connection


S = TypeVar("S", bound="Source")

Finder = Callable[[str], object]  # adds a handler for a kind, if it knows one


class Fence:
    """The lease of one claim: its token, when it ends on our own clock, and which of its work was lost.

    `deadline` is in `time.monotonic()` seconds, counted from before the claim was sent, so it is never
    later than the server's own. Renewal moves it; nothing moves it back. `offset` is how far the server's clock is
    ahead of our monotonic one, in µs; 0.0 where nobody has compared them.
    """

    __slots__ = ("deadline", "lost", "offset", "token")

    def __init__(self, token: int, deadline: float) -> None:
        self.token = token
        self.deadline = deadline
        self.lost: set[Any] = set()
        self.offset = 0.0

    def remaining(self) -> float:
        """Seconds of the lease that are certainly left."""
        return self.deadline - time.monotonic()


class Verb(Enum):
    """What became of one piece of work."""

    COMPLETE = "complete"
    FAIL = "fail"  # attempt counted; again after `delay`, or out of attempts
    FINISH = "finish"  # PermanentError: never again by itself
    SNOOZE = "snooze"  # Retry: again after `delay`, attempt not counted
    RETURN = "return"  # never started, or given back by a stop: attempt not counted, no error, no delay


@dataclass(slots=True)
class Outcome:
    """One piece of work with what became of it. `work` is an `Item` or a `Job`."""

    work: Any
    verb: Verb
    delay: timedelta = timedelta(0)
    error: BaseException | None = None
    result: str | None = None  # of a job, as JSON text
    ran: float = 0.0  # seconds that the handler took


@dataclass(slots=True)
class Settled:
    """How many outcomes took effect, by kind. `lost` were fenced off: their lease was no longer theirs."""

    completed: int = 0
    failed: int = 0  # released, retried later, dead or finished with an error
    retried: int = 0  # of `failed`: will run again
    snoozed: int = 0
    returned: int = 0
    dead: int = 0  # of `failed`: will not run again by itself (dead, stalled, PermanentError)
    lost: int = 0
    again_in: float = math.inf  # seconds until the first of it comes due again, as far as the server told
    kinds: dict[str, Settled] = field(default_factory=dict)  # of jobs, the same for each kind

    def add(self, other: Settled) -> None:
        """Add the other's counts to these."""
        for name in _SETTLED:
            setattr(self, name, getattr(self, name) + getattr(other, name))
        self.again_in = min(self.again_in, other.again_in)
        for kind, settled in other.kinds.items():
            self.kinds.setdefault(kind, Settled()).add(settled)


_SETTLED = ("completed", "failed", "retried", "snoozed", "returned", "dead", "lost")


@dataclass(slots=True)
class Claim:
    """One claim's work, all under one fence.

    `full` says that more is probably due, `paused` that none was looked for, `marks` that some of the work must pass
    through `start_on` before it starts, `asked` that the database was asked at all.
    """

    fence: Fence
    lease: timedelta
    works: list[Any] = field(default_factory=list)
    reclaimed: int = 0
    full: bool = False
    paused: bool = False
    marks: bool = False
    asked: bool = True


@dataclass(frozen=True, slots=True)
class Handler:
    """A function that works a queue (or one kind of its jobs), with how it wants to be run.

    `size` is None for one at a time, else the most items of one call of a batch handler.
    """

    fn: Callable[..., Any]
    source: Source
    kind: str | None
    lease: timedelta
    timeout: timedelta | None
    backoff: Backoff
    concurrency: int | None
    size: int | None
    is_async: bool

    @property
    def name(self) -> str:
        """The function's dotted name, for logs and people."""
        return f"{getattr(self.fn, '__module__', '?')}.{getattr(self.fn, '__qualname__', repr(self.fn))}"


class Source(ABC):
    """A queue as the worker sees it: what all `Queue` or `JobQueue` objects of one name share.

    A typed face has it as `.source`. Every `*_on` method runs on a connection that the worker owns.

    Each sends single statements that commit by themselves; none is called inside a transaction, and none
    is called by two threads on the same connection.
    """

    name: str
    max_claim: int
    max_attempts: int = 0  # of what does not say so itself; 0 is without end
    min_wake_interval: timedelta
    cancels: bool = False  # whether work can be taken back while it runs, which `tokens_on` then tells
    handlers: list[Handler]
    finder: Finder | None = None  # see `add_finder`

    @property
    @abstractmethod
    def alias(self) -> str:
        """The database alias the queue lives on."""

    @abstractmethod
    def claim_on(self, connection: Connection, limit: int, lease: timedelta, kinds: Iterable[str] | None) -> Claim:
        """Lease up to `limit` due pieces of work; what cannot be decoded is released with its error."""

    @abstractmethod
    def next_due_on(self, connection: Connection, kinds: Iterable[str] | None, within: timedelta) -> timedelta | None:
        """In how long the first of what is scheduled comes due, perhaps of another kind; None: not within that time.

        An answer to sleep by, which nothing depends on: it may overlook what has an unusual priority.
        """

    @abstractmethod
    def idents(self, works: Sequence[Any]) -> list[Any]:
        """What `extend_on`, `held_on` and `Fence.lost` know each piece of work by, in order: plain `str` or `int`."""

    def marks_start(self, work: Any) -> bool:
        """Whether `work` must pass through `start_on` just before it starts; only asked of a claim that `marks`."""
        return False

    @abstractmethod
    def start_on(self, connection: Connection, works: Sequence[Any]) -> list[Any]:
        """Of `works`, just before they start: those that may. Marks the ones on their last attempt."""

    @abstractmethod
    def settle_on(self, connection: Connection, outcomes: Sequence[Outcome]) -> Settled:
        """Write what became of the work, fenced, one ordered statement at a time."""

    @abstractmethod
    def extend_on(self, connection: Connection, token: int, idents: Sequence[Any], lease: timedelta) -> list[Any]:
        """Renew leases without waiting and without shortening; the idents that are now renewed.

        What is missing from the answer was lost, finished, or held by somebody's open transaction for the
        moment; `held_on` tells which.
        """

    @abstractmethod
    def held_on(self, connection: Connection, token: int, idents: Sequence[Any]) -> list[Any]:
        """Of `idents`, those whose rows still carry `token` (a plain read that locks nothing)."""

    @abstractmethod
    def tokens_on(self, connection: Connection, idents: Sequence[Any]) -> dict[Any, int]:
        """The token that the row of each carries, 0 if nobody holds it (a plain read that locks nothing).

        What has another token than ours was lost to another claim; what has none has ended.
        """

    @abstractmethod
    def register_on(self, connection: Connection) -> None:
        """Tell the table of queues, for people, that this queue exists and how it is set up."""

    @abstractmethod
    def maintain_on(self, connection: Connection) -> None:
        """Reap, stall or dead-letter what lapsed, fold the inbox: bounded, safe to run twice at once."""


def worker_id() -> str:
    """Who this process is, in the table of workers and in a job's history: host, process id, a random part."""
    pid = os.getpid()
    if _worker_ids.get("pid") != pid:
        _worker_ids.update(pid=pid, id=f"{socket.gethostname()}-{pid}-{secrets.token_hex(3)}")
    return str(_worker_ids["id"])


_worker_ids: dict[str, object] = {}
_sources: WeakValueDictionary[tuple[str | None, str], Source] = WeakValueDictionary()
_sources_lock = Lock()  # guards _sources


def register(using: str | None, name: str, make: Callable[[], S], same: Callable[[Source], str | None]) -> S:
    """The process's one source of that name and database: the living one, or what `make()` returns.

    `same(source)` says in words how a living one differs; then `ValueError` is raised. Sources live as long as
    a queue object or a handler of theirs does.
    """
    with _sources_lock:
        living = _living(using, name)
        if living is not None and same(living):
            del living
            gc.collect()  # a dropped queue with handlers is a cycle
            living = _living(using, name)
        if living is None:
            living = _sources[using, name] = make()
        elif difference := same(living):
            raise ValueError(f"this process has a queue {name!r} already, and it differs: {difference}")
        return cast(S, living)


def _living(using: str | None, name: str) -> Source | None:
    """The source of that name; one without an alias is on the one that the settings name."""
    living = _sources.get((using, name))
    if living is not None:
        return living
    for (their_using, their_name), other in list(_sources.items()):
        if their_name == name and _one_database(their_using, using):
            return other
    return None


def _one_database(using: str | None, other: str | None) -> bool:
    return settings.configured and (using or conf.database()) == (other or conf.database())


def registered() -> list[Source]:
    """The living sources, by name."""
    with _sources_lock:
        return sorted(_sources.values(), key=lambda source: (source.name, source.alias))


def add_handler(fn: Callable[..., Any], source: Source, *, kind: str | None, **options: Any) -> None:
    """Let a source be worked by a function, which from then on keeps the source alive.

    Raises `TypeError` for what cannot be called or is a generator function, `ValueError` where the source (or kind)
    has a handler already; a function of the same name takes its predecessor's place, as when a module is reloaded.
    """
    if not callable(fn):
        raise TypeError(f"a handler is a function, not {fn!r}")
    called = _called_by(fn)
    handler = Handler(fn, source, kind, is_async=any(map(iscoroutinefunction, called)), **options)
    if any(inspect.isgeneratorfunction(each) or inspect.isasyncgenfunction(each) for each in called):
        raise TypeError(f"{handler.name} has a yield, so that a call of it runs nothing: it is a generator function")
    for other in source.handlers:
        if other.kind == kind:
            if other.name != handler.name or "<locals>" in handler.name:
                what = f"queue {source.name!r}" if kind is None else f"kind {kind!r} of queue {source.name!r}"
                raise ValueError(f"{what} has a handler already, {other.name}; {handler.name} would be a second")
            source.handlers.remove(other)
            break
    source.handlers.append(handler)
    try:
        fn.__dict__.setdefault("_workqueue_handlers", []).append(handler)
    except AttributeError:
        _kept.append(handler)  # a callable without attributes of its own


def _called_by(fn: Any) -> tuple[Any, Any]:
    """Where it shows what a call of `fn` is: itself, or what it is a `functools.partial` of; and its class's method."""
    while isinstance(fn, functools.partial):
        fn = fn.func
    return fn, type(fn).__call__


def add_finder(source: Source, find: Finder, *, lease: timedelta, timeout: timedelta | None, backoff: Backoff) -> None:
    """Have `find` called with each kind that is found waiting and has no handler yet.

    Such a source counts as one with handlers, and a worker keeps lanes ready for what may be found, of either world.
    """
    source.finder = find
    source.handlers[:] = [handler for handler in source.handlers if handler.kind != TO_BE_FOUND]
    for is_async in (False, True):
        source.handlers.append(Handler(_unfound, source, TO_BE_FOUND, lease, timeout, backoff, None, None, is_async))


def remove_handlers(source: Source, kinds: Container[str | None]) -> None:
    """Let a source have neither a finder nor handlers of these kinds any more; they no longer keep it alive."""
    source.finder = None
    for handler in list(source.handlers):
        if handler.kind == TO_BE_FOUND or handler.kind in kinds:
            source.handlers.remove(handler)
            getattr(handler.fn, "__dict__", {}).pop("_workqueue_handlers", None)


def _unfound(work: Any) -> None:
    raise AssertionError(f"no job is of the kind {TO_BE_FOUND!r}, but there is {work!r}")


TO_BE_FOUND = ""  # the kind of the handlers that stand for those to be found

after_enqueue: list[Callable[[Source], None]] = []  # what `testing.immediate` hooks into


def enqueued(source: Source) -> None:
    """Tell whoever asked to know that something was just enqueued, on the thread that did it."""
    if after_enqueue:
        for call in tuple(after_enqueue):
            call(source)


_kept: list[Handler] = []
