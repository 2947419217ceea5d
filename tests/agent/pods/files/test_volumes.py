"""Volumes of pods: set up repeatedly, and removed without touching the host."""

import os
import socket
import stat
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest

from alignup.agent.pods.environment import PodFacts
from alignup.agent.pods.files import bind_mounts, volumes
from alignup.agent.pods.pod_state import PodStartError
from alignup.align.workload import Pod, Resources
from alignup.kubernetes.podspec.types import DownwardApiFile, EnvVar, PodSpec, Volume, VolumeKind
from alignup.kubernetes.podspec.types import VolumeMount as SpecMount
from alignup.run.cri.types import ContainerMount
from tests.agent.pods.files.mounting import names_in, skip_unless_mountable
from tests.agent.pods.statuses import APP, pod
from tests.strategies_pods import amounts, container, guaranteed

POD = Pod(name="web", namespace="shop", uid="4711", containers=(container("app", {"cpu": "100m"}),))
FACTS = PodFacts(pod=POD, allocatable=amounts({"memory": "8Gi"}))
SCRATCH = Volume(name="scratch", kind=VolumeKind.EMPTY_DIR)
MEMORY = replace(SCRATCH, name="memory", medium="Memory")
PAGES = replace(SCRATCH, name="pages", medium="HugePages")
INFO = Volume(
    name="info",
    kind=VolumeKind.DOWNWARD,
    items=(
        DownwardApiFile(path="name", source=EnvVar("", field_path="metadata.name")),
        DownwardApiFile(
            path="cpu", source=EnvVar("", resource="requests.cpu", container_name="app", divisor="1m"), mode=0o600
        ),
    ),
)
as_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root gives files to other groups")


def spec(*of: Volume, fs_group: int | None = None) -> PodSpec:
    return replace(pod(), volumes=of, fs_group=fs_group)


def host_path(path: Path, kind: str = "") -> Volume:
    return Volume(name="host", kind=VolumeKind.HOST_PATH, path=str(path), path_type=kind)


def prepared(root: Path, volume: Volume, *, facts: PodFacts = FACTS, fs_group: int | None = None) -> Path:
    """The path of a volume."""
    return volumes.prepare_volumes(root, spec(volume, fs_group=fs_group), facts=facts).volumes[volume.name]


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def test_an_empty_dir_is_world_writable_and_persistent(tmp_path):
    place = prepared(tmp_path, SCRATCH)
    assert mode(place) == 0o777
    (place / "file").touch()
    place.chmod(0o700)

    assert prepared(tmp_path, SCRATCH) == place

    assert place == tmp_path / "pods" / "4711" / "volumes" / "scratch"
    assert (mode(place), names_in(place)) == (0o700, ["file"])


@as_root
def test_files_in_an_empty_dir_belong_to_the_fs_group(tmp_path):
    place = prepared(tmp_path, SCRATCH, fs_group=4242)

    (place / "file").touch()

    assert mode(place) == 0o2777
    assert (place / "file").stat().st_gid == 4242


@pytest.mark.parametrize(
    ("pod_", "limit", "size"),
    [
        pytest.param(POD, None, 8 << 30, id="the node allocatable"),
        pytest.param(
            replace(POD, containers=(guaranteed("app", {"memory": "1Gi"}),)), None, 1 << 30, id="the container's limit"
        ),
        pytest.param(
            replace(POD, containers=(guaranteed("app", {"memory": "1Gi"}), container("free"))),
            None,
            8 << 30,
            id="one container has no limit",
        ),
        pytest.param(
            replace(POD, resources=Resources(limits=amounts({"memory": "2Gi"}))), None, 2 << 30, id="the pod's limit"
        ),
        pytest.param(POD, 1 << 20, 1 << 20, id="the volume's sizeLimit"),
        pytest.param(POD, 1 << 40, 8 << 30, id="at most the node allocatable"),
    ],
)
def test_size_of_a_memory_volume(tmp_path, pod_, limit, size):
    skip_unless_mountable(tmp_path)

    place = prepared(tmp_path, replace(MEMORY, size_limit=limit), facts=replace(FACTS, pod=pod_))

    found = os.statvfs(place)
    assert bind_mounts.filesystem_at(place) == "tmpfs"
    assert found.f_frsize * found.f_blocks == size
    assert mode(place) == 0o1777


def test_a_memory_volume_is_mounted_once(tmp_path):
    skip_unless_mountable(tmp_path)
    place = prepared(tmp_path, MEMORY)
    (place / "file").touch()

    again = prepared(tmp_path, MEMORY, fs_group=4242)

    assert len(bind_mounts.mounts_below(tmp_path)) == 1
    assert names_in(again) == ["file"]
    assert (again.stat().st_gid, mode(again)) == (4242, 0o3777)


@pytest.mark.parametrize("medium", ["HugePages", "HugePages-2Mi"])
def test_a_huge_pages_volume(tmp_path, medium):
    skip_unless_mountable(tmp_path)
    if not Path("/sys/kernel/mm/hugepages/hugepages-2048kB").exists():
        pytest.skip("the kernel has no huge pages of 2 MiB")
    asking = replace(POD, init=(guaranteed("first", {"hugepages-2Mi": "4Mi"}),))

    place = prepared(tmp_path, replace(PAGES, medium=medium), facts=replace(FACTS, pod=asking), fs_group=4242)

    assert bind_mounts.filesystem_at(place) == "hugetlbfs"
    assert os.statvfs(place).f_bsize == 2 << 20
    assert (place.stat().st_gid, mode(place)) == (4242, 0o2775)


@pytest.mark.parametrize(
    ("medium", "asked", "words"),
    [
        ("HugePages", {}, "there is no resource request for huge pages"),
        ("HugePages-1Gi", {"hugepages-2Mi": "4Mi"}, "there is no resource request for huge pages"),
        ("HugePages", {"hugepages-2Mi": "4Mi", "hugepages-1Gi": "1Gi"}, "multiple huge page sizes"),
    ],
)
def test_a_huge_pages_volume_requires_a_matching_request(tmp_path, medium, asked, words):
    asking = replace(POD, containers=(guaranteed("app", asked),))

    with pytest.raises(PodStartError, match=words) as caught:
        prepared(tmp_path, replace(PAGES, medium=medium), facts=replace(FACTS, pod=asking))

    assert caught.value.reason == "FailedMount"


def test_a_downward_api_volume(tmp_path):
    found = volumes.prepare_volumes(tmp_path, spec(INFO), facts=FACTS)

    place = found.volumes["info"]
    assert (place / "name").read_text() == "web"
    assert (place / "cpu").read_text() == "100"
    assert (mode(place / "name"), mode(place / "cpu")) == (0o644, 0o600)


@pytest.mark.parametrize(
    ("kind", "there"),
    [
        ("", ("nothing", "dir", "file", "socket")),
        ("Directory", ("dir", "link")),
        ("DirectoryOrCreate", ("nothing", "dir", "link")),
        ("File", ("file",)),
        ("FileOrCreate", ("nothing", "file")),
        ("Socket", ("socket",)),
        ("CharDevice", ("/dev/null",)),
        ("BlockDevice", ()),
        ("Sculpture", ()),
    ],
)
@pytest.mark.parametrize("name", ["nothing", "dir", "link", "file", "socket", "/dev/null"])
def test_host_path_types(tmp_path, kind, there, name):
    (tmp_path / "dir").mkdir()
    (tmp_path / "link").symlink_to("dir")
    (tmp_path / "file").touch()
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(str(tmp_path / "socket"))
        volume = host_path(tmp_path / name, kind)
        if kind and name not in there:
            with pytest.raises(PodStartError, match=r'MountVolume.SetUp failed for volume "host" : '):
                prepared(tmp_path, volume)
            return

        place = prepared(tmp_path, volume)

    assert place == tmp_path / name
    assert place.exists() or not kind


def test_host_paths_are_created_if_the_type_allows_it(tmp_path):
    folder = prepared(tmp_path, host_path(tmp_path / "a" / "b", "DirectoryOrCreate"))
    file = prepared(tmp_path, host_path(tmp_path / "a" / "file", "FileOrCreate"))

    assert folder.is_dir()
    assert file.is_file()
    with pytest.raises(PodStartError, match="No such file or directory"):
        prepared(tmp_path, host_path(tmp_path / "x" / "y" / "file", "FileOrCreate"))


def test_mounts_of_a_container(tmp_path):
    given = spec(SCRATCH, INFO, host_path(tmp_path / "host"))
    directories = volumes.prepare_volumes(tmp_path, given, facts=FACTS)
    mounts = (
        SpecMount("scratch", "/scratch", propagation="HostToContainer"),
        SpecMount("info", "info"),
        SpecMount("host", "/host", read_only=True),
    )

    seen = volumes.build_mounts(directories, replace(APP, mounts=mounts), attempt=3, hosts="127.0.0.1 localhost\n")

    own = tmp_path / "pods" / "4711"
    assert seen == (
        ContainerMount(
            container_path="/scratch",
            host_path=str(own / "volumes" / "scratch"),
            propagation="HostToContainer",
            relabel=True,
        ),
        ContainerMount(container_path="/info", host_path=str(own / "volumes" / "info"), read_only=True, relabel=True),
        ContainerMount(container_path="/host", host_path=str(tmp_path / "host"), read_only=True),
        ContainerMount(container_path="/etc/hosts", host_path=str(own / "etc-hosts"), relabel=True),
        ContainerMount(
            container_path="/dev/termination-log", host_path=str(own / "containers" / "app" / "3"), relabel=True
        ),
    )
    assert (own / "etc-hosts").read_text() == "127.0.0.1 localhost\n"
    assert mode(own / "etc-hosts") == 0o644
    assert mode(own / "containers" / "app" / "3") == 0o666


def test_a_container_with_its_own_hosts_file_and_no_termination_message(tmp_path):
    directories = volumes.prepare_volumes(tmp_path, spec(SCRATCH), facts=FACTS)
    own = replace(APP, mounts=(SpecMount("scratch", "/etc/hosts"),), termination_message_path="")

    seen = volumes.build_mounts(directories, own, attempt=0, hosts="127.0.0.1 localhost\n")

    assert [one.container_path for one in seen] == ["/etc/hosts"]
    assert seen[0].host_path.endswith("/volumes/scratch")


def test_the_hosts_file_is_updated_in_place(tmp_path):
    directories = volumes.prepare_volumes(tmp_path, spec(), facts=FACTS)
    volumes.build_mounts(directories, APP, attempt=0, hosts="a long text before\n")
    with (directories.pod / "etc-hosts").open() as seen:
        volumes.build_mounts(directories, APP, attempt=1, hosts="now\n")

        assert seen.read() == "now\n"


def test_a_missing_volume_is_an_error(tmp_path):
    directories = volumes.prepare_volumes(tmp_path, spec(), facts=FACTS)

    with pytest.raises(PodStartError, match="cannot find volume 'lost' to mount into container 'app'"):
        volumes.build_mounts(directories, replace(APP, mounts=(SpecMount("lost", "/x"),)), attempt=0)


def test_sub_paths(tmp_path):
    skip_unless_mountable(tmp_path)
    directories = volumes.prepare_volumes(tmp_path, spec(SCRATCH), facts=FACTS)
    mounts = (
        SpecMount("scratch", "/a", sub_path="a"),
        SpecMount("scratch", "/b", sub_path="$(WHO)/$$(x)", expand_sub_path=True),
    )
    (directories.volumes["scratch"] / "a").mkdir()
    (directories.volumes["scratch"] / "a" / "file").touch()

    seen = volumes.build_mounts(directories, replace(APP, mounts=mounts), attempt=0, envs={"WHO": "me"})

    assert names_in(seen[0].host_path) == ["file"]
    (Path(seen[1].host_path) / "mine").touch()
    assert (directories.volumes["scratch"] / "me" / "$(x)" / "mine").exists()


def test_a_sub_path_expr_with_an_undefined_variable_is_an_error(tmp_path):
    directories = volumes.prepare_volumes(tmp_path, spec(SCRATCH), facts=FACTS)
    lost = replace(APP, mounts=(SpecMount("scratch", "/b", sub_path="$(WHO)", expand_sub_path=True),))

    with pytest.raises(PodStartError, match="variable WHO is not defined"):
        volumes.build_mounts(directories, lost, attempt=0)


def test_termination_messages(tmp_path):
    directories = volumes.prepare_volumes(tmp_path, spec(), facts=FACTS)
    seen = volumes.build_mounts(directories, APP, attempt=1)
    Path(seen[-1].host_path).write_bytes(b"x" * 5000 + b" the end \xff")

    said = volumes.read_termination_message(tmp_path, "4711", container="app", attempt=1)

    assert said.endswith("x the end �")
    assert len(said) == 4096
    assert volumes.read_termination_message(tmp_path, "4711", container="app", attempt=0) == ""


def test_removing_a_pod_keeps_host_paths(tmp_path):
    skip_unless_mountable(tmp_path)
    (tmp_path / "host").mkdir()
    (tmp_path / "host" / "kept").touch()
    given = spec(SCRATCH, MEMORY, INFO, host_path(tmp_path / "host"))
    directories = volumes.prepare_volumes(tmp_path, given, facts=FACTS)
    (directories.volumes["scratch"] / "way out").symlink_to(tmp_path / "host")
    mounts = (SpecMount("scratch", "/a", sub_path="a"), SpecMount("host", "/h", sub_path="part"))
    volumes.build_mounts(directories, replace(APP, mounts=mounts), attempt=0, hosts="x")
    assert volumes.pods_on_disk(tmp_path) == {"4711"}

    volumes.remove_pod_dir(tmp_path, "4711")
    volumes.remove_pod_dir(tmp_path, "4711")

    assert volumes.pods_on_disk(tmp_path) == frozenset()
    assert names_in(tmp_path / "host") == ["kept", "part"]
    assert bind_mounts.mounts_below(tmp_path) == ()


@pytest.mark.parametrize("uid", ["", "..", "../host", "a/b"])
def test_invalid_uids_are_not_removed(tmp_path, uid):
    (tmp_path / "host").mkdir()

    with pytest.raises(PodStartError):
        volumes.remove_pod_dir(tmp_path, uid)

    assert (tmp_path / "host").exists()


def test_no_pods_on_disk(tmp_path):
    assert volumes.pods_on_disk(tmp_path) == frozenset()


def test_containers_can_be_prepared_concurrently(tmp_path):
    skip_unless_mountable(tmp_path)
    given = spec(SCRATCH, MEMORY, INFO)
    mounts = (SpecMount("scratch", "/a", sub_path="a"), SpecMount("info", "/info"))

    def start(number: int) -> tuple[ContainerMount, ...]:
        directories = volumes.prepare_volumes(tmp_path, given, facts=FACTS)
        return volumes.build_mounts(directories, replace(APP, name=f"c{number}", mounts=mounts), attempt=0, hosts="x")

    with ThreadPoolExecutor(8) as threads:
        seen = list(threads.map(start, range(32)))

    assert all(len(one) == 4 for one in seen)
    assert len(bind_mounts.mounts_below(tmp_path)) == 1 + 32
    assert (tmp_path / "pods" / "4711" / "volumes" / "info" / "name").read_text() == "web"


def test_a_pod_directory_that_cannot_be_created_is_an_error(tmp_path):
    (tmp_path / "pods").touch()

    with pytest.raises(PodStartError, match="cannot create pod directory"):
        volumes.prepare_volumes(tmp_path, spec(SCRATCH), facts=FACTS)
