import pytest

from alignup.align import bits
from alignup.align.errors import SourceError
from alignup.align.machine import HugePages
from alignup.machines import synthetic, system
from alignup.machines.file_reader import FileReader
from alignup.machines.topology import CPU, NODE
from tests.discover import kernel
from tests.discover.kernel import Files, with_, without

MIB = 1 << 20
PLAIN = kernel.describe(synthetic.parse("numa:4 core:2 pu:1", distances=(10, 21)))
#: Nodes 0, 2, 33 and 250, as firmware likes to number them.
SPARSE = kernel.describe(synthetic.parse("numa:4(indexes=0,2,33,250) core:2 pu:1", distances=(10, 21)))


def read(files: Files):
    return system.read_machine(FileReader(files.packed()), name="the tree")


def homes(files: Files) -> dict[int | None, str]:
    found: dict[int | None, int] = {}
    for cpu in read(files).cpus:
        found[cpu.node] = found.get(cpu.node, 0) | 1 << cpu.id
    return {node: bits.show(cpus) for node, cpus in found.items()}


USUAL = {0: "0-1", 1: "2-3", 2: "4-5", 3: "6-7"}


def lists(**texts: str) -> dict[str, str]:
    return {f"{NODE}/{node}/cpulist": text for node, text in texts.items()}


@pytest.mark.parametrize(
    ("files", "nodes"),
    [
        pytest.param(PLAIN, USUAL, id="by the node's list"),
        pytest.param(
            with_(without(PLAIN, "cpulist"), {f"{NODE}/node{n}/cpumap": f"0000,{3 << 2 * n:08x}" for n in range(4)}),
            USUAL,
            id="by its mask with a short first word",
        ),
        pytest.param(without(PLAIN, "cpulist"), USUAL, id="by its links"),
        pytest.param(
            without(PLAIN, "cpulist", *(f"node{n}/cpu{c}" for n in range(4) for c in range(8))),
            USUAL,
            id="by the links of the CPUs",
        ),
        pytest.param(with_(PLAIN, lists(node3="6-175", node1="2-3\n\0")), USUAL, id="missing CPUs and a NUL"),
        pytest.param(with_(PLAIN, {f"{CPU}/online": "0-3,5-7"}), USUAL | {2: "5"}, id="offline CPUs are in no node"),
        pytest.param(
            with_(PLAIN, lists(node1="", node3="\n")), {0: "0-1", 2: "4-5", None: "2-3,6-7"}, id="empty nodes"
        ),
        pytest.param(
            with_(PLAIN, dict.fromkeys(lists(node0="", node1="", node2="", node3=""), "0-7")),
            {0: "0-7"},
            id="all nodes list everything: the lowest counts",
        ),
        pytest.param(SPARSE, {0: "0-1", 2: "2-3", 33: "4-5", 250: "6-7"}, id="ids with gaps"),
        pytest.param(without(PLAIN, "node/node0"), {None: "0-1", 1: "2-3", 2: "4-5", 3: "6-7"}, id="node 0 is offline"),
        pytest.param(without(PLAIN, "node"), {None: "0-7"}, id="no nodes at all"),
    ],
)
def test_the_node_of_a_cpu(files, nodes):
    assert homes(files) == nodes


def test_a_link_that_points_elsewhere_is_ignored():
    files = without(PLAIN, "cpulist", "node0/cpu1")
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
    machine = read(with_(PLAIN, {f"{NODE}/node2/meminfo": text}))

    assert machine.nodes[2].memory == memory
    assert ("the memory of NUMA nodes 2 is unknown" in machine.gaps) is (memory is None)


def test_huge_pages_are_sorted_by_size():
    files = with_(
        PLAIN,
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
    machine = read(with_(PLAIN, {f"{NODE}/node0/hugepages/hugepages-1048576kB/nr_hugepages": "2"}))

    assert machine.nodes[0].memory is None
    assert any("reports 1073741824 bytes of memory, but 2147483648 bytes of huge pages" in gap for gap in machine.gaps)


def row(node: int, text: str) -> dict[str, str]:
    return {f"{NODE}/node{node}/distance": text}


@pytest.mark.parametrize(
    ("files", "ids", "first"),
    [
        pytest.param(PLAIN, (0, 1, 2, 3), (10, 21, 21, 21), id="as many columns as nodes"),
        pytest.param(SPARSE, (0, 2, 33, 250), (10, 21, 21, 21), id="columns are nodes, not ids"),
        pytest.param(with_(PLAIN, row(0, "10 12 28 17")), (0, 1, 2, 3), (10, 12, 28, 17), id="asymmetric"),
        pytest.param(without(PLAIN, "node2/distance"), None, None, id="one row is missing"),
        pytest.param(with_(PLAIN, row(2, "")), None, None, id="one row is empty"),
        pytest.param(with_(PLAIN, row(2, "21 21 ten 21")), None, None, id="one row is invalid"),
        pytest.param(with_(PLAIN, row(2, "21 21 10")), None, None, id="one row is too short"),
        pytest.param(with_(PLAIN, row(2, f"21 21 10 {1 << 31}")), None, None, id="a distance that is too large"),
        pytest.param(without(PLAIN, "node/node0"), (1, 2, 3), (10, 21, 21), id="a column for an offline node"),
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
        read(with_(PLAIN, {f"{NODE}/node{node}/": "" for node in range(1025)}))


def test_a_row_of_very_many_distances_is_invalid():
    gaps = read(with_(PLAIN, {f"{NODE}/node0/distance": " ".join(["10"] * 1025)})).gaps

    assert any(f"{NODE}/node0/distance has no valid distances" in gap for gap in gaps)
