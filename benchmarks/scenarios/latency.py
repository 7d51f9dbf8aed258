"""How soon an idle worker starts a job: from the call of enqueue in another process to the start of the handler.

Twenty a second, jittered so that no poll is always or never hit. The first second warms up and is left out.
"""

from __future__ import annotations

from benchmarks.arena import Arena
from benchmarks.processes import Failed
from benchmarks.results import Key, Results

NAME = "latency"
UNIT = "ms"
INTERVAL = 0.05
PULSES = 140
WARM_UP = 20
PERCENTILES = {"p50": 0.50, "p95": 0.95, "p99": 0.99}


def run(arena: Arena, results: Results, round_: int, scale: float) -> None:
    """Pulse at one idle worker of the setup that waits best."""
    contestant = arena.contestant
    if contestant.latency is None:
        return
    setup = contestant.setup(contestant.latency)
    pulses = WARM_UP + max(20, int((PULSES - WARM_UP) * min(1, scale)))
    database = arena.database(setup)
    try:
        with arena.workers(setup, database, size=pulses) as workers:
            answer = arena.call("pulse", setup, database, count=pulses, interval=INTERVAL)
            workers.wait_started(pulses, limit=15)
            starts = workers.starts()
    except Failed as failure:
        results.fail(NAME, contestant.name, setup.label, str(failure))
        return
    pairs = list(zip(answer["sent"], starts, strict=True))[WARM_UP:]
    milliseconds = sorted((start - sent) / 1e6 for sent, start in pairs)
    for variant, share in PERCENTILES.items():
        value = milliseconds[min(len(milliseconds) - 1, int(len(milliseconds) * share))]
        results.add(Key(NAME, contestant.name, setup.label, variant), round_, value)
