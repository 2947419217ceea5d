"""Extended resources that a ResourceClaim serves: what the kubelet of each release counts, aligns and allocates."""

from dataclasses import replace

import pytest

from alignup.align.claims.resource_claims import ClaimObjects, DeviceClass
from alignup.align.cpus.options import CpuSettings
from alignup.align.decision import Decision
from alignup.align.explain.sentences import describe_defects
from alignup.align.host import Host, Settings
from alignup.align.machine import Device
from alignup.align.quantity import Quantity
from alignup.align.release import find_release
from alignup.align.settings import FeatureGates, Policy, Scope, TopologySettings
from alignup.align.workload import Container, Pod, Resources, demand
from alignup.machines.synthetic import parse

GPU = "example.com/gpu"
IMPLICIT = "deviceclass.resource.kubernetes.io/gpu"
MACHINE = parse("pack:2 numa:1(memory=8GiB) core:4 pu:1")
GPUS_ON_NODE_1 = (Device(GPU, "gpu-0", 0b10), Device(GPU, "gpu-1", 0b10))


def host(
    version: str = "1.37",
    devices: tuple[Device, ...] = (),
    *,
    gate: bool = True,
    faults: bool = True,
    scope: Scope = Scope.CONTAINER,
) -> Host:
    release = find_release(version)
    changed = {} if release.gates.get("DRAExtendedResource") is None else {"DRAExtendedResource": gate}
    settings = Settings(
        topology=TopologySettings(policy=Policy.SINGLE_NUMA_NODE, scope=scope),
        cpus=CpuSettings(policy="static", reservation=Quantity.of(1), explicit=1),
        release=release,
        gates=FeatureGates(changed, release=release),
        kubelet_faults=faults,
    )
    return Host(replace(MACHINE, devices=devices), settings)


def pod(resource: str = GPU, count: int = 1, *, cpus: int = 2, mapped: bool = False) -> Pod:
    """A pod as the API server has it; if *mapped*, as the scheduler binds it after it allocated a claim."""
    amounts = {"cpu": Quantity.of(cpus), "memory": Quantity.of(1 << 20), resource: Quantity.of(count)}
    requests = (("app", resource),) if mapped else ()
    return Pod(
        name="p", uid="u", containers=(Container("app", Resources(amounts, amounts)),), claimed_requests=requests
    )


def outcome(decision: Decision) -> str:
    return "admitted" if decision.rejection is None else decision.rejection.reason


@pytest.mark.parametrize(
    ("version", "gate", "expected"),
    [
        ("1.33", True, f"OutOf{IMPLICIT}"),
        ("1.34", False, f"OutOf{IMPLICIT}"),
        ("1.34", True, "admitted"),
        ("1.35", True, "admitted"),
        ("1.36", False, f"OutOf{IMPLICIT}"),
        ("1.36", True, "admitted"),
        ("1.37", True, "admitted"),
    ],
)
def test_a_class_by_its_own_name_fits_where_the_kubelet_ignores_it(version, gate, expected):
    assert outcome(host(version, gate=gate).decide(pod(IMPLICIT, mapped=True))) == expected


def test_without_the_status_it_does_not_fit():
    assert outcome(host("1.37").decide(pod(IMPLICIT))) == f"OutOf{IMPLICIT}"
    assert outcome(host("1.35").decide(pod(IMPLICIT))) == "admitted"


def test_before_the_binding_the_scheduler_is_expected_to_allocate_a_claim():
    unbound = ClaimObjects().with_class_resources(pod(IMPLICIT))

    assert outcome(host().decide(unbound)) == "admitted"
    assert host().missing_devices(unbound) == ()


@pytest.mark.parametrize("version", ["1.35", "1.36", "1.37"])
def test_a_claim_serves_what_unhealthy_devices_of_a_plugin_do_not(version):
    broken = tuple(replace(device, healthy=False) for device in GPUS_ON_NODE_1)
    offered = ClaimObjects({"gpu": DeviceClass("gpu", extended_resource=GPU)})
    unbound = offered.with_class_resources(pod())

    assert outcome(host(version, broken, faults=False).decide(unbound)) == "admitted"
    assert outcome(host(version, broken, faults=False).decide(pod(mapped=True))) == "admitted"
    assert outcome(host(version, broken).decide(pod(mapped=True))) == "TopologyAffinityError"  # the kubelet's defect
    assert host(version, broken).missing_devices(unbound) == ()


def test_a_bound_pod_with_a_claim_lacks_no_devices():
    assert host().missing_devices(pod(mapped=True)) == ()
    assert host().missing_devices(pod()) == (GPU,)


def test_the_requests_that_a_claim_serves_can_be_left_out():
    assert demand.limits(demand.without_claimed(pod(mapped=True), {})).keys() == {"cpu", "memory"}
    assert demand.without_claimed(pod(), {}) == pod()


def test_a_plugin_with_devices_serves_the_request_itself():
    offered = ClaimObjects({"gpu": DeviceClass("gpu", extended_resource=GPU)})
    decision = host(devices=GPUS_ON_NODE_1).decide(offered.with_class_resources(pod()))

    assert decision.placements[0].devices == {GPU: ("gpu-0",)}


@pytest.mark.parametrize("scope", Scope)
def test_nothing_is_allocated_for_a_claimed_request_but_its_plugin_aligns_the_pod(scope):
    bound = pod(mapped=True)
    kubelet = host(devices=GPUS_ON_NODE_1, scope=scope).decide(bound)
    safe = host(devices=GPUS_ON_NODE_1, scope=scope, faults=False).decide(bound)

    assert (kubelet.placements[0].devices, kubelet.placements[0].cpus) == ({}, 0b110000)
    assert (safe.placements[0].devices, safe.placements[0].cpus) == ({}, 0b110)
    (sentence,) = describe_defects(kubelet, safe)
    assert sentence.startswith(f"a defect of the kubelet, not fixed: {GPU}: it aligns the pod with devices of a plugin")
    assert sentence.endswith("(no upstream issue was found)")


def test_the_defect_rejects_a_pod_that_claims_more_than_the_plugin_has():
    node = host(devices=GPUS_ON_NODE_1)

    assert outcome(node.decide(pod(count=3, mapped=True))) == "TopologyAffinityError"
    assert outcome(node.without_faults().decide(pod(count=3, mapped=True))) == "admitted"


def test_before_1_35_the_plugin_allocates_devices_as_well():
    assert host("1.34", GPUS_ON_NODE_1).decide(pod(mapped=True)).placements[0].devices == {GPU: ("gpu-0",)}
    assert host("1.35", GPUS_ON_NODE_1).decide(pod(mapped=True)).placements[0].devices == {}


def test_other_containers_still_get_devices():
    amounts = {"cpu": Quantity.of(1), "memory": Quantity.of(1 << 20), GPU: Quantity.of(1)}
    two = Pod(
        name="p",
        uid="u",
        containers=tuple(Container(name, Resources(amounts, amounts)) for name in ("claimed", "plain")),
        claimed_requests=(("claimed", GPU),),
    )

    first, second = host(devices=GPUS_ON_NODE_1).decide(two).placements

    assert (first.devices, second.devices) == ({}, {GPU: ("gpu-0",)})
