"""Containers as the kernel sees them: real processes in groups as runtimes make them, moved by hand."""

import os
import time
from dataclasses import replace
from pathlib import Path

import pytest

from alignup.enforce import cgroup, containers, memory, numa_nodes, process
from alignup.enforce.audit import DriftKind
from alignup.enforce.cgroup import Cpuset
from alignup.enforce.containers import ContainerProcesses, PlacedContainer
from tests.enforce.commands import started
from tests.enforce.test_cgroup import Tree

PERMITTED = process.permitted_cpus()
LOWEST = PERMITTED & -PERMITTED
ID = "8f14e45fceea167a5a36dedd4bea2543"

real = pytest.mark.skipif(
    not cgroup.candidate_parents() or PERMITTED == LOWEST,
    reason="no cpuset may be made here by this user, or there is one CPU",
)


@pytest.fixture
def box():
    """One process in a group named after its container, that is to be on the lowest CPU, and is."""
    group = cgroup.create(f"cri-{ID}", LOWEST, nodes=0)
    with started("sleep", "60") as sleeper:
        cgroup.join(group, sleeper.pid)
        yield PlacedContainer(uid="u", pod="shop/web", container="app", id=ID, pid=sleeper.pid, cpus=LOWEST)
        sleeper.kill()
    deadline = time.monotonic() + 10
    while not cgroup.remove(group):
        assert time.monotonic() < deadline


def seen(box: PlacedContainer) -> ContainerProcesses:
    found = containers.find_container_processes(box)
    assert found is not None
    return found


def kinds(box):
    return [drift.kind for drift in containers.audit_container(seen(box))]


@real
def test_a_container_is_found_with_its_group_and_processes(box):
    found = seen(box)

    assert found.pids == (box.pid,)
    assert found.container.cgroup is not None
    assert found.container.cgroup.name.endswith(ID)
    assert kinds(box) == []


@real
def test_every_process_in_the_group_is_the_containers(box):
    """Also one that was put there later, and one in a group that the container has made for itself."""
    with started("sleep", "60") as second, started("sleep", "60") as third:
        group = seen(box).container.cgroup
        assert group is not None
        cgroup.join(group, second.pid)
        inner = group / "inner"
        inner.mkdir()
        for file in ("cpuset.mems", "cpuset.cpus"):
            if (inner / file).exists():  # in version 2 a group made so has none of its own
                (inner / file).write_text((group / file).read_text())
        cgroup.join(inner, third.pid)

        found = seen(box)
        from_inside = seen(replace(box, pid=third.pid))

        for one in (second, third):
            one.kill()
    assert found.pids == tuple(sorted((box.pid, second.pid, third.pid)))
    assert from_inside == replace(found, container=replace(found.container, pid=third.pid))


@real
def test_a_group_that_was_widened_is_found_and_put_back(box):
    group = seen(box).container.cgroup
    assert group is not None
    cgroup.write(group, PERMITTED, nodes=0)
    process.pin(box.pid, PERMITTED)

    found = list(containers.audit_container(seen(box)))
    troubles = containers.restore_container(seen(box))

    assert [drift.kind for drift in found] == [DriftKind.GROUP, DriftKind.CPUS]
    assert {(drift.uid, drift.name, drift.container) for drift in found} == {("u", "shop/web/app", "app")}
    assert (troubles, kinds(box)) == ((), [])


@real
def test_what_nobody_decided_on_is_nobodys_drift_and_stays(box):
    anywhere = replace(box, cpus=0)
    group = seen(box).container.cgroup
    assert group is not None
    before = cgroup.read(group)

    assert kinds(anywhere) == []
    assert containers.restore_container(seen(anywhere)) == ()
    assert cgroup.read(group) == before


@real
def test_memory_is_held_where_it_belongs_without_touching_the_cpus(box):
    everywhere = numa_nodes.read().with_memory
    bound = replace(box, cpus=0, memory=everywhere & -everywhere)
    group = seen(box).container.cgroup
    assert group is not None

    troubles = containers.restore_container(seen(bound))

    assert (troubles, kinds(bound)) == ((), [])
    assert cgroup.read(group) == Cpuset(LOWEST, bound.memory)
    assert set(memory.bytes_per_node(box.pid) or ()) <= {bound.memory.bit_length() - 1}


@real
def test_a_process_that_left_the_group_of_its_container_is_found_and_others_are_left_alone(box):
    group = seen(box).container.cgroup
    assert group is not None
    cgroup.join(group.parent, box.pid)
    process.pin(box.pid, PERMITTED)
    outside = cgroup.read(group.parent)

    found = list(containers.audit_container(seen(box)))
    (trouble,) = containers.restore_container(seen(box))

    assert [drift.kind for drift in found] == [DriftKind.CPUS, DriftKind.MEMBER]
    assert str(found[1]) == f"shop/web/app: process {box.pid}: intended in a group of container {ID}, actual in none"
    assert trouble.startswith("shop/web/app: its processes are in no group of its own; ")
    assert cgroup.read(group.parent) == outside
    assert os.sched_getaffinity(box.pid) == {LOWEST.bit_length() - 1}


def test_a_container_that_has_ended_is_not_there():
    with started("true") as ended:
        ended.wait()

        assert (
            containers.find_container_processes(
                PlacedContainer(uid="u", pod="shop/web", container="app", id=ID, pid=ended.pid)
            )
            is None
        )


def test_a_group_that_is_not_named_after_the_container_is_somebody_elses():
    own = PlacedContainer(uid="u", pod="shop/web", container="app", id=ID, pid=os.getpid())
    nameless = replace(own, id="")

    assert [seen(one).container.cgroup for one in (own, nameless)] == [None, None]
    assert seen(own).pids == (os.getpid(),)


@pytest.mark.parametrize("version", [1, 2])
def test_the_group_of_any_process_is_found_where_this_one_sees_groups(tmp_path, version):
    tree = Tree(tmp_path, path="/", version=version)
    tree.proc.rename(tmp_path / "self")
    group = tree.group("pod")
    (group / "cpuset.cpus").write_text("0-1\n")
    line = "0::" if version == 2 else "3:cpuset:"
    for pid, path in ((7, "/pod"), (8, "/../other/pod"), (9, "/nowhere")):
        (tmp_path / str(pid)).mkdir()
        (tmp_path / str(pid) / "cgroup").write_text(f"{line}{path}\n")

    assert [cgroup.cpuset_cgroup(pid, tmp_path) for pid in (7, 8, 9, 10)] == [group, None, None, None]


def test_the_version_that_has_cpusets_is_looked_at_where_there_are_both(tmp_path):
    """As on hosts where systemd has version 2 for itself, and leaves cpusets to version 1."""
    places = {"unified": "cgroup2 cgroup2 rw", "cpuset": "cgroup cgroup rw,cpuset"}
    mounts = [f"3{n} 1 0:{n} / {tmp_path / name} rw - {kind}\n" for n, (name, kind) in enumerate(places.items())]
    for folder in ("self", "7", "unified/pod", "cpuset/pod"):
        (tmp_path / folder).mkdir(parents=True)
    (tmp_path / "self/mountinfo").write_text("".join(mounts))
    (tmp_path / "7/cgroup").write_text("3:cpuset:/pod\n0::/pod\n")
    Path(tmp_path / "cpuset/pod/cpuset.cpus").write_text("0\n")

    assert cgroup.cpuset_cgroup(7, tmp_path) == tmp_path / "cpuset/pod"
