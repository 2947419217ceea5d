"""The groups of pods: one around all containers of a pod, in which the kernel holds them to what the pod may have.

They stand where the kubelet's do, under a root of ours: ``/alignup/burstable/pod<uid>``, and without a class between
for Guaranteed pods. Where systemd keeps the groups, their names tell the same (``alignup-burstable-pod<uid>.slice``)
and the runtime has them made; else they are made here, before the sandbox.

What a kernel has no controller for cannot be limited. That is no reason not to run a pod: what could not be had comes
back as notes, one sentence each.
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
    """Who makes groups: whoever needs one, or systemd alone."""

    CGROUPFS = "cgroupfs"
    SYSTEMD = "systemd"


@dataclass(frozen=True, slots=True)
class _Setting:
    """Something to be written: by which controller, into which file."""

    controller: str
    file: str
    text: str
    matters: bool = True  #: whether a person should know when there is no such controller


@dataclass(frozen=True, slots=True, kw_only=True)
class PodCgroups:
    """Where the groups of pods are: below *root* in the hierarchies at *top*."""

    root: str = "alignup"
    driver: CgroupDriver = CgroupDriver.CGROUPFS
    top: Path = CGROUP_MOUNT

    @property
    def unified(self) -> bool:
        """Whether there is one hierarchy for all controllers: cgroup version 2."""
        return (self.top / "cgroup.controllers").exists()

    def ground(self, *, memory: int, sysfs: Path = Path("/sys"), proc: Path = cgroup.PROC) -> NodeLimits:
        """What limits depend on here, on a machine with *memory* bytes."""
        found = (_KIB.fullmatch(path.name) for path in sysfs.glob("kernel/mm/hugepages/hugepages-*"))
        sizes = sorted(int(one[1]) << 10 for one in found if one)
        return NodeLimits(memory=memory, page_sizes=tuple(sizes), unified=self.unified, swap=self._limits_swap(proc))

    def parent(self, pod: Pod) -> str:
        """What the runtime is told is around the containers of *pod*: a path, or the name of a slice."""
        parts = self._parts(pod)
        if self.driver is CgroupDriver.CGROUPFS:
            return "/" + "/".join(parts)
        # In the name of a slice a dash leads one level down.
        return "-".join(part.replace("-", "_") for part in parts) + ".slice"

    def make(self, pod: Pod, resources: CgroupResources) -> tuple[str, ...]:
        """Have a group around *pod* that is held to *resources*; what could not be had.

        ``EnforceError`` when there can be no group. One that is there is held to *resources* from now on.
        """
        if self.driver is CgroupDriver.SYSTEMD:
            return ()
        parts = self._parts(pod)
        wanted = tuple(_settings(resources, unified=self.unified))
        self._create(parts, {one.controller for one in wanted})
        if pod.qos is QoS.BEST_EFFORT:
            self._write(parts[:-1], [_share(milli_to_shares(0), unified=self.unified)])
        return self._write(parts, wanted)

    def remove(self, pod: Pod) -> bool:
        """Remove the group around *pod*, unless something is in it; whether it is gone."""
        if self.driver is CgroupDriver.SYSTEMD:
            return True
        gone = [cgroup.remove(folder) for folder in self._everywhere(self._parts(pod))]
        return all(gone)

    def balance(self, pods: Iterable[Pod]) -> tuple[str, ...]:
        """Give all Burstable pods together the CPU time that *pods* of them asked for; what could not be had.

        To be called when pods come and go. Otherwise the class keeps the weight that any new group has.
        """
        if self.driver is CgroupDriver.SYSTEMD:
            return ()
        asked = (demand.requests(pod).get(CPU) for pod in pods if pod.qos is QoS.BURSTABLE)
        total = sum(amount.milli() for amount in asked if amount is not None)
        parts = (*self._root(), _tier(QoS.BURSTABLE))
        self._create(parts, {CPU})
        return self._write(parts, [_share(milli_to_shares(total), unified=self.unified)])

    def limit(self, resources: CgroupResources) -> tuple[str, ...]:
        """Hold all pods together to *resources*; what could not be had."""
        if self.driver is CgroupDriver.SYSTEMD:
            return ()
        parts, wanted = self._root(), tuple(_settings(resources, unified=self.unified))
        self._create(parts, {one.controller for one in wanted})
        return self._write(parts, wanted)

    def _root(self) -> tuple[str, ...]:
        return tuple(part for part in self.root.split("/") if part)

    def _parts(self, pod: Pod) -> tuple[str, ...]:
        """The names of the groups from our root to that of *pod*."""
        if not _UID.fullmatch(pod.uid) or (self.driver is CgroupDriver.SYSTEMD and "_" in pod.uid):
            raise EnforceError(f"there can be no group for pod {pod.name}: {pod.uid!r} is no good as part of its name")
        tier = () if pod.qos is QoS.GUARANTEED else (_tier(pod.qos),)
        return (*self._root(), *tier, f"pod{pod.uid}")

    def _create(self, parts: tuple[str, ...], controllers: Iterable[str]) -> None:
        """Make groups down to the last of *parts*; in version 1, in the hierarchy of each controller."""
        tops = [self.top] if self.unified else [self.top / name for name in sorted(controllers)]
        for top in tops:
            if not top.is_dir():
                continue
            folder = top
            try:
                for part in parts:
                    if self.unified:
                        _hand_on(folder)
                    folder /= part
                    folder.mkdir(exist_ok=True)
            except OSError as error:
                where, why = error.filename or folder, error.strerror or error
                raise EnforceError(f"there can be no group {'/'.join(parts)}: {where}: {why}") from error

    def _write(self, parts: tuple[str, ...], wanted: Iterable[_Setting]) -> tuple[str, ...]:
        """Write settings into a group; what could not be had."""
        return tuple(note for one in wanted if (note := self._set(parts, one)))

    def _set(self, parts: tuple[str, ...], one: _Setting) -> str:
        top = self.top if self.unified else self.top / one.controller
        path = top.joinpath(*parts, one.file)
        try:
            cgroup.write_file(path, one.text)
        except FileNotFoundError:
            return f"{path} is not to be had here, so nobody is held to {one.text}" if one.matters else ""
        except OSError as error:
            return f"{path} did not take {one.text}: {error.strerror or error}"
        return ""

    def _everywhere(self, parts: tuple[str, ...]) -> Iterator[Path]:
        """The folder of a group in every hierarchy; runtimes make it in those we need nothing of, too."""
        tops = [self.top] if self.unified else sorted(self.top.iterdir())
        folders = (top.joinpath(*parts) for top in tops)
        return (folder for folder in folders if folder.is_dir())

    def _limits_swap(self, proc: Path) -> bool:
        """Whether the kernel counts swap by groups; the topmost group has no file that would tell."""
        if not self.unified:
            return (self.top / "memory" / "memory.memsw.limit_in_bytes").exists()
        own = [line[3:].lstrip("/") for line in (proc / "cgroup").read_text().splitlines() if line.startswith("0::")]
        return any((self.top / group / "memory.swap.max").exists() for group in (*own, "/".join(self._root())))


def _tier(qos: QoS) -> str:
    return qos.value.lower()


def _settings(resources: CgroupResources, *, unified: bool) -> Iterator[_Setting]:
    """What holds a group to *resources*, in the order it has to be written."""
    yield _share(resources.cpu_shares, unified=unified)
    if resources.cpu_quota:
        period = resources.cpu_period or PERIOD
        if unified:
            most = "max" if resources.cpu_quota == NO_LIMIT else str(resources.cpu_quota)
            yield _Setting("cpu", "cpu.max", f"{most} {period}")
        else:
            yield _Setting("cpu", "cpu.cfs_period_us", str(period))
            yield _Setting("cpu", "cpu.cfs_quota_us", str(resources.cpu_quota))
    if resources.memory_limit:
        file = "memory.max" if unified else "memory.limit_in_bytes"
        yield _Setting("memory", file, str(resources.memory_limit))
    if resources.processes:
        yield _Setting("pids", "pids.max", str(resources.processes))
    for size, limit in resources.hugepages.items():
        file = f"hugetlb.{size}.{'max' if unified else 'limit_in_bytes'}"
        yield _Setting("hugetlb", file, str(limit), matters=limit > 0)


def _share(cpu_shares: int, *, unified: bool) -> _Setting:
    if unified:
        return _Setting("cpu", "cpu.weight", str(shares_to_weight(cpu_shares)))
    return _Setting("cpu", "cpu.shares", str(cpu_shares))


def _hand_on(folder: Path) -> None:
    """Let the groups in *folder* have every controller that it has; one that they cannot have shows when it is used."""
    has = (folder / "cgroup.controllers").read_text("ascii").split()
    given = (folder / "cgroup.subtree_control").read_text("ascii").split()
    for controller in _CONTROLLERS:
        if controller in has and controller not in given:
            with suppress(OSError):
                cgroup.write_file(folder / "cgroup.subtree_control", f"+{controller}")
