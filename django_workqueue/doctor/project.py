"""What of the project's own settings and code does not fit: migrations, leases, wakes, pools."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta
from typing import Any

from django.db import connections
from django.db.migrations.executor import MigrationExecutor
from django.utils.translation import gettext as _
from django.utils.translation import ngettext

from django_workqueue import conf, engine, notify
from django_workqueue.notify import Status
from django_workqueue.sql import doctor as sql

from .asking import Server
from .findings import Finding, Limits, Severity
from .wording import ago

APP = "workqueue"
CONCURRENCY = 8  # a worker's threads, where none is seen to have more
PROBE_SECONDS = 3.0


def migrations(server: Server, _limits: Limits) -> Iterator[Finding]:
    """Migrations of ours that were not applied."""
    executor = MigrationExecutor(connections[server.alias])
    targets = [node for node in executor.loader.graph.leaf_nodes() if node[0] == APP]
    plan = [str(migration) for migration, _backwards in executor.migration_plan(targets) if migration.app_label == APP]
    if plan:
        yield Finding(
            "unapplied-migrations",
            Severity.SERIOUS,
            ngettext(
                "%(count)s migration of django_workqueue not applied",
                "%(count)s migrations of django_workqueue not applied",
                len(plan),
            )
            % {"count": len(plan)},
            ", ".join(plan),
            f"manage.py migrate {APP} --database {server.alias}",
        )


def leases(server: Server, _limits: Limits) -> Iterator[Finding]:
    """Handlers that may run for longer than their lease: once each, in however many queues."""
    queues: dict[tuple[str, timedelta, timedelta], list[str]] = {}
    for source in engine.registered():
        if source.alias != server.alias:
            continue
        for handler in source.handlers:
            if handler.kind != engine.TO_BE_FOUND and handler.timeout is not None and handler.lease < handler.timeout:
                queues.setdefault((handler.name, handler.lease, handler.timeout), []).append(repr(source.name))
    for (name, lease, timeout), names in queues.items():
        yield Finding(
            "short-lease",
            Severity.NOTE,
            _("%(handler)s has a lease that is shorter than its timeout") % {"handler": name},
            _(
                "lease=%(lease)s, timeout=%(timeout)s, in %(queues)s. The worker renews the lease while it runs. Only "
                "if it cannot for a lease's time, as in an outage, does the work run a second time beside it."
            )
            % {"lease": lease, "timeout": timeout, "queues": ", ".join(names)},
            _("Nothing, unless that must not be: then a lease of its timeout. A dead worker's is waited for as long."),
        )


def listener(server: Server, _limits: Limits) -> Iterator[Finding]:
    """Whether wakes reach idle workers."""
    poll = ago(conf.poll_interval().total_seconds())
    if not conf.notify():
        yield Finding(
            "notify-off",
            Severity.NOTE,
            _("Idle workers are not woken"),
            _("WORKQUEUE_NOTIFY is False: they look every %(age)s.") % {"age": poll},
            _("Nothing, if that is soon enough."),
        )
        return
    alias = conf.listen_alias(server.alias)
    state = notify.probe(alias, PROBE_SECONDS)
    if state.status is Status.LISTENING:
        return
    deaf = state.status is Status.DEAF
    yield Finding(
        "listener-deaf" if deaf else "listener-lost",
        Severity.WARNING,
        (
            _("LISTEN on database alias %(alias)r hears nothing")
            if deaf
            else _("LISTEN on database alias %(alias)r cannot be set up")
        )
        % {"alias": alias},
        _("%(reason)s. Idle workers look every %(age)s.") % {"reason": state.error or state.status.value, "age": poll},
        _(
            "Name an alias that reaches the server directly, around a transaction-pooling proxy, in "
            "WORKQUEUE_LISTEN_DATABASE."
        ),
    )


def pool(server: Server, _limits: Limits) -> Iterator[Finding]:
    """A pool of Django's that has fewer connections than a worker has threads."""
    options: Any = connections[server.alias].settings_dict["OPTIONS"].get("pool")
    if not options:
        return
    given = options if isinstance(options, dict) else {}
    least = given.get("min_size", 4)
    most = given.get("max_size") or least
    threads = max((concurrency for *_who, concurrency, _seen in server.ask(sql.WORKERS)), default=CONCURRENCY)
    if most < threads:
        yield Finding(
            "small-pool",
            Severity.WARNING,
            _("The pool of database alias %(alias)r has fewer connections than a worker has threads")
            % {"alias": server.alias},
            _(
                "At most %(most)s connections for %(threads)s handler threads: the others wait, and fail after a "
                "timeout."
            )
            % {"most": most, "threads": threads},
            _("%(setting)s, or a smaller --concurrency.")
            % {"setting": f'OPTIONS = {{"pool": {{"max_size": {threads + 2}}}}}'},
        )


CHECKS = (leases, listener, pool)
