"""What 100 partitions cost: full cycles of a queue in the default partition, and of one among 100.

Ours only: enqueue, claim and complete of 500 at a time on one thread, items a second.
"""

from __future__ import annotations

from benchmarks.arena import Arena
from benchmarks.processes import Failed
from benchmarks.results import Key, Results

NAME = "partitions"
UNIT = "items/s"
SECONDS = 4.0
ONE, MANY = "one partition", "100 partitions"


def run(arena: Arena, results: Results, round_: int, scale: float) -> None:
    """Cycle in both."""
    if arena.contestant.adapter != "ours_items":
        return
    setup = arena.contestant.setup("defaults")

    def partition(database: str) -> None:
        arena.call("partition", setup, database, count=100)

    for variant in (ONE, MANY):
        try:
            template = arena.made("100_partitions", setup, partition) if variant == MANY else arena.filled(setup, 0)
            answer = arena.call("cycle", setup, arena.copy(template), seconds=SECONDS * min(1, scale))
        except Failed as failure:
            results.fail(NAME, arena.contestant.name, variant, str(failure))
            continue
        results.add(Key(NAME, arena.contestant.name, "defaults", variant), round_, answer["rate"])
