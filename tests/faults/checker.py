"""The checker: reads a history and what the tables hold at the end, and decides whether every promise was kept.

lost        an acknowledged enqueue without a completed run that started after it was asked for
twice       a key or job that two processes ran at once, though the first one's lease was alive
unfinished  a job without exactly one terminal outcome, or an item that is still waiting, leased or in the inbox
afterwards  a job run again after a run of it had completed and nothing had happened to that run's process
attempts    a delivery beyond `max_attempts`
overtaken   an item started long before another of its priority that was acknowledged long before it
"""

from __future__ import annotations

from bisect import bisect_left
from collections import defaultdict
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import psycopg

from .history import History, Run

LEFT = """
    SELECT 'item ' || queue || ' ' || key, lease_until > 'epoch' AS leased
      FROM workqueue_item WHERE queue = ANY(%(queues)s) AND completed_at IS NULL
    UNION ALL
    SELECT 'job ' || queue || ' ' || id, lease_until > 'epoch'
      FROM workqueue_job WHERE queue = ANY(%(queues)s) AND outcome IS NULL
    UNION ALL
    SELECT 'inbox ' || queue || ' ' || key, false FROM workqueue_inbox WHERE queue = ANY(%(queues)s)
"""


@dataclass(frozen=True)
class Rules:
    """What a scenario leaves to be promised."""

    max_attempts: int = 1000
    excused: frozenset[int] = frozenset()  # processes that were stopped or cut off for longer than their leases
    patience: float | None = None  # seconds within which nothing overtakes; None where faults make it meaningless
    dead: bool = False  # whether a job may end dead instead of completed
    afterwards: bool = False  # whether the faults can lose a completion on its way to the server


@dataclass
class Findings:
    broken: dict[str, list[str]] = field(default_factory=lambda: defaultdict(list))
    asked: int = 0
    unacknowledged: int = 0
    runs: int = 0
    duplicates: int = 0
    interrupted: int = 0

    def figures(self) -> dict[str, Any]:
        return {
            "items": self.asked,
            "unacknowledged": self.unacknowledged,
            "runs": self.runs,
            "interrupted": self.interrupted,
            "duplicates": self.duplicates,
        }


def check(history: History, server: psycopg.Connection[Any], rules: Rules | None = None) -> Findings:
    rules = rules or Rules()
    found = Findings()
    by_name: dict[tuple[str, str], list[Run]] = defaultdict(list)
    for run in sorted(history.runs, key=lambda run: run.started):
        by_name[run.queue, run.name].append(run)
    _count(history, by_name, found)
    _nothing_lost(history, by_name, rules, found)
    for runs in by_name.values():
        _one_at_a_time(runs, rules, found)
        found.broken["attempts"] += [str(run) for run in runs if run.attempt > rules.max_attempts]
    _everything_over(history, server, rules, found)
    if rules.patience is not None:
        _nobody_overtaken(history, by_name, rules.patience, found)
    found.broken = {promise: broken for promise, broken in found.broken.items() if broken}
    return found


def _count(history: History, by_name: dict[tuple[str, str], list[Run]], found: Findings) -> None:
    found.asked = sum(ask.acked is not None for ask in history.asks)
    found.unacknowledged = len(history.asks) - found.asked
    found.runs = len(history.runs)
    found.interrupted = sum(run.ended is None for run in history.runs)
    asked: dict[tuple[str, str], int] = defaultdict(int)
    for ask in history.asks:
        asked[ask.queue, ask.name] += 1
    for name, runs in by_name.items():
        found.duplicates += max(0, sum(run.outcome == "ok" for run in runs) - asked[name])


def _nothing_lost(history: History, by_name: dict[tuple[str, str], list[Run]], rules: Rules, found: Findings) -> None:
    good = ("ok", "permanent") if rules.dead else ("ok",)
    started = {name: [run.started for run in runs if run.outcome in good] for name, runs in by_name.items()}
    for ask in history.asks:
        if ask.acked is None:
            continue
        starts = started.get((ask.queue, ask.name), [])
        if bisect_left(starts, ask.began) == len(starts) and not rules.dead:
            found.broken["lost"].append(f"{ask} ran at {starts}")


def _one_at_a_time(runs: list[Run], rules: Rules, found: Findings) -> None:
    of_job: dict[int | None, list[Run]] = defaultdict(list)
    for run in runs:
        of_job[run.job].append(run)
    for job, same in of_job.items():
        for first, second in pairwise(same):
            if first.pid in rules.excused:
                continue
            if first.ended is not None and first.ended > second.started:
                found.broken["twice"].append(f"{first} and {second}")
            elif job is not None and first.outcome == "ok" and not rules.afterwards:
                found.broken["afterwards"].append(f"{first} and {second}")


def _everything_over(history: History, server: psycopg.Connection[Any], rules: Rules, found: Findings) -> None:
    queues = sorted({ask.queue for ask in history.asks})
    left = server.execute(LEFT, {"queues": queues}).fetchall()
    found.broken["unfinished"] += [f"{what}{', leased' if leased else ''}" for what, leased in left]
    rows = server.execute(
        "SELECT id, outcome, finished_at IS NOT NULL FROM workqueue_job WHERE queue = ANY(%s)", [queues]
    ).fetchall()
    outcomes = {job: outcome for job, outcome, finished in rows if finished}
    allowed = ("completed", "dead") if rules.dead else ("completed",)
    for ask in history.asks:
        if ask.acked is not None and ask.job is not None and outcomes.get(ask.job) not in allowed:
            found.broken["unfinished"].append(f"{ask} is {outcomes.get(ask.job)}")
    ran_well = {run.job for run in history.runs if run.job is not None and run.outcome == "ok"}
    found.broken["unfinished"] += [
        f"job {job} is completed without a run that was"
        for job, outcome in outcomes.items()
        if outcome == "completed" and job not in ran_well
    ]


def _nobody_overtaken(
    history: History, by_name: dict[tuple[str, str], list[Run]], patience: float, found: Findings
) -> None:
    """Of the first runs, in the order of their starts: who was asked for long before one that had started long ago."""
    first_asked: dict[tuple[str, str], Any] = {}
    for ask in sorted(history.asks, key=lambda ask: ask.began):
        first_asked.setdefault((ask.queue, ask.name), ask)
    groups: dict[tuple[str, int], list[tuple[float, Any]]] = defaultdict(list)
    for name, runs in by_name.items():
        if (ask := first_asked.get(name)) is not None and ask.acked is not None:
            groups[ask.queue, ask.priority].append((runs[0].started, ask))
    for started in groups.values():
        started.sort(key=lambda pair: pair[0])
        newest, behind = 0.0, 0
        for at, ask in started:
            while started[behind][0] < at - patience:
                newest = max(newest, started[behind][1].began)
                behind += 1
            if ask.acked < newest - patience:
                found.broken["overtaken"].append(f"{ask} started at {at}, {newest - ask.acked:.1f} s behind")
