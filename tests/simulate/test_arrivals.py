from math import inf, nan

import pytest
from hypothesis import given
from hypothesis import strategies as st

from alignup.align.errors import TraceError
from alignup.simulate.arrivals import PodArrival, PodDeparture, arrivals, format_seconds, ordered
from tests.simulate.workloads import small, some, workloads

A, B = small("a"), small("b")


@pytest.mark.parametrize(
    ("events", "expected"),
    [
        pytest.param([], [], id="no events"),
        pytest.param([PodArrival(2, A), PodArrival(1, B)], [PodArrival(1, B), PodArrival(2, A)], id="by time"),
        pytest.param(
            [PodArrival(1, B), PodArrival(1, A)],
            [PodArrival(1, B), PodArrival(1, A)],
            id="arrivals at the same time keep their order",
        ),
        pytest.param(
            [PodArrival(0, A), PodArrival(1, B), PodDeparture(1, "a")],
            [PodArrival(0, A), PodDeparture(1, "a"), PodArrival(1, B)],
            id="departures first",
        ),
        pytest.param(
            [PodArrival(0, A), PodDeparture(1, "a"), PodArrival(1, A)],
            [PodArrival(0, A), PodDeparture(1, "a"), PodArrival(1, A)],
            id="a pod may return",
        ),
        pytest.param(
            [PodDeparture(0, "a"), PodArrival(1, A)],
            [PodDeparture(0, "a"), PodArrival(1, A)],
            id="an unknown pod may depart",
        ),
    ],
)
def test_events_are_sorted(events, expected):
    assert list(ordered(events)) == expected


@pytest.mark.parametrize(
    ("events", "message"),
    [
        pytest.param(
            [PodArrival(0, A), PodArrival(2.5, A)],
            "pod a arrives at 2.5 s but is present since 0 s",
            id="arrives twice",
        ),
        pytest.param(
            [PodArrival(1, A), PodDeparture(1, "a")], "pod a arrives and departs at 1 s", id="a zero lifetime"
        ),
        pytest.param([PodArrival(-1, A)], "-1 is not a time", id="a negative time"),
        pytest.param([PodArrival(nan, A)], "nan is not a time", id="not a number"),
        pytest.param([PodDeparture(inf, "a")], "inf is not a time", id="infinity"),
    ],
)
def test_inconsistent_events_are_rejected(events, message):
    with pytest.raises(TraceError, match=message):
        ordered(events)


def test_arrivals_are_evenly_spaced():
    assert arrivals([A, B], every=0.5) == (PodArrival(0.0, A), PodArrival(0.5, B))


@some
@given(workloads(max_pods=3), st.randoms(use_true_random=False))
def test_the_order_of_departures_does_not_matter(events, random):
    leaving = [event for event in events if isinstance(event, PodDeparture)]
    random.shuffle(leaving)
    coming = [event for event in events if isinstance(event, PodArrival)]

    assert ordered([*leaving, *coming]) == events


@pytest.mark.parametrize(("time", "shown"), [(0, "0 s"), (12.0, "12 s"), (0.25, "0.25 s"), (1e6, "1000000 s")])
def test_format_seconds(time, shown):
    assert format_seconds(time) == shown
