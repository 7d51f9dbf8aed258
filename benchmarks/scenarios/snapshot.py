"""What a transaction that stays open elsewhere costs: nothing that is worked meanwhile can be vacuumed.

A backlog is drained while another session holds a snapshot; how fast the last 10,000 jobs were started is compared
with the first 10,000. Ours with its defaults, 200,000; the peers with their best settings and what they can do.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from benchmarks.arena import Arena
from benchmarks.processes import Failed
from benchmarks.results import Key, Results
from benchmarks.scenarios import drain

NAME = "snapshot"
UNIT = "jobs/s"
FIRST, LAST = "first 10 k", "last 10 k"
EDGE = 10_000
LIMIT = 60.0


def run(arena: Arena, results: Results, round_: int, scale: float) -> None:
    """Drain under a held snapshot once."""
    contestant = arena.contestant
    if contestant.snapshot is None:
        return
    label, jobs = contestant.snapshot
    setup, jobs = contestant.setup(label), max(100, int(jobs * scale))
    edge = min(EDGE, jobs // 4)
    try:
        drained = drain.drain(arena, setup, jobs=jobs, processes=1, cut=LIMIT, beside=held_snapshot)
    except Failed as failure:
        results.fail(NAME, contestant.name, label, str(failure))
        return
    if not drained.complete:
        results.fail(NAME, contestant.name, label, f"{drained.jobs} of {jobs} in {LIMIT:.0f} s")
        return
    starts = drained.starts
    one, other = boundary(starts, edge), boundary(starts, len(starts) - edge)
    first = one / (starts[one] - starts[0]) * 1e9
    last = (len(starts) - 1 - other) / (starts[-1] - starts[other]) * 1e9
    for variant, value in ((FIRST, first), (LAST, last), ("last / first", last / first)):
        results.add(Key(NAME, contestant.name, label, variant), round_, value)


def boundary(starts: list[int], about: int) -> int:
    """The job nearest to a place with which a batch begins: behind a pause that is long for the neighbourhood."""
    reach = min(about, len(starts) - about) // 3
    pauses = {at: starts[at] - starts[at - 1] for at in range(about - reach, about + reach)}
    longest = max(pauses.values())
    return min((at for at, pause in pauses.items() if 2 * pause >= longest), key=lambda at: abs(at - about))


@contextlib.contextmanager
def held_snapshot(arena: Arena, database: str) -> Iterator[None]:
    """A session that looked once and keeps its transaction open."""
    with arena.server.connect(database) as connection:
        connection.execute("BEGIN ISOLATION LEVEL REPEATABLE READ")
        connection.execute("SELECT count(*) FROM pg_class")
        yield
        connection.execute("ROLLBACK")
