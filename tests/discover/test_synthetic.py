"""Machines from hwloc's one-line descriptions.

The numbers below are those ``lstopo --input`` shows for the same text.
"""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from alignup.align import bits
from alignup.align.errors import MachineError, ParseError
from alignup.align.machine import HugePages
from alignup.machines import synthetic
from tests.discover.kernel import groups

MIB = 1 << 20
GIB = 1 << 30


def nodes(machine):
    return groups(machine, lambda cpu: cpu.node)


def sockets(machine):
    return groups(machine, lambda cpu: cpu.socket)


def test_a_usual_machine():
    machine = synthetic.parse("pack:2 numa:2 core:2 pu:2")

    assert len(machine.cpus) == 16
    assert sockets(machine) == {0: "0-7", 1: "8-15"}
    assert nodes(machine) == {0: "0-3", 1: "4-7", 2: "8-11", 3: "12-15"}
    assert groups(machine, lambda cpu: cpu.core) == {core: f"{2 * core}-{2 * core + 1}" for core in range(8)}
    assert [node.memory for node in machine.nodes] == [GIB] * 4
    assert {cpu.cache for cpu in machine.cpus} == {None}
    assert machine.distances is None
    assert machine.report is None


def test_nodes_may_span_sockets():
    machine = synthetic.parse("numa:2 pack:2 core:2 pu:1")

    assert nodes(machine) == {0: "0-3", 1: "4-7"}
    assert sockets(machine) == {0: "0-1", 1: "2-3", 2: "4-5", 3: "6-7"}


@pytest.mark.parametrize(
    ("text", "same"),
    [
        pytest.param("Package:2 NUMANode:2 Core:2 PU:2", "pack:2 numa:2 core:2 pu:2", id="full names in any case"),
        pytest.param("so:2 no:2 co:2 pu:2", "pack:2 numa:2 core:2 pu:2", id="two letters"),
        pytest.param("socket:2 node:2 core:2 2", "pack:2 numa:2 core:2 pu:2", id="the last level without a type"),
        pytest.param("  pack:2\n\tnuma:2 core:2 pu:2 ", "pack:2 numa:2 core:2 pu:2", id="white space"),
        pytest.param("pack:2[numa]core:2 pu:2", "pack:2 numa:1 core:2 pu:2", id="no white space"),
        pytest.param(
            "pack:2 [numa] core:2 pu:2", "pack:2 numa:1 core:2 pu:2", id="one attached node is a level of one"
        ),
        pytest.param("pack:2 core:2 pu:2", "numa:1 pack:2 core:2 pu:2", id="one node where none is written"),
        pytest.param("[numa] pack:2 core:2 pu:2", "pack:2 core:2 pu:2", id="a node attached to the machine"),
        pytest.param("pack:2 die:2 numa:1 l2:2 core:1 pu:2", "pack:2 numa:2 core:2 pu:2", id="dies and small caches"),
        pytest.param("group:2 pack:1 group2:1 tile:1 numa:2 core:2 pu:1", "pack:2 numa:2 core:2 pu:1", id="groups"),
        pytest.param("l5:1 l4:1 pack:2 l1i:2 l1dcache:1 core:2 pu:1", "pack:2 core:4 pu:1", id="other caches"),
        pytest.param("2 3 4 5 6", "pack:2 numa:3 l2:4 core:5 pu:6", id="five numbers"),
        pytest.param("4", "pu:4", id="one number"),
        pytest.param("2 4", "numa:2 pu:4", id="two numbers"),
        pytest.param("2 3 4", "pack:2 numa:3 pu:4", id="three numbers"),
        pytest.param("2 3 4 2", "pack:2 numa:3 core:4 pu:2", id="four numbers"),
        pytest.param("2 1 3 2 1 2 2", "pack:2 numa:1 l3:3 l2:2 l1:1 core:2 pu:2", id="seven numbers"),
        pytest.param("3 2 1 2 1 2 1 2 1", "group:3 pack:2 numa:1 l3:2 l2:1 l1:2 l1i:1 core:2 pu:1", id="nine numbers"),
        pytest.param("2 [numa] 2 2", "pack:2 [numa] core:2 pu:2", id="numbers with attached nodes"),
        pytest.param("numa:2(memory=1024MiB) pu:2", "numa:2 pu:2", id="memory as it is anyway"),
        pytest.param("numa:2(memorysidecachesize=1GB) pu:2", "numa:2 pu:2", id="memory-side caches"),
        pytest.param("pack:1 l3:2(size=32MB) pu:2", "pack:1 l3u:2 pu:2", id="cache sizes"),
    ],
)
def test_different_texts_for_one_machine(text, same):
    assert synthetic.parse(text) == synthetic.parse(same)


@pytest.mark.parametrize(
    ("size", "expected"),
    [
        pytest.param("5", 5, id="bytes"),
        pytest.param("0", 0, id="no memory at all"),
        pytest.param("16kB", 16_000, id="kB"),
        pytest.param("16KiB", 16 << 10, id="KiB"),
        pytest.param("16MB", 16_000_000, id="MB"),
        pytest.param("16mib", 16 << 20, id="MiB in small letters"),
        pytest.param("64GB", 64_000_000_000, id="GB"),
        pytest.param("256GiB", 256 << 30, id="GiB"),
        pytest.param("1TB", 10**12, id="TB"),
        pytest.param("2TiB", 2 << 40, id="TiB"),
    ],
)
def test_memory(size, expected):
    machine = synthetic.parse(f"numa:2(memory={size}) pu:1")

    assert [node.memory for node in machine.nodes] == [expected, expected]


def test_of_several_nodes_on_one_object_the_first_has_the_cpus():
    machine = synthetic.parse("package:1 group:2 [numa(memory=8GiB)] [numa(memory=1GiB)] core:2 pu:1")

    assert nodes(machine) == {0: "0-1", 2: "2-3"}
    assert [node.memory for node in machine.nodes] == [8 * GIB, GIB, 8 * GIB, GIB]


def test_nodes_at_several_depths_give_the_cpus_to_the_innermost():
    """Nodes are counted where the objects they hang on end: cores 0 and 1, package 0, then the same again."""
    machine = synthetic.parse(
        "pack:2 [numa(memory=1GiB)] [numa(memory=1MiB)] core:2 [numa(indexes=8,7,5,6,4,3,1,2)] pu:2"
    )

    assert nodes(machine) == {8: "0-1", 7: "2-3", 4: "4-5", 3: "6-7"}
    assert {node.id: node.memory for node in machine.nodes} == {
        1: GIB,
        2: MIB,
        3: GIB,
        4: GIB,
        5: GIB,
        6: MIB,
        7: GIB,
        8: GIB,
    }


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        pytest.param("pack:2 core:2 pu:2(indexes=0,4,2,6,1,5,3,7)", [0, 4, 2, 6, 1, 5, 3, 7], id="the whole list"),
        pytest.param("core:4 pu:2(indexes=2*4:1*2)", [0, 4, 1, 5, 2, 6, 3, 7], id="threads n and n + 4"),
        pytest.param("core:4 pu:2(indexes=2*4)", [0, 4, 1, 5, 2, 6, 3, 7], id="the last loop left out"),
        pytest.param("core:4 pu:2(indexes=core)", [0, 4, 1, 5, 2, 6, 3, 7], id="round the cores"),
        pytest.param("numa:2 core:2 pu:2(indexes=numa:core)", [0, 4, 2, 6, 1, 5, 3, 7], id="round nodes, then cores"),
        pytest.param("numa:2 core:2 pu:2(indexes=numa)", [0, 2, 4, 6, 1, 3, 5, 7], id="round the nodes"),
        pytest.param("numa:2 core:2 pu:2(indexes=core:numa)", [0, 4, 1, 5, 2, 6, 3, 7], id="inner before outer"),
        pytest.param("core:4 pu:1(indexes=9,8,40,1000)", [9, 8, 40, 1000], id="with gaps"),
    ],
)
def test_indexes_number_the_cpus(text, expected):
    plain = synthetic.parse(text[: text.index("(")])
    numbered = {cpu.id: cpu for cpu in synthetic.parse(text).cpus}

    assert list(numbered) == sorted(expected)
    assert [(numbered[cpu].core, numbered[cpu].node) for cpu in expected] == [
        (cpu.core, cpu.node) for cpu in plain.cpus
    ]


def test_everything_else_can_be_numbered_too():
    """The description hwloc tests itself with."""
    machine = synthetic.parse(
        "pack:2(indexes=3,5) numa:2(memory=256GiB indexes=pack) l3u:1(size=20mib) l2:2 l1i:1(size=16kiB) l1dcache:2 "
        "core:1(indexes=7,6,5,4,3,2,1,0,15,14,13,12,11,10,9,8) pu:2(indexes=pack:l2)"
    )

    assert sockets(machine) == {3: bits.show(bits.of(range(0, 32, 2))), 5: bits.show(bits.of(range(1, 32, 2)))}
    assert [node.id for node in machine.nodes] == [0, 1, 2, 3]
    assert groups(machine, lambda cpu: (cpu.socket, cpu.node)).keys() == {(3, 0), (3, 2), (5, 1), (5, 3)}
    by_id = {cpu.id: cpu for cpu in machine.cpus}
    assert [by_id[cpu].core for cpu in (0, 8, 6, 14)] == [7, 7, 1, 1]


def test_attached_nodes_can_be_numbered_in_loops():
    machine = synthetic.parse("pack:2 l3:2 [numa(memory=1GiB indexes=2*2:1*2)] core:1 pu:1")

    assert nodes(machine) == {0: "0", 2: "1", 1: "2", 3: "3"}
    assert synthetic.parse("pack:2 l3:2 [numa(indexes=pack)] core:1 pu:1") == machine


FOUR_CACHES = {0: "0-1", 1: "2-3", 2: "4-5", 3: "6-7"}


@pytest.mark.parametrize(
    ("text", "caches", "reported"),
    [
        pytest.param("pack:2 numa:1 l3:2 core:2 pu:1", FOUR_CACHES, FOUR_CACHES, id="smaller than a node: reported"),
        pytest.param(
            "pack:2 numa:2 l3:1 core:2 pu:1", FOUR_CACHES, {0: "0-3", 1: "4-7"}, id="equal to a node: not reported"
        ),
        pytest.param(
            "pack:2 l3:1 numa:2 core:2 pu:1",
            {0: "0-3", 1: "4-7"},
            {0: "0-3", 1: "4-7"},
            id="larger than a node: reported",
        ),
    ],
)
def test_an_l3_is_reported_unless_it_equals_a_node(text, caches, reported):
    machine = synthetic.parse(text)

    assert groups(machine, lambda cpu: cpu.cache) == caches
    assert {cache: bits.show(cpus) for cache, cpus in machine.kubelet_view().cache_cpus.items()} == reported


def test_missing_facts_can_be_passed_in():
    pages = (HugePages(2 * MIB, 64),)

    machine = synthetic.parse(
        "pack:2 [numa] [numa(memory=0)] core:1 pu:1", memory=4 * GIB, hugepages=pages, distances=(10, 21)
    )

    assert [node.memory for node in machine.nodes] == [4 * GIB, 0, 4 * GIB, 0]
    assert [node.hugepages for node in machine.nodes] == [pages, (), pages, ()]
    assert machine.distances is not None
    assert machine.distances.matrix[0] == (10, 21, 21, 21)
    assert machine.distances.between(3, 3) == 10


def test_more_huge_pages_than_memory_are_rejected():
    with pytest.raises(MachineError, match="NUMA node 0 has 2147483648 bytes in huge pages"):
        synthetic.parse("numa:1 pu:1", hugepages=(HugePages(GIB, 2),))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        pytest.param("", "'' describes no machine: expected levels such as", id="nothing"),
        pytest.param("[numa]", "'[numa]' describes no machine", id="no levels"),
        pytest.param("pack:2 rack:2 pu:1", "'rack:2': 'rack' is not a type: expected pack, die", id="an unknown type"),
        pytest.param("p:2 pu:1", "'p:2': 'p' is not a type", id="one letter"),
        pytest.param("machine:1 pu:1", "'machine:1': 'machine' is not a type", id="the machine itself"),
        pytest.param("l6:1 pu:1", "'l6:1': 'l6' is not a type", id="a cache too far out"),
        pytest.param("l3id:1 pu:1", "'l3id:1': 'l3id' is not a type", id="a cache of two kinds"),
        pytest.param("pack: pu:1", "'pack': expected a type and a number of objects from 1", id="no number"),
        pytest.param("pack:0 pu:1", "'pack:0': expected a type and a number", id="none of a type"),
        pytest.param("pack:-1 pu:1", "'pack:-1': expected a type and a number", id="less than none"),
        pytest.param("pack:0x2 pu:1", "'pack:0x2': expected a type and a number", id="hexadecimal"),
        pytest.param("pack:010 pu:1", "'pack:010': expected a type and a number", id="octal, for hwloc"),
        pytest.param("pack:٢ pu:1", "'pack:٢': expected a type and a number", id="digits of another script"),
        pytest.param("pack:2 core:2", "'core:2' comes last: expected 'pu'", id="no CPUs"),
        pytest.param("pu:2 core:2 pu:2", "'pu:2': expected at most one level of pu", id="CPUs twice"),
        pytest.param("numa:2 node:2 pu:2", "'node:2': expected at most one level of numa", id="nodes twice"),
        pytest.param("l3:2 l3cache:2 pu:2", "'l3cache:2': expected at most one level of l3", id="a cache twice"),
        pytest.param("core:2 pack:2 pu:2", "'pack:2': expected packages above cores", id="packages in cores"),
        pytest.param("pack:2 2 pu:2", "'2': expected a type here, since other levels have one", id="some types"),
        pytest.param("numa:2 core:1 [numa] pu:2", "'numa:2': expected NUMA nodes either as a level", id="both forms"),
        pytest.param("numa:2 [numa] pu:2", "'numa:2': expected NUMA nodes either as a level", id="both in one place"),
        pytest.param("[core] pu:2", "'[core]': expected '[numa]'", id="a core attached"),
        pytest.param("[numa pu:2", "cannot read '[numa pu:2': expected a level such as", id="an open bracket"),
        pytest.param("(memory=1GB) pu:2", "cannot read '(memory=1GB) pu:2'", id="attributes of the machine"),
        pytest.param("pu:2(indexes=0,1", "cannot read '(indexes=0,1'", id="an open parenthesis"),
        pytest.param(
            "pu:2(memory=1GB)", "'pu:2(memory=1GB)': cannot use 'memory=1GB': expected 'indexes=…'", id="memory"
        ),
        pytest.param("numa:1(size=1) pu:1", "cannot use 'size=1': expected 'memory=…' and", id="a size of a node"),
        pytest.param("numa:1(color=1) pu:1", "cannot use 'color=1'", id="an unknown attribute"),
        pytest.param("numa:1(memory) pu:1", "cannot use 'memory'", id="an attribute without value"),
        pytest.param("numa:1(memory=1 memory=2) pu:1", "cannot use 'memory=2'", id="an attribute twice"),
        pytest.param("numa:1(memory=1PB) pu:1", "'1PB' is not a size: expected bytes", id="an unknown unit"),
        pytest.param("numa:1(memory=-1) pu:1", "'-1' is not a size", id="a negative size"),
        pytest.param("numa:1(memory=1.5GB) pu:1", "'1.5GB' is not a size", id="a broken size"),
        pytest.param("l3:1(size=big) pu:1", "'big' is not a size", id="a size that does not matter"),
        pytest.param("pu:3(indexes=0,1)", "'indexes=0,1': expected 3 different numbers", id="too few numbers"),
        pytest.param("pu:2(indexes=0,1,2)", "'indexes=0,1,2': expected 2 different numbers", id="too many numbers"),
        pytest.param("pu:2(indexes=1,1)", "'indexes=1,1': expected 2 different numbers", id="a number twice"),
        pytest.param("pu:1(indexes=65536)", "expected 1 different numbers below 65536", id="a number too large"),
        pytest.param("numa:1(indexes=4096) pu:1", "expected 1 different numbers below 4096", id="a node too large"),
        pytest.param(f"pu:1(indexes={'1*1:' * 128}1*1)", "129 loops, expected at most 128", id="too many loops"),
        pytest.param("pu:1 " * 210_000, "has 1050000 characters: expected at most 1048576", id="too long"),
        pytest.param("pu:6(indexes=1*4)", "'indexes=1*4': expected loops over 6 objects, but they make 4", id="short"),
        pytest.param("pu:4(indexes=1*2:1*2)", "expected loops that number each of 4 objects", id="loops that collide"),
        pytest.param("pu:4(indexes=0*4)", "'0*4' is not a type", id="steps of nothing"),
        pytest.param("pu:4(indexes=core)", "'core' cannot be a loop: expected the type of", id="no such level"),
        pytest.param("core:2 pu:2(indexes=pu)", "'pu' cannot be a loop", id="round the CPUs themselves"),
        pytest.param("group:2 pu:2(indexes=group1)", "'group1' cannot be a loop", id="round a numbered group"),
        pytest.param("numa:2(indexes=core) core:2 pu:1", "'core' cannot be a loop", id="round what is inside"),
        pytest.param(
            "core:2 pu:2(indexes=core:core)", "'indexes=core:core': expected each type once", id="round twice"
        ),
        pytest.param(
            "pack:2 [numa(indexes=0,1)] [numa(indexes=2,3)] pu:1", "'indexes=2,3': expected once", id="indexes twice"
        ),
        pytest.param(
            "pack:2 pu:65536", "'pu:65536' makes the machine too large: expected at most 65536", id="too many CPUs"
        ),
        pytest.param("pu:999999999999", "'pu:999999999999': expected a type and a number", id="far too many CPUs"),
        pytest.param("numa:1025 pu:1", "the machine has 1025 NUMA nodes: expected at most 1024", id="too many nodes"),
        pytest.param("group:1 " * 128 + "pu:1", "'pu:1' makes the machine too large", id="too many levels"),
    ],
)
def test_a_malformed_item_is_named(text, message):
    with pytest.raises(ParseError) as rejected:
        synthetic.parse(text)

    assert message in str(rejected.value)


@given(
    st.integers(1, 3),
    st.integers(1, 3),
    st.integers(1, 3),
    st.integers(1, 3),
    st.permutations(("pack", "numa", "core")),
)
def test_loops_over_all_levels_are_a_permutation(packs, nodes, cores, threads, order):
    levels = f"pack:{packs} numa:{nodes} core:{cores} pu:{threads}"

    plain = synthetic.parse(levels)
    machine = synthetic.parse(f"{levels}(indexes={':'.join(order)})")

    assert [cpu.id for cpu in machine.cpus] == [cpu.id for cpu in plain.cpus] == list(range(len(plain.cpus)))
    assert sorted((c.socket, c.node, c.core) for c in machine.cpus) == [(c.socket, c.node, c.core) for c in plain.cpus]


@given(
    st.lists(st.sampled_from(["pack:2", "numa:2", "[numa]", "core:2", "pu:2", "3", "(", "l3:1", ":", "x"]), max_size=6)
)
def test_any_text_gives_a_machine_or_a_parse_error(parts):
    try:
        machine = synthetic.parse(" ".join(parts))
    except ParseError:
        return

    assert machine.checked() is machine
    assert machine.kubelet_view().discovery_error is None
