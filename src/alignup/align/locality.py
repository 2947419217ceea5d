"""Where the PCI devices of a machine are below their NUMA nodes: root complex, switches, and links beside PCIe.

Levels have the names of ``nvidia-smi topo -m``. They follow from the bridges above two devices:

* another root complex: NODE if both are on one NUMA node, else SYS
* one root complex, but no common bridge: PHB
* otherwise the bridges below the last common one decide. A switch is an upstream port and one downstream port for each
  device, so up to one bridge is one switch: PIX. More are several switches: PXB

NCCL's files have one bridge for each switch, and neither root ports nor root complexes. There, any switch below the
common one makes PXB, and without a common switch PHB and NODE cannot be told apart.

A virtual machine often has no bridge above any device. Such a tree is flat, and says nothing about the hardware.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from itertools import combinations, permutations
from typing import TYPE_CHECKING, NamedTuple

from alignup.align import bits

if TYPE_CHECKING:
    from alignup.align.machine import Machine, PciDevice

FLAT = "flat: cannot say"
NO_TREE = "no PCIe tree recorded"

_DISPLAY, _ACCELERATOR, _NETWORK, _INFINIBAND, _NVME, _VGA = 0x03, 0x12, 0x02, 0x0C06, 0x0108, 0x0300  #: PCI classes
#: Vendors of displays for consoles: management controllers (ASPEED, Matrox, XGI, Silicon Motion, HiSilicon) and
#: hypervisors (QEMU, Cirrus, Red Hat, VMware, VirtualBox, Hyper-V)
_CONSOLES = {0x1A03, 0x102B, 0x18CA, 0x126F, 0x19E5, 0x1234, 0x1013, 0x1AF4, 0x1B36, 0x15AD, 0x80EE, 0x1414}


class Level(StrEnum):
    """How near two devices are by PCIe; the nearest first."""

    PSB = "PSB"  #: on one board, which only nvidia-smi can tell
    PIX = "PIX"  #: at most one PCIe switch between them
    PXB = "PXB"  #: several switches, but not the host bridge
    PHB = "PHB"  #: through the host bridge of one root complex
    PHB_OR_NODE = "PHB|NODE"  #: one NUMA node; the source does not have the root complexes
    NODE = "NODE"  #: one NUMA node, other root complexes
    SYS = "SYS"  #: other NUMA nodes

    @property
    def rank(self) -> int:
        """0 for the nearest level."""
        return _RANKS[self]


_RANKS = {level: rank for rank, level in enumerate(Level)}


class LinkKind(StrEnum):
    NVLINK = "nvlink"
    NVSWITCH = "nvswitch"
    XGMI = "xgmi"
    C2C = "c2c"


class DeviceKind(StrEnum):
    GPU = "GPU"
    NIC = "NIC"
    NVME = "NVMe"


@dataclass(frozen=True, slots=True)
class PciPath:
    """The bridges above a PCI device, from the root complex down."""

    #: The root complex, as Linux names it: pci0000:3a. ``None``: unknown, and each bridge stands for a whole switch
    root: str | None
    bridges: tuple[str, ...] = ()  #: addresses

    @property
    def switches(self) -> tuple[str, ...]:
        """The upstream ports: below a root port, every second bridge with another below it."""
        return self.bridges if self.root is None else self.bridges[1:-1:2]


@dataclass(frozen=True, slots=True)
class DeviceLink:
    """Links beside PCIe: between two devices, of all that are on one NVSwitch fabric, or of one device to its CPU.

    On a fabric, every two devices have ``count`` links, which each device shares between all its pairs.
    """

    kind: LinkKind
    devices: tuple[str, ...]  #: addresses
    count: int = 1


@dataclass(frozen=True, slots=True)
class StatedLevel:
    """The level of two devices as ``nvidia-smi`` prints it, for machines without a PCIe tree."""

    devices: tuple[str, str]
    level: Level


@dataclass(frozen=True, slots=True)
class DeviceConnection:
    """What connects two devices beside PCIe."""

    kind: LinkKind
    count: int

    def __str__(self) -> str:
        return f"{'XGMI' if self.kind is LinkKind.XGMI else 'NV'}{self.count}"


class Nearness(NamedTuple):
    """How near two devices are; the nearest is the least."""

    rank: tuple[int, int]  #: -1 and minus the number of links, or the rank of the level
    name: str  #: NV2, PIX, …

    @property
    def is_link(self) -> bool:
        return self.rank[0] < 0


def device_kind(device: "PciDevice") -> DeviceKind | None:
    """Return what *device* is by its PCI class; ``None`` if its location does not matter."""
    kind = device.kind or 0
    if kind >> 8 == _VGA and device.vendor in _CONSOLES:
        return None
    if kind >> 16 in {_DISPLAY, _ACCELERATOR}:
        return DeviceKind.GPU
    if kind >> 16 == _NETWORK or kind >> 8 == _INFINIBAND:
        return DeviceKind.NIC
    return DeviceKind.NVME if kind >> 8 == _NVME else None


def normal_address(text: str) -> str:
    """Return a PCI address as Linux writes it: NVML has eight digits of the domain, and capitals."""
    domain, colon, rest = text.lower().partition(":")
    return f"{domain.lstrip('0').zfill(4)}{colon}{rest}"


class Locality:
    """The locality of one machine's PCI devices, which are named by their addresses. See ``Machine.locality``."""

    def __init__(self, machine: "Machine") -> None:
        self.pci: Mapping[str, PciDevice] = {device.address: device for device in machine.pci}
        #: GPUs, network interfaces and NVMe drives, in the order of the machine
        self.devices: Mapping[str, DeviceKind] = {
            device.address: kind for device in machine.pci if (kind := device_kind(device))
        }
        self._one_node = len(machine.nodes) == 1 and bool(machine.cpus)  # devices alone may be on others, too
        self._all_cpus = bits.of(cpu.id for cpu in machine.cpus)
        self._stated = {frozenset(stated_level.devices): stated_level.level for stated_level in machine.stated_levels}
        self._links = machine.links
        self._direct: dict[tuple[str, str], dict[LinkKind, int]] = {}
        for link in machine.links:
            if link.kind is not LinkKind.NVSWITCH:
                for pair in permutations(link.devices, 2):
                    counts = self._direct.setdefault(pair, {})
                    counts[link.kind] = counts.get(link.kind, 0) + link.count
        self._fabrics = [(set(link.devices), link.count) for link in machine.links if link.kind is LinkKind.NVSWITCH]
        self._ids = {device.uuid: device.address for device in machine.pci if device.uuid}
        addresses_by_id: dict[str, set[str]] = {}
        for device in machine.devices:
            addresses_by_id.setdefault(device.id, set()).add(device.address)
        # Two resources may have the same ids for different devices.
        self._ids |= {
            id_: min(addresses) for id_, addresses in addresses_by_id.items() if len(addresses) == 1 and any(addresses)
        }
        self._nearness: dict[tuple[str, str], Nearness | None] = {}  # known results
        self._stated_groups: dict[Level, dict[str, str]] = {}  # likewise
        paths = [path for address in self.devices if (path := self.pci[address].path)]
        #: whether a tree is recorded that says nothing: no device has a bridge above it
        self.flat = bool(paths) and all(path.root and not path.bridges for path in paths)
        self.has_tree = bool(paths) and not self.flat
        #: whether the machine tells anything about the locality of its devices
        self.is_known = self.has_tree or bool(self._links or self._stated)

    @property
    def note(self) -> str:
        """Why the levels of the devices are unknown; empty if they are known, or the machine has no such devices."""
        if self.has_tree or self._stated or not self.devices:
            return ""
        return FLAT if self.flat else NO_TREE

    def find(self, device_id: str) -> str | None:
        """Return the address of the device that a device plugin calls *device_id*: an address, or a GPU's UUID."""
        address = self._ids.get(device_id) or normal_address(device_id)
        return address if address in self.pci else None

    def level(self, a: str, b: str) -> Level | None:
        """Return how near two different devices are by PCIe; ``None`` if the machine cannot say."""
        first, second = self.pci.get(a), self.pci.get(b)
        if first is None or second is None:
            return None
        if self.flat or first.path is None or second.path is None:
            return self._stated.get(frozenset((a, b)))
        if a.rpartition(".")[0] == b.rpartition(".")[0]:  # functions of one device
            return Level.PIX
        if first.path.root != second.path.root:
            return self._by_node(first, second, Level.NODE)
        below = _below_common(first.path.bridges, second.path.bridges)
        if below is None:
            return self._by_node(first, second, Level.PHB_OR_NODE) if first.path.root is None else Level.PHB
        return Level.PIX if below <= (first.path.root is not None) else Level.PXB

    def _by_node(self, a: "PciDevice", b: "PciDevice", same: Level) -> Level | None:
        """Return *same* for one NUMA node and SYS for two. If the nodes are unknown, the CPUs near the devices decide.

        All CPUs of the machine are near a device without a location, so its CPUs decide nothing.
        """
        if self._one_node:
            return same
        if a.node is not None and b.node is not None:
            return same if a.node == b.node else Level.SYS
        if not a.cpus or not b.cpus or self._all_cpus in {a.cpus, b.cpus}:
            return None
        if a.cpus == b.cpus:
            return same
        return None if a.cpus & b.cpus else Level.SYS

    def link(self, a: str, b: str) -> DeviceConnection | None:
        """Return what connects two devices beside PCIe: the strongest of direct links and a fabric."""
        connections = [DeviceConnection(*pair) for pair in self._direct.get((a, b), {}).items()]
        for devices, count in self._fabrics if a != b else ():
            if a in devices and b in devices:
                connections.append(DeviceConnection(LinkKind.NVSWITCH, count))
        return max(connections, key=lambda connection: connection.count, default=None)

    def nearness(self, a: str, b: str) -> Nearness | None:
        """Return how near two devices are by links or PCIe; ``None`` if the machine cannot say."""
        pair = (a, b)
        if pair not in self._nearness:
            link, level = self.link(a, b), self.level(a, b)
            nearness = Nearness((level.rank, 0), str(level)) if level else None
            self._nearness[pair] = Nearness((-1, -link.count), str(link)) if link else nearness
        return self._nearness[pair]

    def linked(self, a: str, b: str) -> bool | None:
        """Return whether links beside PCIe connect two devices; ``None`` if the machine cannot say."""
        if self.link(a, b):
            return True
        return False if self._links or frozenset((a, b)) in self._stated else None

    def root(self, address: str) -> str | None:
        """Return the root complex of a device; ``None`` if it is unknown, or the tree is flat."""
        path = self._path(address)
        return path.root if path else None

    def switch(self, address: str) -> str | None:
        """Return the bridge that all devices on the same switch or root port have in common; ``None`` without any."""
        path = self._path(address)
        if path is None or not path.bridges:
            return None
        return path.bridges[-2] if path.root is not None and len(path.bridges) > 1 else path.bridges[-1]

    def group(self, address: str, level: Level) -> str | None:
        """Return what all devices at PIX, PXB or PHB have in common with a device; ``None`` if it is unknown.

        Two devices are in two groups if the machine does not say whether they share a root complex.
        """
        path = self._path(address)
        if path is None:
            return self._stated_group(address, level)
        if level is Level.PHB and path.root is not None:
            return path.root
        if not path.bridges:
            return address.rpartition(".")[0]  # functions of one device
        return self.switch(address) if level is Level.PIX else path.bridges[0]

    def _stated_group(self, address: str, level: Level) -> str | None:
        if level not in self._stated_groups:
            addresses = dict.fromkeys(address for pair in self._stated for address in sorted(pair))
            groups = self.groups(addresses, level)
            self._stated_groups[level] = {member: group[0] for group in groups for member in group}
        return self._stated_groups[level].get(address)

    def _path(self, address: str) -> PciPath | None:
        device = self.pci.get(address)
        return None if device is None or self.flat else device.path

    def groups(self, addresses: Iterable[str], level: Level) -> tuple[tuple[str, ...], ...]:
        """Return *addresses* in groups that are connected by pairs of *level* or nearer, in their order."""

        def are_near(a: str, b: str) -> bool:
            between = self.level(a, b)
            return between is not None and between.rank <= level.rank

        members = tuple(addresses)
        return components(members, (pair for pair in combinations(members, 2) if are_near(*pair)))

    def islands(self) -> tuple[tuple[str, ...], ...]:
        """Return the devices that links beside PCIe connect, directly or through others, in groups of two or more."""
        pairs = [(link.devices[0], other) for link in self._links for other in link.devices[1:]]
        ends = {address for pair in pairs for address in pair}
        ordered_addresses = (*(address for address in self.pci if address in ends), *sorted(ends - self.pci.keys()))
        return tuple(group for group in components(ordered_addresses, pairs) if len(group) > 1)


def _below_common(a: Sequence[str], b: Sequence[str]) -> int | None:
    """Return how many bridges are below the last common one, on the longer way; ``None`` without a common bridge."""
    common = 0
    for mine, other in zip(a, b, strict=False):
        if mine != other:
            break
        common += 1
    return max(len(a), len(b)) - common if common else None


def components(members: Sequence[str], pairs: Iterable[tuple[str, str]]) -> tuple[tuple[str, ...], ...]:
    """Return *members* in groups connected by *pairs*, in their order."""
    first = {member: member for member in members}

    def find_first(member: str) -> str:
        while first[member] != member:
            first[member] = member = first[first[member]]
        return member

    for a, b in pairs:
        first[find_first(b)] = find_first(a)
    groups: dict[str, list[str]] = {}
    for member in members:
        groups.setdefault(find_first(member), []).append(member)
    return tuple(map(tuple, groups.values()))
