"""A pod may be admitted before a waiting one only if it takes nothing that the waiting one could use."""

from copy import copy
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from alignup.align.admit import POLICY_ANNOTATION
from alignup.align.host import Host
from alignup.align.machine import Device, HugePages
from alignup.align.overtaking import competes
from alignup.align.settings import FeatureGates, Policy, Scope
from alignup.align.workload import Container, Pod, Resources, demand
from tests.align.hosts import GPU, NIC, host, pod
from tests.effort import did, examples
from tests.strategies_pods import guaranteed

LARGE = "pack:2 numa:1 core:16 pu:1"


def large(policy: Policy = Policy.SINGLE_NUMA_NODE, scope: Scope = Scope.CONTAINER, **settings) -> Host:
    """Two NUMA nodes of 16 CPUs with one NIC, on node 0, that a pod holds."""
    one = host(policy, scope, shape=LARGE, **settings)
    devices = tuple(device for device in one.machine.devices if device.id != "nic-1")
    one = Host(replace(one.machine, devices=devices), one.settings)
    assert one.admit(pod("holder", cpu="2", nic="1")).admitted
    return one


def may_pass(one: Host, wanted: Pod, *waiting: Pod, **how) -> bool:
    decision = one.decide(wanted)
    assert decision.admitted
    return not competes(one, decision, waiting, **how)


def test_a_pod_passes_one_that_waits_for_a_device_if_enough_is_left_for_it():
    one = large()
    waits = pod("waits", cpu="8", nic="1")

    assert not one.decide(waits).admitted
    assert may_pass(one, pod("small", cpu="1"), waits)


def test_a_pod_does_not_pass_if_it_leaves_too_few_cpus_on_a_node_the_other_could_use():
    one = large()

    assert not may_pass(one, pod("small", cpu="2"), pod("waits", cpu="12", nic="1"))
    assert not may_pass(one, pod("small", cpu="1"), *(pod(f"waits-{number}", cpu="5", nic="1") for number in range(3)))


def test_a_pod_passes_on_a_node_that_the_other_cannot_use():
    one = large()
    assert one.admit(pod("first", cpu="8")).placements[0].hint.nodes == 0b01

    fills = pod("fills", cpu="6")

    assert one.decide(fills).placements[0].hint.nodes == 0b10
    assert may_pass(one, fills, pod("waits", cpu="12", nic="1"))
    assert not may_pass(one, fills, pod("waits", cpu="12", gpu="1"))


def test_a_pod_with_several_containers_could_use_any_node():
    one = large()
    one.admit(pod("first", cpu="8"))
    waits = pod("waits", cpu="7", nic="1")
    more = pod("more", cpu="4").containers[0]
    both = replace(waits, containers=(*waits.containers, replace(more, name="more")))

    assert may_pass(one, pod("fills", cpu="6"), waits)
    assert not may_pass(one, pod("fills", cpu="6"), both)


@pytest.mark.parametrize("fit_check", [True, False])
@pytest.mark.parametrize("policy", [Policy.NONE, Policy.BEST_EFFORT])
def test_without_strict_alignment_only_totals_count(policy, fit_check):
    one = large(policy, memory=False, fit_check=fit_check)
    waits = pod("waits", cpu="14", nic="1")

    assert may_pass(one, pod("small", cpu="14"), waits)
    assert not may_pass(one, pod("small", cpu="16"), waits)


def test_a_pod_that_takes_nothing_the_other_requests_passes():
    one = large(max_pods=10)
    besteffort = Pod(name="b", uid="b", containers=(replace(pod().containers[0], resources=type(pod().resources)()),))

    assert may_pass(one, besteffort, pod("waits", cpu="16", nic="1"))


def test_the_number_of_pods_counts():
    waits = pod("waits", cpu="1", nic="1")

    assert may_pass(large(max_pods=3), pod("small", cpu="1"), waits)
    assert not may_pass(large(max_pods=2), pod("small", cpu="1"), waits)
    assert may_pass(large(max_pods=2, fit_check=False), pod("small", cpu="1"), waits)


def test_devices_that_both_request_count():
    one = large()
    more = tuple(Device(GPU, f"more-{number}", nodes=0b01) for number in range(3))
    one = Host(replace(one.machine, devices=(*one.machine.devices, *more)), one.settings)

    assert may_pass(one, pod("small", cpu="1", gpu="1"), pod("waits", cpu="1", gpu="3"))
    assert not may_pass(one, pod("small", cpu="1", gpu="1"), pod("waits", cpu="1", gpu="4"))


def test_a_device_that_a_plugin_has_yet_to_choose_counts():
    one = large()
    small = pod("small", cpu="1", gpu="1")

    assert may_pass(one, small, pod("waits", cpu="1", nic="1"), undecided=[GPU])
    assert not may_pass(one, small, pod("waits", cpu="1", nic="1"), undecided=[NIC])


def test_memory_counts_by_node():
    one = large()
    waits = pod("waits", cpu="1", memory="10Gi", nic="1")

    assert may_pass(one, pod("small", cpu="1", memory="4Gi"), waits)
    assert not may_pass(one, pod("small", cpu="1", memory="6Gi"), waits)


def test_memory_on_several_nodes_counts():
    one = host(Policy.NONE, shape=LARGE)

    assert not may_pass(one, pod("wide", cpu="1", memory="20Gi"), pod("waits", cpu="1", memory="1Gi", nic="1"))
    assert may_pass(one, pod("wide", cpu="1", memory="1Gi"), pod("waits", cpu="1", memory="1Gi", nic="1"))


def test_memory_with_best_effort_alignment_always_counts():
    """A group of nodes may be refused because of memory that is allocated on one of them alone."""
    one = large(Policy.BEST_EFFORT)

    assert not may_pass(one, pod("small", cpu="1"), pod("waits", cpu="1", nic="1"))


def test_a_decision_that_rejects_takes_nothing():
    one = large()

    assert not competes(one, one.decide(pod("huge", cpu="30")), [pod("waits", cpu="1", nic="1")])


def test_no_pod_passes_one_whose_policy_is_unknown():
    one = large(pod_policy_annotations=True)

    assert not may_pass(one, pod("small", cpu="1"), pod("waits", {POLICY_ANNOTATION: "strictest"}, nic="1"))


#: Small hosts on which much depends on a single CPU, device or GiB.
OPTIONS = ((), (), ("full-pcpus-only",), ("distribute-cpus-across-numa",), ("align-by-socket",))


@st.composite
def small_hosts(draw: st.DrawFn) -> Host:
    policy = draw(st.sampled_from((*Policy, Policy.RESTRICTED, Policy.SINGLE_NUMA_NODE)))
    options = (
        draw(st.sampled_from(OPTIONS)) if policy is not Policy.SINGLE_NUMA_NODE else draw(st.sampled_from(OPTIONS[:-1]))
    )
    one = host(
        policy,
        draw(st.sampled_from(Scope)),
        shape=draw(st.sampled_from(("pack:2 numa:1 core:4 pu:2", "pack:1 numa:3 core:4 pu:1"))),
        memory=draw(st.booleans()),
        max_pods=draw(st.sampled_from((4, 110))),
        gates=FeatureGates({"CPUManagerPolicyAlphaOptions": True, "PodLevelResourceManagers": draw(st.booleans())}),
    )
    cpus = replace(one.settings.cpus, options=dict.fromkeys(options, "true"))
    places = st.sampled_from((0b01, 0b10, 0b11, None))
    devices = [
        Device(resource, f"{resource}-{number}", nodes=draw(places))
        for resource, most in ((GPU, 4), (NIC, 2))
        for number in range(draw(st.integers(1, most)))
    ]
    return Host(replace(one.machine, devices=tuple(devices)), replace(one.settings, cpus=cpus))


@st.composite
def small_pods(draw: st.DrawFn, uid: str) -> Pod:
    """A Guaranteed pod of one to three containers, some with init containers or pod-level resources."""

    def container(name: str, *, sidecar: bool = False) -> Container:
        devices = draw(st.sampled_from(({}, {}, {GPU: "1"}, {GPU: "2"}, {NIC: "1"}, {NIC: "2"}, {GPU: "1", NIC: "1"})))
        amounts = {"cpu": str(draw(st.integers(1, 4))), "memory": f"{draw(st.sampled_from((1, 4, 9)))}Gi"}
        return guaranteed(name, {**amounts, **devices}, sidecar=sidecar)

    init = [container("init", sidecar=draw(st.booleans()))] if draw(st.integers(0, 3)) == 3 else []
    containers = [container(f"app-{number}") for number in range(draw(st.sampled_from((1, 1, 1, 2))))]
    made = Pod(name=uid, uid=uid, init=tuple(init), containers=tuple(containers))
    if draw(st.integers(0, 5)) == 5:
        total = demand.requests(made)
        whole = {name: total[name] for name in ("cpu", "memory")}
        made = replace(made, resources=Resources(whole, whole))
    return made


@settings(max_examples=examples(100))
@given(st.data())
def test_whatever_is_released_a_pod_that_passed_keeps_no_waiting_pod_out(data):
    one = data.draw(small_hosts())
    residents = [data.draw(small_pods(f"r{number}")) for number in range(data.draw(st.integers(0, 3)))]
    admitted = [each.uid for each in residents if one.admit(each).admitted]
    waits, passes = data.draw(small_pods("waits")), data.draw(small_pods("passes"))
    released = data.draw(st.permutations(admitted))[: data.draw(st.integers(0, 3))]
    without, decision = copy(one), one.admit(passes)
    if not decision.admitted or competes(one, decision, [waits]):
        return

    for uid in released:
        one.release(uid)
        without.release(uid)

    did("pods that passed")
    assert one.decide(waits).admitted or not without.decide(waits).admitted, f"{passes} keeps {waits} out"


def test_cpus_on_nodes_count_even_if_the_total_suffices():
    one = large()

    assert not may_pass(one, pod("small", cpu="2", memory="1Gi"), pod("waits", cpu="12", gpu="1"))


def test_memory_on_a_node_counts_for_every_type_that_is_requested():
    """Memory taken on one node keeps that node out of a group with the node that has the huge pages."""
    one = host(Policy.RESTRICTED, shape=LARGE)
    machine = replace(
        one.machine,
        nodes=tuple(
            replace(node, hugepages=(HugePages(size=2 << 20, count=8 * node.id),)) for node in one.machine.nodes
        ),
    )
    huge = guaranteed("app", {"cpu": "1", "memory": "1Gi", "hugepages-2Mi": "4Mi"})
    waits = Pod(name="waits", uid="waits", containers=(huge,))

    assert not may_pass(Host(machine, one.settings), pod("small", cpu="1"), waits)


def test_devices_without_topology_restrict_no_pod_to_their_nodes():
    one = large()
    devices = tuple(replace(device, nodes=None) if device.resource == NIC else device for device in one.machine.devices)
    anywhere = Host(replace(one.machine, devices=devices), one.settings)
    anywhere.admit(pod("first", cpu="8"))

    assert not may_pass(anywhere, pod("fills", cpu="8"), pod("waits", cpu="12", nic="1"))
