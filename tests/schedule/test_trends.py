"""Trends of the cluster: numbers by interval."""

from hypothesis import given
from hypothesis import strategies as st

from alignup.schedule.trends import INTERVAL, INTERVALS, PodCountHistory, Trends


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


def test_a_timeline_has_the_highest_value_of_each_interval():
    timeline = PodCountHistory(100.0)
    for seconds, value in ((1, 2), (2, 9), (3, 4), (25, 1), (26, 0)):
        timeline.add(100.0 + seconds, {"waiting": value})

    assert timeline.series("waiting", 145.0) == [9, 4, 4, 0, 0]
    assert timeline.starts(145.0) == [-45, -35, -25, -15, -5]


@given(st.lists(st.tuples(st.floats(0, 500), st.integers(0, 100)), min_size=1), st.sampled_from([2, 4, 10]))
def test_a_full_timeline_keeps_its_highest_value_and_its_size(samples, intervals):
    timeline, now = PodCountHistory(0.0, intervals=intervals), 0.0
    for seconds, value in samples:
        now += seconds
        timeline.add(now, {"waiting": value})

    series = timeline.series("waiting", now)
    assert len(series) == len(timeline.starts(now)) <= intervals
    assert max(series) == max(value for _, value in samples)
    assert series[-1] >= samples[-1][1]
    assert timeline.series("waiting", now + 1e6)[-1] == samples[-1][1]
