"""Whether a pod is placed as a policy demands, whatever the policy of its host is."""

from dataclasses import replace

import pytest
from hypothesis import given, reject, settings
from hypothesis import strategies as st

from alignup.align import demanded_policy
from alignup.align.cpus.options import CpuSettings
from alignup.align.demanded_policy import DemandedPolicy, unmet_demand, unplaced_resource
from alignup.align.errors import SettingsError, StateError
from alignup.align.host import Host, Settings
from alignup.align.machine import Device
from alignup.align.quantity import Quantity
from alignup.align.settings import Policy, Scope, TopologySettings
from alignup.align.workload import Pod
from alignup.align.workload.names import POLICY_ANNOTATION
from alignup.align.workload.validation import accept
from alignup.machines.synthetic import parse
from tests.align.hosts import arrivals, hosts
from tests.align.test_admit import Picky
from tests.effort import examples
from tests.strategies_pods import guaranteed


def with_policy(host: Host, policy: Policy, scope: Scope) -> Host:
    topology = replace(host.settings.topology, policy=policy, scope=scope)
    changed = replace(host.settings, topology=topology, pod_policy_annotations=False)
    try:
        return Host(host.machine, changed, ledger=host.ledger)
    except SettingsError:  # align-by-socket and single-numa-node
        reject()


@settings(max_examples=examples(20))
@given(host=hosts(), data=st.data())
@pytest.mark.parametrize("policy", [Policy.RESTRICTED, Policy.SINGLE_NUMA_NODE])
@pytest.mark.parametrize("scope", list(Scope))
def test_a_pod_that_a_policy_places_is_placed_as_it_demands(
    host: Host, data: st.DataObject, policy: Policy, scope: Scope
) -> None:
    strict, loose = with_policy(host, policy, scope), with_policy(host, Policy.BEST_EFFORT, scope)
    for number in range(2):
        pod = data.draw(arrivals(f"u{number}"))
        decision = strict.decide_without_plugins(pod)
        if decision.admitted:
            placed = replace(decision, policy=Policy.BEST_EFFORT)  # as if the loose one had placed it there
            assert not unmet_demand(loose, pod, placed, DemandedPolicy(policy, scope))
            strict.apply(decision)
            loose.ledger = strict.ledger


STATIC = CpuSettings(policy="static", reservation=Quantity.parse("1"), explicit=1)
MACHINE = "pack:2 numa:1(memory=8GiB) core:4 pu:1"


def node(policy: Policy, cpus: CpuSettings = STATIC) -> Host:
    """Return a host of two NUMA nodes with four CPUs and two GPUs each."""
    topology = TopologySettings(policy=policy)
    gpus = [Device("example.com/gpu", f"gpu-{number}", 1 << number // 2) for number in range(4)]
    machine = replace(parse(MACHINE), devices=tuple(gpus))
    return Host(machine, Settings(topology=topology, cpus=cpus))


def trainer(cpu: str, gpus: str = "0") -> Pod:
    amounts = {"cpu": cpu, "memory": "1Gi", **({"example.com/gpu": gpus} if gpus != "0" else {})}
    return accept(Pod(name="trainer", uid="u", containers=(guaranteed("app", amounts),)))


@pytest.mark.parametrize(
    ("pod", "policy", "problem"),
    [
        pytest.param(trainer("3"), Policy.RESTRICTED, "", id="one node holds three CPUs"),
        pytest.param(trainer("6"), Policy.RESTRICTED, "", id="six CPUs need both nodes"),
        pytest.param(trainer("6"), Policy.SINGLE_NUMA_NODE, "demands one", id="but not on a single one"),
        pytest.param(trainer("6"), Policy.BEST_EFFORT, "", id="best-effort demands nothing"),
    ],
)
def test_a_node_without_policy_satisfies_what_it_happens_to_do(pod: Pod, policy: Policy, problem: str) -> None:
    host = node(Policy.NONE)

    unmet = unmet_demand(host, pod, host.decide(pod), DemandedPolicy(policy, Scope.CONTAINER))

    assert problem in str(unmet) if problem else not unmet


def test_devices_and_cpus_on_different_nodes_are_not_restricted() -> None:
    host = node(Policy.NONE)
    host.admit(accept(Pod(name="filler", uid="f", containers=(guaranteed("app", {"cpu": "3", "memory": "1Gi"}),))))
    pod = trainer("4", "2")

    unmet = unmet_demand(host, pod, host.decide(pod), DemandedPolicy(Policy.RESTRICTED, Scope.CONTAINER))

    assert str(unmet).startswith(
        "container app is on NUMA nodes 0-1 (cpu on 1, example.com/gpu on 0), which restricted does not accept for "
    )


def test_a_pod_demands_by_its_annotations() -> None:
    pod = replace(trainer("2"), annotations={POLICY_ANNOTATION: "restricted"})

    assert DemandedPolicy.of(pod, node(Policy.NONE)) == DemandedPolicy(Policy.RESTRICTED, Scope.CONTAINER)


def test_in_pod_scope_all_containers_must_be_on_the_same_numa_nodes() -> None:
    host = node(Policy.NONE)
    containers = tuple(guaranteed(name, {"cpu": "3", "memory": "1Gi"}) for name in ("one", "two"))
    pod = accept(Pod(name="trainer", uid="u", containers=containers))

    each, whole = (
        unmet_demand(host, pod, host.decide(pod), DemandedPolicy(Policy.SINGLE_NUMA_NODE, scope))
        for scope in (Scope.CONTAINER, Scope.POD)
    )

    assert each is None
    assert str(whole) == "the pod is on NUMA nodes 0-1 (cpu on 0-1), and single-numa-node demands one"


def test_hints_of_providers_from_outside_count() -> None:
    plain = node(Policy.NONE)
    host, pod = Host(plain.machine, plain.settings, others=[Picky(node=1)]), trainer("2")

    unmet = unmet_demand(host, pod, host.decide(pod), DemandedPolicy(Policy.SINGLE_NUMA_NODE, Scope.CONTAINER))

    assert str(unmet).endswith("on NUMA node 0 (cpu on 0), which single-numa-node does not accept for example.com/whim")


def test_a_device_on_several_numa_nodes_is_on_one_of_them() -> None:
    host = node(Policy.NONE)
    host.update_devices("example.com/gpu", [Device("example.com/gpu", "gpu-0", nodes=0b11)])
    device = guaranteed("app", {"cpu": "0", "example.com/gpu": "1"})
    pod = Pod(name="trainer", uid="u", containers=(device,))

    assert not unmet_demand(host, pod, host.decide(pod), DemandedPolicy(Policy.SINGLE_NUMA_NODE, Scope.CONTAINER))


def test_more_choices_than_are_tried_are_no_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(demanded_policy, "_MAX_SETS", 1)
    host, pod = node(Policy.NONE), trainer("2", "2")

    unmet = unmet_demand(host, pod, host.predict(pod), DemandedPolicy(Policy.SINGLE_NUMA_NODE, Scope.CONTAINER))

    assert "too many possible choices of devices" in str(unmet)


def test_a_decision_without_ledgers_cannot_be_checked() -> None:
    host, pod = node(Policy.NONE), trainer("2")

    with pytest.raises(StateError, match="is not that of a host that admits it"):
        unmet_demand(host, pod, host.decide(pod).without_ledgers(), DemandedPolicy(Policy.RESTRICTED, Scope.CONTAINER))


def test_every_possible_choice_of_devices_must_satisfy_the_policy() -> None:
    """Without a policy the kubelet takes any GPU: beside the CPUs, or on the other NUMA node."""
    host, pod = node(Policy.NONE), trainer("2", "1")
    demand = DemandedPolicy(Policy.RESTRICTED, Scope.CONTAINER)

    assert not unmet_demand(host, pod, host.decide(pod), demand)
    unmet = unmet_demand(host, pod, host.predict(pod), demand)
    assert "may be on NUMA nodes 0-1 (cpu on 0, example.com/gpu on 1)" in str(unmet)


@pytest.mark.parametrize(
    ("cpus", "unplaced"),
    [
        (CpuSettings(), "the node places no CPUs (cpuManagerPolicy none)"),
        (STATIC, "the node places no memory (memoryManagerPolicy None)"),
    ],
)
def test_a_resource_without_a_manager_is_named(cpus: CpuSettings, unplaced: str) -> None:
    assert unplaced_resource(node(Policy.NONE, cpus), trainer("2")) == unplaced


def test_devices_without_a_numa_node_are_named() -> None:
    host = node(Policy.NONE)
    host.update_devices("example.com/gpu", [Device("example.com/gpu", "gpu-0")])
    device = guaranteed("app", {"cpu": "0", "example.com/gpu": "1"})

    pod = Pod(name="trainer", uid="u", containers=(device,))
    assert unplaced_resource(host, pod) == "devices of example.com/gpu have no NUMA node"
    assert unplaced_resource(node(Policy.NONE), pod) == ""
