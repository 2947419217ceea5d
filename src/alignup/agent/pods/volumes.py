"""What a pod has on disk: its volumes, and files of ours that its containers see.

    <root>/pods/<uid>/volumes/<name>                          emptyDir and downwardAPI volumes
    <root>/pods/<uid>/volume-subpaths/<name>/<container>/<n>  parts of volumes, as a container is given them
    <root>/pods/<uid>/containers/<container>/<attempt>        what it said last (``/dev/termination-log``)
    <root>/pods/<uid>/etc-hosts

Everything can be asked for again at any time, by several at once: what is there stays as it is. All of it touches the
disk, and a large volume can take a while to go: call it from a thread.
"""

import fcntl
import os
import stat
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from errno import EINVAL, EPERM
from pathlib import Path

from alignup.agent.pods import bind_mounts, downward_api, pod_dirs, subpaths
from alignup.agent.pods.downward_api import ProjectedFile
from alignup.agent.pods.environment import PodFacts, expand, referenced_names, resolve_variable
from alignup.agent.pods.errors import PodStartError
from alignup.align.quantity import Quantity
from alignup.align.workload import Amounts, Pod, names
from alignup.align.workload.demand import limits
from alignup.align.workload.names import MEMORY
from alignup.enforce.cri.types import ContainerMount
from alignup.kube.podspec.types import ContainerSpec, PodSpec, Volume, VolumeKind
from alignup.kube.podspec.types import VolumeMount as SpecMount

HOSTS_PATH = "/etc/hosts"
MAX_MESSAGE_BYTES = 4096  #: bytes of what a container may say last

_EVERYBODY = 0o777
_SET_GROUP = 0o2000
_MEMORY, _PAGES = "Memory", "HugePages"
_KINDS = {
    "Directory": (stat.S_ISDIR, "directory"),
    "DirectoryOrCreate": (stat.S_ISDIR, "directory"),
    "ProjectedFile": (stat.S_ISREG, "file"),
    "FileOrCreate": (stat.S_ISREG, "file"),
    "Socket": (stat.S_ISSOCK, "socket file"),
    "CharDevice": (stat.S_ISCHR, "character device"),
    "BlockDevice": (stat.S_ISBLK, "block device"),
}


@dataclass(frozen=True, slots=True)
class PodDirectories:
    """What a pod has on disk."""

    pod: Path
    volumes: Mapping[str, Path]  #: by name
    kinds: Mapping[str, VolumeKind]


def prepare_volumes(root: Path, spec: PodSpec, *, facts: PodFacts) -> PodDirectories:
    """Have all volumes of a pod ready; ``PodStartError`` when one cannot be had."""
    pod = _pod(root, facts.pod.uid)
    volumes = {}
    with _alone(pod):
        for volume in spec.volumes:
            try:
                (pod / "volumes").mkdir(mode=0o750, exist_ok=True)
                volumes[volume.name] = _ready(pod / "volumes", volume, group=spec.fs_group, facts=facts)
            except OSError as error:
                what = f"{error.filename or volume.name}: {error.strerror or error}"
                raise _failed(volume, what + _advice(error)) from error
    return PodDirectories(pod, volumes, {volume.name: volume.kind for volume in spec.volumes})


def build_mounts(
    directories: PodDirectories,
    container: ContainerSpec,
    *,
    attempt: int,
    hosts: str | None = None,
    envs: Mapping[str, str] | None = None,
) -> tuple[ContainerMount, ...]:
    """What a container sees of the host, made ready: volumes, ``/etc/hosts``, and a file for what it says last.

    *hosts* is what the second says; it is left out where the container brings its own. *envs* is its environment, for
    ``subPathExpr``. ``PodStartError`` when something cannot be had.
    """
    with _alone(directories.pod):
        mounts = [
            _mount(directories, container.name, replace(one, sub_path=_sub_path(one, envs or {})), number=number)
            for number, one in enumerate(container.mounts)
        ]
        files = {}
        if hosts is not None and all(one.container_path != HOSTS_PATH for one in mounts):
            files[HOSTS_PATH] = (directories.pod / "etc-hosts", hosts, 0o644)
        if container.termination_message_path:
            place = os.path.join("/", container.termination_message_path)  # noqa: PTH118 - of the container
            files[place] = (_termination(directories.pod, container.name, attempt), "", 0o666)
        for place, (path, text, mode) in files.items():
            try:
                _overwrite(path, text, mode=mode)
            except OSError as error:
                what = f"{path} for container {container.name} cannot be made: {error.strerror}"
                raise PodStartError("CreateContainerConfigError", what) from error
            mounts.append(ContainerMount(container_path=place, host_path=str(path), relabel=True))
    return tuple(mounts)


def read_termination_message(root: Path, uid: str, *, container: str, attempt: int) -> str:
    """The end of what a container wrote for whoever asks why it ended; empty when it wrote nothing."""
    path = _termination(_pod(root, uid), container, attempt)
    try:
        with path.open("rb") as file:
            size = os.fstat(file.fileno()).st_size
            file.seek(max(0, size - MAX_MESSAGE_BYTES))
            return file.read(MAX_MESSAGE_BYTES).decode("utf-8", "replace")
    except OSError:
        return ""


def remove_termination_message(root: Path, uid: str, *, container: str, attempt: int) -> None:
    """Remove what a container wrote that way."""
    _termination(_pod(root, uid), container, attempt).unlink(missing_ok=True)


def pods_on_disk(root: Path) -> frozenset[str]:
    """The uids of the pods that have something on disk."""
    try:
        return frozenset(entry.name for entry in os.scandir(root / "pods") if entry.is_dir(follow_symlinks=False))
    except FileNotFoundError:
        return frozenset()


def remove_pod_dir(root: Path, uid: str) -> None:
    """Take away all a pod has on disk, but nothing of the host; ``EnforceError`` when something stays."""
    pod_dirs.remove_tree(_pod(root, uid))


def _pod(root: Path, uid: str) -> Path:
    return root / "pods" / pod_dirs.path_component(uid)


def _termination(pod: Path, container: str, attempt: int) -> Path:
    return pod / "containers" / pod_dirs.path_component(container) / str(attempt)


def _ready(directory: Path, volume: Volume, *, group: int | None, facts: PodFacts) -> Path:
    """Where a volume is, made ready."""
    if volume.kind is VolumeKind.HOST_PATH:
        _check_host_path(volume)
        return Path(volume.path)
    path = directory / pod_dirs.path_component(volume.name)
    if volume.kind is VolumeKind.DOWNWARD:
        downward_api.write_files(path, _files(volume, facts), group=group)
    elif not volume.medium:
        _make_directory(path, group=group)
    elif volume.medium == _MEMORY:
        _make_tmpfs(path, _memory_size(volume, facts), group=group)
    else:
        _make_pages(path, _page_size(volume, facts.pod), group=group)
    return path


def _sub_path(wanted: SpecMount, envs: Mapping[str, str]) -> str:
    if not wanted.expand_sub_path:
        return wanted.sub_path
    for name in referenced_names(wanted.sub_path):
        if name not in envs:
            raise PodStartError("CreateContainerConfigError", f"subPathExpr {wanted.sub_path!r}: there is no {name}")
    return expand(wanted.sub_path, envs)


def _mount(directories: PodDirectories, container: str, wanted: SpecMount, *, number: int) -> ContainerMount:
    """A volume as a container sees it."""
    if wanted.volume not in directories.volumes:
        what = f"cannot find volume {wanted.volume!r} to mount into container {container!r}"
        raise PodStartError("CreateContainerConfigError", what)
    kind = directories.kinds[wanted.volume]
    return ContainerMount(
        container_path=os.path.join("/", wanted.path),  # noqa: PTH118 - of the container
        host_path=str(_part(directories, container, wanted, number=number)),
        read_only=wanted.read_only or kind is VolumeKind.DOWNWARD,
        propagation=wanted.propagation,
        relabel=kind is not VolumeKind.HOST_PATH,
    )


def _part(directories: PodDirectories, container: str, wanted: SpecMount, *, number: int) -> Path:
    """The volume, or the part of it that is asked for."""
    volume = directories.volumes[wanted.volume]
    if not wanted.sub_path:
        return volume
    steps = ("volume-subpaths", wanted.volume, container, str(number))
    target = directories.pod.joinpath(*map(pod_dirs.path_component, steps))
    try:
        return subpaths.bind_subpath(volume, wanted.sub_path, target=target)
    except OSError as error:
        what = f"failed to prepare subPath for volumeMount {wanted.volume!r} of container {container!r}"
        raise PodStartError("CreateContainerConfigError", f"{what}: {error.strerror}{_advice(error)}") from error


def _files(volume: Volume, facts: PodFacts) -> dict[str, ProjectedFile]:
    return {
        item.path: ProjectedFile(
            resolve_variable(item.source, facts, container="", known={}),
            volume.mode if item.mode is None else item.mode,
        )
        for item in volume.items
    }


def _make_directory(path: Path, *, group: int | None) -> None:
    """A directory for everybody; it has its name only when it is as it should be."""
    if path.is_dir():
        return
    aside = path.with_name(f".{path.name}.new")
    aside.mkdir(exist_ok=True)
    aside.chmod(_EVERYBODY)
    if group is not None:
        _hand_over(aside, group)
    aside.rename(path)


def _make_tmpfs(path: Path, size: int | None, *, group: int | None) -> None:
    """Memory as a directory; not to be swapped out where the kernel knows how."""
    path.mkdir(exist_ok=True)
    options = f"size={size}" if size is not None else ""
    if bind_mounts.filesystem_at(path) != "tmpfs":
        try:
            bind_mounts.mount("tmpfs", path, kind="tmpfs", options=",".join(filter(None, (options, "noswap"))))
        except OSError as error:
            if error.errno != EINVAL:
                raise
            bind_mounts.mount("tmpfs", path, kind="tmpfs", options=options)
    _settle(path, group)


def _make_pages(path: Path, size: int, *, group: int | None) -> None:
    path.mkdir(exist_ok=True)
    if bind_mounts.filesystem_at(path) != "hugetlbfs":
        bind_mounts.mount("nodev", path, kind="hugetlbfs", options=f"pagesize={size}")
    _settle(path, group)


def _settle(path: Path, group: int | None) -> None:
    """Hand a new volume over to its group, and leave one alone that was."""
    if group is not None and path.stat().st_gid != group:
        _hand_over(path, group)


def _hand_over(path: Path, group: int) -> None:
    """Let a group use a directory, and own what comes into it; that it has the group says that all is done."""
    path.chmod(stat.S_IMODE(path.stat().st_mode) | 0o770 | _SET_GROUP)
    os.chown(path, -1, group)


def _memory_size(volume: Volume, facts: PodFacts) -> int | None:
    """The least of what the host has for pods, what the pod may use, and what the volume may; ``None``: nobody says."""
    sizes = (_bytes(facts.allocatable), _memory_limit(facts.pod), volume.size_limit or 0)
    return min((size for size in sizes if size > 0), default=None)


def _memory_limit(pod: Pod) -> int:
    """The bytes that all containers together may use; 0 when one of them may use any."""
    own = (container.resources.limits for container in pod.everyone)
    if _bytes(pod.resources.limits) or all(map(_bytes, own)):
        return _bytes(limits(pod))
    return 0


def _bytes(amounts: Amounts) -> int:
    return amounts.get(MEMORY, Quantity.ZERO).value()


def _page_size(volume: Volume, pod: Pod) -> int:
    """The bytes of a page; it has to be one that the pod asks for."""
    asked = {
        names.page_size(name)
        for resources in (pod.resources, *(container.resources for container in pod.everyone))
        for name in resources.requests
        if names.is_hugepages(name)
    }
    if volume.medium != _PAGES:
        asked &= {names.page_size(names.HUGEPAGES + volume.medium.removeprefix(f"{_PAGES}-"))}
    sizes = [size for size in asked if size]
    if not sizes:
        what = f"medium {volume.medium}: hugePages storage requested, but there is no resource request for huge pages"
        raise _failed(volume, what)
    if len(sizes) > 1:
        what = f"medium: {volume.medium} can't be used if container requests multiple huge page sizes"
        raise _failed(volume, f"{what}; use {_PAGES}-SIZE")
    return sizes[0]


def _check_host_path(volume: Volume) -> None:
    """See to it that a path of the host is what it has to be; what may be made is made."""
    if not volume.path_type:
        return
    if volume.path_type not in _KINDS:
        raise _failed(volume, f"{volume.path_type} is an invalid volume type")
    path = Path(volume.path)
    if not path.exists():
        if volume.path_type == "DirectoryOrCreate":
            path.mkdir(mode=0o755, parents=True)
        elif volume.path_type == "FileOrCreate":
            path.touch(mode=0o644)
    fits, wanted = _KINDS[volume.path_type]
    if not path.exists():
        raise _failed(volume, f"hostPath type check failed: {path} is not a {wanted}: there is nothing")
    if not fits(path.stat().st_mode):
        raise _failed(volume, f"hostPath type check failed: {path} is not a {wanted}")


@contextmanager
def _alone(pod: Path) -> Iterator[None]:
    """Nobody else makes anything ready for a pod while this lasts: its containers may start at the same time."""
    try:
        pod.mkdir(mode=0o750, parents=True, exist_ok=True)
        handle = os.open(pod, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError as error:
        raise PodStartError("FailedMount", f"a pod cannot have {pod}: {error.strerror}") from error
    try:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield
    finally:
        os.close(handle)


def _overwrite(path: Path, text: str, *, mode: int) -> None:
    """Put *text* into a file where it is, unless it says so already: containers that have it see it change."""
    path.parent.mkdir(mode=0o750, parents=True, exist_ok=True)
    handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, mode)
    with os.fdopen(handle, "rb+") as file:
        os.fchmod(handle, mode)
        wanted = text.encode()
        if file.read(len(wanted) + 1) != wanted:
            file.seek(0)
            file.truncate()
            file.write(wanted)


def _advice(error: OSError) -> str:
    return "; the agent has to run as root to mount volumes" if error.errno == EPERM else ""


def _failed(volume: Volume, what: str) -> PodStartError:
    return PodStartError("FailedMount", f'MountVolume.SetUp failed for volume "{volume.name}" : {what}')
