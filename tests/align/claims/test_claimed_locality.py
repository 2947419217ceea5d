"""Whether the devices of claims are as near as a pod demands: allocated ones, and those that claims may get."""

from dataclasses import replace
from itertools import combinations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from alignup.align.claims.alignment import HostClaims
from alignup.align.claims.claimed_locality import demands_near_claims
from alignup.align.claims.resource_claims import (
    PCI_BUS_ID,
    PCIE_ROOT,
    AllocatedDevice,
    ClaimObjects,
    ClaimRequest,
    DeviceClass,
    MatchAttribute,
    SliceDevice,
)
from alignup.align.devices.demanded_locality import check_demand, parse_demands
from alignup.align.quantity import Quantity
from alignup.align.workload import Container, Pod, PodClaim, Resources
from alignup.align.workload.names import DEVICES_ANNOTATION
from tests.align.claims.samples import any_device, claim, device
from tests.placement.located_hosts import GPU, device_pod, located_host

GPU_CLASS = 0x030200
CLASSES = {"gpu": DeviceClass("gpu")}


def with_attributes(name, **attributes):
    names = {"address": PCI_BUS_ID, "root": PCIE_ROOT}
    return replace(device(name), attributes={names[key]: value for key, value in attributes.items()})


#: The GPUs of the machine: two below each of two switches of each of two root complexes.
ADDRESSES = tuple(pci.address for pci in located_host().machine.pci if pci.kind == GPU_CLASS)
DEVICES = tuple(with_attributes(f"d{number}", address=address) for number, address in enumerate(ADDRESSES))


def claiming_pod(demand, *, gpus=0, claims=("c",)):
    parsed = device_pod("x", gpus, demand=demand).containers[0].resources if gpus else Resources()
    container = Container("app", replace(parsed, claims=claims))
    named = tuple(PodClaim(name, claim=name) for name in claims)
    return Pod(name="x", uid="x", containers=(container,), claims=named, annotations={DEVICES_ANNOTATION: demand})


def locality_of(demand, *claims, devices=DEVICES, host=None, gpus=0):
    """Return what is known of the locality of a pod's claims."""
    host = host or located_host()
    objects = ClaimObjects(CLASSES, {(each.namespace, each.name): each for each in claims})
    pod = claiming_pod(demand, gpus=gpus, claims=tuple(each.name for each in claims if each.reserved_for != {"other"}))
    placements = host.predict(pod).placements
    return HostClaims(objects, devices, any_device).explain(pod, placements, host)[0].locality


def allocated(*devices: SliceDevice, name="c", **fields):
    chosen = tuple(AllocatedDevice("gpu", each.id) for each in devices)
    return claim(ClaimRequest("gpu", "gpu", len(devices)), name=name, allocated=chosen, **fields)


def requesting(count, **fields):
    return claim(ClaimRequest("gpu", "gpu", count), **fields)


@pytest.mark.parametrize(
    ("numbers", "satisfied"),
    [
        ((0, 1), {"same-switch", "same-root", "nvlink"}),
        ((0, 2), {"same-root"}),
        ((0, 4), set()),
        ((3,), {"same-switch", "same-root", "nvlink"}),
    ],
)
def test_allocated_devices_are_compared_on_the_machine(numbers, satisfied):
    owned = allocated(*(DEVICES[number] for number in numbers))

    for demand in ("same-switch", "same-root", "nvlink"):
        locality = locality_of(demand, owned)

        assert (locality.unmet == "", locality.possible) == (demand in satisfied,) * 2
        assert demand in satisfied or f"the devices do not satisfy {demand}: " in locality.unmet


def test_before_the_allocation_a_choice_may_be_near_and_another_not():
    locality = locality_of("same-switch", requesting(2))

    assert locality.possible
    assert locality.unmet.startswith("container app: the devices may not satisfy same-switch: ")
    assert locality_of("same-switch", requesting(1)) == ("", True)
    assert not locality_of("same-switch", requesting(3)).possible
    assert locality_of("same-root", requesting(4), devices=DEVICES[:4]) == ("", True)


@given(
    st.sampled_from(["same-switch", "same-root", "nvlink"]),
    st.lists(st.sampled_from(DEVICES), min_size=2, max_size=6, unique_by=lambda each: each.id),
    st.integers(1, 4),
)
def test_all_choices_of_the_scheduler_count(demand, devices, count):
    count = min(count, len(devices))
    (parsed,) = parse_demands(demand)
    answers = [
        check_demand(
            parsed, located_host().machine.locality, {"c": [str(each.attributes[PCI_BUS_ID]) for each in chosen]}
        ).satisfied
        for chosen in combinations(devices, count)
    ]

    locality = locality_of(demand, requesting(count), devices=tuple(devices))

    assert (locality.unmet == "") is all(answers)
    assert locality.possible is any(answers)


def test_devices_of_claims_and_of_plugins_count_together():
    host = located_host(switches=1, gpus=1)  # a GPU of a plugin and a NIC below one switch on each NUMA node
    near, far = with_attributes("near", address="0000:12:01.0"), with_attributes("far", address="0000:32:01.0")
    shared = {"devices": (near, far), "host": host, "gpus": 1}
    assert host.predict(claiming_pod("same-switch", gpus=1)).placements[0].devices[GPU] == ("gpu-0",)

    assert locality_of("same-switch", allocated(near), **shared) == ("", True)
    assert "do not satisfy same-switch: " in locality_of("same-switch", allocated(far), **shared).unmet
    assert locality_of("same-switch=c", allocated(far), **shared) == ("", True)
    assert locality_of("same-switch", requesting(1), **shared).possible
    assert locality_of("same-switch", requesting(1), **shared).unmet


def test_the_root_complexes_that_drivers_publish_suffice_for_same_root():
    first, second = with_attributes("a", root="pci0000:10"), with_attributes("b", root="pci0000:10")
    other = with_attributes("c", root="pci0000:20")
    devices = (first, second, other)

    assert locality_of("same-root", allocated(first, second), devices=devices) == ("", True)
    assert "have no root complex in common" in locality_of("same-root", allocated(first, other), devices=devices).unmet
    assert "is not known" in locality_of("same-switch", allocated(first, second), devices=devices).unmet


def test_a_published_root_complex_is_compared_with_that_of_the_machine():
    near = with_attributes("near", root=located_host().machine.locality.root(ADDRESSES[0]))
    unknown = with_attributes("unknown")
    devices = (near, unknown, *DEVICES)

    assert locality_of("same-root", allocated(near, DEVICES[0]), devices=devices) == ("", True)
    assert "no root complex in common" in locality_of("same-root", allocated(near, DEVICES[4]), devices=devices).unmet
    assert "is not known" in locality_of("same-root", allocated(near, unknown), devices=devices).unmet


def test_a_flat_machine_cannot_say_whatever_drivers_publish():
    host = located_host(flat=True)
    devices = tuple(replace(each, attributes={**each.attributes, PCIE_ROOT: "pci0000:00"}) for each in DEVICES[:2])

    locality = locality_of("same-root", allocated(*devices), devices=devices, host=host)

    assert locality.unmet.endswith("flat: cannot say")
    assert not locality.possible


def test_a_constraint_of_the_claim_leaves_near_choices_only():
    devices = tuple(
        replace(each, attributes={**each.attributes, PCIE_ROOT: f"pci0000:{number // 4}0"})
        for number, each in enumerate(DEVICES)
    )
    constrained = requesting(2, constraints=(MatchAttribute(PCIE_ROOT),))

    assert locality_of("same-root", constrained, devices=devices) == ("", True)
    assert locality_of("same-root", requesting(2), devices=devices).unmet

    some = requesting(2, constraints=(MatchAttribute(PCIE_ROOT, frozenset({"gpu"})),))
    assert locality_of("same-root", some, devices=devices) == ("", True)


def test_two_claims_never_get_the_same_device():
    far = (DEVICES[0], DEVICES[4])

    assert not locality_of("same-root", requesting(1), requesting(1, name="d"), devices=far).possible


def test_a_claim_that_is_not_known_satisfies_nothing():
    pod = claiming_pod("same-root", claims=("gone",))
    pod = replace(pod, containers=(Container("idle"), *pod.containers))

    (explained,) = HostClaims(ClaimObjects(CLASSES), DEVICES, any_device).explain(pod, (), located_host())

    assert explained.locality == (
        "container app: the devices may not satisfy same-root: ResourceClaim default/gone is not known",
        False,
    )


def test_a_constraint_on_all_devices_leaves_few_choices_of_many():
    devices = tuple(with_attributes(f"d{number}", root=f"pci0000:{number // 8}0") for number in range(32))
    constrained = requesting(8, constraints=(MatchAttribute(PCIE_ROOT),))

    assert locality_of("same-root", constrained, devices=devices) == ("", True)


def test_spread_counts_the_devices_of_other_claims():
    taken = allocated(DEVICES[0], name="other", reserved_for=frozenset({"other"}))

    assert "shares its root complex with" in locality_of("spread", allocated(DEVICES[3]), taken).unmet
    assert locality_of("spread", allocated(DEVICES[4]), taken) == ("", True)
    assert locality_of("spread", requesting(1), taken).possible


def test_more_choices_than_are_tried_are_left_to_the_binding():
    many = tuple(with_attributes(f"d{number}", address=ADDRESSES[number % 8]) for number in range(64))

    locality = locality_of("same-root", requesting(30), devices=many)

    assert locality.possible
    assert locality.unmet


@pytest.mark.parametrize("offered", [(), ("a.com/x", "b.com/y")])
def test_the_containers_of_one_claim_for_extended_resources_are_not_separated(offered):
    amounts = dict.fromkeys(("a.com/x", "b.com/y"), Quantity(1))
    pod = Pod(
        name="x",
        uid="x",
        containers=(Container("app", Resources(amounts, amounts)),),
        claimed_requests=(("app", "a.com/x"), ("app", "b.com/y")),
        extended_claim="c",
        class_resources=offered,
        annotations={DEVICES_ANNOTATION: "same-root"},
    )
    objects = ClaimObjects(CLASSES, {("default", "c"): allocated(DEVICES[0], DEVICES[1])})

    explained = HostClaims(objects, DEVICES, any_device).explain(pod, (), located_host())

    assert "which of its devices a container gets is not read" in explained[0].locality.unmet
    assert not explained[0].locality.possible


@pytest.mark.parametrize(
    ("demand", "concerned"), [("same-root", True), ("same-root=c", True), (f"same-root={GPU}", False), ("near", False)]
)
def test_a_demand_is_about_claims_if_it_names_them_or_nothing(demand, concerned):
    assert demands_near_claims(claiming_pod(demand, gpus=1)) is concerned
    assert not demands_near_claims(replace(claiming_pod(demand), annotations={}))
