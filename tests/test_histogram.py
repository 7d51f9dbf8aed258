"""Durations counted in buckets give quantiles that are right to a fifth, and add up."""

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from django_workqueue import histogram

DURATIONS = st.lists(st.integers(0, 10**12), max_size=50)


def test_a_bound_is_counted_in_the_bucket_it_closes() -> None:
    for position, bound in enumerate(histogram.BOUNDS):
        assert histogram.bucket(bound) == position
        assert histogram.bucket(bound + 1) == position + 1


def test_bounds_rise_and_reach_from_a_tenth_of_a_millisecond_to_days() -> None:
    assert list(histogram.BOUNDS) == sorted(set(histogram.BOUNDS))
    assert histogram.BOUNDS[0] == 100
    assert histogram.BOUNDS[-1] > 4 * 24 * 3600 * 1_000_000


@given(DURATIONS, DURATIONS)
def test_histograms_add_up(one: list[int], other: list[int]) -> None:
    assert histogram.merged(histogram.counted(one), histogram.counted(other)) == histogram.counted(one + other)


@pytest.mark.parametrize("fraction", [0.5, 0.95, 0.99])
@pytest.mark.parametrize("scale", [1_000, 1_000_000, 1_000_000_000])
def test_a_quantile_is_right_to_a_fifth(fraction: float, scale: int) -> None:
    durations = sorted(random.Random(7).lognormvariate(0, 1) * scale for _ in range(20_000))
    exact = durations[int(fraction * len(durations))]
    estimated = histogram.quantile(histogram.counted(durations), fraction)
    assert estimated == pytest.approx(exact, rel=0.2)


def test_there_is_no_quantile_of_nothing() -> None:
    assert histogram.quantile([], 0.5) is None
    assert histogram.quantile([0, 0], 0.5) is None


def test_what_is_past_the_last_bound_counts_as_that_bound() -> None:
    assert histogram.quantile(histogram.counted([10**15]), 0.5) == histogram.BOUNDS[-1]
