"""What was measured, round by round, and what could not be.

Knows nothing of how it is measured or shown.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterable
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Key:
    """One cell of one table: who, with which settings, measured how."""

    scenario: str
    contestant: str
    setup: str
    variant: str


@dataclass
class Results:
    """Every value of every round under its key, with remarks and failures."""

    values: dict[Key, dict[int, float]] = field(default_factory=dict)
    failures: dict[tuple[str, str, str], str] = field(default_factory=dict)
    remarks: dict[tuple[str, str], list[str]] = field(default_factory=dict)

    def add(self, key: Key, round_: int, value: float) -> None:
        """Note one round's value."""
        self.values.setdefault(key, {})[round_] = value

    def fail(self, scenario: str, contestant: str, setup: str, reason: str) -> None:
        """Note that something was not measured; the first reason stands."""
        self.failures.setdefault((scenario, contestant, setup), reason)

    def remark(self, scenario: str, contestant: str, text: str) -> None:
        """Note what a reader should know of a figure, once."""
        known = self.remarks.setdefault((scenario, contestant), [])
        if text not in known:
            known.append(text)

    def keys(self, scenario: str) -> list[Key]:
        """What was measured in a scenario, in the order it was first measured."""
        return [key for key in self.values if key.scenario == scenario]

    def median(self, key: Key) -> float | None:
        """The middle of the rounds."""
        rounds = self.values.get(key)
        return statistics.median(rounds.values()) if rounds else None

    def best(self, keys: Iterable[Key], *, lowest: bool = False) -> Key | None:
        """The key with the best median."""
        measured = [key for key in keys if key in self.values]
        choose = min if lowest else max
        return choose(measured, key=lambda key: self.median(key) or 0.0) if measured else None

    def ratio(self, above: Key, below: Key) -> Ratio | None:
        """One against the other: the ratio of the medians, and its range over the rounds that have both."""
        upper, lower = self.median(above), self.median(below)
        if not upper or not lower:
            return None
        rounds = [
            value / self.values[below][round_]
            for round_, value in self.values[above].items()
            if self.values[below].get(round_)
        ]
        return Ratio(upper / lower, min(rounds, default=upper / lower), max(rounds, default=upper / lower))


@dataclass(frozen=True)
class Ratio:
    """How many times as much, with the lowest and highest of the rounds."""

    median: float
    low: float
    high: float
