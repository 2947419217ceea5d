"""The PCIe tree, links and matrix in words."""

from dataclasses import replace

from alignup.align.locality import DeviceLink, LinkKind, PciPath
from alignup.align.machine import Machine, PciDevice
from alignup.machines.synthetic import parse
from alignup.picture.machine_layout import layout_machine
from alignup.picture.machine_svg import draw_parts, draw_svg
from alignup.picture.machine_text import draw_text
from alignup.picture.pcie_tree import MAX_COLUMNS, MAX_LINES, MAX_SIBLINGS, draw_matrix
from alignup.picture.text_format import plain

PLAIN = parse("numa:2 core:2 pu:1")
SWITCH = ("0000:3a:00.0", "0000:3b:00.0", "0000:3c:00.0")


def device(address: str, kind: int, *bridges: str, node: int = 0, names: tuple[str, ...] = ()) -> PciDevice:
    return PciDevice(address, kind, 0x10DE, node=node, names=names, path=PciPath("pci0000:3a", bridges))


GPU_0 = device("0000:3d:00.0", 0x030200, *SWITCH, names=("GPU 0", "NVIDIA H200"))
GPU_1 = device("0000:5e:00.0", 0x030200, "0000:3a:01.0", node=1)
NIC = replace(device("0000:3e:00.0", 0x020000, *SWITCH[:2], "0000:3c:01.0", names=("eth0", "mlx5_0")), rail=3)
DISK = device("0000:5f:00.0", 0x010802, node=1, names=("nvme0",))
SOUND = device("0000:60:00.0", 0x040300, node=1)


def machine(*pci: PciDevice, links: tuple[DeviceLink, ...] = ()) -> Machine:
    return replace(PLAIN, pci=pci, links=links).checked()


TREE = machine(GPU_0, GPU_1, NIC, DISK, SOUND, links=(DeviceLink(LinkKind.NVLINK, (GPU_0.address, GPU_1.address), 4),))


def test_devices_are_below_their_switches_and_root_complexes():
    first, second = layout_machine(TREE).boxes

    assert first.tree == (
        "pci0000:3a → switch 0000:3b:00.0",
        "  GPU 0/NVIDIA H200 0000:3d:00.0 · island 1",
        "  NIC eth0/mlx5_0 0000:3e:00.0 · rail 3",
    )
    assert second.tree == ("pci0000:3a", "  GPU 0000:5e:00.0 · island 1", "  NVMe nvme0 0000:5f:00.0")
    assert (first.pci, second.pci) == ((), ("1 other",))
    assert layout_machine(TREE).links == ("island 1: 2 devices, NV4 between every two",)


def test_text_svg_and_pages_show_the_tree():
    for text in (
        "\n".join(map(plain, draw_text(TREE))),
        draw_svg(TREE),
        "".join(draw_parts(TREE).pictures),
    ):
        for part in ("switch 0000:3b:00.0", "NIC eth0/mlx5_0 0000:3e:00.0", "NVMe nvme0", "island 1: 2 devices, NV4"):
            assert part in text


def test_many_devices_are_counted():
    functions = [device(f"0000:{bus:02x}:00.0", 0x020000, *SWITCH) for bus in range(64, 128)]
    tree = layout_machine(machine(GPU_0, *functions)).boxes[0].tree

    assert len(tree) == 1 + 1 + MAX_SIBLINGS + 1
    assert tree[-1] == f"  and {64 - MAX_SIBLINGS} more NIC"
    roots = [
        replace(device(f"0000:{bus:02x}:00.0", 0x020000), path=PciPath(f"pci0000:{bus:02x}", ("0000:00:00.0",)))
        for bus in range(200)
    ]
    assert layout_machine(machine(*roots)).boxes[0].tree[MAX_LINES - 1 :] == (f"and {200 - MAX_LINES + 1} more lines",)
    matrix = draw_matrix(machine(*roots))
    assert f"and {200 - MAX_COLUMNS} more NIC" in matrix
    assert len(matrix[1].split()) == MAX_COLUMNS + 1


def test_islands_that_are_not_complete_and_links_to_cpus_are_described():
    links = (
        DeviceLink(LinkKind.XGMI, ("a", "b"), 1),
        DeviceLink(LinkKind.XGMI, ("b", "c"), 2),
        DeviceLink(LinkKind.C2C, ("a",), 5),
        DeviceLink(LinkKind.C2C, ("b",), 5),
    )

    assert layout_machine(machine(links=links)).links == (
        "island 1: 3 devices, XGMI1 to XGMI2 between 2 of 3 pairs",
        "5 c2c links to the CPU from 2 devices",
    )


def test_the_matrix_has_gpus_and_network_interfaces():
    assert draw_matrix(TREE) == [
        "      GPU0  GPU1  NIC0  CPU Affinity  NUMA Affinity",
        "GPU0  X     NV4   PIX   N/A           0",
        "GPU1  NV4   X     PHB   N/A           1",
        "NIC0  PIX   PHB   X",
        "",
        "Legend:",
        "",
        "  GPU0: 0000:3d:00.0 GPU 0 NVIDIA H200",
        "  GPU1: 0000:5e:00.0",
        "  NIC0: 0000:3e:00.0 eth0 mlx5_0",
    ]
    assert draw_matrix(PLAIN) == ["This machine has no GPUs and no network interfaces."]


def test_a_flat_machine_cannot_say():
    flat = machine(*(replace(each, path=PciPath("pci0000:00"), node=None) for each in (GPU_0, GPU_1)))

    assert draw_matrix(flat)[1].split()[:3] == ["GPU0", "X", "?"]
    assert "PCIe: flat: cannot say" in draw_matrix(flat)
    assert "PCIe: flat: cannot say" in layout_machine(flat).gaps
    assert "SYS" not in "".join(draw_matrix(flat))


def test_a_machine_without_a_tree_says_so():
    bare = machine(replace(GPU_0, path=None))

    assert layout_machine(bare).gaps[-1] == "PCIe: no PCIe tree recorded"
    assert layout_machine(bare).boxes[0].tree == ()
    assert layout_machine(bare).boxes[0].pci == ("GPU 0/NVIDIA H200",)
