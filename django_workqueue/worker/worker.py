"""`Worker`: which queues are worked, and how; in this process, or in several that it supervises.

What working is made of is in `Crew`; what supervising is, in `Supervisor`.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Sequence
from dataclasses import replace
from datetime import timedelta
from typing import Any

from django.db import connections

from django_workqueue import arguments, conf, discovery, engine
from django_workqueue.database import resolve
from django_workqueue.engine import Source

from . import middleware
from .counts import Counts
from .lane import Lane, lanes_of
from .shift import CONCURRENCY, SHUTDOWN_TIMEOUT, Options, Shift, child_shift
from .signals import Signals
from .supervise import Beside, Supervisor, Unavailable

ZERO = timedelta(0)
ENOUGH = 5.0  # seconds beyond its timeout that a stop may take


class Unworkable(ValueError):
    """What was asked to be worked is not there: an unknown name, or a queue without a handler."""


class WornOut(RuntimeError):
    """Half of the threads, or the event loop, were lost to what handlers did. Start a new process."""


class Worker:
    """Works queues with their handlers until it is stopped.

    `queues` are queues or their names; None is every queue of this process that has a handler. `using` keeps it
    to the queues of one database alias. `concurrency` is the number of handler threads, and of async handlers
    at once, in each of `processes`. `poll` is how often an idle worker looks without having been woken (None:
    `WORKQUEUE_POLL_INTERVAL`), `shutdown_timeout` how long a stop lets running handlers go on; both are
    `timedelta`s or seconds.

    With one process, all is done in this one, and leases are renewed on a thread of their own. With more, this
    process supervises: it must be the main thread that calls `run()`.
    """

    def __init__(
        self,
        queues: Iterable[Any] | None = None,
        *,
        using: str | None = None,
        concurrency: int | None = None,
        processes: int = 1,
        poll: timedelta | float | None = None,
        shutdown_timeout: timedelta | float | None = None,
    ) -> None:
        self._queues = None if queues is None else list(arguments.several("queues", queues, one="queue"))
        self._using = using
        self.options = Options(
            concurrency=CONCURRENCY if concurrency is None else _at_least_one("concurrency", concurrency),
            processes=_at_least_one("processes", processes),
            poll=None if poll is None else _duration("poll", poll, least=timedelta(milliseconds=1)),
            shutdown_timeout=SHUTDOWN_TIMEOUT
            if shutdown_timeout is None
            else _duration("shutdown_timeout", shutdown_timeout, least=timedelta(0)),
        )
        self._stop_asked = False
        self._shift: Shift | Supervisor | None = None
        self._thread: int | None = None
        self._ended = threading.Event()
        self._ended.set()

    def run(self) -> Counts:
        """Work until stopped; what was done.

        On the main thread, SIGTERM and SIGINT stop it, and a second one ends the process at once. Raises
        `ValueError` for an unknown name or a queue without a handler, `ImproperlyConfigured` for a setting that is
        wrong, such as middleware that cannot be imported or made.
        """
        with Signals() as signals:
            return self.work(self.options, signals)

    def drain(self) -> Counts:
        """Work in this process until nothing is due, then return what was done.

        Raises `Unavailable` if the database cannot be used for 30 s meanwhile, or has no tables of ours, and what
        `run` raises.
        """
        with Signals() as signals:
            return self.work(replace(self.options, drain=True, processes=1), signals)

    def stop(self, timeout: timedelta | float | None = None) -> bool:
        """Ask it to stop, from any thread or signal handler; running handlers have `timeout` (None: the worker's).

        Waits for the end and returns whether it has come, unless it is called where that would be for ever: on
        the thread that works, or in one of its handlers.
        """
        patience = self.options.shutdown_timeout if timeout is None else _duration("timeout", timeout, least=ZERO)
        self._stop_asked = True
        shift = self._shift
        if shift is not None:
            shift.stop_within = patience.total_seconds()
            shift.stop()
        inside = threading.get_ident() == self._thread or threading.current_thread().name.startswith("workqueue-")
        if inside or self._ended.is_set():
            return self._ended.is_set()
        return self._ended.wait(patience.total_seconds() + ENOUGH)

    def sources(self) -> list[Source]:
        """The sources that are worked. Raises `Unworkable`, a `ValueError`, if there is nothing to work."""
        return _sources(self._queues, self._using)

    def work(
        self, options: Options, signals: Signals, *, supervised: bool = False, beside: Sequence[Beside] = ()
    ) -> Counts:
        """Work with these options; with one process in this very one, unless it is to be `supervised`."""
        if not self._ended.is_set():
            raise RuntimeError("this worker is running already")
        lanes = lanes_of(self.sources())
        middleware.load()
        self._thread = threading.get_ident()
        self._ended.clear()
        try:
            if supervised or options.processes > 1:
                return self._supervise(lanes, options, signals, beside)
            return self._do(lanes, options, signals)
        finally:
            self._shift = None
            self._stop_asked = False
            self._ended.set()

    def _do(self, lanes: Sequence[Lane], options: Options, signals: Signals) -> Counts:
        shift = self._shift = Shift(lanes, options, max_items=options.max_items)
        signals.on_stop(shift.stop)
        if self._stop_asked:
            shift.stop()
        counts = shift.run(max_seconds=options.max_seconds)
        if shift.gave_up is not None:
            raise Unavailable(f"{shift.gave_up}. Until then: {counts}.")
        if shift.crew.worn_out:
            raise WornOut("half of the handler threads, or the event loop, were lost to handlers: the log says how")
        return counts

    def _supervise(self, lanes: Sequence[Lane], options: Options, signals: Signals, beside: Sequence[Beside]) -> Counts:
        if threading.current_thread() is not threading.main_thread():
            raise RuntimeError("several processes are supervised from the main thread only")
        supervisor = self._shift = Supervisor(
            lanes,
            lambda line, number, done: child_shift(lanes, options, signals, line=line, number=number, done=done),
            processes=options.processes,
            shutdown_timeout=options.shutdown_timeout.total_seconds(),
            max_seconds=options.max_seconds,
            signals=signals,
            beside=beside,
        )
        if self._stop_asked:
            supervisor.stop()
        return supervisor.run()


def _sources(queues: list[Any] | None, using: str | None) -> list[Source]:
    if using is not None and using not in connections.settings:
        raise Unworkable(f"the connection {using!r} doesn't exist. Those there are: {', '.join(connections.settings)}.")
    discovery.bring([queue for queue in queues or () if isinstance(queue, str)])
    known = [source for source in engine.registered() if using is None or source.alias == resolve(using)]
    if queues is None:
        found = [source for source in known if source.handlers]
        if not found:
            raise Unworkable(f"no handler is registered for any queue{_on(using)}. " + _advice())
        return found
    if not queues:
        raise Unworkable("there is nothing to work: an empty list of queues")
    return list({id(source): source for queue in queues for source in _named(queue, known, using)}.values())


def _named(queue: Any, known: list[Source], using: str | None) -> list[Source]:
    if isinstance(queue, str):
        found = [source for source in known if source.name == queue]
        if not found:
            names = ", ".join(sorted({repr(source.name) for source in known if source.handlers})) or "none"
            raise Unworkable(
                f"no handler is registered for a queue {queue!r}{_on(using)}. Queues that have one: {names}. "
                + _advice()
            )
    else:
        found = [queue.source]
    for source in found:
        if not source.handlers:
            raise Unworkable(f"no handler is registered for queue {source.name!r}, which has been made. " + _advice())
    return found


def _on(using: str | None) -> str:
    return "" if using is None else f" on database {using!r}"


def _advice() -> str:
    module = conf.autodiscover()
    advice = "Handlers are functions decorated with @queue.handler, "
    if not module:
        return advice + "in a module that your project imports (WORKQUEUE_AUTODISCOVER is None)."
    found = ", ".join(discovery.looked_in()) or "none"
    return advice + f"looked for in {module}.py of each installed app (WORKQUEUE_AUTODISCOVER); there is: {found}."


def _at_least_one(name: str, value: Any) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        raise ValueError(f"{name} is a positive integer, not {value!r}")
    return value


def _duration(name: str, value: Any, *, least: timedelta) -> timedelta:
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        value = timedelta(seconds=value)
    if not isinstance(value, timedelta) or value < least:
        raise ValueError(f"{name} is a timedelta or number of seconds of at least {least}, not {value!r}")
    return value
