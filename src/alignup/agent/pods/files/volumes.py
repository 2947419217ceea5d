"""Directories and files of a pod on the host.

    <root>/pods/<uid>/volumes/<name>                          emptyDir and downwardAPI volumes
    <root>/pods/<uid>/volume-subpaths/<name>/<container>/<n>  bind mounts of subPaths
    <root>/pods/<uid>/containers/<container>/<attempt>        termination messages (``/dev/termination-log``)
    <root>/pods/<uid>/etc-hosts

Every function is idempotent and safe to call concurrently: existing files are left alone. All of them block on disk
I/O, so call them from a thread.
"""

import fcntl
import os
import stat
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from errno import EINVAL, EPERM
from pathlib import Path

from alignup.agent.pods.environment import PodFacts, expand, referenced_names, resolve_variable
from alignup.agent.pods.files import bind_mounts, pod_dirs
from alignup.agent.pods.files.pod_dirs import ProjectedFile
from alignup.agent.pods.pod_state import PodStartError
from alignup.align.quantity import Quantity
from alignup.align.workload import Amounts, Pod, names
from alignup.align.workload.demand import limits
from alignup.align.workload.names import MEMORY
from alignup.kubernetes.podspec.types import ContainerSpec, PodSpec, Volume, VolumeKind, VolumeMount
from alignup.run.cri.types import ContainerMount

HOSTS_PATH = "/etc/hosts"
MAX_MESSAGE_BYTES = 4096  #: of a termination message

_WORLD_WRITABLE = 0o777
_SETGID = 0o2000
_MEMORY, _HUGE_PAGES = "Memory", "HugePages"
_PATH_TYPES = {
    "Directory": (stat.S_ISDIR, "directory"),
    "DirectoryOrCreate": (stat.S_ISDIR, "directory"),
    "File": (stat.S_ISREG, "file"),
    "FileOrCreate": (stat.S_ISREG, "file"),
    "Socket": (stat.S_ISSOCK, "socket file"),
    "CharDevice": (stat.S_ISCHR, "character device"),
    "BlockDevice": (stat.S_ISBLK, "block device"),
}


@dataclass(frozen=True, slots=True)
class PodDirectories:
    pod: Path
    volumes: Mapping[str, Path]  #: by name
    kinds: Mapping[str, VolumeKind]


def prepare_volumes(root: Path, spec: PodSpec, *, facts: PodFacts) -> PodDirectories:
    """Set up all volumes of a pod; ``PodStartError`` if one fails."""
    pod = _pod_dir(root, facts.pod.uid)
    volumes = {}
    with _locked(pod):
        for volume in spec.volumes:
            try:
                (pod / "volumes").mkdir(mode=0o750, exist_ok=True)
                volumes[volume.name] = _set_up(pod / "volumes", volume, group=spec.fs_group, facts=facts)
            except OSError as error:
                what = f"{error.filename or volume.name}: {error.strerror or error}"
                raise _mount_error(volume, what + _advice(error)) from error
    return PodDirectories(pod, volumes, {volume.name: volume.kind for volume in spec.volumes})


def build_mounts(
    directories: PodDirectories,
    container: ContainerSpec,
    *,
    attempt: int,
    hosts: str | None = None,
    envs: Mapping[str, str] | None = None,
) -> tuple[ContainerMount, ...]:
    """The mounts of a container: its volumes, ``/etc/hosts``, and a file for its termination message.

    *hosts* is the content of ``/etc/hosts``; a container that mounts its own file keeps that. *envs* is used to expand
    ``subPathExpr``. ``PodStartError`` if a mount cannot be set up.
    """
    with _locked(directories.pod):
        mounts = [
            _mount(directories, container.name, one, number=number, envs=envs or {})
            for number, one in enumerate(container.mounts)
        ]
        files = {}
        if hosts is not None and all(one.container_path != HOSTS_PATH for one in mounts):
            files[HOSTS_PATH] = (directories.pod / "etc-hosts", hosts, 0o644)
        if container.termination_message_path:
            target = os.path.join("/", container.termination_message_path)  # noqa: PTH118 - a path in the container
            files[target] = (_message_file(directories.pod, container.name, attempt), "", 0o666)
        for target, (path, text, mode) in files.items():
            try:
                _overwrite(path, text, mode=mode)
            except OSError as error:
                what = f"cannot create {path} for container {container.name}: {error.strerror}"
                raise PodStartError.config(what) from error
            mounts.append(ContainerMount(container_path=target, host_path=str(path), relabel=True))
    return tuple(mounts)


def read_termination_message(root: Path, uid: str, *, container: str, attempt: int) -> str:
    """The end of the termination message of a container; empty if it wrote none."""
    path = _message_file(_pod_dir(root, uid), container, attempt)
    try:
        with path.open("rb") as file:
            size = os.fstat(file.fileno()).st_size
            file.seek(max(0, size - MAX_MESSAGE_BYTES))
            return file.read(MAX_MESSAGE_BYTES).decode("utf-8", "replace")
    except OSError:
        return ""


def remove_termination_message(root: Path, uid: str, *, container: str, attempt: int) -> None:
    _message_file(_pod_dir(root, uid), container, attempt).unlink(missing_ok=True)


def pods_on_disk(root: Path) -> frozenset[str]:
    try:
        return frozenset(entry.name for entry in os.scandir(root / "pods") if entry.is_dir(follow_symlinks=False))
    except FileNotFoundError:
        return frozenset()


def remove_pod_dir(root: Path, uid: str) -> None:
    """``EnforceError`` if something remains."""
    pod_dirs.remove_tree(_pod_dir(root, uid))


def _pod_dir(root: Path, uid: str) -> Path:
    return root / "pods" / pod_dirs.path_component(uid)


def _message_file(pod: Path, container: str, attempt: int) -> Path:
    return pod / "containers" / pod_dirs.path_component(container) / str(attempt)


def _set_up(directory: Path, volume: Volume, *, group: int | None, facts: PodFacts) -> Path:
    if volume.kind is VolumeKind.HOST_PATH:
        _check_host_path(volume)
        return Path(volume.path)
    path = directory / pod_dirs.path_component(volume.name)
    if volume.kind is VolumeKind.DOWNWARD:
        files = {
            item.path: ProjectedFile(
                resolve_variable(item.source, facts, container="", known={}),
                volume.mode if item.mode is None else item.mode,
            )
            for item in volume.items
        }
        pod_dirs.write_files(path, files, group=group)
    elif not volume.medium:
        _make_directory(path, group=group)
    elif volume.medium == _MEMORY:
        size = _tmpfs_size(volume, facts)
        limit = f"size={size}" if size is not None else ""
        # The second attempt is for kernels without ``noswap``.
        _make_mount(path, "tmpfs", (",".join(filter(None, (limit, "noswap"))), limit), group=group)
    else:
        _make_mount(path, "hugetlbfs", (f"pagesize={_page_size(volume, facts.pod)}",), group=group)
    return path


def _mount(
    directories: PodDirectories, container: str, mount: VolumeMount, *, number: int, envs: Mapping[str, str]
) -> ContainerMount:
    sub_path = mount.sub_path
    if mount.expand_sub_path:
        for name in referenced_names(sub_path):
            if name not in envs:
                raise PodStartError.config(f"subPathExpr {sub_path!r}: variable {name} is not defined")
        sub_path = expand(sub_path, envs)
    if mount.volume not in directories.volumes:
        raise PodStartError.config(f"cannot find volume {mount.volume!r} to mount into container {container!r}")
    kind, host_path = directories.kinds[mount.volume], directories.volumes[mount.volume]
    if sub_path:
        steps = ("volume-subpaths", mount.volume, container, str(number))
        target = directories.pod.joinpath(*map(pod_dirs.path_component, steps))
        try:
            host_path = bind_mounts.bind_subpath(host_path, sub_path, target=target)
        except OSError as error:
            what = f"failed to prepare subPath for volumeMount {mount.volume!r} of container {container!r}"
            raise PodStartError.config(f"{what}: {error.strerror}{_advice(error)}") from error
    return ContainerMount(
        container_path=os.path.join("/", mount.path),  # noqa: PTH118 - a path in the container
        host_path=str(host_path),
        read_only=mount.read_only or kind is VolumeKind.DOWNWARD,
        propagation=mount.propagation,
        relabel=kind is not VolumeKind.HOST_PATH,
    )


def _make_directory(path: Path, *, group: int | None) -> None:
    """Create a world-writable directory atomically: it gets its name when its mode and group are set."""
    if path.is_dir():
        return
    new = path.with_name(f".{path.name}.new")
    new.mkdir(exist_ok=True)
    new.chmod(_WORLD_WRITABLE)
    if group is not None:
        _set_group(new, group)
    new.rename(path)


def _make_mount(path: Path, filesystem: str, options: Sequence[str], *, group: int | None) -> None:
    """Mount a file system with the first of *options* that the kernel supports."""
    path.mkdir(exist_ok=True)
    if bind_mounts.filesystem_at(path) != filesystem:
        for number, option in enumerate(options, 1):
            try:
                bind_mounts.mount(filesystem, path, filesystem=filesystem, options=option)
                break
            except OSError as error:
                if error.errno != EINVAL or number == len(options):
                    raise
    if group is not None and path.stat().st_gid != group:
        _set_group(path, group)


def _set_group(path: Path, group: int) -> None:
    """Give a group access to a directory and its future content; the group comes last and marks completion."""
    path.chmod(stat.S_IMODE(path.stat().st_mode) | 0o770 | _SETGID)
    os.chown(path, -1, group)


def _tmpfs_size(volume: Volume, facts: PodFacts) -> int | None:
    """The smallest of the node allocatable, the pod's limit and the volume's; ``None``: no limit is known."""
    pod = facts.pod
    sizes = [_bytes(facts.allocatable), volume.size_limit or 0]
    if _bytes(pod.resources.limits) or all(_bytes(container.resources.limits) for container in pod.all_containers):
        sizes.append(_bytes(limits(pod)))
    return min((size for size in sizes if size > 0), default=None)


def _bytes(amounts: Amounts) -> int:
    return amounts.get(MEMORY, Quantity.ZERO).value()


def _page_size(volume: Volume, pod: Pod) -> int:
    """The huge page size of a volume in bytes, which the pod must request."""
    requested = {
        names.page_size(name)
        for resources in (pod.resources, *(container.resources for container in pod.all_containers))
        for name in resources.requests
        if names.is_hugepages(name)
    }
    if volume.medium != _HUGE_PAGES:
        requested &= {names.page_size(names.HUGEPAGES + volume.medium.removeprefix(f"{_HUGE_PAGES}-"))}
    sizes = [size for size in requested if size]
    if not sizes:
        what = f"medium {volume.medium}: hugePages storage requested, but there is no resource request for huge pages"
        raise _mount_error(volume, what)
    if len(sizes) > 1:
        what = f"medium: {volume.medium} can't be used if container requests multiple huge page sizes"
        raise _mount_error(volume, f"{what}; use {_HUGE_PAGES}-SIZE")
    return sizes[0]


def _check_host_path(volume: Volume) -> None:
    """Check the type of a hostPath; create it if its type allows that."""
    if not volume.path_type:
        return
    if volume.path_type not in _PATH_TYPES:
        raise _mount_error(volume, f"{volume.path_type} is an invalid volume type")
    path = Path(volume.path)
    if not path.exists():
        if volume.path_type == "DirectoryOrCreate":
            path.mkdir(mode=0o755, parents=True)
        elif volume.path_type == "FileOrCreate":
            path.touch(mode=0o644)
    matches, wanted = _PATH_TYPES[volume.path_type]
    if not path.exists() or not matches(path.stat().st_mode):
        missing = "" if path.exists() else ": it does not exist"
        raise _mount_error(volume, f"hostPath type check failed: {path} is not a {wanted}{missing}")


@contextmanager
def _locked(pod: Path) -> Iterator[None]:
    """Lock the directory of a pod, whose containers may start concurrently."""
    try:
        pod.mkdir(mode=0o750, parents=True, exist_ok=True)
        handle = os.open(pod, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError as error:
        raise PodStartError("FailedMount", f"cannot create pod directory {pod}: {error.strerror}") from error
    try:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield
    finally:
        os.close(handle)


def _overwrite(path: Path, text: str, *, mode: int) -> None:
    """Write *text* to a file in place, if it differs: running containers that mount the file see the change."""
    path.parent.mkdir(mode=0o750, parents=True, exist_ok=True)
    handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, mode)
    with os.fdopen(handle, "rb+") as file:
        os.fchmod(handle, mode)
        content = text.encode()
        if file.read(len(content) + 1) != content:
            file.seek(0)
            file.truncate()
            file.write(content)


def _advice(error: OSError) -> str:
    return "; the agent must run as root to mount volumes" if error.errno == EPERM else ""


def _mount_error(volume: Volume, what: str) -> PodStartError:
    return PodStartError("FailedMount", f'MountVolume.SetUp failed for volume "{volume.name}" : {what}')
