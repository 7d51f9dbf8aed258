"""What keeps the tables from being vacuumed, and what has come of it."""

from __future__ import annotations

import time
from collections.abc import Iterator
from datetime import timedelta

from django.utils.translation import gettext as _

from django_workqueue.figures import number
from django_workqueue.sql import doctor as sql

from .asking import Server
from .findings import Finding, Limits, Severity
from .wording import ago, megabytes


def open_transactions(server: Server, limits: Limits) -> Iterator[Finding]:
    """Sessions that hold a transaction open."""
    longer = min(limits.transaction, limits.idle)
    for pid, application, user, state, seconds, since, holds, query in server.ask(sql.SESSIONS, longer=_us(longer)):
        idle = state.startswith("idle in transaction")
        if not (idle and since >= limits.idle.total_seconds()) and seconds < limits.transaction.total_seconds():
            continue
        who = {"who": application or _("A session"), "pid": pid, "user": user, "age": ago(seconds)}
        doing = (
            _("It has done nothing for %(age)s; its last statement was: %(query)s")
            if idle
            else _("It is running: %(query)s")
        ) % {"age": ago(since), "query": query}
        yield Finding(
            "idle-in-transaction" if idle else "long-transaction",
            _severity(seconds, limits) if holds or idle else Severity.NOTE,
            (
                _("%(who)s (pid %(pid)s, user %(user)s) has had a transaction open for %(age)s, idle")
                if idle
                else _("%(who)s (pid %(pid)s, user %(user)s) has had a transaction open for %(age)s")
            )
            % who,
            f"{doing}\n" + (_held() if holds else _("It holds locks, but no snapshot.")),
            (
                _(
                    "End it in the program that holds it, or with %(statement)s. Set "
                    "idle_in_transaction_session_timeout for the role."
                )
                if idle
                else _("End it in the program that holds it, or with %(statement)s. Split the work into smaller ones.")
            )
            % {"statement": f"SELECT pg_terminate_backend({pid})"},
        )


def prepared_transactions(server: Server, limits: Limits) -> Iterator[Finding]:
    """Transactions of two-phase commits that nobody finishes."""
    for gid, owner, seconds in server.ask(sql.PREPARED, longer=_us(limits.transaction)):
        quoted = gid.replace("'", "''")
        yield Finding(
            "prepared-transaction",
            _severity(seconds, limits),
            _("The prepared transaction %(name)r of %(owner)s has been waiting for %(age)s")
            % {"name": gid, "owner": owner, "age": ago(seconds)},
            _("It outlives its session, and the restarts of the server.") + f" {_held()}",
            _("Let its coordinator finish it, or: %(statement)s") % {"statement": f"ROLLBACK PREPARED '{quoted}'"},
        )


def replication(server: Server, limits: Limits) -> Iterator[Finding]:
    """Replication slots and standbys that hold rows for others."""
    for name, active, age, only_catalogs in server.ask(sql.SLOTS, age=limits.held_transactions):
        yield Finding(
            "replication-slot",
            Severity.WARNING if active or only_catalogs else Severity.SERIOUS,
            _("The replication slot %(name)r keeps rows from %(count)s transactions ago")
            % {"name": name, "count": number(age)},
            "{} {}".format(
                _("Somebody is connected to it.") if active else _("Nobody is connected to it."),
                _("It keeps those of the system catalogs, and the WAL since.") if only_catalogs else _held(),
            ),
            _("Let its consumer catch up, or, if there is none any more: %(statement)s")
            % {"statement": f"SELECT pg_drop_replication_slot('{name}')"},
        )
    for name, host, age in server.ask(sql.STANDBYS, age=limits.held_transactions):
        yield Finding(
            "standby-feedback",
            Severity.WARNING,
            _("A standby (%(name)s, %(host)s) keeps rows from %(count)s transactions ago")
            % {"name": name, "host": host, "count": number(age)},
            _("It sends hot_standby_feedback, and has a query that is as old.") + f" {_held()}",
            _("End the long query on the standby, or turn hot_standby_feedback off there."),
        )


def dead_rows(server: Server, limits: Limits) -> Iterator[Finding]:
    """Tables that vacuum does not get done with, or is kept from."""
    for table, live, dead, off, vacuumed in server.ask(sql.TABLES):
        if off:
            yield Finding(
                "autovacuum-off",
                Severity.SERIOUS,
                _("Autovacuum is turned off for %(table)s") % {"table": table},
                _("About %(dead)s dead rows, %(live)s live ones. A queue lives by being vacuumed.")
                % {"dead": number(dead), "live": number(live)},
                f"ALTER TABLE {table} RESET (autovacuum_enabled)",
            )
        if dead > max(limits.dead_rows, live * limits.dead_share):
            yield Finding(
                "dead-rows",
                Severity.WARNING,
                _("%(table)s has about %(dead)s dead rows for %(live)s live ones")
                % {"table": table, "dead": number(dead), "live": number(live)},
                _("It was last vacuumed %(age)s ago.") % {"age": ago(vacuumed)}
                if vacuumed is not None
                else _("It was never vacuumed."),
                _(
                    "See whether something holds rows back (findings above, if there are any); else let autovacuum "
                    "work harder (autovacuum_vacuum_cost_limit), or by hand: %(statement)s"
                )
                % {"statement": f"VACUUM {table}"},
            )


def indexes(server: Server, limits: Limits) -> Iterator[Finding]:
    """Indexes that are mostly empty space."""
    for index, table, size, entries in server.ask(sql.INDEXES, bytes=limits.index_bytes):
        if size > limits.bytes_per_entry * max(entries, 1):
            yield Finding(
                "index-bloat",
                Severity.WARNING,
                _("The index %(index)s is mostly empty space") % {"index": index},
                _("It has %(size)s for about %(count)s entries (of %(table)s).")
                % {"size": megabytes(size), "count": number(entries), "table": table},
                f"REINDEX INDEX CONCURRENTLY {index}",
            )


def the_server(server: Server, limits: Limits) -> Iterator[Finding]:
    """Settings of the server, and its clock."""
    before = time.time()
    ((autovacuum, counts, clock),) = server.ask(sql.SERVER)
    if not autovacuum or not counts:
        yield Finding(
            "autovacuum-off",
            Severity.SERIOUS,
            _("Autovacuum is turned off on the server"),
            f"autovacuum = {_on(autovacuum)}, track_counts = {_on(counts)}",
            _("Turn both on in postgresql.conf, and reload."),
        )
    ahead = clock / 1_000_000 - (before + time.time()) / 2
    if abs(ahead) > limits.clock.total_seconds():
        yield Finding(
            "clock",
            Severity.NOTE,
            (
                _("This machine's clock is %(age)s behind the server's")
                if ahead > 0
                else _("This machine's clock is %(age)s ahead of the server's")
            )
            % {"age": ago(abs(ahead))},
            _("The queues do not mind: only the server's clock counts. Logs of the two cannot be compared."),
            _("Nothing, for the queues' sake. Else synchronise it."),
        )


CHECKS = (open_transactions, prepared_transactions, replication, dead_rows, indexes, the_server)


def _held() -> str:
    return _(
        "As long as it is there, vacuum removes nothing that was deleted or updated since, in any table of the "
        "database: claims slow down, tables and indexes grow."
    )


def _severity(seconds: float, limits: Limits) -> Severity:
    return Severity.SERIOUS if seconds >= limits.serious.total_seconds() else Severity.WARNING


def _us(duration: timedelta) -> int:
    return duration // timedelta(microseconds=1)


def _on(setting: object) -> str:
    return "on" if setting else "off"
