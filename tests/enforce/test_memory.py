"""Memory is bound, looked at and moved; on a machine with one node that changes nothing, and must not fail."""

import json
import os
from pathlib import Path

import pytest

from alignup.align import bits
from alignup.align.errors import EnforceError
from alignup.enforce import memory, numa_nodes
from tests.enforce.commands import python

WITH_MEMORY = numa_nodes.read().with_memory
LOWEST = WITH_MEMORY & -WITH_MEMORY

needs_nodes = pytest.mark.skipif(
    not WITH_MEMORY or not memory.can_bind(LOWEST), reason="this kernel knows of no NUMA nodes, or lets nobody bind"
)


@needs_nodes
def test_a_process_that_is_bound_has_its_memory_there():
    script = (
        "import json, os\n"
        "from alignup.enforce import memory\n"
        "memory.bind(int(sys.argv[1]))\n"
        "taken = bytearray(8 << 20)\n"
        "print(json.dumps(memory.bytes_per_node(os.getpid())))\n"
    )
    with python(script, str(LOWEST)) as bound:
        placed = json.loads(bound.communicate()[0])

    assert placed[bits.show(LOWEST)] > 8 << 20


@needs_nodes
def test_asking_whether_it_may_be_changes_nothing():
    assert memory.can_bind(LOWEST)
    assert "bind:" not in Path("/proc/self/numa_maps").read_text()


@needs_nodes
def test_a_node_that_is_not_there_is_refused():
    with pytest.raises(EnforceError, match="memory cannot be bound to NUMA nodes 63: Invalid argument"):
        memory.bind(1 << 63)
    assert not memory.can_bind(1 << 63)


@needs_nodes
def test_memory_moves_where_it_is_already():
    memory.migrate(os.getpid(), LOWEST, to=LOWEST)


def test_nothing_is_known_of_a_process_that_is_gone():
    assert memory.bytes_per_node(1 << 22) is None
