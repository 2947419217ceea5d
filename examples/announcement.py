"""The worked example of the Topology Manager's announcement, step by step: hints, merging, the verdict of each policy.

Two NUMA nodes, each with four CPUs, a GPU and a NIC; containers ask for 2 CPUs, 1 GPU and 1 NIC (``make run``).
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
from alignup.align.synthetic import parse
from alignup.align.workload import Container, Pod, Resources
from alignup.align.workload.validation import accept

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
    """A pod of one container that has limits only, as the API server would store it."""
    amounts = {resource: Quantity.parse(amount) for resource, amount in limits.items()}
    return accept(Pod(name=name, uid=name, containers=(Container("app", Resources(limits=amounts)),)))


def host(policy: Policy) -> Host:
    """The machine under *policy*; one CPU is kept for the system, as the kubelet wants it."""
    one = Quantity.parse("1")
    settings = Settings(
        topology=TopologySettings(policy=policy),
        cpus=CpuSettings(policy="static", reservation=one),
        reservation={"cpu": one},
    )
    return Host(announcement_machine(), settings)


def main() -> None:
    """Tell the story."""
    machine = announcement_machine()
    print("The machine")
    for node, cpus in machine.kubelet_view().node_cpus.items():
        devices = "  ".join(device.id for device in machine.devices if device.nodes == 1 << node)
        print(f"  node {node}   CPUs {bits.show(cpus)}   {devices}")
    print("\nCPU 0 is kept for the system. Containers ask for 2 CPUs, 1 GPU and 1 NIC.")
    scene("1. The machine is empty.", [])
    scene("2. One such container runs on node 0. Here comes a second.", [pod("first", **ALIGNED)])
    elsewhere = [
        pod("renderer", **{GPU: "1", NIC: "1", "memory": "200Mi"}),
        pod("cruncher", cpu="4", memory="200Mi"),
    ]
    scene("3. Free CPUs are left on node 0 only; a GPU and a NIC on node 1 only.", elsewhere)
    workload()


def scene(title: str, running: Sequence[Pod]) -> None:
    """The next container on a machine where *running* are: what is said, how it is merged, each policy's verdict."""
    print(f"\n{title}\n")
    decisions = {}
    for policy in Policy:
        one = host(policy)
        for each in running:
            one.admit(each)
        decisions[policy] = one.decide(pod("next", **ALIGNED))
    step = decisions[Policy.BEST_EFFORT].steps[0]
    print("   Hints: sets of nodes that have enough (* preferred: as few nodes as an empty machine needs)")
    for voice in step.resources:
        if voice.resource:
            print(f"     {voice.resource:<20} {' '.join(map(mark, shown_hints(voice).hints)):<18} free {free(voice)}")
    print(f"\n   Merged: {merged(step)}\n")
    for policy, decision in decisions.items():
        print(f"     {policy:<18} {said(decision)}")


def free(voice: ResourceHints) -> str:
    """What each node has of it."""
    return ", ".join(f"{amount} on node {node}" for node, amount in (voice.free or {}).items())


def mark(hint: Hint) -> str:
    """A set of nodes, with a star when it is preferred."""
    nodes = "anywhere" if hint.nodes is None else f"{{{bits.show(hint.nodes)}}}"
    return nodes + ("*" if hint.preferred else "")


def merged(step: MergeStep) -> str:
    """Which set won, by which rule, and over which others."""
    others = ", ".join(f"{{{bits.show(nodes)}}}" for nodes in step.runners_up)
    over = f"\n           (also possible: {others}; the lower node numbers win)" if others else ""
    return f"{mark(step.hint)}, {step.rule}{over}"


def said(decision: Decision) -> str:
    """The verdict in a sentence."""
    if decision.rejection:
        return f"refused:  {decision.rejection.reason}: {decision.rejection.message}"
    placement = decision.placements[0]
    if decision.policy is Policy.NONE:
        return f"admitted: nobody is asked, nothing is aligned: {given(placement)}"
    return f"admitted: {mark(placement.hint)} {given(placement)}"


def given(placement: Placement) -> str:
    """What a container got of its own."""
    own = [
        f"CPUs {what}" if resource == "cpu" else what
        for resources in placement.as_text().values()
        for resource, what in resources.items()
    ]
    return ", ".join(own) or "(nothing of its own: it runs on the shared CPUs)"


def workload() -> None:
    """A small workload comes and goes under single-numa-node."""
    print("\n4. A small workload, under single-numa-node.\n")
    one = host(Policy.SINGLE_NUMA_NODE)
    for name, limits in (
        ("train-a", ALIGNED),
        ("train-b", ALIGNED),
        ("web", {"cpu": "500m", "memory": "100Mi"}),
        ("train-c", ALIGNED),
    ):
        show(one.admit(pod(name, **limits)))
    one.release("train-a")
    print("     train-a ends")
    show(one.admit(pod("train-c", **ALIGNED)))


def show(decision: Decision) -> None:
    """One line a decision; a refusal says what was missing where."""
    print(f"     {decision.name:<9} {said(decision)}")
    if decision.rejection:
        for short in decision.rejection.shortfalls:
            where = "the host" if short.nodes is None else f"node {bits.show(short.nodes)}"
            print(f"     {'':<9}   {short.resource}: {short.needed} needed, {short.free} free on {where}")


if __name__ == "__main__":
    main()
