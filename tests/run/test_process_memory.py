"""Memory policies and migration; on a machine with one NUMA node they change nothing, and must not fail."""

import json
import os
from pathlib import Path

import pytest

from alignup.align import bits
from alignup.align.errors import EnforceError
from alignup.run import process_memory as memory
from tests.run.commands import python

WITH_MEMORY = memory.NodeMap.read().with_memory
LOWEST = WITH_MEMORY & -WITH_MEMORY

needs_nodes = pytest.mark.skipif(
    not WITH_MEMORY or not memory.can_bind(LOWEST), reason="needs NUMA nodes and permission to bind memory"
)


@needs_nodes
def test_a_bound_process_has_its_memory_on_the_node():
    script = (
        "import json, os\n"
        "from alignup.run import memory\n"
        "memory.bind(int(sys.argv[1]))\n"
        "taken = bytearray(8 << 20)\n"
        "print(json.dumps(memory.bytes_per_node(os.getpid())))\n"
    )
    with python(script, str(LOWEST)) as bound:
        placed = json.loads(bound.communicate()[0])

    assert placed[bits.show(LOWEST)] > 8 << 20


@needs_nodes
def test_can_bind_changes_nothing():
    assert memory.can_bind(LOWEST)
    assert "bind:" not in Path("/proc/self/numa_maps").read_text()


@needs_nodes
def test_a_missing_node_is_an_error():
    with pytest.raises(EnforceError, match="cannot bind memory to NUMA nodes 63: Invalid argument"):
        memory.bind(1 << 63)
    assert not memory.can_bind(1 << 63)


@needs_nodes
def test_migrating_to_the_same_node_succeeds():
    memory.migrate(os.getpid(), LOWEST, to=LOWEST)


def test_an_ended_process_has_no_memory():
    assert memory.bytes_per_node(1 << 22) is None
