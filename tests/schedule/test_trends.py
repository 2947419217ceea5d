"""Trends of the cluster: numbers by interval."""

from hypothesis import given
from hypothesis import strategies as st

from alignup.schedule.trends import INTERVAL, INTERVALS, Trends


def test_a_number_stays_until_it_is_sampled_again():
    trends = Trends()
    assert trends.series("waiting", 5.0) == []
    trends.add(5.0, {"waiting": 2, "placed": 10})
    trends.add(5.0 + 3 * INTERVAL, {"waiting": 7, "placed": 40})

    now = 5.0 + 4 * INTERVAL
    assert trends.series("waiting", now) == [2, 2, 2, 7, 7]
    assert trends.rates("placed", now) == [0, 0, 30 / INTERVAL, 0]
    assert trends.series("other", now) == [0] * 5


@given(st.lists(st.tuples(st.floats(0, 1e5), st.integers(0, 100)), min_size=1))
def test_the_last_sample_counts_and_old_ones_are_forgotten(samples):
    trends, now = Trends(), 0.0
    for seconds, value in samples:
        now += seconds
        trends.add(now, {"waiting": value})

    series = trends.series("waiting", now)
    assert series[-1] == samples[-1][1]
    assert len(series) <= INTERVALS
    assert all(rate >= 0 for rate in trends.rates("waiting", now))
