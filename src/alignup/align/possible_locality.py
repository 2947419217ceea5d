"""Whether all devices that a pod may get satisfy its demands on their locality.

A kubelet and its device plugins choose devices at random, so a host satisfies a demand only if every possible choice
does. What a machine cannot say counts as not satisfied.
"""

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from itertools import combinations, product
from typing import NamedTuple

from alignup.align.decision import Placement
from alignup.align.devices.choices import Option, Pool
from alignup.align.devices.demanded_locality import (
    FARTHEST,
    DemandAnswer,
    DemandedLocality,
    LocalityDemand,
    check_demand,
    find_address,
)
from alignup.align.locality import Locality
from alignup.align.workload.names import MARKER

MAX_CHECKED = 2_000  #: choices of one container

Devices = Mapping[str, Collection[str]]  #: ids by resource
UnsettledDevices = Mapping[str, Sequence[Collection[str]]]  #: sets of ids by resource


class UnmetLocality(NamedTuple):
    """Why a host that admits a pod does not satisfy its demand."""

    demand: LocalityDemand
    container: str
    problem: str  #: of a choice of devices that does not satisfy it, or why that is unknown
    known: bool  #: ``False``: the machine cannot say, or there are too many choices

    @property
    def reason(self) -> str:
        """The reason in words that hosts have in common."""
        if self.known:
            return f"the kubelet may choose devices that are not {self.demand}"
        return f"it is unknown whether the devices that the kubelet may choose are {self.demand}"

    @property
    def detail(self) -> str:
        return f"container {self.container}: {self.problem}"


def find_unmet_locality(
    demands: Iterable[LocalityDemand],
    placements: Sequence[Placement],
    locality: Locality,
    *,
    others: Devices,
    unsettled: UnsettledDevices,
) -> UnmetLocality | None:
    """Return the first demand that some predicted choice of devices does not satisfy; ``None``: all satisfy all.

    *others* are the devices of other pods. *unsettled* are sets of devices. Other pods have got some devices of each
    set, perhaps not the predicted ones. A container that may get one device of such a set may get any of them.
    """
    for demand in demands:
        for placement in placements:
            answer = _check(demand, placement, locality, others=others, unsettled=unsettled)
            if not answer.satisfied:
                return UnmetLocality(demand, placement.container, answer.reason, answer.satisfied is not None)
    return None


def _check(
    demand: LocalityDemand, placement: Placement, locality: Locality, *, others: Devices, unsettled: UnsettledDevices
) -> DemandAnswer:
    options = {
        resource: device_options(placement, resource, unsettled.get(resource, ()))
        for resource in placement.devices
        if demand.concerns(resource) and resource != MARKER
    }
    every = {
        resource: tuple(dict.fromkeys(id_ for option in alternatives for pool in option for id_ in pool.ids))
        for resource, alternatives in options.items()
    }
    if demand.locality is DemandedLocality.SPREAD:  # each device counts by itself
        unavailable = {name: {*others.get(name, ())}.union(*unsettled.get(name, ())) for name in {*others, *unsettled}}
        return check_demand(demand, locality, every, unavailable)
    if are_all_near(demand, locality, every):
        return DemandAnswer(satisfied=True)
    unknown_answer = None
    for count, devices in enumerate(_choices(options)):
        if count == MAX_CHECKED:
            return unknown_answer or DemandAnswer(None, f"there are more than {MAX_CHECKED} possible choices")
        answer = check_demand(demand, locality, devices)
        if answer.satisfied is False:
            return answer
        unknown_answer = unknown_answer or (answer if answer.satisfied is None else None)
    return unknown_answer or DemandAnswer(satisfied=True)


def device_options(placement: Placement, resource: str, open_sets: Sequence[Collection[str]]) -> tuple[Option, ...]:
    """Return the options for the devices of one resource in a container. Each of *open_sets* may go either way."""
    ids, choices = placement.devices[resource], placement.choices.get(resource)
    options = choices.options if choices and choices.options else ((Pool(len(ids), ids),),)
    possible = {id_ for option in options for pool in option for id_ in pool.ids}
    device_sets = list(open_sets)
    while joined_sets := [devices for devices in device_sets if not possible.isdisjoint(devices)]:
        possible.update(*joined_sets)
        device_sets = [devices for devices in device_sets if possible.isdisjoint(devices)]
    return options if len(device_sets) == len(open_sets) else ((Pool(len(ids), tuple(sorted(possible))),),)


def _choices(options: Mapping[str, tuple[Option, ...]]) -> Iterator[dict[str, list[str]]]:
    for combination in product(*options.values()):
        pools = [(resource, pool) for resource, option in zip(options, combination, strict=True) for pool in option]
        for parts in draw([pool for _, pool in pools]):
            devices: dict[str, list[str]] = {}
            for (resource, _), part in zip(pools, parts, strict=True):
                devices.setdefault(resource, []).extend(part)
            yield devices


def draw(pools: Sequence[Pool]) -> Iterator[tuple[tuple[str, ...], ...]]:
    """Yield every choice from each of *pools*, one at a time: there may be more than memory can hold."""
    if not pools:
        yield ()
        return
    for part in combinations(pools[0].ids, pools[0].take):
        for others in draw(pools[1:]):
            yield (part, *others)


def are_all_near(demand: LocalityDemand, locality: Locality, devices: Mapping[str, Sequence[str]]) -> bool:
    """Return whether every two of *devices* are as near as *demand* wants, so that any choice of them is."""
    if demand.locality is DemandedLocality.NVLINK:
        return check_demand(demand, locality, devices).satisfied is True
    addresses = {find_address(locality, id_) for ids in devices.values() for id_ in ids}
    if None in addresses:
        return False
    farthest = FARTHEST[demand.locality]
    levels = (locality.level(a, b) for a, b in combinations(filter(None, addresses), 2))
    return all(level is not None and level.rank <= farthest.rank for level in levels)
