"""NodeResourceTopology: nodes without HostState about which another exporter publishes less, and never too much.

An object has totals of each NUMA node, no ids of CPUs and devices, and no options of the CPU and memory managers. So a
pod is taken as admitted only if it certainly is: all managers are assumed to be static, and a request is subtracted
from every NUMA node where it may be.

An object does not tell which pods it counts. Its fingerprint does, if there is one: when it is that of the pods bound
to the node, everything is in it. Until then, or without a fingerprint until the second object after a pod runs, the pod
counts on every NUMA node.
"""

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field

import structlog

from alignup.align.errors import AlignError, QuantityError
from alignup.align.quantity import Quantity
from alignup.align.workload import Container, Pod, QoS, demand
from alignup.align.workload.names import CPU, is_extended
from alignup.align.workload.validation import apply_defaults
from alignup.kubernetes.api.known_pods import api_pod_stage
from alignup.kubernetes.api.objects import ApiPod, NodeResourceTopology, TopologyZone
from alignup.kubernetes.api.pod_fingerprint import pod_fingerprint
from alignup.placement.free_capacity import MAX_COUNTED, FreeCapacity
from alignup.placement.host_report import PodStage
from alignup.placement.pod_demands import NOT_EXACT, needs_exact_host
from alignup.placement.pod_shape import needs_alignment
from alignup.placement.score import LOCAL, PlacementScore
from alignup.placement.verdict import UNREADABLE_POD, Verdict, VerdictKind, unknown

POLICY, SCOPE = "topologyManagerPolicy", "topologyManagerScope"
ALIGNING = ("single-numa-node", "restricted")  #: policies that reject pods
_OLD_POLICIES = {"SingleNUMANode": "single-numa-node", "Restricted": "restricted", "BestEffort": "best-effort"}
_NO_CAPACITY = FreeCapacity({}, 0, {})

_FINGERPRINT, _METHOD = "nodeTopologyPodsFingerprint", "nodeTopologyPodsFingerprintMethod"
_ANNOTATION = "topology.node.k8s.io/fingerprint"
_EXCLUSIVE = "with-exclusive-resources"

_log = structlog.get_logger()

Requests = Mapping[str, int]  #: whole CPUs, bytes, devices


@dataclass(frozen=True, slots=True)
class TopologyZones:
    """The NUMA nodes of one node."""

    policy: str
    pod_scope: bool
    allocatable: tuple[Requests, ...]
    available: tuple[Requests, ...]
    attributes: Mapping[str, str]

    @property
    def resources(self) -> frozenset[str]:
        return frozenset(name for zone in self.allocatable for name in zone)


def read_zones(topology: NodeResourceTopology) -> TopologyZones:
    """Read an object; ``QuantityError`` if an amount is invalid."""
    attributes = {attribute.name: attribute.value for attribute in topology.attributes}
    old = next(iter(topology.topology_policies), "")  # of the deprecated field
    policy = _OLD_POLICIES.get(old.removesuffix("PodLevel").removesuffix("ContainerLevel"), "none")
    scope = "pod" if old.endswith("PodLevel") else "container"
    zones = [zone for zone in topology.zones if zone.type == "Node"]
    return TopologyZones(
        policy=attributes.get(POLICY, policy),
        pod_scope=attributes.get(SCOPE, scope) == "pod",
        allocatable=tuple(_amounts(zone, "allocatable") for zone in zones),
        available=tuple(_amounts(zone, "available") for zone in zones),
        attributes=attributes,
    )


def requests(pod: Pod, container: Container | None, resources: frozenset[str]) -> Requests:
    """Return what a container, or the whole pod, needs on one NUMA node of the *resources* that are known there."""
    amounts: dict[str, int] = {}
    if pod.qos is QoS.GUARANTEED:
        amounts = {CPU: demand.exclusive_cpus(pod, container), **demand.memory(pod, container)}
    amounts |= demand.devices(pod, container, resources - amounts.keys())
    return {name: amount for name, amount in amounts.items() if amount > 0 and name in resources}


def charge(pod: Pod, resources: frozenset[str]) -> Requests:
    """Return what a pod may hold that no object shows yet."""
    return requests(apply_defaults(pod), None, resources)


def zones_verdict(zones: TopologyZones, pod: Pod, charges: Iterable[Requests] = ()) -> Verdict:
    """Return the verdict of a node with these zones, on which pods with *charges* count as well."""
    if needs_exact_host(pod):
        return unknown(NOT_EXACT)
    pod = apply_defaults(pod)
    free = [dict(zone) for zone in zones.available]
    if zones.policy not in ALIGNING:
        return _admitted(zones, free, pod)
    if not zones.available:
        return unknown("no NUMA nodes in NodeResourceTopology")
    for pod_charge in charges:
        _subtract(free, pod_charge)
    try:
        for container in (None,) if zones.pod_scope else pod.all_containers:  # what is aligned, one after the other
            amounts = requests(pod, container, zones.resources)
            refusal = _refusal(zones, free, amounts)
            if refusal is not None:
                return refusal
            if container is None or not pod.is_ordinary_init(container.name):
                _subtract(free, amounts)
    except AlignError as error:
        return unknown("unknown requests", str(error))
    return _admitted(zones, free, pod)


def _refusal(zones: TopologyZones, free: list[dict[str, int]], amounts: Requests) -> Verdict | None:
    """Return why what is asked for is not admitted for certain; ``None``: it is."""
    if not amounts or any(_fits(zone, amounts) for zone in free):
        return None
    if zones.policy == "restricted" and not any(_fits(zone, amounts) for zone in zones.allocatable):
        return unknown("needs several NUMA nodes, and has no HostState")
    short = [name for name, amount in amounts.items() if not any(zone.get(name, 0) >= amount for zone in free)]
    reason = f"not enough {', '.join(sorted(short))} on one NUMA node" if short else "no NUMA node suits all resources"
    detail = ", ".join(f"{name}: {amount} needed" for name, amount in sorted(amounts.items()))
    return Verdict(VerdictKind.REJECTS, reason, note=f"by NodeResourceTopology; {detail}", approximate=True)


def _admitted(zones: TopologyZones, free: list[dict[str, int]], pod: Pod) -> Verdict:
    """Return an admission with half of the usual points. The NUMA node is not known, so all of them count."""
    resource_names = {name for container in pod.all_containers for name in container.resources.limits}
    beside = sum(
        min(free_amounts.get(name, 0) if name in resource_names else count, MAX_COUNTED)
        for total, free_amounts in zip(zones.allocatable, free, strict=True)
        for name, count in total.items()
        if is_extended(name)
    )
    score = PlacementScore(
        preferred=True,
        nodes=1,
        distance=LOCAL,
        free_capacity=_NO_CAPACITY,
        stranded=0,
        devices_beside=max(0, beside),
        cpus_beside=sum(max(0, zone.get(CPU, 0)) for zone in free),
        approximate=True,
    )
    return Verdict(VerdictKind.ADMITS, score=score, approximate=True)


def _fits(zone: Requests, amounts: Requests) -> bool:
    return all(zone.get(name, 0) >= amount for name, amount in amounts.items())


def _subtract(free: list[dict[str, int]], amounts: Requests) -> None:
    for zone in free:
        for name, amount in amounts.items():
            if name in zone:
                zone[name] -= amount


def _amounts(zone: TopologyZone, kind: str) -> Requests:
    """Return whole amounts, rounded down."""
    amounts = {}
    for resource in zone.resources:
        amount = Quantity.parse(str(getattr(resource, kind)))
        whole = amount.value()
        amounts[resource.name] = whole if amount.milli() >= 1000 * whole else whole - 1
    return amounts


@dataclass(slots=True)
class _Charge:
    requests: Requests | None  #: ``None``: the pod cannot be read
    running: bool  #: whether the pod ran when the last object came


@dataclass(slots=True)
class _Node:
    zones: TopologyZones
    fingerprint: str
    charges: dict[str, _Charge] = field(default_factory=dict)  #: by uid


class TopologyFallback:
    """The nodes that count by their NodeResourceTopology."""

    def __init__(self) -> None:
        self._nodes: dict[str, _Node] = {}

    @property
    def nodes(self) -> Collection[str]:
        return self._nodes

    def update(self, name: str, topology: NodeResourceTopology | None, pods: Iterable[tuple[ApiPod, Pod]]) -> None:
        """Read a NodeResourceTopology that was written, or is gone; *pods* are bound to the node, and read."""
        node_before = self._nodes.pop(name, None)
        if topology is None:
            return
        try:
            zones = read_zones(topology)
        except QuantityError as error:
            _log.warning("unreadable NodeResourceTopology", node=name, problem=str(error))
            return
        annotation = topology.metadata.annotations.get(_ANNOTATION, "")
        node = self._nodes[name] = _Node(zones, zones.attributes.get(_FINGERPRINT, annotation))
        alive = [(api, pod) for api, pod in pods if api_pod_stage(api) is not PodStage.ENDED]
        if node.fingerprint:
            if not self._counts(node, alive):
                node.charges = node_before.charges if node_before else {}
                for api, pod in alive if node_before is None else ():
                    node.charges[pod.uid] = _charge(node, pod, running=api.status.phase == "Running")
            return
        earlier_charges = node_before.charges if node_before else {}
        for api, pod in alive:
            started = api.status.phase == "Running"
            if not started or (pod.uid in earlier_charges and not earlier_charges[pod.uid].running):
                node.charges[pod.uid] = _charge(node, pod, running=started)

    def bound(self, name: str, pod: Pod, *, ended: bool) -> None:
        """Count a pod that was bound to a node, until it has ended."""
        node = self._nodes.get(name)
        if node is None:
            return
        if ended:
            node.charges.pop(pod.uid, None)
        else:
            node.charges[pod.uid] = _charge(node, pod, running=False)

    def verdict(self, name: str, pod: Pod, assumed_pods: Iterable[Pod]) -> Verdict | None:
        """Return the verdict of a node that counts on *assumed_pods*; ``None`` if nothing is known about it."""
        node = self._nodes.get(name)
        if node is None:
            return None
        charges = {other.uid: _charge(node, other, running=False) for other in assumed_pods} | node.charges
        others = [pod_charge.requests for uid, pod_charge in charges.items() if uid != pod.uid]
        if None in others:
            return unknown(UNREADABLE_POD)
        return zones_verdict(node.zones, pod, [requests for requests in others if requests is not None])

    def _counts(self, node: _Node, pods: list[tuple[ApiPod, Pod]]) -> bool:
        """Return whether the object counts exactly these pods."""
        exclusive = node.zones.attributes.get(_METHOD) == _EXCLUSIVE
        counted_pods = [pod for _, pod in pods if not exclusive or needs_alignment(pod)]
        return node.fingerprint == pod_fingerprint((pod.namespace, pod.name) for pod in counted_pods)


def _charge(node: _Node, pod: Pod, *, running: bool) -> _Charge:
    return _Charge(charge(pod, node.zones.resources) if pod.all_containers else None, running)
