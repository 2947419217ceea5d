"""cAdvisor's view of a machine: from the kernel's files, and from its MachineInfo."""

import json
from pathlib import Path

import pytest
from hypothesis import given

from alignup.align import bits
from alignup.align.errors import SourceError
from alignup.align.machine import Distances, HugePages, Machine, NumaNode
from alignup.machines import cadvisor, load, synthetic, system
from alignup.machines.file_reader import FileReader
from alignup.machines.topology import CPU, NODE
from tests import strategies
from tests.discover import kernel
from tests.discover.kernel import Files, with_, without

#: One L3 for each node, two nodes in each socket.
PLAIN = kernel.describe(synthetic.parse("pack:2 numa:2 l3:1 core:2 pu:2", distances=(10, 21)))
#: Two L3 caches in each node.
SPLIT = kernel.describe(synthetic.parse("pack:2 numa:1 l3:2 core:2 pu:2", distances=(10, 21)))
#: One L3 over both nodes of a socket.
SHARED = kernel.describe(synthetic.parse("pack:2 l3:1 numa:2 core:2 pu:2", distances=(10, 21)))


def view(files: Files):
    return system.read_machine(FileReader(files.packed()), name="the tree").kubelet_view()


def message(files: Files):
    report = system.read_machine(FileReader(files.packed()), name="the tree").report
    assert report is not None
    return report


def caches(files: Files) -> dict[int, str]:
    return {cache: bits.show(cpus) for cache, cpus in view(files).cache_cpus.items()}


@pytest.mark.parametrize(
    ("files", "uncore"),
    [
        pytest.param(PLAIN, {0: "0-7", 1: "8-15"}, id="a cache of one node counts as the socket's"),
        pytest.param(SPLIT, {0: "0-3", 1: "4-7", 2: "8-11", 3: "12-15"}, id="caches inside a node keep their ids"),
        pytest.param(SHARED, {0: "0-7", 1: "8-15"}, id="a cache over nodes keeps its id"),
        pytest.param(
            with_(SHARED, {f"{CPU}/cpu{cpu}/cache/index2/id": str(9 - cpu // 8) for cpu in range(16)}),
            {8: "8-15", 9: "0-7"},
            id="its id is the kernel's",
        ),
        pytest.param(without(SPLIT, "cache/index0/id"), {0: "0-7", 1: "8-15"}, id="one cache without an id: no caches"),
        pytest.param(without(SPLIT, "cache"), {0: "0-7", 1: "8-15"}, id="no caches"),
        pytest.param(without(SPLIT, "shared_cpu_map"), {0: "0-7", 1: "8-15"}, id="lists alone are ignored"),
    ],
)
def test_uncore_caches(files, uncore):
    assert caches(files) == uncore


def test_an_unreadable_cache_ends_the_search_in_its_node():
    """Earlier results stay: the first core has its cache, the others that of their socket."""
    files = without(with_(SPLIT, {f"{CPU}/cpu{cpu}/cache/index2/id": "5" for cpu in range(4)}), "cpu2/cache/index2/id")

    assert caches(files) == {0: "2-7", 2: "8-11", 3: "12-15", 5: "0-1"}


@pytest.mark.parametrize(
    ("files", "cores"),
    [
        pytest.param(PLAIN, 8, id="all described"),
        pytest.param(
            with_(PLAIN, {f"{CPU}/cpu{cpu}/topology/core_id": "0" for cpu in range(16)}),
            4,
            id="by core id within a node",
        ),
        pytest.param(
            with_(PLAIN, {f"{CPU}/cpu{cpu}/topology/core_cpus_list": str(cpu) for cpu in range(16)}),
            8,
            id="siblings are ignored",
        ),
        pytest.param(
            without(PLAIN, "cpu0/topology/core_id"), 8, id="a CPU without a core id is skipped, its core stays"
        ),
    ],
)
def test_cores_are_equal_ids_in_one_node(files, cores):
    assert view(files).num_cores == cores


def test_cpus_without_a_link_are_missing():
    files = without(PLAIN, "node1/cpu6", "node1/cpu7")

    assert bits.show(view(files).all_cpus) == "0-5,8-15"
    assert view(files).num_cpus == 14


def test_lost_links_are_replaced_by_the_list():
    links = [f"node{node}/cpu{cpu}" for node in range(4) for cpu in range(16)]

    assert view(without(PLAIN, *links)) == view(PLAIN)


def test_nodes_are_ordered_by_name():
    files = kernel.describe(synthetic.parse("numa:12 core:1 pu:1", distances=(10, 20)))

    assert [node.id for node in message(files).nodes or ()] == [0, 1, 10, 11, 2, 3, 4, 5, 6, 7, 8, 9]
    assert [node.id for node in view(files).nodes] == list(range(12))


def test_unknown_values_are_zero():
    files = without(PLAIN, "node1/meminfo", "node1/distance")

    assert view(files).nodes[1].memory == 0
    assert view(files).distances is None


def test_without_nodes_every_socket_is_one_and_offline_cpus_count():
    files = with_(without(PLAIN, "node"), {f"{CPU}/cpu{cpu}/topology/physical_package_id": "-1" for cpu in range(8)})
    offline = with_(files, {f"{CPU}/online": "1-15", f"{CPU}/cpu16/online": "0"})

    expected = view(offline)

    assert expected.num_cpus == 17
    assert [node.id for node in expected.nodes] == [-1, 1]
    assert {cpu.id: (cpu.socket, cpu.node) for cpu in expected.cpus if cpu.id in {1, 15}} == {1: (-1, -1), 15: (1, 1)}
    assert expected.all_nodes == 0b10


def test_sockets_are_counted_in_cpuinfo_first():
    more = with_(PLAIN, {"proc/cpuinfo": "physical id\t: 0\nphysical id\t: 1\nphysical id\t: 7\n"})

    assert view(more).num_sockets == 3
    assert view(without(PLAIN, "proc")).num_sockets == 2
    assert view(without(PLAIN, "proc", "cpu3/topology/physical_package_id")).num_sockets == 2


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        pytest.param("0-3,8", "0-3,8", id="a list"),
        pytest.param("0-3,x,8", "0-3", id="up to the first error"),
        pytest.param("0-3\n\0", "", id="a NUL is not a blank"),
        pytest.param("", "", id="an empty list"),
        pytest.param("3-1", "", id="a descending range"),
    ],
)
def test_online_cpus(text, expected):
    files = with_(PLAIN, {f"{CPU}/online": text})
    tree = FileReader(files.packed())

    report = cadvisor.read_machine_info(tree).report()

    assert bits.show(bits.of(cpu.id for cpu in report.cpus)) == expected


@pytest.mark.parametrize(
    ("texts", "reason"),
    [
        pytest.param({f"{NODE}/node1/meminfo": "MemTotal: many kB"}, "has no valid MemTotal", id="memory"),
        pytest.param({f"{NODE}/node1/distance": "10  20"}, "has no valid distances", id="two blanks between distances"),
        pytest.param({f"{NODE}/node1/distance": ""}, "has no valid distances", id="no distances"),
        pytest.param({f"{CPU}/cpu1/topology/core_id": "x"}, 'parsing "x": invalid syntax', id="a core id"),
        pytest.param({f"{CPU}/cpu1/topology/physical_package_id": ""}, 'parsing ""', id="a socket"),
        pytest.param(
            {f"{NODE}/node0/hugepages/hugepages-2048kB/nr_hugepages": ""},
            "has no valid huge page count",
            id="huge pages",
        ),
        pytest.param(
            {f"{NODE}/node0/hugepages/other/nr_hugepages": "1"}, "has no valid huge page count", id="other pages"
        ),
    ],
)
def test_cadvisor_gives_up_and_the_kubelet_gets_no_cpus(texts, reason):
    machine = system.read_machine(FileReader(with_(PLAIN, texts).packed()), name="the tree")

    assert machine.cpus
    assert any("cAdvisor gives up" in gap and reason in gap for gap in machine.gaps)
    assert machine.kubelet_view().discovery_error == "could not detect number of cpus"


def test_huge_pages_are_ordered_by_name():
    sizes = {f"{NODE}/node0/hugepages/hugepages-{size}kB/nr_hugepages": "1" for size in (64, 2048, 32768)}
    nodes = message(with_(PLAIN, sizes)).nodes

    assert nodes is not None
    assert nodes[0].hugepages == tuple(HugePages(size * 1024, 1) for size in (2048, 32768, 64))


@pytest.mark.parametrize(
    "files", [PLAIN, SPLIT, SHARED], ids=["a cache a node", "caches in nodes", "a cache over nodes"]
)
def test_the_inferred_report_matches_a_kernels_files(files):
    machine = system.read_machine(FileReader(files.packed()), name="the tree")

    assert cadvisor.infer_report(machine) == machine.report


@given(strategies.machines())
def test_a_fully_described_machine_matches_a_synthetic_one(machine):
    report = system.read_machine(FileReader(kernel.describe(machine).packed()), name="the tree")
    expected, plain = report.kubelet_view(), machine.kubelet_view()

    assert expected.node_cpus == plain.node_cpus
    assert expected.socket_cpus == plain.socket_cpus
    assert expected.core_cpus == plain.core_cpus
    assert [(node.id, node.memory, set(node.hugepages)) for node in expected.nodes] == [
        (node.id, node.memory, set(node.hugepages)) for node in plain.nodes
    ]
    assert expected.distances == plain.distances
    assert cadvisor.infer_report(report) == report.report


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
        pytest.param(
            {"topology": [{"node_id": 0, "cores": [core(1 << 63, [0])]}]},
            r"topology\[0\]\.cores\[0\]\.core_id: is not an integer of 64 bits",
            id="a core id of more than 64 bits",
        ),
        pytest.param(
            {"topology": [{"node_id": 0, "cores": [core(0, [0])], "distances": [1 << 63]}]},
            r"distances\[0\]: is not an integer of 64 bits",
            id="a distance of more than 64 bits",
        ),
    ],
)
def test_invalid_machine_info_is_an_error(changes, reason):
    with pytest.raises(SourceError, match=reason):
        read(**changes)
