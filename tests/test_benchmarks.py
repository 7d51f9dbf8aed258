"""The benchmarks: that their arithmetic is right, and that the harness still measures the engine as it stands."""

import os
import subprocess
import sys
from pathlib import Path

from benchmarks import goals
from benchmarks.contestants import catalog
from benchmarks.results import Key, Ratio, Results
from benchmarks.scenarios import drain, snapshot

ROOT = Path(__file__).parent.parent


def drained(contestant, setup, *rates):
    key = Key(drain.NAME, contestant.name, setup, "1 process")
    return key, dict(enumerate(rates))


def test_a_ratio_is_of_the_medians_and_ranges_over_the_rounds():
    results = Results()
    results.values = dict(
        [drained(catalog.ITEMS, "defaults", 10, 40, 30), drained(catalog.PGQUEUER, "best", 10, 10, 20)]
    )

    ours, theirs = results.keys(drain.NAME)

    assert results.ratio(ours, theirs) == Ratio(3.0, 1.0, 4.0)


def test_a_goal_is_against_the_best_peer():
    results = Results()
    results.values = dict(
        [
            drained(catalog.ITEMS, "defaults", 30.0),
            drained(catalog.PGQUEUER, "best", 10.0),
            drained(catalog.GRAPHILE_WORKER, "best", 15.0),
        ]
    )

    line = goals.lines(results)[0]

    assert (line.against, line.ratio, line.met) == ("graphile-worker (best)", Ratio(2.0, 2.0, 2.0), True)


def test_what_was_not_measured_is_neither_met_nor_missed():
    results = Results()
    results.values = dict([drained(catalog.ITEMS, "defaults", 30.0)])

    assert {line.met for line in goals.lines(results)} == {None}


def test_the_edges_of_a_drain_lie_between_batches():
    starts = [batch * 1_000_000 + at for batch in range(20) for at in range(30)]

    assert snapshot.boundary(starts, 100) == 90
    assert snapshot.boundary(starts, 500) == 510


def test_the_harness_measures_our_statements():
    command = [
        sys.executable,
        "-m",
        "benchmarks",
        "--only",
        "drain",
        "--peers",
        "bare",
        "--rounds",
        "1",
        "--scale",
        "0.01",
    ]

    done = subprocess.run(command, check=False, cwd=ROOT, env=os.environ, capture_output=True, text=True, timeout=100)

    assert done.returncode == 0, done.stderr
    for contestant in (catalog.BARE_ITEMS, catalog.BARE_JOBS):
        assert f"| {contestant.name} | defaults | " in done.stdout, done.stdout
