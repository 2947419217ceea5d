"""Cpusets: where cgroups can be created, in trees of both versions, and real ones where that is permitted."""

import os
from pathlib import Path
from uuid import uuid4

import pytest

from alignup.align import bits
from alignup.align.errors import EnforceError
from alignup.run import cgroup, process
from alignup.run.cgroup import Cpuset
from tests.deadlines import wait_for
from tests.run.commands import started

PERMITTED = process.permitted_cpus()
LOWEST = PERMITTED & -PERMITTED

real = pytest.mark.skipif(not cgroup.candidate_parents(), reason="this user cannot create cpusets here")


class Tree:
    """A process and the cgroups it sees, as plain files."""

    def __init__(self, root: Path, *, path: str, mount: str = "/", version: int = 2) -> None:
        self.proc, self.top, self.version = root / "proc", root / "a group", version
        self.proc.mkdir()
        self.group("", procs="1 2", kind="" if mount == "/" else "domain")
        kind, line = ("cgroup2", f"0::{path}") if version == 2 else ("cgroup", f"3:cpuset:{path}")
        options = "rw" if version == 2 else "rw,cpuset"
        point = str(self.top).replace(" ", "\\040")
        mounts = ("22 1 0:5 / / rw - ext4 disk rw", f"30 22 0:9 {mount} {point} rw - {kind} {kind} {options}")
        (self.proc / "cgroup").write_text(f"1:name=systemd:/\n{line}\n")
        (self.proc / "mountinfo").write_text("".join(f"{mount}\n" for mount in mounts))

    def group(
        self, name: str, *, controllers: str = "cpu cpuset", cpus: str = "0-3", procs: str = "", kind: str = "domain"
    ) -> Path:
        directory = self.top / name
        directory.mkdir(exist_ok=True)
        (directory / "cgroup.procs").write_text(procs)
        if self.version == 1:
            for file, value in (("cpuset.cpus", cpus), ("cpuset.mems", "0")):
                (directory / file).write_text(f"{value}\n")
                (directory / file.replace(".", ".effective_")).write_text(f"{value}\n")
            return directory
        if kind:  # the root cgroup has no type
            (directory / "cgroup.type").write_text(f"{kind}\n")
        (directory / "cgroup.controllers").write_text(f"{controllers}\n")
        (directory / "cgroup.subtree_control").write_text("cpu\n")
        (directory / "cpuset.cpus.effective").write_text(f"{cpus}\n")
        (directory / "cpuset.mems.effective").write_text("0\n")
        return directory


def test_version_1_prefers_the_nearest_ancestor(tmp_path):
    tree = Tree(tmp_path, path="/user", version=1)
    group = tree.group("user", cpus="2-3", procs="2")

    assert cgroup.candidate_parents(tree.proc) == (group, tree.top)
    assert cgroup.effective_cpuset(tree.proc) == Cpuset(bits.parse("2-3"), bits.parse("0"))


def test_version_2_skips_cgroups_with_processes(tmp_path):
    tree = Tree(tmp_path, path="/user/session")
    user = tree.group("user")
    tree.group("user/session", cpus="2-3", procs="2")

    assert cgroup.candidate_parents(tree.proc) == (user, tree.top)
    assert cgroup.effective_cpuset(tree.proc) == Cpuset(bits.parse("2-3"), bits.parse("0"))


def test_cgroups_without_cpusets_are_skipped(tmp_path):
    tree = Tree(tmp_path, path="/user")
    tree.group("user", controllers="cpu memory")

    assert cgroup.candidate_parents(tree.proc) == (tree.top,)


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
def test_cgroups_without_write_permission_are_skipped(tmp_path):
    tree = Tree(tmp_path, path="/user")
    tree.group("user").chmod(0o500)

    assert cgroup.candidate_parents(tree.proc) == (tree.top,)


@pytest.mark.parametrize("version", [1, 2])
def test_a_run_inside_a_run_becomes_its_sibling(tmp_path, version):
    tree = Tree(tmp_path, path="/user/alignup-1/deeper", version=version)
    group = tree.group("user")
    tree.group("user/alignup-1", cpus="3")
    tree.group("user/alignup-1/deeper", cpus="3", procs="2")

    assert cgroup.candidate_parents(tree.proc) == (group, tree.top)
    assert cgroup.effective_cpuset(tree.proc) == Cpuset(bits.parse("0-3"), bits.parse("0"))


def test_a_process_may_see_only_part_of_the_tree(tmp_path):
    """As in a container, whose topmost cgroup has processes and is not the root."""
    tree = Tree(tmp_path, path="/kubepods/pod/inner", mount="/kubepods/pod")
    group = tree.group("inner")

    assert cgroup.candidate_parents(tree.proc) == (group,)


def test_a_cgroup_outside_of_the_visible_tree_is_not_used(tmp_path):
    tree = Tree(tmp_path, path="/../elsewhere", mount="/kubepods")

    assert cgroup.candidate_parents(tree.proc) == ()
    assert cgroup.effective_cpuset(tree.proc) is None
    with pytest.raises(EnforceError, match="no cgroup with a cpuset controller is writable"):
        cgroup.create("x", 1, nodes=0, proc=tree.proc)


def test_a_cgroup_without_an_effective_cpuset_is_removed(tmp_path):
    """Plain files have no effect, unlike a cpuset."""
    tree = Tree(tmp_path, path="/")

    with pytest.raises(EnforceError, match="cannot create a cpuset for x: cannot set the cpuset to CPUs 1"):
        cgroup.create("x", 2, nodes=0, proc=tree.proc)
    assert not (tree.top / "alignup-x").exists()
    assert (tree.top / "cgroup.subtree_control").read_text() == "+cpuset\n"


@real
def test_a_real_cgroup_confines_its_processes_and_is_removed_after_them():
    all_nodes = process.NodeMap.read().with_memory
    directory = cgroup.create(f"test-{uuid4()}", LOWEST, nodes=all_nodes)
    try:
        with started("sleep", "60") as sleeper:
            cgroup.join(directory, sleeper.pid)
            inside = cgroup.members(directory)
            affinity = bits.of(os.sched_getaffinity(sleeper.pid))
            too_early = cgroup.remove(directory)
            cgroup.write(directory, PERMITTED, nodes=all_nodes)
            wider = cgroup.read(directory)

        assert (inside, affinity, too_early) == ((sleeper.pid,), LOWEST, False)
        assert wider is not None
        assert wider.cpus == PERMITTED
    finally:
        wait_for(lambda: cgroup.remove(directory))
    assert cgroup.read(directory) is None
    assert cgroup.members(directory) == ()


@real
def test_missing_cpus_are_an_error():
    name = f"test-{uuid4()}"
    with pytest.raises(EnforceError, match=f"cannot create a cpuset for {name}"):
        cgroup.create(name, 1 << 9999, nodes=0)
    assert not [directory for directory in cgroup.candidate_parents() if (directory / f"alignup-{name}").exists()]
