"""Whether the devices of a pod's claims satisfy its demands on their locality, together with those of device plugins.

Devices that are allocated are certain. Before, the scheduler may choose any that match, as far as constraints of the
claim allow it. Drivers publish the PCI addresses of devices, and their root complexes; the machine knows the rest.
"""

from collections.abc import Collection, Iterator, Mapping, Sequence
from itertools import product
from typing import TYPE_CHECKING, NamedTuple

from alignup.align.claims.allocation import applies
from alignup.align.claims.resource_claims import PCI_BUS_ID, PCIE_ROOT, Claim, SliceDevice
from alignup.align.decision import Placement
from alignup.align.devices.choices import Option, Pool
from alignup.align.devices.demanded_locality import (
    DemandAnswer,
    DemandedLocality,
    LocalityDemand,
    check_demand,
    find_address,
    locality_demands,
)
from alignup.align.errors import PodError
from alignup.align.locality import Locality
from alignup.align.possible_locality import (
    MAX_CHECKED,
    Devices,
    UnsettledDevices,
    are_all_near,
    device_options,
    draw,
)
from alignup.align.workload import Container, Pod
from alignup.align.workload.names import DEVICES_ANNOTATION, MARKER

if TYPE_CHECKING:
    from alignup.align.claims.alignment import ClaimState

_MANY = f"there are more than {MAX_CHECKED} possible choices"
_NOT_SEPARATE = "which of its devices a container gets is not read; use a ResourceClaim for each"


class ClaimedLocality(NamedTuple):
    unmet: str = ""  #: a demand that some devices that the claims may get do not satisfy, and why; empty: there is none
    possible: bool = True  #: whether the claims can get devices that satisfy all demands


NOTHING_UNMET = ClaimedLocality()


def claims_used(pod: Pod, container: Container) -> Iterator[str]:
    """Yield the claims of a container, and its extended resources that a claim may serve."""
    yield from container.resources.claim_names
    for name in container.resources.limits:
        if name in pod.class_resources or (container.name, name) in pod.claimed_requests:
            yield name


def demands_near_claims(pod: Pod) -> bool:
    """Return whether *pod* demands near devices of its claims; a malformed demand does not count."""
    if DEVICES_ANNOTATION not in pod.annotations:
        return False
    try:
        demands = locality_demands(pod, strict=False)
    except PodError:
        return False
    return any(
        demand.concerns(name)
        for demand in demands
        for container in pod.all_containers
        for name in claims_used(pod, container)
    )


class _Choice(NamedTuple):
    """A set of devices that a container may get."""

    ids: dict[str, list[str]]  #: by resource or claim; PCI addresses of devices of claims, where they are known
    roots: dict[str, str]  #: root complexes of devices of claims, by id


class ClaimedDevices(NamedTuple):
    """The devices of a pod's claims on one host."""

    states: "Mapping[str, ClaimState]"  #: by name of the claim, or extended resource
    locality: Locality
    others: Devices  #: of other pods
    unsettled: UnsettledDevices

    def check(self, pod: Pod, placements: Collection[Placement]) -> ClaimedLocality:
        """Return whether the devices satisfy all demands of *pod* if it gets *placements*."""
        placements_by_container = {placement.container: placement for placement in placements}
        result = NOTHING_UNMET
        for demand in locality_demands(pod, strict=False):
            for container in pod.all_containers:
                names = [name for name in claims_used(pod, container) if name in self.states and demand.concerns(name)]
                if not names:
                    continue
                answer, possible = self._check(demand, pod, names, placements_by_container.get(container.name))
                if not answer.satisfied and (not result.unmet or not possible):
                    subject = f"container {container.name}: the devices"
                    verb = "may not satisfy" if possible or answer.satisfied is None else "do not satisfy"
                    result = ClaimedLocality(f"{subject} {verb} {demand}: {answer.reason}", possible)
                if not result.possible:
                    return result
        return result

    def _check(
        self, demand: LocalityDemand, pod: Pod, names: Sequence[str], placement: Placement | None
    ) -> tuple[DemandAnswer, bool]:
        """Return the answer for the worst choice, and whether some choice satisfies the demand."""
        for name in names:
            state = self.states[name]
            if state.claim is None or (state.problem and not state.devices):
                return DemandAnswer(None, state.problem), False
            if "/" in name and len({*pod.claimed_requests, *_requests_of_classes(pod)}) > 1:
                return DemandAnswer(None, f"{name}: {_NOT_SEPARATE}"), False
        spread = demand.locality is DemandedLocality.SPREAD
        every: dict[str, Sequence[str]] = {
            name: [pci_address(device) for _, device in self.states[name].devices] for name in names
        }
        plugins = {
            resource: device_options(placement, resource, self.unsettled.get(resource, ()))
            for resource in (placement.devices if placement else ())
            if placement and demand.concerns(resource) and resource != MARKER and resource not in names
        }
        if not plugins and not spread and are_all_near(demand, self.locality, every):
            return DemandAnswer(satisfied=True), True
        worst, possible = DemandAnswer(satisfied=True), False
        for count, choice in enumerate(self._choices(plugins, names)):
            if count == MAX_CHECKED:
                return (worst if not worst.satisfied else DemandAnswer(None, _MANY)), True
            if choice is None:
                continue
            answer = self._answer(demand, choice)
            possible = possible or answer.satisfied is True
            if worst.satisfied is not False and not answer.satisfied:
                worst = answer
            if possible and worst.satisfied is False:
                break
        return worst, possible

    def _answer(self, demand: LocalityDemand, choice: _Choice) -> DemandAnswer:
        others: dict[str, Collection[str]] = {}
        if demand.locality is DemandedLocality.SPREAD:
            names = {*self.others, *self.unsettled}
            others = {name: {*self.others.get(name, ())}.union(*self.unsettled.get(name, ())) for name in names}
        answer = check_demand(demand, self.locality, choice.ids, others)
        if answer.satisfied is not None or demand.locality is not DemandedLocality.SAME_ROOT or self.locality.flat:
            return answer
        ids = [id_ for name, of_name in choice.ids.items() if demand.concerns(name) for id_ in of_name]
        roots = {choice.roots.get(id_) or self._root(id_) for id_ in ids}
        if None not in roots and len(roots) == 1:
            return DemandAnswer(satisfied=True)
        if None not in roots and len(ids) == 2:  # more of them need not all be near each other
            return DemandAnswer(satisfied=False, reason=f"{' and '.join(ids)} have no root complex in common")
        return answer

    def _root(self, id_: str) -> str | None:
        address = find_address(self.locality, id_)
        return self.locality.root(address) if address else None

    def _choices(self, plugins: Mapping[str, tuple[Option, ...]], names: Sequence[str]) -> Iterator[_Choice | None]:
        """Yield the choices from plugins and claims together; ``None`` for one that the claims do not allow."""
        claims = [list(_claim_options(self.states[name])) for name in names]
        for options in product(*plugins.values(), *claims):
            pools = [
                (resource, pool)
                for resource, option in zip((*plugins, *names), options, strict=True)
                for pool in option
            ]
            for parts in draw([pool for _, pool in pools]):
                yield self._choice(list(zip(pools, parts, strict=True)), names)

    def _choice(
        self, drawn_parts: Sequence[tuple[tuple[str, Pool], tuple[str, ...]]], names: Sequence[str]
    ) -> _Choice | None:
        ids: dict[str, list[str]] = {}
        roots: dict[str, str] = {}
        claimed_devices: dict[str, list[tuple[str, SliceDevice]]] = {name: [] for name in names}
        for (name, _), part in drawn_parts:
            if name not in claimed_devices:
                ids.setdefault(name, []).extend(part)
                continue
            claimed_devices[name] += [self.states[name].devices[int(index)] for index in part]
        devices = [device.id for entries in claimed_devices.values() for _, device in entries]
        if any(not self.states[name].allocated for name in names) and len({*devices}) < len(devices):
            return None
        for name, entries in claimed_devices.items():
            claim = self.states[name].claim
            if claim is not None and not self.states[name].allocated and not _satisfies(claim, entries):
                return None
            for _, device in entries:
                ids.setdefault(name, []).append(pci_address(device))
                if isinstance(root := device.attributes.get(PCIE_ROOT), str):
                    roots[pci_address(device)] = root
        return _Choice(ids, roots)


def _requests_of_classes(pod: Pod) -> Iterator[tuple[str, str]]:
    for container in pod.all_containers:
        for name in container.resources.limits:
            if name in pod.class_resources:
                yield container.name, name


def pci_address(device: SliceDevice) -> str:
    """Return the PCI address that a driver publishes for a device, or the name of the device."""
    address = device.attributes.get(PCI_BUS_ID)
    return address if isinstance(address, str) else str(device.id)


def _claim_options(state: "ClaimState") -> Iterator[tuple[Pool, ...]]:
    """Yield the ways to choose among the devices of a claim, which are named by their index."""
    if state.allocated or state.claim is None:
        yield (Pool(len(state.devices), tuple(map(str, range(len(state.devices))))),)
        return
    # Devices with the same value of an attribute that all must share; this leaves few choices of many.
    shared_attributes = [attribute for attribute, requests in state.claim.constraints if not requests][:1]
    values = [tuple(device.attributes.get(attribute) for attribute in shared_attributes) for _, device in state.devices]
    for value, alternatives in product(dict.fromkeys(values), product(*state.claim.requests)):
        pools = []
        for request in alternatives:
            indexes = tuple(
                str(index)
                for index, (name, _) in enumerate(state.devices)
                if name == request.name and values[index] == value
            )
            pools.append(Pool(len(indexes) if request.count is None else request.count, indexes))
        yield tuple(pools)


def _satisfies(claim: Claim, devices: Sequence[tuple[str, SliceDevice]]) -> bool:
    """Return whether *devices*, each with its request, have equal attributes where the claim says so."""
    for attribute, requests in claim.constraints:
        values = [device.attributes.get(attribute) for name, device in devices if applies(requests, name)]
        if any(value is None or value != values[0] for value in values):
            return False
    return True
