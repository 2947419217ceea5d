"""Slices, claims and device classes, as far as they decide which devices a claim gets."""

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from alignup.align.bits import NodeSet
from alignup.align.quantity import Quantity
from alignup.align.workload import Pod, demand, names

NUMA_NODE = "resource.kubernetes.io/numaNode"
PCI_BUS_ID = "resource.kubernetes.io/pciBusID"
PCIE_ROOT = "resource.kubernetes.io/pcieRoot"
AttributeValue = bool | int | str | tuple[bool | int | str, ...]


class DeviceId(NamedTuple):
    driver: str
    pool: str
    device: str

    def __str__(self) -> str:
        return "/".join(self)


@dataclass(frozen=True, slots=True)
class SliceDevice:
    """A device of a ResourceSlice."""

    id: DeviceId
    attributes: Mapping[str, AttributeValue] = field(default_factory=dict)  #: by qualified name
    versions: frozenset[str] = frozenset()  #: names of attributes that are semantic versions
    capacity: Mapping[str, Quantity] = field(default_factory=dict)  #: by qualified name
    nodes: NodeSet | None = None  #: NUMA nodes; ``None``: unknown
    taints: tuple["DeviceTaint", ...] = ()
    shared: bool = False  #: whether several claims can have it, of which each uses a part; parts are not computed here
    counted: bool = False  #: whether it uses counters that it shares with other devices, which are not computed here


@dataclass(frozen=True, slots=True)
class ClaimRequest:
    """One request of a claim, or one alternative of it."""

    name: str  #: ``gpu``, or ``gpu/large`` for an alternative
    device_class: str
    count: int | None = 1  #: ``None``: all that match
    selectors: tuple[str, ...] = ()  #: CEL expressions of the request; expressions of its class count, too
    admin_access: bool = False  #: the devices may be in use
    tolerations: tuple["DeviceToleration", ...] = ()
    capacity: bool = False  #: whether it asks for a part of a device, which is not computed here


class DeviceTaint(NamedTuple):
    """A taint that keeps claims from a device, unless they tolerate it."""

    key: str
    value: str
    effect: str


class DeviceToleration(NamedTuple):
    key: str  #: empty: all keys
    value: str | None  #: ``None``: all values
    effect: str  #: empty: all effects

    def covers(self, taint: DeviceTaint) -> bool:
        return self.key in ("", taint.key) and self.value in (None, taint.value) and self.effect in ("", taint.effect)


class AllocatedDevice(NamedTuple):
    request: str
    id: DeviceId
    admin_access: bool = False  #: others can have it at the same time


class MatchAttribute(NamedTuple):
    """A constraint: the devices of these requests (empty: of all) have the same value of an attribute."""

    attribute: str
    requests: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True, kw_only=True)
class Claim:
    name: str
    namespace: str = "default"
    uid: str = ""
    requests: tuple[tuple[ClaimRequest, ...], ...] = ()  #: each with its alternatives, best first
    constraints: tuple[MatchAttribute, ...] = ()
    allocated: tuple[AllocatedDevice, ...] | None = None  #: ``None``: not allocated
    host: str = ""  #: the only host where the allocated devices can be used; empty: unknown, or several
    selector: object = None  #: a node selector of these hosts, for those who know labels; ``None``: all
    reserved_for: frozenset[str] = frozenset()  #: uids of pods

    @property
    def title(self) -> str:
        return f"{self.namespace}/{self.name}"


@dataclass(frozen=True, slots=True)
class DeviceClass:
    name: str
    selectors: tuple[str, ...] = ()  #: CEL expressions
    extended_resource: str = ""  #: that pods can request instead of a claim


@dataclass(frozen=True, slots=True)
class Slice:
    """A ResourceSlice: a part of a pool of devices."""

    name: str
    driver: str
    pool: str
    generation: int
    slice_count: int  #: of the pool in this generation
    host: str = ""  #: where its devices can be used; empty: everywhere, or where ``selector`` says
    selector: object = None  #: a node selector, for those who know the labels of hosts
    devices: tuple[SliceDevice, ...] = ()


def usable_devices(
    slices: Iterable[Slice], *, reachable: Callable[[Slice], bool] = lambda _slice: True
) -> tuple[tuple[SliceDevice, ...], tuple[str, ...]]:
    """Return the devices in *reachable* slices that can be allocated, and what is wrong with the others.

    Slices of an older generation do not count. The scheduler uses no pool that is incomplete, or that has two devices
    of the same name; slices of a pool count for that wherever their devices can be used.
    """
    pools: dict[tuple[str, str], list[Slice]] = {}
    for slice_ in slices:
        pools.setdefault((slice_.driver, slice_.pool), []).append(slice_)
    devices: list[SliceDevice] = []
    problems = []
    for (driver, pool), parts in pools.items():
        newest = max(part.generation for part in parts)
        current = [part for part in parts if part.generation == newest]
        ids = [device.id for part in current for device in part.devices]
        slice_count, count = current[0].slice_count, len({part.name for part in current})
        if count < slice_count:
            problems.append(f"pool {pool} of driver {driver} has {count} of its {slice_count} slices")
        elif len(set(ids)) < len(ids):
            twice = next(id_.device for id_, times in Counter(ids).items() if times > 1)
            problems.append(f"pool {pool} of driver {driver} has device {twice} twice")
        else:
            devices += [device for part in current if reachable(part) for device in part.devices]
    return tuple(devices), tuple(problems)


@dataclass(frozen=True, slots=True)
class ClaimObjects:
    """The objects of a cluster, or of files, that claims of pods refer to."""

    classes: Mapping[str, DeviceClass] = field(default_factory=dict)
    claims: Mapping[tuple[str, str], Claim] = field(default_factory=dict)  #: by namespace and name
    templates: Mapping[tuple[str, str], Claim] = field(default_factory=dict)  #: by namespace and name

    def class_of(self, resource: str) -> DeviceClass | None:
        """Return the class that offers an extended resource; of several classes, the first by name."""
        if names.is_device_class(resource):
            return self.classes.get(resource.removeprefix(names.DEVICE_CLASS_PREFIX))
        matching_classes = [
            device_class for device_class in self.classes.values() if device_class.extended_resource == resource
        ]
        return min(matching_classes, key=lambda device_class: device_class.name, default=None)

    def with_class_resources(self, pod: Pod) -> Pod:
        """Return a *pod* that is not bound yet with the extended resources that a DeviceClass offers.

        A class that is requested by its own name counts even if it is not known.
        """
        offered_resources = {device_class.extended_resource for device_class in self.classes.values()}
        resource_names = {name for container in pod.all_containers for name in container.resources.requests}
        served_names = [name for name in resource_names if name in offered_resources or names.is_device_class(name)]
        return replace(pod, class_resources=tuple(sorted(served_names))) if served_names else pod

    def claims_of(self, pod: Pod, *, capacity: Mapping[str, int]) -> Iterator[tuple[str, Claim | str]]:
        """Yield the name of each claim of *pod* with its claim, or with the reason why that is unknown.

        *capacity* is what device plugins of the host offer: other extended resources of a DeviceClass need a claim.
        """
        for pod_claim in pod.claims:
            if pod_claim.claim:
                claim = self.claims.get((pod.namespace, pod_claim.claim))
                yield pod_claim.name, claim or f"ResourceClaim {pod.namespace}/{pod_claim.claim} is not known"
            elif pod_claim.template:
                template = self.templates.get((pod.namespace, pod_claim.template))
                problem = f"ResourceClaimTemplate {pod.namespace}/{pod_claim.template} is not known"
                yield pod_claim.name, replace(template, name=f"{pod.name}-{pod_claim.name}") if template else problem
            else:
                yield pod_claim.name, "it names neither a ResourceClaim nor a template"
        served_requests = demand.claimed_requests(pod, capacity)
        if served_requests and pod.extended_claim:
            claim = self.claims.get((pod.namespace, pod.extended_claim))
            problem = f"ResourceClaim {pod.namespace}/{pod.extended_claim} is not known"
            yield from ((name, claim or problem) for name in sorted({name for _, name in served_requests}))
        elif served_requests:
            yield from self._extended_claims(pod, served_requests)

    def _extended_claims(
        self, pod: Pod, served_requests: Collection[tuple[str, str]]
    ) -> Iterator[tuple[str, Claim | str]]:
        """Yield the claims that the scheduler will make for extended resources."""
        for name in sorted({name for _, name in served_requests}):
            device_class = self.class_of(name)
            count = demand.requests(pod)[name].value()
            if device_class is None:
                yield name, f"no DeviceClass is known that offers {name}"
            elif count:
                request = ClaimRequest(name, device_class.name, count)
                title = f"{pod.name}-extended-resources"
                yield name, Claim(name=title, namespace=pod.namespace, requests=((request,),))

    def taken(self) -> set[DeviceId]:
        """Return the devices that claims hold."""
        return {
            device.id for claim in self.claims.values() for device in claim.allocated or () if not device.admin_access
        }

    def missing_classes(self, claims: Iterable[Claim]) -> tuple[str, ...]:
        """Return the device classes that *claims* name and that do not exist."""
        class_names = {
            alternative.device_class for claim in claims for request in claim.requests for alternative in request
        }
        return tuple(sorted(class_names - self.classes.keys()))
