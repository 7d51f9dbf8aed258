"""What keeps the tables from being vacuumed, and what has come of it."""

from __future__ import annotations

import time
from collections.abc import Iterator
from datetime import timedelta

from django_workqueue.sql import doctor as sql

from .asking import Server
from .findings import Finding, Limits, Severity
from .wording import ago, megabytes

HELD = (
    "As long as it is open, vacuum removes nothing that was deleted or updated since, in any table of the database: "
    "claims slow down, tables and indexes grow."
)


def open_transactions(server: Server, limits: Limits) -> Iterator[Finding]:
    """Sessions that hold a transaction open."""
    longer = min(limits.transaction, limits.idle)
    for pid, application, user, state, seconds, since, holds, query in server.ask(sql.SESSIONS, longer=_us(longer)):
        idle = state.startswith("idle in transaction")
        if not (idle and since >= limits.idle.total_seconds()) and seconds < limits.transaction.total_seconds():
            continue
        who = f"{application or 'a session'} (pid {pid}, user {user})"
        doing = f"has done nothing for {ago(since)}; its last statement was" if idle else "is running"
        yield Finding(
            "idle-in-transaction" if idle else "long-transaction",
            _severity(seconds, limits) if holds or idle else Severity.NOTE,
            f"{who} has had a transaction open for {ago(seconds)}" + (", idle" if idle else ""),
            f"It {doing}: {query}" + (f"\n{HELD}" if holds else "\nIt holds locks, but no snapshot."),
            f"End it in the program that holds it, or with SELECT pg_terminate_backend({pid}). "
            + (
                "Set idle_in_transaction_session_timeout for the role." if idle else "Split the work into smaller ones."
            ),
        )


def prepared_transactions(server: Server, limits: Limits) -> Iterator[Finding]:
    """Transactions of two-phase commits that nobody finishes."""
    for gid, owner, seconds in server.ask(sql.PREPARED, longer=_us(limits.transaction)):
        quoted = gid.replace("'", "''")
        yield Finding(
            "prepared-transaction",
            _severity(seconds, limits),
            f"The prepared transaction {gid!r} of {owner} has been waiting for {ago(seconds)}",
            f"It outlives its session, and the server's restarts. {HELD}",
            f"Let its coordinator finish it, or: ROLLBACK PREPARED '{quoted}'",
        )


def replication(server: Server, limits: Limits) -> Iterator[Finding]:
    """Replication slots and standbys that hold rows for others."""
    for name, active, age, only_catalogs in server.ask(sql.SLOTS, age=limits.held_transactions):
        yield Finding(
            "replication-slot",
            Severity.WARNING if active or only_catalogs else Severity.SERIOUS,
            f"The replication slot {name!r} keeps rows from {age:,} transactions ago",
            f"{'Somebody' if active else 'Nobody'} is connected to it. "
            + ("It keeps those of the system catalogs, and the WAL since." if only_catalogs else HELD),
            f"Let its consumer catch up, or, if there is none any more: SELECT pg_drop_replication_slot('{name}')",
        )
    for name, host, age in server.ask(sql.STANDBYS, age=limits.held_transactions):
        yield Finding(
            "standby-feedback",
            Severity.WARNING,
            f"A standby ({name}, {host}) keeps rows from {age:,} transactions ago",
            f"It sends hot_standby_feedback, and has a query that is as old. {HELD}",
            "End the long query on the standby, or turn hot_standby_feedback off there.",
        )


def dead_rows(server: Server, limits: Limits) -> Iterator[Finding]:
    """Tables that vacuum does not get done with, or is kept from."""
    for table, live, dead, off, vacuumed in server.ask(sql.TABLES):
        if off:
            yield Finding(
                "autovacuum-off",
                Severity.SERIOUS,
                f"Autovacuum is turned off for {table}",
                f"About {dead:,} dead rows, {live:,} live ones. A queue lives by being vacuumed.",
                f"ALTER TABLE {table} RESET (autovacuum_enabled)",
            )
        if dead > max(limits.dead_rows, live * limits.dead_share):
            yield Finding(
                "dead-rows",
                Severity.WARNING,
                f"{table} has about {dead:,} dead rows for {live:,} live ones",
                f"It was last vacuumed {ago(vacuumed)} ago." if vacuumed is not None else "It was never vacuumed.",
                "See whether something holds rows back (findings above, if there are any); else let autovacuum work "
                f"harder (autovacuum_vacuum_cost_limit), or by hand: VACUUM {table}",
            )


def indexes(server: Server, limits: Limits) -> Iterator[Finding]:
    """Indexes that are mostly empty space."""
    for index, table, size, entries in server.ask(sql.INDEXES, bytes=limits.index_bytes):
        if size > limits.bytes_per_entry * max(entries, 1):
            yield Finding(
                "index-bloat",
                Severity.WARNING,
                f"The index {index} is mostly empty space",
                f"It has {megabytes(size)} for about {entries:,} entries (of {table}).",
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
            "Autovacuum is turned off on the server",
            f"autovacuum is {_on(autovacuum)}, track_counts is {_on(counts)}.",
            "Turn both on in postgresql.conf, and reload.",
        )
    ahead = clock / 1_000_000 - (before + time.time()) / 2
    if abs(ahead) > limits.clock.total_seconds():
        way = "behind" if ahead > 0 else "ahead of"
        yield Finding(
            "clock",
            Severity.NOTE,
            f"This machine's clock is {ago(abs(ahead))} {way} the server's",
            "The queues do not mind: only the server's clock counts. Logs of the two cannot be compared.",
            "Nothing, for the queues' sake. Else synchronise it.",
        )


CHECKS = (open_transactions, prepared_transactions, replication, dead_rows, indexes, the_server)


def _severity(seconds: float, limits: Limits) -> Severity:
    return Severity.SERIOUS if seconds >= limits.serious.total_seconds() else Severity.WARNING


def _us(duration: timedelta) -> int:
    return duration // timedelta(microseconds=1)


def _on(setting: object) -> str:
    return "on" if setting else "off"
