"""Pods that come and go, in the order of time."""

from math import inf, nan

import pytest
from hypothesis import given
from hypothesis import strategies as st

from alignup.align.errors import TraceError
from alignup.fleet.events import PodArrival, PodDeparture, arrivals, format_seconds, ordered
from tests.fleet.workloads import small, some, workloads

A, B = small("a"), small("b")


@pytest.mark.parametrize(
    ("events", "expected"),
    [
        pytest.param([], [], id="nothing happens"),
        pytest.param([PodArrival(2, A), PodArrival(1, B)], [PodArrival(1, B), PodArrival(2, A)], id="by time"),
        pytest.param(
            [PodArrival(1, B), PodArrival(1, A)], [PodArrival(1, B), PodArrival(1, A)], id="as written at one time"
        ),
        pytest.param(
            [PodArrival(0, A), PodArrival(1, B), PodDeparture(1, "a")],
            [PodArrival(0, A), PodDeparture(1, "a"), PodArrival(1, B)],
            id="departures first",
        ),
        pytest.param(
            [PodArrival(0, A), PodDeparture(1, "a"), PodArrival(1, A)],
            [PodArrival(0, A), PodDeparture(1, "a"), PodArrival(1, A)],
            id="a pod may come back",
        ),
        pytest.param(
            [PodDeparture(0, "a"), PodArrival(1, A)], [PodDeparture(0, "a"), PodArrival(1, A)], id="strangers may leave"
        ),
    ],
)
def test_events_happen_in_order(events, expected):
    assert list(ordered(events)) == expected


@pytest.mark.parametrize(
    ("events", "said"),
    [
        pytest.param(
            [PodArrival(0, A), PodArrival(2.5, A)],
            "pod a arrives at 2.5 s, but is there since 0 s",
            id="comes while it is there",
        ),
        pytest.param(
            [PodArrival(1, A), PodDeparture(1, "a")], "pod a arrives and leaves at 1 s", id="stays for no time"
        ),
        pytest.param([PodArrival(-1, A)], "-1 is no time", id="before the beginning"),
        pytest.param([PodArrival(nan, A)], "nan is no time", id="at no time"),
        pytest.param([PodDeparture(inf, "a")], "inf is no time", id="at the end of all time"),
    ],
)
def test_what_cannot_happen_is_refused(events, said):
    with pytest.raises(TraceError, match=said):
        ordered(events)


def test_pods_in_order_are_a_workload():
    assert arrivals([A, B], every=0.5) == (PodArrival(0.0, A), PodArrival(0.5, B))


@some
@given(workloads(max_pods=3), st.randoms(use_true_random=False))
def test_the_order_of_departures_in_a_file_never_matters(events, random):
    leaving = [event for event in events if isinstance(event, PodDeparture)]
    random.shuffle(leaving)
    coming = [event for event in events if isinstance(event, PodArrival)]

    assert ordered([*leaving, *coming]) == events


@pytest.mark.parametrize(("time", "shown"), [(0, "0 s"), (12.0, "12 s"), (0.25, "0.25 s"), (1e6, "1000000 s")])
def test_seconds_are_shown_plainly(time, shown):
    assert format_seconds(time) == shown
