"""What a claim of 100 costs, beside what may lie around it.

One round, ours only: cycles of enqueue, claim and complete at a steady pace for 15 s, so that at least one look from
the beginning of the index (a rescan) falls into each; the claims are timed, rescans included. "Rescans" is their
share of the time. 500 k under a held snapshot: worked just before, while another session holds a snapshot.
"""

from __future__ import annotations

from benchmarks.arena import Arena
from benchmarks.contestants.catalog import Setup
from benchmarks.processes import Failed
from benchmarks.results import Key, Results
from benchmarks.scenarios.snapshot import held_snapshot

NAME = "claims"
UNIT = "ms"
ONCE = True
SHARE = "rescans, % of time"
SECONDS = 15.0

EMPTY = "an empty table"
SURROUNDINGS = {
    EMPTY: "SELECT {rows}",
    "1 M delayed of higher priority": """
        INSERT INTO workqueue_item (queue, key, priority, available_at)
        SELECT 'items', 'd' || n, 10, now() + interval '1 day' + n * interval '1 ms'
        FROM generate_series(1, {rows}) n""",
    "500 k live leases": """
        INSERT INTO workqueue_item (queue, key, attempts, available_at, lease_until, lease_token)
        SELECT 'items', 'l' || n, 1, now() - interval '1 hour' + n * interval '1 ms', now() + interval '1 day', n
        FROM generate_series(1, {rows} / 2) n""",
    "1 M completed": """
        INSERT INTO workqueue_item (queue, key, enqueued_at, available_at, completed_at)
        SELECT 'items', 'c' || n, now() - interval '1 hour', now() - interval '1 hour', now()
        FROM generate_series(1, {rows}) n""",
}
SNAPSHOT = "after 500 k under a held snapshot"
ROWS = 1_000_000


def run(arena: Arena, results: Results, round_: int, scale: float) -> None:
    """Time claims in each of the surroundings."""
    if arena.contestant.adapter != "ours_items":
        return
    setup = arena.contestant.setup("defaults")
    rows, seconds = int(ROWS * scale), SECONDS * min(1, scale)

    def measure(name: str, database: str, churn: int = 0) -> None:
        try:
            answer = arena.call("claim_cost", setup, database, seconds=seconds, churn=churn)
        except Failed as failure:
            results.fail(NAME, arena.contestant.name, name, str(failure))
            return
        for variant in ("p50", "p99", SHARE, "rescan"):
            if answer[variant] is not None:
                results.add(Key(NAME, name, "defaults", variant), round_, answer[variant])

    for name, statement in SURROUNDINGS.items():
        measure(name, arena.copy(surrounded(arena, setup, name, statement, rows)))
    database = arena.database(setup)
    with held_snapshot(arena, database):
        measure(SNAPSHOT, database, churn=rows // 2)


def surrounded(arena: Arena, setup: Setup, name: str, statement: str, rows: int) -> str:
    """A database with these rows in it."""

    def fill(database: str) -> None:
        with arena.server.connect(database) as connection:
            connection.execute(statement.format(rows=rows))

    return arena.made(f"{list(SURROUNDINGS).index(name)}_{rows}_rows", setup, fill)
