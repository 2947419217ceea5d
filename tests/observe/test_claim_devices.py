"""Devices of claims: where they are, who holds them, and what is wrong with what drivers and the kubelet say."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from alignup.align.claims.ledger import ClaimLedger
from alignup.align.claims.resource_claims import NUMA_NODE, PCI_BUS_ID, DeviceId, Slice, SliceDevice
from alignup.align.locality import PciPath
from alignup.align.machine import PciDevice
from alignup.align.workload import PodClaim
from alignup.documents.host_state.schema import MAX_CLAIM_DEVICES
from alignup.machines.synthetic import parse
from alignup.observe.claim_devices import place_slices
from alignup.observe.observation import Observation, UnchangedParts, join
from tests.align.hosts import pod
from tests.observe.kubelets import ObservedKubelet

DRIVER, POOL = "gpu.example.com", "host-a"
MACHINE = parse("pack:2 numa:1 core:4 pu:1")


def gpu(number: int) -> DeviceId:
    return DeviceId(DRIVER, POOL, f"gpu-{number}")


def slice_of(*devices: SliceDevice, name: str = "slice", count: int = 1, generation: int = 1) -> Slice:
    return Slice(name, DRIVER, POOL, generation, count, host="host-a", devices=devices)


def on_node(number: int, node: int, **attributes: str) -> SliceDevice:
    return SliceDevice(gpu(number), {NUMA_NODE: node, **attributes})


def claims_in(observation: Observation) -> ClaimLedger:
    claims = observation.host.ledger.claims
    assert claims is not None
    return claims


@pytest.fixture
def kubelet():
    """Two GPUs in a slice, one on each NUMA node; pod a holds the first through a claim, pod b nothing."""
    made = ObservedKubelet()
    made.slices = (slice_of(on_node(0, 0, **{f"{DRIVER}/productName": "H100"}), on_node(1, 1)),)
    for name in "ab":
        made.run(pod(name, cpu="1", memory="1Gi"))
    made.claims["a"] = {"default/gpus": (gpu(0),)}
    return made


def test_claimed_devices_have_numa_nodes_models_and_holders(kubelet):
    observation = join(kubelet.sources(), settled=False)

    claims = claims_in(observation)
    assert [(device.id, device.nodes, dict(device.attributes)) for device in claims.devices] == [
        (gpu(0), 1, {"model": "H100"}),
        (gpu(1), 2, {}),
    ]
    assert claims.held == {"a": {"app": {"default/gpus": (gpu(0),)}}}
    assert (observation.gaps, observation.contradictions) == ((), ())


def test_a_host_without_devices_for_claims_has_no_ledger_of_them(kubelet):
    kubelet.claims.clear()
    for slices in (None, ()):
        observation = join(kubelet.sources(slices=slices))

        assert observation.host.ledger.claims is None
        assert (observation.gaps, observation.contradictions) == ((), ())


def test_devices_are_placed_again_only_if_slices_or_machine_change(kubelet):
    unchanged = UnchangedParts()
    first = claims_in(join(kubelet.sources(), unchanged_parts=unchanged)).devices

    assert claims_in(join(kubelet.sources(), unchanged_parts=unchanged)).devices is first
    other = claims_in(join(kubelet.sources(slices=(slice_of(on_node(0, 1)),)), unchanged_parts=unchanged)).devices
    assert [device.nodes for device in other] == [2]


def test_the_pci_tree_of_the_machine_says_where_a_device_is():
    machine = replace(MACHINE, pci=(PciDevice("0000:81:00.0", node=1),))

    placed = place_slices([slice_of(SliceDevice(gpu(0), {PCI_BUS_ID: "0000:81:00.0"}))], machine)

    assert [device.nodes for device in placed.devices] == [2]


def test_the_report_has_the_places_of_devices_of_claims_in_the_pci_tree():
    path = PciPath("pci0000:80", ("0000:80:01.0",))
    pci = (PciDevice("0000:81:00.0", kind=0x030200, node=1, path=path), PciDevice("0000:82:00.0", node=1, path=path))
    kubelet = ObservedKubelet(machine=replace(MACHINE, pci=pci))
    kubelet.slices = (slice_of(SliceDevice(gpu(0), {PCI_BUS_ID: "0000:81:00.0"}), SliceDevice(gpu(1))),)

    state = kubelet.host_state("host-a")

    (group,) = state["ledger"]["pci"]  # of the device of a claim, not of the others
    assert (group["addresses"], group["path"]) == (["0000:81:00.0"], "pci0000:80/0000:80:01.0")


def test_a_numa_node_that_the_machine_does_not_have_is_not_published():
    placed = place_slices([slice_of(*(on_node(number, 7) for number in range(6)), on_node(6, -1))], MACHINE)

    assert {device.nodes for device in placed.devices} == {None}
    names = ", ".join(str(gpu(number)) for number in range(4))
    assert placed.problems == (
        f"this machine does not have NUMA node 7 of device {names} and 2 more in its ResourceSlice",
    )


def test_a_pool_with_a_device_twice_or_a_missing_slice_is_left_out():
    twice = place_slices([slice_of(on_node(0, 0), on_node(0, 1))], MACHINE)
    part = place_slices([slice_of(on_node(0, 0), count=2)], MACHINE)

    assert (twice.devices, twice.problems) == ((), (f"pool {POOL} of driver {DRIVER} has device gpu-0 twice",))
    assert (part.devices, part.problems) == ((), (f"pool {POOL} of driver {DRIVER} has 1 of its 2 slices",))


def test_more_devices_than_an_object_can_have_are_left_out():
    many = [on_node(number, 0) for number in range(MAX_CLAIM_DEVICES + 3)]

    placed = place_slices([slice_of(*many)], MACHINE)

    assert len(placed.devices) == MAX_CLAIM_DEVICES
    assert placed.problems[0].startswith(f"3 of {len(many)} devices in ResourceSlices are left out")


def test_a_held_device_that_no_slice_has_is_kept_without_a_numa_node(kubelet):
    kubelet.claims["b"] = {"default/other": (gpu(8),)}

    observation = join(kubelet.sources())

    assert observation.contradictions == (
        f"pod default/b holds device {gpu(8)} of claim default/other, which no ResourceSlice of this node has",
    )
    groups = claims_in(observation).groups
    assert [(device.id, device.nodes) for group in groups.values() for device in group if device.id == gpu(8)] == [
        (gpu(8), None)
    ]


def test_a_device_in_a_slice_that_does_not_count_is_not_called_missing(kubelet):
    slices = (slice_of(on_node(0, 0), count=2),)

    observation = join(kubelet.sources(slices=slices))

    assert observation.contradictions == (f"pool {POOL} of driver {DRIVER} has 1 of its 2 slices",)


def test_a_claim_deleted_under_a_running_pod_shows_when_its_device_is_given_away(kubelet):
    kubelet.claims["b"] = {"default/later": (gpu(0),)}

    (problem,) = join(kubelet.sources()).contradictions

    assert problem == (
        f"device {gpu(0)} is held by claim default/gpus of pod default/a and claim default/later of pod default/b: "
        "a claim was deleted while its pod was running, or one of them has admin access"
    )


def test_pods_may_share_a_claim_and_claims_a_device_that_can_be_shared(kubelet):
    kubelet.claims["b"] = kubelet.claims["a"]
    assert join(kubelet.sources()).contradictions == ()

    kubelet.claims["b"] = {"default/later": (gpu(0),)}
    shared = (slice_of(replace(on_node(0, 0), shared=True)),)
    assert join(kubelet.sources(slices=shared)).contradictions == ()


def test_without_slices_the_holders_are_known_and_their_numa_nodes_are_not(kubelet):
    observation = join(kubelet.sources(slices=None))

    assert claims_in(observation).claims_of("a") == {"default/gpus": (gpu(0),)}
    assert observation.gaps == (
        "the NUMA nodes of claimed devices are unknown: no ResourceSlices of this node could be read",
    )


def test_claims_of_ended_pods_and_of_unknown_uids_count_for_nobody(kubelet):
    finished = {**kubelet.pods, "a": replace(kubelet.pods["a"], finished=True)}
    assert claims_in(join(kubelet.sources(pods=finished))).held == {}

    del kubelet.allocated["a"]
    listed = replace(
        kubelet.listed[0],
        name="stranger",
        containers={"app": replace(kubelet.listed[0].containers["app"], cpus=0, memory=(), devices=())},
    )
    observation = join(kubelet.sources(listed=(*kubelet.listed, listed)))
    assert "pod default/stranger holds devices of claims, but its uid is unknown" in observation.gaps


def test_a_kubelet_that_lists_no_devices_of_claims_leaves_a_gap(kubelet):
    known = kubelet.pods["b"]
    main = known.pod.containers[0]
    user = replace(main, resources=replace(main.resources, claims=("gpus",)))
    with_claim = replace(known.pod, claims=(PodClaim("gpus", "b-gpus"),), containers=(user,))

    observation = join(kubelet.sources(pods={**kubelet.pods, "b": replace(known, pod=with_claim)}))

    assert observation.gaps == ("pod default/b has claims, but PodResources lists no device of them",)


@given(
    st.lists(
        st.tuples(
            st.integers(0, 3),
            st.none() | st.integers(-2, 9) | st.booleans() | st.text(max_size=3) | st.tuples(st.integers(-1, 5)),
            st.integers(1, 2),
            st.integers(1, 2),
        ),
        max_size=6,
    )
)
def test_whatever_drivers_say_only_numa_nodes_of_the_machine_are_published(described):
    slices = [
        slice_of(
            SliceDevice(gpu(number), {} if node is None else {NUMA_NODE: node}),
            name=str(index),
            count=count,
            generation=generation,
        )
        for index, (number, node, count, generation) in enumerate(described)
    ]

    placed = place_slices(slices, MACHINE)

    assert all(device.nodes in (None, 1, 2, 3) for device in placed.devices)
    assert len({device.id for device in placed.devices}) == len(placed.devices)
    assert {device.id for device in placed.devices} <= placed.listed
