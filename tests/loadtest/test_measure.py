"""Histograms: quantiles near the true ones, two add up to one, a file holds them."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cardwise.loadtest.measure import BUCKETS, Stored, histogram_of, merged, restored

times = st.lists(st.floats(1e-6, 3600.0), min_size=1, max_size=300)


@given(times, st.sampled_from([0.5, 0.9, 0.99, 0.999]))
def test_a_quantile_is_within_half_a_percent(values, q):
    true = np.sort(values)[int(np.ceil(q * len(values) - 1e-9)) - 1]
    assert histogram_of(values).quantile_s(q) == pytest.approx(true, rel=0.0051)


@given(times, times)
def test_two_merged_are_as_one_of_all(some, others):
    both = merged([histogram_of(some), histogram_of(others)])
    whole = histogram_of(some + others)
    assert np.array_equal(both.counts, whole.counts)
    assert both.quantiles().p99 == whole.quantiles().p99


@given(times)
def test_a_stored_one_comes_back(values):
    made = histogram_of(values)
    assert restored(made.stored()).quantiles() == made.quantiles()


def test_of_nothing_there_are_no_quantiles():
    assert histogram_of([]).quantiles() is None
    assert restored(histogram_of([]).stored()).count == 0


def test_what_is_out_of_range_counts_at_the_ends():
    made = histogram_of([-1.0, 0.0, 1e9])
    assert made.count == 3
    assert made.counts[0] == 2
    assert made.counts[BUCKETS - 1] == 1


@pytest.mark.parametrize("buckets", [[-1], [BUCKETS], [1, 2]])
def test_a_wrong_one_is_refused(buckets):
    with pytest.raises(ValueError, match="bucket"):
        restored(Stored(buckets, [1], 1.0, 1.0, 1.0))
