"""A driver of Dynamic Resource Allocation on its sockets, registered with the kubelet of a directory.

It prepares the devices that claims were allocated, records the calls that it gets, and injects faults into them.
"""

import asyncio
import json
import time
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

from alignup.align import bits
from alignup.testing.faulty_server import FaultyServer, Methods
from alignup.testing.plugin_server import parse_device_list
from alignup.wire import dra_health_pb2 as health_wire
from alignup.wire import dra_pb2 as wire
from alignup.wire import plugin_registration_pb2 as registration_wire

Document = dict[str, Any]
Attribute = bool | int | str | Document  #: a document has its type: ``{"version": "1.2.3"}``
ReadClaim = Callable[[str, str], Awaitable[Document | None]]  #: namespace and name → ResourceClaim, if it exists

PREPARE, UNPREPARE = "NodePrepareResources", "NodeUnprepareResources"
VERSIONS = ("v1.DRAPlugin", "v1alpha1.DRAResourceHealth")  #: services that it registers
GROUP = "resource.k8s.io"
STANDARD = "resource.kubernetes.io"  #: the domain of attributes that have the same meaning for all drivers
SLICE_SIZE = 128  #: devices that a ResourceSlice can have
ALL_CLAIMS = "*"  #: every claim for which no other fault is set

_REGISTRATION = registration_wire.DESCRIPTOR.services_by_name["Registration"]
_DRIVER = wire.DESCRIPTOR.services_by_name["DRAPlugin"]
_HEALTH = health_wire.DESCRIPTOR.services_by_name["DRAResourceHealth"]


@dataclass(frozen=True, slots=True, kw_only=True)
class DraDevice:
    """A device as a ResourceSlice describes it."""

    name: str
    numa_nodes: tuple[int, ...] = ()  #: several are published as a list, which needs the gate DRAListTypeAttributes
    pcie_root: str = ""  #: such as ``pci0000:40``
    pci_bus_id: str = ""  #: such as ``0000:41:00.0``
    attributes: Mapping[str, Attribute] = field(default_factory=dict)  #: names without a domain are the driver's
    capacity: Mapping[str, str] = field(default_factory=dict)  #: quantities
    cdi_ids: tuple[str, ...] = ()  #: of edits that the runtime knows already

    def document(self) -> Document:
        """Return the entry of a ResourceSlice."""
        attributes: dict[str, Attribute] = {**self.attributes}
        if self.numa_nodes:
            node, *others = self.numa_nodes
            attributes[f"{STANDARD}/numaNode"] = {"ints": [node, *others]} if others else node
        for key, text in (("pcieRoot", self.pcie_root), ("pciBusID", self.pci_bus_id)):
            attributes |= {f"{STANDARD}/{key}": text} if text else {}
        document: Document = {"name": self.name}
        if attributes:
            document["attributes"] = {key: _attribute(value) for key, value in attributes.items()}
        if self.capacity:
            document["capacity"] = {key: {"value": amount} for key, amount in self.capacity.items()}
        return document


@dataclass(frozen=True, slots=True, kw_only=True)
class ClaimFault:
    """How the response for one claim is wrong; the default is not at all."""

    error: str = ""  #: the claim fails with this message; the others of the call do not
    missing: bool = False  #: the claim is carried out, but is not in the response
    devices: tuple[str, ...] = ()  #: names of devices that are returned instead of the allocated ones


class ClaimError(Exception):
    """Raised if a claim cannot be prepared."""


class DraDriver(FaultyServer):
    """The driver *name* that serves and registers while entered.

    *devices* are devices or a list such as ``4@0,4@1``: four devices near NUMA node 0, four near node 1. *directory* is
    that of the kubelet (``/var/lib/kubelet``), and *node* the name of the node.
    """

    def __init__(self, name: str, devices: Iterable[DraDevice] | str, *, directory: Path, node: str) -> None:
        super().__init__()
        self.name = name
        self.node = node
        self.pool = node  #: the name of its only pool
        device_list = _parse_devices(name, devices) if isinstance(devices, str) else devices
        self.devices = {device.name: device for device in device_list}  #: by name
        self.socket = directory / "plugins" / name / "dra.sock"
        self.registration_socket = directory / "plugins_registry" / f"{name}-reg.sock"
        self.versions: tuple[str, ...] = VERSIONS
        self.read_claim: ReadClaim = self._read_put_claim  #: the kubelet passes on no more than the name of a claim
        self.cdi_directory: Path | None = None  #: where it writes a CDI file for each prepared claim; ``None``: nowhere
        self.registrations = 0  #: successful ones
        self.rejections: list[str] = []  #: error messages of the kubelet
        self.prepared: dict[str, wire.NodePrepareResourceResponse] = {}  #: by the uid of a claim
        self._health: dict[str, health_wire.DeviceHealth] = {}  #: by name
        self._claims: dict[tuple[str, str], Document] = {}  #: by namespace and name
        self._claim_faults: dict[tuple[str, str], ClaimFault] = {}  #: by method and claim
        self._status_changed = asyncio.Event()

    async def __aenter__(self) -> Self:
        await self.start()
        await self.register()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.unregister()
        await self.stop()

    async def register(self) -> None:
        """Create the socket in the registration directory; the kubelet calls it."""
        methods: Methods = {
            "GetInfo": (registration_wire.InfoRequest, self._get_info),
            "NotifyRegistrationStatus": (registration_wire.RegistrationStatus, self._set_status),
        }
        await self._serve(self.registration_socket, {_REGISTRATION: methods})

    async def unregister(self) -> None:
        await self._stop(self.registration_socket)

    async def start(self) -> None:
        """Serve claims."""
        claims: Methods = {
            PREPARE: (wire.NodePrepareResourcesRequest, self._prepare_all),
            UNPREPARE: (wire.NodeUnprepareResourcesRequest, self._unprepare_all),
        }
        health: Methods = {"NodeWatchResources": (health_wire.NodeWatchResourcesRequest, self._device_health)}
        await self._serve(self.socket, {_DRIVER: claims, _HEALTH: health})

    async def stop(self) -> None:
        """Break every connection, but stay registered; ``start`` serves again."""
        await self._stop(self.socket)

    async def wait_registered(self, times: int = 1) -> None:
        while self.registrations < times:
            await self._status_changed.wait()

    async def wait_rejected(self, times: int = 1) -> None:
        while len(self.rejections) < times:
            await self._status_changed.wait()

    def put_claim(self, claim: Document) -> None:
        """Set a ResourceClaim with its allocation, for tests without an API server."""
        metadata = claim["metadata"]
        self._claims[metadata["namespace"], metadata["name"]] = claim

    def inject_claim(self, claim: str, fault: ClaimFault, *, method: str = PREPARE) -> None:
        """Apply *fault* to the claim with this name or uid, ``*`` for all, from now on; ``ClaimFault()`` removes it."""
        self._claim_faults[method, claim] = fault

    def claim_calls(self, method: str, uid: str) -> int:
        """Return how often the kubelet has asked for a claim."""
        return sum(claim.uid == uid for request in self.requests(method) for claim in request.claims)

    def set_health(self, name: str, status: str, message: str = "") -> None:
        """Report the health of a device: HEALTHY, UNHEALTHY or UNKNOWN; ``ValueError`` for anything else."""
        self._health[name] = health_wire.DeviceHealth(
            device=health_wire.DeviceIdentifier(pool_name=self.pool, device_name=name),
            health=status,
            last_updated_time=int(time.time()),
            message=message,
        )
        self._send_changes()

    def slices(self, *, generation: int = 1) -> list[Document]:
        """Return the ResourceSlices of the pool."""
        entries = [device.document() for device in self.devices.values()]
        parts = [entries[at : at + SLICE_SIZE] for at in range(0, len(entries), SLICE_SIZE)] or [[]]
        pool = {"name": self.pool, "generation": generation, "resourceSliceCount": len(parts)}
        return [
            {
                "apiVersion": f"{GROUP}/v1",
                "kind": "ResourceSlice",
                "metadata": {"name": f"{self.node}-{self.name}-{number}"},
                "spec": {"driver": self.name, "pool": pool, "nodeName": self.node, "devices": part},
            }
            for number, part in enumerate(parts)
        ]

    async def _get_info(self, _: registration_wire.InfoRequest) -> registration_wire.PluginInfo:
        return registration_wire.PluginInfo(
            type="DRAPlugin", name=self.name, endpoint=str(self.socket), supported_versions=self.versions
        )

    async def _set_status(
        self, status: registration_wire.RegistrationStatus
    ) -> registration_wire.RegistrationStatusResponse:
        if status.plugin_registered:
            self.registrations += 1
        else:
            self.rejections.append(status.error)
        self._status_changed.set()
        self._status_changed = asyncio.Event()
        return registration_wire.RegistrationStatusResponse()

    async def _prepare_all(self, request: wire.NodePrepareResourcesRequest) -> wire.NodePrepareResourcesResponse:
        response = wire.NodePrepareResourcesResponse()
        for claim in request.claims:
            fault = self._claim_fault(PREPARE, claim)
            try:
                prepared_claim = await self._prepare(claim, fault)
            except ClaimError as error:
                prepared_claim = wire.NodePrepareResourceResponse(error=str(error))
            if not fault.missing:
                response.claims[claim.uid].CopyFrom(prepared_claim)
        return response

    async def _prepare(self, claim: wire.Claim, fault: ClaimFault) -> wire.NodePrepareResourceResponse:
        if fault.error:
            raise ClaimError(fault.error)
        if claim.uid not in self.prepared:
            results = self._results(claim, await self.read_claim(claim.namespace, claim.name))
            devices = [self._prepared_device(claim, result) for result in results]
            self._write_cdi_file(claim, devices)
            self.prepared[claim.uid] = wire.NodePrepareResourceResponse(devices=devices)
        if fault.devices:
            wrong = [wire.Device(pool_name=self.pool, device_name=name) for name in fault.devices]
            return wire.NodePrepareResourceResponse(devices=wrong)
        return self.prepared[claim.uid]

    def _results(self, claim: wire.Claim, document: Document | None) -> list[Document]:
        """Return what a claim was allocated of this driver; raise ``ClaimError`` if that cannot be."""
        claim_name = f"ResourceClaim {claim.namespace}/{claim.name}"
        if document is None:
            raise ClaimError(f"{claim_name} does not exist")
        if document["metadata"]["uid"] != claim.uid:
            raise ClaimError(f"{claim_name} has the uid {document['metadata']['uid']}, not {claim.uid}")
        allocation = document.get("status", {}).get("allocation")
        if allocation is None:
            raise ClaimError(f"{claim_name} is not allocated")
        all_results = allocation.get("devices", {}).get("results", ())
        results = [result for result in all_results if result["driver"] == self.name]
        for result in results:
            if result["pool"] != self.pool or result["device"] not in self.devices:
                raise ClaimError(f"{claim_name} was allocated the unknown device {result['pool']}/{result['device']}")
            holder = self._holder(result["device"])
            if holder and not result.get("shareID") and not result.get("adminAccess"):
                raise ClaimError(
                    f"{claim_name} was allocated {result['device']}, which the claim with uid {holder} holds"
                )
        return results

    def _holder(self, device: str) -> str:
        """Return the uid of a claim that a device is prepared for; empty if there is none."""
        for uid, prepared_claim in self.prepared.items():
            if any(prepared_device.device_name == device for prepared_device in prepared_claim.devices):
                return uid
        return ""

    def _prepared_device(self, claim: wire.Claim, result: Document) -> wire.Device:
        name = result["device"]
        cdi_ids = (f"{self._cdi_kind}={claim.uid}-{name}",) if self.cdi_directory else ()
        return wire.Device(
            request_names=[result["request"].partition("/")[0]],  # without the subrequest
            pool_name=result["pool"],
            device_name=name,
            cdi_device_ids=(*self.devices[name].cdi_ids, *cdi_ids),
            share_id=result.get("shareID"),
        )

    async def _unprepare_all(self, request: wire.NodeUnprepareResourcesRequest) -> wire.NodeUnprepareResourcesResponse:
        response = wire.NodeUnprepareResourcesResponse()
        for claim in request.claims:
            fault = self._claim_fault(UNPREPARE, claim)
            if not fault.error:
                self.prepared.pop(claim.uid, None)
                if path := self._cdi_file(claim):
                    path.unlink(missing_ok=True)
            if not fault.missing:
                response.claims[claim.uid].error = fault.error
        return response

    def _claim_fault(self, method: str, claim: wire.Claim) -> ClaimFault:
        candidates = ((method, key) for key in (claim.uid, claim.name, ALL_CLAIMS))
        return next((self._claim_faults[key] for key in candidates if key in self._claim_faults), ClaimFault())

    async def _read_put_claim(self, namespace: str, name: str) -> Document | None:
        return self._claims.get((namespace, name))

    def _device_health(self) -> health_wire.NodeWatchResourcesResponse:
        return health_wire.NodeWatchResourcesResponse(devices=self._health.values())

    @property
    def _cdi_kind(self) -> str:
        return f"{self.name}/device"

    def _cdi_file(self, claim: wire.Claim) -> Path | None:
        return self.cdi_directory / f"{self.name}-{claim.uid}.json" if self.cdi_directory else None

    def _write_cdi_file(self, claim: wire.Claim, devices: Iterable[wire.Device]) -> None:
        """Write a file with which containers get a variable for each device: ``DRA_GPU_0=gpu-0``."""
        path = self._cdi_file(claim)
        if path is None:
            return
        edits = [
            {"name": f"{claim.uid}-{name}", "containerEdits": {"env": [f"DRA_{_variable(name)}={name}"]}}
            for name in (device.device_name for device in devices)
        ]
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps({"cdiVersion": "0.5.0", "kind": self._cdi_kind, "devices": edits}))


def _parse_devices(driver: str, text: str) -> tuple[DraDevice, ...]:
    """Return the devices of a list; driver ``gpu.example.com`` has ``gpu-0``, ``gpu-1`` and so on."""
    devices = parse_device_list(driver.partition(".")[0], text)
    return tuple(DraDevice(name=device.id, numa_nodes=tuple(bits.members(device.nodes or 0))) for device in devices)


def _attribute(value: Attribute) -> Document:
    if isinstance(value, dict):
        return value
    kind = "bool" if isinstance(value, bool) else "int" if isinstance(value, int) else "string"
    return {kind: value}


def _variable(name: str) -> str:
    return name.upper().replace("-", "_")
