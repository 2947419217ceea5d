"""``HostState`` objects: written from machines and ledgers, and read as reports that placement works with.

A pod reads back as one whose containers request what they hold. That decides every other pod alike; the API server has
the full spec under the same uid.
"""

from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from datetime import UTC, datetime
from functools import lru_cache
from typing import Any

from alignup.align import bits
from alignup.align.bits import Bits, NodeSet
from alignup.align.claims.ledger import MODEL, ClaimLedger
from alignup.align.claims.resource_claims import DeviceId, SliceDevice
from alignup.align.devices.ledger import DeviceLedger
from alignup.align.errors import OWN_LIMIT, AlignError, SettingsError, StateError
from alignup.align.host import Host
from alignup.align.ledger import Ledger
from alignup.align.machine import Device, Machine
from alignup.align.quantity import Quantity, QuantityFormat
from alignup.align.release import NEWEST, Release, find_release
from alignup.align.workload.demand import FitRequest
from alignup.align.workload.names import CPU, EPHEMERAL_STORAGE, MEMORY
from alignup.documents import host_state as schema
from alignup.documents.codec import parse_or_none, show_or_none, to_builtins
from alignup.documents.host_state import (
    ClaimDeviceGroup,
    DeviceGroupDocument,
    HeldResourcesDocument,
    HostLedgerDocument,
    HostStateDocument,
    check_limits,
)
from alignup.documents.ledgers import (
    CpuResidue,
    DeviceResidue,
    MemoryResidue,
    PodEntryDocument,
    ResidueDocument,
    UsageDocument,
    device_nodes,
    holdings,
    residue,
    restore_ledger,
)
from alignup.documents.machines import machine_from_document, machine_to_document
from alignup.documents.pod_documents import ContainerDocument, PodDocument
from alignup.documents.steering import MARKER_RESOURCE, marker_number
from alignup.kubernetes import configuration as kubelet_configuration
from alignup.kubernetes.api import Resource
from alignup.kubernetes.manifests.documents import ParsedDocument, to_json
from alignup.placement.host_report import HostReport

HOST_STATES = Resource(
    type=HostStateDocument, kind=schema.KIND, plural=schema.PLURAL, group=schema.GROUP, version=schema.VERSION
)

HEARTBEAT_SECONDS = 300.0  #: after which an unchanged object is written again
MAX_MESSAGE = 2_000  #: characters about what is wrong with an object
STALE_SECONDS = 3 * HEARTBEAT_SECONDS  #: after which its observer has probably stopped


def to_object(state: HostStateDocument) -> dict[str, Any]:
    """Return the fields of the object, without metadata, to be applied."""
    return {name: value for name, value in to_builtins(state).items() if name != "metadata"}


def format_time(seconds: float) -> str:
    """Return a time since the epoch as Kubernetes writes it."""
    return f"{datetime.fromtimestamp(int(seconds), UTC):%Y-%m-%dT%H:%M:%SZ}"


def without_content(state: HostStateDocument) -> HostStateDocument:
    """Return what remains of a HostState that was read."""
    return state.replace(machine={}, configuration={}, ledger=None)


def staleness(state: HostStateDocument, now: float) -> str:
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


def kubelet_release(version: str) -> Release:
    """Return the release of a Node's kubelet, or the newest if its version is missing or not one of Kubernetes."""
    with suppress(SettingsError):
        return find_release(version)
    return NEWEST


class HostStateReader:
    """Reads HostState objects; those with the same machine and configuration share what follows from them."""

    def __init__(self) -> None:
        self._idle: dict[str, Host] = {}  #: without devices, by release and the texts of machine and configuration
        self._keys: dict[str, str] = {}  #: node → the key of its host: what no node has any more is forgotten

    def read(self, state: HostStateDocument, *, kubelet_version: str = "") -> HostReport:
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
        key = self._keys.pop(node, None)
        if key is not None and key not in self._keys.values():
            self._idle.pop(key, None)

    def _read(self, state: HostStateDocument, release: Release) -> HostReport:
        if state.ledger is None:
            why = "; ".join(state.problems) or "no reason is given"
            raise StateError(f"what node {state.metadata.name} holds is unknown: {why}")
        check_limits(state)
        idle = self._idle_host(state, release)
        devices = tuple(
            Device(group.resource, id_, parse_or_none(group.nodes), healthy=group.healthy)
            for group in state.ledger.devices
            for id_ in group.device_ids
        )
        provider = replace(idle.devices, devices=devices)
        nodes = bits.of(node.id for node in idle.machine.nodes if node.id >= 0)
        return HostReport(
            host=state.metadata.name,
            machine=idle.machine.with_reported(devices),
            settings=idle.settings,
            ledger=_read_ledger(state.ledger, replace(idle.ledger, devices=provider.initial_ledger()), nodes),
            sequence=state.generation,
            kubelet=state.kubelet,
        )

    def _idle_host(self, state: HostStateDocument, release: Release) -> Host:
        key = f"{release}\n{to_json(state.machine)}\n{to_json(state.configuration)}"
        if self._keys.get(state.metadata.name) != key:
            self.forget(state.metadata.name)
            self._keys[state.metadata.name] = key
        if key not in self._idle:
            name = f"HostState {state.metadata.name}"
            machine = replace(machine_from_document(state.machine, name=name), devices=())
            if len(machine.cpus) > schema.MAX_CPUS or len(machine.nodes) > schema.MAX_NODES:
                limits = f"{schema.MAX_CPUS} CPUs on {schema.MAX_NODES} NUMA nodes"
                raise StateError(f"{name}: more than {limits} are not read {OWN_LIMIT}")
            document = ParsedDocument(1, 1, state.configuration)
            configuration = kubelet_configuration.read_document(document, name=name, release=release)
            settings = kubelet_configuration.host_settings(configuration, machine)
            self._idle[key] = Host(machine, replace(settings, kubelet_faults=True))
        return self._idle[key]


def machine_document(machine: Machine) -> dict[str, Any]:
    """Return what decisions depend on; the report of cAdvisor only where it differs from the hardware."""
    small = replace(machine, devices=(), pci=(), gaps=())
    plain = replace(small, report=None)
    return machine_to_document(plain if plain.kubelet_view() == small.kubelet_view() else small)


def ledger_document(ledger: Ledger) -> HostLedgerDocument:
    left = residue(ledger)
    empty = {
        name: inventory.registered for name, inventory in ledger.devices.inventories.items() if not inventory.devices
    }
    stopped = {name: False for name, inventory in ledger.devices.inventories.items() if not inventory.registered}
    return HostLedgerDocument(
        pods=[_held_resources(ledger, uid) for uid in ledger.pods],
        devices=list(_device_groups(ledger.devices)),
        resources={**empty, **stopped},
        claim_devices=list(_claim_device_groups(ledger.claims)) if ledger.claims else [],
        lost_cpus=left.cpus.lost,
        group_memory=left.memory.reserved,
    )


def _held_resources(ledger: Ledger, uid: str) -> HeldResourcesDocument:
    cpus, memory, _ = holdings(ledger, uid)
    pod = ledger.pods[uid].pod
    return HeldResourcesDocument(
        uid=uid,
        namespace=pod.namespace,
        name=pod.name if pod.namespace else "",
        priority=pod.priority or 0,
        requests=_requests(ledger.pods[uid].usage),
        cpus=cpus,
        memory=memory,
        devices={
            container: {resource: list(ids) for resource, ids in resources.items()}
            for container, resources in ledger.devices.held.get(uid, {}).items()
        },
        claims={
            container: {claim: list(map(str, ids)) for claim, ids in claims.items()}
            for container, claims in (ledger.claims.held.get(uid, {}) if ledger.claims else {}).items()
        },
    )


def _requests(usage: FitRequest) -> dict[str, str]:
    amounts = {MEMORY: usage.memory, EPHEMERAL_STORAGE: usage.ephemeral_storage, **usage.scalars}
    cpu = {CPU: _show_milli_cpu(usage.milli_cpu)} if usage.milli_cpu else {}
    return cpu | {name: _show_amount(amount) for name, amount in amounts.items() if amount}


@lru_cache(maxsize=1024)  # the pods of a node have few different amounts
def _show_milli_cpu(amount: int) -> str:
    return str(Quantity(amount, -3))


@lru_cache(maxsize=1024)
def _show_amount(amount: int) -> str:
    return str(Quantity.of(amount, QuantityFormat.BINARY_SI))


def _device_groups(ledger: DeviceLedger) -> Iterator[DeviceGroupDocument]:
    for resource, inventory in sorted(ledger.inventories.items()):
        groups: dict[tuple[int | None, bool], list[str]] = {}
        for device in inventory.devices:
            groups.setdefault((device.nodes, device.healthy), []).append(device.id)
        for (nodes, healthy), ids in groups.items():
            group = DeviceGroupDocument(resource=resource, ids=ids, nodes=show_or_none(nodes), healthy=healthy)
            markers = bits.show(_marker_numbers(nodes, ids)) if resource == MARKER_RESOURCE else ""
            yield group.replace(ids=[], markers=markers) if markers else group


def _marker_numbers(nodes: NodeSet | None, ids: list[str]) -> Bits:
    """Return the numbers of the markers of a NUMA node; none if any of them is no such marker."""
    members = list(bits.members(nodes or 0))
    numbers = [marker_number(members[0], id_) for id_ in ids] if len(members) == 1 else []
    known = [number for number in numbers if number is not None]
    return bits.of(known) if len(known) == len(ids) else 0


def _claim_device_groups(ledger: ClaimLedger) -> Iterator[ClaimDeviceGroup]:
    groups: dict[tuple[str, str, int | None, str], list[str]] = {}
    for device in ledger.devices:
        driver, pool, name = device.id
        groups.setdefault((driver, pool, device.nodes, str(device.attributes.get(MODEL, ""))), []).append(name)
    for (driver, pool, nodes, model), names in groups.items():
        yield ClaimDeviceGroup(driver=driver, pool=pool, devices=names, nodes=show_or_none(nodes), model=model)


def _read_claims(document: HostLedgerDocument, nodes: NodeSet) -> ClaimLedger | None:
    """Read the devices of claims; *nodes* are the NUMA nodes of the machine."""
    held = {
        pod.uid: {
            container: {claim: tuple(map(_device_id, ids)) for claim, ids in claims.items()}
            for container, claims in pod.claims.items()
        }
        for pod in document.pods
        if pod.claims
    }
    devices = tuple(
        SliceDevice(
            DeviceId(group.driver, group.pool, name),
            {MODEL: group.model} if group.model else {},
            nodes=(parse_or_none(group.nodes) or 0) & nodes or None,
        )
        for group in document.claim_devices
        for name in group.devices
    )
    return ClaimLedger(devices, held) if devices or held else None


def _device_id(text: str) -> DeviceId:
    """Read driver/pool/device; only names of pools can have slashes."""
    driver, _, rest = text.partition("/")
    pool, _, device = rest.rpartition("/")
    return DeviceId(driver, pool, device)


def _read_ledger(document: HostLedgerDocument, idle: Ledger, nodes: NodeSet) -> Ledger:
    taken = 0
    for pod in document.pods:
        cpus = bits.union(map(bits.parse, (pod.cpus.pod or "", *pod.cpus.containers.values())))
        if cpus & taken:  # here, since a complete list of who holds what twice can be very long
            raise StateError(f"CPUs {bits.show(cpus & taken)} of pod {pod.namespace}/{pod.name} are held twice")
        taken |= cpus
    for resource, registered in document.resources.items():
        if resource in idle.devices.inventories and not registered:
            idle = replace(idle, devices=idle.devices.give_up(resource))
    resources = {
        name: inventory.registered for name, inventory in idle.devices.inventories.items()
    } | document.resources
    left = ResidueDocument(
        cpus=CpuResidue(reusable=None, lost=document.lost_cpus),
        memory=MemoryResidue(reusable=None, reserved=document.group_memory),
        devices=DeviceResidue(reusable=None, resources=resources),
        providers={},
    )
    ledger = restore_ledger([_pod_entry(pod, idle.devices) for pod in document.pods], left, idle=idle)
    return replace(ledger, claims=_read_claims(document, nodes))


def _pod_entry(held: HeldResourcesDocument, devices: DeviceLedger) -> PodEntryDocument:
    amounts = {name: Quantity.parse(amount) for name, amount in held.requests.items()}
    cpu, memory, storage = (amounts.pop(name, Quantity.ZERO) for name in (CPU, MEMORY, EPHEMERAL_STORAGE))
    names = dict.fromkeys((*held.cpus.containers, *(held.memory.containers or ()), *held.devices))
    return PodEntryDocument(
        pod=PodDocument(
            uid=held.uid,
            namespace=held.namespace,
            name=held.name or held.uid,
            priority=held.priority or None,
            containers=[_container(held, name) for name in names],
        ),
        uses=UsageDocument(
            milli_cpu=cpu.milli(),
            memory=memory.value(),
            ephemeral_storage=storage.value(),
            scalars={name: amount.value() for name, amount in amounts.items()},
        ),
        cpus=held.cpus,
        memory=held.memory,
        devices={
            container: {
                resource: {id_: device_nodes(devices, resource, id_) for id_ in ids}
                for resource, ids in resources.items()
            }
            for container, resources in held.devices.items()
        },
    )


def _container(held: HeldResourcesDocument, name: str) -> ContainerDocument:
    """Return a container that requests what it holds."""
    amounts: dict[str, Any] = {}
    if cpus := held.cpus.containers.get(name):
        amounts[CPU] = str(bits.parse(cpus).bit_count())
    for block in (held.memory.containers or {}).get(name, ()):
        amounts[block.type] = str(int(amounts.get(block.type, 0)) + block.bytes)
    amounts |= {resource: str(len(ids)) for resource, ids in held.devices.get(name, {}).items()}
    return ContainerDocument(name, amounts, amounts)
