"""What `stats(exact=False)` costs with 5,000,000 rows.

One round, ours only: 2 M ready, 1 M scheduled, 10 k leased, 2 M completed; 30 calls.
"""

from __future__ import annotations

from benchmarks.arena import Arena
from benchmarks.processes import Failed
from benchmarks.results import Key, Results

NAME = "stats"
UNIT = "ms"
ONCE = True
ROWS = 5_000_000
FILL = """
    INSERT INTO workqueue_item (queue, key, priority, attempts, available_at, lease_until, lease_token, completed_at)
    SELECT 'items', 's' || to_char(n, 'FM00000000'), n % 3, (n % 500 = 0)::int,
     now() - interval '1 hour' + n * interval '1 microsecond' + (n % 5 = 1)::int * interval '1 day',
     CASE WHEN n % 500 = 0 THEN now() + interval '1 day' ELSE 'epoch' END, (n % 500 = 0)::int * n,
     CASE WHEN n % 5 IN (2, 3) THEN now() END
    FROM generate_series(1, {rows}) n"""


def run(arena: Arena, results: Results, round_: int, scale: float) -> None:
    """Ask for the stats of a large table."""
    if arena.contestant.adapter != "ours_items":
        return
    setup = arena.contestant.setup("defaults")
    rows = int(ROWS * scale)

    def fill(database: str) -> None:
        with arena.server.connect(database) as connection:
            connection.execute(FILL.format(rows=rows))

    try:
        answer = arena.call("stats_cost", setup, arena.made(f"{rows}_stats", setup, fill), calls=30)
    except Failed as failure:
        results.fail(NAME, arena.contestant.name, "defaults", str(failure))
        return
    for variant in ("p50", "highest"):
        results.add(Key(NAME, arena.contestant.name, "exact=False", variant), round_, answer[variant])
