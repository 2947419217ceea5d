"""Devices and links from NCCL's XML, ``nvidia-smi topo -m`` and listings of sysfs."""

from dataclasses import replace
from pathlib import Path

import pytest

from alignup.align.errors import SourceError
from alignup.align.locality import DeviceLink, Level, LinkKind, PciPath, StatedLevel
from alignup.align.machine import Device, Machine, PciDevice
from alignup.machines import device_links, load, synthetic

PLAIN = synthetic.parse("numa:2 core:2 pu:1")
A, B, NIC = "0000:18:00.0", "0000:19:00.0", "0000:1a:00.0"
OLD = replace(
    PLAIN,
    pci=(
        PciDevice(A, 0x030200, 0x10DE, node=0),
        PciDevice(B, 0x030200, 0x10DE),
        PciDevice(NIC, 0x020000, 0x15B3, node=1, names=("eth0", "mlx5_0")),
    ),
).with_reported((Device("example.com/gpu", "far", nodes=1 << 9),))

XML = """<?xml version="1.0"?>
<!-- <topology> -->
<system version="1">
  <cpu numaid="0" affinity="3">
    <pci busid="FFFF:FF:01.0" class="0x060400">
      <pci busid="0000:18:00.0" class="0x030200" vendor="0x10de" device="0x20b0"><gpu dev="1">
        <nvlink target="0000:19:00.0" count="2" tclass="0x030200"/><nvlink target="0000:18:00.0" count="9"/>
        <nvlink target="0000:ee:00.0" count="2" tclass="0x030200"/><c2c bw="44712" count="5"/></gpu></pci>
    </pci>
    <pci busid="ffff:ff:09.0" class="0x060400"/>
  </cpu>
  <cpu numaid="-1" affinity="c">
    <pci busid="0000:19:00.0"><gpu dev="0"><nvlink target="0000:18:00.0" count="1"/>
      <nvlink target="0000:18:00.0" count="2"/></gpu></pci>
    <pci busid="0000:1a:00.0"><nic><net name="mlx5_0"/><net name="mlx5_1"/></nic></pci>
    <nic><net name="virtual"/></nic>
  </cpu>
</system>"""

MATRIX = """\
\t\x1b[4mGPU0\tGPU1\tNIC0\tNIC1\tCPU Affinity\tNUMA Affinity\tGPU NUMA ID\x1b[0m
GPU0\t X \tNV4\tPIX\tSYS\t0-1\t0\t\tN/A
GPU1\tNV4\t X \tSYS\tN/A\t2-3\t0-1\t\tN/A
NIC0\tPIX\tSYS\t X \tSOC

Legend:

  X    = Self

NIC Legend:

  NIC0: mlx5_0
  NIC1: mlx5_9
"""

LISTING = f"""total 0
lrwxrwxrwx 1 root root 0 Nov 17 10:00 {A} -> ../../../devices/pci0000:17/0000:17:00.0/{A}
lrwxrwxrwx 1 root root 0 Nov 17 10:00 {B} -> ../../../devices/pci0000:17/0000:17:02.0/{B}
{A} class 0x030200 vendor 0x10de device 0x20b0 numa_node -1 local_cpulist 0-3
{B} class 0x030200 vendor 0x10de numa_node 1
"""


def only_devices(text: str) -> Machine:
    machine = device_links.parse(text, name="the text")
    assert machine is not None
    return machine


def test_nccl_has_a_bridge_for_each_switch():
    machine = only_devices(XML)

    assert machine.pci == (
        PciDevice(A, 0x030200, 0x10DE, 0x20B0, node=0, cpus=3, path=PciPath(None, ("ffff:ff:01.0",))),
        PciDevice(B, 0x030200, cpus=12, path=PciPath(None)),
        PciDevice(NIC, 0x020000, cpus=12, path=PciPath(None)),
    )
    assert [device.names for device in machine.pci] == [("GPU 1",), ("GPU 0",), ("mlx5_0", "mlx5_1")]
    assert machine.links == (DeviceLink(LinkKind.NVLINK, (A, B), 3), DeviceLink(LinkKind.C2C, (A,), 5))
    assert machine.locality.level(A, B) is Level.SYS
    assert machine.locality.level(B, NIC) is Level.PHB_OR_NODE


def test_links_to_switches_are_one_fabric_even_if_no_switch_is_visible():
    xml = XML.replace('target="0000:19:00.0"', 'target="fffffff:ff:ff.0"').replace("0x030200", "0x068000", 2)
    xml = xml.replace(
        '<nvlink target="0000:18:00.0" count="1"/>', '<nvlink target="0005:00:00.0" count="1" tclass="0x068000"/>'
    )
    xml = xml.replace('class="0x068000" vendor', 'class="0x030200" vendor').replace(
        '<nvlink target="0000:18:00.0" count="2"/>', ""
    )

    links = only_devices(xml).links

    assert links[0] == DeviceLink(LinkKind.NVSWITCH, (A, B), 1)


def test_xgmi_and_links_to_cpus():
    xml = XML.replace("nvlink", "xgmi", 1).replace(
        '0000:ee:00.0" count="2" tclass="0x030200', 'x" count="2" tclass="0x068001'
    )

    assert set(only_devices(xml).links) == {
        DeviceLink(LinkKind.XGMI, (A, B), 2),
        DeviceLink(LinkKind.NVLINK, (A, B), 3),
        DeviceLink(LinkKind.NVLINK, (A,), 2),
        DeviceLink(LinkKind.C2C, (A,), 5),
    }


def test_a_matrix_has_links_and_levels():
    machine = only_devices(MATRIX)

    assert [(device.address, device.node, device.cpus, device.names) for device in machine.pci] == [
        ("GPU0", 0, 0b11, ()),
        ("GPU1", None, 0b1100, ()),
        ("NIC0", None, None, ("mlx5_0",)),
        ("NIC1", None, None, ("mlx5_9",)),
    ]
    assert machine.links == (DeviceLink(LinkKind.NVLINK, ("GPU0", "GPU1"), 4),)
    assert machine.stated_levels == (
        StatedLevel(("GPU0", "NIC0"), Level.PIX),
        StatedLevel(("GPU0", "NIC1"), Level.SYS),
        StatedLevel(("GPU1", "NIC0"), Level.SYS),
        StatedLevel(("NIC0", "NIC1"), Level.SYS),
    )


@pytest.mark.parametrize(
    ("gpus", "count", "kind"), [(4, 4, LinkKind.NVLINK), (4, 12, LinkKind.NVSWITCH), (2, 18, LinkKind.NVLINK)]
)
def test_more_links_than_a_gpu_has_go_through_switches(gpus, count, kind):
    names = [f"GPU{number}" for number in range(gpus)]
    rows = [" ".join([name, *("X" if name == other else f"NV{count}" for other in names)]) for name in names]

    links = only_devices("\n".join([" ".join(names), *rows])).links

    assert {link.kind for link in links} == {kind}
    assert len(links) == (1 if kind is LinkKind.NVSWITCH else gpus * (gpus - 1) // 2)


def test_a_listing_has_paths():
    machine = only_devices(LISTING)

    assert machine.pci == (
        PciDevice(A, 0x030200, 0x10DE, 0x20B0, cpus=0b1111, path=PciPath("pci0000:17", ("0000:17:00.0",))),
        PciDevice(B, 0x030200, 0x10DE, node=1, path=PciPath("pci0000:17", ("0000:17:02.0",))),
    )


class TestAddedToAMachine:
    def add(self, text: str, tmp_path: Path, machine: Machine = OLD) -> Machine:
        (tmp_path / "links").write_text(text)
        return device_links.load_links(machine, tmp_path / "links")

    def test_nccl_gives_paths_where_the_machine_has_none(self, tmp_path):
        machine = self.add(XML, tmp_path)

        assert [device.path for device in machine.pci] == [
            PciPath(None, ("ffff:ff:01.0",)),
            PciPath(None),
            PciPath(None),
        ]
        assert [(device.node, device.names) for device in machine.pci] == [(0, ()), (None, ()), (1, ("eth0", "mlx5_0"))]
        link = machine.locality.link(A, B)
        assert link is not None
        assert link.count == 3
        assert machine.devices == OLD.devices

    def test_a_tree_of_the_machine_is_kept(self, tmp_path):
        tree = replace(OLD.pci[0], path=PciPath("pci0000:17", ("0000:17:00.0",)))
        machine = self.add(XML, tmp_path, replace(OLD, devices=(), pci=(tree, *OLD.pci[1:])))

        assert [device.path for device in machine.pci] == [tree.path, None, None]
        link = machine.locality.link(A, B)
        assert link is not None
        assert link.count == 3

    def test_a_flat_tree_is_replaced(self, tmp_path):
        flat = tuple(replace(device, path=PciPath("pci0000:00")) for device in OLD.pci)

        assert self.add(XML, tmp_path, replace(OLD, devices=(), pci=flat)).locality.has_tree

    def test_gpus_of_a_matrix_are_in_the_order_of_addresses_and_nics_have_names(self, tmp_path):
        machine = self.add(MATRIX, tmp_path)

        assert machine.locality.level(A, NIC) is Level.PIX
        assert machine.locality.level(B, NIC) is Level.SYS
        assert str(machine.locality.link(A, B)) == "NV4"
        assert machine.locality.note == ""
        assert machine.gaps[-1].startswith("1 of 4 devices in ")

    def test_a_listing_gives_old_recordings_their_tree(self, tmp_path):
        assert self.add(LISTING, tmp_path).locality.level(A, B) is Level.PHB

    @pytest.mark.parametrize(
        ("text", "reason"),
        [
            pytest.param(XML.replace("0000:1", "0000:7"), "has no device of this machine", id="other addresses"),
            pytest.param(MATRIX.replace("GPU1", "mlx5_1"), "has 1 GPUs, but this machine has 2", id="other GPUs"),
            pytest.param("pack:1 core:1 pu:1", "describes a whole machine", id="a machine"),
        ],
    )
    def test_files_of_another_machine_are_an_error(self, tmp_path, text, reason):
        with pytest.raises(SourceError, match=reason):
            self.add(text, tmp_path)


@pytest.mark.parametrize("text", [XML, MATRIX, LISTING], ids=["NCCL", "nvidia-smi", "a listing"])
def test_devices_alone_are_no_machine(text):
    with pytest.raises(SourceError, match=r"describes devices, but no CPUs: add it to a machine with .*--links"):
        load(text)
    assert not load(text, devices_only=True).cpus


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        pytest.param("<system>", "not valid XML", id="truncated"),
        pytest.param("<system/>", "has 0 PCI devices: expected 1 to", id="no devices"),
        pytest.param('<!DOCTYPE s [<!ENTITY a "b">]><system/>', "declares the entity 'a'", id="entities"),
        pytest.param(
            '<system><pci busid="x"/></system>', "expected an address like 0000:3b:00.0", id="a strange address"
        ),
        pytest.param("<system>" + '<pci busid="0000:00:00.0">' * 200, "nested more than 128 levels", id="nesting"),
        pytest.param("GPU0 GPU1\nGPU0 X\n", ":2: GPU0 has 1 levels: expected 2", id="a short row"),
        pytest.param("GPU0 GPU1\nGPU0 X FAR\n", ":2: .*'FAR': expected X, NV#, PSB, PIX", id="an unknown level"),
        pytest.param("GPU0 GPU0\n", "expected at most 256 different devices", id="a repeated device"),
        pytest.param(" ".join(f"GPU{n}" for n in range(300)) + "\n", "at most 256 different", id="too many devices"),
    ],
)
def test_invalid_files(text, reason):
    with pytest.raises(SourceError, match=reason):
        load(text, devices_only=True)


def test_too_many_elements_are_an_error(monkeypatch):
    monkeypatch.setattr(device_links, "MAX_XML_OBJECTS", 9)

    with pytest.raises(SourceError, match="more than 9 elements"):
        load(XML, devices_only=True)


def test_other_formats_are_not_taken():
    assert device_links.parse("<topology/>", name="x") is None
    assert device_links.parse("alignup: machine/v1\n", name="x") is None
