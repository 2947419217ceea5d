"""The layout shows every CPU, node and device once, whatever contains what."""

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from alignup.align import bits
from alignup.align.machine import Cpu, Device, Distances, Machine, NumaNode, PciDevice
from alignup.machines.synthetic import parse
from alignup.picture.machine_layout import MAX_ROWS, build_distance_table, layout_machine
from tests.effort import examples
from tests.picture.gallery import decorated, superchip
from tests.strategies import distances


@given(decorated())
@settings(max_examples=examples(60))
def test_every_cpu_node_and_device_is_in_one_place(machine):
    layout = layout_machine(machine)

    boxes = [*layout.boxes, *layout.nodes_without_cpus]
    cpus = [cpu for box in boxes for core_group in box.core_groups for core in core_group.cores for cpu in core.cpus]
    nodes = [box.node.id for box in boxes if box.node]
    device_groups = [kind for box in boxes for kind in box.device_groups] + [
        kind for _, device_groups in layout.unplaced_devices for kind in device_groups
    ]
    devices = [(device.resource, device.id) for kind in device_groups for device in kind.devices]
    assert sorted(cpus) == sorted(cpu.id for cpu in machine.cpus)
    assert sorted(nodes) == sorted(node.id for node in machine.nodes)
    assert sorted(devices) == sorted((device.resource, device.id) for device in machine.devices)


@given(decorated())
@settings(max_examples=examples(60))
def test_frames_share_no_socket(machine):
    frames = layout_machine(machine).frames

    sockets = [socket for frame in frames for socket in frame.sockets]
    assert len(sockets) == len(set(sockets))
    assert set(sockets) == {cpu.socket for cpu in machine.cpus}


def cpu(id_: int, socket: int, node: int | None) -> Cpu:
    return Cpu(id_, core=id_, socket=socket, node=node)


@pytest.mark.parametrize(
    ("cpus", "frames"),
    [
        pytest.param(
            [cpu(0, 0, 0), cpu(1, 0, 1), cpu(2, 1, 2)],
            ["Socket 0: NUMA node 0, NUMA node 1", "Socket 1: NUMA node 2"],
            id="a socket around its nodes",
        ),
        pytest.param(
            [cpu(0, 0, 0), cpu(1, 1, 0), cpu(2, 2, 1)],
            ["Sockets 0-1: NUMA node 0", "Socket 2: NUMA node 1"],
            id="a node that spans sockets",
        ),
        pytest.param(
            [cpu(0, 0, 0), cpu(1, 0, 1), cpu(2, 1, 1), cpu(3, 1, 2)],
            ["Sockets 0-1: NUMA node 0, NUMA node 1, NUMA node 2"],
            id="nodes and sockets that cross",
        ),
        pytest.param(
            [cpu(0, 0, None), cpu(1, 0, 0), cpu(2, 1, None)],
            ["Socket 0: NUMA node 0, in no NUMA node", "Socket 1: in no NUMA node"],
            id="CPUs of no node",
        ),
        pytest.param([cpu(0, -1, 0)], ["Unknown socket: NUMA node 0"], id="a socket without a number"),
    ],
)
def test_frames_group_sockets_and_nodes(cpus, frames):
    machine = Machine(tuple(cpus), tuple(NumaNode(id_) for id_ in range(3)))

    layout = layout_machine(machine)

    assert [f"{frame.name}: {', '.join(box.name for box in frame.boxes)}" for frame in layout.frames] == frames


def test_nodes_without_cpus_list_the_nearest_nodes():
    layout = layout_machine(superchip())

    assert [box.node.id for box in layout.nodes_without_cpus if box.node] == list(range(2, 36))
    assert layout.nodes_without_cpus[0].nearest == "near node 0"
    assert layout.nodes_without_cpus[-1].nearest == "near node 1"


def test_devices_of_several_nodes_or_none_have_a_location():
    devices = (
        Device("r", "both", nodes=bits.of([0, 1])),
        Device("r", "gone", nodes=bits.of([77])),
        Device("r", "nowhere", nodes=None),
    )

    layout = layout_machine(superchip().with_reported(devices))

    assert {where: device_groups[0].devices[0].id for where, device_groups in layout.unplaced_devices} == {
        "near no NUMA node": "nowhere",
        "near NUMA nodes 0-1": "both",
        "near NUMA node 77, not on this machine": "gone",
    }


def test_the_model_caches_and_names_of_devices_are_shown():
    pci = (
        PciDevice("0000:17:00.0", kind=0x020000, node=0, names=("eth0", "mlx5_0")),
        PciDevice("0000:18:00.0", kind=0x010802, node=0, names=("nvme0",)),
        PciDevice("0000:19:00.0", kind=0x030200, node=0, names=("GPU 0", "NVIDIA H200")),
        PciDevice("0000:20:00.0", kind=0x030000, node=0),
    )
    machine = parse("numa:1(memory=1GiB) core:2 pu:1")
    machine = replace(machine, pci=pci, model="AMD EPYC 9654", caches=(("L1d", 32 << 10), ("L3", 32 << 20)))

    layout = layout_machine(machine)

    assert layout.facts[:2] == ("AMD EPYC 9654", "caches L1d 32 KiB, L3 32 MiB")
    expected = ("GPU 0/NVIDIA H200", "display 0000:20:00.0", "network eth0/mlx5_0", "storage nvme0")
    assert layout.boxes[0].pci == expected


def test_a_gpu_without_a_driver_is_no_display():
    machine = replace(parse("numa:1 core:2 pu:1"), pci=(PciDevice("0000:19:00.0", kind=0x030200, node=0),))

    assert layout_machine(machine).boxes[0].pci == ("GPU 0000:19:00.0",)


@st.composite
def grouped(draw: st.DrawFn) -> Distances:
    """Distances between many nodes of a few types."""
    types = draw(st.lists(st.integers(0, 3), min_size=1, max_size=24))
    far = {(a, b): draw(st.integers(11, 13)) for a in range(4) for b in range(4)}
    return Distances(
        {a: {b: 10 if a == b else far[types[a], types[b]] for b in range(len(types))} for a in range(len(types))}
    )


@given(grouped() | st.integers(1, 20).flatmap(lambda count: distances(range(count))))
def test_every_distance_can_be_read_from_the_table(known):
    table = build_distance_table(known)

    if not table.groups:
        assert len(known.ids) > MAX_ROWS
        assert table.note
        return
    home = {id_: row for row, group in enumerate(table.groups) for id_ in group}
    assert sorted(home) == list(known.ids)
    for a in known.ids:
        for b in known.ids:
            to_itself, _, inside = table.cells[home[a]][home[b]].partition("/")
            assert known.between(a, b) == int(inside if inside and a != b else to_itself)


def test_nodes_with_equal_distances_share_a_row():
    known = superchip().distances
    assert known is not None

    table = build_distance_table(known)

    assert table.names == ("0", "1", "2-18", "19-35")
    assert table.cells[2] == ("80", "120", "10/120", "120")
