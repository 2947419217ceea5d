"""Cpusets: where groups may be made, in trees of both versions, and real ones where that is permitted."""

import os
from pathlib import Path

import pytest

from alignup.align import bits
from alignup.align.errors import EnforceError
from alignup.enforce import cgroup, numa_nodes, process
from alignup.enforce.cgroup import Cpuset
from tests.enforce.commands import started

PERMITTED = process.permitted_cpus()
LOWEST = PERMITTED & -PERMITTED

real = pytest.mark.skipif(not cgroup.candidate_parents(), reason="no cpuset may be made here by this user")


class Tree:
    """A process and the cgroups it sees, as files."""

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
        folder = self.top / name
        folder.mkdir(exist_ok=True)
        (folder / "cgroup.procs").write_text(procs)
        if self.version == 1:
            for file, value in (("cpuset.cpus", cpus), ("cpuset.mems", "0")):
                (folder / file).write_text(f"{value}\n")
                (folder / file.replace(".", ".effective_")).write_text(f"{value}\n")
            return folder
        if kind:  # the root of all groups has none
            (folder / "cgroup.type").write_text(f"{kind}\n")
        (folder / "cgroup.controllers").write_text(f"{controllers}\n")
        (folder / "cgroup.subtree_control").write_text("cpu\n")
        (folder / "cpuset.cpus.effective").write_text(f"{cpus}\n")
        (folder / "cpuset.mems.effective").write_text("0\n")
        return folder


def test_in_version_1_groups_are_made_beside_us_and_then_further_up(tmp_path):
    tree = Tree(tmp_path, path="/user", version=1)
    own = tree.group("user", cpus="2-3", procs="2")

    assert cgroup.candidate_parents(tree.proc) == (own, tree.top)
    assert cgroup.effective_cpuset(tree.proc) == Cpuset(bits.parse("2-3"), bits.parse("0"))


def test_in_version_2_a_group_with_processes_is_passed_over(tmp_path):
    tree = Tree(tmp_path, path="/user/session")
    user = tree.group("user")
    tree.group("user/session", cpus="2-3", procs="2")

    assert cgroup.candidate_parents(tree.proc) == (user, tree.top)
    assert cgroup.effective_cpuset(tree.proc) == Cpuset(bits.parse("2-3"), bits.parse("0"))


def test_a_group_without_cpusets_is_passed_over(tmp_path):
    tree = Tree(tmp_path, path="/user")
    tree.group("user", controllers="cpu memory")

    assert cgroup.candidate_parents(tree.proc) == (tree.top,)


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
def test_a_group_of_somebody_else_is_passed_over(tmp_path):
    tree = Tree(tmp_path, path="/user")
    tree.group("user").chmod(0o500)

    assert cgroup.candidate_parents(tree.proc) == (tree.top,)


@pytest.mark.parametrize("version", [1, 2])
def test_a_run_inside_a_run_stands_beside_it(tmp_path, version):
    tree = Tree(tmp_path, path="/user/alignup-1/deeper", version=version)
    own = tree.group("user")
    tree.group("user/alignup-1", cpus="3")
    tree.group("user/alignup-1/deeper", cpus="3", procs="2")

    assert cgroup.candidate_parents(tree.proc) == (own, tree.top)
    assert cgroup.effective_cpuset(tree.proc) == Cpuset(bits.parse("0-3"), bits.parse("0"))


def test_a_part_of_the_tree_may_be_all_there_is_to_see(tmp_path):
    """As in a container, whose topmost group has processes and is not the root of all."""
    tree = Tree(tmp_path, path="/kubepods/pod/inner", mount="/kubepods/pod")
    own = tree.group("inner")

    assert cgroup.candidate_parents(tree.proc) == (own,)


def test_what_is_outside_of_what_can_be_seen_is_no_place(tmp_path):
    tree = Tree(tmp_path, path="/../elsewhere", mount="/kubepods")

    assert cgroup.candidate_parents(tree.proc) == ()
    assert cgroup.effective_cpuset(tree.proc) is None
    with pytest.raises(EnforceError, match="no cpuset is to be had where this process may make groups"):
        cgroup.create("x", 1, nodes=0, proc=tree.proc)


def test_a_kernel_that_grants_something_else_is_not_believed(tmp_path):
    """Files of a plain tree do what no cpuset does: nothing."""
    tree = Tree(tmp_path, path="/")

    with pytest.raises(EnforceError, match="there is no cpuset for x: the group of CPUs 1 cannot be made so"):
        cgroup.create("x", 2, nodes=0, proc=tree.proc)
    assert not (tree.top / "alignup-x").exists()
    assert (tree.top / "cgroup.subtree_control").read_text() == "+cpuset\n"


@real
def test_a_real_group_holds_its_processes_and_is_removed_after_them():
    all_nodes = numa_nodes.read().with_memory
    folder = cgroup.create("test-real", LOWEST, nodes=all_nodes)
    with started("sleep", "60") as sleeper:
        cgroup.join(folder, sleeper.pid)
        inside = cgroup.members(folder)
        held = bits.of(os.sched_getaffinity(sleeper.pid))
        too_early = cgroup.remove(folder)
        cgroup.write(folder, PERMITTED, nodes=all_nodes)
        wider = cgroup.read(folder)
        sleeper.kill()

    assert (inside, held, too_early) == ((sleeper.pid,), LOWEST, False)
    assert wider is not None
    assert wider.cpus == PERMITTED
    assert cgroup.remove(folder)
    assert cgroup.read(folder) is None
    assert cgroup.members(folder) == ()


@real
def test_cpus_that_are_not_there_make_no_group():
    with pytest.raises(EnforceError, match="there is no cpuset for test-none"):
        cgroup.create("test-none", 1 << 9999, nodes=0)
    assert not [folder for folder in cgroup.candidate_parents() if (folder / "alignup-test-none").exists()]
