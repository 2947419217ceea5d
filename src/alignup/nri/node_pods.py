"""The pods of the node: what they request, as the API server says, and the devices that they have already.

The kubelet starts a pod as soon as the API server has sent it, perhaps before this process has got it. Devices of
plugins were chosen when the kubelet admitted the pod, those of claims were prepared before its sandbox runs; so
PodResources lists both by now. ResourceSlices say where devices of claims are.
"""

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import replace
from typing import NamedTuple

from alignup.align.claims.alignment import place_devices
from alignup.align.claims.resource_claims import PCI_BUS_ID, DeviceId, usable_devices
from alignup.align.devices.fixed import CLAIM, PodDevices
from alignup.align.errors import AlignError
from alignup.align.machine import Device, Machine
from alignup.align.workload import Pod
from alignup.align.workload.names import is_extended
from alignup.kubernetes.api.known_pods import KnownPod
from alignup.kubernetes.api.node_tables import KnownSlices
from alignup.kubernetes.plugins.pod_resources import ListedPod, ListedResources
from alignup.nri.coalesced import Coalesced
from alignup.placement.host_report import PodStage
from alignup.wire import nri_pb2 as wire

_WAIT = 1.0  #: seconds for the API server to send a pod; a runtime waits for two
_SOURCE = "kubernetes.io/config.source"  #: where the kubelet has a pod from
_API = "api"

KnownPods = Mapping[str, KnownPod]


class UnknownPodError(AlignError):
    """A pod that cannot be decided on yet."""


class RequestedPod(NamedTuple):
    pod: Pod
    devices: PodDevices
    addresses: Mapping[str, str] = {}  #: PCI addresses of devices of claims, by id


class NodePods:
    """The pods of *machine*; *list_resources* asks PodResources, the other two read what the API server has sent."""

    def __init__(
        self,
        machine: Machine,
        *,
        pods: Callable[[], KnownPods | None],
        slices: Callable[[], KnownSlices] = KnownSlices,
        list_resources: Callable[[], Awaitable[tuple[ListedPod, ...]]],
    ) -> None:
        self._machine = machine
        self._pods = pods
        self._slices = slices
        self._list = Coalesced(list_resources)
        self._change = asyncio.Event()

    def notify(self) -> None:
        """Wake what waits for a pod, after the API server has sent changes."""
        self._change.set()
        self._change = asyncio.Event()

    def ended(self, uids: Iterable[str]) -> list[str]:
        """Return which of these pods will start no container any more, as the API server says."""
        pods = self._pods()
        if pods is None:
            return []
        return [uid for uid in uids if uid not in pods or pods[uid].stage is not PodStage.RUNNING]

    async def find(self, sandbox: wire.PodSandbox) -> RequestedPod | None:
        """Return a pod; ``None`` for a static pod that the API server does not have.

        ``AlignError`` if it cannot be decided on now.
        """
        known_pod = await self._wait_for(sandbox)
        if known_pod is None:
            return None
        pod = replace(known_pod.pod, annotations=dict(sandbox.annotations))
        return await self._with_devices(pod) if _has_devices(pod) else RequestedPod(pod, {})

    async def _wait_for(self, sandbox: wire.PodSandbox) -> KnownPod | None:
        try:
            async with asyncio.timeout(_WAIT):
                while True:
                    change = self._change
                    if (pod := (self._pods() or {}).get(sandbox.uid)) is not None:
                        return pod
                    if sandbox.annotations.get(_SOURCE, _API) != _API:
                        return None
                    await change.wait()
        except TimeoutError:
            name = f"{sandbox.namespace}/{sandbox.name}"
            raise UnknownPodError(f"pod {name} is unknown: the API server has not sent it yet") from None

    async def _with_devices(self, pod: Pod) -> RequestedPod:
        listed_pods = {(entry.namespace, entry.name): entry for entry in await self._list()}
        listed_pod = listed_pods.get((pod.namespace, pod.name))
        if listed_pod is None:
            raise UnknownPodError(f"the kubelet lists no devices of pod {pod.namespace}/{pod.name} yet")
        claim_devices: dict[DeviceId, Device] = {}
        addresses: dict[str, str] = {}
        if any(container.claims for container in listed_pod.containers.values()):
            devices, _ = usable_devices(self._slices().slices or ())
            for device in place_devices(devices, self._machine)[0]:
                claim_devices[device.id] = Device("", str(device.id), device.nodes)
                addresses[str(device.id)] = str(device.attributes.get(PCI_BUS_ID, device.id))
        devices_by_container = {
            name: _by_resource(resources, claim_devices) for name, resources in listed_pod.containers.items()
        }
        return RequestedPod(pod, devices_by_container, addresses)


def _by_resource(container: ListedResources, claim_devices: Mapping[DeviceId, Device]) -> dict[str, tuple[Device, ...]]:
    """Return the devices of plugins by resource, and the devices of claims by claim."""
    devices: dict[str, tuple[Device, ...]] = {}
    for device in container.devices:
        devices[device.resource] = (*devices.get(device.resource, ()), device)
    for claim, ids in container.claims.items():
        name = f"{CLAIM}{claim}"
        devices[name] = tuple(replace(claim_devices.get(id_, Device("", str(id_), None)), resource=name) for id_ in ids)
    return devices


def _has_devices(pod: Pod) -> bool:
    """Return whether the kubelet may have given devices to *pod*."""
    requests = (name for container in pod.all_containers for name in container.resources.requests)
    return pod.uses_claims or any(map(is_extended, requests))
