"""Choose devices that are near each other, of all resources of a container at once.

Each criterion decides between choices that are equal by the criteria before it:

1. the demands of the pod (``demanded_locality``)
2. pairs: each GPU has a NIC below its root complex and each NIC a GPU, then the same below a switch; likewise NVMe
3. the farthest two GPUs are as near as possible, by links or PCIe levels
4. the sum of links between the GPUs, then of their levels
5. what stays free: the fewest whole switches and islands are broken, then the fewest devices are left beside the chosen
6. the lowest ids

GPUs are chosen before other devices, to which 3 and 4 do not apply. Without GPUs, the first other kind takes their
place. Devices that can be swapped without any difference are tried once. All sets are compared, so the choice is exact
for 16 devices, and for many more on real machines. If there are too many sets, devices are taken one by one.
"""

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import combinations
from types import MappingProxyType
from typing import NamedTuple

from alignup.align import bits
from alignup.align.bits import Bits
from alignup.align.devices.choices import Option, Pool
from alignup.align.devices.demanded_locality import DemandedLocality, LocalityDemand, check_demand, find_address
from alignup.align.devices.hints import natural_sort_key
from alignup.align.locality import DeviceKind, Level, Locality
from alignup.align.machine import Machine

MAX_STEPS = 25_000  #: to visit the sets of one kind: sets of 8 of 16 different devices take 24,310
MAX_PAIRS = 30_000  #: of sets of two kinds
_MAX_STARTS = 8  #: devices that a choice one by one begins with, unless there are demands
_UNKNOWN = (len(Level), 0)  #: the rank of two devices if the machine cannot say how near they are
_LINK = 1 << 16  #: what a link adds to the score of a set: more than all levels
_FIELD = 12  #: bits for the number of devices below a switch

Devices = Mapping[str, Iterable[str]]  #: ids by resource
_ROOT, _SWITCH = range(2)  #: what is above devices
_LEVELS = {DemandedLocality.SAME_ROOT: _ROOT, DemandedLocality.SAME_SWITCH: _SWITCH}
_PAIRED = (0, 0)  #: no device lacks a partner, neither below its root complex nor below its switch


class _TooManySetsError(Exception):
    pass


class NearRequest(NamedTuple):
    """Devices of one resource to choose."""

    resource: str
    option: Option  #: the pools to choose from
    every: tuple[str, ...]  #: all devices of the resource
    free: Collection[str | None]  #: healthy devices that no container holds


class NearDevices(NamedTuple):
    devices: Mapping[str, tuple[str, ...]]  #: by resource
    exact: bool = True  #: whether all sets were compared


def choose_near(
    locality: Locality,
    requests: Sequence[NearRequest],
    demands: Sequence[LocalityDemand] = (),
    others: Devices | None = None,
) -> NearDevices | None:
    """Return the best choice for a container; ``None`` if none satisfies the demands.

    The PCI addresses of all devices in the pools have to be known. *others* are the devices of other pods.
    """
    parts = _make_parts(locality, requests, demands, others or {})
    if not parts:
        return None
    try:
        sets, exact = _compare_all(parts), True
    except _TooManySetsError:
        sets, exact = _take_one_by_one(parts), False
    ids_by_resource: dict[str, tuple[str, ...]] = {}
    for part, devices in zip(parts, sets, strict=False):
        for index in bits.members(devices.mask):
            resource, id_ = part.ids[index]
            ids_by_resource[resource] = (*ids_by_resource.get(resource, ()), id_)
    satisfied = all(check_demand(demand, locality, ids_by_resource, others or {}).satisfied for demand in demands)
    return NearDevices(ids_by_resource, exact) if sets and satisfied else None


def preferred_devices(  # noqa: PLR0913 - the parts of a question
    machine: Machine,
    available: Iterable[str],
    *,
    size: int,
    required: Collection[str] = (),
    devices: Iterable[str] = (),
    addresses: Mapping[str, str] = MappingProxyType({}),
) -> tuple[str, ...]:
    """Return *size* of the *available* devices that are near each other: an answer to GetPreferredAllocation.

    The *required* ones are among them. *devices* are all devices of the plugin, so that whole switches stay free for
    later. *addresses* are PCI addresses of devices whose ids are neither that nor the UUID of a GPU. Where the machine
    tells nothing, these are the lowest ids. ``ValueError`` if no answer is possible.
    """
    free = sorted(set(available), key=natural_sort_key)
    must = [id_ for id_ in free if id_ in required]
    if not len(must) <= size <= len(free) or len(must) < len(set(required)):
        raise ValueError(f"cannot choose {size} of {len(free)} devices with {len(set(required))} required ones")
    rest = [id_ for id_ in free if id_ not in required]
    lowest = (*must, *rest)[:size]
    locality = machine.locality
    addresses_by_id = {id_: locality.find(addresses.get(id_, id_)) for id_ in (*free, *devices)}
    ids = {address: id_ for id_, address in addresses_by_id.items() if address}
    if not lowest or not locality.is_known or len(ids) < len(addresses_by_id):
        return lowest
    pools = [
        Pool(take, tuple([addresses_by_id[id_] or "" for id_ in pool]))
        for take, pool in ((len(must), must), (size - len(must), rest))
    ]
    every = tuple(sorted(ids, key=lambda address: natural_sort_key(ids[address])))
    request = NearRequest(
        "", tuple([pool for pool in pools if pool.take]), every, {addresses_by_id[id_] for id_ in free}
    )
    choice = choose_near(locality, [request])
    return tuple([ids[address] for address in choice.devices[""]]) if choice else lowest


class _Set(NamedTuple):
    """A set of devices of one part. Sets of devices, and of the roots and switches above them, are ints."""

    mask: Bits = 0
    rank: int = 0  #: of the farthest two
    score: int = 0  #: of all pairs
    roots: Bits = 0  #: above them
    switches: Bits = 0
    numbers: int = 0  #: of devices below each switch, in a field of bits each


@dataclass(eq=False)
class _Part:
    """The devices of one kind."""

    demands: tuple[LocalityDemand, ...]  #: about these devices
    ids: list[tuple[str, str]] = field(default_factory=list)  #: resource and id of each device
    addresses: list[str] = field(default_factory=list)
    free: Bits = 0
    pools: list[tuple[int, list[int]]] = field(default_factory=list)  #: how many to take of which
    above: tuple[list[Bits], list[Bits]] = field(default_factory=lambda: ([], []))  #: root and switch of each device
    compatible: list[Bits] = field(default_factory=list)  #: the devices that each can be chosen with
    groups: list[tuple[Bits, bool, bool]] = field(default_factory=list)  #: devices, if all are free, if it is a switch
    lower: list[int] = field(default_factory=list)  #: the next lower device of the same class, or -1
    compares: bool = False  #: whether it matters how near its devices are to each other
    ranks: list[list[int]] = field(default_factory=list)  #: of every two devices; the nearest has 0
    scores: list[list[int]] = field(default_factory=list)
    _below: dict[tuple[int, Bits], Bits] = field(default_factory=dict)  #: known results

    def below(self, level: int, above: Bits) -> Bits:
        """Return the devices that are below these roots or switches."""
        key = (level, above)
        if key not in self._below:
            self._below[key] = bits.of(index for index, bit in enumerate(self.above[level]) if bit & above)
        return self._below[key]

    def damage(self, mask: Bits) -> tuple[int, int]:
        """Return how many whole groups a choice breaks, and how many free devices it leaves beside it."""
        broken_groups = free_count = 0
        for group, whole, is_switch in self.groups:
            if mask & group and (rest := group & self.free & ~mask):
                broken_groups += whole
                free_count += is_switch and rest.bit_count()
        return broken_groups, free_count

    def tie_break(self, devices: _Set) -> tuple[object, ...]:
        return self.damage(devices.mask), list(bits.members(devices.mask))

    def add(self, devices: _Set, index: int, indexes: Iterable[int]) -> _Set:
        """Return *devices*, which have these *indexes*, with one more."""
        mask, rank, score, roots, switches, numbers = devices
        row, scores = self.ranks[index], self.scores[index]
        for other in indexes:
            rank = max(rank, row[other])
            score += scores[other]
        switch = self.above[_SWITCH][index]
        number = 1 << _FIELD * (switch.bit_length() - 1)
        return _Set(
            mask | 1 << index, rank, score, roots | self.above[_ROOT][index], switches | switch, numbers + number
        )

    def visit(self, action: Callable[[_Set], int | None]) -> None:
        """Call *action* with each set; it returns the rank above which sets are of no interest (``None``: any is).

        ``_TooManySetsError`` if there are too many.
        """
        limit: int | None = None
        steps = 0
        pools, lower, compatible, compares = self.pools, self.lower, self.compatible, self.compares

        def extend(pool: int, start: int, missing_count: int, indexes: tuple[int, ...], devices: _Set) -> None:
            nonlocal limit, steps
            steps += 1
            if steps > MAX_STEPS:
                raise _TooManySetsError
            while not missing_count:
                pool += 1
                if pool == len(pools):
                    limit = action(devices)
                    return
                missing_count, start = pools[pool][0], 0
            members, mask = pools[pool][1], devices.mask
            for position in range(start, len(members) - missing_count + 1):
                index = members[position]
                if (lower[index] >= 0 and not mask >> lower[index] & 1) or mask & ~compatible[index]:
                    continue
                extended_set = self.add(devices, index, indexes)
                if limit is None or extended_set.rank <= limit:
                    extend(pool, position + 1, missing_count - 1, (*indexes, index) if compares else (), extended_set)

        extend(-1, 0, 0, (), _Set())


def _make_parts(
    locality: Locality, requests: Sequence[NearRequest], demands: Sequence[LocalityDemand], others: Devices
) -> list[_Part]:
    """Return the kinds of devices to choose, GPUs first; none if too few devices can satisfy the demands."""
    by_kind: dict[tuple[str, tuple[LocalityDemand, ...]], _Part] = {}
    kinds: dict[LocalityDemand, set[str]] = {}
    for request in requests:
        about = tuple(demand for demand in demands if demand.concerns(request.resource))
        kind = locality.devices.get(find_address(locality, request.option[0].ids[0]) or "", request.resource)
        for demand in about:
            kinds.setdefault(demand, set()).add(kind)
        part = by_kind.setdefault((kind, about), _Part(about))
        if not _add_devices(part, request, locality, others):
            return []
    parts = [part for _, part in sorted(by_kind.items(), key=lambda item: item[0][0] != DeviceKind.GPU)]
    parts[0].compares = True
    numbers: dict[Level, dict[str, int]] = {Level.PHB: {}, Level.PXB: {}}
    for part in parts:
        for group_number, above, level in zip(numbers.values(), part.above, numbers, strict=True):
            for address in part.addresses:
                above.append(1 << group_number.setdefault(locality.group(address, level) or address, len(group_number)))
        _restrict(part, locality, kinds)
        _add_groups(part, locality)
        _add_ranks(part, locality)
        _find_classes(part)
    return parts


def _add_devices(part: _Part, request: NearRequest, locality: Locality, others: Devices) -> bool:
    """Add the devices of a request; return whether each pool has enough of them."""
    indexes: dict[str, int] = {}
    for id_ in request.every:
        if address := find_address(locality, id_):
            indexes[id_] = len(part.ids)
            part.free |= (id_ in request.free) << len(part.ids)
            part.ids.append((request.resource, id_))
            part.addresses.append(address)
    spread = [demand for demand in part.demands if demand.locality is DemandedLocality.SPREAD]
    for take, ids in request.option:
        suitable = [
            indexes[id_]
            for id_ in ids
            if all(check_demand(demand, locality, {request.resource: (id_,)}, others).satisfied for demand in spread)
        ]
        part.pools.append((take, suitable))
    return all(len(suitable) >= take for take, suitable in part.pools)


def _restrict(part: _Part, locality: Locality, kinds: Mapping[LocalityDemand, Collection[str]]) -> None:
    """Let devices be chosen together only if they satisfy what is demanded of devices of one kind."""
    part.compatible = [(1 << len(part.ids)) - 1] * len(part.ids)
    for demand in part.demands:
        for index, address in enumerate(part.addresses):
            if demand.locality is DemandedLocality.NVLINK and locality.devices.get(address) is DeviceKind.GPU:
                links = [device == address or locality.linked(device, address) for device in part.addresses]
                part.compatible[index] &= bits.of(other for other, is_linked in enumerate(links) if is_linked)
            elif demand.locality in _LEVELS and len(kinds[demand]) == 1:
                level = _LEVELS[demand.locality]
                part.compatible[index] &= part.below(level, part.above[level][index])


def _add_groups(part: _Part, locality: Locality) -> None:
    """Find the switches and islands that a choice can break."""
    groups: dict[tuple[object, object], Bits] = {}
    islands = {address: number for number, island in enumerate(locality.islands()) for address in island}
    for index, address in enumerate(part.addresses):
        keys = [(level, locality.group(address, level)) for level in (Level.PIX, Level.PXB)]
        for key in (*keys, (None, islands.get(address))):
            if key[1] is not None:
                groups[key] = groups.get(key, 0) | 1 << index
    part.groups = [(mask, not mask & ~part.free, level is Level.PXB) for (level, _), mask in groups.items()]


def _add_ranks(part: _Part, locality: Locality) -> None:
    """Compare every two devices that can be chosen."""
    candidates = sorted(index for _, members in part.pools for index in members) if part.compares else ()
    pairs: dict[tuple[int, int], tuple[int, int]] = {}
    for i, j in combinations(candidates, 2):
        nearness = locality.nearness(part.addresses[i], part.addresses[j])
        pairs[i, j] = nearness.rank if nearness else _UNKNOWN
    order = {rank: number for number, rank in enumerate(sorted(set(pairs.values())))}
    part.ranks = [[0] * len(part.ids) for _ in part.ids]
    part.scores = [[0] * len(part.ids) for _ in part.ids]
    for (i, j), rank in pairs.items():
        part.ranks[i][j] = part.ranks[j][i] = order[rank]
        part.scores[i][j] = part.scores[j][i] = -rank[0] if rank[0] >= 0 else -rank[1] * _LINK


def _find_classes(part: _Part) -> None:
    """Find devices that can be swapped without any difference but their ids."""
    part.lower = [-1] * len(part.ids)
    last: dict[object, list[int]] = {}
    for number, (_, members) in enumerate(part.pools):
        for index in members:
            groups = tuple([mask >> index & 1 for mask, _, _ in part.groups])
            alike = last.setdefault((number, part.above[_ROOT][index], part.above[_SWITCH][index], groups), [])
            for position, other in enumerate(alike):
                if _are_equal(part, index, other):
                    part.lower[index] = other
                    alike[position] = index
                    break
            else:
                alike.append(index)


def _are_equal(part: _Part, a: int, b: int) -> bool:
    both = 1 << a | 1 << b
    rows = ((part.ranks[a], part.ranks[b]), (part.scores[a], part.scores[b]))
    return part.compatible[a] & ~both == part.compatible[b] & ~both and all(
        first == second or all(first[other] == second[other] for other in range(len(first)) if not both >> other & 1)
        for first, second in rows
    )


def _unpaired(parts: tuple[_Part, _Part], a: _Set, b: _Set) -> tuple[int, int]:
    """Return how many devices of two sets lack a partner below their root complex, and below their switch."""
    first, second = parts
    roots = (a.mask & ~first.below(_ROOT, b.roots)).bit_count() + (b.mask & ~second.below(_ROOT, a.roots)).bit_count()
    return (
        roots,
        (a.mask & ~first.below(_SWITCH, b.switches)).bit_count()
        + (b.mask & ~second.below(_SWITCH, a.switches)).bit_count(),
    )


class _Partners:
    """The sets of a second part, and how well they go with a set of the first part."""

    def __init__(self, first: _Part, part: _Part) -> None:
        self._parts = first, part
        self._sets: dict[int, list[_Set]] = {}  #: by the numbers of devices below the switches
        self._by_switches: dict[Bits, list[int]] = {}  #: the keys of ``_sets``
        self._work = 0
        localities = {demand.locality for demand in part.demands if demand in first.demands}
        self._same_root = DemandedLocality.SAME_ROOT in localities
        self._same_switch = DemandedLocality.SAME_SWITCH in localities
        part.visit(self._add)

    def _add(self, devices: _Set) -> None:
        if devices.numbers not in self._sets:
            self._by_switches.setdefault(devices.switches, []).append(devices.numbers)
        self._sets.setdefault(devices.numbers, []).append(devices)

    def unpaired(self, first: _Set) -> tuple[int, int] | None:
        """Return how many devices lack a partner if the best set is chosen; ``None``: none satisfies the demands."""
        if first.switches in self._by_switches:
            return _PAIRED
        if self._same_switch or not self._sets:
            return None
        self._work += len(self._sets)
        if self._work > MAX_PAIRS:
            raise _TooManySetsError
        least = min(_unpaired(self._parts, first, devices[0]) for devices in self._sets.values())
        return None if self._same_root and least[0] else least

    def best(self, first: _Set) -> _Set:
        keys = self._by_switches.get(first.switches)
        if keys is None:
            counts = {key: _unpaired(self._parts, first, devices[0]) for key, devices in self._sets.items()}
            least = min(counts.values())
            keys = [key for key, count in counts.items() if count == least]
        return min((devices for key in keys for devices in self._sets[key]), key=self._parts[1].tie_break)


def _compare_all(parts: Sequence[_Part]) -> list[_Set]:
    """Return the best set of each part; nothing if none satisfies the demands."""
    first, partners = parts[0], [_Partners(parts[0], part) for part in parts[1:]]
    best: tuple[tuple[int, ...], _Set] | None = None

    def compare(devices: _Set) -> int | None:
        nonlocal best
        unpaired_counts = [partner.unpaired(devices) for partner in partners]
        if None not in unpaired_counts:
            counts = [sum(column) for column in zip(_PAIRED, *filter(None, unpaired_counts), strict=True)]
            key = (*counts, devices.rank, -devices.score)
            order = first.tie_break(devices) if best and key == best[0] else ()
            if best is None or (key, order) < (best[0], order and first.tie_break(best[1])):
                best = (key, devices)
        return best[0][2] if best and best[0][:2] == _PAIRED else None

    first.visit(compare)
    return [] if best is None else [best[1], *(partner.best(best[1]) for partner in partners)]


def _take_one_by_one(parts: Sequence[_Part]) -> list[_Set]:
    """Return sets that are built device by device, the best of the sets that begin with different devices."""
    first = parts[0]
    candidates: list[tuple[tuple[object, ...], list[_Set]]] = []
    for start in [index for _, members in first.pools for index in members if first.lower[index] < 0]:
        if len(candidates) >= _MAX_STARTS and not first.demands:
            break
        sets: list[_Set] = []
        for part in parts:
            devices = _build(part, start if part is first else None, sets[0] if sets else _Set())
            if devices is None:
                break
            sets.append(devices)
        else:
            pairs = list(zip(parts, sets, strict=True))
            counts = [_unpaired((first, part), sets[0], devices) for part, devices in pairs]
            unpaired_counts = [sum(column) for column in zip(*counts, strict=True)]
            order = [part.tie_break(devices) for part, devices in pairs]
            candidates.append(((unpaired_counts, sets[0].rank, -sets[0].score, order), sets))
    return min(candidates, key=lambda candidate: candidate[0])[1] if candidates else []


def _build(part: _Part, start: int | None, beside: _Set) -> _Set | None:
    """Return a set of *part* that begins with *start*, *beside* one of the first part; ``None`` if devices end."""
    devices = _Set()

    def rate(index: int) -> tuple[object, ...]:
        root, switch = part.above[_ROOT][index], part.above[_SWITCH][index]
        alone = (beside.mask and not root & beside.roots, beside.mask and not switch & beside.switches)
        extended_part = part.add(devices, index, bits.members(devices.mask))
        return (
            *alone,
            beside.mask and switch & devices.switches,
            extended_part.rank,
            -extended_part.score,
            part.damage(extended_part.mask),
            index,
        )

    for take, members in part.pools:
        for _ in range(take):
            mask = devices.mask
            usable = [member for member in members if not mask >> member & 1 and not mask & ~part.compatible[member]]
            usable = [start] if start in usable and not mask else usable
            if not usable:
                return None
            devices = part.add(devices, min(usable, key=rate), bits.members(mask))
    return devices
