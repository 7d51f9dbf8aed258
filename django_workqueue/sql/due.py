"""When the next of what is scheduled comes due: the same question of both tables."""

from __future__ import annotations

from .statement import Statement


def next_due(prefix: str, *, table: str, still_open: str, ident: str) -> Statement:
    """In how many µs the first of what is scheduled at some ranks comes due, if that is `within` so many."""
    return Statement(
        f"{prefix}_next_due",
        f"""
        SELECT (date_part('epoch', min(e.available_at) - statement_timestamp()) * 1000000)::bigint
        FROM unnest(%(ranks)s::int[]) f(r) CROSS JOIN LATERAL (
         SELECT q.available_at FROM {table} q
         WHERE q.queue = {{Q}} AND {still_open} AND -q.priority = f.r AND q.available_at > statement_timestamp()
          AND q.available_at <= statement_timestamp() + %(within)s::bigint * interval '1 microsecond'
         ORDER BY -q.priority, q.available_at, q.{ident} LIMIT 1) e
        """,
        ordered=True,
    )
