"""What the queues hold that nobody works, and who is seen to work."""

from __future__ import annotations

import json
from collections.abc import Iterator

from django_workqueue import conf, engine, inventory
from django_workqueue.inventory import KnownQueue
from django_workqueue.listed import ListedSource
from django_workqueue.sql import doctor as sql

from .asking import Server
from .findings import Finding, Limits, Severity
from .wording import ago

LOOK_AT = 1000  # jobs


def piles(server: Server, limits: Limits) -> Iterator[Finding]:
    """Paused queues, work that is out of attempts, work that is ready with no worker in sight."""
    seen = {
        name
        for _, _, _, queues, _, seconds in server.ask(sql.WORKERS)
        if seconds < limits.silent.total_seconds()
        for name in json.loads(queues)
    }
    for queue in inventory.queues(using=server.alias):
        held = queue.stats()
        if queue.paused:
            yield Finding(
                "paused",
                Severity.NOTE,
                f"Queue {queue.name!r} is paused",
                f"{held.ready:,} are ready and wait for it to be resumed.",
                "Queue.resume(), or the admin.",
            )
        elif held.ready and held.oldest_ready_age > limits.unworked and queue.name not in seen:
            yield Finding(
                "no-worker",
                Severity.SERIOUS,
                f"No worker is seen to work queue {queue.name!r}",
                f"{held.ready:,} are ready, the oldest for {ago(held.oldest_ready_age.total_seconds())}.",
                f"manage.py workqueue_work {queue.name} (unless a program of yours claims by hand).",
            )
        if held.stalled >= limits.pile:
            jobs = queue.face == "jobs"
            yield Finding(
                "dead-pile",
                Severity.WARNING,
                f"Queue {queue.name!r} has {held.stalled:,} {'dead jobs' if jobs else 'stalled items'}",
                "They are out of attempts and are not tried again by themselves.",
                "Look at their errors in the admin; once the cause is gone, "
                + ("retry them there." if jobs else "enqueue them again: any enqueue revives an item."),
            )


def handlers(server: Server, _limits: Limits) -> Iterator[Finding]:
    """Kinds of job, and queues, for which this process has no handler."""
    if not any(source.handlers for source in engine.registered()):
        module = conf.autodiscover()
        yield Finding(
            "no-handlers",
            Severity.NOTE,
            "This process has no handlers at all",
            f"None was found in any app's {module}.py." if module else "WORKQUEUE_AUTODISCOVER is None.",
            "If handlers are elsewhere, import them from there; which kinds nobody handles cannot be told without.",
        )
        return
    for queue in inventory.queues(using=server.alias):
        if isinstance(queue.source, ListedSource):
            yield from _kinds(server, queue)
        elif not queue.source.handlers and queue.stats().ready:
            yield Finding(
                "unhandled-queue",
                Severity.WARNING,
                f"Queue {queue.name!r} has no handler in this project's code",
                "What it holds waits for a program that claims by hand, or for nobody.",
                "Add a handler with @queue.handler in a module that is imported, or see who enqueues to it.",
            )


def _kinds(server: Server, queue: KnownQueue) -> Iterator[Finding]:
    source = queue.source
    for kind, number, is_task in server.ask(sql.KINDS, queue.name, limit=LOOK_AT):
        if is_task and source.finder is not None:
            source.finder(kind)
        if any(handler.kind == kind for handler in source.handlers):
            continue
        yield Finding(
            "unhandled-kind",
            Severity.SERIOUS,
            f"Nobody handles jobs of the kind {kind!r}",
            f"{number:,} of the first {LOOK_AT:,} that are due in queue {queue.name!r}. Workers leave them alone.",
            "Add the handler (was it renamed, or its app removed?), or cancel them.",
        )


def inbox(server: Server, limits: Limits) -> Iterator[Finding]:
    """What was enqueued in transactions, and no claim has folded into its queue."""
    rows = server.ask(sql.INBOX, limit=limits.inbox + 1)
    if sum(number for _, number in rows) <= limits.inbox:
        return
    queues = ", ".join(f"{name!r} ({number:,})" for name, number in rows[:5])
    yield Finding(
        "inbox-backlog",
        Severity.WARNING,
        f"More than {limits.inbox:,} enqueues wait in the inbox",
        f"Among the first, by queue: {queues}. Claims fold them; where nobody claims, they stay.",
        "Run a worker for these queues. If one runs, see whether something holds its rows.",
    )


def workers(server: Server, limits: Limits) -> Iterator[Finding]:
    """Workers that have stopped saying that they are there, without a goodbye."""
    for name, host, pid, _, _, seconds in server.ask(sql.WORKERS):
        if seconds >= limits.silent.total_seconds():
            yield Finding(
                "silent-worker",
                Severity.WARNING,
                f"Worker {name} was last seen {ago(seconds)} ago",
                f"It was process {pid} on {host}, and did not say goodbye. What it had leased is handed out again.",
                "If it was killed, find out by whom (out of memory?). Its row goes by itself after a day.",
            )


CHECKS = (piles, handlers, inbox, workers)
