"""The device provider: devices of device plugins, such as GPUs and network cards.

It is asked twice: for hints, on which nodes a container or a whole pod could be placed, and later to allocate, when the
policy has chosen nodes. Nothing here is remembered but the ledger, which is passed in and handed back changed.

A plugin may know which of its devices go well together. Nobody is called from here: where its advice is wanted and not
among the answers passed in, the outcome says what to :class:`PreferenceRequest`, and nothing is given. An answer belongs to exactly
the question it was given to, so one that came too late, after the free devices changed, is not taken by mistake.

The surprising rules: devices near the chosen nodes come first, but any will do, so alignment is decided by the hints
alone; and where the kubelet chooses at random, the devices lowest in natural order of ids are taken here.
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import NamedTuple

from alignup.align.bits import NodeSet, quote
from alignup.align.devices.hints import device_family
from alignup.align.devices.ledger import DeviceIds, DeviceInventory, DeviceLedger, DeviceSet
from alignup.align.errors import ProviderError
from alignup.align.hint import AnyHints
from alignup.align.workload import Container, Pod, demand


@dataclass(frozen=True, slots=True)
class DeviceRequest:
    """So many devices of one resource, for one container."""

    uid: str
    container: str
    resource: str
    count: int


@dataclass(frozen=True, slots=True, kw_only=True)
class PreferenceRequest:
    """A question to a plugin: which ``size`` devices of ``available``, those of ``must_include`` among them?"""

    uid: str
    container: str
    resource: str
    available: tuple[str, ...]
    must_include: tuple[str, ...]
    size: int


#: What plugins said: the ids they prefer, or the text of the error they gave.
PreferenceAnswers = Mapping[PreferenceRequest, tuple[str, ...] | str]
NO_ANSWERS: PreferenceAnswers = MappingProxyType({})


@dataclass(frozen=True, slots=True)
class DeviceAllocation:
    """What came of allocating for one container; with ``asks`` nothing was given yet."""

    ledger: DeviceLedger
    devices: DeviceIds = field(default_factory=dict)  #: all the container holds of what it is limited to
    asks: tuple[PreferenceRequest, ...] = ()  #: what plugins have to be asked first


class DevicesByAffinity(NamedTuple):
    """Free devices by how they lie to the chosen nodes."""

    aligned: DeviceSet  #: on at least one of them
    unaligned: DeviceSet  #: on other nodes only
    without_topology: DeviceSet  #: on no node; or everything, when there is nothing to align with


def hints(ledger: DeviceLedger, pod: Pod, *, container: Container) -> Mapping[str, AnyHints]:
    """Where the devices of a container could come from, by resource; empty when it is limited to none.

    ``None`` for a resource that has no topology, the empty tuple for one that cannot be had.
    """
    own = ledger.holds(pod.uid, container.name)
    reusable = ledger.reusable_by(pod.uid)
    return {
        resource: _options(ledger, resource, count, held=own.get(resource, ()), reusable=reusable.get(resource, ()))
        for resource, count in demand.container_devices(container, ledger.handled).items()
    }


def pod_hints(ledger: DeviceLedger, pod: Pod) -> Mapping[str, AnyHints]:
    """Where the devices of a whole pod could come from, by resource; as for a container."""
    return {
        resource: _options(ledger, resource, count, held=ledger.owned(pod.uid, resource))
        for resource, count in demand.pod_devices(pod, ledger.handled).items()
    }


def allocate(
    ledger: DeviceLedger,
    pod: Pod,
    *,
    container: Container,
    affinity: NodeSet | None,
    answers: PreferenceAnswers = NO_ANSWERS,
) -> DeviceAllocation:
    """Give a container its devices, near the nodes of *affinity* first; a :class:`ProviderError` if it cannot be.

    A container that already has devices of a resource keeps them.
    """
    chosen: dict[str, tuple[str, ...]] = {}
    asks: list[PreferenceRequest] = []
    wanted = demand.container_devices(container, ledger.handled)
    for resource, count in sorted(wanted.items()):
        request = DeviceRequest(pod.uid, container.name, resource, count)
        picked = devices_to_allocate(ledger, request, affinity=affinity, answers=answers)
        if isinstance(picked, PreferenceRequest):
            asks.append(picked)
        else:
            chosen[resource] = picked
    if asks:
        return DeviceAllocation(ledger, asks=tuple(asks))
    given = ledger.give(pod.uid, container.name, devices=chosen)
    own = given.holds(pod.uid, container.name)
    devices = {resource: own[resource] for resource in wanted if resource in own}
    return DeviceAllocation(given.with_reusable(pod.uid, _reusable_after(given, pod, container, devices)), devices)


def devices_to_allocate(
    ledger: DeviceLedger, request: DeviceRequest, *, affinity: NodeSet | None, answers: PreferenceAnswers = NO_ANSWERS
) -> tuple[str, ...] | PreferenceRequest:
    """The devices to give for one resource, or what to ask first; none when the container has what it wants."""
    if not _needs_devices(ledger, request):
        return ()
    picked = _pick(ledger, request, affinity=affinity, answers=answers)
    return picked if isinstance(picked, PreferenceRequest) else ledger.inventories[request.resource].names(picked)


def release(ledger: DeviceLedger, uid: str) -> DeviceLedger:
    """Take back what a pod holds."""
    return ledger.take_back(uid)


def retain(ledger: DeviceLedger, active: Collection[str]) -> DeviceLedger:
    """Take back what pods hold that are not among the *active* ones."""
    for uid in ledger.held.keys() - set(active):
        ledger = ledger.take_back(uid)
    return ledger


def filter_by_affinity(ledger: DeviceLedger, resource: str, *, affinity: NodeSet | None) -> DevicesByAffinity:
    """The free devices of *resource* by how they lie to the nodes of *affinity*; ``None``: no nodes were chosen."""
    return _split(ledger.inventories[resource], ledger.free[resource], affinity)


def _options(
    ledger: DeviceLedger, resource: str, count: int, *, held: Collection[str], reusable: Collection[str] = ()
) -> AnyHints:
    """The hints for *count* devices: of those *held* already, if any, else of the free and the *reusable* ones."""
    inventory = ledger.inventories.get(resource)
    if inventory is None or not inventory.placed or inventory.remembered:
        return None
    if held:
        if len(held) != count:
            return ()
        known = inventory.find(held)
        # A device that is gone is wherever it was: it stands in no set's way. The kubelet crashes here.
        gone = count - known.bit_count()
        return device_family(inventory, known, resource=resource, need=count - gone) or ()
    available = ledger.free[resource]
    again = inventory.find(reusable)
    if (available | again).bit_count() < count:
        return ()
    return device_family(inventory, available, resource=resource, need=count, reusable=again) or ()


def _needs_devices(ledger: DeviceLedger, request: DeviceRequest) -> bool:
    """Whether devices have to be chosen at all; refuses what the kubelet refuses before it chooses."""
    resource = request.resource
    held = ledger.holds(request.uid, request.container).get(resource)
    if held is not None and len(held) != request.count:
        raise ProviderError(
            f"pod {quote(request.uid)} container {quote(request.container)} changed request for resource "
            f"{quote(resource)} from {len(held)} to {request.count}"
        )
    inventory = ledger.inventories.get(resource)
    if inventory is None or not inventory.registered:
        raise ProviderError(f"cannot allocate unregistered device {resource}")
    if not inventory.healthy:
        raise ProviderError(f"no healthy devices present; cannot allocate unhealthy devices {resource}")
    if held is None:
        return request.count > 0
    if (inventory.find(held) & inventory.healthy).bit_count() < len(held):
        raise ProviderError(
            f"previously allocated devices are no longer healthy; cannot allocate unhealthy devices {resource}"
        )
    return False


def _pick(
    ledger: DeviceLedger, request: DeviceRequest, *, affinity: NodeSet | None, answers: PreferenceAnswers
) -> DeviceSet | PreferenceRequest:
    """The devices for *request*: reusable ones, then aligned ones, then as the plugin advises, then any."""
    inventory = ledger.inventories[request.resource]
    reusable = inventory.find(ledger.reusable_by(request.uid).get(request.resource, ()))
    preferred = _split(inventory, reusable, affinity)
    taken = _fill(0, request.count, preferred)
    missing = request.count - taken.bit_count()
    if not missing:
        return taken
    free = ledger.free[request.resource] & ~taken
    if free.bit_count() < missing:
        raise ProviderError(
            f"requested number of devices unavailable for {request.resource}. "
            f"Requested: {missing}, Available: {free.bit_count()}"
        )
    aligned, unaligned, elsewhere = _split(inventory, free, affinity)
    stages: tuple[DeviceSet, ...] = (aligned,)
    offered = aligned
    if missing >= aligned.bit_count():
        taken |= aligned
        if missing == aligned.bit_count():
            return taken
        stages = (unaligned, elsewhere)
        offered = free
    advice = _advice(inventory, request, available=offered | taken, taken=taken, answers=answers)
    if isinstance(advice, PreferenceRequest):
        return advice
    return _fill(taken, request.count, (advice & offered, *stages))


def _advice(
    inventory: DeviceInventory,
    request: DeviceRequest,
    *,
    available: DeviceSet,
    taken: DeviceSet,
    answers: PreferenceAnswers,
) -> DeviceSet | PreferenceRequest:
    """What the plugin advises to take, as far as it knows its devices; nothing when it does not give advice."""
    if not inventory.preferred_allocation:
        return 0
    ask = PreferenceRequest(
        uid=request.uid,
        container=request.container,
        resource=request.resource,
        available=inventory.names(available),
        must_include=inventory.names(taken),
        size=request.count,
    )
    answer = answers.get(ask)
    if answer is None:
        return ask
    if isinstance(answer, str):
        raise ProviderError(f"device plugin GetPreferredAllocation rpc failed with err: {answer}")
    return inventory.find(answer)


def _split(inventory: DeviceInventory, devices: DeviceSet, affinity: NodeSet | None) -> DevicesByAffinity:
    if affinity is None or not inventory.placed:
        return DevicesByAffinity(0, 0, devices)
    aligned = devices & inventory.near(affinity)
    return DevicesByAffinity(aligned, devices & inventory.placed & ~aligned, devices & ~inventory.placed)


def _fill(taken: DeviceSet, count: int, stages: tuple[DeviceSet, ...]) -> DeviceSet:
    """*taken*, filled up to *count* devices from one stage after the other, the lowest of each first."""
    missing = count - taken.bit_count()
    for stage in stages:
        left = stage & ~taken
        if left.bit_count() <= missing:
            taken |= left
            missing -= left.bit_count()
            continue
        for _ in range(missing):
            lowest = left & -left
            taken |= lowest
            left ^= lowest
        break
    return taken


def _reusable_after(
    ledger: DeviceLedger, pod: Pod, container: Container, devices: DeviceIds
) -> Mapping[str, frozenset[str]]:
    """What *pod* may use again: an ordinary init container leaves its devices to the next, others keep theirs."""
    ends = any(container.name == init.name and not init.restartable for init in pod.init)
    reusable = dict(ledger.reusable_by(pod.uid))
    for resource, ids in devices.items():
        before = reusable.pop(resource, frozenset())
        after = before.union(ids) if ends else before.difference(ids)
        if after:
            reusable[resource] = after
    return reusable
