"""A pod may be admitted before a waiting one only if it takes nothing that the waiting one could use."""

from collections.abc import Sequence
from copy import copy
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from alignup.align.host import Host
from alignup.align.machine import Device, HugePages
from alignup.align.overtaking import competes
from alignup.align.settings import FeatureGates, Policy, Scope
from alignup.align.workload import Container, Pod, Resources, demand
from alignup.align.workload.names import POLICY_ANNOTATION
from tests.align.hosts import GPU, NIC, make_host, make_pod
from tests.effort import did, examples
from tests.strategies_pods import guaranteed

LARGE = "pack:2 numa:1 core:16 pu:1"


GPUS = (Device(GPU, "gpu-0", nodes=0b01), Device(GPU, "gpu-1", nodes=0b10))
ONE_NIC = (*GPUS, Device(NIC, "nic-0", nodes=0b01))


def large(policy: Policy = Policy.SINGLE_NUMA_NODE, *, devices: Sequence[Device] = ONE_NIC, **settings) -> Host:
    """Two NUMA nodes of 16 CPUs with a GPU each, and one NIC, on node 0, that a pod holds."""
    host = make_host(policy, shape=LARGE, devices=devices, **settings)
    assert host.admit(make_pod("holder", cpu="2", nic="1")).admitted
    return host


def may_pass(host: Host, wanted: Pod, *waiting: Pod, **options) -> bool:
    decision = host.decide(wanted)
    assert decision.admitted
    return not competes(host, decision, waiting, **options)


def test_a_pod_passes_one_that_waits_for_a_device_if_enough_is_left_for_it():
    host = large()
    waits = make_pod("waits", cpu="8", nic="1")

    assert not host.decide(waits).admitted
    assert may_pass(host, make_pod("small", cpu="1"), waits)


def test_a_pod_does_not_pass_if_it_leaves_too_few_cpus_on_a_node_the_other_could_use():
    host = large()

    assert not may_pass(host, make_pod("small", cpu="2"), make_pod("waits", cpu="12", nic="1"))
    assert not may_pass(
        host, make_pod("small", cpu="1"), *(make_pod(f"waits-{number}", cpu="5", nic="1") for number in range(3))
    )


def test_a_pod_passes_on_a_node_that_the_other_cannot_use():
    host = large()
    assert host.admit(make_pod("first", cpu="8")).placements[0].hint.nodes == 0b01

    fills = make_pod("fills", cpu="6")

    assert host.decide(fills).placements[0].hint.nodes == 0b10
    assert may_pass(host, fills, make_pod("waits", cpu="12", nic="1"))
    assert not may_pass(host, fills, make_pod("waits", cpu="12", gpu="1"))


def test_a_pod_with_several_containers_could_use_any_node():
    host = large()
    host.admit(make_pod("first", cpu="8"))
    waits = make_pod("waits", cpu="7", nic="1")
    more = make_pod("more", cpu="4").containers[0]
    both = replace(waits, containers=(*waits.containers, replace(more, name="more")))

    assert may_pass(host, make_pod("fills", cpu="6"), waits)
    assert not may_pass(host, make_pod("fills", cpu="6"), both)


@pytest.mark.parametrize("fit_check", [True, False])
@pytest.mark.parametrize("policy", [Policy.NONE, Policy.BEST_EFFORT])
def test_without_strict_alignment_only_totals_count(policy, fit_check):
    host = large(policy, memory=False, fit_check=fit_check)
    waits = make_pod("waits", cpu="14", nic="1")

    assert may_pass(host, make_pod("small", cpu="14"), waits)
    assert not may_pass(host, make_pod("small", cpu="16"), waits)


def test_a_pod_that_takes_nothing_the_other_requests_passes():
    host = large(max_pods=10)
    besteffort = Pod(
        name="b", uid="b", containers=(replace(make_pod().containers[0], resources=type(make_pod().resources)()),)
    )

    assert may_pass(host, besteffort, make_pod("waits", cpu="16", nic="1"))


def test_the_number_of_pods_counts():
    waits = make_pod("waits", cpu="1", nic="1")

    assert may_pass(large(max_pods=3), make_pod("small", cpu="1"), waits)
    assert not may_pass(large(max_pods=2), make_pod("small", cpu="1"), waits)
    assert may_pass(large(max_pods=2, fit_check=False), make_pod("small", cpu="1"), waits)


def test_devices_that_both_request_count():
    host = large(devices=(*ONE_NIC, *(Device(GPU, f"more-{number}", nodes=0b01) for number in range(3))))

    assert may_pass(host, make_pod("small", cpu="1", gpu="1"), make_pod("waits", cpu="1", gpu="3"))
    assert not may_pass(host, make_pod("small", cpu="1", gpu="1"), make_pod("waits", cpu="1", gpu="4"))


def test_a_device_that_a_plugin_has_yet_to_choose_counts():
    host = large()
    small = make_pod("small", cpu="1", gpu="1")

    assert may_pass(host, small, make_pod("waits", cpu="1", nic="1"), resources=[GPU])
    assert not may_pass(host, small, make_pod("waits", cpu="1", nic="1"), resources=[NIC])


def test_memory_counts_by_node():
    host = large()
    waits = make_pod("waits", cpu="1", memory="10Gi", nic="1")

    assert may_pass(host, make_pod("small", cpu="1", memory="4Gi"), waits)
    assert not may_pass(host, make_pod("small", cpu="1", memory="6Gi"), waits)


def test_memory_on_several_nodes_counts():
    host = make_host(Policy.NONE, shape=LARGE)

    assert not may_pass(
        host, make_pod("wide", cpu="1", memory="20Gi"), make_pod("waits", cpu="1", memory="1Gi", nic="1")
    )
    assert may_pass(host, make_pod("wide", cpu="1", memory="1Gi"), make_pod("waits", cpu="1", memory="1Gi", nic="1"))


def test_memory_with_best_effort_alignment_always_counts():
    """A group of nodes may be refused because of memory that is allocated on one of them alone."""
    host = large(Policy.BEST_EFFORT)

    assert not may_pass(host, make_pod("small", cpu="1"), make_pod("waits", cpu="1", nic="1"))


def test_a_decision_that_rejects_takes_nothing():
    host = large()

    assert not competes(host, host.decide(make_pod("huge", cpu="30")), [make_pod("waits", cpu="1", nic="1")])


def test_no_pod_passes_one_whose_policy_is_unknown():
    host = large(pod_policy_annotations=True)

    assert not may_pass(host, make_pod("small", cpu="1"), make_pod("waits", {POLICY_ANNOTATION: "strictest"}, nic="1"))


#: Small hosts on which much depends on a single CPU, device or GiB.
OPTIONS = ((), (), ("full-pcpus-only",), ("distribute-cpus-across-numa",), ("align-by-socket",))


@st.composite
def small_hosts(draw: st.DrawFn) -> Host:
    policy = draw(st.sampled_from((*Policy, Policy.RESTRICTED, Policy.SINGLE_NUMA_NODE)))
    options = (
        draw(st.sampled_from(OPTIONS)) if policy is not Policy.SINGLE_NUMA_NODE else draw(st.sampled_from(OPTIONS[:-1]))
    )
    places = st.sampled_from((0b01, 0b10, 0b11, None))
    devices = [
        Device(resource, f"{resource}-{number}", nodes=draw(places))
        for resource, most in ((GPU, 4), (NIC, 2))
        for number in range(draw(st.integers(1, most)))
    ]
    static = make_host().settings.cpus
    return make_host(
        policy,
        draw(st.sampled_from(Scope)),
        shape=draw(st.sampled_from(("pack:2 numa:1 core:4 pu:2", "pack:1 numa:3 core:4 pu:1"))),
        devices=devices,
        cpus=replace(static, options=dict.fromkeys(options, "true")),
        memory=draw(st.booleans()),
        max_pods=draw(st.sampled_from((4, 110))),
        gates=FeatureGates({"CPUManagerPolicyAlphaOptions": True, "PodLevelResourceManagers": draw(st.booleans())}),
    )


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
    host = data.draw(small_hosts())
    residents = [data.draw(small_pods(f"r{number}")) for number in range(data.draw(st.integers(0, 3)))]
    admitted = [each.uid for each in residents if host.admit(each).admitted]
    waits, passes = data.draw(small_pods("waits")), data.draw(small_pods("passes"))
    released = data.draw(st.permutations(admitted))[: data.draw(st.integers(0, 3))]
    without, decision = copy(host), host.admit(passes)
    if not decision.admitted or competes(host, decision, [waits]):
        return

    for uid in released:
        host.release(uid)
        without.release(uid)

    did("pods that passed")
    assert host.decide(waits).admitted or not without.decide(waits).admitted, f"{passes} keeps {waits} out"


def test_cpus_on_nodes_count_even_if_the_total_suffices():
    host = large()

    assert not may_pass(host, make_pod("small", cpu="2", memory="1Gi"), make_pod("waits", cpu="12", gpu="1"))


def test_memory_on_a_node_counts_for_every_type_that_is_requested():
    """Memory taken on one node keeps that node out of a group with the node that has the huge pages."""
    host = make_host(Policy.RESTRICTED, shape=LARGE)
    machine = replace(
        host.machine,
        nodes=tuple(
            replace(node, hugepages=(HugePages(size=2 << 20, count=8 * node.id),)) for node in host.machine.nodes
        ),
    )
    huge = guaranteed("app", {"cpu": "1", "memory": "1Gi", "hugepages-2Mi": "4Mi"})
    waits = Pod(name="waits", uid="waits", containers=(huge,))

    assert not may_pass(Host(machine, host.settings), make_pod("small", cpu="1"), waits)


def test_devices_without_topology_restrict_no_pod_to_their_nodes():
    host = large(devices=(*GPUS, Device(NIC, "nic-0")))
    host.admit(make_pod("first", cpu="8"))

    assert not may_pass(host, make_pod("fills", cpu="8"), make_pod("waits", cpu="12", nic="1"))
