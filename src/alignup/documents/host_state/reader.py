"""HostStates as reports for placement. What was read of a node is kept, so its next report costs what changed.

A pod whose text is the same as in the last report is the same object in the next ledger. The parts that are rarely
different (the machine and the configuration, the devices of plugins, those of claims) are decoded only when their text
has changed. All that depends on several pods is computed again for each report.

A pod reads back as one whose containers request what they hold. That decides every other pod alike; the API server has
the full spec under the same uid. Equal parts of pods are stored once, whatever nodes they are on: a cluster has a
hundred thousand pods of a few shapes.
"""

import re
from collections.abc import Callable, Collection, Hashable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from hashlib import blake2b
from itertools import chain, repeat
from typing import Any, NamedTuple, TypeVar
from weakref import WeakValueDictionary

import msgspec
from msgspec import Raw

from alignup.align import bits
from alignup.align.claims.ledger import MODEL, ClaimLedger
from alignup.align.claims.resource_claims import DeviceId, SliceDevice
from alignup.align.devices.ledger import DeviceLedger
from alignup.align.errors import OWN_LIMIT, AlignError, FieldError, ParseError, SettingsError, StateError
from alignup.align.hint import Hint
from alignup.align.host import Host, Settings
from alignup.align.ledger import AdmittedPod
from alignup.align.locality import DeviceLink, LinkKind
from alignup.align.machine import MAX_BRIDGES, Device, Machine, PciDevice
from alignup.align.quantity import Quantity
from alignup.align.release import NEWEST, Release, find_release
from alignup.align.workload import Container, Pod, Resources
from alignup.align.workload.demand import FitRequest
from alignup.align.workload.names import CPU, EPHEMERAL_STORAGE, MEMORY
from alignup.documents.codec import decoder, parse_or_none
from alignup.documents.host_state import schema
from alignup.documents.host_state.schema import (
    ClaimDeviceGroup,
    DeviceGroupDocument,
    DeviceLinksDocument,
    HeldResourcesDocument,
    HostLedgerObject,
    HostStateObject,
    PciGroupDocument,
)
from alignup.documents.ledgers import (
    CpuResidue,
    DeviceResidue,
    MemoryResidue,
    PodEntry,
    ResidueDocument,
    are_held_twice,
    make_entry,
    restore_entries,
)
from alignup.documents.machines import machine_from_document, parse_path
from alignup.placement.host_report import HostReport

MAX_MESSAGE = 2_000  #: characters about what is wrong with an object
MAX_SHARED = 200_000  #: parts of pods that are stored once; beyond that, sharing starts anew
_LARGE_NUMBER = re.compile(r"[0-9]{6}")  #: in a list of CPUs or NUMA nodes
_NO_HINTS: Mapping[str, Hint] = {}

_T = TypeVar("_T")
#: Reads a KubeletConfiguration for a machine and a release; the last argument is its name in messages.
SettingsReader = Callable[[dict[str, Any], Machine, Release, str], Settings]


def kubelet_release(version: str) -> Release:
    """Return the release of a Node's kubelet, or the newest if its version is missing or not one of Kubernetes."""
    with suppress(SettingsError):
        return find_release(version)
    return NEWEST


class _IdleHost(NamedTuple):
    """A node without pods."""

    source: Hashable  #: everything that it was made of
    machine: Machine
    devices: DeviceLedger


@dataclass(slots=True)
class _Node:
    """What was read of a node: each part with the text or number that it was read from."""

    generation: Hashable = None  #: of the machine and the configuration; ``None``: they have no number
    host: Host | None = None  #: without pods and devices; nodes with the same machine and configuration share it
    idle: _IdleHost | None = None
    pods: Mapping[bytes, PodEntry] = field(default_factory=dict)  #: by hashes of their texts, which are shorter
    claims: tuple[Hashable, tuple[SliceDevice, ...]] = (None, ())


class HostStateReader:
    def __init__(self, read_settings: SettingsReader) -> None:
        self._read_settings = read_settings
        self._nodes: dict[str, _Node] = {}
        self._hosts: WeakValueDictionary[Hashable, Host] = WeakValueDictionary()  #: by release and texts
        self._parts: dict[Hashable, Any] = {}  #: of pods on any node

    def read(self, state: HostStateObject, *, kubelet_version: str = "") -> HostReport:
        """Return the report of a node with this *kubelet_version*; empty or strange ones count as the newest.

        ``StateError`` if the ledger is unknown, ``AlignError`` if the object is invalid.
        """
        try:
            return self._read(state, kubelet_release(kubelet_version))
        except AlignError as error:
            if len(str(error)) > MAX_MESSAGE:
                raise StateError(f"{str(error)[:MAX_MESSAGE]}…") from None
            raise

    def forget(self, node: str) -> None:
        """Forget a node that is gone, and its machine and configuration unless another node has them, too."""
        self._nodes.pop(node, None)

    def _read(self, state: HostStateObject, release: Release) -> HostReport:
        name = state.metadata.name
        if not state.has_ledger:
            why = "; ".join(state.problems) or "no reason is given"
            raise StateError(f"what node {name} holds is unknown: {why}")
        texts = map(bytes, (state.machine, state.configuration, state.ledger))
        if (size := sum(map(len, (*texts, *state.problems)))) > schema.MAX_BYTES:
            raise ParseError(f"{size} bytes, and at most {schema.MAX_BYTES} are read {OWN_LIMIT}")
        node = self._nodes.get(name) or _Node()
        ledger = _decode(state.ledger, HostLedgerObject, "ledger")
        _check_numbers([ledger.lost_cpus])
        host = self._find_host(node, state, release)
        idle = _find_idle(node, host, ledger)
        entries = self._read_pods(node, ledger.pods, {*idle.devices.inventories, *ledger.resources})
        registered_ids = {resource: inventory.registered for resource, inventory in idle.devices.inventories.items()}
        cpus, memory = CpuResidue(None, ledger.lost_cpus), MemoryResidue(None, ledger.group_memory)
        residue = ResidueDocument(cpus, memory, DeviceResidue(None, registered_ids | ledger.resources), {})
        new_ledger = restore_entries(entries, residue, idle=replace(host.ledger, devices=idle.devices))
        self._nodes[name] = node
        return HostReport(
            host=name,
            machine=idle.machine,
            settings=host.settings,
            ledger=replace(new_ledger, claims=_read_claims(node, host.machine, ledger, entries)),
            sequence=state.generation,
            kubelet=state.kubelet,
        )

    def _find_host(self, node: _Node, state: HostStateObject, release: Release) -> Host:
        generation = (release, state.metadata.uid, state.machine_generation) if state.machine_generation else None
        if node.host is not None and generation is not None and node.generation == generation:
            return node.host
        key = (release, bytes(state.machine), bytes(state.configuration))
        host = self._hosts.get(key)
        if host is None:
            name = f"HostState {state.metadata.name}"
            machine, configuration = (_decode_values(text) for text in (state.machine, state.configuration))
            hardware = replace(machine_from_document(machine, name=name), devices=())
            if len(hardware.cpus) > schema.MAX_CPUS or len(hardware.nodes) > schema.MAX_NODES:
                limits = f"{schema.MAX_CPUS} CPUs on {schema.MAX_NODES} NUMA nodes"
                raise StateError(f"{name}: more than {limits} are not read {OWN_LIMIT}")
            host = Host(hardware, self._read_settings(configuration, hardware, release, name))
            self._hosts[key] = host
        node.host = host
        node.generation = generation
        return host

    def _read_pods(self, node: _Node, parts: Sequence[Raw], resources: set[str]) -> Sequence[PodEntry]:
        """Return the entries of all pods; those with the same text as before are the same objects.

        *resources* are names of resources, apart from those of pods.
        """
        _check_count("pods", len(parts), schema.MAX_PODS)
        digests = [blake2b(part, digest_size=16).digest() for part in parts]
        pods = {digest: node.pods[digest] for digest in digests if digest in node.pods}
        if len(pods) < len(digests):
            containers = sum([len(entry.admitted.pod.containers) for entry in pods.values()])
            claimed_count = sum([_count_claimed(entry) for entry in pods.values() if entry.claims])
            for index, digest in enumerate(digests):
                if digest in pods:
                    continue
                document = _decode(parts[index], HeldResourcesDocument, f"ledger.pods[{index}]")
                containers += len(_holders(document))
                claimed_count += _count_claimed(document)
                _check_count("containers", containers, schema.MAX_CONTAINERS)
                _check_count("pods.claims", claimed_count, schema.MAX_CLAIM_DEVICES)
                pods[digest] = self._read_pod(document)
            resources = resources.union(*[entry.admitted.usage.scalars for entry in pods.values()])
            _check_count("resources", len(resources), schema.MAX_RESOURCES)
        entries = [pods[digest] for digest in digests]
        _check_cpus(entries)
        node.pods = pods
        return entries

    def _read_pod(self, document: HeldResourcesDocument) -> PodEntry:
        if not document.uid:
            raise ParseError(f"pod {document.namespace}/{document.name} has no uid")
        _check_numbers(_number_lists(document))
        amounts = tuple([(name, tuple(_amounts(document, name).items())) for name in _holders(document)])
        shape: Pod = self._share(("pod", amounts), lambda: Pod(name="", containers=tuple(map(_container, amounts))))
        pod = replace(
            shape,
            uid=document.uid,
            namespace=self._share(document.namespace, lambda: document.namespace),
            name=document.name or document.uid,
            priority=document.priority or None,
        )
        usage = self._share(("usage", *document.requests.items()), lambda: _usage(document.requests))
        entry = make_entry(AdmittedPod(pod, _NO_HINTS, usage), document.cpus, document.memory, document.devices)
        cpus, owned_cpus = self._share(("cpus", entry.pod_cpus, *entry.cpus.items()), lambda: (entry.cpus, entry.owned))
        blocks = None if entry.memory is None else tuple(entry.memory.items())
        memory, charged_nodes = self._share(("memory", entry.pod_memory, blocks), lambda: (entry.memory, entry.charged))
        return entry._replace(
            cpus=cpus,
            owned=owned_cpus,
            memory=memory,
            charged=charged_nodes,
            claims={
                container: {claim: tuple(map(_device_id, ids)) for claim, ids in claims.items()}
                for container, claims in document.claims.items()
            }
            or entry.claims,
        )

    def _share(self, key: Hashable, make: Callable[[], _T]) -> _T:
        """Return a part of a pod that other pods may have, too."""
        part: _T | None = self._parts.get(key)
        if part is None:
            if len(self._parts) >= MAX_SHARED:
                self._parts.clear()
            part = self._parts[key] = make()
        return part


def _decode(text: bytes | Raw, type_: type[_T], name: str) -> _T:
    try:
        value: _T = decoder(type_).decode(text)  # type: ignore[arg-type]  # types are hashable
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise ParseError(f"{name}: {error}") from None
    return value


def _decode_values(text: Raw) -> dict[str, Any]:
    """Decode a machine or a configuration."""
    values = {} if text == schema.NOTHING else _decode(text, dict[str, Any], "machine and configuration")
    level: list[Any] = [values]
    for _ in range(schema.MAX_DEPTH):
        inner = (value.values() if isinstance(value, dict) else value for value in level)
        level = [value for values in inner for value in values if isinstance(value, dict | list)]
    if level:
        raise ParseError(f"nested more than {schema.MAX_DEPTH} levels deep {OWN_LIMIT}")
    return values


def _find_idle(node: _Node, host: Host, ledger: HostLedgerObject) -> _IdleHost:
    """Return the node without pods, and remember it."""
    source = (host, *map(bytes, (ledger.devices, ledger.pci, ledger.links)), tuple(ledger.resources.items()))
    if node.idle is not None and node.idle.source == source:
        return node.idle
    groups = _decode(ledger.devices, list[DeviceGroupDocument], "ledger.devices")
    resources = {group.resource for group in groups} | ledger.resources.keys()
    _check_count("devices", sum(map(_count_devices, groups)), schema.MAX_DEVICES)
    _check_count("resources", len(resources), schema.MAX_RESOURCES)
    _check_numbers(f"{group.nodes or ''} {group.markers}" for group in groups)
    devices = tuple(
        Device(group.resource, id_, parse_or_none(group.nodes), healthy=group.healthy, address=address)
        for group in groups
        for id_, address in zip(group.device_ids, chain(group.addresses, repeat("")), strict=False)
    )
    idle = replace(host.devices, devices=devices).initial_ledger()
    for resource, registered_ids in ledger.resources.items():
        if resource in idle.inventories and not registered_ids:
            idle = idle.give_up(resource)
    machine = host.machine
    if ledger.pci != schema.EMPTY:
        machine = replace(machine, pci=_read_pci(ledger), links=_read_links(ledger))
    node.idle = _IdleHost(source, machine.with_reported(devices), idle)
    return node.idle


def _read_pci(ledger: HostLedgerObject) -> tuple[PciDevice, ...]:
    groups = _decode(ledger.pci, list[PciGroupDocument], "ledger.pci")
    _check_count("pci", sum(len(group.addresses) for group in groups), schema.MAX_PCI_DEVICES)
    devices: dict[str, PciDevice] = {}
    for group in groups:
        path = parse_path(group.path) if group.path else None
        _check_count("pci.path", len(path.bridges) if path else 0, MAX_BRIDGES)
        try:
            kind = int(group.class_code, 16) if group.class_code else None
        except ValueError:
            raise FieldError(f"{group.class_code[:60]!r} is not a class", field="ledger.pci.class") from None
        devices |= {address: PciDevice(address, kind=kind, node=group.node, path=path) for address in group.addresses}
    return tuple(devices.values())


def _read_links(ledger: HostLedgerObject) -> tuple[DeviceLink, ...]:
    """Return the links of known kinds."""
    links = _decode(ledger.links, list[DeviceLinksDocument], "ledger.links")
    _check_count("links", sum(len(link.devices) for link in links), schema.MAX_LINKED_DEVICES)
    kinds = {str(kind): kind for kind in LinkKind}
    return tuple(DeviceLink(kinds[link.kind], tuple(link.devices), link.count) for link in links if link.kind in kinds)


def _read_claims(
    node: _Node, machine: Machine, ledger: HostLedgerObject, entries: Iterable[PodEntry]
) -> ClaimLedger | None:
    source = (machine, bytes(ledger.claim_devices))
    if node.claims[0] != source:
        groups = _decode(ledger.claim_devices, list[ClaimDeviceGroup], "ledger.claimDevices")
        _check_count("claimDevices", sum(len(group.devices) for group in groups), schema.MAX_CLAIM_DEVICES)
        _check_numbers(group.nodes or "" for group in groups)
        nodes = bits.of(node.id for node in machine.nodes if node.id >= 0)
        devices = tuple(
            SliceDevice(
                DeviceId(group.driver, group.pool, name),
                {MODEL: group.model} if group.model else {},
                nodes=(parse_or_none(group.nodes) or 0) & nodes or None,
            )
            for group in groups
            for name in group.devices
        )
        node.claims = (source, devices)
    claims = {entry.uid: entry.claims for entry in entries if entry.claims}
    return ClaimLedger(node.claims[1], claims) if node.claims[1] or claims else None


def _device_id(text: str) -> DeviceId:
    """Read driver/pool/device; only names of pools can have slashes."""
    driver, _, rest = text.partition("/")
    pool, _, device = rest.rpartition("/")
    return DeviceId(driver, pool, device)


def _holders(document: HeldResourcesDocument) -> Collection[str]:
    """Return the containers that hold CPUs, memory or devices."""
    return dict.fromkeys((*document.cpus.containers, *(document.memory.containers or ()), *document.devices))


def _amounts(document: HeldResourcesDocument, name: str) -> dict[str, int]:
    """Return what a container holds, as amounts."""
    amounts: dict[str, int] = {}
    if cpus := document.cpus.containers.get(name):
        amounts[CPU] = bits.parse(cpus).bit_count()
    for block in (document.memory.containers or {}).get(name, ()):
        amounts[block.type] = amounts.get(block.type, 0) + block.bytes
    return amounts | {resource: len(ids) for resource, ids in document.devices.get(name, {}).items()}


def _container(description: tuple[str, tuple[tuple[str, int], ...]]) -> Container:
    """Return a container that requests what it holds."""
    amounts = {resource: Quantity.of(amount) for resource, amount in description[1]}
    return Container(description[0], Resources(amounts, amounts))


def _usage(requests: Mapping[str, str]) -> FitRequest:
    amounts = {name: Quantity.parse(amount) for name, amount in requests.items()}
    cpu, memory, storage = (amounts.pop(name, Quantity.ZERO) for name in (CPU, MEMORY, EPHEMERAL_STORAGE))
    scalars = {name: amount.value() for name, amount in amounts.items()}
    return FitRequest(cpu.milli(), memory.value(), storage.value(), scalars)


# Limits


def _check_count(field: str, count: int, limit: int) -> None:
    if count > limit:
        raise FieldError(f"{count} are listed, and at most {limit} are read {OWN_LIMIT}", field=f"ledger.{field}")


def _check_cpus(entries: Collection[PodEntry]) -> None:
    """Refuse CPUs that two pods hold, without a complete list of who holds what twice, which can be very long."""
    pod_cpus = 0
    for entry in entries if are_held_twice(entries) else ():
        if entry.owned & pod_cpus:
            raise StateError(f"CPUs {bits.show(entry.owned & pod_cpus)} of pod {entry.owner()} are held twice")
        pod_cpus |= entry.owned


def _check_numbers(lists: Iterable[str]) -> None:
    if any(map(_LARGE_NUMBER.search, lists)):
        raise FieldError(f"a CPU or NUMA node has a number of six digits or more {OWN_LIMIT}", field="ledger")


def _number_lists(pod: HeldResourcesDocument) -> Iterator[str]:
    yield pod.cpus.pod or ""
    yield from pod.cpus.containers.values()
    for blocks in (pod.memory.pod or (), *(pod.memory.containers or {}).values()):
        yield from (block.nodes for block in blocks)


def _count_claimed(pod: HeldResourcesDocument | PodEntry) -> int:
    return sum(len(ids) for claims in pod.claims.values() for ids in claims.values())


def _count_devices(group: DeviceGroupDocument) -> int:
    nodes = group.nodes or ""
    if not group.markers or _LARGE_NUMBER.search(f"{nodes} {group.markers}"):  # the latter is refused anyway
        return len(group.ids)
    return bits.parse(nodes).bit_count() * bits.parse(group.markers).bit_count()
