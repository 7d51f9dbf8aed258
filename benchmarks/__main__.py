"""The command: `make bench`, or `python -m benchmarks` with the dependency group `bench` installed.

Parses, runs the rounds, prints the tables.
"""

from __future__ import annotations

import argparse
import os
import random
import signal
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

from benchmarks import report
from benchmarks.arena import Arena
from benchmarks.contestants import catalog
from benchmarks.installs import Unavailable
from benchmarks.processes import Failed
from benchmarks.results import Results
from benchmarks.scenarios import claims, drain, enqueue, latency, memory, partitions, snapshot, stats
from benchmarks.server import Server

SCENARIOS: dict[str, ModuleType] = {
    module.NAME: module for module in (drain, enqueue, latency, snapshot, claims, partitions, memory, stats)
}
RESULTS = Path(__file__).parent / ".results"


def main() -> int:
    """Measure what was asked for; 0 unless nothing could be."""
    options = arguments()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # leaving by the `with`s, which stop what runs
    began = time.monotonic()
    results, versions, unavailable = Results(), {}, {}
    with Server() as server:
        arenas = []
        for contestant in options.peers:
            say(f"installing {contestant.name}")
            try:
                arenas.append(arena := Arena(contestant, server))
                versions[contestant.name] = arena.version
            except Unavailable as reason:
                unavailable[contestant.name] = str(reason)
        for round_ in range(options.rounds):
            for name, arena in order(options.only, arenas, round_):
                measure(name, arena, results, round_, options.scale)
        text = report.markdown(
            results,
            scenarios={name: SCENARIOS[name] for name in options.only},
            versions=versions,
            unavailable=unavailable,
            server=server.version(),
            rounds=options.rounds,
            seconds=time.monotonic() - began,
            scale=options.scale,
        )
    RESULTS.mkdir(exist_ok=True)
    (RESULTS / "latest.md").write_text(text)
    print(text)
    return 0 if results.values else 1


def order(scenarios: list[str], arenas: list[Arena], round_: int) -> Iterator[tuple[str, Arena]]:
    """One round: scenario by scenario, everybody in each, in another order every time."""
    for name in scenarios:
        if round_ == 0 or not getattr(SCENARIOS[name], "ONCE", False):
            for arena in random.sample(arenas, len(arenas)):
                yield name, arena


def measure(name: str, arena: Arena, results: Results, round_: int, scale: float) -> None:
    """One scenario with one contestant; what fails is noted and the run goes on."""
    say(f"round {round_ + 1}: {name}, {arena.contestant.name}")
    try:
        SCENARIOS[name].run(arena, results, round_, scale)
    except Failed as failure:
        results.fail(name, arena.contestant.name, "", str(failure))
    finally:
        arena.discard()


def arguments() -> argparse.Namespace:
    """The command line; the environment variables of the make target are its defaults."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    env = os.environ.get
    parser.add_argument("--only", type=scenarios, default=env("ONLY") or ",".join(SCENARIOS), help="drain,enqueue,…")
    parser.add_argument("--peers", type=contestants, default=env("PEERS") or "", help="parts of names, comma-separated")
    parser.add_argument("--rounds", type=int, default=env("ROUNDS") or 3)
    parser.add_argument("--scale", type=float, default=env("SCALE") or 1.0, help="less work: 0.02 to try it out")
    return parser.parse_args()


def scenarios(text: str) -> list[str]:
    """The scenarios named."""
    names = [name.strip() for name in text.split(",") if name.strip()]
    unknown = [name for name in names if name not in SCENARIOS]
    if unknown:
        raise argparse.ArgumentTypeError(f"no scenario {unknown[0]!r}; there are {', '.join(SCENARIOS)}")
    return names


def contestants(text: str) -> list[catalog.Contestant]:
    """The contestants whose name contains one of the words, and us unless some of us are named; all for none."""
    words = [word.strip().lower() for word in text.split(",") if word.strip()]
    if not words:
        return list(catalog.everybody())
    found = [each for each in catalog.everybody() if any(word in each.name.lower() for word in words)]
    if not found:
        names = "; ".join(each.name for each in catalog.everybody())
        raise argparse.ArgumentTypeError(f"nobody is called {text!r}; there are: {names}")
    if all(each in catalog.peers() for each in found):
        return [*(each for each in catalog.everybody() if each.language == "ours"), *found]
    return found


def say(text: str) -> None:
    """Progress, beside the tables."""
    print(text, file=sys.stderr, flush=True)


if __name__ == "__main__":
    raise SystemExit(main())
