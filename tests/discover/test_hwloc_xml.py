from textwrap import dedent

import pytest

from alignup.align import bits
from alignup.align.errors import SourceError
from alignup.align.locality import DeviceLink, Level, LinkKind, PciPath
from alignup.align.machine import Distances, HugePages, NumaNode, PciDevice
from alignup.machines import hwloc_xml, load

GIB = 1 << 30

HEAD = '<?xml version="1.0" encoding="UTF-8"?>\n<!DOCTYPE topology SYSTEM "hwloc2.dtd">\n'

#: Two sockets of two cores; a node of memory only beside the node of the first socket; a card on the second.
SECOND = (
    HEAD
    + """<topology version="2.0"><object type="Machine" os_index="0" cpuset="0x000000ff">
  <object type="Package" os_index="0" cpuset="0x00000033">
    <object type="NUMANode" os_index="0" cpuset="0x00000033" local_memory="2147483648">
      <page_type size="4096" count="500000"/><page_type size="2097152" count="7"/>
    </object>
    <object type="NUMANode" os_index="2" cpuset="0x00000033" local_memory="1073741824"/>
    <object type="L3Cache" os_index="4" cpuset="0x00000033">
      <object type="Core" os_index="9" cpuset="0x00000011"><object type="PU" os_index="0" cpuset="0x1"/>
        <object type="PU" os_index="4" cpuset="0x10"/></object>
      <object type="Core" os_index="9" cpuset="0x00000022"><object type="PU" os_index="1" cpuset="0x2"/>
        <object type="PU" os_index="5" cpuset="0x20"/></object>
    </object>
  </object>
  <object type="Package" os_index="8" cpuset="0x000000cc">
    <object type="NUMANode" os_index="1" cpuset="0x000000cc"/>
    <object type="L3Cache" cpuset="0x000000cc">
      <object type="Core" os_index="9" cpuset="0x00000044"><object type="PU" os_index="2" cpuset="0x4"/>
        <object type="PU" os_index="6" cpuset="0x40"/></object>
      <object type="Core" os_index="9" cpuset="0x00000088"><object type="PU" os_index="3" cpuset="0x8"/>
        <object type="PU" os_index="7" cpuset="0x80"/></object>
    </object>
    <object type="Bridge" bridge_type="0-1">
      <object type="PCIDev" pci_busid="0000:9d:00.0" pci_type="0302 [10de:2335] [0000:0000] a1"/>
    </object>
  </object>
  <object type="PCIDev" pci_busid="0000:00:00.0" pci_type="0600 [0000:0000] [0000:0000] ff"/>
</object>
<distances2 type="NUMANode" nbobjs="3" kind="5" name="NUMALatency" indexing="os">
  <indexes length="6">0 2 1 </indexes>
  <u64values length="12">10 17 21 17 </u64values><u64values length="12">10 28 21 28 10 </u64values>
</distances2></topology>"""
)

FIRST = dedent("""
    <topology><object type="Machine" cpuset="0x0000000f">
      <distances nbobjs="2" relative_depth="1" latency_base="1.000000"><latency value="10.000000"/>
        <latency value="21.000000"/><latency value="20.000000"/><latency value="10.000000"/></distances>
      <object type="NUMANode" os_index="0" cpuset="0x00000003" local_memory="1024">
        <object type="Socket" os_index="0" cpuset="0x3"><object type="Cache" depth="3" cpuset="0x3">
          <object type="PU" os_index="0" cpuset="0x1"/><object type="PU" os_index="1" cpuset="0x2"/>
      </object></object></object>
      <object type="NUMANode" os_index="5" cpuset="0x0000000c" local_memory="1024">
        <object type="Socket" os_index="4294967295" cpuset="0xc"><object type="Cache" depth="2" cpuset="0xc">
          <object type="PU" os_index="2" cpuset="0x4"/><object type="PU" os_index="3" cpuset="0x8"/>
      </object></object></object>
    </object></topology>
""")


def test_the_current_format():
    machine = hwloc_xml.parse(SECOND)

    assert [(cpu.id, cpu.core, cpu.socket, cpu.node, cpu.cache) for cpu in machine.cpus] == [
        (0, 0, 0, 0, 4),
        (1, 1, 0, 0, 4),
        (2, 2, 8, 1, 0),
        (3, 3, 8, 1, 0),
        (4, 0, 0, 0, 4),
        (5, 1, 0, 0, 4),
        (6, 2, 8, 1, 0),
        (7, 3, 8, 1, 0),
    ]
    assert machine.nodes == (NumaNode(0, 2 * GIB, (HugePages(1 << 21, 7),)), NumaNode(1), NumaNode(2, GIB))
    assert machine.distances == Distances(
        {0: {0: 10, 1: 21, 2: 17}, 1: {0: 21, 1: 10, 2: 28}, 2: {0: 17, 1: 28, 2: 10}}
    )
    assert machine.pci == (
        PciDevice("0000:9d:00.0", 0x030200, 0x10DE, 0x2335, node=1, cpus=0xCC),
        PciDevice("0000:00:00.0", 0x060000),
    )
    assert "hwloc reports no memory on NUMA nodes 1, which may mean unknown" in machine.gaps


def test_the_kubelet_treats_a_cache_of_one_node_as_the_sockets():
    view = hwloc_xml.parse(SECOND).kubelet_view()

    assert {cache: bits.show(cpus) for cache, cpus in view.cache_cpus.items()} == {0: "0-1,4-5", 8: "2-3,6-7"}


def test_the_old_format():
    machine = load(FIRST)

    assert [(cpu.id, cpu.core, cpu.socket, cpu.node, cpu.cache) for cpu in machine.cpus] == [
        (0, 0, 0, 0, 0),
        (1, 1, 0, 0, 0),
        (2, 2, 1, 5, None),
        (3, 3, 1, 5, None),
    ]
    assert machine.distances == Distances({0: {0: 10, 5: 21}, 5: {0: 20, 5: 10}})


@pytest.mark.parametrize(
    ("text", "cpus"),
    [
        ("0x0000000f", "0-3"),
        ("0x000000ff,0xff000000,,0x0", "88-103"),
        ("0x0", ""),
        ("", ""),
    ],
)
def test_hwloc_bitmaps(text, cpus):
    element = hwloc_xml._Object("Core", {"cpuset": text}, None)  # noqa: SLF001 - its cases are too many for whole files

    assert bits.show(element.cpus) == cpus


BOMB = '<!DOCTYPE topology [<!ENTITY a "ha"><!ENTITY b "&a;&a;&a;&a;">]><topology><object type="&b;"/></topology>'


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        pytest.param(BOMB, "it declares the entity 'a'", id="entities"),
        pytest.param("<topology><object>", "not valid XML", id="truncated"),
        pytest.param("<html></html>", "expected <topology>, found <html>", id="other XML"),
        pytest.param("<topology></topology>", "has no CPUs", id="an empty topology"),
        pytest.param("<topology>" + "<object>" * 500, "nested more than 128 levels deep", id="nesting"),
        pytest.param(
            '<topology><object type="Core" cpuset="0xf...f,0x1"/><object type="PU" os_index="0"/></topology>',
            "is not a finite set of CPUs",
            id="an infinite set",
        ),
    ],
)
def test_invalid_xml(text, reason):
    with pytest.raises(SourceError, match=reason):
        load(text)


def test_sockets_without_cpus_are_counted():
    machine = hwloc_xml.parse(
        SECOND.replace("</object>\n<distances2", '<object type="Package"/></object>\n<distances2')
    )

    assert {cpu.socket for cpu in machine.cpus} == {0, 8}
    assert "of 3 sockets, 1 without CPUs left out" in machine.gaps


def test_of_a_pci_device_that_is_listed_twice_the_first_is_used():
    machine = hwloc_xml.parse(SECOND.replace("0000:00:00.0", "0000:9d:00.0"))

    assert [(device.address, device.vendor) for device in machine.pci] == [("0000:9d:00.0", 0x10DE)]
    assert "PCI device 0000:9d:00.0 is listed 2 times; the first is used" in machine.gaps


@pytest.mark.parametrize(
    ("limit", "parts"),
    [("MAX_XML_OBJECTS", "objects"), ("MAX_XML_VALUES", "page sizes and distances")],
)
def test_too_many_parts_are_an_error(limit, parts, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(hwloc_xml, limit, 9)

    with pytest.raises(SourceError, match=f"more than 9 {parts}"):
        hwloc_xml.parse(SECOND)


#: A switch with two GPUs and a third GPU on a root port of its own, and what links them.
IO = """
  <object type="Bridge" gp_index="1" bridge_type="0-1" bridge_pci="0000:[3a-3f]">
    <object type="Bridge" gp_index="2" bridge_type="1-1" pci_busid="0000:3a:00.0" bridge_pci="0000:[3b-3e]">
      <object type="Bridge" gp_index="3" bridge_type="1-1" pci_busid="0000:3b:00.0">
        <object type="Bridge" gp_index="4" bridge_type="1-1" pci_busid="0000:3c:00.0">
          <object type="PCIDev" gp_index="5" pci_busid="0000:3d:00.0" pci_type="0302 [10de:20b0] [0:0] a1">
            <object type="OSDev" gp_index="6" name="nvml0"><info name="NVIDIAUUID" value="GPU-a"/></object>
            <object type="OSDev" gp_index="7" name="cuda0" osdev_type="5"/>
          </object>
        </object>
        <object type="Bridge" gp_index="8" bridge_type="1-1" pci_busid="0000:3c:01.0">
          <object type="PCIDev" gp_index="9" pci_busid="0000:3e:00.0" pci_type="0302 [10de:20b0] [0:0] a1">
            <object type="OSDev" gp_index="10" name="nvml1" osdev_type="1"/>
          </object>
        </object>
      </object>
    </object>
    <object type="PCIDev" gp_index="11" pci_busid="0000:3f:00.0" pci_type="0000 [0000:0000] [0:0] 0"/>
  </object>
  <object type="Bridge" gp_index="12" bridge_type="0-1">
    <object type="PCIDev" gp_index="13" pci_busid="0000:50:00.0" pci_type="0302 [10de:20b0] [0:0] a1">
      <object type="OSDev" gp_index="14" name="nvml2" osdev_type="1"/>
    </object>
  </object>
"""
GPU_A, GPU_B, GPU_C = "0000:3d:00.0", "0000:3e:00.0", "0000:50:00.0"


def with_links(*, name: str = "NVLinkBandwidth", indexes: str, values: str, kind: str = "") -> str:
    tag, type_ = ("distances2", f' type="{kind}"') if kind else ("distances2hetero", "")
    matrix = (
        f'<{tag}{type_} nbobjs="9" name="{name}"><indexes>{indexes}</indexes><u64values>{values}</u64values></{tag}>'
    )
    before, marker, after = SECOND.partition("</object>\n<distances2")
    return before + IO + marker + after.replace("</topology>", f"{matrix}</topology>")


def test_bridges_around_a_device_are_its_path():
    machine = hwloc_xml.parse(with_links(indexes="", values=""))

    assert machine.distances is not None
    paths = {device.address: device.path for device in machine.pci}
    assert paths[GPU_A] == PciPath("pci0000:3a", ("0000:3a:00.0", "0000:3b:00.0", "0000:3c:00.0"))
    assert paths[GPU_C] is None  # the host bridge has no bus
    assert machine.locality.level(GPU_A, GPU_B) is Level.PIX
    assert machine.locality.find("GPU-a") == GPU_A
    assert machine.locality.pci[GPU_A].names == ("nvml0", "cuda0")


@pytest.mark.parametrize(
    ("matrix", "links"),
    [
        pytest.param(
            with_links(indexes="OSDev:6 OSDev:10 OSDev:14", values="9 50000 0 50000 9 100000 0 100000 9"),
            {DeviceLink(LinkKind.NVLINK, (GPU_A, GPU_B), 2), DeviceLink(LinkKind.NVLINK, (GPU_B, GPU_C), 4)},
            id="links of 25 GB/s",
        ),
        pytest.param(
            with_links(kind="OSDev", indexes="6 10", values="1000000 40000 40000 1000000"),
            {DeviceLink(LinkKind.NVLINK, (GPU_A, GPU_B), 2)},
            id="links of 20 GB/s, between objects of one type",
        ),
        pytest.param(
            with_links(indexes="OSDev:6 OSDev:10 PCIDev:11", values="0 0 150000 0 0 150000 150000 150000 0"),
            {DeviceLink(LinkKind.NVSWITCH, (GPU_A, GPU_B), 6)},
            id="a switch, which is a PCI device",
        ),
        pytest.param(
            with_links(indexes="OSDev:6 Package:99 OSDev:77", values="0 25000 25000 25000 0 0 25000 0 0"),
            set(),
            id="objects that do not exist",
        ),
        pytest.param(
            with_links(
                name="XGMIBandwidth", indexes="OSDev:6 OSDev:10 OSDev:14", values="0 50000 100000 50000 0 0 100000 0 0"
            ),
            {DeviceLink(LinkKind.XGMI, (GPU_A, GPU_B), 1), DeviceLink(LinkKind.XGMI, (GPU_A, GPU_C), 2)},
            id="XGMI",
        ),
        pytest.param(with_links(indexes="OSDev:6 OSDev:10", values="0 1"), set(), id="values missing"),
        pytest.param(with_links(indexes="OSDev:6 OSDev:10", values="0 x x 0"), set(), id="not numbers"),
    ],
)
def test_links_follow_from_bandwidth(matrix, links):
    machine = hwloc_xml.parse(matrix)

    assert set(machine.links) == links
    assert machine.distances is not None
