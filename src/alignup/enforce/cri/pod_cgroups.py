"""The cgroups of pods: one around all containers of a pod, which holds them to the pod's limits.

The layout is the kubelet's, under a root of our own: ``/alignup/burstable/pod<uid>``, without the QoS level for
Guaranteed pods. With the systemd driver the same path is a slice name (``alignup-burstable-pod<uid>.slice``), and the
runtime creates the cgroup; with cgroupfs it is created here, before the sandbox.

A limit needs its cgroup controller. A pod runs without one if the kernel lacks it; the methods return a note for each
setting that could not be applied.
"""

import re
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import NamedTuple

from alignup.align.errors import EnforceError
from alignup.align.workload import Pod, QoS, demand
from alignup.align.workload.names import CPU
from alignup.run import cgroup
from alignup.run.cri.resources import (
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


class _Setting(NamedTuple):
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
        if self.unified:  # the root cgroup has no file that shows whether the kernel accounts for swap
            text = (proc / "cgroup").read_text()
            own = [line[3:].lstrip("/") for line in text.splitlines() if line.startswith("0::")]
            swap = any((self.mount / one / "memory.swap.max").exists() for one in (*own, self.root.strip("/")))
        else:
            swap = (self.mount / "memory" / "memory.memsw.limit_in_bytes").exists()
        return NodeLimits(memory=memory, page_sizes=tuple(sizes), unified=self.unified, swap=swap)

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
        if pod.qos is QoS.BEST_EFFORT:
            self._apply(parts[:-1], [_cpu_shares(milli_to_shares(0), unified=self.unified)])
        return self._apply(parts, tuple(_settings(resources, unified=self.unified)))

    def remove(self, pod: Pod) -> bool:
        """Remove the pod's cgroup, unless processes are left in it; return whether it is gone."""
        if self.driver is CgroupDriver.SYSTEMD:
            return True
        parts = self._parts(pod)
        mounts = [self.mount] if self.unified else sorted(self.mount.iterdir())  # runtimes create it in all of them
        gone = [cgroup.remove(mount.joinpath(*parts)) for mount in mounts]
        return all(gone)

    def set_burstable_shares(self, pods: Iterable[Pod]) -> tuple[str, ...]:
        """Give the Burstable cgroup the CPU shares that its *pods* request together, and return notes.

        Call this when pods come and go; otherwise the cgroup keeps the default weight.
        """
        requests = (demand.requests(pod).get(CPU) for pod in pods if pod.qos is QoS.BURSTABLE)
        total = sum(amount.milli() for amount in requests if amount is not None)
        parts = (*self._root(), QoS.BURSTABLE.lower())
        return self._apply(parts, [_cpu_shares(milli_to_shares(total), unified=self.unified)])

    def limit_all_pods(self, resources: CgroupResources) -> tuple[str, ...]:
        """Apply limits to the cgroup of all pods, and return notes."""
        return self._apply(self._root(), tuple(_settings(resources, unified=self.unified)))

    def _root(self) -> tuple[str, ...]:
        return tuple(part for part in self.root.split("/") if part)

    def _parts(self, pod: Pod) -> tuple[str, ...]:
        if not _UID.fullmatch(pod.uid) or (self.driver is CgroupDriver.SYSTEMD and "_" in pod.uid):
            raise EnforceError(f"cannot create a cgroup for pod {pod.name}: its uid {pod.uid!r} is not a valid name")
        qos = () if pod.qos is QoS.GUARANTEED else (pod.qos.lower(),)
        return (*self._root(), *qos, f"pod{pod.uid}")

    def _apply(self, parts: tuple[str, ...], settings: Sequence[_Setting]) -> tuple[str, ...]:
        """Create the cgroup and its parents, write its settings, and return notes; systemd does nothing of that.

        In version 1 the cgroup is created in the hierarchy of each controller.
        """
        if self.driver is CgroupDriver.SYSTEMD:
            return ()
        controllers = sorted({one.controller for one in settings})
        mounts = [self.mount] if self.unified else [self.mount / name for name in controllers]
        for mount in filter(Path.is_dir, mounts):
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
