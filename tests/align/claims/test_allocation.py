"""Which devices claims can get, compared with all combinations."""

from dataclasses import replace
from itertools import permutations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from alignup.align.claims import allocation
from alignup.align.claims.allocation import allocate
from alignup.align.claims.resource_claims import (
    AllocatedDevice,
    ClaimRequest,
    DeviceId,
    DeviceTaint,
    DeviceToleration,
    MatchAttribute,
    SliceDevice,
)
from alignup.align.errors import AlignError, WorkLimitError
from tests.align.claims.samples import DRIVER, any_device, by_model, claim, device

MODEL = f"{DRIVER}/model"
ROOT = f"{DRIVER}/root"
GPU = ClaimRequest("gpu", "gpu")


def names(result: tuple[tuple[AllocatedDevice, ...], ...] | None, claim_index: int = 0) -> list[str] | None:
    return None if result is None else [each.id.device for each in result[claim_index]]


def test_the_first_free_devices_that_match_are_taken():
    devices = [device("a", model="small"), device("b", model="large"), device("c", model="large")]
    wanted = claim(ClaimRequest("gpu", "gpu", 1))

    assert names(allocate([wanted], devices, matches=by_model({"gpu": "large"}))) == ["b"]
    assert names(allocate([wanted], devices, matches=by_model({"gpu": "large"}), taken_ids=[devices[1].id])) == ["c"]
    assert allocate([wanted], devices, matches=by_model({"gpu": "huge"})) is None


def test_a_later_request_takes_back_what_an_earlier_one_took():
    devices = [device("a", model="large"), device("b", model="small")]
    wanted = claim(ClaimRequest("any", "gpu"), ClaimRequest("large", "gpu"))

    assert names(allocate([wanted], devices, matches=by_model({"large": "large"}))) == ["b", "a"]


def test_no_device_is_in_two_claims_of_a_pod():
    result = allocate([claim(GPU, name="one"), claim(GPU, name="two")], [device("a"), device("b")], matches=any_device)

    assert (names(result, 0), names(result, 1)) == (["a"], ["b"])
    assert allocate([claim(GPU, name="one"), claim(GPU, name="two")], [device("a")], matches=any_device) is None


def test_all_devices_means_all_that_match_and_at_least_one():
    all_of_them = claim(ClaimRequest("gpu", "gpu", None))
    devices = [device("a"), device("b")]

    assert names(allocate([all_of_them], devices, matches=any_device)) == ["a", "b"]
    assert allocate([all_of_them], devices, matches=any_device, taken_ids=[devices[1].id]) is None
    assert allocate([all_of_them], [], matches=any_device) is None


def test_the_first_alternative_that_works_is_taken():
    wanted = claim([ClaimRequest("gpu/large", "gpu", 1), ClaimRequest("gpu/small", "gpu", 2)])
    devices = [device("a", model="small"), device("b", model="small")]

    result = allocate([wanted], devices, matches=by_model({"gpu/large": "large", "gpu/small": "small"}))

    assert result == (tuple(AllocatedDevice("gpu/small", each.id) for each in devices),)


def test_admin_access_takes_devices_in_use_and_leaves_them_free():
    wanted = claim(ClaimRequest("look", "gpu", 1, admin_access=True), GPU)
    only = device("a")

    assert names(allocate([wanted], [only], matches=any_device)) == ["a", "a"]
    assert allocate([claim(GPU)], [only], matches=any_device, taken_ids=[only.id]) is None
    assert allocate([wanted], [only], matches=by_model({"gpu": "large"})) is None


def test_devices_of_a_constraint_share_the_attribute():
    devices = [device("a", root="r0"), device("b", root="r1"), device("c", root="r1"), device("d")]
    pair = claim(ClaimRequest("gpu", "gpu", 2), constraints=(MatchAttribute(ROOT),))
    other = claim(ClaimRequest("gpu", "gpu", 1), GPU, constraints=(MatchAttribute(ROOT, frozenset({"nic"})),))

    assert names(allocate([pair], devices, matches=any_device)) == ["b", "c"]
    assert names(allocate([other], devices, matches=any_device)) == ["a", "b"]


@pytest.mark.parametrize(
    ("toleration", "tolerated"),
    [
        (DeviceToleration("", None, ""), True),
        (DeviceToleration("broken", None, "NoSchedule"), True),
        (DeviceToleration("broken", "yes", ""), True),
        (DeviceToleration("broken", "no", ""), False),
        (DeviceToleration("other", None, ""), False),
        (DeviceToleration("broken", None, "NoExecute"), False),
    ],
)
def test_a_tainted_device_needs_a_toleration(toleration, tolerated):
    tainted = replace(device("a"), taints=(DeviceTaint("broken", "yes", "NoSchedule"),))

    assert allocate([claim(GPU)], [tainted], matches=any_device) is None
    tolerant = claim(replace(GPU, tolerations=(toleration,)))
    assert (allocate([tolerant], [tainted], matches=any_device) is not None) is tolerated


def test_all_devices_are_none_if_a_taint_of_one_is_not_tolerated():
    tainted = replace(device("b"), taints=(DeviceTaint("broken", "", "NoSchedule"),))

    assert allocate([claim(ClaimRequest("gpu", "gpu", None))], [device("a"), tainted], matches=any_device) is None
    assert names(allocate([claim(GPU)], [tainted, device("a")], matches=any_device)) == ["a"]


@pytest.mark.parametrize(("count", "possible"), [(32, True), (33, False), (None, False)])
def test_a_claim_has_at_most_32_devices(count, possible):
    devices = [device(f"gpu-{number}") for number in range(1_100)]

    result = allocate([claim(ClaimRequest("gpu", "gpu", count))], devices, matches=any_device)
    assert (result is not None) is possible


def test_a_pod_with_very_many_devices_is_not_decided():
    devices = [device(f"gpu-{number}") for number in range(500)]
    claims = [claim(*(ClaimRequest(f"r{number}", "gpu") for number in range(32)), name=f"c{each}") for each in range(9)]

    with pytest.raises(WorkLimitError, match="more than 150 devices"):
        allocate(claims, devices, matches=any_device)
    assert allocate(claims[:4], devices, matches=any_device) is not None


def test_a_device_that_can_be_shared_has_several_claims():
    shared = replace(device("a"), shared=True)

    assert allocate([claim(GPU, name="one"), claim(GPU, name="two")], [shared], matches=any_device) is not None


def test_devices_that_can_take_each_others_place_are_not_all_tried():
    devices = [device(f"gpu-{number:02}", uuid=f"GPU-{number}") for number in range(16)]
    six = ClaimRequest("gpu", "gpu", 6)

    assert allocate([claim(six, name=name) for name in ("one", "two", "three")], devices, matches=any_device) is None
    result = allocate([claim(six, name=name) for name in ("one", "two")], devices, matches=any_device)
    assert names(result, 1) == [each.id.device for each in devices[6:12]]


def test_an_alternative_that_is_not_needed_cannot_fail():
    def matches(request: ClaimRequest, _: SliceDevice) -> bool:
        if request.name == "gpu/second":
            raise AlignError("a selector cannot be evaluated")
        return True

    wanted = claim([ClaimRequest("gpu/first", "gpu"), ClaimRequest("gpu/second", "gpu")])

    assert names(allocate([wanted], [device("a")], matches=matches)) == ["a"]


def test_the_work_is_limited(monkeypatch):
    monkeypatch.setattr(allocation, "MAX_STEPS", 50)
    devices = [device(f"d{number}", root=f"r{number}") for number in range(20)]
    impossible = claim(ClaimRequest("gpu", "gpu", 3), constraints=(MatchAttribute(ROOT),))

    with pytest.raises(WorkLimitError, match="within 50 steps"):
        allocate([impossible], devices, matches=any_device)


@given(st.data())
def test_an_allocation_exists_exactly_if_a_combination_does(data):
    models = data.draw(st.lists(st.sampled_from("xyz"), max_size=5))
    devices = [device(f"d{number}", model=model, root=number % 2) for number, model in enumerate(models)]
    taken = data.draw(st.frozensets(st.sampled_from([each.id for each in devices]))) if devices else frozenset()
    wanted = data.draw(
        st.lists(st.tuples(st.sampled_from(["x", "y", None]), st.integers(1, 2)), min_size=1, max_size=3)
    )
    constraint = (MatchAttribute(ROOT),) if data.draw(st.booleans()) else ()
    requests = [ClaimRequest(f"r{number}", "gpu", count) for number, (_, count) in enumerate(wanted)]
    matches = by_model({f"r{number}": model for number, (model, _) in enumerate(wanted) if model})

    result = allocate([claim(*requests, constraints=constraint)], devices, matches=matches, taken_ids=taken)

    slots = [request for request in requests for _ in range(request.count or 0)]
    free = [each for each in devices if each.id not in taken]
    combinations = [
        chosen
        for chosen in permutations(free, len(slots))
        if all(matches(request, each) for request, each in zip(slots, chosen, strict=True))
        and (not constraint or len({each.attributes[ROOT] for each in chosen}) == 1)
    ]
    assert (result is not None) is bool(combinations)
    if result is not None:
        given_out = [each.id for each in result[0]]
        assert len(set(given_out)) == len(given_out) == len(slots)
        assert not set(given_out) & taken
        assert [each.request for each in result[0]] == [request.name for request in slots]


def test_ids_are_shown_with_driver_and_pool():
    assert str(DeviceId("d", "p", "x")) == "d/p/x"
