"""Devices of claims on an observed host: where ResourceSlices say they are, and which containers hold them.

PodResources says which devices a container holds, but not where they are; ResourceSlices say the latter. What is wrong
with either is said in words, and a NUMA node that cannot be right is not published.
"""

from collections.abc import Iterable, Iterator, Mapping
from typing import NamedTuple

from alignup.align.claims.alignment import name_devices, place_devices
from alignup.align.claims.ledger import MODEL, ClaimLedger
from alignup.align.claims.resource_claims import (
    PCI_BUS_ID,
    AttributeValue,
    DeviceId,
    Slice,
    SliceDevice,
    usable_devices,
)
from alignup.align.errors import OWN_LIMIT
from alignup.align.machine import Machine
from alignup.align.workload import Pod
from alignup.documents.host_state.schema import MAX_CLAIM_DEVICES
from alignup.kubernetes.plugins.pod_resources import ListedPod

_MODELS = ("productName", "model")  #: attributes of drivers that say what a device is, the best first
_MAX_MODEL = 64  #: characters


class PlacedDevices(NamedTuple):
    """The devices in the ResourceSlices of a host."""

    devices: tuple[SliceDevice, ...] = ()  #: that can be allocated, with their NUMA nodes, models and PCI addresses
    listed: frozenset[DeviceId] = frozenset()  #: all devices, also devices in slices that do not count
    problems: tuple[str, ...] = ()


def place_slices(slices: Iterable[Slice], machine: Machine) -> PlacedDevices:
    """Find the NUMA nodes of the devices in *slices* on their *machine*."""
    slices = tuple(slices)
    usable, problems = usable_devices(slices)
    if len(usable) > MAX_CLAIM_DEVICES:
        left_out = f"{len(usable) - MAX_CLAIM_DEVICES} of {len(usable)} devices in ResourceSlices are left out"
        problems += (f"{left_out} {OWN_LIMIT}",)
        usable = usable[:MAX_CLAIM_DEVICES]
    devices, wrong = place_devices(usable, machine)
    return PlacedDevices(
        tuple(
            SliceDevice(device.id, _reported(device.attributes), nodes=device.nodes, shared=device.shared)
            for device in devices
        ),
        frozenset(device.id for slice_ in slices for device in slice_.devices),
        (*problems, *wrong),
    )


def _reported(attributes: Mapping[str, AttributeValue]) -> dict[str, AttributeValue]:
    """Return the model and the PCI address of a device."""
    by_name = {name.rpartition("/")[2]: value for name, value in attributes.items()}
    model = next((value for value in map(by_name.get, _MODELS) if isinstance(value, str) and value), "")
    address = attributes.get(PCI_BUS_ID)
    return ({MODEL: model[:_MAX_MODEL]} if model else {}) | ({PCI_BUS_ID: address} if address else {})


class JoinedClaims(NamedTuple):
    ledger: ClaimLedger | None  #: ``None``: the host has no devices for claims
    gaps: tuple[str, ...] = ()
    contradictions: tuple[str, ...] = ()


def join_claims(
    slice_devices: PlacedDevices | None,
    listed_pods: Mapping[str, ListedPod],
    others: Iterable[ListedPod],
    pods: Iterable[Pod],
) -> JoinedClaims:
    """Join the devices in slices with what live pods hold; *slice_devices* is ``None`` if no slices could be read.

    *listed_pods* are the pods of PodResources by uid, *others* the pods of PodResources whose uid is unknown, and
    *pods* the pods of the API server.
    """
    device_keys = {
        uid: containers
        for uid, pod in listed_pods.items()
        if (containers := {name: container.claims for name, container in pod.containers.items() if container.claims})
    }
    ledger = ClaimLedger(slice_devices.devices if slice_devices else (), device_keys)
    gaps = [
        f"pod {pod.namespace}/{pod.name} holds devices of claims, but its uid is unknown"
        for pod in others
        if any(container.claims for container in pod.containers.values())
    ]
    if device_keys and slice_devices is None:
        gaps.append("the NUMA nodes of claimed devices are unknown: no ResourceSlices of this node could be read")
    for pod in pods:
        users = [container.name for container in pod.all_containers if container.resources.claims]
        if pod.uid in listed_pods and pod.uid not in device_keys and not all(map(pod.is_ordinary_init, users)):
            gaps.append(f"pod {pod.namespace}/{pod.name} has claims, but PodResources lists no device of them")
    contradictions = (
        *(slice_devices.problems if slice_devices else ()),
        *_wrong_holders(ledger, slice_devices, listed_pods),
    )
    return JoinedClaims(ledger if ledger.devices or ledger.held else None, tuple(gaps), contradictions)


def _wrong_holders(
    ledger: ClaimLedger, slice_devices: PlacedDevices | None, listed_pods: Mapping[str, ListedPod]
) -> Iterator[str]:
    holders: dict[DeviceId, dict[str, str]] = {}  # device → claim → its first pod
    for uid in ledger.held:
        pod = f"{listed_pods[uid].namespace}/{listed_pods[uid].name}"
        for claim, ids in ledger.claims_of(uid).items():
            for id_ in ids:
                holders.setdefault(id_, {}).setdefault(claim, pod)
            unknown_ids = [id_ for id_ in ids if slice_devices and id_ not in slice_devices.listed]
            if unknown_ids:
                devices = name_devices(unknown_ids)
                yield f"pod {pod} holds {devices} of claim {claim}, which no ResourceSlice of this node has"
    shared_ids = {device.id for device in ledger.devices if device.shared}
    for id_, claims in holders.items():
        if len(claims) > 1 and id_ not in shared_ids:
            names = " and ".join(f"claim {claim} of pod {pod}" for claim, pod in claims.items())
            yield (
                f"device {id_} is held by {names}: a claim was deleted while its pod was running, "
                "or one of them has admin access"
            )
