"""``HostState`` of ``alignup.dev/v1alpha1``: what the kubelet of one node holds, as an object of the Kubernetes API.

The object is named after its node and has no namespace. ``machine`` and ``configuration`` change rarely, ``ledger``
with every pod. It is small, since a cluster has thousands of them: a pod has its name, what it counts for, and what it
holds exclusively, but not its spec; fields with default values are left out.

Nodes write their objects themselves, so readers refuse what no node needs, by the limits here.
"""

from collections.abc import Iterable
from datetime import datetime
from typing import Any, Self

import msgspec
from msgspec import Raw

from alignup.align import bits
from alignup.documents.codec import Count, Document, LinuxList
from alignup.documents.ledgers import CpuHoldings, MemoryHoldings
from alignup.documents.steering import marker_id

GROUP, VERSION, KIND, PLURAL = "alignup.dev", "v1alpha1", "HostState", "hoststates"

MAX_BYTES = 1 << 20  #: of a HostState as JSON
MAX_DEPTH = 50  #: of nested lists and objects in its machine and configuration
MAX_CPUS, MAX_NODES = 8_192, 256
MAX_PODS = 2_000
MAX_CONTAINERS = 10_000  #: that hold CPUs, memory or devices
MAX_DEVICES = 50_000
MAX_CLAIM_DEVICES = 10_000  #: in ResourceSlices of the node
MAX_RESOURCES = 1_000  #: names of resources
MAX_PCI_DEVICES = 4_096  #: whose place is published; the place of other devices is unknown
MAX_LINKED_DEVICES = 4_096  #: in all links together

HEARTBEAT_SECONDS = 300.0  #: after which an unchanged object is written again
STALE_SECONDS = 3 * HEARTBEAT_SECONDS  #: after which its observer has probably stopped

NOTHING, EMPTY = Raw(b"null"), Raw(b"[]")
_NO_CPUS, _NO_MEMORY = CpuHoldings(), MemoryHoldings()


class HostStateMetadata(Document, frozen=True, omit_defaults=True, kw_only=True):
    name: str = ""
    namespace: str = ""  #: always empty
    uid: str = ""
    resource_version: str = ""


class HeldResourcesDocument(Document, frozen=True, omit_defaults=True, kw_only=True):
    """A pod that the kubelet has admitted, and what it holds."""

    uid: str
    namespace: str = ""  #: empty: the name is unknown
    name: str = ""
    priority: int = 0
    requests: dict[str, str] = {}  #: what it counts for in the fit check; quantities
    cpus: CpuHoldings = _NO_CPUS
    memory: MemoryHoldings = _NO_MEMORY
    devices: dict[str, dict[str, list[str]]] = {}  #: container → resource → ids
    claims: dict[str, dict[str, list[str]]] = {}  #: container → namespace/name → driver/pool/device


class DeviceGroupDocument(Document, frozen=True, omit_defaults=True, kw_only=True):
    """Devices of one resource on the same NUMA nodes."""

    resource: str
    ids: list[str] = []
    nodes: LinuxList | None = None  #: ``None``: no topology
    healthy: bool = True
    markers: LinuxList = ""  #: numbers of the markers of a NUMA node, instead of their ids: there are many on each
    #: PCI addresses in the order of ``ids``, if these are not the addresses; empty texts: unknown
    addresses: list[str] = []

    @property
    def device_ids(self) -> Iterable[str]:
        if not self.markers:
            return self.ids
        numbers = tuple(bits.members(bits.parse(self.markers)))
        return (marker_id(node, number) for node in bits.members(bits.parse(self.nodes or "")) for number in numbers)


class PciGroupDocument(Document, frozen=True, omit_defaults=True, kw_only=True):
    """PCI devices that plugins offer, of the same class and below the same bridges."""

    addresses: list[str]
    path: str = ""  #: root complex and bridges, as in ``machine/v1``; empty: unknown
    class_code: str = msgspec.field(default="", name="class")  #: hexadecimal
    node: Count | None = None  #: NUMA node


class DeviceLinksDocument(Document, frozen=True, omit_defaults=True, kw_only=True):
    """Links beside PCIe between devices that plugins offer, as in ``machine/v1``."""

    kind: str
    devices: list[str]  #: addresses
    count: Count = 1


class ClaimDeviceGroup(Document, frozen=True, omit_defaults=True, kw_only=True):
    """Devices of one pool in ResourceSlices, on the same NUMA nodes and of the same model."""

    driver: str
    pool: str
    devices: list[str]
    nodes: LinuxList | None = None  #: ``None``: unknown
    model: str = ""


class _SmallParts(Document, frozen=True, omit_defaults=True, kw_only=True):
    """The parts of a ledger that are always decoded."""

    resources: dict[str, bool] = {}  #: resources without a device → whether a plugin has registered them
    lost_cpus: LinuxList = ""  #: CPUs that are neither shared nor held
    #: NUMA node → type → bytes reserved there, for nodes in a group: it depends on which pods came and went before
    group_memory: dict[int, dict[str, Count]] = {}


class HostLedgerDocument(_SmallParts, frozen=True, omit_defaults=True, kw_only=True):
    pods: list[HeldResourcesDocument] = []
    devices: list[DeviceGroupDocument] = []
    claim_devices: list[ClaimDeviceGroup] = []
    pci: list[PciGroupDocument] = []
    links: list[DeviceLinksDocument] = []


class HostLedgerObject(_SmallParts, frozen=True, kw_only=True):
    """The same as the API server sends it: the reader decodes what changed."""

    pods: list[Raw] = []
    devices: Raw = EMPTY
    claim_devices: Raw = EMPTY
    pci: Raw = EMPTY
    links: Raw = EMPTY


class _HostStateHead(Document, frozen=True, omit_defaults=True, kw_only=True):
    metadata: HostStateMetadata = HostStateMetadata()
    observed_at: str = ""  #: when the observer last found it so, in UTC; renewed every few minutes
    generation: Count = 0  #: rises with every change, but not with ``observed_at``
    machine_generation: Count = 0  #: the generation in which the machine or the configuration changed last
    kubelet: str = ""  #: changes when the kubelet restarts
    problems: list[str] = []  #: what is unknown, and where the kubelet contradicts itself
    #: ``subuid``, ``subgid`` → the range of the kubelet for user namespaces, ``FIRST:COUNT``; absent: none, or unknown
    sub_ids: dict[str, str] = {}


class HostStateDocument(_HostStateHead, frozen=True, omit_defaults=True, kw_only=True):
    machine: dict[str, Any] = {}  #: ``machine/v1``, without PCI devices and devices of plugins
    configuration: dict[str, Any] = {}  #: a KubeletConfiguration with the fields that affect alignment
    ledger: HostLedgerDocument | None = None  #: ``None``: unknown, see ``problems``


class HostStateObject(_HostStateHead, frozen=True, kw_only=True):
    """The same as the API server sends it: the reader decodes the parts that a program needs, and that changed."""

    machine: Raw = NOTHING
    configuration: Raw = NOTHING
    ledger: Raw = NOTHING

    @property
    def has_ledger(self) -> bool:
        return self.ledger != NOTHING

    def without_content(self) -> Self:
        """Return what remains of a HostState that was read."""
        return self.replace(machine=NOTHING, configuration=NOTHING, ledger=NOTHING)


def staleness(state: HostStateObject, now: float) -> str:
    """Say that the observer of a host has not reported for too long at *now*, since the epoch; empty if it has."""
    if not state.observed_at:
        return ""  # of an older observer
    try:
        age = now - datetime.fromisoformat(state.observed_at).timestamp()
    except ValueError:
        return f"observedAt: {state.observed_at!r} is not a time"
    if age < STALE_SECONDS:
        return ""
    unit, seconds = ("minutes", 60) if age < 7200 else ("hours", 3600) if age < 172_800 else ("days", 86_400)
    return f"its observer last reported {age // seconds:.0f} {unit} ago; see the log of its pod"
