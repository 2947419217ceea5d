"""Steering: a pod goes to the NUMA node whose markers are the only ones that its kubelet has.

Markers are devices of the resource ``alignup.dev/numa``, many on every NUMA node. A kubelet aligns a pod that requests
one with it, as with every device. While the markers of all other NUMA nodes are withdrawn, one choice is left.

The wanted NUMA node is that of the devices of the pod's claims, the one that the pod's annotation names, or:

* ``pack``, the default: the one that leaves most for later pods: the fewest stranded devices (whole ones), then the
  largest aligned requests, then the fewest free CPUs beside the pod, so that large gaps stay whole;
* ``spread``: the one with the most free CPUs left.
"""

from collections.abc import Iterable, Mapping
from dataclasses import replace
from enum import StrEnum
from functools import partial
from typing import NamedTuple

from alignup.align import bits
from alignup.align.bits import NodeSet
from alignup.align.decision import Decision, Placement
from alignup.align.devices.choices import DeviceChooser
from alignup.align.host import Host
from alignup.align.ledger import Ledger
from alignup.align.quantity import Quantity
from alignup.align.workload import Container, Pod, QoS
from alignup.align.workload.names import MARKER, NUMA_ANNOTATION
from alignup.align.workload.validation import apply_defaults
from alignup.placement.free_capacity import DEVICE
from alignup.placement.verdict import Verdict

STEERED_ANNOTATION = "alignup.dev/steered"  #: of a pod: where it was steered to, and why
ANYWHERE: NodeSet = 0  #: no markers are withdrawn
NOT_THERE = "not all of the pod goes to this NUMA node"


class NumaOrder(StrEnum):
    PACK = "pack"
    SPREAD = "spread"


class SteeringChoice(NamedTuple):
    """The NUMA node that a pod is steered to."""

    nodes: NodeSet
    reason: str  #: ``(pack)``, or ``because of claim gpu``
    verdict: Verdict

    def __str__(self) -> str:
        return f"steered to NUMA node {bits.show(self.nodes)} {self.reason}"


def numa_preference(pod: Pod) -> tuple[NumaOrder | int, str]:
    """Return the order of NUMA nodes, or the node that *pod* wants, and what is wrong with its annotation."""
    value = pod.annotations.get(NUMA_ANNOTATION, NumaOrder.PACK)
    if value in list(NumaOrder):
        return NumaOrder(value), ""
    if value.isascii() and value.isdecimal() and len(value) <= len(str(bits.MAX_MEMBER)):
        return int(value), ""
    return NumaOrder.PACK, f"annotation {NUMA_ANNOTATION} is {value!r}; use {', '.join(NumaOrder)}, or a NUMA node"


def choose_node(
    options: Mapping[NodeSet, Verdict], preference: NumaOrder | int, beside: Mapping[NodeSet, str] | None = None
) -> SteeringChoice | None:
    """Return the best of the NUMA nodes that a pod can be steered to; ``None``: it is not steered.

    *beside* names the claims whose devices are on one of these nodes, for the nodes where that is so.
    """
    if isinstance(preference, int):
        verdict = options.get(1 << preference)
        return None if verdict is None else SteeringChoice(1 << preference, f"(annotation {NUMA_ANNOTATION})", verdict)
    near = {nodes: options[nodes] for nodes in beside or () if nodes in options}
    best = min(_ranked(near or options, preference), default=None)
    if best is None:
        return None
    nodes = best[-1]
    reason = f"because of claim {beside[nodes]}" if beside and nodes in beside else f"({preference})"
    return SteeringChoice(nodes, reason, options[nodes])


def _ranked(options: Mapping[NodeSet, Verdict], order: NumaOrder) -> Iterable[tuple[int, int, int, NodeSet]]:
    """Yield the rank of each option, and the option; the lowest rank is best."""
    scores = {nodes: verdict.score for nodes, verdict in options.items() if verdict.score is not None}
    if order is NumaOrder.SPREAD:
        return [(-score.cpus_beside, -score.devices_beside, 0, nodes) for nodes, score in scores.items()]
    largest = [score.free_capacity.largest for score in scores.values()]
    most = {name: max(sizes.get(name, 0) for sizes in largest) for sizes in largest[:1] for name in sizes}
    return [
        (
            score.stranded // DEVICE,
            -sum(1000 * score.free_capacity.largest[name] // size for name, size in most.items() if size),
            score.cpus_beside,
            nodes,
        )
        for nodes, score in scores.items()
    ]


def count_markers(pod: Pod) -> int:
    """Return how many containers of *pod* request a marker."""
    return sum(MARKER in container.resources.limits for container in pod.all_containers)


def marker_nodes(ledger: Ledger) -> NodeSet:
    """Return the NUMA nodes with markers; none: pods cannot be steered on this host."""
    inventory = ledger.devices.inventories.get(MARKER)
    if inventory is None or not inventory.placed:
        return 0
    return bits.of(node for node, devices in inventory.on.items() if devices & inventory.healthy)


def withdraw_markers(ledger: Ledger, nodes: NodeSet) -> Ledger:
    """Return *ledger* as it is while markers are on *nodes* only; markers that pods hold are withdrawn, too."""
    inventory = ledger.devices.inventories.get(MARKER)
    if nodes == ANYWHERE or inventory is None:
        return ledger
    return replace(ledger, devices=ledger.devices.with_inventory(MARKER, inventory.only_on(nodes)))


def decide_steered(host: Host, pod: Pod, nodes: NodeSet, chooser: DeviceChooser | None = None) -> Decision:
    """Decide on *pod* while markers are on *nodes* only; afterwards, all are there again."""
    ledger = host.ledger
    decide = partial(host.decide_with, chooser=chooser) if chooser else host.decide_without_plugins
    if nodes == ANYWHERE or MARKER not in ledger.devices.inventories:
        return decide(pod)
    try:
        host.ledger = withdraw_markers(ledger, nodes)
        decision = decide(pod)
    finally:
        host.ledger = ledger
    markers = ledger.devices.inventories[MARKER]

    def restored(other: Ledger | None) -> Ledger | None:
        return other and replace(other, devices=other.devices.with_inventory(MARKER, markers))

    return replace(decision, before=ledger, after=restored(decision.after), residue=restored(decision.residue))


def are_on(nodes: NodeSet, placements: Iterable[Placement], ledger: Ledger) -> bool:
    """Return whether all CPUs, memory and devices are on *nodes*, as far as they have NUMA nodes."""
    return all(site & nodes == site for placement in placements for site in placement.sites(ledger))


def with_markers(pod: Pod) -> Pod | None:
    """Return *pod* with a request for a marker in each container; ``None`` if there is nothing to steer.

    All containers of a Guaranteed pod request one: with scope container, each is aligned by its own marker only.
    """
    if count_markers(pod) or apply_defaults(pod).qos is not QoS.GUARANTEED:
        return None

    def marked(container: Container) -> Container:
        resources, marker = container.resources, {MARKER: Quantity.of(1)}
        requests, limits = {**resources.requests, **marker}, {**resources.limits, **marker}
        return replace(container, resources=replace(resources, requests=requests, limits=limits))

    return replace(pod, init=tuple(map(marked, pod.init)), containers=tuple(map(marked, pod.containers)))


def fits_one_node(host: Host, pod: Pod, marked_pod: Pod) -> bool | None:
    """Return whether one NUMA node of an idle *host* can hold *pod*; *marked_pod* is the pod with requests for markers.

    ``None``: the pod never runs there, or has nothing to align there.
    """
    decision = host.decide_without_plugins(pod)
    if not any(
        placement.cpus is not None or placement.memory or placement.devices for placement in decision.placements
    ):
        return None
    decisions = [(node, decide_steered(host, marked_pod, node)) for node in bits.split(marker_nodes(host.ledger))]
    return host.decide_without_plugins(marked_pod).admitted and any(
        decision.admitted and are_on(node, decision.placements, host.ledger) for node, decision in decisions
    )
