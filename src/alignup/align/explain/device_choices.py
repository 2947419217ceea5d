"""What the choice of devices means below the NUMA node: how near the GPUs of a container, and its GPU and NIC, are.

GPUs are *connected* if each two are linked (NVLink, NVSwitch, XGMI) or below one PCIe switch or several. GPU and NIC
are *paired* if each GPU has a NIC below the same root complex. Nothing is said where the locality is unknown.
"""

import random
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations, product
from math import prod

from alignup.align.decision import Placement
from alignup.align.devices.choices import DeviceChoices
from alignup.align.locality import DeviceKind, Level, Locality, Nearness

CONNECTED, PAIRED = Level.PXB, Level.PHB  #: the farthest levels that count as near
MAX_COMPARED = 5_000  #: choices; of more, so many are drawn
MEASURED = "docs/locality.md#what-it-costs"

Devices = Mapping[str, tuple[str, ...]]  #: resource → ids


@dataclass(frozen=True, slots=True)
class Connections:
    """How near the devices of one container are; ``None``: there are no pairs, or the machine lists none."""

    gpus: Nearness | None = None  #: the farthest two of its GPUs
    nic: Nearness | None = None  #: of each GPU the nearest NIC, and of these the farthest
    unknown: bool = False  #: whether there are such pairs, and the machine cannot say

    @property
    def connected(self) -> bool | None:
        return None if self.gpus is None else self.gpus.is_link or self.gpus.rank[0] <= CONNECTED.rank

    @property
    def paired(self) -> bool | None:
        return None if self.nic is None else self.nic.rank[0] <= PAIRED.rank


def connections(locality: Locality, devices: Devices) -> Connections:
    """Return how near the devices of one container are."""
    addresses = [locality.find(id_) for ids in devices.values() for id_ in ids]
    known_addresses = [address for address in addresses if address]
    gpus = [address for address in known_addresses if locality.devices.get(address) is DeviceKind.GPU]
    nics = [address for address in known_addresses if locality.devices.get(address) is DeviceKind.NIC]
    pairs = [locality.nearness(a, b) for a, b in combinations(gpus, 2)]
    nearest = [_nearest(locality, gpu, nics) for gpu in gpus] if nics else []
    return Connections(
        max(distance for distance in pairs if distance) if pairs and None not in pairs else None,
        max(distance for distance in nearest if distance) if nearest and None not in nearest else None,
        unknown=None in pairs or None in nearest,
    )


def _nearest(locality: Locality, gpu: str, nics: Sequence[str]) -> Nearness | None:
    levels = [locality.nearness(gpu, nic) for nic in nics]
    return min(level for level in levels if level) if None not in levels else None


def explain_choices(locality: Locality, placements: Iterable[Placement]) -> tuple[str, ...]:
    """Return what the possible choices of devices mean, and what would make the best one certain.

    Empty if the machine cannot say.
    """
    result: list[str] = []
    for placement in placements:
        entries = list(_explain(locality, placement))
        result += [f"container {placement.container}: {comparison}" for comparison, _ in entries]
        if any(differs for _, differs in entries):
            result += _certain_ways(placement.choices.values())
    return tuple(dict.fromkeys(result))


def _certain_ways(choices: Iterable[DeviceChoices]) -> Iterator[str]:
    amounts = [f"{len(choice.ids)} {choice.resource}" for choice in choices if choice.options and not choice.is_certain]
    yield (
        f"to be certain, request all that is free there ({', '.join(amounts)}), or use a ResourceClaim with "
        "matchAttribute: resource.kubernetes.io/pcieRoot; alignup run and the agent choose near devices"
    )
    yield f"what distance has cost others: {MEASURED}"


def _explain(locality: Locality, placement: Placement) -> Iterator[tuple[str, bool]]:
    """Yield comparisons of the choices for one container, and whether they differ."""
    choices = [choice for choice in placement.choices.values() if choice.options]
    choices.sort(key=lambda choice: locality.devices.get(locality.find(choice.ids[0]) or "") is not DeviceKind.GPU)
    total = prod([choice.count for choice in choices])
    is_sample = total > MAX_COMPARED
    connections_by_choice = [(ids, connections(locality, ids)) for ids in _devices(choices, total)]
    gpus = [(summary.gpus, ids, summary.connected) for ids, summary in connections_by_choice if summary.gpus]
    nics = [(summary.nic, ids, summary.paired) for ids, summary in connections_by_choice if summary.nic]
    for entries, bad in (
        (gpus, "have two GPUs that neither a link nor a PCIe switch connects"),
        (nics, "put GPU and NIC under different root complexes"),
    ):
        if len(entries) < len(connections_by_choice) or not entries:
            continue
        differs = len({entry[0] for entry in entries}) > 1
        yield _compare(entries, bad, total=total, is_sample=is_sample), differs


def _devices(choices: Sequence[DeviceChoices], total: int) -> Iterator[dict[str, tuple[str, ...]]]:
    """Yield every choice of all resources together, or some of them, drawn with a fixed seed."""
    if not choices:
        return
    if total <= MAX_COMPARED:
        for sets in product(*[choice.sets() for choice in choices]):
            yield {choice.resource: ids for choice, ids in zip(choices, sets, strict=True)}
        return
    source = random.Random(0)  # noqa: S311 - the same answer each time
    for _ in range(MAX_COMPARED):
        yield {choice.resource: choice.draw(source) for choice in choices}


_Found = Sequence[tuple[Nearness, Devices, bool | None]]


def _compare(entries: _Found, bad: str, *, total: int, is_sample: bool) -> str:
    best, worst = min(entries, key=lambda entry: entry[0]), max(entries, key=lambda entry: entry[0])
    if total == 1:
        return f"it gets {_show(best)}"
    if best[0] == worst[0]:
        return f"all {total} possible choices are alike, such as {_show(best)}"
    number = sum(good is False for *_, good in entries)
    count = f"about {100 * number / len(entries):.0f} %" if is_sample else f"{number}"
    return f"{count} of {total} possible choices {bad}; best {_show(best)}, worst {_show(worst)}"


def _show(entries: tuple[Nearness, Devices, bool | None]) -> str:
    nearness, devices, _ = entries
    return f"{' + '.join(id_ for ids in devices.values() for id_ in ids)} ({_level(nearness)})"


def _level(nearness: Nearness) -> str:
    return "one switch" if nearness.name == Level.PIX else nearness.name
