"""Results of selectors: computed once, in slices, within budgets of claims and namespaces."""

import pytest

from alignup.align.claims.resource_claims import DeviceId, SliceDevice
from alignup.kubernetes.manifests.device_selectors import SelectorError, select
from alignup.schedule import selector_results
from alignup.schedule.selector_results import (
    CLAIM_SECONDS,
    NAMESPACE_SECONDS,
    PERIOD,
    SEARCH_SECONDS,
    SLICE_SECONDS,
    PendingSelectorError,
    SelectorBudgetError,
    SelectorResults,
)

CLAIM = ("ml", ("gpus",))
DEVICES = tuple(
    SliceDevice(DeviceId("gpu.example.com", "a", f"gpu-{number}"), {"gpu.example.com/serial": number})
    for number in range(100)
)
SELECTORS = ('device.attributes["gpu.example.com"].serial < 50',)


class Clock:
    """A clock that a look at it advances."""

    def __init__(self, step):
        self.now, self.step = 0.0, step

    def __call__(self):
        self.now += self.step
        return self.now


def results(clock, **options):
    reports: list[object] = []
    made = SelectorResults(reports.append, **options)
    made.clock = clock
    return made, reports


def match_all(made, payer=CLAIM, selectors=SELECTORS):
    return [made.match(payer, selectors, device, node="a", devices=DEVICES) for device in DEVICES]


def test_a_selector_is_computed_once_for_equal_devices():
    clock = Clock(0.001)
    made, _ = results(clock)
    assert match_all(made) == [True] * 50 + [False] * 50
    spent = clock.now

    other = SliceDevice(DeviceId("gpu.example.com", "b", "gpu-7"), {"gpu.example.com/serial": 7})
    assert made.match(("other", ()), SELECTORS, other)
    assert match_all(made, ("other", ())) == match_all(made)
    assert clock.now == spent


def test_a_decision_waits_for_one_slice_and_the_rest_is_computed_in_slices():
    clock, pended = Clock(SLICE_SECONDS / 8), []
    made, _ = results(clock, pended=lambda: pended.append(clock.now))
    with pytest.raises(PendingSelectorError, match="are still being evaluated"):
        match_all(made)
    assert pended == [clock.now]
    assert clock.now <= 5 * SLICE_SECONDS

    slices = 0
    while not made.compute():
        slices += 1
        clock.now += SLICE_SECONDS
        assert slices < 100
    assert slices > 5
    assert match_all(made) == [True] * 50 + [False] * 50


def test_a_claim_that_has_used_up_its_time_is_unknown_and_others_are_not():
    clock = Clock(CLAIM_SECONDS / 50)
    made, reports = results(clock)
    for _ in range(2):
        with pytest.raises(SelectorBudgetError, match="of these claims take more than 10 s of computing in 10 minutes"):
            match_all(made)
    assert reports == [CLAIM]
    assert made.match(CLAIM, SELECTORS, DEVICES[0])  # what is computed stays known
    assert made.match(("ml", ("others",)), SELECTORS, DEVICES[-1]) is False

    clock.now += PERIOD
    clock.step = 0.0
    assert match_all(made) == [True] * 50 + [False] * 50


def test_a_namespace_has_a_budget_for_all_its_claims():
    clock = Clock(CLAIM_SECONDS / 3)
    made, reports = results(clock)

    def match_for_claims():
        return [made.match(("ml", number), SELECTORS, device) for number, device in enumerate(DEVICES)]

    with pytest.raises(SelectorBudgetError, match="of the claims of namespace ml take more than 60 s"):
        match_for_claims()
    assert len(reports) == 1
    assert NAMESPACE_SECONDS <= clock.now <= 6 * NAMESPACE_SECONDS

    assert made.match(("other", 1), SELECTORS, DEVICES[0])


def test_a_selector_that_fails_on_a_device_keeps_the_reason_and_the_others_are_computed():
    made, _ = results(clock := Clock(SLICE_SECONDS), pended=lambda: None)
    failing = ('device.attributes["gpu.example.com"].serial < 99 || device.attributes["none"].size == 1',)
    with pytest.raises(PendingSelectorError):
        match_all(made, selectors=failing)
    clock.step = 0.0
    while not made.compute():
        clock.now += SLICE_SECONDS

    assert made.match(CLAIM, failing, DEVICES[98])
    with pytest.raises(SelectorError, match="fails for device"):
        made.match(CLAIM, failing, DEVICES[99])


def searching(cost):
    """Results, a search of 20 devices that takes *cost* seconds, and the names of those who were reported."""
    made, reports = results(Clock(0.0), pended=lambda: None)
    made.cpu_clock = cpu_clock = Clock(0.0)

    def search(namespace="ml"):
        def find():
            cpu_clock.now += cost
            return made.match((namespace, "claim"), SELECTORS, DEVICES[0])

        return made.search(namespace, 20, find)

    return made, search, reports


def test_a_selector_that_raises_anything_ends_no_slice(monkeypatch):
    """The decision on its claim raises it again, where it is counted."""

    def fail(selector, device):
        if device is DEVICES[-1]:
            raise RecursionError("too deep")
        return select(selector, device)

    monkeypatch.setattr(selector_results, "select", fail)
    made, _ = results(Clock(SLICE_SECONDS / 8), pended=lambda: None)
    with pytest.raises(PendingSelectorError):
        match_all(made)
    made.clock.now += 100
    while not made.compute():
        made.clock.now += SLICE_SECONDS

    with pytest.raises(RecursionError, match="too deep"):
        match_all(made)
    assert made.match(CLAIM, SELECTORS, DEVICES[0])


def test_searches_that_most_claims_need_take_no_time_of_a_budget():
    _, search, reports = searching(cost=0.0002)

    assert all(search() for _ in range(100_000))
    assert not reports


def test_a_namespace_has_a_budget_for_long_searches_and_others_go_on():
    made, search, reports = searching(cost=SEARCH_SECONDS / 10)
    for _ in range(11):
        search()

    message = "searching devices for the claims of namespace ml takes more than 1 s of computing in 10 minutes"
    for _ in range(2):
        with pytest.raises(SelectorBudgetError, match=message):
            search()
    assert search("other")
    assert reports == [("ml", "searches")]

    made.clock.now += PERIOD
    assert search()


def test_one_search_ends_when_it_has_used_up_the_time_of_all():
    made, search, _ = searching(cost=2 * SEARCH_SECONDS)

    with pytest.raises(SelectorBudgetError, match="searching devices for its claims takes more than 1 s"):
        search()

    assert made.match(CLAIM, SELECTORS, DEVICES[0])
