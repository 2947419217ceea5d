"""The device provider: devices of device plugins, such as GPUs and network cards.

A plugin can prefer certain combinations of its devices (GetPreferredAllocation). This module calls no plugin: if a
preference is needed and not among the answers, allocation raises :class:`PreferencesNeededError` with the requests to
send, and nothing is allocated. An answer is valid only for exactly the request it belongs to.

Devices near the chosen nodes come first, but others are allocated if they do not suffice: alignment depends on the
hints alone. Where the kubelet chooses at random, the lowest device ids in natural order are taken, or a *chooser* gets
all possible choices and takes one. A host that acts itself takes devices that are near each other, if its *machine* has
their locality, and rejects pods whose demands on the locality of devices it cannot satisfy.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import combinations
from types import MappingProxyType
from typing import NamedTuple

from alignup.align import bits
from alignup.align.bits import NodeSet, quote
from alignup.align.devices.choices import DeviceChoices, DeviceChooser, Option, Pool
from alignup.align.devices.demanded_locality import check_demand, find_address, locality_demands
from alignup.align.devices.hints import DeviceInventory, DeviceSet, device_family
from alignup.align.devices.ledger import DeviceLedger
from alignup.align.devices.near_choice import NearRequest, choose_near
from alignup.align.devices.plugin_rules import PluginRule, PluginRules
from alignup.align.errors import ProviderError
from alignup.align.hint import AnyHints, Hint, Need, Provider
from alignup.align.locality import DeviceKind, Locality
from alignup.align.machine import Device, Machine
from alignup.align.release import NEWEST, Release
from alignup.align.workload import Container, Pod, demand
from alignup.align.workload.names import DEVICES_ANNOTATION


@dataclass(frozen=True, slots=True)
class DeviceRequest:
    uid: str
    container: str
    resource: str
    count: int


@dataclass(frozen=True, slots=True, kw_only=True)
class PreferenceRequest:
    """A GetPreferredAllocation request: which ``size`` of the ``available`` devices, including ``must_include``."""

    uid: str
    container: str
    resource: str
    available: tuple[str, ...]
    must_include: tuple[str, ...]
    size: int

    def first_devices(self) -> tuple[str, ...]:
        """Return the answer of a plugin that prefers its first devices."""
        rest = [id_ for id_ in self.available if id_ not in self.must_include]
        return (*self.must_include, *rest)[: self.size]


NOT_NEAR = "DeviceLocalityError"  #: the reason of a rejection if devices cannot be as near as the pod demands
CRASHED = "the plugin has crashed"  #: what a kubelet notices is the end of the connection

#: Answers of plugins: the preferred ids, or the text of an error.
PreferenceAnswers = Mapping[PreferenceRequest, tuple[str, ...] | str]
NO_ANSWERS: PreferenceAnswers = MappingProxyType({})


class PreferencesNeededError(Exception):
    """A request for preferences of device plugins before anything is allocated; never leaves ``align``."""

    def __init__(self, requests: tuple[PreferenceRequest, ...]) -> None:
        super().__init__("device plugins have to be asked first")
        self.requests = requests


class DevicesByAffinity(NamedTuple):
    """Devices by their nodes, compared with the chosen ones."""

    aligned: DeviceSet  #: on at least one chosen node
    unaligned: DeviceSet  #: on other nodes only
    without_topology: DeviceSet  #: on no node; all devices if no nodes were chosen


@dataclass(frozen=True)
class DeviceProvider(Provider[DeviceLedger]):
    nodes: NodeSet  #: the NUMA nodes of the machine
    devices: tuple[Device, ...] = ()  #: on the idle machine
    preferred_allocation: frozenset[str] = frozenset()  #: resources whose plugin supports GetPreferredAllocation
    answers: PreferenceAnswers = field(default_factory=dict)  #: for this decision
    kubelet_release: Release = NEWEST
    claims: bool = False  #: whether nothing is allocated for requests that a ResourceClaim serves
    #: whether such requests still take part in the merge: a defect of the kubelet (``explain.defects``)
    hints_claimed_requests: bool = False
    #: A kubelet that starts does not check the devices of containers that run, since their plugins may come later.
    starting: bool = False
    plugin_rules: PluginRules = field(default_factory=PluginRules)  #: for choosers
    chooser: DeviceChooser | None = None  #: for this decision; ``None``: the lowest devices
    machine: Machine | None = None  #: whose near devices are chosen; ``None``: the lowest devices

    name = DeviceLedger.PROVIDER

    def initial_ledger(self) -> DeviceLedger:
        return DeviceLedger.of_devices(
            self.devices,
            nodes=self.nodes,
            preferred_allocation=self.preferred_allocation,
            hints_all_nodes=not self.kubelet_release.hints_device_nodes_only,
        )

    def needs(self, ledger: DeviceLedger, pod: Pod, container: Container | None) -> Mapping[str, Need]:
        amounts = demand.devices(pod, container, ledger.handled)
        if amounts and (pod.claimed_requests or pod.class_resources):
            amounts = self._unclaimed(ledger, pod, container, amounts, hinted=True)
        return {
            resource: Need(count, ledger.free_on(resource), free_total=ledger.free[resource].bit_count())
            if resource in ledger.inventories
            else Need(count, {})
            for resource, count in amounts.items()
        }

    def allocated_share(self, ledger: DeviceLedger, resource: str, nodes: NodeSet) -> tuple[int, int]:
        inventory = ledger.inventories.get(resource)
        if inventory is None:
            return 0, 0
        devices = inventory.healthy & bits.union(inventory.on.get(node, 0) for node in bits.members(nodes))
        return (devices & ~ledger.free[resource]).bit_count(), devices.bit_count()

    def hints(self, ledger: DeviceLedger, pod: Pod, container: Container | None) -> Mapping[str, AnyHints]:
        """Return hints by resource; ``None`` for a resource without topology, an empty tuple for an impossible one."""
        amounts = demand.devices(pod, container, ledger.handled)
        if amounts and (pod.claimed_requests or pod.class_resources):
            amounts = self._unclaimed(ledger, pod, container, amounts, hinted=True)
        if not amounts:
            return {}
        if container is None:
            held_ids_by_name: Mapping[str, Collection[str]] = {name: ledger.owned(pod.uid, name) for name in amounts}
            reusable: Mapping[str, Collection[str]] = {}
        else:
            held_ids_by_name, reusable = ledger.holds(pod.uid, container.name), ledger.reusable_by(pod.uid)
        hints: dict[str, AnyHints] = {}
        for resource, count in amounts.items():
            inventory = ledger.inventories.get(resource)
            if inventory is None or not inventory.placed or inventory.remembered:
                hints[resource] = None
            elif held_ids := held_ids_by_name.get(resource, ()):
                # A device that is gone restricts no set. The kubelet crashes here.
                devices = inventory.find(held_ids)
                need = devices.bit_count() if self.kubelet_release.crashes_on_gone_devices else len(held_ids)
                family = device_family(inventory, devices, resource=resource, need=need)
                hints[resource] = (family if len(held_ids) == count else None) or ()
            else:
                free = ledger.free[resource]
                again = inventory.find(reusable.get(resource, ()))
                enough = (free | again).bit_count() >= count
                family = (
                    device_family(inventory, free, resource=resource, need=count, reusable=again) if enough else None
                )
                hints[resource] = family or ()
        return hints

    def allocate(self, ledger: DeviceLedger, pod: Pod, container: Container | None, *, affinity: Hint) -> DeviceLedger:
        """Allocate near the nodes of *affinity* first; like the kubelet, nothing to a pod as a whole."""
        if container is None:
            return ledger
        ids_by_resource: dict[str, tuple[str, ...]] = {}
        needed_requests: list[PreferenceRequest] = []
        amounts = demand.devices(pod, container, ledger.handled)
        if amounts and (pod.claimed_requests or pod.class_resources):
            amounts = self._unclaimed(ledger, pod, container, amounts)
        if not amounts and not pod.init and ledger.reusable is None:
            return ledger
        keeps = self.starting and not pod.is_ordinary_init(container.name)
        current_ids = ledger.holds(pod.uid, container.name) if keeps else {}
        requests = [
            DeviceRequest(pod.uid, container.name, resource, count)
            for resource, count in sorted(amounts.items())
            if resource not in current_ids or len(current_ids[resource]) != count
        ]
        if self.chooser is not None:
            choices = [
                possible_choices(ledger, request, affinity=affinity.nodes, rules=self.plugin_rules)
                for request in requests
                if _needs_devices(ledger, request)
            ]
            ids_by_resource.update(self.chooser(pod.uid, choices) if choices else {})
            requests = []
        elif self.machine and (self.machine.locality.is_known or DEVICES_ANNOTATION in pod.annotations):
            ids_by_resource.update(
                _choose_near(ledger, pod, requests, affinity=affinity.nodes, locality=self.machine.locality)
            )
            requests = [request for request in requests if request.resource not in ids_by_resource]
        for request in requests:
            devices = devices_to_allocate(ledger, request, affinity=affinity.nodes, answers=self.answers)
            if isinstance(devices, PreferenceRequest):
                needed_requests.append(devices)
            else:
                ids_by_resource[request.resource] = devices
        if needed_requests:
            raise PreferencesNeededError(tuple(needed_requests))
        new_ledger = ledger.give(pod.uid, container.name, devices=ids_by_resource)
        if not pod.init and new_ledger.reusable is None:
            return new_ledger
        return new_ledger.with_reusable(pod.uid, _reusable_after(new_ledger, pod, container, amounts))

    def _unclaimed(
        self,
        ledger: DeviceLedger,
        pod: Pod,
        container: Container | None,
        amounts: dict[str, int],
        *,
        hinted: bool = False,
    ) -> dict[str, int]:
        """Return *amounts* without what a ResourceClaim serves: to allocate, or if *hinted*, to give hints for."""
        if not self.claims or (hinted and self.hints_claimed_requests):
            return amounts
        served_requests = demand.claimed_requests(pod, ledger.allocatable(pod.uid))
        if container is None:
            return demand.devices(pod.without_requests(served_requests), None, ledger.handled)
        return {name: count for name, count in amounts.items() if (container.name, name) not in served_requests}

    def release(self, ledger: DeviceLedger, uid: str) -> DeviceLedger:
        return ledger.take_back(uid)

    def capacity(self, ledger: DeviceLedger, uid: str) -> Mapping[str, int]:
        return ledger.allocatable(uid)


def _choose_near(
    ledger: DeviceLedger, pod: Pod, requests: Sequence[DeviceRequest], *, affinity: NodeSet | None, locality: Locality
) -> Mapping[str, tuple[str, ...]]:
    """Return devices by resource that are near each other, as far as the machine has their locality.

    ``ProviderError`` if no choice satisfies the demands of the pod.
    """
    demands = locality_demands(pod, strict=False)
    near, others = [], ledger.held_by_others(pod.uid) if demands else {}
    ids_by_resource: dict[str, tuple[str, ...]] = {}
    for request in requests:
        if not _needs_devices(ledger, request):
            continue
        inventory, resource = ledger.inventories[request.resource], request.resource
        option = _any_devices(ledger, request, affinity)
        ids_by_resource[resource] = DeviceChoices(request.container, resource, (option,)).first()
        addresses = [find_address(locality, id_) for pool in option for id_ in pool.ids]
        if None not in addresses and (demands or len(set(addresses)) == len(addresses)):
            free = inventory.names(ledger.free[resource])
            near.append(NearRequest(resource, option, tuple(inventory.indexes), free))
    if len(near) == 1 and not demands and ledger.inventories[near[0].resource].preferred_allocation:
        near = near if _are_links_known(locality, near[0].option) else []  # else the plugin may know more
    near = near if locality.is_known else []
    choice = choose_near(locality, near, demands, others) if near else None
    best = choice or (choose_near(locality, near) if near else None)
    for locality_demand in demands:
        answer = check_demand(locality_demand, locality, {**ids_by_resource, **(best.devices if best else {})}, others)
        if not answer.satisfied:
            raise ProviderError(f"no choice of devices satisfies {locality_demand}: {answer.reason}", reason=NOT_NEAR)
    return choice.devices if choice else {}


def _are_links_known(locality: Locality, option: Option) -> bool:
    """Return whether the links of the GPUs are known, if they matter."""
    addresses = [locality.find(id_) or "" for pool in option for id_ in pool.ids]
    gpus = [address for address in addresses if locality.devices.get(address) is DeviceKind.GPU]
    take = sum(pool.take for pool in option)
    return take < 2 or all(locality.linked(a, b) is not None for a, b in combinations(gpus, 2))


def devices_to_allocate(
    ledger: DeviceLedger, request: DeviceRequest, *, affinity: NodeSet | None, answers: PreferenceAnswers = NO_ANSWERS
) -> tuple[str, ...] | PreferenceRequest:
    """Return the devices to allocate, or the request to send first; empty if the container holds them already."""
    if not _needs_devices(ledger, request):
        return ()
    devices = _pick(ledger, request, affinity=affinity, answers=answers)
    return devices if isinstance(devices, PreferenceRequest) else ledger.inventories[request.resource].names(devices)


def _needs_devices(ledger: DeviceLedger, request: DeviceRequest) -> bool:
    """Return whether devices have to be chosen; raise the errors the kubelet raises before it chooses."""
    resource = request.resource
    ids = ledger.holds(request.uid, request.container).get(resource)
    if ids is not None and len(ids) != request.count:
        raise ProviderError(
            f"pod {quote(request.uid)} container {quote(request.container)} changed request for resource "
            f"{quote(resource)} from {len(ids)} to {request.count}"
        )
    inventory = ledger.inventories.get(resource)
    if inventory is None or not inventory.registered:
        raise ProviderError(f"cannot allocate unregistered device {resource}")
    if not inventory.healthy:
        raise ProviderError(f"no healthy devices present; cannot allocate unhealthy devices {resource}")
    if ids is None:
        return request.count > 0
    if (inventory.find(ids) & inventory.healthy).bit_count() < len(ids):
        raise ProviderError(
            f"previously allocated devices are no longer healthy; cannot allocate unhealthy devices {resource}"
        )
    return False


def _pick(
    ledger: DeviceLedger, request: DeviceRequest, *, affinity: NodeSet | None, answers: PreferenceAnswers
) -> DeviceSet | PreferenceRequest:
    """Return the devices for *request*: reusable ones, then aligned ones, then those the plugin prefers, then any."""
    inventory = ledger.inventories[request.resource]
    certain, stages, candidates = _certain_devices(ledger, request, affinity)
    if not candidates:
        return certain
    if inventory.preferred_allocation:
        choice = _preferred(inventory, request, available=candidates | certain, certain=certain, answers=answers)
        if isinstance(choice, PreferenceRequest):
            return choice
        stages = (choice & candidates, *stages)
    return _fill(certain, request.count, stages)


def _certain_devices(
    ledger: DeviceLedger, request: DeviceRequest, affinity: NodeSet | None
) -> tuple[DeviceSet, tuple[DeviceSet, ...], DeviceSet]:
    """Return the devices that are taken for *request*, the sets to take more from, and those the plugin may prefer.

    No candidates: the devices that are taken suffice.
    """
    inventory = ledger.inventories[request.resource]
    certain, missing_count = 0, request.count
    if again := ledger.reusable_by(request.uid).get(request.resource):
        certain = _fill(0, request.count, by_affinity(inventory, inventory.find(again), affinity))
        missing_count -= certain.bit_count()
        if not missing_count:
            return certain, (), 0
    free = ledger.free[request.resource] & ~certain
    if free.bit_count() < missing_count:
        raise ProviderError(
            f"requested number of devices unavailable for {request.resource}. "
            f"Requested: {missing_count}, Available: {free.bit_count()}"
        )
    near_devices = free & inventory.near(affinity) if affinity is not None else 0
    if missing_count < near_devices.bit_count():
        return certain, (near_devices,), near_devices
    certain |= near_devices
    if missing_count == near_devices.bit_count():
        return certain, (), 0
    return certain, by_affinity(inventory, free, affinity)[1:], free


def possible_choices(
    ledger: DeviceLedger, request: DeviceRequest, *, affinity: NodeSet | None, rules: PluginRules
) -> DeviceChoices:
    """Return all that the kubelet may choose for *request*, which needs devices; ``ProviderError`` if it fails."""
    inventory, resource = ledger.inventories[request.resource], request.resource
    again = inventory.find(ledger.reusable_by(request.uid).get(resource, ()))
    certain, stages, candidates = _certain_devices(ledger, request, affinity)
    rule = rules.rule(resource)
    is_any = not candidates or (rule is PluginRule.ANY and not inventory.preferred_allocation)
    if is_any or again.bit_count() > request.count:
        return DeviceChoices(request.container, resource, (_any_devices(ledger, request, affinity),))
    anything = (_any_of(inventory, certain, (candidates,), request.count),)
    outcome = rules.preferred(
        rule,
        every=tuple(inventory.indexes),
        available=inventory.names(candidates | certain),
        required=inventory.names(certain),
        size=request.count,
    )
    if outcome is None:
        return DeviceChoices(request.container, resource, anything)
    options: dict[Option, None] = {}
    for option in outcome.options:
        answer = inventory.find(id_ for pool in option for id_ in pool.ids if pool.take == len(pool.ids))
        if certain & ~answer:  # the plugin ignores which devices it must include
            answer = inventory.find(id_ for pool in option for id_ in pool.ids)
            options[_any_of(inventory, certain, (answer & candidates, *stages), request.count)] = None
        else:
            options[option] = None
    if outcome.crashes and not options:
        raise ProviderError(f"device plugin GetPreferredAllocation rpc failed with err: {CRASHED}")
    return DeviceChoices(request.container, resource, tuple(options) or anything, outcome.crashes, outcome.notes)


def _any_devices(ledger: DeviceLedger, request: DeviceRequest, affinity: NodeSet | None) -> Option:
    """Return what can be chosen if no plugin prefers anything: any devices of each tier, one tier after the other."""
    inventory = ledger.inventories[request.resource]
    again = inventory.find(ledger.reusable_by(request.uid).get(request.resource, ()))
    if again.bit_count() > request.count:
        return _any_of(inventory, 0, (again,), request.count)
    certain, stages, _ = _certain_devices(ledger, request, affinity)
    return _any_of(inventory, certain, stages, request.count)


def _any_of(inventory: DeviceInventory, certain: DeviceSet, stages: tuple[DeviceSet, ...], count: int) -> Option:
    """Return the option to fill *certain* up to *count* devices with any of each stage, one after the other."""
    missing_count = count - certain.bit_count()
    pools: list[Pool] = []
    for stage in stages:
        rest = stage & ~certain
        if rest.bit_count() > missing_count:
            pools += [Pool(missing_count, inventory.names(rest))] if missing_count else []
            break
        certain |= rest
        missing_count -= rest.bit_count()
    return (*([Pool(certain.bit_count(), inventory.names(certain))] if certain else []), *pools)


def _preferred(
    inventory: DeviceInventory,
    request: DeviceRequest,
    *,
    available: DeviceSet,
    certain: DeviceSet,
    answers: PreferenceAnswers,
) -> DeviceSet | PreferenceRequest:
    """Return the known devices that the plugin prefers, or the request to send first."""
    question = PreferenceRequest(
        uid=request.uid,
        container=request.container,
        resource=request.resource,
        available=inventory.names(available),
        must_include=inventory.names(certain),
        size=request.count,
    )
    answer = answers.get(question)
    if answer is None:
        return question
    if isinstance(answer, str):
        raise ProviderError(f"device plugin GetPreferredAllocation rpc failed with err: {answer}")
    return inventory.find(answer)


def by_affinity(inventory: DeviceInventory, devices: DeviceSet, affinity: NodeSet | None) -> DevicesByAffinity:
    """Group *devices* by affinity; ``None``: no nodes were chosen."""
    if affinity is None or not inventory.placed:
        return DevicesByAffinity(0, 0, devices)
    near_devices = devices & inventory.near(affinity)
    return DevicesByAffinity(near_devices, devices & inventory.placed & ~near_devices, devices & ~inventory.placed)


def _fill(devices: DeviceSet, count: int, stages: tuple[DeviceSet, ...]) -> DeviceSet:
    """Fill *devices* up to *count* devices from one stage after the other, the lowest of each stage first."""
    missing_count = count - devices.bit_count()
    for stage in stages:
        rest = stage & ~devices
        if rest.bit_count() <= missing_count:
            devices |= rest
            missing_count -= rest.bit_count()
            continue
        for _ in range(missing_count):
            lowest = rest & -rest
            devices |= lowest
            rest ^= lowest
        break
    return devices


def _reusable_after(
    ledger: DeviceLedger, pod: Pod, container: Container, resource_names: Collection[str]
) -> Mapping[str, frozenset[str]]:
    """Return the reusable devices of *pod*: only an ordinary init container leaves its devices to the next."""
    ends = pod.is_ordinary_init(container.name)
    reusable = dict(ledger.reusable_by(pod.uid))
    if not ends and not reusable:
        return reusable
    ids_by_resource = ledger.holds(pod.uid, container.name)
    for resource in resource_names:
        if resource not in ids_by_resource:
            continue
        ids = ids_by_resource[resource]
        earlier = reusable.pop(resource, frozenset())
        reusable_ids = earlier.union(ids) if ends else earlier.difference(ids)
        if reusable_ids:
            reusable[resource] = reusable_ids
    return reusable
