"""Containers: real processes in cgroups as runtimes create them, moved by the tests."""

import os
from dataclasses import replace
from pathlib import Path
from uuid import uuid4

import pytest

from alignup.run import cgroup, process
from alignup.run import placement_audit as audit
from alignup.run import process_memory as memory
from alignup.run.cgroup import Cpuset
from alignup.run.placement_audit import DriftKind, PlacedContainer
from tests.deadlines import wait_for
from tests.run.commands import started
from tests.run.test_cgroup import Tree

PERMITTED = process.permitted_cpus()
LOWEST = PERMITTED & -PERMITTED
ID = uuid4().hex  #: cgroups are shared by all test runs on a machine

real = pytest.mark.skipif(
    not cgroup.candidate_parents() or PERMITTED == LOWEST,
    reason="this user cannot create cpusets here, or there is one CPU",
)


@pytest.fixture
def container():
    """A process in the cgroup of its container that belongs on the lowest CPU, and is there."""
    group = cgroup.create(f"cri-{ID}", LOWEST, nodes=0)
    try:
        with started("sleep", "60") as sleeper:
            cgroup.join(group, sleeper.pid)
            yield PlacedContainer(uid="u", pod="shop/web", container="app", id=ID, pid=sleeper.pid, cpus=LOWEST)
    finally:
        wait_for(lambda: cgroup.remove(group))


def seen(container: PlacedContainer) -> PlacedContainer:
    found = audit.find_container_processes(container)
    assert found is not None
    return found


def kinds(container):
    return [drift.kind for drift in audit.audit_container(seen(container))]


@real
def test_a_container_is_found_with_its_cgroup_and_processes(container):
    found = seen(container)

    assert found.pids == (container.pid,)
    assert found.cgroup is not None
    assert found.cgroup.name.endswith(ID)
    assert kinds(container) == []


@real
def test_every_process_in_the_cgroup_belongs_to_the_container(container):
    """Including one that was added later, and one in a nested cgroup."""
    with started("sleep", "60") as second, started("sleep", "60") as third:
        group = seen(container).cgroup
        assert group is not None
        cgroup.join(group, second.pid)
        inner = group / "inner"
        inner.mkdir()
        for file in ("cpuset.mems", "cpuset.cpus"):
            if (inner / file).exists():  # a nested cgroup of version 2 has no cpuset
                (inner / file).write_text((group / file).read_text())
        cgroup.join(inner, third.pid)

        found = seen(container)
        from_inside = seen(replace(container, pid=third.pid))

    assert found.pids == tuple(sorted((container.pid, second.pid, third.pid)))
    assert from_inside == replace(found, pid=third.pid)


@real
def test_a_widened_cgroup_is_found_and_restored(container):
    group = seen(container).cgroup
    assert group is not None
    cgroup.write(group, PERMITTED, nodes=0)
    process.pin(container.pid, PERMITTED)

    found = list(audit.audit_container(seen(container)))
    errors = audit.restore_container(seen(container))

    assert [drift.kind for drift in found] == [DriftKind.GROUP, DriftKind.CPUS]
    assert {(drift.uid, drift.name, drift.container) for drift in found} == {("u", "shop/web/app", "app")}
    assert (errors, kinds(container)) == ((), [])


@real
def test_undecided_settings_are_not_drift_and_stay(container):
    anywhere = replace(container, cpus=0)
    group = seen(container).cgroup
    assert group is not None
    before = cgroup.read(group)

    assert kinds(anywhere) == []
    assert audit.restore_container(seen(anywhere)) == ()
    assert cgroup.read(group) == before


@real
def test_memory_is_restored_without_touching_the_cpus(container):
    everywhere = memory.NodeMap.read().with_memory
    bound = replace(container, cpus=0, memory=everywhere & -everywhere)
    group = seen(container).cgroup
    assert group is not None

    errors = audit.restore_container(seen(bound))

    assert (errors, kinds(bound)) == ((), [])
    assert cgroup.read(group) == Cpuset(LOWEST, bound.memory)
    assert set(memory.bytes_per_node(container.pid) or ()) <= {bound.memory.bit_length() - 1}


@real
def test_a_process_outside_the_cgroup_is_found_and_other_cgroups_are_left_alone(container):
    group = seen(container).cgroup
    assert group is not None
    cgroup.join(group.parent, container.pid)
    process.pin(container.pid, PERMITTED)
    outside = cgroup.read(group.parent)

    found = list(audit.audit_container(seen(container)))
    (error,) = audit.restore_container(seen(container))

    assert [drift.kind for drift in found] == [DriftKind.CPUS, DriftKind.MEMBER]
    assert (
        str(found[1])
        == f"shop/web/app: process {container.pid}: intended in a cgroup of container {ID}, actual in none"
    )
    assert error.startswith("shop/web/app: its processes are in no cgroup of the container; ")
    assert cgroup.read(group.parent) == outside
    assert os.sched_getaffinity(container.pid) == {LOWEST.bit_length() - 1}


def test_an_exited_container_is_not_found():
    with started("true") as ended:
        ended.wait()

        assert (
            audit.find_container_processes(
                PlacedContainer(uid="u", pod="shop/web", container="app", id=ID, pid=ended.pid)
            )
            is None
        )


def test_a_cgroup_without_the_id_of_the_container_is_not_its_cgroup():
    own = PlacedContainer(uid="u", pod="shop/web", container="app", id=ID, pid=os.getpid())
    without_id = replace(own, id="")

    assert [seen(one).cgroup for one in (own, without_id)] == [None, None]
    assert seen(own).pids == (os.getpid(),)


@pytest.mark.parametrize("version", [1, 2])
def test_the_cgroup_of_a_process_is_found(tmp_path, version):
    tree = Tree(tmp_path, path="/", version=version)
    tree.proc.rename(tmp_path / "self")
    group = tree.group("pod")
    (group / "cpuset.cpus").write_text("0-1\n")
    line = "0::" if version == 2 else "3:cpuset:"
    for pid, path in ((7, "/pod"), (8, "/../other/pod"), (9, "/nowhere")):
        (tmp_path / str(pid)).mkdir()
        (tmp_path / str(pid) / "cgroup").write_text(f"{line}{path}\n")

    assert [cgroup.cpuset_cgroup(pid, tmp_path) for pid in (7, 8, 9, 10)] == [group, None, None, None]


def test_with_both_versions_the_one_with_cpusets_counts(tmp_path):
    """As on hosts where systemd uses version 2, and leaves cpusets to version 1."""
    places = {"unified": "cgroup2 cgroup2 rw", "cpuset": "cgroup cgroup rw,cpuset"}
    mounts = [f"3{n} 1 0:{n} / {tmp_path / name} rw - {kind}\n" for n, (name, kind) in enumerate(places.items())]
    for directory in ("self", "7", "unified/pod", "cpuset/pod"):
        (tmp_path / directory).mkdir(parents=True)
    (tmp_path / "self/mountinfo").write_text("".join(mounts))
    (tmp_path / "7/cgroup").write_text("3:cpuset:/pod\n0::/pod\n")
    Path(tmp_path / "cpuset/pod/cpuset.cpus").write_text("0\n")

    assert cgroup.cpuset_cgroup(7, tmp_path) == tmp_path / "cpuset/pod"
