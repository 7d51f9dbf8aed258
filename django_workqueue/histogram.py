"""How durations are counted: the bounds of the buckets, and what quantiles the counts give.

The one place that knows what a position in `wait_histogram` and `run_histogram` means. Knows nothing of tables,
clocks or threads.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Sequence
from itertools import zip_longest

# Upper bounds in µs, each inclusive as Prometheus has it: two to the octave from 0.1 ms to five days, and one bucket
# past the last. Two neighbours differ by 41 %, and within a bucket a quantile is interpolated: wrong by a tenth or so.
FIRST = 100
PER_OCTAVE = 2
BOUNDS: tuple[int, ...] = tuple(round(FIRST * 2 ** (step / PER_OCTAVE)) for step in range(65))
BUCKETS = len(BOUNDS) + 1


def bucket(microseconds: float) -> int:
    """The position at which a duration is counted."""
    return bisect_left(BOUNDS, microseconds)


def counted(durations: Iterable[float]) -> list[int]:
    """The counts of these durations (µs), without the empty buckets at the end: as the tables have them."""
    counts = [0] * BUCKETS
    for duration in durations:
        counts[bucket(duration)] += 1
    return trimmed(counts)


def trimmed(counts: Sequence[int]) -> list[int]:
    """The counts without the empty buckets at the end."""
    end = len(counts)
    while end and not counts[end - 1]:
        end -= 1
    return list(counts[:end])


def merged(*histograms: Sequence[int]) -> list[int]:
    """The sums by bucket of counts of any length."""
    return [sum(column) for column in zip_longest(*histograms, fillvalue=0)]


def quantile(counts: Sequence[int], fraction: float) -> float | None:
    """The duration in µs that `fraction` (0 to 1) of what was counted did not exceed; None where nothing was.

    Within a bucket it is interpolated, on a scale of ratios as the bounds are. What is past the last bound counts as
    that bound.
    """
    total = sum(counts)
    if total <= 0:
        return None
    wanted = fraction * total
    below, position, count = 0, 0, 0
    for position, count in enumerate(counts):  # noqa: B007 - they are where the loop ends
        if count and below + count >= wanted:
            break
        below += count
    if position >= len(BOUNDS):
        return float(BOUNDS[-1])
    upper = BOUNDS[position]
    if position == 0:
        return upper * (wanted - below) / count
    lower = BOUNDS[position - 1]
    return float(lower * (upper / lower) ** ((wanted - below) / count))
