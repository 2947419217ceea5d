"""Which GPUs AMD's device plugin prefers: the set whose pairs weigh least.

Partitions of one GPU form a group, and groups with the fewest available partitions come first. A candidate takes whole
groups, and of the last one as many as it needs, the lowest first. Of candidates that weigh the same, the one with fewer
groups wins, then the one whose groups come first. So the answer does not depend on the order of the available devices.
"""

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import combinations
from math import inf

XGMI, PCIE = 11, 2  #: types of links in the KFD topology
_LINK_WEIGHTS = {XGMI: 10, PCIE: 40}
_OTHER_LINK = 50
_PARTITION = "amdgpu_xcp"  #: in the ids of partitions other than the first of a GPU

Pair = frozenset[int]


@dataclass(frozen=True, slots=True)
class AmdDevice:
    """A GPU, or a partition of one."""

    id: str
    number: int  #: of its node in the KFD topology
    numa_node: int
    gpu: str  #: the physical GPU


def pair_weights(devices: Sequence[AmdDevice], links: Mapping[Pair, int]) -> dict[Pair, int]:
    """Return the weight of each pair with a link, by KFD numbers; pairs without one weigh nothing."""
    by_number = {device.number: device for device in devices}
    weights = {}
    for pair, kind in links.items():
        if len(pair) == 2 and pair <= by_number.keys():
            a, b = (by_number[number] for number in pair)
            near = (10 if a.gpu == b.gpu else 20) + (10 if a.numa_node == b.numa_node else 20)
            weights[pair] = near + _LINK_WEIGHTS.get(kind, _OTHER_LINK)
    return weights


def answer(
    devices: Sequence[AmdDevice],
    weights: Mapping[Pair, int],
    available: Sequence[str],
    *,
    required: Sequence[str] = (),
    size: int,
) -> tuple[str, ...]:
    """Return the preferred ids; ``ValueError`` with the plugin's text if it answers with an error."""
    if size <= 0:
        raise ValueError("allocation size can not be negative")
    if len(available) < size:
        raise ValueError("available devices count less than allocation size")
    if len(required) > size:
        raise ValueError("must_include devices size is more than allocation size")
    if len(available) == size:
        return tuple(available)
    if len(required) == size:
        return tuple(required)
    if not set(required).issubset(available):
        raise ValueError("No candidate subset found with matching criteria")
    devices_by_id = {device.id: device for device in devices}
    search = _Search(
        weights,
        _groups(devices, set(available).difference(required)),
        [devices_by_id[id_].number for id_ in required],
        size - len(required),
    )
    ids = {device.number: device.id for device in devices}
    return tuple(ids[number] for number in search.lightest())


def _groups(devices: Sequence[AmdDevice], ids: Collection[str]) -> list[list[int]]:
    """Return the KFD numbers of the devices with these ids by GPU, the fewest first."""
    numbers: dict[str, list[int]] = {}
    names: dict[str, str] = {}
    for device in devices:
        if _PARTITION not in device.id:
            names[device.gpu] = device.id
        if device.id in ids:
            numbers.setdefault(device.gpu, []).append(device.number)
    return [sorted(numbers[gpu]) for gpu in sorted(numbers, key=lambda gpu: (len(numbers[gpu]), names.get(gpu, "")))]


@dataclass(eq=False, slots=True)
class _Search:
    weights: Mapping[Pair, int]
    groups: list[list[int]]
    required: list[int]
    size: int
    #: weight, number of groups, groups, KFD numbers
    _best: tuple[float, int, tuple[int, ...], list[int]] = field(default=(inf, 0, (), []), init=False)

    def lightest(self) -> list[int]:
        """Return the KFD numbers of the best candidate, in the plugin's order."""
        start = sum(self.weights.get(frozenset(pair), 0) for pair in combinations(self.required, 2))
        self._extend((), [], start)
        return [*self._best[3], *self.required]

    def _extend(self, sequence: tuple[int, ...], numbers: list[int], weight: int) -> None:
        """Try each group as the last one, and each later group as a whole with more after it."""
        for index, group in enumerate(self.groups):
            missing_count = self.size - len(numbers)
            later = not sequence or index > sequence[-1]
            if index in sequence or (len(group) <= missing_count and not later):
                continue  # the same whole groups in another order
            candidate = [*numbers, *group[:missing_count]]
            total = weight + sum(self._added_weights(group[:missing_count], numbers))
            if len(group) >= missing_count:
                self._best = min(self._best, (total, len(sequence), (*sequence, index), candidate))
            elif total <= self._best[0]:
                self._extend((*sequence, index), candidate, total)

    def _added_weights(self, added_numbers: list[int], numbers: list[int]) -> Iterator[int]:
        for position, number in enumerate(added_numbers):
            for other in (*numbers, *added_numbers[:position], *self.required):
                yield self.weights.get(frozenset((number, other)), 0)
