"""Pods coming, starting and going, devices changing, the host restarting, in any order on any host: what must hold.

Some properties hold only with a proviso; the exact statement stands in the docstring of the check.
"""

import json
from collections import Counter
from dataclasses import replace
from itertools import chain

from hypothesis import HealthCheck, event, given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from alignup.align import bits
from alignup.align.admit import decide
from alignup.align.bits import NodeSet
from alignup.align.decision import Decision
from alignup.align.fit import UsedResources
from alignup.align.hint import Hint
from alignup.align.host import Host
from alignup.align.memory.ledger import Block
from alignup.align.settings import Policy, Scope
from alignup.align.workload import Container, Pod
from alignup.documents.decisions import from_document, to_document
from tests.align.hosts import GIB, admit, arrivals, devices, hosts, make_host
from tests.align.hosts import pod as small
from tests.effort import examples
from tests.strategies_pods import DEVICES, guaranteed


class Life(RuleBasedStateMachine):
    """A host followed from event to event."""

    @initialize(host=hosts(), data=st.data())
    def boot(self, host: Host, data: st.DataObject) -> None:
        self.host = host
        self.idle = host.ledger
        self.number = 0
        for _ in range(3):
            self.admit(data)

    def one(self, pick: int) -> Pod | None:
        """One of the pods that are there, if there are any."""
        residents = list(self.host.ledger.pods.values())
        return residents[pick % len(residents)].pod if residents else None

    @rule(data=st.data())
    def admit(self, data: st.DataObject) -> None:
        self.number += 1
        pod = data.draw(arrivals(f"u{self.number}"))
        before = self.host.ledger
        decision = admit(self.host, pod)
        document = to_document(decision)
        assert to_document(from_document(json.loads(json.dumps(document)))) == document
        event(f"{decision.policy}: {decision.rejection.reason if decision.rejection else 'admitted'}")
        if not decision.admitted:
            assert self.host.ledger is before, "a rejected pod left something behind"
            assert decision.rejection
            return
        check_complete(self.host, pod, decision)
        check_promises(self.host, pod, decision)
        check_again(self.host, pod, decision)

    @rule(pick=st.integers(0, 9), container=st.integers(0, 9))
    def start(self, pick: int, container: int) -> None:
        if pod := self.one(pick):
            self.host.start_container(pod.uid, pod.all_containers[container % len(pod.all_containers)].name)

    @rule(pick=st.integers(0, 9))
    def release(self, pick: int) -> None:
        if pod := self.one(pick):
            self.host.release(pod.uid)
            assert not any(
                pod.uid in provider_ledger.held
                for provider_ledger in (self.host.ledger.cpus, self.host.ledger.memory, self.host.ledger.devices)
            )

    @rule(data=st.data(), resource=st.sampled_from(DEVICES))
    def announce(self, data: st.DataObject, resource: str) -> None:
        held = {uid: dict(containers) for uid, containers in self.host.ledger.devices.held.items()}
        self.host.update_devices(resource, data.draw(devices(resource, [node.id for node in self.host.machine.nodes])))
        assert self.host.ledger.devices.held == held, "pods keep their devices, whatever a plugin says"

    @rule()
    def restart(self) -> None:
        """On the stored ledger every pod keeps what it has and is never rejected again."""
        before = self.host.ledger
        self.host = Host(self.host.machine, self.host.settings, ledger=before)
        for resident in before.pods.values():
            decision = self.host.admit(resident.pod)
            assert decision.admitted
            assert decision.kept
        assert self.host.ledger is before

    @invariant()
    def nothing_is_given_twice_and_nothing_is_lost(self) -> None:
        check_cpus(self.host)
        check_memory(self.host)
        check_devices(self.host)
        check_fit(self.host)

    def teardown(self) -> None:
        """With every pod gone there is as much as in the beginning."""
        if not hasattr(self, "host"):
            return
        for uid in tuple(self.host.ledger.pods):
            self.host.release(uid)
        ledger = self.host.ledger
        assert (ledger.pods, ledger.used) == ({}, UsedResources())
        cpus, memory, held = ledger.cpus, ledger.memory, ledger.devices
        assert (cpus.shared, cpus.held, cpus.pod_held) == (self.idle.cpus.shared, {}, {})
        assert (memory.nodes, memory.held, memory.pod_held) == (self.idle.memory.nodes, {}, {})
        assert (held.held, held.in_use) == ({}, {})
        assert held.free == {resource: inventory.healthy for resource, inventory in held.inventories.items()}


TestLife = Life.TestCase
TestLife.settings = settings(
    max_examples=examples(120), stateful_step_count=10, deadline=None, suppress_health_check=[HealthCheck.too_slow]
)


def check_cpus(host: Host) -> None:
    """Every CPU is shared or owned by one pod; reserved ones are never owned."""
    ledger = host.ledger.cpus
    owned = 0
    for uid in {*ledger.held, *ledger.pod_held}:
        pod_cpus = ledger.owned(uid)
        assert not pod_cpus & (owned | ledger.shared | ledger.reserved), (
            f"CPUs {bits.show(pod_cpus)} of {uid} have two owners"
        )
        owned |= pod_cpus
    assert owned | ledger.shared == host.cpus.initial_ledger().shared
    assert not ledger.lost


def check_memory(host: Host) -> None:
    """Every byte of every node and type is free or reserved, and each group reserves just what its blocks hold."""
    memory = host.ledger.memory
    held: Counter[tuple[NodeSet, str]] = Counter()
    for block in charged(host):
        held[block.nodes, block.type] += block.size
    reserved: Counter[tuple[NodeSet, str]] = Counter()
    for id_, node in memory.nodes.items():
        for type_, table in node.tables.items():
            assert table.free >= 0 <= table.reserved, f"{type_} of node {id_}"
            assert table.free + table.reserved == table.allocatable, f"{type_} of node {id_}"
            reserved[node.cells, type_] += table.reserved
    assert +held == +reserved


def charged(host: Host) -> list[Block]:
    memory = host.ledger.memory
    alone = [containers for uid, containers in memory.held.items() if uid not in memory.pod_held]
    return [
        *chain(*memory.pod_held.values()),
        *chain(*(blocks for container_blocks in alone for blocks in container_blocks.values())),
    ]


def check_devices(host: Host) -> None:
    """Every device has at most one pod, and is free only if it is healthy and has none."""
    devices = host.ledger.devices
    holders = Counter(
        (resource, id_)
        for uid, containers in devices.held.items()
        for resource in {name for devices in containers.values() for name in devices}
        for id_ in devices.owned(uid, resource)
    )
    assert set(holders.values()) <= {1}, "a device has two owners"
    for resource, inventory in devices.inventories.items():
        taken = inventory.find(id_ for name, id_ in holders if name == resource)
        assert devices.free[resource] == inventory.healthy & ~taken


def check_fit(host: Host) -> None:
    """What all pods use together is what each of them uses, and no more than there is, if that is checked."""
    ledger = host.ledger
    total = UsedResources()
    for resident in ledger.pods.values():
        total = total.plus(resident.usage)
    assert ledger.used == total
    room = host.rules.allocatable
    if room and ledger.pods:
        assert total.milli_cpu <= room.milli_cpu
        assert total.memory <= room.memory
        assert total.pods <= room.pods


def check_complete(host: Host, pod: Pod, decision: Decision) -> None:
    """Each container has as many CPUs and devices as it is entitled to.

    A pod placed in one piece is given no devices, as in the kubelet, and its containers share what it was given.
    """
    assert [placement.container for placement in decision.placements] == [each.name for each in pod.all_containers]
    ledger = host.ledger
    rules = host.cpus
    if pod.uid in ledger.cpus.pod_held:
        assert ledger.cpus.pod_held[pod.uid].bit_count() == rules.exclusive_cpus(pod)
    as_a_whole = decision.scope is Scope.POD and decision.policy is not Policy.NONE
    in_one_piece = host.rules.pod_level and pod.has_pod_level_resources and as_a_whole
    for container in pod.all_containers:
        held = ledger.devices.holds(pod.uid, container.name)
        limits = {name: amount.value() for name, amount in container.resources.limits.items() if name in DEVICES}
        asked = {name: count for name, count in limits.items() if count and name in ledger.devices.inventories}
        assert {name: len(set(ids)) for name, ids in held.items() if ids} == ({} if in_one_piece else asked)
        if pod.uid not in ledger.cpus.pod_held:
            cpus = ledger.cpus.holds(pod.uid, container.name) or 0
            assert cpus.bit_count() == (0 if in_one_piece else rules.exclusive_cpus(pod, container))


def check_promises(host: Host, pod: Pod, decision: Decision) -> None:
    """What the policies promise.

    - restricted follows preferred hints only, and so does single-numa-node.
    - single-numa-node has one node or none; none without preferences, and on a machine of one node.
    - Under single-numa-node exclusive CPUs of a container never span nodes. Its memory does not either if the hint has
      a node. It may if no hint has one and the memory of the whole pod fits on no node. Memory gives no hints then, as
      in the kubelet, and its containers may still fit one by one (``test_memory_without_hints_may_span_nodes``).
    - Under single-numa-node every device shares a node with the hint if the hint has one and any device of its
      resource is on a node. If no device is, the resource gives no hints, and any device will do.
    """
    if decision.policy in {Policy.RESTRICTED, Policy.SINGLE_NUMA_NODE}:
        assert all(step.hint.preferred and step.accepted for step in decision.steps)
        assert all(placement.hint.preferred for placement in decision.placements)
    if decision.policy is not Policy.SINGLE_NUMA_NODE:
        return
    for container, placement in zip(pod.all_containers, decision.placements, strict=True):
        nodes = placement.hint.nodes
        assert nodes is None or nodes.bit_count() == 1
        assert len(nodes_of_cpus(host, pod, container)) <= 1
        for block in host.ledger.memory.blocks(pod.uid, container.name) or ():
            assert block.nodes.bit_count() == 1 or (nodes is None and memory_had_no_say(decision))
        if nodes is not None:
            check_near(host, pod, container, nodes=nodes)


def nodes_of_cpus(host: Host, pod: Pod, container: Container) -> set[int]:
    cpus = host.ledger.cpus.holds(pod.uid, container.name) or 0
    return {node for node, node_cpus in host.view.node_cpus.items() if node_cpus & cpus}


def memory_had_no_say(decision: Decision) -> bool:
    (step,) = decision.steps
    assert decision.scope is Scope.POD
    return all(resource.has_no_preference for resource in step.resources if resource.provider == "memory")


def check_near(host: Host, pod: Pod, container: Container, *, nodes: NodeSet) -> None:
    devices = host.ledger.devices
    for resource, ids in devices.holds(pod.uid, container.name).items():
        inventory = devices.inventories[resource]
        if inventory.placed:
            assert inventory.find(ids) & ~inventory.near(nodes) == 0, f"{resource} {ids} is not near {bits.show(nodes)}"


def check_again(host: Host, pod: Pod, decision: Decision) -> None:
    """Released and admitted again, the pod is placed as before."""
    other = Host(host.machine, host.settings, ledger=host.ledger)
    other.release(pod.uid)
    again = admit(other, pod)
    assert again.placements == decision.placements


def test_memory_without_hints_may_span_nodes():
    """33 GiB fit on no set of nodes, one of three being in use alone, so memory gives no hint; one by one they do."""
    host = make_host(Policy.SINGLE_NUMA_NODE, Scope.POD, shape="pack:3 numa:1 core:4 pu:1")
    host.admit(small("first", cpu="3"))
    containers = (
        guaranteed("large", {"cpu": "500m", "memory": "20Gi"}),
        guaranteed("small", {"cpu": "500m", "memory": "13Gi"}),
    )

    decision = host.admit(Pod(name="b", uid="b", containers=containers))

    assert [placement.hint for placement in decision.placements] == 2 * [Hint(None, preferred=True)]
    assert [placement.as_text()["memory"]["memory"] for placement in decision.placements] == [
        f"1-2={20 * GIB}",
        f"0={13 * GIB}",
    ]


@settings(max_examples=examples(60))
@given(hosts(), st.data())
def test_the_order_of_providers_does_not_matter(host, data):
    """In any order of providers, the merges, the outcome and the placements are the same.

    Only the details of a rejection may differ: of several providers that cannot serve a pod, the first one is reported.
    """
    host = Host(host.machine, replace(host.settings, preferred_allocation=frozenset()))
    for number in range(3):
        host.admit(data.draw(arrivals(f"u{number}")))
    pod = data.draw(arrivals("last"))
    order = data.draw(st.permutations(host.providers))

    straight = host.decide(pod)
    permuted = decide(pod, host.ledger, providers=order, rules=host.rules)

    assert permuted.outcome == straight.outcome
    assert [step.hint for step in permuted.steps] == [step.hint for step in straight.steps]
    assert [step.rule for step in permuted.steps] == [step.rule for step in straight.steps]
    assert permuted.placements == straight.placements
