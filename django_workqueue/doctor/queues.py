"""What the queues hold that nobody works, and who is seen to work."""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterator

from django.utils.translation import gettext as _

from django_workqueue import conf, engine, inventory
from django_workqueue.figures import number
from django_workqueue.inventory import KnownQueue
from django_workqueue.listed import ListedSource
from django_workqueue.sql import doctor as sql
from django_workqueue.stats import QueueStats

from .asking import Server
from .findings import Finding, Limits, Severity
from .wording import ago

LOOK_AT = 1000  # jobs


def piles(server: Server, limits: Limits) -> Iterator[Finding]:
    """Paused queues, work that is out of attempts, work that is ready with no worker in sight."""
    seen = {
        name
        for *_who, queues, _threads, seconds in server.ask(sql.WORKERS)
        if seconds < limits.silent.total_seconds()
        for name in json.loads(queues)
    }
    for queue in inventory.queues(using=server.alias):
        held = queue.stats()
        if queue.paused:
            yield Finding(
                "paused",
                Severity.NOTE,
                _("Queue %(queue)r is paused") % {"queue": queue.name},
                _("%(count)s are ready and wait for it to be resumed.") % {"count": number(held.ready)},
                _("Queue.resume(), or the admin."),
            )
        elif queue.name not in seen and _worker_wanted(queue, held, limits):
            yield Finding(
                "no-worker",
                Severity.SERIOUS,
                _("No worker is seen to work queue %(queue)r") % {"queue": queue.name},
                _("%(count)s are ready, the oldest for %(age)s.")
                % {"count": number(held.ready), "age": ago(held.oldest_ready_age.total_seconds())},
                _("%(command)s (unless a program of yours claims by hand).")
                % {"command": f"manage.py workqueue_work {shlex.quote(queue.name)}"},
            )
        if held.stalled >= limits.pile:
            jobs = queue.face == "jobs"
            yield Finding(
                "dead-pile",
                Severity.WARNING,
                (
                    _("Queue %(queue)r has %(count)s dead jobs")
                    if jobs
                    else _("Queue %(queue)r has %(count)s stalled items")
                )
                % {"queue": queue.name, "count": number(held.stalled)},
                _("They are out of attempts and are not tried again by themselves."),
                _("Look at their errors in the admin; once the cause is gone, retry them there.")
                if jobs
                else _(
                    "Look at their errors in the admin; once the cause is gone, enqueue them again: any enqueue "
                    "revives an item."
                ),
            )


def _worker_wanted(queue: KnownQueue, held: QueueStats, limits: Limits) -> bool:
    """Whether work has waited for long that a worker would do: not where this project lacks the handler for it."""
    handled = queue.source.handlers or not _any_handlers()
    return bool(held.ready and held.oldest_ready_age > limits.unworked and handled)


def _any_handlers() -> bool:
    return any(source.handlers for source in engine.registered())


def handlers(server: Server, _limits: Limits) -> Iterator[Finding]:
    """Kinds of job, and queues, for which this process has no handler."""
    if not _any_handlers():
        module = conf.autodiscover()
        yield Finding(
            "no-handlers",
            Severity.NOTE,
            _("This process has no handlers at all"),
            _("None was found in any app's %(module)s.") % {"module": f"{module}.py"}
            if module
            else _("WORKQUEUE_AUTODISCOVER is None."),
            _("If handlers are elsewhere, import them from there; which kinds nobody handles cannot be told without."),
        )
        return
    for queue in inventory.queues(using=server.alias):
        if isinstance(queue.source, ListedSource):
            yield from _kinds(server, queue)
        elif not queue.source.handlers and queue.stats().ready:
            yield Finding(
                "unhandled-queue",
                Severity.WARNING,
                _("Queue %(queue)r has no handler in this project's code") % {"queue": queue.name},
                _("What it holds waits for a program that claims by hand, or for nobody."),
                _("Add a handler with @queue.handler in a module that is imported, or see who enqueues to it."),
            )


def _kinds(server: Server, queue: KnownQueue) -> Iterator[Finding]:
    source = queue.source
    for kind, waiting, is_task in server.ask(sql.KINDS, queue.name, limit=LOOK_AT):
        if is_task and source.finder is not None:
            source.finder(kind)
        if any(handler.kind == kind for handler in source.handlers):
            continue
        yield Finding(
            "unhandled-kind",
            Severity.SERIOUS,
            _("Nobody handles jobs of the kind %(kind)r") % {"kind": kind},
            _("%(count)s of the first %(most)s that are due in queue %(queue)r. Workers leave them alone.")
            % {"count": number(waiting), "most": number(LOOK_AT), "queue": queue.name},
            _("Add the handler (was it renamed, or its app removed?), or cancel them."),
        )


def inbox(server: Server, limits: Limits) -> Iterator[Finding]:
    """What was enqueued in transactions, and no claim has folded into its queue."""
    rows = server.ask(sql.INBOX, limit=limits.inbox + 1)
    if sum(count for _name, count in rows) <= limits.inbox:
        return
    queues = ", ".join(f"{name!r} ({number(count)})" for name, count in rows[:5])
    yield Finding(
        "inbox-backlog",
        Severity.WARNING,
        _("More than %(count)s enqueues wait in the inbox") % {"count": number(limits.inbox)},
        _("Among the first, by queue: %(queues)s. Claims fold them; where nobody claims, they stay.")
        % {"queues": queues},
        _("Run a worker for these queues. If one runs, see whether something holds its rows."),
    )


def workers(server: Server, limits: Limits) -> Iterator[Finding]:
    """Workers that have stopped saying that they are there, without a goodbye."""
    for name, host, pid, _queues, _threads, seconds in server.ask(sql.WORKERS):
        if seconds >= limits.silent.total_seconds():
            yield Finding(
                "silent-worker",
                Severity.WARNING,
                _("Worker %(worker)s was last seen %(age)s ago") % {"worker": name, "age": ago(seconds)},
                _(
                    "It was process %(pid)s on %(host)s, and did not say goodbye. What it had leased is handed out "
                    "again."
                )
                % {"pid": pid, "host": host},
                _("If it was killed, find out by whom (out of memory?). Its row goes by itself after a day."),
            )


CHECKS = (piles, handlers, inbox, workers)
