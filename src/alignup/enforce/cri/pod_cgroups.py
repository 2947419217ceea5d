"""The cgroups of pods: one around all containers of a pod, which holds them to the pod's limits.

The layout is the kubelet's, under a root of our own: ``/alignup/burstable/pod<uid>``, without the QoS level for
Guaranteed pods. With the systemd driver the same path is a slice name (``alignup-burstable-pod<uid>.slice``), and the
runtime creates the cgroup; with cgroupfs it is created here, before the sandbox.

A limit needs its cgroup controller. A pod runs without one if the kernel lacks it; the methods return a note for each
setting that could not be applied.
"""

import re
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from alignup.align.errors import EnforceError
from alignup.align.workload import Pod, QoS, demand
from alignup.align.workload.names import CPU
from alignup.enforce import cgroup
from alignup.enforce.cri.resources import (
    NO_LIMIT,
    PERIOD,
    CgroupResources,
    NodeLimits,
    milli_to_shares,
    shares_to_weight,
)

CGROUP_MOUNT = Path("/sys/fs/cgroup")

_CONTROLLERS = ("cpuset", "cpu", "memory", "hugetlb", "pids", "io")
_UID = re.compile(r"[A-Za-z0-9._-]+")
_KIB = re.compile(r"hugepages-(\d+)kB")


class CgroupDriver(StrEnum):
    """Who creates cgroups: every program that needs one, or systemd alone."""

    CGROUPFS = "cgroupfs"
    SYSTEMD = "systemd"


@dataclass(frozen=True, slots=True)
class _Setting:
    controller: str
    file: str
    text: str
    important: bool = True  #: whether to report a missing controller


@dataclass(frozen=True, slots=True, kw_only=True)
class PodCgroups:
    """The cgroups below *root* in the hierarchies at *mount*."""

    root: str = "alignup"
    driver: CgroupDriver = CgroupDriver.CGROUPFS
    mount: Path = CGROUP_MOUNT

    @property
    def unified(self) -> bool:
        """Whether there is one hierarchy for all controllers: cgroup v2."""
        return (self.mount / "cgroup.controllers").exists()

    def node_limits(self, *, memory: int, sysfs: Path = Path("/sys"), proc: Path = cgroup.PROC) -> NodeLimits:
        """Return what limits depend on here, on a machine with *memory* bytes."""
        found = (_KIB.fullmatch(path.name) for path in sysfs.glob("kernel/mm/hugepages/hugepages-*"))
        sizes = sorted(int(one[1]) << 10 for one in found if one)
        return NodeLimits(memory=memory, page_sizes=tuple(sizes), unified=self.unified, swap=self._limits_swap(proc))

    def parent(self, pod: Pod) -> str:
        """Return the cgroup parent for the runtime: a path, or the name of a slice."""
        parts = self._parts(pod)
        if self.driver is CgroupDriver.CGROUPFS:
            return "/" + "/".join(parts)
        # In the name of a slice, a dash separates levels.
        return "-".join(part.replace("-", "_") for part in parts) + ".slice"

    def create(self, pod: Pod, resources: CgroupResources) -> tuple[str, ...]:
        """Create the pod's cgroup, or update it, and return notes; raise ``EnforceError`` if it cannot be created."""
        if self.driver is CgroupDriver.SYSTEMD:
            return ()
        parts = self._parts(pod)
        settings = tuple(_settings(resources, unified=self.unified))
        self._mkdir(parts, {one.controller for one in settings})
        if pod.qos is QoS.BEST_EFFORT:
            self._write(parts[:-1], [_cpu_shares(milli_to_shares(0), unified=self.unified)])
        return self._write(parts, settings)

    def remove(self, pod: Pod) -> bool:
        """Remove the pod's cgroup, unless processes are left in it; return whether it is gone."""
        if self.driver is CgroupDriver.SYSTEMD:
            return True
        gone = [cgroup.remove(directory) for directory in self._directories(self._parts(pod))]
        return all(gone)

    def set_burstable_shares(self, pods: Iterable[Pod]) -> tuple[str, ...]:
        """Give the Burstable cgroup the CPU shares that its *pods* request together, and return notes.

        Call this when pods come and go; otherwise the cgroup keeps the default weight.
        """
        if self.driver is CgroupDriver.SYSTEMD:
            return ()
        requests = (demand.requests(pod).get(CPU) for pod in pods if pod.qos is QoS.BURSTABLE)
        total = sum(amount.milli() for amount in requests if amount is not None)
        parts = (*self._root(), _qos_part(QoS.BURSTABLE))
        self._mkdir(parts, {CPU})
        return self._write(parts, [_cpu_shares(milli_to_shares(total), unified=self.unified)])

    def limit_all_pods(self, resources: CgroupResources) -> tuple[str, ...]:
        """Apply limits to the cgroup of all pods, and return notes."""
        if self.driver is CgroupDriver.SYSTEMD:
            return ()
        parts, settings = self._root(), tuple(_settings(resources, unified=self.unified))
        self._mkdir(parts, {one.controller for one in settings})
        return self._write(parts, settings)

    def _root(self) -> tuple[str, ...]:
        return tuple(part for part in self.root.split("/") if part)

    def _parts(self, pod: Pod) -> tuple[str, ...]:
        if not _UID.fullmatch(pod.uid) or (self.driver is CgroupDriver.SYSTEMD and "_" in pod.uid):
            raise EnforceError(f"cannot create a cgroup for pod {pod.name}: its uid {pod.uid!r} is not a valid name")
        qos = () if pod.qos is QoS.GUARANTEED else (_qos_part(pod.qos),)
        return (*self._root(), *qos, f"pod{pod.uid}")

    def _mkdir(self, parts: tuple[str, ...], controllers: Iterable[str]) -> None:
        """Create the cgroup and its parents; in version 1, in the hierarchy of each controller."""
        mounts = [self.mount] if self.unified else [self.mount / name for name in sorted(controllers)]
        for mount in mounts:
            if not mount.is_dir():
                continue
            directory = mount
            try:
                for part in parts:
                    if self.unified:
                        _delegate_controllers(directory)
                    directory /= part
                    directory.mkdir(exist_ok=True)
            except OSError as error:
                where, why = error.filename or directory, error.strerror or error
                raise EnforceError(f"cannot create cgroup {'/'.join(parts)}: {where}: {why}") from error

    def _write(self, parts: tuple[str, ...], settings: Iterable[_Setting]) -> tuple[str, ...]:
        return tuple(note for one in settings if (note := self._set(parts, one)))

    def _set(self, parts: tuple[str, ...], one: _Setting) -> str:
        mount = self.mount if self.unified else self.mount / one.controller
        path = mount.joinpath(*parts, one.file)
        try:
            cgroup.write_file(path, one.text)
        except FileNotFoundError:
            return f"{path} does not exist: the limit {one.text} is not enforced" if one.important else ""
        except OSError as error:
            return f"cannot write {one.text} to {path}: {error.strerror or error}"
        return ""

    def _directories(self, parts: tuple[str, ...]) -> Iterator[Path]:
        """Yield the cgroup's directory in every hierarchy: runtimes create it in all of them."""
        mounts = [self.mount] if self.unified else sorted(self.mount.iterdir())
        directories = (mount.joinpath(*parts) for mount in mounts)
        return (directory for directory in directories if directory.is_dir())

    def _limits_swap(self, proc: Path) -> bool:
        """Whether the kernel accounts for swap; the root cgroup has no file that would show it."""
        if not self.unified:
            return (self.mount / "memory" / "memory.memsw.limit_in_bytes").exists()
        own = [line[3:].lstrip("/") for line in (proc / "cgroup").read_text().splitlines() if line.startswith("0::")]
        return any((self.mount / one / "memory.swap.max").exists() for one in (*own, "/".join(self._root())))


def _qos_part(qos: QoS) -> str:
    return qos.value.lower()


def _settings(resources: CgroupResources, *, unified: bool) -> Iterator[_Setting]:
    """Yield the settings in the order in which they must be written."""
    yield _cpu_shares(resources.cpu_shares, unified=unified)
    if resources.cpu_quota:
        period = resources.cpu_period or PERIOD
        if unified:
            quota = "max" if resources.cpu_quota == NO_LIMIT else str(resources.cpu_quota)
            yield _Setting("cpu", "cpu.max", f"{quota} {period}")
        else:
            yield _Setting("cpu", "cpu.cfs_period_us", str(period))
            yield _Setting("cpu", "cpu.cfs_quota_us", str(resources.cpu_quota))
    if resources.memory_limit:
        file = "memory.max" if unified else "memory.limit_in_bytes"
        yield _Setting("memory", file, str(resources.memory_limit))
    if resources.pids_limit:
        yield _Setting("pids", "pids.max", str(resources.pids_limit))
    for size, limit in resources.hugepages.items():
        file = f"hugetlb.{size}.{'max' if unified else 'limit_in_bytes'}"
        yield _Setting("hugetlb", file, str(limit), important=limit > 0)


def _cpu_shares(shares: int, *, unified: bool) -> _Setting:
    if unified:
        return _Setting("cpu", "cpu.weight", str(shares_to_weight(shares)))
    return _Setting("cpu", "cpu.shares", str(shares))


def _delegate_controllers(directory: Path) -> None:
    """Enable every controller that *directory* has for its children; a failure shows when a limit is written."""
    available = (directory / "cgroup.controllers").read_text("ascii").split()
    enabled = (directory / "cgroup.subtree_control").read_text("ascii").split()
    for controller in _CONTROLLERS:
        if controller in available and controller not in enabled:
            with suppress(OSError):
                cgroup.write_file(directory / "cgroup.subtree_control", f"+{controller}")
