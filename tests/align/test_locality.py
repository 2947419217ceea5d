"""Levels, switches, roots, groups and islands of PCI devices."""

from dataclasses import replace
from itertools import combinations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from alignup.align.errors import MachineError
from alignup.align.locality import (
    FLAT,
    NO_TREE,
    DeviceConnection,
    DeviceKind,
    DeviceLink,
    Level,
    LinkKind,
    Locality,
    PciPath,
    StatedLevel,
    normal_address,
)
from alignup.align.machine import Cpu, Machine, NumaNode, PciDevice

CPUS = tuple(Cpu(cpu, core=cpu, socket=cpu // 2, node=cpu // 2) for cpu in range(4))
GPU, NIC, NVME = 0x030200, 0x020000, 0x010802


def machine(*pci: PciDevice, links: tuple[DeviceLink, ...] = (), nodes: int = 2) -> Machine:
    return Machine(CPUS[: 2 * nodes], tuple(map(NumaNode, range(nodes))), pci=pci, links=links).checked()


def gpu(address: str, *bridges: str, root: str | None = "pci0000:10", node: int | None = 0) -> PciDevice:
    return PciDevice(address, kind=GPU, node=node, path=PciPath(root, bridges))


A, B = "0000:18:00.0", "0000:19:00.0"
PORT, UP, DOWN_1, DOWN_2 = "0000:10:00.0", "0000:16:00.0", "0000:17:00.0", "0000:17:10.0"


def level(a: PciDevice, b: PciDevice, *, nodes: int = 2) -> Level | None:
    locality = machine(a, b, nodes=nodes).locality
    assert locality.level(b.address, a.address) == locality.level(a.address, b.address)
    return locality.level(a.address, b.address)


@pytest.mark.parametrize(
    ("a", "b", "expected"),
    [
        pytest.param((PORT,), (PORT,), Level.PIX, id="a shared root port"),
        pytest.param((PORT, UP, DOWN_1), (PORT, UP, DOWN_2), Level.PIX, id="two downstream ports of one switch"),
        pytest.param((PORT, UP, DOWN_1), (PORT, UP, DOWN_2, "u", "d"), Level.PXB, id="a second switch below the first"),
        pytest.param((PORT, UP, DOWN_1), (PORT,), Level.PXB, id="a switch below a shared port"),
        pytest.param((PORT,), ("0000:10:01.0",), Level.PHB, id="two root ports of one root complex"),
        pytest.param((PORT,), (), Level.PHB, id="an integrated endpoint"),
    ],
)
def test_bridges_below_the_last_common_one_decide(a: tuple[str, ...], b: tuple[str, ...], expected: Level) -> None:
    assert level(gpu(A, *a), gpu(B, *b)) is expected


@pytest.mark.parametrize(
    ("a", "b", "expected"),
    [
        pytest.param(("s",), ("s",), Level.PIX, id="one switch"),
        pytest.param(("s",), ("s", "t"), Level.PXB, id="a second switch"),
        pytest.param(("s",), ("t",), Level.PHB_OR_NODE, id="no common switch"),
        pytest.param((), (), Level.PHB_OR_NODE, id="no switch"),
    ],
)
def test_each_bridge_without_a_root_is_a_whole_switch(a: tuple[str, ...], b: tuple[str, ...], expected: Level) -> None:
    assert level(gpu(A, *a, root=None), gpu(B, *b, root=None)) is expected


@pytest.mark.parametrize("near", [Level.PIX, Level.PXB, Level.PHB])
def test_devices_of_a_level_are_in_one_group(near: Level) -> None:
    bridges = ((PORT, UP, DOWN_1), (PORT, UP, DOWN_2), (PORT, UP, DOWN_2, "u", "d"), ("q",), (), ())
    addresses = ("1.0", "2.0", "3.0", "4.0", "5.0", "5.1")
    locality = machine(
        *(gpu(f"0000:0{number}", *each) for number, each in zip(addresses, bridges, strict=True))
    ).locality
    stated = [StatedLevel(pair, level) for pair in combinations(locality.pci, 2) if (level := locality.level(*pair))]
    told = replace(machine(*(PciDevice(each, kind=GPU) for each in locality.pci)), stated_levels=tuple(stated)).locality

    for a, b in combinations(locality.pci, 2):
        level = locality.level(a, b)
        assert level is not None
        expected = level.rank <= near.rank
        assert (locality.group(a, near) == locality.group(b, near)) is expected
        assert (told.group(a, near) == told.group(b, near)) is expected
    assert told.group("unknown", near) is None


def test_other_root_complexes_are_near_if_the_numa_node_is_the_same() -> None:
    first = gpu(A, PORT)

    assert level(first, gpu(B, "p", root="pci0000:20")) is Level.NODE
    assert level(first, gpu(B, "p", root="pci0000:20", node=1)) is Level.SYS
    assert level(first, gpu(B, "p", root="pci0000:20", node=None)) is None
    assert level(gpu(A, PORT, node=None), gpu(B, "p", root="pci0000:20", node=None)) is None
    assert level(first, gpu(B, "p", root="pci0000:20", node=None), nodes=1) is Level.NODE
    assert level(gpu(A, root=None), gpu(B, root=None, node=1)) is Level.SYS


@pytest.mark.parametrize(
    ("a", "b", "expected"),
    [
        pytest.param(0b0011, 0b0011, Level.NODE, id="equal"),
        pytest.param(0b0011, 0b1100, Level.SYS, id="disjoint"),
        pytest.param(0b0011, 0b0110, None, id="overlapping"),
        pytest.param(0b1111, 0b1111, None, id="all CPUs, which is no location"),
        pytest.param(None, 0b0011, None, id="unknown"),
    ],
)
def test_the_cpus_near_devices_replace_unknown_numa_nodes(a: int | None, b: int | None, expected: Level | None) -> None:
    first = replace(gpu(A, PORT, node=None), cpus=a)

    assert level(first, replace(gpu(B, "p", root="pci0000:20", node=None), cpus=b)) is expected


def test_functions_of_one_device_are_together() -> None:
    assert level(gpu(A, root=None), gpu("0000:18:00.1", root=None)) is Level.PIX
    assert level(gpu(A), gpu("0000:18:00.1"), nodes=1) is None  # flat
    assert level(replace(gpu(A), kind=0), gpu("0000:18:00.1", PORT)) is Level.PIX


def test_a_tree_without_bridges_is_flat_and_cannot_say() -> None:
    flat = machine(gpu(A), gpu(B, root="pci0000:20", node=1)).locality

    assert (flat.flat, flat.has_tree, flat.note) == (True, False, FLAT)
    assert flat.level(A, B) is None
    assert (flat.root(A), flat.switch(A)) == (None, None)


def test_a_machine_without_paths_says_so() -> None:
    bare = machine(PciDevice(A, kind=GPU)).locality

    assert (bare.flat, bare.has_tree, bare.note) == (False, False, NO_TREE)
    assert machine().locality.note == ""
    assert machine(PciDevice(A, kind=0x060000)).locality.note == ""  # a bridge alone
    assert machine(gpu(A, PORT)).locality.note == ""


def test_stated_levels_are_used_where_the_tree_does_not_tell() -> None:
    stated = (StatedLevel((B, A), Level.PXB),)

    assert replace(machine(gpu(A), gpu(B)), stated_levels=stated).locality.level(A, B) is Level.PXB
    assert replace(machine(gpu(A, PORT), gpu(B, PORT)), stated_levels=stated).locality.level(A, B) is Level.PIX


def test_devices_on_one_switch_have_the_same_switch_and_root() -> None:
    locality = machine(
        gpu(A, PORT, UP, DOWN_1),
        gpu(B, PORT, UP, DOWN_2),
        gpu("0000:20:00.0", "port"),
        gpu("0000:21:00.0", "port"),
        gpu("0000:22:00.0", "s", root=None),
        gpu("0000:23:00.0"),
    ).locality

    assert [locality.switch(address) for address in locality.pci] == [UP, UP, "port", "port", "s", None]
    assert locality.root(A) == "pci0000:10"
    assert locality.root("0000:22:00.0") is None
    assert locality.switch("0000:99:00.0") is locality.level(A, "0000:99:00.0") is None


def test_switches_are_upstream_ports() -> None:
    assert PciPath("pci0000:10", ("port", "up", "down", "up2", "down2")).switches == ("up", "up2")
    assert PciPath("pci0000:10", ("port", "bridge")).switches == PciPath("pci0000:10", ("port",)).switches == ()
    assert PciPath(None, ("s", "t")).switches == ("s", "t")


def test_groups_follow_levels() -> None:
    other = "0000:20:00.0"
    locality = machine(
        gpu(A, PORT, UP, DOWN_1),
        gpu(other, "p", root="pci0000:20"),
        gpu(B, PORT, UP, DOWN_2),
        gpu("0000:30:00.0", "q", node=1),
    ).locality

    assert locality.groups(locality.pci, Level.PIX) == ((A, B), (other,), ("0000:30:00.0",))
    assert locality.groups(locality.pci, Level.NODE) == ((A, other, B, "0000:30:00.0"),)  # PHB to the last one


def test_kinds_come_from_pci_classes() -> None:
    codes = {"1": GPU, "2": 0x120000, "3": NIC, "4": 0x0C0600, "5": NVME, "6": 0x010600, "7": 0x060400}
    console = PciDevice("8", kind=0x030000, vendor=0x1A03)  # the picture of a server's management controller
    locality = machine(*(PciDevice(address, kind=kind) for address, kind in codes.items()), console).locality

    assert locality.devices == {
        "1": DeviceKind.GPU,
        "2": DeviceKind.GPU,
        "3": DeviceKind.NIC,
        "4": DeviceKind.NIC,
        "5": DeviceKind.NVME,
    }


def test_links_add_up_and_a_fabric_counts_once() -> None:
    c = "0000:20:00.0"
    links = (
        DeviceLink(LinkKind.NVLINK, (A, B), 2),
        DeviceLink(LinkKind.NVLINK, (B, A), 1),
        DeviceLink(LinkKind.NVSWITCH, (A, B, c), 12),
        DeviceLink(LinkKind.NVSWITCH, (A, c), 18),
        DeviceLink(LinkKind.C2C, (A,), 5),
    )
    locality = machine(links=links).locality

    assert locality.link(A, B) == DeviceConnection(LinkKind.NVSWITCH, 12)
    assert locality.link(c, A) == DeviceConnection(LinkKind.NVSWITCH, 18)
    assert locality.link(A, A) is None
    assert machine(links=links[:2]).locality.link(A, B) == DeviceConnection(LinkKind.NVLINK, 3)
    assert [str(DeviceConnection(kind, 4)) for kind in (LinkKind.NVLINK, LinkKind.NVSWITCH, LinkKind.XGMI)] == [
        "NV4",
        "NV4",
        "XGMI4",
    ]


def test_islands_are_connected_through_others() -> None:
    links = tuple(DeviceLink(LinkKind.XGMI, pair) for pair in (("e", "c"), ("c", "a"), ("b", "d")))
    locality = machine(*map(gpu, "abcd"), links=(*links, DeviceLink(LinkKind.C2C, ("a",)))).locality

    assert locality.islands() == (("a", "c", "e"), ("b", "d"))


def test_devices_are_found_by_address_and_uuid() -> None:
    locality = machine(replace(gpu("0000:3b:00.0"), uuid="GPU-1"), gpu("10000:3b:00.0")).locality

    assert locality.find("00000000:3B:00.0") == locality.find("GPU-1") == "0000:3b:00.0"
    assert locality.find("00010000:3b:00.0") == normal_address("10000:3B:00.0") == "10000:3b:00.0"
    assert locality.find("GPU-2") is None


@pytest.mark.parametrize(
    "link",
    [
        DeviceLink(LinkKind.NVLINK, (), 1),
        DeviceLink(LinkKind.NVLINK, (A, A), 1),
        DeviceLink(LinkKind.NVLINK, (A, B, "c"), 1),
        DeviceLink(LinkKind.XGMI, (A, B), 0),
    ],
)
def test_impossible_links_are_rejected(link: DeviceLink) -> None:
    with pytest.raises(MachineError, match="links of kind"):
        machine(links=(link,))


def test_very_deep_paths_are_rejected() -> None:
    with pytest.raises(MachineError, match="33 bridges above a device: expected at most 32"):
        machine(gpu(A, *map(str, range(33))))


paths = st.lists(st.sampled_from(["a", "b"]), max_size=5).map(
    lambda turns: tuple("".join(turns[: depth + 1]) for depth in range(len(turns)))
)


@given(st.lists(st.tuples(paths, st.sampled_from(["pci0000:00", "pci0000:10"])), min_size=3, max_size=6))
def test_levels_of_a_tree_are_consistent(trees: list[tuple[tuple[str, ...], str]]) -> None:
    """From PXB on, two devices are at least as near as the farther of both is to any third."""
    nodes = {"pci0000:00": 0, "pci0000:10": 1}
    devices = [
        gpu(f"0000:{number:02x}:00.0", *(f"{root}{bridge}" for bridge in bridges), root=root, node=nodes[root])
        for number, (bridges, root) in enumerate(trees)
    ]
    locality = Locality(machine(gpu("0000:ff:00.0", "x", root="pci0000:20"), *devices))

    for a, b in combinations([device.address for device in devices], 2):
        for c in locality.pci:
            if c not in {a, b}:
                between, first, second = (
                    max((locality.level(*pair) or Level.SYS).rank, Level.PXB.rank) for pair in ((a, b), (a, c), (b, c))
                )
                assert between <= max(first, second)
        assert locality.switch(a) != locality.switch(b) or not locality.switch(a) or locality.level(a, b) is Level.PIX
