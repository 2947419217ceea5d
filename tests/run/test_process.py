"""Processes: their identity, affinity and memory, and how they are found.

On a machine with one NUMA node, memory policies and migration change nothing, and must not fail.
"""

import json
import os
import threading
from pathlib import Path
from uuid import uuid4

import pytest

from alignup.align import bits
from alignup.align.errors import EnforceError
from alignup.run import process
from alignup.run.process import NodeMap, ProcessIdentity, ProcessInfo
from tests.deadlines import wait_for
from tests.run.commands import is_zombie, python, started

PERMITTED = process.permitted_cpus()
LOWEST = PERMITTED & -PERMITTED
WITH_MEMORY = NodeMap.read().with_memory
LOWEST_NODE = WITH_MEMORY & -WITH_MEMORY

NEEDS_NODES = pytest.mark.skipif(
    not WITH_MEMORY or not process.can_bind_memory(LOWEST_NODE), reason="needs NUMA nodes and permission to bind memory"
)


@pytest.fixture
def sleeper():
    with started("sleep", "60") as process_:
        yield process_


def test_a_process_is_alive_until_it_ends(sleeper):
    identity = ProcessIdentity.of(sleeper.pid)

    alive = identity.alive
    sleeper.kill()
    sleeper.wait()

    assert alive
    assert not identity.alive


def test_a_zombie_is_not_alive():
    with started("true") as ended:
        identity = ProcessIdentity.of(ended.pid)
        wait_for(lambda: is_zombie(ended.pid))

        assert not identity.alive


@pytest.mark.parametrize(
    ("change", "alive"),
    [
        pytest.param({"start": 1}, False, id="a reused pid"),
        pytest.param({"boot": "before"}, False, id="before the last boot"),
        pytest.param({"space": 1}, True, id="another pid namespace"),
    ],
)
def test_a_pid_alone_does_not_identify_a_process(change, alive):
    assert ProcessIdentity.of(os.getpid())._replace(**change).alive is alive


def test_a_missing_process_is_an_error():
    with pytest.raises(EnforceError, match="there is no process 0"):
        ProcessIdentity.of(0)


def test_all_threads_are_pinned():
    script = "import threading, time\nfor _ in range(3): threading.Thread(target=time.sleep, args=[60]).start()\n"
    with python(f"{script}print('ready', flush=True)") as threads:
        assert threads.stdout is not None
        threads.stdout.readline()

        process.pin(threads.pid, LOWEST)
        allowed = process.thread_cpusets(threads.pid)

    assert [cpuset.cpus for cpuset in allowed] == [LOWEST] * 4


def test_missing_cpus_are_an_error(sleeper):
    with pytest.raises(EnforceError, match="to CPUs 99999"):
        process.pin(sleeper.pid, 1 << 99999)


def test_permitted_cpus_are_found_without_changing_the_affinity():
    results: list[tuple[int, set[int]]] = []

    def narrow():
        os.sched_setaffinity(0, bits.members(LOWEST))
        results.append((process.permitted_cpus(), os.sched_getaffinity(0)))

    thread = threading.Thread(target=narrow)
    thread.start()
    thread.join()

    assert results == [(PERMITTED, set(bits.members(LOWEST)))]


def test_processes_are_listed_with_their_parent_owner_and_mark():
    variable = f"MARKED_{uuid4().hex}"
    with started("sleep", "60", env={variable: "yes"}) as sleeping:
        processes = process.list_processes(variable)

    assert processes[sleeping.pid] == ProcessInfo(parent=os.getpid(), owner=os.geteuid(), mark="yes")
    assert processes[os.getpid()].mark == ""


@pytest.mark.parametrize(
    ("line", "owner"),
    [
        pytest.param(b"Name:\tx\nUid:\t7\t7\t7\t7\nGid:\t1\t1\t1\t1\n", 7, id="one user"),
        pytest.param(b"Uid:\t1000\t0\t0\t0\n", None, id="a setuid program of another user"),
        pytest.param(b"Name:\tx\n", None, id="unknown"),
    ],
)
def test_the_owner_of_a_process_has_all_of_its_user_ids(monkeypatch, tmp_path, line, owner):
    monkeypatch.setattr(process, "PROC", tmp_path)
    (tmp_path / "4711").mkdir()
    (tmp_path / "4711/status").write_bytes(line)

    assert process.owner(4711) == owner
    assert process.owner(4712) is None


def test_an_ended_process_has_no_threads():
    with started("true") as gone:
        pass

    assert process.thread_cpusets(gone.pid) == ()
    process.pin(gone.pid, LOWEST)


def test_node_ids_may_have_gaps(tmp_path):
    for node, cpus in ((0, "0-1"), (250, "2"), (3, "")):
        (tmp_path / f"node{node}").mkdir()
        (tmp_path / f"node{node}" / "cpulist").write_text(f"{cpus}\n")
    (tmp_path / "has_memory").write_text("0,250\n")
    (tmp_path / "possible").write_text("0-250\n")

    node_map = NodeMap.read(tmp_path)

    assert node_map == NodeMap({0: bits.parse("0-1"), 3: 0, 250: bits.parse("2")}, bits.parse("0,250"))
    assert node_map.of(bits.parse("1-2")) == bits.parse("0,250")


def test_a_kernel_without_numa_has_no_nodes(tmp_path):
    assert NodeMap.read(tmp_path / "nowhere") == NodeMap({}, 0)


def test_this_machine_is_readable():
    node_map = NodeMap.read()

    assert node_map.of(bits.union(node_map.cpus.values())) == bits.of(
        node for node, cpus in node_map.cpus.items() if cpus
    )


@NEEDS_NODES
def test_a_bound_process_has_its_memory_on_the_node():
    script = (
        "import json, os\n"
        "from alignup.run import process\n"
        "process.bind_memory(int(sys.argv[1]))\n"
        "taken = bytearray(8 << 20)\n"
        "print(json.dumps(process.memory_per_node(os.getpid())))\n"
    )
    with python(script, str(LOWEST_NODE)) as bound:
        placed = json.loads(bound.communicate()[0])

    assert placed[bits.show(LOWEST_NODE)] > 8 << 20


@NEEDS_NODES
def test_can_bind_changes_nothing():
    assert process.can_bind_memory(LOWEST_NODE)
    assert "bind:" not in Path("/proc/self/numa_maps").read_text()


@NEEDS_NODES
def test_a_missing_node_is_an_error():
    with pytest.raises(EnforceError, match="cannot bind memory to NUMA nodes 63: Invalid argument"):
        process.bind_memory(1 << 63)
    assert not process.can_bind_memory(1 << 63)


@NEEDS_NODES
def test_migrating_to_the_same_node_succeeds():
    process.migrate_memory(os.getpid(), LOWEST_NODE, to=LOWEST_NODE)


def test_an_ended_process_has_no_memory():
    assert process.memory_per_node(1 << 22) is None
