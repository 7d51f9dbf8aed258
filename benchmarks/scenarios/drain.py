"""How fast a backlog of no-op jobs is worked.

From the start of the first job to the moment when the contestant's own tables say that the last is finished, so
that a completion that is still buffered somewhere does not count. Process start-up is left out; the processes of a
run begin together. Every job must have run. Where a contestant is too slow for its backlog, what it did in eight
seconds counts.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable
from dataclasses import dataclass

from benchmarks.arena import Arena
from benchmarks.contestants.catalog import Setup
from benchmarks.processes import Failed, Workers
from benchmarks.results import Key, Results

NAME = "drain"
UNIT = "jobs/s"
CUT = 8.0
SETTLE = 20.0  # seconds from the last start to the last completion


Beside = Callable[[Arena, str], contextlib.AbstractContextManager[None]]


def nothing(_arena: Arena, _database: str) -> contextlib.AbstractContextManager[None]:
    """Nothing goes on beside the drain."""
    return contextlib.nullcontext()


@dataclass(frozen=True)
class Drained:
    """One drain: how many jobs in how long, when each started, and when the last was finished."""

    jobs: int
    seconds: float
    complete: bool
    repeats: int
    starts: list[int]
    ended: int


def run(arena: Arena, results: Results, round_: int, scale: float) -> None:
    """Drain with every setup and number of processes."""
    for setup in arena.contestant.setups:
        for processes in setup.processes:
            variant = "1 process" if processes == 1 else f"{processes} processes"
            key = Key(NAME, arena.contestant.name, setup.label, variant)
            try:
                drained = drain(arena, setup, jobs=max(20, int(setup.jobs * scale)), processes=processes)
            except Failed as failure:
                results.fail(NAME, arena.contestant.name, f"{setup.label}, {variant}", str(failure))
                continue
            results.add(key, round_, drained.jobs / drained.seconds)
            if drained.repeats:
                results.remark(NAME, arena.contestant.name, f"{drained.repeats} jobs of {setup.label} ran twice")


def drain(
    arena: Arena, setup: Setup, *, jobs: int, processes: int, cut: float = CUT, beside: Beside = nothing
) -> Drained:
    """Work a backlog down once, `beside` something that goes on in the same database."""
    database = arena.database(setup, jobs=jobs)
    with beside(arena, database), arena.workers(setup, database, size=jobs, processes=processes) as workers:
        workers.wait_started(1)
        complete = wait_worked(workers, jobs, cut)
        ended = time.monotonic_ns()
        if complete:
            ended = wait_finished(arena, database, workers)
            workers.wait_started(jobs, limit=5)  # as far as the meters are written
        starts = sorted(start for start in workers.starts() if start)
        runs = workers.runs()
    done = len([start for start in starts if start <= ended])
    return Drained(done, (ended - starts[0]) / 1e9, complete, max(0, runs - jobs), starts, ended)


def wait_worked(workers: Workers, jobs: int, cut: float) -> bool:
    """Return when nearly all jobs have started (True) or the time is up (False)."""
    deadline = time.monotonic() + cut
    while workers.runs() < jobs * 0.98:
        if time.monotonic() > deadline:
            return False
        time.sleep(0.01)
    return True


def wait_finished(arena: Arena, database: str, workers: Workers) -> int:
    """The monotonic nanosecond at which nothing is pending any more."""
    deadline = time.monotonic() + SETTLE
    with arena.server.connect(database) as connection:
        question = f"SELECT NOT EXISTS (SELECT FROM {arena.contestant.pending})"
        while connection.execute(question).fetchone() != (True,):
            if time.monotonic() > deadline:
                raise Failed(f"{arena.pending(database)} jobs are not finished: {workers.log()}")
            time.sleep(0.01)
        return time.monotonic_ns()
