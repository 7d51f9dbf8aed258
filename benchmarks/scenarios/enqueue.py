"""How fast jobs are enqueued, with no worker running.

Singly from 1, 16 and 32 threads of one process (coroutines over as many connections, where the API is async), and in
thousands from one thread. What was acknowledged must be there.
"""

from __future__ import annotations

from benchmarks.arena import Arena
from benchmarks.contestants.catalog import Setup
from benchmarks.processes import Failed
from benchmarks.results import Key, Results

NAME = "enqueue"
UNIT = "jobs/s"
SECONDS = 1.2
THREADS = (1, 16, 32)
MANY = "by thousands"


def run(arena: Arena, results: Results, round_: int, scale: float) -> None:
    """Enqueue with each of the setups that differ in it."""
    contestant = arena.contestant
    ways = [("enqueue", threads, f"{threads} thread{'s' * (threads > 1)}") for threads in THREADS]
    if contestant.bulk:
        ways.append(("enqueue_many", 1, MANY))
    for label in contestant.enqueuing:
        for verb, threads, variant in ways:
            try:
                rate = enqueued(arena, contestant.setup(label), verb, threads, SECONDS * min(1, scale))
            except Failed as failure:
                results.fail(NAME, contestant.name, f"{label}, {variant}", str(failure))
            else:
                results.add(Key(NAME, contestant.name, label, variant), round_, rate)


def enqueued(arena: Arena, setup: Setup, verb: str, threads: int, seconds: float) -> float:
    """Jobs a second, all of them found in the table afterwards."""
    database = arena.database(setup)
    answer = arena.call(verb, setup, database, seconds=seconds, concurrency=threads)
    if (there := arena.pending(database)) != answer["count"]:
        raise Failed(f"{answer['count']} acknowledged, {there} there")
    return float(answer["rate"])
