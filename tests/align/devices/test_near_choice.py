"""The choice of near devices: compared with all sets, each rated by a plain statement of the criteria."""

from collections.abc import Iterator, Sequence
from itertools import combinations, product
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import alignup
from alignup.align.devices import near_choice
from alignup.align.devices.choices import Option, Pool
from alignup.align.devices.demanded_locality import DemandedLocality, LocalityDemand, check_demand
from alignup.align.devices.near_choice import NearRequest, choose_near, preferred_devices
from alignup.align.locality import DeviceLink, Level, LinkKind, Locality, PciPath
from alignup.align.machine import Cpu, Machine, NumaNode, PciDevice

GPU, NIC = "nvidia.com/gpu", "rdma/nic"
CLASSES = {GPU: 0x030200, NIC: 0x020000}
CPUS = tuple(Cpu(cpu, core=cpu, socket=cpu, node=cpu) for cpu in range(2))
SWITCH, ROOT, NVLINK, SPREAD = (LocalityDemand(locality) for locality in DemandedLocality)


def make_locality(devices: Sequence[tuple[str, int, int, int]], links: Sequence[tuple[int, int, int]] = ()) -> Locality:
    """Return a machine with *devices*: resource, NUMA node, root complex of the node, root port; two switches each."""
    pci = []
    for number, (resource, node, root, port) in enumerate(devices):
        bridges = (f"0000:{node}{root}:0{port // 2}.0", f"up{node}{root}{port}", f"down{number}")
        path = PciPath(f"pci0000:{node}{root}", bridges)
        pci.append(PciDevice(f"0000:{number:02x}:00.0", kind=CLASSES[resource], node=node, path=path))
    pairs = [DeviceLink(LinkKind.NVLINK, (pci[a].address, pci[b].address), count) for a, b, count in links]
    return Machine(CPUS, (NumaNode(0), NumaNode(1)), pci=tuple(pci), links=tuple(pairs)).checked().locality


@st.composite
def questions(draw: st.DrawFn) -> tuple[Locality, list[NearRequest]]:
    place = st.tuples(st.integers(0, 1), st.integers(0, 1), st.integers(0, 3))
    gpus = draw(st.lists(place, min_size=1, max_size=6))
    nics = draw(st.lists(place, max_size=5))
    pairs = [(a, b) for a, b in combinations(range(len(gpus)), 2)]
    links = draw(st.lists(st.tuples(st.sampled_from(pairs), st.integers(1, 3)), max_size=6)) if pairs else []
    devices = [(GPU, *each) for each in gpus] + [(NIC, *each) for each in nics]
    locality = make_locality(devices, [(*pair, count) for pair, count in links])
    addresses = list(locality.pci)
    requests = []
    for resource, ids in ((GPU, addresses[: len(gpus)]), (NIC, addresses[len(gpus) :])):
        free = draw(st.lists(st.sampled_from(ids), unique=True)) if ids else []
        if not free:
            continue
        ordered = sorted(free)
        fixed = draw(st.integers(0, min(1, len(ordered) - 1)))
        rest = tuple(ordered[fixed:])
        take = draw(st.integers(1, len(rest)))
        option = (*([Pool(1, (ordered[0],))] if fixed else []), Pool(take, rest))
        requests.append(NearRequest(resource, option, tuple(ids), ordered))
    return locality, requests


def choices(option: Option) -> Iterator[tuple[str, ...]]:
    for parts in product(*(combinations(pool.ids, pool.take) for pool in option)):
        yield tuple(sorted(id_ for part in parts for id_ in part))


def damage(locality: Locality, request: NearRequest, chosen: Sequence[str]) -> tuple[int, int]:
    levels = [locality.groups(request.every, level) for level in (Level.PIX, Level.PXB)]
    islands = [tuple(id_ for id_ in island if id_ in request.every) for island in locality.islands()]
    broken = left = 0
    for number, groups in enumerate((*levels, islands)):
        for group in groups:
            rest = set(group).intersection(request.free).difference(chosen)
            if rest and set(chosen).intersection(group):
                broken += set(group) <= set(request.free)
                left += len(rest) if number == 1 else 0
    return broken, left


def rate(locality: Locality, requests: Sequence[NearRequest], chosen: Sequence[tuple[str, ...]]) -> tuple[Any, ...]:
    first = chosen[0]
    unpaired = []
    for level in (Level.PHB, Level.PXB):
        lonely = 0
        for other in chosen[1:]:
            for mine, theirs in ((first, other), (other, first)):
                lonely += sum(all((locality.level(a, b) or Level.SYS).rank > level.rank for b in theirs) for a in mine)
        unpaired.append(lonely)
    links = [locality.link(a, b) for a, b in combinations(first, 2)]
    levels = [locality.level(a, b) or Level.SYS for a, b in combinations(first, 2)]
    ranks = [(-1, -link.count) if link else (level.rank, 0) for link, level in zip(links, levels, strict=True)]
    nearest = sum(level.rank for link, level in zip(links, levels, strict=True) if not link)
    return (
        unpaired,
        max(ranks, default=None),
        -sum(link.count for link in links if link),
        nearest,
        *(
            criterion
            for request, ids in zip(requests, chosen, strict=True)
            for criterion in (damage(locality, request, ids), ids)
        ),
    )


def best(
    locality: Locality,
    requests: Sequence[NearRequest],
    demands: Sequence[LocalityDemand] = (),
    others: dict[str, tuple[str, ...]] | None = None,
) -> dict[str, tuple[str, ...]] | None:
    resources = [request.resource for request in requests]
    entries = []
    for chosen in product(*(choices(request.option) for request in requests)):
        devices = dict(zip(resources, chosen, strict=True))
        if all(check_demand(demand, locality, devices, others or {}).satisfied for demand in demands):
            entries.append((rate(locality, requests, chosen), devices))
    return min(entries, key=lambda entry: entry[0])[1] if entries else None


@given(questions())
def test_no_other_set_is_better(question: tuple[Locality, list[NearRequest]]) -> None:
    locality, requests = question
    if requests:
        choice = choose_near(locality, requests)
        assert choice == (best(locality, requests), True)


@given(questions(), st.lists(st.sampled_from((SWITCH, ROOT, NVLINK)), max_size=2), st.data())
def test_the_best_set_that_satisfies_demands_is_chosen(
    question: tuple[Locality, list[NearRequest]], demands: list[LocalityDemand], data: st.DataObject
) -> None:
    locality, requests = question
    held = data.draw(st.sets(st.sampled_from(list(locality.pci)), max_size=2))
    if data.draw(st.booleans()):
        demands = [*demands, SPREAD]
    named = data.draw(st.sampled_from(((), (GPU,), (GPU, NIC))))
    demands = [demand._replace(names=named) for demand in demands]
    if requests:
        choice = choose_near(locality, requests, demands, {"other": tuple(held)})
        expected = best(locality, requests, demands, {"other": tuple(held)})
        assert (choice and choice.devices) == expected


@given(questions())
def test_a_choice_one_by_one_satisfies_the_pools(question: tuple[Locality, list[NearRequest]]) -> None:
    locality, requests = question
    if requests:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(near_choice, "MAX_STEPS", 0)
            choice = choose_near(locality, requests)
        assert choice is not None
        assert not choice.exact
        for request in requests:
            assert choice.devices[request.resource] in set(choices(request.option))


def ring(count: int) -> tuple[Locality, list[NearRequest]]:
    """Return GPUs and NICs, each below a switch of its own, and requests for half of the GPUs and one NIC more."""
    devices = [(resource, 0, number // 4, 2 * (number % 4)) for resource in (GPU, NIC) for number in range(count)]
    locality = make_locality(devices, [(number, (number + 1) % count, number % 3 + 1) for number in range(count)])
    addresses = list(locality.pci)
    return locality, [
        NearRequest(resource, (Pool(take, tuple(ids)),), (*ids, "no address"), ids)
        for resource, take, ids in ((GPU, count // 2, addresses[:count]), (NIC, count // 2 + 1, addresses[count:]))
    ]


@pytest.mark.parametrize("limit", ["MAX_PAIRS", "MAX_STEPS"])
@pytest.mark.parametrize("demands", [(), (SWITCH,), (LocalityDemand(DemandedLocality.NVLINK, (GPU,)),)])
def test_too_many_sets_are_not_compared(
    monkeypatch: pytest.MonkeyPatch, limit: str, demands: tuple[LocalityDemand, ...]
) -> None:
    locality, requests = ring(12)
    monkeypatch.setattr(near_choice, limit, 0)

    choice = choose_near(locality, requests, demands)

    if demands:
        assert choice is None
    else:
        assert choice is not None
        assert not choice.exact
        assert [len(choice.devices[resource]) for resource in (GPU, NIC)] == [6, 7]
        unpaired = rate(locality, requests, [choice.devices[GPU], choice.devices[NIC]])[0]
        assert unpaired[1] == 1, "there is one NIC more than GPUs"


EXAMPLE = alignup.load_machine(Path(__file__).parents[3] / "examples/locality/machine.yaml")
GPUS = [f"gpu-{number}" for number in range(8)]


@pytest.mark.parametrize(
    ("available", "required", "size", "expected"),
    [
        pytest.param(GPUS, (), 2, ("gpu-0", "gpu-3"), id="a linked pair, the lowest ids"),
        pytest.param(GPUS, ("gpu-2",), 2, ("gpu-1", "gpu-2"), id="the partner of a required GPU"),
        pytest.param(["gpu-0", *GPUS[2:]], (), 1, ("gpu-2",), id="one whose partner is in use"),
        pytest.param(["gpu-10", "gpu-9"], (), 1, ("gpu-9",), id="unknown devices: the lowest ids"),
        pytest.param(GPUS, GPUS[6:], 2, ("gpu-6", "gpu-7"), id="nothing but the required ones"),
        pytest.param(GPUS, (), 0, (), id="nothing"),
    ],
)
def test_a_plugin_prefers_near_devices(
    available: list[str], required: Sequence[str], size: int, expected: tuple[str, ...]
) -> None:
    chosen = preferred_devices(EXAMPLE, reversed(available), required=required, size=size, devices=GPUS)

    assert chosen == expected


def test_addresses_tell_where_devices_are() -> None:
    addresses = {"a": "0000:24:00.0", "b": "0000:41:00.0", "c": "0000:21:00.0"}

    assert preferred_devices(EXAMPLE, addresses, size=2) == ("a", "b")
    assert preferred_devices(EXAMPLE, addresses, size=2, addresses=addresses) == ("a", "c")


@pytest.mark.parametrize(("size", "required"), [(9, ()), (-1, ()), (1, ("gpu-0", "gpu-1")), (2, ("gpu-9",))])
def test_an_impossible_question_is_an_error(size: int, required: Sequence[str]) -> None:
    with pytest.raises(ValueError, match="cannot choose"):
        preferred_devices(EXAMPLE, GPUS, size=size, required=required)
