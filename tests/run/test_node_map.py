"""The NUMA nodes of a system, read from sysfs."""

from alignup.align import bits
from alignup.run.process_memory import NodeMap


def test_node_ids_may_have_gaps(tmp_path):
    for node, cpus in ((0, "0-1"), (250, "2"), (3, "")):
        (tmp_path / f"node{node}").mkdir()
        (tmp_path / f"node{node}" / "cpulist").write_text(f"{cpus}\n")
    (tmp_path / "has_memory").write_text("0,250\n")
    (tmp_path / "possible").write_text("0-250\n")

    found = NodeMap.read(tmp_path)

    assert found == NodeMap({0: bits.parse("0-1"), 3: 0, 250: bits.parse("2")}, bits.parse("0,250"))
    assert found.of(bits.parse("1-2")) == bits.parse("0,250")


def test_a_kernel_without_numa_has_no_nodes(tmp_path):
    assert NodeMap.read(tmp_path / "nowhere") == NodeMap({}, 0)


def test_this_machine_is_readable():
    found = NodeMap.read()

    assert found.of(bits.union(found.cpus.values())) == bits.of(node for node, cpus in found.cpus.items() if cpus)
