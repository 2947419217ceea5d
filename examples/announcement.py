"""The worked example of the Topology Manager's announcement, step by step: hints, merging, the result of each policy.

Two NUMA nodes, each with four CPUs, a GPU and a NIC; containers request 2 CPUs, 1 GPU and 1 NIC (``make run``).
"""

from collections.abc import Sequence
from dataclasses import replace

from alignup.align import bits
from alignup.align.cpus.options import CpuSettings
from alignup.align.decision import Decision, MergeStep, Placement, ResourceHints, shown_hints
from alignup.align.hint import Hint
from alignup.align.host import Host, Settings
from alignup.align.machine import Device, Machine
from alignup.align.quantity import Quantity
from alignup.align.settings import Policy, TopologySettings
from alignup.align.workload import Container, Pod, Resources
from alignup.align.workload.validation import accept
from alignup.machines.synthetic import parse

GPU, NIC = "gpu-vendor.com/gpu", "nic-vendor.com/nic"
ALIGNED = {"cpu": "2", "memory": "200Mi", GPU: "1", NIC: "1"}


def announcement_machine() -> Machine:
    """Figure 1 of the announcement."""
    devices = tuple(
        Device(resource, f"{resource.rpartition('/')[2]}-{node}", nodes=1 << node)
        for resource in (GPU, NIC)
        for node in (0, 1)
    )
    return replace(parse("pack:2 numa:1 core:4 pu:1"), devices=devices)


def pod(name: str, **limits: str) -> Pod:
    """Return a pod with one container and limits only, as the API server stores it."""
    amounts = {resource: Quantity.parse(amount) for resource, amount in limits.items()}
    return accept(Pod(name=name, uid=name, containers=(Container("app", Resources(limits=amounts)),)))


def host(policy: Policy) -> Host:
    """Return the machine with *policy*; one CPU is reserved for the system, as the kubelet requires."""
    single = Quantity.parse("1")
    settings = Settings(
        topology=TopologySettings(policy=policy),
        cpus=CpuSettings(policy="static", reservation=single),
        reservation={"cpu": single},
    )
    return Host(announcement_machine(), settings)


def main() -> None:
    machine = announcement_machine()
    print("The machine")
    for node, cpus in machine.kubelet_view().node_cpus.items():
        devices = "  ".join(device.id for device in machine.devices if device.nodes == 1 << node)
        print(f"  node {node}   CPUs {bits.show(cpus)}   {devices}")
    print("\nCPU 0 is reserved for the system. Containers request 2 CPUs, 1 GPU and 1 NIC.")
    show_policies("1. The machine is empty.", [])
    show_policies("2. One such container runs on node 0; a second one arrives.", [pod("first", **ALIGNED)])
    elsewhere = [
        pod("renderer", **{GPU: "1", NIC: "1", "memory": "200Mi"}),
        pod("cruncher", cpu="4", memory="200Mi"),
    ]
    show_policies("3. Only node 0 has free CPUs; only node 1 has a free GPU and NIC.", elsewhere)
    show_workload()


def show_policies(title: str, running: Sequence[Pod]) -> None:
    """Print the hints for the next container beside *running*, their merge, and the result of each policy."""
    print(f"\n{title}\n")
    decisions = {}
    for policy in Policy:
        node = host(policy)
        for each in running:
            node.admit(each)
        decisions[policy] = node.decide(pod("next", **ALIGNED))
    step = decisions[Policy.BEST_EFFORT].steps[0]
    print("   Hints: sets of nodes with enough free (* preferred: as few nodes as an empty machine needs)")
    for resource in step.resources:
        if resource.resource:
            hints = " ".join(map(format_hint, shown_hints(resource).hints))
            print(f"     {resource.resource:<20} {hints:<18} free {format_free(resource)}")
    print(f"\n   Merged: {format_merge(step)}\n")
    for policy, decision in decisions.items():
        print(f"     {policy:<18} {format_result(decision)}")


def format_free(resource: ResourceHints) -> str:
    return ", ".join(f"{amount} on node {node}" for node, amount in (resource.free or {}).items())


def format_hint(hint: Hint) -> str:
    """Return a set of nodes, with a star if it is preferred."""
    nodes = "anywhere" if hint.nodes is None else f"{{{bits.show(hint.nodes)}}}"
    return nodes + ("*" if hint.preferred else "")


def format_merge(step: MergeStep) -> str:
    """Return the winner, the rule, and the runners-up."""
    others = ", ".join(f"{{{bits.show(nodes)}}}" for nodes in step.runners_up)
    over = f"\n           (also possible: {others}; the lower node numbers win)" if others else ""
    return f"{format_hint(step.hint)}, {step.rule}{over}"


def format_result(decision: Decision) -> str:
    if decision.rejection:
        return f"rejected: {decision.rejection.reason}: {decision.rejection.message}"
    placement = decision.placements[0]
    if decision.policy is Policy.NONE:
        return f"admitted: not aligned: {format_allocation(placement)}"
    return f"admitted: {format_hint(placement.hint)} {format_allocation(placement)}"


def format_allocation(placement: Placement) -> str:
    parts = [
        f"CPUs {text}" if resource == "cpu" else text
        for resources in placement.as_text().values()
        for resource, text in resources.items()
    ]
    return ", ".join(parts) or "(shared CPU pool)"


def show_workload() -> None:
    """Admit and release a small workload under single-numa-node."""
    print("\n4. A small workload under single-numa-node.\n")
    node = host(Policy.SINGLE_NUMA_NODE)
    for name, limits in (
        ("train-a", ALIGNED),
        ("train-b", ALIGNED),
        ("web", {"cpu": "500m", "memory": "100Mi"}),
        ("train-c", ALIGNED),
    ):
        show_decision(node.admit(pod(name, **limits)))
    node.release("train-a")
    print("     train-a ends")
    show_decision(node.admit(pod("train-c", **ALIGNED)))


def show_decision(decision: Decision) -> None:
    """Print one line per decision, and the shortfalls of a rejection."""
    print(f"     {decision.name:<9} {format_result(decision)}")
    if decision.rejection:
        for short in decision.rejection.shortfalls:
            where = "the host" if short.nodes is None else f"node {bits.show(short.nodes)}"
            print(f"     {'':<9}   {short.resource}: {short.needed} needed, {short.free} free on {where}")


if __name__ == "__main__":
    main()
