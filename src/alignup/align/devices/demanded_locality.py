"""Demands on the locality of a container's devices: the annotation ``topology.alignup.dev/devices`` of a pod.

Its value is one demand, or several with semicolons between them. A demand may name the resources that it is about:

    same-switch
    nvlink=nvidia.com/gpu; same-root=nvidia.com/gpu,rdma/nic

Each container has to satisfy all of them. Devices of one kind (GPU, NIC, NVMe) have to be near each other, every two of
them. If there are several kinds, each device has to be near one of every other kind instead: eight GPUs and eight NICs
are never below one switch, but each GPU can have a NIC there, and each NIC a GPU.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from enum import StrEnum
from itertools import combinations
from typing import NamedTuple

from alignup.align.bits import quote
from alignup.align.devices.plugin_rules import REPLICA
from alignup.align.errors import ParseError, PodError, Problem
from alignup.align.locality import DeviceKind, Level, Locality
from alignup.align.workload import Pod
from alignup.align.workload.names import DEVICES_ANNOTATION, MARKER, qualified_problems


class DemandedLocality(StrEnum):
    SAME_SWITCH = "same-switch"
    SAME_ROOT = "same-root"
    NVLINK = "nvlink"  #: or XGMI; about GPUs only
    SPREAD = "spread"  #: below no root complex with devices of other pods


#: The farthest level that satisfies a demand.
FARTHEST = {DemandedLocality.SAME_SWITCH: Level.PXB, DemandedLocality.SAME_ROOT: Level.PHB}
_COMMON = {Level.PXB: "PCIe switch", Level.PHB: "root complex"}


class LocalityDemand(NamedTuple):
    locality: DemandedLocality
    names: tuple[str, ...] = ()  #: of resources, or of claims of the pod; empty: all of the container

    def concerns(self, name: str) -> bool:
        return name in self.names or (not self.names and name != MARKER)

    def __str__(self) -> str:
        return f"{self.locality}={','.join(self.names)}" if self.names else self.locality.value


class DemandAnswer(NamedTuple):
    satisfied: bool | None  #: ``None``: the machine cannot say
    reason: str = ""  #: if it is not satisfied


_SATISFIED = DemandAnswer(satisfied=True)
_NO_DEVICES: Mapping[str, Sequence[str]] = {}


def parse_demands(text: str) -> tuple[LocalityDemand, ...]:
    """Return the demands in *text*; ``ParseError`` if one is malformed."""
    return tuple(dict.fromkeys(map(_parse, text.split(";"))))


def _parse(text: str) -> LocalityDemand:
    value, equals, name_list = (part.strip() for part in text.partition("="))
    if value not in set(DemandedLocality):
        localities = ", ".join(DemandedLocality)
        raise ParseError(f"{quote(value)} is no locality of devices; supported: {localities}")
    names = tuple(dict.fromkeys(name.strip() for name in name_list.split(","))) if equals else ()
    for name in names:
        if problems := qualified_problems(name):
            example = f"{value}=nvidia.com/gpu,rdma/nic"
            raise ParseError(f"{quote(name)} is no resource: {problems[0]}; write it like {example}")
    return LocalityDemand(DemandedLocality(value), names)


def locality_demands(pod: Pod, *, strict: bool = True) -> tuple[LocalityDemand, ...]:
    """Return the demands of *pod*; ``PodError`` if its annotation is malformed.

    If *strict*, it is also an error that a demand names what the pod does not request.
    """
    text = pod.annotations.get(DEVICES_ANNOTATION)
    if text is None:
        return ()
    try:
        demands = parse_demands(text)
    except ParseError as error:
        raise PodError([Problem(f"metadata.annotations[{DEVICES_ANNOTATION}]", str(error))]) from error
    request_names = {claim.name for claim in pod.claims}
    for container in pod.all_containers:
        request_names.update(container.resources.limits, container.resources.requests)
    missing_names = [name for demand in demands for name in demand.names if name not in request_names]
    if strict and missing_names:
        message = f"no container requests {', '.join(missing_names)}, and the pod has no such claim"
        raise PodError([Problem(f"metadata.annotations[{DEVICES_ANNOTATION}]", message)])
    return demands


def find_address(locality: Locality, device_id: str) -> str | None:
    """Return the PCI address of a device, or of the GPU that it is a replica of; ``None`` if it is unknown."""
    return locality.find(device_id.partition(REPLICA)[0])


class _Device(NamedTuple):
    id: str
    address: str
    kind: str  #: of another device than GPU, NIC and NVMe, its resource


def check_demand(
    demand: LocalityDemand,
    locality: Locality,
    devices: Mapping[str, Sequence[str]],
    others: Mapping[str, Iterable[str]] = _NO_DEVICES,
) -> DemandAnswer:
    """Return whether the *devices* of one container, by resource, satisfy *demand*.

    *others* are the devices of other pods, by resource. Devices are ids of device plugins, or PCI addresses.
    """
    spread = demand.locality is DemandedLocality.SPREAD
    demanded_devices = [(name, id_) for name, ids in devices.items() if demand.concerns(name) for id_ in ids]
    if len(demanded_devices) < (1 if spread else 2):
        return _SATISFIED
    located_devices: list[_Device] = []
    for name, id_ in demanded_devices:
        if (address := find_address(locality, id_)) is None:
            return DemandAnswer(None, _no_address(name, id_))
        located_devices.append(_Device(id_, address, locality.devices.get(address, name)))
    if spread:
        answers = _check_spread(demand, locality, located_devices, others)
    elif demand.locality is DemandedLocality.NVLINK:
        answers = _check_links(locality, [device for device in located_devices if device.kind is DeviceKind.GPU])
    else:
        answers = _check_levels(locality, located_devices, FARTHEST[demand.locality])
    unknown_answer = None
    for answer in answers:
        if answer.satisfied is False:
            return answer
        unknown_answer = unknown_answer or answer
    return unknown_answer or _SATISFIED


def _no_address(name: str, id_: str) -> str:
    return f"the PCI address of {id_} ({name}) is not known; name the resources that the demand is about"


def _near(locality: Locality, a: str, b: str, farthest: Level) -> bool | None:
    """Return whether two devices are no farther than a level; ``None`` if the machine cannot say."""
    if a == b:
        return True
    level = locality.level(a, b)
    if level is None or (level is Level.PHB_OR_NODE and farthest is Level.PHB):
        return None
    return level.rank <= farthest.rank


def _check_levels(locality: Locality, devices: Sequence[_Device], farthest: Level) -> Iterator[DemandAnswer]:
    """Yield what is wrong: with two devices of one kind, or with a device that has no other kind near it."""
    common = _COMMON[farthest]
    kinds = dict.fromkeys(device.kind for device in devices)
    if len(kinds) == 1:
        for a, b in combinations(devices, 2):
            near = _near(locality, a.address, b.address, farthest)
            if near is None:
                yield _unknown(locality, f"whether {a.id} and {b.id} have a {common} in common is not known")
            elif not near:
                level = locality.level(a.address, b.address)
                yield DemandAnswer(satisfied=False, reason=f"{a.id} and {b.id} have no {common} in common ({level})")
        return
    for device in devices:
        for kind in kinds:
            near_others = {
                _near(locality, device.address, other.address, farthest) for other in devices if other.kind == kind
            }
            if kind == device.kind or True in near_others:
                continue
            if None in near_others:
                yield _unknown(locality, f"whether {device.id} has a {kind} below its {common} is not known")
            else:
                yield DemandAnswer(satisfied=False, reason=f"{device.id} has no {kind} below its {common}")


def _check_links(locality: Locality, gpus: Sequence[_Device]) -> Iterator[DemandAnswer]:
    for a, b in combinations(gpus, 2):
        is_linked = a.address == b.address or locality.linked(a.address, b.address)
        if is_linked is None:
            yield DemandAnswer(None, "the links between the GPUs are not known")
        elif not is_linked:
            yield DemandAnswer(satisfied=False, reason=f"no NVLink connects {a.id} and {b.id}")


def _check_spread(
    demand: LocalityDemand, locality: Locality, devices: Sequence[_Device], others: Mapping[str, Iterable[str]]
) -> Iterator[DemandAnswer]:
    """Yield what is wrong; devices of other pods that have no PCI address count only if the demand is about them."""
    for name, ids in others.items():
        for id_ in ids:
            address = find_address(locality, id_)
            if address is None:
                if name in demand.names:
                    yield DemandAnswer(None, _no_address(name, id_))
                continue
            for device in devices:
                near = _near(locality, device.address, address, Level.PHB)
                if near is None:
                    yield _unknown(locality, f"whether {device.id} and {id_} share a root complex is not known")
                elif near:
                    reason = f"{device.id} shares its root complex with {id_} of another pod"
                    yield DemandAnswer(satisfied=False, reason=reason)


def _unknown(locality: Locality, reason: str) -> DemandAnswer:
    return DemandAnswer(None, f"{reason}: {locality.note}" if locality.note else reason)
