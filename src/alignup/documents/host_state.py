"""``HostState`` of ``alignup.dev/v1alpha1``: what the kubelet of one node holds, as an object of the Kubernetes API.

The object is named after its node and has no namespace. ``machine`` and ``configuration`` change rarely, ``ledger``
with every pod. It is small, since a cluster has thousands of them: a pod has its name, what it counts for, and what it
holds exclusively, but not its spec; fields with default values are left out.

Nodes write their objects themselves, so :func:`check_limits` refuses what no node needs before anything is computed.
"""

import re
from collections.abc import Iterable, Iterator
from typing import Any

from alignup.align import bits
from alignup.align.errors import OWN_LIMIT, FieldError, ParseError
from alignup.documents.codec import Count, Document, LinuxList, encode
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
_LARGE_NUMBER = re.compile(r"[0-9]{6}")  #: in a list of CPUs or NUMA nodes

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

    @property
    def device_ids(self) -> Iterable[str]:
        if not self.markers:
            return self.ids
        numbers = tuple(bits.members(bits.parse(self.markers)))
        return (marker_id(node, number) for node in bits.members(bits.parse(self.nodes or "")) for number in numbers)


class ClaimDeviceGroup(Document, frozen=True, omit_defaults=True, kw_only=True):
    """Devices of one pool in ResourceSlices, on the same NUMA nodes and of the same model."""

    driver: str
    pool: str
    devices: list[str]
    nodes: LinuxList | None = None  #: ``None``: unknown
    model: str = ""


class HostLedgerDocument(Document, frozen=True, omit_defaults=True, kw_only=True):
    pods: list[HeldResourcesDocument] = []
    devices: list[DeviceGroupDocument] = []
    resources: dict[str, bool] = {}  #: resources without a device → whether a plugin has registered them
    claim_devices: list[ClaimDeviceGroup] = []
    lost_cpus: LinuxList = ""  #: CPUs that are neither shared nor held
    #: NUMA node → type → bytes reserved there, for nodes in a group: it depends on which pods came and went before
    group_memory: dict[int, dict[str, Count]] = {}


class HostStateDocument(Document, frozen=True, omit_defaults=True, kw_only=True):
    metadata: HostStateMetadata = HostStateMetadata()
    observed_at: str = ""  #: when the observer last found it so, in UTC; renewed every few minutes
    generation: Count = 0  #: rises with every change, but not with ``observed_at``
    machine_generation: Count = 0  #: the generation in which the machine or the configuration changed last
    kubelet: str = ""  #: changes when the kubelet restarts
    machine: dict[str, Any] = {}  #: ``machine/v1``, without PCI devices and devices of plugins
    configuration: dict[str, Any] = {}  #: a KubeletConfiguration with the fields that affect alignment
    ledger: HostLedgerDocument | None = None  #: ``None``: unknown, see ``problems``
    problems: list[str] = []  #: what is unknown, and where the kubelet contradicts itself


def check_limits(state: HostStateDocument) -> None:
    """Raise ``ParseError`` if a HostState is larger, or nested deeper, than that of any node."""
    level: list[Any] = [state.machine, state.configuration]
    for _ in range(MAX_DEPTH):
        inner = (value.values() if isinstance(value, dict) else value for value in level)
        level = [value for values in inner for value in values if isinstance(value, dict | list)]
    if level:
        raise ParseError(f"nested more than {MAX_DEPTH} levels deep {OWN_LIMIT}")
    if (size := len(encode(state))) > MAX_BYTES:
        raise ParseError(f"{size} bytes, and at most {MAX_BYTES} are read {OWN_LIMIT}")
    ledger = state.ledger
    if ledger is None:
        return
    resources = {group.resource for group in ledger.devices} | ledger.resources.keys()
    containers = claimed = 0
    for pod in ledger.pods:
        containers += len(pod.cpus.containers) + len(pod.memory.containers or ()) + len(pod.devices) + len(pod.claims)
        claimed += sum(len(ids) for claims in pod.claims.values() for ids in claims.values())
        resources |= pod.requests.keys()
    for field, count, limit in (
        ("pods", len(ledger.pods), MAX_PODS),
        ("containers", containers, MAX_CONTAINERS),
        ("devices", sum(map(_count_devices, ledger.devices)), MAX_DEVICES),
        ("resources", len(resources), MAX_RESOURCES),
        ("claimDevices", sum(len(group.devices) for group in ledger.claim_devices), MAX_CLAIM_DEVICES),
        ("pods.claims", claimed, MAX_CLAIM_DEVICES),
    ):
        if count > limit:
            raise FieldError(f"{count} are listed, and at most {limit} are read {OWN_LIMIT}", field=f"ledger.{field}")
    if any(map(_LARGE_NUMBER.search, _number_lists(ledger))):
        raise FieldError(f"a CPU or NUMA node has a number of six digits or more {OWN_LIMIT}", field="ledger")


def _count_devices(group: DeviceGroupDocument) -> int:
    nodes = group.nodes or ""
    if not group.markers or _LARGE_NUMBER.search(f"{nodes} {group.markers}"):  # the latter is refused anyway
        return len(group.ids)
    return bits.parse(nodes).bit_count() * bits.parse(group.markers).bit_count()


def _number_lists(ledger: HostLedgerDocument) -> Iterator[str]:
    yield ledger.lost_cpus
    yield from (f"{group.nodes or ''} {group.markers}" for group in ledger.devices)
    yield from (group.nodes or "" for group in ledger.claim_devices)
    for pod in ledger.pods:
        yield pod.cpus.pod or ""
        yield from pod.cpus.containers.values()
        for blocks in (pod.memory.pod or (), *(pod.memory.containers or {}).values()):
            yield from (block.nodes for block in blocks)
