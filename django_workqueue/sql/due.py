"""When the next of what is scheduled comes due: the same question of both tables."""

from __future__ import annotations

from .statement import Statement


def next_due(prefix: str, *, table: str, wanted: str, ident: str, ranks: str) -> Statement:
    """In how many µs the first of what is scheduled comes due, if that is `within` so many.

    At those ranks that are known, and at the first `discover` of those in use, which the query `ranks` finds.
    """
    return Statement(
        f"{prefix}_next_due",
        f"""
        WITH RECURSIVE {ranks}
        SELECT (date_part('epoch', min(e.available_at) - statement_timestamp()) * 1000000)::bigint
        FROM (
         (SELECT r FROM rank WHERE r IS NOT NULL LIMIT %(discover)s::int) UNION SELECT unnest(%(ranks)s::int[])) f(r)
        CROSS JOIN LATERAL (
         SELECT q.available_at FROM {table} q
         WHERE q.queue = {{Q}} AND {wanted} AND -q.priority = f.r AND q.available_at > statement_timestamp()
          AND q.available_at <= statement_timestamp() + %(within)s::bigint * interval '1 microsecond'
         ORDER BY -q.priority, q.available_at, q.{ident} LIMIT 1) e
        """,
        ordered=True,
    )
