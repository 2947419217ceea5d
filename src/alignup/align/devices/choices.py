"""The devices that a container may get, where the kubelet or a device plugin chooses at random.

The kubelet takes any devices of a tier (those near the chosen NUMA nodes first), and passes devices to plugins in
random order. So a prediction is the set of all possible choices, and only a set with one choice is certain. It is kept
as options of pools, "any 2 of these and 1 of those", which stays small where the number of choices is large.
"""

import random
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import combinations, islice, product
from math import comb, prod
from typing import NamedTuple

from alignup.align.bits import NodeSet
from alignup.align.devices.hints import natural_sort_key

MAX_LISTED = 8  #: choices that texts list


class Pool(NamedTuple):
    """Any ``take`` of these devices."""

    take: int
    ids: tuple[str, ...]


Option = tuple[Pool, ...]  #: one of several ways to choose: disjoint pools, all of which are drawn from


@dataclass(frozen=True, slots=True)
class DeviceChoices:
    """All sets of devices of one resource that a container may get."""

    container: str
    resource: str
    options: tuple[Option, ...]  #: disjoint; empty if the plugin crashes whatever the order of its devices
    crashes: bool = False  #: whether the plugin may crash instead of answering
    notes: tuple[str, ...] = ()  #: what else is known about the choice

    @property
    def count(self) -> int:
        return sum(prod([comb(len(pool.ids), pool.take) for pool in option]) for option in self.options)

    @property
    def is_certain(self) -> bool:
        return self.count == 1 and not self.crashes

    @property
    def ids(self) -> tuple[str, ...]:
        """Every device that may be chosen, in no order."""
        return tuple({id_ for option in self.options for pool in option for id_ in pool.ids})

    def sets(self) -> Iterator[tuple[str, ...]]:
        """Yield every choice, choices with the lowest devices of an option first."""
        for option in self.options:
            for parts in product(*[combinations(pool.ids, pool.take) for pool in option]):
                yield tuple(sorted([id_ for part in parts for id_ in part], key=natural_sort_key))

    def first(self) -> tuple[str, ...]:
        """Return the choice with the lowest devices."""
        lowest = (
            sorted([id_ for pool in option for id_ in pool.ids[: pool.take]], key=natural_sort_key)
            for option in self.options
        )
        return tuple(min(lowest, key=lambda ids: [natural_sort_key(id_) for id_ in ids], default=()))

    def draw(self, source: random.Random) -> tuple[str, ...]:
        """Return one choice; all are equally likely."""
        weights = [prod([comb(len(pool.ids), pool.take) for pool in option]) for option in self.options]
        (option,) = source.choices(self.options, weights)
        return tuple([id_ for pool in option for id_ in source.sample(pool.ids, pool.take)])

    def __contains__(self, ids: Collection[str]) -> bool:
        """Return whether exactly these devices may be chosen."""
        id_set = set(ids)
        return any(
            all(len(id_set.intersection(pool.ids)) == pool.take for pool in option)
            and sum(pool.take for pool in option) == len(id_set)
            for option in self.options
        )

    def renamed(self, new_id: Callable[[str], str]) -> "DeviceChoices":
        """Return the choices with other ids of the same devices."""
        options = [tuple([Pool(pool.take, tuple(map(new_id, pool.ids))) for pool in option]) for option in self.options]
        return replace(self, options=tuple(options))

    def representatives(self, nodes_of: Callable[[str], NodeSet | None], limit: int) -> list[tuple[str, ...]]:
        """Return a choice for each number of devices by NUMA nodes that is possible, at most *limit* of them."""
        distinct: dict[frozenset[tuple[NodeSet | None, int]], tuple[str, ...]] = {}
        if first := self.first():
            distinct[_node_counts(first, nodes_of)] = first
        for option in self.options:
            by_pool = [list(_node_choices(pool, nodes_of)) for pool in option]
            for parts in islice(product(*by_pool), limit):
                ids = tuple([id_ for part in parts for id_ in part])
                distinct.setdefault(_node_counts(ids, nodes_of), ids)
                if len(distinct) >= limit:
                    return list(distinct.values())
        return list(distinct.values())

    def __str__(self) -> str:
        """Return ``gpu-0, gpu-1``, ``any 2 of gpu-0…7``, ``{gpu-0, gpu-3} or {gpu-1, gpu-2}``, or a number of sets."""
        if not self.options:
            return "nothing: the device plugin crashes"
        if self.is_certain:
            return format_ids(next(self.sets()))
        if len(self.options) == 1:
            return " and ".join(
                format_ids(pool.ids) if pool.take == len(pool.ids) else f"any {pool.take} of {format_ids(pool.ids)}"
                for pool in self.options[0]
            )
        if self.count <= MAX_LISTED:
            return " or ".join(f"{{{format_ids(ids)}}}" for ids in sorted(self.sets(), key=_sort_key))
        size = sum(pool.take for pool in self.options[0])
        return f"one of {self.count} sets of {size} of {format_ids(sorted(self.ids, key=natural_sort_key))}"


#: Chooses for one container: gets the uid of the pod and what each resource may get, and returns devices by resource.
DeviceChooser = Callable[[str, Sequence[DeviceChoices]], Mapping[str, tuple[str, ...]]]


@dataclass(frozen=True, slots=True)
class RandomChooser:
    """A chooser that draws devices; a pod gets the same devices, independent of other pods."""

    seed: int

    def __call__(self, uid: str, choices: Sequence[DeviceChoices]) -> dict[str, tuple[str, ...]]:
        source = random.Random(f"{self.seed} {uid} {choices[0].container}")  # noqa: S311 - has to be repeatable
        return {choice.resource: choice.draw(source) for choice in choices}


def format_ids(ids: Sequence[str]) -> str:
    """Return ``gpu-0…7`` for consecutive numbers, else a list."""
    prefix = ids[0].rstrip("0123456789") if ids else ""
    numbers = [id_.removeprefix(prefix) for id_ in ids]
    if len(ids) > 2 and all(id_.startswith(prefix) for id_ in ids) and all(map(str.isdecimal, numbers)):
        first = int(numbers[0])
        if numbers == [str(first + offset) for offset in range(len(ids))]:
            return f"{prefix}{first}…{numbers[-1]}"
    return ", ".join(ids)


def _sort_key(ids: Sequence[str]) -> list[object]:
    return [natural_sort_key(id_) for id_ in ids]


def _node_counts(
    ids: Sequence[str], nodes_of: Callable[[str], NodeSet | None]
) -> frozenset[tuple[NodeSet | None, int]]:
    return frozenset(Counter(map(nodes_of, ids)).items())


def _node_choices(pool: Pool, nodes_of: Callable[[str], NodeSet | None]) -> Iterator[tuple[str, ...]]:
    """Yield one choice from *pool* for each number of devices by NUMA nodes."""
    groups: dict[NodeSet | None, list[str]] = {}
    for id_ in pool.ids:
        groups.setdefault(nodes_of(id_), []).append(id_)
    members = list(groups.values())
    for counts in product(*[range(min(len(group), pool.take) + 1) for group in members]):
        if sum(counts) == pool.take:
            yield tuple([id_ for group, count in zip(members, counts, strict=True) for id_ in group[:count]])
