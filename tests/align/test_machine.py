"""A machine: what may be said of one, and what the kubelet makes of it."""

from collections import Counter
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from alignup.align import bits
from alignup.align.errors import MachineError
from alignup.align.machine import (
    MAX_CPU_ID,
    MAX_DISTANCE,
    MAX_NODE_ID,
    MAX_NODES,
    MAX_PCI_DEVICES,
    CadvisorNode,
    CadvisorReport,
    Cpu,
    Device,
    Distances,
    HugePages,
    KubeletView,
    Machine,
    NumaNode,
    PciDevice,
    hugepages_resource,
    split_repeated_pci,
)
from tests import strategies, vector_types

MIB = 1 << 20
GIB = 1 << 30

#: Two sockets, a node each, two cores a node, threads n and n + 4.
PLAIN = Machine(
    cpus=tuple(Cpu(id=cpu, core=cpu % 4, socket=cpu % 4 // 2, node=cpu % 4 // 2) for cpu in range(8)),
    nodes=(NumaNode(0, memory=8 * GIB), NumaNode(1, memory=8 * GIB)),
    distances=Distances({0: {0: 10, 1: 21}, 1: {0: 21, 1: 10}}),
)
REPORT = CadvisorReport(cpus=PLAIN.cpus, num_cpus=8, num_sockets=2)


# ---- huge pages


@pytest.mark.parametrize(
    ("size", "name"),
    [
        pytest.param(64 * 1024, "hugepages-64Ki", id="64 kB, as on arm64"),
        pytest.param(GIB, "hugepages-1Gi", id="1048576 kB"),
        pytest.param(1536 * 1024, "hugepages-1536Ki", id="not a power of two"),
        pytest.param(1000, "hugepages-1000", id="no binary unit divides it"),
        pytest.param(1 << 70, "hugepages-1024Ei", id="beyond the largest unit"),
    ],
)
def test_huge_pages_are_named_by_the_largest_unit_that_divides_them(size, name):
    assert hugepages_resource(size) == name
    assert HugePages(size, 3).resource == name


def test_huge_pages_hold_their_size_times_their_count():
    assert HugePages(2 * MIB, 128).bytes == 256 * MIB


# ---- distances


@pytest.mark.parametrize(
    ("rows", "between"),
    [
        pytest.param({0: [10, 20], 1: [21, 10]}, {(0, 1): 20, (1, 0): 21}, id="no gaps, asymmetric"),
        pytest.param(
            {0: [10, 7, 20], 2: [21, 7, 10]}, {(0, 2): 20, (2, 0): 21, (2, 2): 10}, id="a column for every id"
        ),
        pytest.param({0: [10, 20], 8: [21, 10]}, {(0, 8): 20, (8, 0): 21, (8, 8): 10}, id="a column for every node"),
        pytest.param({1: [21, 10]}, {(1, 1): 10}, id="a row longer than the nodes there are"),
        pytest.param(
            {250: [10, 40, 80], 0: [10, 40, 80], 255: [80, 40, 11]},
            {(0, 250): 40, (250, 0): 10, (255, 255): 11},
            id="rows in any order",
        ),
    ],
)
def test_rows_are_parsed_in_either_form(rows, between):
    distances = Distances.of_rows(rows)

    assert {pair: distances.between(*pair) for pair in between} == between


@pytest.mark.parametrize(
    ("rows", "problem"),
    [
        pytest.param({0: [10, 20], 1: []}, "NUMA node 1 has no distances", id="an empty row"),
        pytest.param({0: [10], 1: [20, 10]}, "NUMA node 0 has 1 distance on a machine of 2 NUMA nodes", id="short"),
        pytest.param({0: [10, 20, 20], 4: [20, 10]}, "NUMA node 0 has 3 distances", id="neither form"),
    ],
)
def test_rows_in_other_forms_are_rejected(rows, problem):
    with pytest.raises(MachineError, match=problem):
        Distances.of_rows(rows)


@pytest.mark.parametrize(
    ("matrix", "problem"),
    [
        pytest.param({0: {0: 10}, 3: {0: 20, 3: 10}}, "NUMA node 0 has no distance to NUMA node 3", id="missing"),
        pytest.param({0: {0: -1}}, "NUMA node 0 has distance -1 to NUMA node 0, not a number from 0", id="negative"),
        pytest.param({0: {0: MAX_DISTANCE}}, f"distance {MAX_DISTANCE} to NUMA node 0, not a number", id="too far"),
    ],
)
def test_impossible_distances_are_rejected(matrix, problem):
    with pytest.raises(MachineError, match=problem):
        Distances(matrix)


@given(st.data())
def test_the_total_is_that_of_all_ordered_pairs(data):
    ids = data.draw(strategies.node_ids(max_id=255))
    distances = data.draw(strategies.distances(ids))
    nodes = data.draw(strategies.node_sets(ids))

    chosen = list(bits.members(nodes))

    assert distances.total(nodes) == sum(distances.between(a, b) for a in chosen for b in chosen)


@given(st.data())
def test_one_more_node_adds_its_distances_both_ways(data):
    ids = data.draw(strategies.node_ids())
    distances = data.draw(strategies.distances(ids))
    nodes = data.draw(strategies.node_sets(ids))
    node = data.draw(st.sampled_from(ids))

    with_it, without = nodes | 1 << node, nodes & ~(1 << node)
    added = sum(distances.both_ways(node)[other] for other in bits.members(with_it))

    assert distances.total(with_it) - distances.total(without) == added


def test_distances_are_values():
    rows = {0: [10, 20], 8: [21, 10]}
    same, other = Distances.of_rows(rows), Distances.of_rows({0: [10, 20], 8: [22, 10]})

    assert Distances.of_rows(rows) == same != other
    assert len({Distances.of_rows(rows), same, other}) == 2
    assert same.ids == (0, 8)
    assert same.matrix == ((10, 20), (21, 10))
    assert repr(same) == "Distances(ids=(0, 8), matrix=((10, 20), (21, 10)))"


# ---- the kubelet's view


def test_cores_are_named_after_their_lowest_cpu_and_totals_counted():
    view = PLAIN.kubelet_view()

    assert [(cpu.id, cpu.core) for cpu in view.cpus] == [(0, 0), (1, 1), (2, 2), (3, 3), (4, 0), (5, 1), (6, 2), (7, 3)]
    assert (view.num_cpus, view.num_cores, view.num_sockets, view.num_nodes, view.num_caches) == (8, 4, 2, 2, 2)
    assert (view.cpus_per_core, view.cpus_per_socket, view.cpus_per_cache) == (2, 4, 4)
    assert view.node_cpus == {0: bits.parse("0-1,4-5"), 1: bits.parse("2-3,6-7")}
    assert view.socket_cpus == view.cache_cpus == view.node_cpus
    assert view.core_cpus == {core: 1 << core | 1 << core + 4 for core in range(4)}
    assert (view.all_cpus, view.all_nodes) == (0xFF, 0b11)
    assert view.distances is PLAIN.distances
    assert view.discovery_error is None


def test_a_core_without_a_reported_cache_is_on_the_cache_of_its_socket():
    cpus = (Cpu(0, core=0, socket=36, node=0), Cpu(1, core=1, socket=36, node=0, cache=4))

    view = Machine(cpus=cpus, nodes=(NumaNode(0),)).kubelet_view()

    assert view.cache_cpus == {4: 0b10, 36: 0b01}


def test_cpus_of_no_node_do_not_exist_for_the_kubelet():
    lost = tuple(replace(cpu, node=None) if cpu.node == 0 else cpu for cpu in PLAIN.cpus)

    view = replace(PLAIN, cpus=lost).kubelet_view()

    assert bits.show(view.all_cpus) == "2-3,6-7"
    assert (view.num_cpus, view.num_sockets, view.num_nodes) == (4, 1, 1)


def test_memory_only_nodes_are_nodes_but_not_counted_by_the_cpu_manager():
    view = replace(PLAIN, nodes=(NumaNode(255, memory=GIB), *PLAIN.nodes)).kubelet_view()

    assert [node.id for node in view.nodes] == [0, 1, 255]
    assert view.all_nodes == bits.of([0, 1, 255])
    assert view.num_nodes == 2


def test_threads_of_one_core_on_two_nodes_are_two_cores_for_the_kubelet():
    cpus = (Cpu(0, core=0, socket=0, node=0), Cpu(1, core=0, socket=0, node=1))
    machine = Machine(cpus=cpus, nodes=(NumaNode(0), NumaNode(1)))

    assert machine.checked() is machine
    assert machine.kubelet_view().core_cpus == {0: 0b01, 1: 0b10}


def test_a_report_overrides_the_hardware():
    reported = tuple(replace(cpu, core=cpu.id, cache=7) for cpu in PLAIN.cpus if cpu.node == 1)

    view = replace(PLAIN, report=CadvisorReport(cpus=reported, num_cpus=20, num_sockets=3)).kubelet_view()

    assert bits.show(view.all_cpus) == "2-3,6-7"
    assert (view.num_cpus, view.num_cores, view.num_sockets) == (20, 4, 3)
    assert (view.cpus_per_core, view.cpus_per_socket, view.cpus_per_cache) == (5, 6, 20)
    assert view.cache_cpus == {7: bits.parse("2-3,6-7")}


def test_a_report_without_cores_has_averages_of_zero():
    view = replace(PLAIN, report=CadvisorReport(cpus=(), num_cpus=20, num_sockets=0)).kubelet_view()

    assert (view.num_cpus, view.num_cores, view.num_nodes) == (20, 0, 0)
    assert (view.cpus_per_core, view.cpus_per_socket, view.cpus_per_cache) == (0, 0, 0)
    assert view.discovery_error is None


def test_nodes_are_those_that_are_reported():
    reported = (CadvisorNode(1, memory=GIB, distances=(21, 10)), CadvisorNode(0, distances=(10, 21)))

    view = replace(PLAIN, report=replace(REPORT, nodes=reported)).kubelet_view()

    assert view.nodes == (NumaNode(0, memory=0), NumaNode(1, memory=GIB))
    assert view.distances == PLAIN.distances


def test_distances_need_a_row_of_every_node_that_is_reported():
    reported = (CadvisorNode(0, distances=(10, 21)), CadvisorNode(1))

    assert replace(PLAIN, report=replace(REPORT, nodes=reported)).kubelet_view().distances is None


def test_a_socket_without_a_number_reported_as_a_node_is_in_no_set():
    cpus = (Cpu(0, core=0, socket=-1, node=-1), Cpu(1, core=1, socket=0, node=0))
    report = CadvisorReport(cpus=cpus, num_cpus=2, num_sockets=2, nodes=(CadvisorNode(-1), CadvisorNode(0)))

    machine = replace(PLAIN, report=report).checked()

    assert machine.kubelet_view().node_cpus == {-1: 0b01, 0: 0b10}
    assert machine.kubelet_view().all_nodes == 0b1


@pytest.mark.parametrize(
    ("report", "error"),
    [
        pytest.param(
            CadvisorReport((), num_cpus=0, num_sockets=1), "could not detect number of cpus", id="no CPUs counted"
        ),
        pytest.param(
            CadvisorReport((PLAIN.cpus[0], PLAIN.cpus[0]), num_cpus=2, num_sockets=1),
            "cpus provided are not unique",
            id="a thread listed twice in its core",
        ),
    ],
)
def test_the_kubelets_error_if_it_cannot_discover_cpus(report, error):
    assert replace(PLAIN, report=report).kubelet_view().discovery_error == error


@given(strategies.machines())
def test_every_cpu_is_in_one_group_of_each_kind(machine):
    view = machine.kubelet_view()

    for groups in (view.node_cpus, view.socket_cpus, view.core_cpus, view.cache_cpus):
        assert sum(group.bit_count() for group in groups.values()) == len(view.cpus)
        assert sum(groups.values()) == view.all_cpus
        assert list(groups) == sorted(groups)


@given(strategies.machines())
def test_cores_keep_their_cpus_under_other_names(machine):
    view = machine.kubelet_view()
    hardware = {
        frozenset(cpu.id for cpu in machine.cpus if cpu.core == core) for core in {c.core for c in machine.cpus}
    }

    assert {frozenset(bits.members(cpus)) for cpus in view.core_cpus.values()} == hardware
    assert all(min(bits.members(cpus)) == core for core, cpus in view.core_cpus.items())


@given(strategies.machines())
def test_the_view_of_a_view_is_equal(machine):
    """The kubelet's numbering of a machine numbered its way changes nothing."""
    view = machine.kubelet_view()
    again = Machine(cpus=view.cpus, nodes=view.nodes, distances=view.distances)

    assert again.kubelet_view() == view


# ---- what is possible


@given(strategies.machines(max_id=255))
def test_machines_made_for_tests_are_consistent(machine):
    assert machine.checked() is machine
    assert machine.checked() is machine


def test_odd_but_real_machines_are_accepted():
    machine = Machine(
        cpus=(
            Cpu(8, core=2288, socket=-1, node=250),
            Cpu(40, core=5, socket=8442, node=None),
            Cpu(103, core=5, socket=-1, node=None),
        ),
        nodes=(NumaNode(250), NumaNode(4, memory=0), NumaNode(2, hugepages=(HugePages(16 * GIB, 4),))),
        hugepages=(HugePages(16 * GIB, 5),),
        report=CadvisorReport(cpus=(Cpu(8, core=8, socket=0, node=250),), num_cpus=20, num_sockets=0),
    ).with_reported(
        (
            Device("example.com/nic", "a", nodes=bits.of([63])),
            Device("example.com/nic", "b", nodes=0),
            Device("example.com/gpu", "a", nodes=None, healthy=False),
        )
    )

    assert machine.checked() is machine


TWICE = (PLAIN.cpus[3], *PLAIN.cpus)
PAGES = (HugePages(2 * MIB, 1), HugePages(2 * MIB, 1))


@pytest.mark.parametrize(
    ("machine", "problems"),
    [
        pytest.param(replace(PLAIN, cpus=()), ["the machine has no CPUs"], id="no CPUs"),
        pytest.param(replace(PLAIN, cpus=TWICE), ["CPU 3 is listed 2 times"], id="a CPU twice"),
        pytest.param(
            Machine(cpus=(Cpu(-3, core=0, socket=0, node=0),), nodes=(NumaNode(0),)),
            ["CPU -3 is not a number from 0 to 65535"],
            id="a negative CPU",
        ),
        pytest.param(
            Machine(cpus=(Cpu(MAX_CPU_ID, core=0, socket=0, node=0),), nodes=(NumaNode(0),)),
            ["CPU 65536 is not a number from 0 to 65535"],
            id="a CPU too large for a set",
        ),
        pytest.param(
            Machine(cpus=(Cpu(0, core=0, socket=1 << 63, node=0),), nodes=(NumaNode(0),)),
            ["CPU 0 has a core, socket or cache number above 9223372036854775807"],
            id="a socket number of more than 63 bits",
        ),
        pytest.param(
            replace(PLAIN, offline=1 << MAX_CPU_ID),
            ["CPU 65536 is not a number from 0 to 65535"],
            id="an offline CPU too large for a set",
        ),
        pytest.param(
            PLAIN.with_reported([Device("example.com/gpu", "a", nodes=1 << MAX_NODE_ID)]),
            ["device a of example.com/gpu is on NUMA node 4096, above 4095"],
            id="a device on a node too large for a set",
        ),
        pytest.param(
            replace(PLAIN, report=replace(REPORT, nodes=(CadvisorNode(0), CadvisorNode(1), CadvisorNode(MAX_NODE_ID)))),
            ["as reported, NUMA node 4096 is not a number from 0 to 4095"],
            id="a reported node too large for a set",
        ),
        pytest.param(
            replace(PLAIN, nodes=(NumaNode(0, memory=1 << 63), PLAIN.nodes[1])),
            ["NUMA node 0 has 9223372036854775808 bytes of memory"],
            id="memory of more than 63 bits",
        ),
        pytest.param(
            replace(PLAIN, hugepages=(HugePages(1 << 60, 8),)),
            ["the machine has 8 huge pages of 1152921504606846976 bytes"],
            id="huge pages of more than 63 bits",
        ),
        pytest.param(
            replace(PLAIN, nodes=(NumaNode(0),) * (MAX_NODES + 1), pci=(PciDevice("0"),) * (MAX_PCI_DEVICES + 1)),
            [
                "the machine has 1025 NUMA nodes: expected at most 1024",
                "the machine has 16385 PCI devices: expected at most 16384",
            ],
            id="too many of some things",
        ),
        pytest.param(
            Machine(cpus=(Cpu(0, core=-1, socket=-2, node=0, cache=-1),), nodes=(NumaNode(0),)),
            [
                "CPU 0 is on core -1, but cores are numbered from 0",
                "CPU 0 is on socket -2, but sockets are numbered from 0, or -1 when unknown",
                "CPU 0 is on cache -1, but caches are numbered from 0",
            ],
            id="negative places",
        ),
        pytest.param(
            replace(PLAIN, nodes=PLAIN.nodes[:1], distances=None),
            ["NUMA node 1 has CPUs 2-3,6-7, but the machine has no such node"],
            id="CPUs on a node that is not there",
        ),
        pytest.param(
            Machine(
                cpus=(Cpu(0, core=6, socket=0, node=0), Cpu(1, core=6, socket=3, node=0)),
                nodes=(NumaNode(0),),
            ),
            ["core 6 is on sockets 0, 3, but a core has one socket"],
            id="a core on two sockets",
        ),
        pytest.param(
            replace(PLAIN, nodes=(NumaNode(-1), *PLAIN.nodes, NumaNode(1)), distances=None),
            ["NUMA node -1 is not a number from 0 to 4095", "NUMA node 1 is listed 2 times"],
            id="bad node ids",
        ),
        pytest.param(
            replace(PLAIN, nodes=(NumaNode(0, memory=-5), NumaNode(1, hugepages=(HugePages(0, -2),)))),
            [
                "NUMA node 0 has -5 bytes of memory",
                "NUMA node 1 has huge pages of 0 bytes",
                "NUMA node 1 has -2 huge pages of 0 bytes",
            ],
            id="less than nothing",
        ),
        pytest.param(
            replace(PLAIN, nodes=(NumaNode(0, memory=3 * MIB, hugepages=PAGES), NumaNode(1))),
            [
                "NUMA node 0 lists huge pages of 2097152 bytes 2 times",
                "NUMA node 0 has 4194304 bytes in huge pages, but only 3145728 bytes of memory",
            ],
            id="more huge pages than memory",
        ),
        pytest.param(
            replace(PLAIN, distances=Distances({0: {0: 10, 5: 20}, 5: {0: 20, 5: 10}})),
            ["NUMA node 1 has no distances", "NUMA node 5 has distances, but the machine has no such node"],
            id="distances of other nodes",
        ),
        pytest.param(
            replace(
                PLAIN, devices=(Device("x/y", "a", nodes=1), Device("x/y", "a", nodes=2), Device("", "b", nodes=-4))
            ),
            [
                "device 'b' of resource '' has an empty name",
                "device a of x/y is listed 2 times",
                "device b of  is on -4, which is not a set of NUMA nodes",
            ],
            id="bad devices",
        ),
        pytest.param(
            replace(PLAIN, report=replace(REPORT, cpus=TWICE)),
            ["as reported, CPU 3 is listed 2 times"],
            id="a report with a CPU twice",
        ),
        pytest.param(
            replace(
                PLAIN,
                report=CadvisorReport(
                    (Cpu(9, core=0, socket=0, node=0), Cpu(0, 0, 0, node=None), Cpu(1, 1, 0, node=7)), 3, 1
                ),
            ),
            [
                "as reported, NUMA node 7 has CPUs 1, but the machine has no such node",
                "CPU 9 is reported, but the machine has no such CPU",
                "CPU 0 is reported without a NUMA node",
            ],
            id="a report of another machine",
        ),
        pytest.param(
            replace(PLAIN, report=replace(REPORT, nodes=(CadvisorNode(0), CadvisorNode(1), CadvisorNode(1)))),
            ["as reported, NUMA node 1 is listed 2 times"],
            id="a report with a node twice",
        ),
        pytest.param(
            replace(PLAIN, report=replace(REPORT, nodes=(CadvisorNode(0),))),
            ["as reported, NUMA node 1 has CPUs 2-3,6-7, but the machine has no such node"],
            id="a report of CPUs on an unreported node",
        ),
        pytest.param(
            replace(PLAIN, pci=(PciDevice("0000:00:01.0"), PciDevice("0000:00:01.0", node=9))),
            ["PCI device 0000:00:01.0 is listed 2 times"],
            id="a PCI device twice",
        ),
        pytest.param(
            replace(PLAIN, memory=-1, hugepages=(HugePages(0, 1), *PAGES)),
            [
                "the machine has -1 bytes of memory",
                "the machine lists huge pages of 0 bytes 1 times",
                f"the machine lists huge pages of {2 * MIB} bytes 2 times",
            ],
            id="totals that cannot be",
        ),
        pytest.param(
            replace(PLAIN, report=replace(REPORT, num_cpus=-1)),
            ["the reported totals are -1 CPUs and 2 sockets"],
            id="a report that counts below nothing",
        ),
    ],
)
def test_contradictions_are_named(machine, problems):
    with pytest.raises(MachineError) as rejected:
        machine.checked()

    assert rejected.value.problems == tuple(problems)
    assert str(rejected.value) == "; ".join(problems)


# ---- the shapes vectors come in


def test_a_topology_of_the_cpu_vectors_is_a_view_with_its_own_totals():
    rows = [[4, 0, 0, 0, 0], [0, 0, 0, 0, 0], [1, 1, 1, 3, 1], [5, 1, 1, 3, 1]]

    view = vector_types.view_of({"num_sockets": 3, "num_cores": 2, "num_numa": 2, "num_uncore": 2, "cpus": rows})

    assert isinstance(view, KubeletView)
    assert (view.num_cpus, view.num_cores, view.num_sockets, view.num_nodes, view.num_caches) == (4, 2, 3, 2, 2)
    assert view.node_cpus == {0: bits.of([0, 4]), 3: bits.of([1, 5])}


@given(strategies.machines())
def test_a_machine_round_trips_through_cadvisor(machine):
    view = machine.kubelet_view()
    threads = {core: list(bits.members(cpus)) for core, cpus in view.core_cpus.items()}
    first = {cpu.id: cpu for cpu in machine.cpus}

    read = vector_types.machine_of(
        {
            "num_cpus": view.num_cpus,
            "num_sockets": view.num_sockets,
            "topology": [
                {
                    "node_id": node.id,
                    "memory": node.memory,
                    "hugepages": [{"page_size_kb": p.size // 1024, "num_pages": p.count} for p in node.hugepages],
                    "distances": list(machine.distances.matrix[place]) if machine.distances else None,
                    "cores": [
                        {
                            "core_id": 0,
                            "socket_id": first[core].socket,
                            "threads": threads[core],
                            "uncore_cache_id": first[core].cache,
                        }
                        for core in threads
                        if first[core].node == node.id
                    ],
                }
                for place, node in enumerate(machine.nodes)
            ],
        }
    )

    assert read.checked().kubelet_view() == view
    assert Counter(cpu.cache for cpu in read.cpus) == Counter(cpu.cache for cpu in machine.cpus)


def test_of_a_pci_device_that_is_listed_twice_the_first_is_used():
    first, second, other = PciDevice("0000:00:01.0", node=0), PciDevice("0000:00:01.0"), PciDevice("0000:00:02.0")

    assert split_repeated_pci([first, second, other]) == (
        (first, other),
        ("PCI device 0000:00:01.0 is listed 2 times; the first is used",),
    )


def test_cpus_that_are_taken_offline_are_gone_from_the_report_too():
    machine = replace(PLAIN, report=REPORT).without_cpus(bits.of([3, 7, 99]))

    assert (bits.show(machine.offline), bits.show(machine.kubelet_view().all_cpus)) == ("3,7", "0-2,4-6")
    assert machine.kubelet_view().num_cpus == 6
    assert bits.show(PLAIN.without_cpus(0b1).kubelet_view().all_cpus) == "1-7"
    assert PLAIN.without_cpus(1 << 99) is PLAIN


def test_a_device_is_on_one_node_or_on_a_set_of_nodes():
    assert Device("example.com/gpu", "a", node=2) == Device("example.com/gpu", "a", nodes=0b100)
    assert replace(Device("example.com/gpu", "a", node=2), healthy=False).nodes == 0b100
    assert Device("example.com/gpu", "a").nodes is None
    both: dict[str, Any] = {"node": 1, "nodes": 0b10}
    for wrong in (both, {"node": -1}):
        with pytest.raises(ValueError, match="either a node"):
            Device("example.com/gpu", "a", **wrong)


def test_a_device_on_a_node_that_the_machine_lacks_is_refused():
    device = Device("example.com/gpu", "a", nodes=bits.of([1, 7]))
    message = "device a of example.com/gpu is on NUMA node 7, but the machine has no such node"

    with pytest.raises(MachineError, match=message):
        Machine(cpus=PLAIN.cpus, nodes=PLAIN.nodes, devices=(device,))
    with pytest.raises(MachineError, match=message):
        replace(PLAIN, devices=(device,))


def test_a_kubelet_may_report_a_device_on_a_node_that_the_machine_lacks():
    device = Device("example.com/gpu", "a", node=7)
    reported = PLAIN.with_reported([device])

    assert reported.devices == (device,)
    assert reported.kubelet_view() == PLAIN.kubelet_view()
    assert PLAIN.devices == ()
