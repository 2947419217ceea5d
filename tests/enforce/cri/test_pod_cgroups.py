"""The cgroups of pods: their names and settings, and real ones where this user may create them."""

import os
from dataclasses import replace
from pathlib import Path

import pytest

from alignup.align.errors import EnforceError
from alignup.align.workload import Pod, QoS
from alignup.run.cri.pod_cgroups import CGROUP_MOUNT, CgroupDriver, PodCgroups
from alignup.run.cri.resources import CgroupResources, NodeLimits, node_cgroup_resources, pod_cgroup_resources
from tests.strategies_pods import amounts, container, guaranteed

GIB = 1 << 30
UID = "1234-ab"
GUARANTEED = Pod(
    name="guaranteed", uid=UID, containers=(guaranteed("a", {"cpu": "500m", "memory": "1Gi", "hugepages-2Mi": "4Mi"}),)
)
BURSTABLE = Pod(name="burstable", uid=UID, containers=(container("a", {"cpu": "250m"}),))
BEST_EFFORT = Pod(name="besteffort", uid=UID, containers=(container("a"),))
NODE_LIMITS = NodeLimits(memory=8 * GIB, page_sizes=(2 << 20, GIB))

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
    reason="this user cannot create cgroups of version 1 here",
)


def tree(mount: Path, *, version: int = 2, without: str = "", groups: tuple[str, ...]) -> PodCgroups:
    """Create hierarchies with *groups* as plain files."""
    if version == 2:
        for group in ("", *groups):
            fill(mount / group, *CONTROL, *(name for name in V2 if not (without and name.startswith(without))))
            (mount / group / "cgroup.controllers").write_text(" ".join({"cpu", "memory", "hugetlb", "io"} - {without}))
    else:
        for controller, files in V1.items():
            for group in groups if controller != without else ():
                fill(mount / controller / group, *files)
    return PodCgroups(mount=mount)


def fill(directory: Path, *names: str) -> None:
    directory.mkdir(parents=True, exist_ok=True)
    for name in names:
        (directory / name).write_text("")


def line_of(path):
    """Return the single line of a file."""
    text = path.read_text()
    assert text.count("\n") == 1
    assert text.endswith("\n")
    return text[:-1]


def written(directory: Path) -> dict[str, str]:
    """Return the files of a cgroup that were written."""
    files = (path for path in directory.iterdir() if path.is_file() and path.name not in CONTROL)
    return {path.name: line_of(path) for path in files if path.stat().st_size}


@pytest.mark.parametrize(
    ("pod", "by_path", "by_slice"),
    [
        pytest.param(GUARANTEED, "/alignup/pod1234-ab", "alignup-pod1234_ab.slice", id="Guaranteed"),
        pytest.param(BURSTABLE, "/alignup/burstable/pod1234-ab", "alignup-burstable-pod1234_ab.slice", id="Burstable"),
        pytest.param(
            BEST_EFFORT, "/alignup/besteffort/pod1234-ab", "alignup-besteffort-pod1234_ab.slice", id="BestEffort"
        ),
    ],
)
def test_the_parent_of_a_pod(pod, by_path, by_slice):
    assert PodCgroups().parent(pod) == by_path
    assert PodCgroups(driver=CgroupDriver.SYSTEMD).parent(pod) == by_slice


def test_the_root_may_be_nested():
    assert PodCgroups(root="/my-node/pods/").parent(GUARANTEED) == "/my-node/pods/pod1234-ab"
    assert (
        PodCgroups(root="/my-node/pods/", driver=CgroupDriver.SYSTEMD).parent(GUARANTEED)
        == "my_node-pods-pod1234_ab.slice"
    )


@pytest.mark.parametrize("uid", ["", "../../etc", "a/b", "a b", "a\n", "ü"])
def test_an_invalid_uid_is_rejected(uid):
    with pytest.raises(EnforceError, match="cannot create a cgroup for pod guaranteed"):
        PodCgroups().parent(Pod(name="guaranteed", uid=uid, recorded_qos=QoS.GUARANTEED))


def test_two_pods_never_share_a_slice():
    with pytest.raises(EnforceError):
        PodCgroups(driver=CgroupDriver.SYSTEMD).parent(Pod(name="p", uid="1234_ab"))


def test_a_cgroup_of_version_2(tmp_path):
    groups = tree(tmp_path, groups=("alignup", f"alignup/pod{UID}"))

    notes = groups.create(GUARANTEED, pod_cgroup_resources(GUARANTEED, node_limits=NODE_LIMITS))

    assert notes == ()
    assert written(tmp_path / "alignup" / f"pod{UID}") == {
        "cpu.weight": "20",
        "cpu.max": "50000 100000",
        "memory.max": str(GIB),
        "hugetlb.2MB.max": str(4 << 20),
        "hugetlb.1GB.max": "0",
    }
    assert (tmp_path / "cgroup.subtree_control").read_text().startswith("+")


def test_a_cgroup_of_version_1(tmp_path):
    groups = tree(tmp_path, version=1, groups=(f"alignup/pod{UID}",))

    notes = groups.create(GUARANTEED, pod_cgroup_resources(GUARANTEED, node_limits=NODE_LIMITS, exclusive=True))

    assert notes == ()
    assert written(tmp_path / "cpu" / "alignup" / f"pod{UID}") == {
        "cpu.shares": "512",
        "cpu.cfs_period_us": "100000",
        "cpu.cfs_quota_us": "-1",
    }
    assert written(tmp_path / "memory" / "alignup" / f"pod{UID}") == {"memory.limit_in_bytes": str(GIB)}
    assert written(tmp_path / "hugetlb" / "alignup" / f"pod{UID}")["hugetlb.2MB.limit_in_bytes"] == str(4 << 20)


@pytest.mark.parametrize("version", [1, 2])
def test_the_pids_of_a_pod_are_limited(tmp_path, version):
    groups = tree(tmp_path, version=version, groups=("alignup", f"alignup/pod{UID}"))

    notes = groups.create(
        GUARANTEED, pod_cgroup_resources(GUARANTEED, node_limits=replace(NODE_LIMITS, pids_limit=100))
    )

    mount = tmp_path / "pids" if version == 1 else tmp_path
    assert notes == ()
    assert line_of(mount / "alignup" / f"pod{UID}" / "pids.max") == "100"


@pytest.mark.parametrize(
    ("version", "expected"),
    [
        pytest.param(1, {"cpu/cpu.shares": "7168", "memory/memory.limit_in_bytes": str(GIB)}, id="version 1"),
        pytest.param(2, {"cpu.weight": "274", "memory.max": str(GIB), "hugetlb.2MB.max": "0"}, id="version 2"),
    ],
)
def test_all_pods_together_are_limited_to_node_allocatable(tmp_path, version, expected):
    groups = tree(tmp_path, version=version, groups=("alignup",))

    notes = groups.limit_all_pods(
        node_cgroup_resources(amounts({"cpu": "7", "memory": "1Gi"}), node_limits=NODE_LIMITS)
    )

    assert notes == ()
    for name, text in expected.items():
        *controller, file = name.split("/")
        assert line_of(tmp_path.joinpath(*controller, "alignup", file)) == text


def test_version_2_writes_no_limit_as_max(tmp_path):
    groups = tree(tmp_path, groups=("alignup", f"alignup/pod{UID}"))

    groups.create(GUARANTEED, pod_cgroup_resources(GUARANTEED, node_limits=NODE_LIMITS, exclusive=True))

    assert written(tmp_path / "alignup" / f"pod{UID}")["cpu.max"] == "max 100000"


@pytest.mark.parametrize("version", [1, 2])
def test_a_best_effort_pod_gets_the_least_shares(tmp_path, version):
    groups = tree(tmp_path, version=version, groups=("alignup", "alignup/besteffort", f"alignup/besteffort/pod{UID}"))
    directory = tmp_path / ("cpu" if version == 1 else "") / "alignup" / "besteffort"
    file, least = ("cpu.shares", "2") if version == 1 else ("cpu.weight", "1")

    notes = groups.create(BEST_EFFORT, pod_cgroup_resources(BEST_EFFORT, node_limits=NODE_LIMITS))

    assert notes == ()
    assert line_of(directory / file) == least
    assert line_of(directory / f"pod{UID}" / file) == least


@pytest.mark.parametrize("version", [1, 2])
def test_burstable_pods_share_the_sum_of_their_requests(tmp_path, version):
    groups = tree(tmp_path, version=version, groups=("alignup", "alignup/burstable"))
    directory = tmp_path / ("cpu" if version == 1 else "") / "alignup" / "burstable"
    file, expected = ("cpu.shares", "768") if version == 1 else ("cpu.weight", "30")

    notes = groups.set_burstable_shares([BURSTABLE, GUARANTEED, BURSTABLE, BEST_EFFORT, BURSTABLE])

    assert notes == ()
    assert line_of(directory / file) == expected


@pytest.mark.parametrize("version", [1, 2])
def test_a_missing_controller_is_noted(tmp_path, version):
    groups = tree(tmp_path, version=version, without="hugetlb", groups=("alignup", f"alignup/pod{UID}"))

    (note,) = groups.create(GUARANTEED, pod_cgroup_resources(GUARANTEED, node_limits=NODE_LIMITS))

    # The pod requests nothing of the other size, so that one is not worth a note.
    assert "hugetlb.2MB" in note
    assert f"the limit {4 << 20} is not enforced" in note


def test_a_failed_write_is_noted(tmp_path):
    groups = tree(tmp_path, groups=("alignup", f"alignup/pod{UID}"))
    unwritable = tmp_path / "alignup" / f"pod{UID}" / "memory.max"
    unwritable.unlink()
    unwritable.mkdir()

    (note,) = groups.create(GUARANTEED, pod_cgroup_resources(GUARANTEED, node_limits=NODE_LIMITS))

    assert note == f"cannot write {GIB} to {unwritable}: Is a directory"


def test_an_impossible_cgroup_is_an_error_with_its_path(tmp_path):
    groups = tree(tmp_path, groups=())
    (tmp_path / "alignup").write_text("")

    with pytest.raises(EnforceError, match=f"cannot create cgroup alignup/pod{UID}: {tmp_path}/alignup"):
        groups.create(GUARANTEED, CgroupResources(cpu_shares=2))


def test_systemd_creates_its_own_cgroups(tmp_path):
    groups = PodCgroups(mount=tmp_path, driver=CgroupDriver.SYSTEMD)

    created, shares, removed = (
        groups.create(GUARANTEED, CgroupResources(cpu_shares=2)),
        groups.set_burstable_shares([BURSTABLE]),
        groups.remove(GUARANTEED),
    )

    assert (created, shares, removed, list(tmp_path.iterdir())) == ((), (), True, [])


def test_a_cgroup_is_removed_from_every_hierarchy_with_its_empty_children(tmp_path):
    for controller in ("cpu", "memory", "pids", "freezer"):
        (tmp_path / controller / "alignup" / f"pod{UID}" / "container").mkdir(parents=True)
    groups = PodCgroups(mount=tmp_path)

    assert groups.remove(GUARANTEED)
    assert groups.remove(GUARANTEED)
    assert {path.name for path in tmp_path.glob("*/alignup") if not any(path.iterdir())} == {"alignup"}


def test_a_cgroup_in_use_stays(tmp_path):
    inside = tmp_path / "cpu" / "alignup" / f"pod{UID}" / "container"
    inside.mkdir(parents=True)
    (tmp_path / "memory" / "alignup" / f"pod{UID}").mkdir(parents=True)
    (inside / "busy").write_text("")

    assert not PodCgroups(mount=tmp_path).remove(GUARANTEED)
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
def test_node_limits(tmp_path, files, expected):
    mount, sysfs = tmp_path / "mount", tmp_path / "sys"
    for file in files:
        fill((mount / file).parent, Path(file).name)
    for name in ("hugepages-1048576kB", "hugepages-2048kB"):
        (sysfs / "kernel/mm/hugepages" / name).mkdir(parents=True)
    (tmp_path / "cgroup").write_text("4:memory:/other\n0::/own\n")

    limits = PodCgroups(mount=mount).node_limits(memory=GIB, sysfs=sysfs, proc=tmp_path)

    assert (limits.unified, limits.swap) == expected
    assert (limits.memory, limits.page_sizes) == (GIB, (2 << 20, GIB))


@real
def test_a_real_cgroup_of_version_1():
    groups = PodCgroups(root=f"alignup-test-{os.getpid()}")
    place = Path("cpu", *groups.parent(BURSTABLE).split("/")[1:])
    try:
        notes = groups.create(
            BURSTABLE, CgroupResources(cpu_shares=256, cpu_quota=20_000, cpu_period=100_000, memory_limit=GIB)
        )
        again = groups.create(
            BURSTABLE, CgroupResources(cpu_shares=512, cpu_quota=-1, cpu_period=100_000, memory_limit=GIB)
        )
        written = {name: (CGROUP_MOUNT / place / name).read_text().strip() for name in V1["cpu"]}
        limit = (CGROUP_MOUNT / "memory" / place.relative_to("cpu") / "memory.limit_in_bytes").read_text().strip()
        gone = groups.remove(BURSTABLE)
    finally:
        for controller in ("cpu", "memory"):
            for directory in (place.relative_to("cpu"), *place.relative_to("cpu").parents[:-1]):
                if (CGROUP_MOUNT / controller / directory).exists():
                    (CGROUP_MOUNT / controller / directory).rmdir()

    assert (notes, again, gone) == ((), (), True)
    assert written == {"cpu.shares": "512", "cpu.cfs_period_us": "100000", "cpu.cfs_quota_us": "-1"}
    assert limit == str(GIB)
