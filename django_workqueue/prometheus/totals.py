"""Counters that only grow, made of minute counters, which are written by many processes and pruned in the end.

Knows nothing of Prometheus.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from django_workqueue import histogram
from django_workqueue.sql.minutes import COUNTERS

KEPT = 15 * 60  # seconds for which a minute is remembered


class Total:
    """What was counted of one queue, or of one kind of its jobs, since the first look."""

    __slots__ = ("counters", "run", "wait")

    def __init__(self) -> None:
        self.counters = dict.fromkeys(COUNTERS, 0)
        self.wait = [0] * histogram.BUCKETS
        self.run = [0] * histogram.BUCKETS


class Totals:
    """The totals of one database. They begin with nothing: what was counted before the first look is not in them."""

    def __init__(self) -> None:
        self.by_kind: dict[tuple[str, str], Total] = {}
        self.since = 0  # the first minute that may still change
        self._seen: dict[tuple[int, str, str], tuple[list[int], list[int], list[int]]] = {}
        self._looked = False

    def add(self, rows: Sequence[tuple[Any, ...]]) -> None:
        """Take in the minutes from `since` on, by what they have grown."""
        for minute, queue, kind, *numbers, wait, run in rows:
            total = self.by_kind.setdefault((queue, kind), Total())
            seen = self._seen.get((minute, queue, kind), ([], [], []))
            self._seen[minute, queue, kind] = (numbers, wait, run)
            self.since = max(self.since, minute - 60)  # a minute may be added to a moment after its end
            if self._looked:
                grown = _grown(numbers, seen[0])
                for name, more in zip(COUNTERS, grown, strict=True):
                    total.counters[name] += more
                total.wait = histogram.merged(total.wait, _grown(wait, seen[1]))
                total.run = histogram.merged(total.run, _grown(run, seen[2]))
        self._looked = True
        self._seen = {key: seen for key, seen in self._seen.items() if key[0] >= self.since - KEPT}


def _grown(now: Sequence[int], before: Sequence[int]) -> list[int]:
    before = [*before, *[0] * (len(now) - len(before))]
    return [max(one - two, 0) for one, two in zip(now, before, strict=False)]
