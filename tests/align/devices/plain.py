"""Devices for tests: a short way to write them, strategies, and hints counted the plain way, set by set."""

from collections.abc import Collection, Iterable, Sequence
from types import MappingProxyType
from typing import NamedTuple

from hypothesis import strategies as st

from alignup.align import bits
from alignup.align.bits import NodeSet
from alignup.align.devices.hints import CoverageFamily
from alignup.align.devices.ledger import DeviceIds, DeviceLedger
from alignup.align.devices.provider import (
    NO_ANSWERS,
    DeviceProvider,
    PreferenceAnswers,
    PreferenceRequest,
    PreferencesNeededError,
)
from alignup.align.hint import AmountFamily, AnyHints, Hint, HintList, subsets
from alignup.align.machine import Device
from alignup.align.quantity import Quantity
from alignup.align.workload import Container, Pod, Resources, demand
from tests.strategies_hints import node_sets, subsets_of

GPU = "example.com/gpu"
NIC = "vendor.io/nic"
UNKNOWN_NODE = 77  #: a node no machine of these tests has


def gpus(*places: Collection[int] | None, ill: Collection[int] = ()) -> list[Device]:
    """``gpu-0``, ``gpu-1``, … on these nodes; those whose number is in *ill* are not healthy."""
    return [
        Device(GPU, f"gpu-{number}", None if nodes is None else bits.of(nodes), healthy=number not in ill)
        for number, nodes in enumerate(places)
    ]


def ledger_of(devices: Iterable[Device], *, nodes: NodeSet = 0b1111, asked: Collection[str] = ()) -> DeviceLedger:
    return DeviceLedger.of_devices(devices, nodes=nodes, preferred_allocation=asked)


def wanting(name: str = "app", *, sidecar: bool = False, **counts: int) -> Container:
    """A container with these limits of ``gpu`` and ``nic``."""
    full = {"gpu": GPU, "nic": NIC}
    limits = {full[short]: Quantity(count) for short, count in counts.items()}
    return Container(name, Resources(limits=limits), restartable=sidecar)


def pod_of(*containers: Container, init: Sequence[Container] = (), uid: str = "pod") -> Pod:
    return Pod(name=uid, uid=uid, init=tuple(init), containers=containers)


class Allocated(NamedTuple):
    """The result of an allocation for one container; with ``asks``, nothing was allocated."""

    ledger: DeviceLedger
    devices: DeviceIds = MappingProxyType({})
    asks: tuple[PreferenceRequest, ...] = ()


def allocate(
    ledger: DeviceLedger,
    pod: Pod,
    *,
    container: Container,
    affinity: NodeSet | None,
    answers: PreferenceAnswers = NO_ANSWERS,
) -> Allocated:
    provider = DeviceProvider(ledger.nodes, answers=answers)
    try:
        after = provider.allocate(ledger, pod, container, affinity=Hint(affinity, preferred=False))
    except PreferencesNeededError as needed:
        return Allocated(ledger, asks=needed.requests)
    held = after.holds(pod.uid, container.name)
    wanted = demand.devices(pod, container, ledger.handled)
    return Allocated(after, {resource: held[resource] for resource in wanted if resource in held})


def shown(options: AnyHints) -> list[str]:
    """The hints of a family, one text each."""
    assert isinstance(options, AmountFamily | CoverageFamily)
    return [str(hint) for hint in HintList.of_family(options)]


def placements(nodes: NodeSet) -> st.SearchStrategy[NodeSet | None]:
    """Nodes of a device: one or several, unknown ones, none, or no topology."""
    known = subsets_of(nodes, least=1)
    unknown = st.builds(lambda mask: mask | 1 << UNKNOWN_NODE, subsets_of(nodes))
    return subsets_of(nodes, least=1).map(lambda mask: mask & -mask) | known | known | st.none() | st.just(0) | unknown


@st.composite
def announcements(draw: st.DrawFn, nodes: NodeSet, *, resource: str = GPU, most: int = 8) -> list[Device]:
    """What a plugin might announce."""
    ids = draw(st.lists(st.integers(0, 12), max_size=most, unique=True))
    return [Device(resource, f"d{number}", draw(placements(nodes)), healthy=draw(st.booleans())) for number in ids]


@st.composite
def machines(draw: st.DrawFn, most_nodes: int = 4) -> tuple[NodeSet, list[Device]]:
    """The nodes of a machine, and the devices of one resource on it."""
    nodes = draw(node_sets(most=most_nodes))
    return nodes, draw(announcements(nodes))


def counted(
    devices: Sequence[Device], nodes: NodeSet, *, free: Collection[str], again: Collection[str], need: int
) -> list[Hint]:
    """The hints as the kubelet counts them: every set of nodes looked at for itself."""
    known = {device.id: device for device in devices}
    among = 0
    for device in devices:
        among |= (device.nodes or 0) & nodes
    among = among or nodes
    width = among.bit_count()
    fitting = []
    for mask in subsets(among):
        if sum(1 for device in devices if (device.nodes or 0) & mask) >= need:
            width = min(width, mask.bit_count())
        insisted = [known[id_].nodes or 0 for id_ in again if known[id_].nodes is not None]
        count = len(insisted) + sum(1 for id_ in free if (known[id_].nodes or 0) & mask)
        if all(places & mask for places in insisted) and count >= need:
            fitting.append(mask)
    return [Hint(mask, mask.bit_count() == width) for mask in fitting]
