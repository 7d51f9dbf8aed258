"""What the worker says in the log: wording and levels in one place."""

from __future__ import annotations

import logging
import os
import signal
from collections.abc import Iterable
from datetime import timedelta
from typing import Any

from django_workqueue import unmigrated
from django_workqueue.engine import Handler

logger = logging.getLogger("django_workqueue")

# What the parts of a worker do with the database.
DOING = {
    "claim": "claiming work",
    "start": "noting what starts",
    "settle": "writing what became of work",
    "renew": "renewing leases",
    "maintain": "looking after the queues",
}


def started(queues: Iterable[str], *, concurrency: int, pid: int) -> None:
    """A process begins to work."""
    logger.info("worker %d started: %s; concurrency %d", pid, ", ".join(sorted(set(queues))), concurrency)


def stopping(*, pid: int, seconds: float) -> None:
    """A process was asked to stop."""
    logger.info("worker %d is stopping; running handlers have %g s", pid, seconds)


def stopped(counts: Any, *, pid: int) -> None:
    """A process ended in order."""
    logger.info("worker %d stopped: %s", pid, counts)


def failed(
    handler: Handler, what: str, error: BaseException, *, attempt: int, of: int, again_in: timedelta | None
) -> None:
    """A handler raised, at an attempt of so many (0: without end). None is never again by itself."""
    logger.log(
        logging.ERROR if again_in is None else logging.WARNING,
        "%s on %s: attempt %d%s failed; %s: %r",
        handler.name,
        what,
        attempt,
        f" of {of}" if of else "",
        _what_next(handler, again_in, is_last=0 < of <= attempt),
        error,
        exc_info=error,
    )


def _what_next(handler: Handler, again_in: timedelta | None, *, is_last: bool) -> str:
    if again_in is not None:
        seconds = again_in.total_seconds()
        return f"again in {seconds:.3g} s" if seconds < 1000 else f"again in {again_in}"
    if handler.kind is not None:
        return "it is a dead letter now"
    return "it is stalled now, unless it was enqueued again" if is_last else "it is finished, with its error kept"


def bad_backoff(handler: Handler, error: BaseException) -> None:
    """A backoff raised or answered nonsense; the default is used."""
    logger.error("the backoff of %s is broken: %r; using the default", handler.name, error, exc_info=error)


def ran_past(handler: Handler, what: str, *, seconds: float) -> None:
    """A handler swallowed its timeout and still runs."""
    logger.error(
        "%s on %s ignores its timeout of %g s and still runs: its thread is given up", handler.name, what, seconds
    )


def left_open(handler: Handler, alias: str) -> None:
    """A handler has returned inside a transaction."""
    logger.warning(
        "%s on queue %r left a transaction open on database %r: it is rolled back, and the connection closed",
        handler.name,
        handler.source.name,
        alias,
    )


def worn_out(leaked: int, slots: int) -> None:
    """Too many handlers never came back."""
    logger.error("%d of %d handler threads were lost to handlers that ignore their timeout: stopping", leaked, slots)


def loop_stopped() -> None:
    """A handler has called the event loop's `stop()`."""
    logger.error("the event loop of the async handlers was stopped, which is not for a handler to do; going on")


def loop_ended(error: BaseException) -> None:
    """The event loop is beyond use."""
    logger.error("the event loop of the async handlers cannot go on: %r; stopping", error, exc_info=error)


def lost(queue: str, number: int) -> None:
    """Leases ended under running handlers."""
    leases, their = ("lease was", "its handler") if number == 1 else ("leases were", "their handlers")
    logger.warning("%s: %d %s lost; what %s did will not be counted", queue, number, leases, their)


def ended(queue: str, number: int) -> None:
    """Runs whose work is no longer theirs, though nobody took it over."""
    runs = "run" if number == 1 else "runs"
    logger.info("%s: %d %s had ended already: cancelled, removed or settled otherwise", queue, number, runs)


def abandoned(number: int) -> None:
    """Handlers did not end in time."""
    handlers, their = ("handler", "its") if number == 1 else ("handlers", "their")
    logger.warning("%d %s did not end in time; %s work is given back", number, handlers, their)


def unsettled(number: int) -> None:
    """Outcomes could not be written before the end."""
    outcomes, their = ("outcome", "its lease") if number == 1 else ("outcomes", "their leases")
    logger.error("%d %s could not be written; %s will lapse and the work be run again", number, outcomes, their)


def refused_outcome(queue: str, what: str, error: BaseException) -> None:
    """The database will not take an outcome, whatever we do."""
    logger.error("%s: the outcome of %s cannot be written: %s", queue, what, error, exc_info=error)


def gone(alias: str, part: str, error: BaseException) -> None:
    """The database cannot be reached."""
    logger.error(
        "database %r cannot be used for %s: %s; trying again until it can", alias, DOING[part], first_line(error)
    )


def refused(alias: str, part: str, error: BaseException) -> None:
    """The database will not do what a part of the worker needs."""
    if unmigrated.is_cause(error):
        logger.error("%s; nothing is worked until it has", no_tables(alias, error))
    else:
        logger.error(
            "database %r refuses what %s needs: %s; trying again until it does not",
            alias,
            DOING[part],
            first_line(error),
        )


def accepted(alias: str, seconds: float) -> None:
    """The database does again what the worker needs."""
    logger.warning("database %r refuses nothing any more; it did for %.1f s", alias, seconds)


def migrated(alias: str, seconds: float) -> None:
    """The database has the tables that were missing."""
    logger.warning("database %r has the tables of django_workqueue now; they were missing for %.1f s", alias, seconds)


def reconnected(alias: str, part: str, error: BaseException) -> None:
    """A connection was lost, and the next try had another."""
    logger.info("database %r: the connection for %s was cut and made anew: %s", alias, DOING[part], first_line(error))


def back(alias: str, seconds: float) -> None:
    """The database can be reached again."""
    logger.warning("database %r is back after %.1f s", alias, seconds)


def broken(part: str, error: BaseException) -> None:
    """Our own code raised where it should not."""
    logger.error("%s raised %r; going on", DOING.get(part, part), error, exc_info=error)


def child_died(pid: int, how: str, *, again_in: float) -> None:
    """A worker process ended by itself."""
    logger.error("worker process %d %s; starting another in %.1f s", pid, how, again_in)


def not_forked(error: BaseException, *, again_in: float) -> None:
    """The system has no room for another process."""
    logger.error("a worker process cannot be started: %s; trying again in %.1f s", error, again_in)


def child_silent(pid: int, seconds: float) -> None:
    """A worker process hangs."""
    logger.error("worker process %d has been silent for %.0f s: killing it", pid, seconds)


def child_overdue(pid: int) -> None:
    """A worker process did not stop in time."""
    logger.error("worker process %d did not stop in time: killing it", pid)


def supervisor_gone() -> None:
    """Nobody watches over this process any more."""
    logger.error("worker %d has lost its supervisor: stopping", os.getpid())


def how_it_ended(code: int) -> str:
    """An exit code in words; negative for a signal."""
    return f"was killed by {signal.Signals(-code).name}" if code < 0 else f"exited with {code}"


def no_tables(alias: str, error: BaseException) -> str:
    """That the database was not migrated, and what to do."""
    return f"{unmigrated.lack(alias)} ({first_line(error)}): run `{unmigrated.command(alias)}`"


def first_line(error: BaseException) -> str:
    """A database's error on one line."""
    return next(iter(str(error).strip().splitlines()), repr(error))
