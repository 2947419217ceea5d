"""What a NodeResourceTopology tells about the decision of a kubelet: less than a HostState, and never too much.

It has totals of each NUMA node, no ids of CPUs and devices, and no options of the CPU and memory managers. So a pod
is taken as admitted only if it certainly is: all managers are assumed to be static, and whatever is not known to be on
another NUMA node is subtracted from every one of them.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from alignup.align.errors import AlignError
from alignup.align.quantity import Quantity
from alignup.align.workload import Container, Pod, QoS, demand
from alignup.align.workload.names import CPU, is_extended
from alignup.align.workload.validation import apply_defaults
from alignup.kubernetes.api.objects import NodeResourceTopology, TopologyZone
from alignup.placement.free_capacity import MAX_COUNTED, FreeCapacity
from alignup.placement.score import LOCAL, PlacementScore
from alignup.placement.verdict import Verdict, VerdictKind, unknown

POLICY, SCOPE = "topologyManagerPolicy", "topologyManagerScope"
ALIGNING = ("single-numa-node", "restricted")  #: policies that reject pods
_ZONE_TYPE = "Node"
_NO_CAPACITY = FreeCapacity({}, 0, {})

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
    attributes = {one.name: one.value for one in topology.attributes}
    policy, scope = _old_policy(next(iter(topology.topology_policies), ""))
    zones = [zone for zone in topology.zones if zone.type == _ZONE_TYPE]
    return TopologyZones(
        policy=attributes.get(POLICY, policy),
        pod_scope=attributes.get(SCOPE, scope) == "pod",
        allocatable=tuple(_amounts(zone, "allocatable") for zone in zones),
        available=tuple(_amounts(zone, "available") for zone in zones),
        attributes=attributes,
    )


def requests(pod: Pod, container: Container | None, resources: frozenset[str]) -> Requests:
    """What a container, or the whole pod, needs on one NUMA node of the *resources* that are known there."""
    found: dict[str, int] = {}
    if pod.qos is QoS.GUARANTEED:
        found = {CPU: demand.exclusive_cpus(pod, container), **demand.memory(pod, container)}
    if container is None:
        found |= demand.devices(pod, None, resources - found.keys())
    else:
        found |= demand.devices(pod, container, resources - found.keys())
    return {name: amount for name, amount in found.items() if amount > 0 and name in resources}


def charge(pod: Pod, resources: frozenset[str]) -> Requests:
    """What a pod may hold that no object shows yet."""
    return requests(apply_defaults(pod), None, resources)


def zones_verdict(zones: TopologyZones, pod: Pod, charges: Iterable[Requests] = ()) -> Verdict:
    """The verdict of a node with these zones, on which pods with *charges* count as well."""
    pod = apply_defaults(pod)
    free = [dict(zone) for zone in zones.available]
    if zones.policy not in ALIGNING:
        return _admitted(zones, free, pod)
    if not zones.available:
        return unknown("no NUMA nodes in NodeResourceTopology")
    for own in charges:
        _subtract(free, own)
    try:
        for asked, kept in _steps(zones, pod):
            refused = _refusal(zones, free, asked)
            if refused is not None:
                return refused
            if kept:
                _subtract(free, asked)
    except AlignError as error:
        return unknown("unknown requests", str(error))
    return _admitted(zones, free, pod)


def _steps(zones: TopologyZones, pod: Pod) -> Iterator[tuple[Requests, bool]]:
    """What is aligned, one after the other, and whether later ones find it taken."""
    if zones.pod_scope:
        yield requests(pod, None, zones.resources), True
        return
    for container in pod.all_containers:
        yield requests(pod, container, zones.resources), container.name not in pod.ordinary_init


def _refusal(zones: TopologyZones, free: list[dict[str, int]], asked: Requests) -> Verdict | None:
    """Why what is asked for is not admitted for certain; ``None``: it is."""
    if not asked or any(_fits(zone, asked) for zone in free):
        return None
    if zones.policy == "restricted" and not any(_fits(zone, asked) for zone in zones.allocatable):
        return unknown("needs several NUMA nodes, and has no HostState")
    short = [name for name, amount in asked.items() if not any(zone.get(name, 0) >= amount for zone in free)]
    what = f"not enough {', '.join(sorted(short))} on one NUMA node" if short else "no NUMA node suits all resources"
    detail = ", ".join(f"{name}: {amount} needed" for name, amount in sorted(asked.items()))
    return Verdict(VerdictKind.REJECTS, what, note=f"by NodeResourceTopology; {detail}", approximate=True)


def _admitted(zones: TopologyZones, free: list[dict[str, int]], pod: Pod) -> Verdict:
    """An admission with half of the usual points. It is not known on which NUMA node, so all of them count."""
    requested = {name for one in pod.all_containers for name in one.resources.limits}
    beside = sum(
        min(left.get(name, 0) if name in requested else count, MAX_COUNTED)
        for total, left in zip(zones.allocatable, free, strict=True)
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


def _fits(zone: Requests, asked: Requests) -> bool:
    return all(zone.get(name, 0) >= amount for name, amount in asked.items())


def _subtract(free: list[dict[str, int]], taken: Requests) -> None:
    for zone in free:
        for name, amount in taken.items():
            if name in zone:
                zone[name] -= amount


def _amounts(zone: TopologyZone, kind: str) -> Requests:
    """Whole amounts, rounded down."""
    found = {}
    for one in zone.resources:
        amount = Quantity.parse(str(getattr(one, kind)))
        whole = amount.value()
        found[one.name] = whole if amount.milli() >= 1000 * whole else whole - 1
    return found


def _old_policy(text: str) -> tuple[str, str]:
    """Policy and scope of the deprecated field ``topologyPolicies``."""
    scope = "pod" if text.endswith("PodLevel") else "container"
    name = text.removesuffix("PodLevel").removesuffix("ContainerLevel")
    names = {"SingleNUMANode": "single-numa-node", "Restricted": "restricted", "BestEffort": "best-effort"}
    return names.get(name, "none"), scope
