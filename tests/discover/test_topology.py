"""CPUs, NUMA nodes, memory, distances and names of CPUs, from /sys and /proc."""

from dataclasses import replace
from operator import attrgetter

import pytest
from hypothesis import given

from alignup.align import bits
from alignup.align.errors import SourceError
from alignup.align.machine import HugePages, Machine
from alignup.machines import synthetic, system
from alignup.machines.file_reader import ArchiveFiles, FileReader
from alignup.machines.topology import CPU, NODE, read_caches, read_model
from tests import strategies
from tests.discover import kernel
from tests.discover.kernel import Files, groups, with_, without

PLAIN = kernel.describe(synthetic.parse("pack:2 numa:1 l3:1 core:2 pu:2", distances=(10, 21)))


def read(files: Files) -> Machine:
    return system.read_machine(FileReader(files.packed()), name="the tree")


def partition(machine: Machine, kind: str) -> list[str]:
    """The groups of CPUs whose numbers are arbitrary."""
    cpus_by_group = groups(machine, attrgetter(kind))
    return sorted(cpus for number, cpus in cpus_by_group.items() if number is not None)


def online(machine: Machine) -> str:
    return bits.show(bits.of(cpu.id for cpu in machine.cpus))


def topology(**texts: str) -> dict[str, str]:
    """The same file of several CPUs: ``core_id="0 0 1 1"``."""
    return {
        f"{CPU}/cpu{cpu}/topology/{name}": text
        for name, listed in texts.items()
        for cpu, text in enumerate(listed.split())
    }


# ---- which CPUs are on


@pytest.mark.parametrize(
    ("files", "on", "off"),
    [
        pytest.param(PLAIN, "0-7", "", id="all are online"),
        pytest.param(with_(PLAIN, {f"{CPU}/online": "2-5"}), "2-5", "0-1,6-7", id="the kernel's list decides"),
        pytest.param(
            with_(without(PLAIN, "cpu/online"), {f"{CPU}/cpu3/online": "0"}),
            "0-2,4-7",
            "3",
            id="no list: the state of each CPU",
        ),
        pytest.param(
            with_(without(PLAIN, "cpu/online"), {f"{CPU}/cpu3/online": ""}), "0-7", "", id="an empty state means online"
        ),
        pytest.param(
            without(PLAIN, "cpu/online", "cpu0/online", "cpu5/online", "cpu5/topology"),
            "0-4,6-7",
            "5",
            id="no state: online if the topology is known",
        ),
        pytest.param(without(PLAIN, "online", "topology"), "0-7", "", id="no states and no topology: all are online"),
        pytest.param(
            with_(PLAIN, {f"{CPU}/possible": "0-191", f"{CPU}/offline": "20-63"}),
            "0-7",
            "",
            id="possible CPUs do not count",
        ),
        pytest.param(
            with_(PLAIN, {f"{CPU}/cpufreq/policy0": "", f"{CPU}/cpuidle/x": ""}), "0-7", "", id="not all cpu… are CPUs"
        ),
        pytest.param(with_(PLAIN, {f"{CPU}/online": "0-7\n\0"}), "0-7", "", id="a trailing NUL is ignored"),
        pytest.param(with_(PLAIN, {f"{CPU}/online": "0-9"}), "0-7", "", id="online, but missing"),
    ],
)
def test_online_cpus(files, on, off):
    machine = read(files)

    assert online(machine) == on
    assert bits.show(machine.offline) == off


def test_no_cpu_is_an_error_with_the_expected_path():
    with pytest.raises(SourceError, match="the tree has no online CPU: expected sys/devices/system/cpu/cpu0"):
        read(Files({"proc/cpuinfo": b""}, {}))


# ---- cores

PAIRS = ["0-1", "2-3", "4-5", "6-7"]


@pytest.mark.parametrize(
    ("files", "cores"),
    [
        pytest.param(PLAIN, PAIRS, id="by the new name"),
        pytest.param(without(PLAIN, "core_cpus", "core_cpus_list"), PAIRS, id="by the old name"),
        pytest.param(without(PLAIN, "core_cpus_list", "thread_siblings_list"), PAIRS, id="masks only"),
        pytest.param(with_(PLAIN, topology(core_id="7 7 7 7 7 7 7 7")), PAIRS, id="core ids may repeat"),
        pytest.param(
            with_(PLAIN, topology(core_id="0 1 2 3 4 5 6 7")),
            PAIRS,
            id="siblings with different core ids are one core",
        ),
        pytest.param(
            with_(PLAIN, topology(core_cpus_list="2-3 2-3")),
            PAIRS,
            id="siblings without the CPU itself are wrong",
        ),
        pytest.param(
            with_(PLAIN, {f"{CPU}/online": "1-7"}), ["1", "2-3", "4-5", "6-7"], id="offline siblings do not count"
        ),
        pytest.param(
            with_(
                without(PLAIN, "core_cpus", "core_cpus_list", "thread_siblings", "thread_siblings_list"),
                topology(core_id="0 0 0 0 0 0 1 1", cluster_id="0 0 1 1 0 0 0 0"),
            ),
            PAIRS,
            id="no siblings: by ids, which repeat in each socket and cluster",
        ),
        pytest.param(
            without(PLAIN, "core_cpus", "core_cpus_list", "thread_siblings", "thread_siblings_list", "core_id"),
            ["0", "1", "2", "3", "4", "5", "6", "7"],
            id="nothing known: each CPU is a core",
        ),
    ],
)
def test_cores(files, cores):
    machine = read(files)

    assert partition(machine, "core") == cores
    assert all(cpu.core <= cpu.id for cpu in machine.cpus)


# ---- sockets

HALVES = {"0-3": 0, "4-7": 1}


@pytest.mark.parametrize(
    ("files", "sockets"),
    [
        pytest.param(PLAIN, HALVES, id="by id"),
        pytest.param(
            with_(PLAIN, topology(physical_package_id="36 36 36 36 8442 8442 8442 8442")),
            {"0-3": 36, "4-7": 8442},
            id="ids have gaps",
        ),
        pytest.param(
            with_(PLAIN, topology(package_cpus_list="0-1 0-1 2-3 2-3 4-7 4-7 4-7 4-7")),
            HALVES,
            id="siblings truncated by an old kernel are ignored",
        ),
        pytest.param(
            with_(PLAIN, topology(physical_package_id="-1 -1 -1 -1 -1 -1 -1 -1")),
            HALVES,
            id="no ids: by siblings, with new numbers",
        ),
        pytest.param(without(PLAIN, "physical_package_id"), HALVES, id="no id files: by siblings"),
        pytest.param(
            without(PLAIN, "physical_package_id", "package_cpus", "package_cpus_list"),
            {"0-7": -1},
            id="nothing known: one socket without a number",
        ),
        pytest.param(
            with_(PLAIN, topology(physical_package_id="2 2 2 2 2 2 2 2", book_id="0 0 0 0 1 1 1 1")),
            {"0-3": 2, "4-7": 0},
            id="on IBM Z ids repeat in each book",
        ),
        pytest.param(with_(PLAIN, topology(die_id="0 0 2 2 0 0 2 2")), HALVES, id="dies are not sockets"),
    ],
)
def test_sockets(files, sockets):
    cpus_by_socket = groups(read(files), lambda cpu: cpu.socket)

    assert {cpus: socket for socket, cpus in cpus_by_socket.items()} == sockets


# ---- caches


def renamed(files: Files, old: str, new: str) -> Files:
    return Files({path.replace(old, new): held for path, held in files.contents.items()}, files.links)


@pytest.mark.parametrize(
    ("files", "caches"),
    [
        pytest.param(PLAIN, ["0-3", "4-7"], id="by the shared list"),
        pytest.param(without(PLAIN, "shared_cpu_list"), ["0-3", "4-7"], id="by the mask"),
        pytest.param(without(PLAIN, "index2/id"), ["0-3", "4-7"], id="without an id"),
        pytest.param(renamed(PLAIN, "index2", "index7"), ["0-3", "4-7"], id="found by level, not by index"),
        pytest.param(
            with_(
                without(PLAIN, "shared_cpu_list"), {f"{CPU}/cpu{c}/cache/index2/shared_cpu_map": "0" for c in range(8)}
            ),
            PAIRS,
            id="without sharers: the cache of a core",
        ),
        pytest.param(without(PLAIN, "index2"), [], id="no L3"),
        pytest.param(without(PLAIN, "cache"), [], id="no caches"),
    ],
)
def test_caches(files, caches):
    assert partition(read(files), "cache") == caches


def test_caches_keep_the_kernels_numbers_if_possible():
    numbers = {f"{CPU}/cpu{cpu}/cache/index2/id": "6" if cpu < 4 else "2" for cpu in range(8)}

    assert {cpu.cache for cpu in read(with_(PLAIN, numbers)).cpus} == {6, 2}
    assert {cpu.cache for cpu in read(with_(PLAIN, dict.fromkeys(numbers, "6"))).cpus} == {6, 0}


# ---- gaps


@pytest.mark.parametrize(
    ("files", "gap"),
    [
        pytest.param(
            without(PLAIN, "cpu/online"), "the kernel's list of online CPUs is missing", id="the list of online CPUs"
        ),
        pytest.param(
            without(PLAIN, *(f"cpu{cpu}/cache" for cpu in range(4, 8))),
            "the caches of CPUs 4-7 are not described",
            id="some caches",
        ),
        pytest.param(
            without(PLAIN, "physical_package_id", "package_cpus", "package_cpus_list"),
            "the sockets of CPUs 0-7 are unknown",
            id="sockets",
        ),
        pytest.param(without(PLAIN, "node"), "the kernel reports no NUMA nodes", id="nodes"),
        pytest.param(without(PLAIN, "node1/meminfo"), "the memory of NUMA nodes 1 is unknown", id="memory of a node"),
        pytest.param(PLAIN, "the total memory of the machine is unknown", id="total memory"),
        pytest.param(
            without(PLAIN, "node1/distance"),
            "the distances from NUMA node 1 are unknown, so all distances are",
            id="distances",
        ),
        pytest.param(
            with_(PLAIN, {f"{CPU}/cpu1/topology/physical_package_id": "x\xff\0y"}),
            f'{CPU}/cpu1/topology/physical_package_id is not a number: "xÿ\\x00y"',
            id="an invalid file",
        ),
        pytest.param(
            with_(PLAIN, {f"{CPU}/online": "0-9"}),
            "CPUs 8-9 are online but not described; they are left out",
            id="CPUs without directories",
        ),
        pytest.param(PLAIN, "the PCI bus is missing", id="PCI"),
    ],
)
def test_gaps(files, gap):
    assert any(each.startswith(gap) for each in read(files).gaps), read(files).gaps


def test_a_fully_described_machine_has_no_gaps():
    said = replace(synthetic.parse("numa:2 l3:1 core:2 pu:2", distances=(10, 20)), memory=2 << 30)
    files = with_(kernel.describe(said), {"sys/bus/pci/devices/": "", "sys/kernel/mm/hugepages/": ""})
    pages = {f"sys/devices/system/node/node{node}/hugepages/hugepages-2048kB/nr_hugepages": "0" for node in (0, 1)}

    assert read(with_(files, pages)).gaps == ()


# ---- any machine


@given(strategies.machines(max_id=255))
def test_a_kernels_files_give_the_same_machine(machine):
    again = read(kernel.describe(machine))

    for kind in ("core", "socket", "cache", "node"):
        assert partition(again, kind) == partition(machine, kind)
    assert again.nodes == machine.nodes
    assert again.distances == machine.distances
    assert [(cpu.id, cpu.socket, cpu.node) for cpu in again.cpus] == [
        (cpu.id, cpu.socket, cpu.node) for cpu in machine.cpus
    ]


MIB = 1 << 20
FOUR_NODES = kernel.describe(synthetic.parse("numa:4 core:2 pu:1", distances=(10, 21)))
#: Nodes 0, 2, 33 and 250, as firmware likes to number them.
SPARSE = kernel.describe(synthetic.parse("numa:4(indexes=0,2,33,250) core:2 pu:1", distances=(10, 21)))


def homes(files: Files) -> dict[int | None, str]:
    return groups(read(files), lambda cpu: cpu.node)


USUAL = {0: "0-1", 1: "2-3", 2: "4-5", 3: "6-7"}


def lists(**texts: str) -> dict[str, str]:
    return {f"{NODE}/{node}/cpulist": text for node, text in texts.items()}


@pytest.mark.parametrize(
    ("files", "nodes"),
    [
        pytest.param(FOUR_NODES, USUAL, id="by the node's list"),
        pytest.param(
            with_(
                without(FOUR_NODES, "cpulist"), {f"{NODE}/node{n}/cpumap": f"0000,{3 << 2 * n:08x}" for n in range(4)}
            ),
            USUAL,
            id="by its mask with a short first word",
        ),
        pytest.param(without(FOUR_NODES, "cpulist"), USUAL, id="by its links"),
        pytest.param(
            without(FOUR_NODES, "cpulist", *(f"node{n}/cpu{c}" for n in range(4) for c in range(8))),
            USUAL,
            id="by the links of the CPUs",
        ),
        pytest.param(with_(FOUR_NODES, lists(node3="6-175", node1="2-3\n\0")), USUAL, id="missing CPUs and a NUL"),
        pytest.param(
            with_(FOUR_NODES, {f"{CPU}/online": "0-3,5-7"}), USUAL | {2: "5"}, id="offline CPUs are in no node"
        ),
        pytest.param(
            with_(FOUR_NODES, lists(node1="", node3="\n")), {0: "0-1", 2: "4-5", None: "2-3,6-7"}, id="empty nodes"
        ),
        pytest.param(
            with_(FOUR_NODES, dict.fromkeys(lists(node0="", node1="", node2="", node3=""), "0-7")),
            {0: "0-7"},
            id="all nodes list everything: the lowest counts",
        ),
        pytest.param(SPARSE, {0: "0-1", 2: "2-3", 33: "4-5", 250: "6-7"}, id="ids with gaps"),
        pytest.param(
            without(FOUR_NODES, "node/node0"), {None: "0-1", 1: "2-3", 2: "4-5", 3: "6-7"}, id="node 0 is offline"
        ),
        pytest.param(without(FOUR_NODES, "node"), {None: "0-7"}, id="no nodes at all"),
    ],
)
def test_the_node_of_a_cpu(files, nodes):
    assert homes(files) == nodes


def test_a_link_that_points_elsewhere_is_ignored():
    files = without(FOUR_NODES, "cpulist", "node0/cpu1")
    bogus = Files(files.contents, files.links | {f"{NODE}/node0/cpu0": ".", f"{NODE}/node1/cpu99": "../../cpu/cpu99"})

    assert homes(bogus) == USUAL


@pytest.mark.parametrize(
    ("text", "memory"),
    [
        pytest.param("Node 2 MemTotal:       131072 kB\nNode 2 MemFree: 1 kB\n", 128 * MIB, id="with its prefix"),
        pytest.param("Node 2 MemTotal:       0 kB\n", 0, id="no memory"),
        pytest.param("", None, id="empty"),
        pytest.param("Node 2 MemTo", None, id="truncated"),
        pytest.param(f"Node 2 MemTotal: {'9' * 40} kB", None, id="too much"),
    ],
)
def test_memory(text, memory):
    machine = read(with_(FOUR_NODES, {f"{NODE}/node2/meminfo": text}))

    assert machine.nodes[2].memory == memory
    assert ("the memory of NUMA nodes 2 is unknown" in machine.gaps) is (memory is None)


def test_huge_pages_are_sorted_by_size():
    files = with_(
        FOUR_NODES,
        {
            f"{NODE}/node1/hugepages/hugepages-1048576kB/nr_hugepages": "0",
            f"{NODE}/node1/hugepages/hugepages-2048kB/nr_hugepages": "128\n",
            f"{NODE}/node1/hugepages/hugepages-64kB/nr_hugepages": "1",
            "sys/kernel/mm/hugepages/hugepages-2048kB/nr_hugepages": "130",
        },
    )

    machine = read(files)

    assert machine.nodes[1].hugepages == (HugePages(1 << 16, 1), HugePages(2 * MIB, 128), HugePages(1 << 30, 0))
    assert machine.nodes[0].hugepages == ()
    assert machine.hugepages == (HugePages(2 * MIB, 130),)
    assert "NUMA nodes 0,2-3 do not report huge pages" in machine.gaps


def test_memory_below_the_huge_pages_is_unknown():
    machine = read(with_(FOUR_NODES, {f"{NODE}/node0/hugepages/hugepages-1048576kB/nr_hugepages": "2"}))

    assert machine.nodes[0].memory is None
    assert any("reports 1073741824 bytes of memory, but 2147483648 bytes of huge pages" in gap for gap in machine.gaps)


def row(node: int, text: str) -> dict[str, str]:
    return {f"{NODE}/node{node}/distance": text}


@pytest.mark.parametrize(
    ("files", "ids", "first"),
    [
        pytest.param(FOUR_NODES, (0, 1, 2, 3), (10, 21, 21, 21), id="as many columns as nodes"),
        pytest.param(SPARSE, (0, 2, 33, 250), (10, 21, 21, 21), id="columns are nodes, not ids"),
        pytest.param(with_(FOUR_NODES, row(0, "10 12 28 17")), (0, 1, 2, 3), (10, 12, 28, 17), id="asymmetric"),
        pytest.param(without(FOUR_NODES, "node2/distance"), None, None, id="one row is missing"),
        pytest.param(with_(FOUR_NODES, row(2, "")), None, None, id="one row is empty"),
        pytest.param(with_(FOUR_NODES, row(2, "21 21 ten 21")), None, None, id="one row is invalid"),
        pytest.param(with_(FOUR_NODES, row(2, "21 21 10")), None, None, id="one row is too short"),
        pytest.param(with_(FOUR_NODES, row(2, f"21 21 10 {1 << 31}")), None, None, id="a distance that is too large"),
        pytest.param(without(FOUR_NODES, "node/node0"), (1, 2, 3), (10, 21, 21), id="a column for an offline node"),
        pytest.param(
            with_(without(SPARSE, "node/node33"), {f"{NODE}/online": "0,2,250", f"{NODE}/possible": "0,2,33,250"}),
            (0, 2, 250),
            (10, 21, 21),
            id="columns are the possible nodes",
        ),
    ],
)
def test_distances(files, ids, first):
    distances = read(files).distances

    assert (distances.ids if distances else None) == ids
    assert (distances.matrix[0] if distances else None) == first


def test_too_many_nodes_are_an_error():
    with pytest.raises(SourceError, match="has 1025 NUMA nodes: expected at most 1024"):
        read(with_(FOUR_NODES, {f"{NODE}/node{node}/": "" for node in range(1025)}))


def test_a_row_of_very_many_distances_is_invalid():
    gaps = read(with_(FOUR_NODES, {f"{NODE}/node0/distance": " ".join(["10"] * 1025)})).gaps

    assert any(f"{NODE}/node0/distance has no valid distances" in gap for gap in gaps)


def reader(**texts: str) -> FileReader:
    return FileReader(ArchiveFiles.of({name: text.encode() for name, text in texts.items()}, {}))


@pytest.mark.parametrize(
    ("text", "model"),
    [
        ("processor\t: 0\nmodel name\t: AMD  EPYC 9654\n", "AMD EPYC 9654"),
        ("processor\t: 0\nBogoMIPS\t: 50\n", ""),
    ],
)
def test_the_model_of_the_cpus(text, model):
    assert read_model(reader(**{"proc/cpuinfo": text})) == model


def test_caches_by_level_with_their_sizes():
    described = {
        0: ("1", "Data", "48K"),
        1: ("1", "Instruction", "32K"),
        2: ("2", "Unified", "2048K"),
        3: ("3", "Unified", "x"),
    }
    texts = {
        f"{CPU}/cpu3/cache/index{number}/{name}": text
        for number, values in described.items()
        for name, text in zip(("level", "type", "size"), values, strict=True)
    }

    assert read_caches(reader(**texts), 0b1000) == (("L1d", 48 << 10), ("L1i", 32 << 10), ("L2", 2 << 20))
    assert read_caches(reader(), 0) == ()
