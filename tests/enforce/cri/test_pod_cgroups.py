"""The groups of pods: what they are called, what is written into them, and real ones where they may be made."""

import os
from dataclasses import replace
from pathlib import Path

import pytest

from alignup.align.errors import EnforceError
from alignup.align.workload import Pod, QoS
from alignup.enforce.cri.pod_cgroups import CGROUP_MOUNT, CgroupDriver, PodCgroups
from alignup.enforce.cri.resources import CgroupResources, NodeLimits, node_cgroup_resources, pod_cgroup_resources
from tests.strategies_pods import amounts, container, guaranteed

GIB = 1 << 30
UID = "1234-ab"
FIRM = Pod(
    name="firm", uid=UID, containers=(guaranteed("a", {"cpu": "500m", "memory": "1Gi", "hugepages-2Mi": "4Mi"}),)
)
LOOSE = Pod(name="loose", uid=UID, containers=(container("a", {"cpu": "250m"}),))
LEFT = Pod(name="left", uid=UID, containers=(container("a"),))
GROUND = NodeLimits(memory=8 * GIB, page_sizes=(2 << 20, GIB))

V1 = {
    "cpu": ("cpu.shares", "cpu.cfs_period_us", "cpu.cfs_quota_us"),
    "memory": ("memory.limit_in_bytes",),
    "hugetlb": ("hugetlb.2MB.limit_in_bytes", "hugetlb.1GB.limit_in_bytes"),
    "pids": ("pids.max",),
}
V2 = ("cpu.weight", "cpu.max", "memory.max", "hugetlb.2MB.max", "hugetlb.1GB.max", "pids.max")
CONTROL = ("cgroup.controllers", "cgroup.subtree_control")

real = pytest.mark.skipif(
    not os.access(CGROUP_MOUNT / "cpu", os.W_OK) or not os.access(CGROUP_MOUNT / "memory", os.W_OK),
    reason="no groups of version 1 may be made here by this user",
)


def tree(top: Path, *, version: int = 2, without: str = "", groups: tuple[str, ...]) -> PodCgroups:
    """Hierarchies in which *groups* are, as files, as the kernel would show them."""
    if version == 2:
        for group in ("", *groups):
            fill(top / group, *CONTROL, *(name for name in V2 if not (without and name.startswith(without))))
            (top / group / "cgroup.controllers").write_text(" ".join({"cpu", "memory", "hugetlb", "io"} - {without}))
    else:
        for controller, files in V1.items():
            for group in groups if controller != without else ():
                fill(top / controller / group, *files)
    return PodCgroups(top=top)


def fill(folder: Path, *names: str) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for name in names:
        (folder / name).write_text("")


def line_of(path):
    """What was written: one line, whole."""
    text = path.read_text()
    assert text.count("\n") == 1
    assert text.endswith("\n")
    return text[:-1]


def written(folder: Path) -> dict[str, str]:
    """Every file of a group into which something was written."""
    files = (path for path in folder.iterdir() if path.is_file() and path.name not in CONTROL)
    return {path.name: line_of(path) for path in files if path.stat().st_size}


@pytest.mark.parametrize(
    ("pod", "by_path", "by_slice"),
    [
        pytest.param(FIRM, "/alignup/pod1234-ab", "alignup-pod1234_ab.slice", id="Guaranteed"),
        pytest.param(
            LOOSE, "/alignup/burstable/pod1234-ab", "alignup-burstable-pod1234_ab.slice", id="Burstable pods together"
        ),
        pytest.param(
            LEFT, "/alignup/besteffort/pod1234-ab", "alignup-besteffort-pod1234_ab.slice", id="BestEffort pods together"
        ),
    ],
)
def test_what_the_group_of_a_pod_is_called(pod, by_path, by_slice):
    assert PodCgroups().parent(pod) == by_path
    assert PodCgroups(driver=CgroupDriver.SYSTEMD).parent(pod) == by_slice


def test_the_root_may_be_further_down():
    assert PodCgroups(root="/my-node/pods/").parent(FIRM) == "/my-node/pods/pod1234-ab"
    assert (
        PodCgroups(root="/my-node/pods/", driver=CgroupDriver.SYSTEMD).parent(FIRM) == "my_node-pods-pod1234_ab.slice"
    )


@pytest.mark.parametrize("uid", ["", "../../etc", "a/b", "a b", "a\n", "ü"])
def test_a_name_that_would_lead_elsewhere_is_refused(uid):
    with pytest.raises(EnforceError, match="there can be no group for pod firm"):
        PodCgroups().parent(Pod(name="firm", uid=uid, recorded_qos=QoS.GUARANTEED))


def test_two_pods_never_have_one_slice():
    with pytest.raises(EnforceError):
        PodCgroups(driver=CgroupDriver.SYSTEMD).parent(Pod(name="p", uid="1234_ab"))


def test_a_group_of_version_2(tmp_path):
    groups = tree(tmp_path, groups=("alignup", f"alignup/pod{UID}"))

    notes = groups.make(FIRM, pod_cgroup_resources(FIRM, ground=GROUND))

    assert notes == ()
    assert written(tmp_path / "alignup" / f"pod{UID}") == {
        "cpu.weight": "20",
        "cpu.max": "50000 100000",
        "memory.max": str(GIB),
        "hugetlb.2MB.max": str(4 << 20),
        "hugetlb.1GB.max": "0",
    }
    assert (tmp_path / "cgroup.subtree_control").read_text().startswith("+")


def test_a_group_of_version_1(tmp_path):
    groups = tree(tmp_path, version=1, groups=(f"alignup/pod{UID}",))

    notes = groups.make(FIRM, pod_cgroup_resources(FIRM, ground=GROUND, exclusive=True))

    assert notes == ()
    assert written(tmp_path / "cpu" / "alignup" / f"pod{UID}") == {
        "cpu.shares": "512",
        "cpu.cfs_period_us": "100000",
        "cpu.cfs_quota_us": "-1",
    }
    assert written(tmp_path / "memory" / "alignup" / f"pod{UID}") == {"memory.limit_in_bytes": str(GIB)}
    assert written(tmp_path / "hugetlb" / "alignup" / f"pod{UID}")["hugetlb.2MB.limit_in_bytes"] == str(4 << 20)


@pytest.mark.parametrize("version", [1, 2])
def test_a_pod_may_have_so_many_processes(tmp_path, version):
    groups = tree(tmp_path, version=version, groups=("alignup", f"alignup/pod{UID}"))

    notes = groups.make(FIRM, pod_cgroup_resources(FIRM, ground=replace(GROUND, processes=100)))

    top = tmp_path / "pids" if version == 1 else tmp_path
    assert notes == ()
    assert line_of(top / "alignup" / f"pod{UID}" / "pids.max") == "100"


@pytest.mark.parametrize(
    ("version", "expected"),
    [
        pytest.param(1, {"cpu/cpu.shares": "7168", "memory/memory.limit_in_bytes": str(GIB)}, id="version 1"),
        pytest.param(2, {"cpu.weight": "274", "memory.max": str(GIB), "hugetlb.2MB.max": "0"}, id="version 2"),
    ],
)
def test_all_pods_together_are_held_to_what_is_left_to_them(tmp_path, version, expected):
    groups = tree(tmp_path, version=version, groups=("alignup",))

    notes = groups.limit(node_cgroup_resources(amounts({"cpu": "7", "memory": "1Gi"}), ground=GROUND))

    assert notes == ()
    for name, text in expected.items():
        *controller, file = name.split("/")
        assert line_of(tmp_path.joinpath(*controller, "alignup", file)) == text


def test_no_limit_in_version_2_is_called_max(tmp_path):
    groups = tree(tmp_path, groups=("alignup", f"alignup/pod{UID}"))

    groups.make(FIRM, pod_cgroup_resources(FIRM, ground=GROUND, exclusive=True))

    assert written(tmp_path / "alignup" / f"pod{UID}")["cpu.max"] == "max 100000"


@pytest.mark.parametrize("version", [1, 2])
def test_a_pod_that_asked_for_nothing_gets_what_others_leave(tmp_path, version):
    groups = tree(tmp_path, version=version, groups=("alignup", "alignup/besteffort", f"alignup/besteffort/pod{UID}"))
    folder = tmp_path / ("cpu" if version == 1 else "") / "alignup" / "besteffort"
    file, least = ("cpu.shares", "2") if version == 1 else ("cpu.weight", "1")

    notes = groups.make(LEFT, pod_cgroup_resources(LEFT, ground=GROUND))

    assert notes == ()
    assert line_of(folder / file) == least
    assert line_of(folder / f"pod{UID}" / file) == least


@pytest.mark.parametrize("version", [1, 2])
def test_pods_of_a_class_share_what_they_asked_for_together(tmp_path, version):
    groups = tree(tmp_path, version=version, groups=("alignup", "alignup/burstable"))
    folder = tmp_path / ("cpu" if version == 1 else "") / "alignup" / "burstable"
    file, expected = ("cpu.shares", "768") if version == 1 else ("cpu.weight", "30")

    notes = groups.balance([LOOSE, FIRM, LOOSE, LEFT, LOOSE])

    assert notes == ()
    assert line_of(folder / file) == expected


@pytest.mark.parametrize("version", [1, 2])
def test_what_the_kernel_does_not_count_is_told_and_keeps_nobody_from_running(tmp_path, version):
    groups = tree(tmp_path, version=version, without="hugetlb", groups=("alignup", f"alignup/pod{UID}"))

    (note,) = groups.make(FIRM, pod_cgroup_resources(FIRM, ground=GROUND))

    # Of the other size nothing was asked for, and nobody misses it.
    assert "hugetlb.2MB" in note
    assert f"nobody is held to {4 << 20}" in note


def test_what_is_refused_is_told(tmp_path):
    groups = tree(tmp_path, groups=("alignup", f"alignup/pod{UID}"))
    refusing = tmp_path / "alignup" / f"pod{UID}" / "memory.max"
    refusing.unlink()
    refusing.mkdir()

    (note,) = groups.make(FIRM, pod_cgroup_resources(FIRM, ground=GROUND))

    assert note == f"{refusing} did not take {GIB}: Is a directory"


def test_where_there_can_be_no_group_the_error_says_where(tmp_path):
    groups = tree(tmp_path, groups=())
    (tmp_path / "alignup").write_text("")

    with pytest.raises(EnforceError, match=f"there can be no group alignup/pod{UID}: {tmp_path}/alignup"):
        groups.make(FIRM, CgroupResources(cpu_shares=2))


def test_systemd_makes_its_groups_itself(tmp_path):
    groups = PodCgroups(top=tmp_path, driver=CgroupDriver.SYSTEMD)

    made, balanced, removed = (
        groups.make(FIRM, CgroupResources(cpu_shares=2)),
        groups.balance([LOOSE]),
        groups.remove(FIRM),
    )

    assert (made, balanced, removed, list(tmp_path.iterdir())) == ((), (), True, [])


def test_a_group_is_removed_from_every_hierarchy_with_the_empty_ones_in_it(tmp_path):
    for controller in ("cpu", "memory", "pids", "freezer"):
        (tmp_path / controller / "alignup" / f"pod{UID}" / "container").mkdir(parents=True)
    groups = PodCgroups(top=tmp_path)

    assert groups.remove(FIRM)
    assert groups.remove(FIRM)
    assert {path.name for path in tmp_path.glob("*/alignup") if not any(path.iterdir())} == {"alignup"}


def test_a_group_with_something_in_it_stays(tmp_path):
    inside = tmp_path / "cpu" / "alignup" / f"pod{UID}" / "container"
    inside.mkdir(parents=True)
    (tmp_path / "memory" / "alignup" / f"pod{UID}").mkdir(parents=True)
    (inside / "busy").write_text("")

    assert not PodCgroups(top=tmp_path).remove(FIRM)
    assert not (tmp_path / "memory" / "alignup" / f"pod{UID}").exists()


@pytest.mark.parametrize(
    ("files", "expected"),
    [
        pytest.param(("cgroup.controllers",), (True, False), id="version 2"),
        pytest.param(
            ("cgroup.controllers", "own/memory.swap.max"), (True, True), id="version 2, swap in our own group"
        ),
        pytest.param(
            ("cgroup.controllers", "alignup/memory.swap.max"), (True, True), id="version 2, swap in pods' groups"
        ),
        pytest.param((), (False, False), id="version 1"),
        pytest.param(("memory/memory.memsw.limit_in_bytes",), (False, True), id="version 1 with swap"),
    ],
)
def test_what_limits_depend_on(tmp_path, files, expected):
    top, sysfs = tmp_path / "top", tmp_path / "sys"
    for file in files:
        fill((top / file).parent, Path(file).name)
    for name in ("hugepages-1048576kB", "hugepages-2048kB"):
        (sysfs / "kernel/mm/hugepages" / name).mkdir(parents=True)
    (tmp_path / "cgroup").write_text("4:memory:/other\n0::/own\n")

    ground = PodCgroups(top=top).ground(memory=GIB, sysfs=sysfs, proc=tmp_path)

    assert (ground.unified, ground.swap) == expected
    assert (ground.memory, ground.page_sizes) == (GIB, (2 << 20, GIB))


@real
def test_a_real_group_of_version_1():
    groups = PodCgroups(root=f"alignup-test-{os.getpid()}")
    place = Path("cpu", *groups.parent(LOOSE).split("/")[1:])
    try:
        notes = groups.make(
            LOOSE, CgroupResources(cpu_shares=256, cpu_quota=20_000, cpu_period=100_000, memory_limit=GIB)
        )
        again = groups.make(LOOSE, CgroupResources(cpu_shares=512, cpu_quota=-1, cpu_period=100_000, memory_limit=GIB))
        told = {name: (CGROUP_MOUNT / place / name).read_text().strip() for name in V1["cpu"]}
        limit = (CGROUP_MOUNT / "memory" / place.relative_to("cpu") / "memory.limit_in_bytes").read_text().strip()
        gone = groups.remove(LOOSE)
    finally:
        for controller in ("cpu", "memory"):
            for folder in (place.relative_to("cpu"), *place.relative_to("cpu").parents[:-1]):
                if (CGROUP_MOUNT / controller / folder).exists():
                    (CGROUP_MOUNT / controller / folder).rmdir()

    assert (notes, again, gone) == ((), (), True)
    assert told == {"cpu.shares": "512", "cpu.cfs_period_us": "100000", "cpu.cfs_quota_us": "-1"}
    assert limit == str(GIB)
