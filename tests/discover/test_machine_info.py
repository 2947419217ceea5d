import json
from pathlib import Path

import pytest

from alignup.align.errors import SourceError
from alignup.align.machine import Distances, HugePages, Machine, NumaNode
from alignup.machines import load

MIB = 1 << 20


def core(number: int, threads: list[int], *, socket: int = 0, uncore: int | None = None) -> dict[str, object]:
    caches = None if uncore is None else [{"id": uncore, "size": 1, "type": "Unified", "level": 3}]
    return {"core_id": number, "thread_ids": threads, "caches": [], "uncore_caches": caches, "socket_id": socket}


INFO = {
    "timestamp": "2026-01-01T00:00:00Z",
    "num_cores": 6,
    "num_physical_cores": 2,
    "num_sockets": 2,
    "memory_capacity": 300 * MIB,
    "hugepages": [{"page_size": 2048, "num_pages": 4}],
    "machine_id": "0123",
    "topology": [
        {
            "node_id": 0,
            "memory": 100 * MIB,
            "hugepages": [{"page_size": 2048, "num_pages": 4}],
            "cores": [core(0, [0, 4]), core(1, [1, 5])],
            "caches": [{"id": 3, "size": 1, "type": "Unified", "level": 3}],
            "distances": [10, 21],
        },
        {
            "node_id": 1,
            "memory": 0,
            "hugepages": None,
            "cores": [core(0, [2], socket=1, uncore=6), core(7, [3], socket=1, uncore=7)],
            "caches": None,
            "distances": [21, 10],
        },
    ],
}


def read(**changes: object) -> Machine:
    return load(json.dumps(INFO | changes))


def test_hardware_and_report():
    machine = read()
    view = machine.kubelet_view()

    assert [(cpu.id, cpu.core, cpu.socket, cpu.node, cpu.cache) for cpu in machine.cpus] == [
        (0, 0, 0, 0, 3),
        (1, 1, 0, 0, 3),
        (2, 2, 1, 1, 6),
        (3, 3, 1, 1, 7),
        (4, 0, 0, 0, 3),
        (5, 1, 0, 0, 3),
    ]
    assert {cpu.id: cpu.cache for cpu in view.cpus} == {0: 0, 1: 0, 2: 6, 3: 7, 4: 0, 5: 0}
    assert (view.num_cpus, view.num_cores, view.num_sockets) == (6, 4, 2)
    assert machine.nodes == (NumaNode(0, 100 * MIB, (HugePages(2 * MIB, 4),)), NumaNode(1, 0))
    assert machine.distances == Distances({0: {0: 10, 1: 21}, 1: {0: 21, 1: 10}})
    assert (machine.memory, machine.hugepages) == (300 * MIB, (HugePages(2 * MIB, 4),))
    assert any("no memory on NUMA nodes 1" in gap for gap in machine.gaps)


def test_a_socket_without_a_number_is_not_a_node():
    node = {"node_id": -1, "cores": [core(0, [0, 1], socket=-1)]}

    machine = read(topology=[node], num_cores=2)

    assert machine.nodes == ()
    assert [(cpu.node, cpu.socket) for cpu in machine.cpus] == [(None, -1), (None, -1)]
    assert [cpu.node for cpu in machine.kubelet_view().cpus] == [-1, -1]


def test_it_is_read_from_a_file(tmp_path: Path):
    path = tmp_path / "spec.json"
    path.write_text(json.dumps(INFO))

    assert load(path) == load(str(path)) == read()


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        pytest.param({"num_cores": "six"}, "num_cores: expected `int`, got `str`", id="a wrong type"),
        pytest.param({"topology": [{"node_id": 0, "cores": [core(0, [])]}]}, "a core without threads", id="no threads"),
    ],
)
def test_invalid_machine_info_is_an_error(changes, reason):
    with pytest.raises(SourceError, match=reason):
        read(**changes)
