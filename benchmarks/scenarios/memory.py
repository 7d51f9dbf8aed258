"""Whether a worker grows: its memory after 10,000 items and after 1,000,000.

One round, ours only: one worker command with its defaults, all its processes, unshared and shared memory counted once
(PSS).
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

from benchmarks.arena import Arena
from benchmarks.processes import Failed, Workers
from benchmarks.results import Key, Results
from benchmarks.scenarios.drain import wait_finished

NAME = "memory"
UNIT = "MiB"
ONCE = True
FEW, MANY = 10_000, 1_000_000
AFTER_FEW, AFTER_MANY = "after 10 k", "after 1 M"
LIMIT = 120.0


def run(arena: Arena, results: Results, round_: int, scale: float) -> None:
    """Let one worker work both."""
    if arena.contestant.adapter not in {"ours_items", "ours_jobs"}:
        return
    setup = arena.contestant.setup("defaults")
    few, many = max(100, int(FEW * scale)), max(200, int(MANY * scale))
    database = arena.database(setup)
    try:
        with arena.workers(setup, database, size=0) as workers:
            for variant, jobs, total in ((AFTER_FEW, few, few), (AFTER_MANY, many - few, many)):
                arena.call("fill", setup, database, count=jobs)
                workers.wait_runs(total, limit=LIMIT)
                wait_finished(arena, database, workers)
                results.add(Key(NAME, arena.contestant.name, "defaults", variant), round_, memory(workers))
    except Failed as failure:
        results.fail(NAME, arena.contestant.name, "defaults", str(failure))


def memory(workers: Workers) -> float:
    """What the workers and their children hold, in MiB."""
    return sum(pss(pid) for process in workers.processes for pid in family(process.pid)) / 1024


def family(pid: int) -> Iterator[int]:
    """A process and all its descendants."""
    yield pid
    for thread in Path(f"/proc/{pid}/task").iterdir():
        for child in (thread / "children").read_text().split():
            yield from family(int(child))


def pss(pid: int) -> int:
    """Its proportional set size in KiB."""
    found = re.search(r"^Pss: +(\d+) kB", Path(f"/proc/{pid}/smaps_rollup").read_text(), re.MULTILINE)
    return int(found[1]) if found else 0
