"""The worked example of the Topology Manager's announcement, step by step: hints, merging, the verdict of each policy.

Two NUMA nodes, each with four CPUs, a GPU and a NIC; containers ask for 2 CPUs, 1 GPU and 1 NIC (``make run``).
"""

from collections.abc import Mapping

from alignup.align import bits
from alignup.align.hint import Family, Hint, Listed, Source, Supply, sources
from alignup.align.machine import Device, KubeletView, Machine
from alignup.align.policy import Verdict, judge
from alignup.align.settings import Policy
from alignup.align.synthetic import parse

GPU, NIC = "gpu-vendor.com/gpu", "nic-vendor.com/nic"

#: Free CPUs and devices a node: resource → node → how many.
Free = Mapping[str, Mapping[int, int]]

REQUEST = {"cpu": 2, GPU: 1, NIC: 1}

SCENES: tuple[tuple[str, Free], ...] = (
    (
        "The machine is empty.",
        {"cpu": {0: 4, 1: 4}, GPU: {0: 1, 1: 1}, NIC: {0: 1, 1: 1}},
    ),
    (
        "A first such container runs on node 0. Here comes a second one.",
        {"cpu": {0: 2, 1: 4}, GPU: {0: 0, 1: 1}, NIC: {0: 0, 1: 1}},
    ),
    (
        "Two CPUs are left, all on node 0; a GPU and a NIC, both on node 1.",
        {"cpu": {0: 2, 1: 0}, GPU: {0: 0, 1: 1}, NIC: {0: 0, 1: 1}},
    ),
)


def announcement_machine() -> Machine:
    """Figure 1 of the announcement."""
    hardware = parse("pack:2 numa:1 core:4 pu:1")
    devices = tuple(
        Device(resource, f"{resource.rpartition('/')[2]}-{node}", nodes=1 << node)
        for resource in (GPU, NIC)
        for node in (0, 1)
    )
    return Machine(cpus=hardware.cpus, nodes=hardware.nodes, devices=devices)


def hints(free: Free) -> dict[str, Family]:
    """What a provider says of each resource: enough on which nodes?"""
    return {resource: Supply(free[resource], need, preferred_width=1) for resource, need in REQUEST.items()}


def main() -> None:
    """Tell the story."""
    machine = announcement_machine()
    view = machine.kubelet_view()
    print("The machine")
    for node, cpus in view.node_cpus.items():
        devices = ", ".join(device.id for device in machine.devices if device.nodes == 1 << node)
        print(f"  node {node}   CPUs {bits.show(cpus)}   {devices}")
    print("\nA container asks for " + ", ".join(f"{need} {resource}" for resource, need in REQUEST.items()) + ".")
    for number, (title, free) in enumerate(SCENES, start=1):
        print(f"\n{number}. {title}\n")
        tell(free, view)


def tell(free: Free, view: KubeletView) -> None:
    """One scene: what is said, how it is merged, what each policy makes of it."""
    voices = sources({"providers": hints(free)})
    print("   Hints: the sets of nodes with enough of it (* preferred: as few nodes as an empty machine needs)")
    for voice in voices:
        print(f"     {voice.name:<20} {spelled_out(voice)}")
    verdicts = {policy: judge(policy, voices, nodes=view.all_nodes) for policy in Policy}
    print(f"\n   Merged: {merged(verdicts[Policy.RESTRICTED])}\n")
    for policy, verdict in verdicts.items():
        print(f"     {policy:<18} {said(policy, verdict)}")


def spelled_out(voice: Source) -> str:
    """The hints of one resource in a line."""
    options = voice.options
    every = options if isinstance(options, Listed) else Listed.of_family(options)
    return " ".join(mark(hint) for hint in every.hints)


def mark(hint: Hint) -> str:
    """A set of nodes, with a star when it is preferred."""
    nodes = "anywhere" if hint.nodes is None else f"{{{bits.show(hint.nodes)}}}"
    return nodes + ("*" if hint.preferred else "")


def merged(verdict: Verdict) -> str:
    """Which set won, by which rule, and over which others."""
    result = verdict.merged
    assert result is not None  # noqa: S101 - every policy but none merges
    others = ", ".join(f"{{{bits.show(nodes)}}}" for nodes in result.runners_up)
    over = f" (also possible: {others}; lower node numbers win)" if others else ""
    return f"{{{bits.show(result.nodes)}}}, {result.rule}{over}"


def said(policy: Policy, verdict: Verdict) -> str:
    """The verdict in a sentence."""
    if policy is Policy.NONE:
        return "admitted: nobody is asked, nothing is aligned"
    if not verdict.admitted:
        return "refused:  TopologyAffinityError, Resources cannot be allocated with Topology locality"
    aligned = "aligned on" if verdict.hint.preferred else "not aligned, but as near as can be:"
    return f"admitted: {aligned} {mark(verdict.hint)}"


if __name__ == "__main__":
    main()
