"""One run from its admission to its end: decided, written down, put in its place, looked after, and given back.

Everything is written down before the command begins, and given back only when none of its processes is left, so that at
no moment two runs have the same CPU for their own, whoever is killed when.
"""

import os
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Protocol

from alignup.align import bits
from alignup.align.bits import CpuSet, NodeSet
from alignup.align.errors import AlignError, EnforceError
from alignup.enforce import audit, cgroup, launcher, memory, process
from alignup.enforce import numa_nodes as node_map
from alignup.enforce.process import ProcessIdentity
from alignup.enforce.run_record import RunRecord
from alignup.runs import registry
from alignup.runs.registry import RunRegistry
from alignup.runs.request import (
    RunAllocation,
    RunPlacement,
    RunRejectedError,
    RunRequest,
    build_environment,
    resolve_placement,
)

ENFORCEMENT_METHODS = ("auto", "cgroup", "affinity")
_EVERY = 1.0  #: seconds between tries of one that waits for room, at most
_GLANCE = 0.02  #: seconds between looks at whether to try


class Allocator(Protocol):
    """Whoever decides on runs: the user's own ledger, or an agent."""

    address: str  #: the agent's; empty: the user's own ledger
    trouble: tuple[type[Exception], ...]  #: what it raises when something goes wrong with it

    def open(self, *, alive: Collection[str], gone: Collection[str]) -> None:
        """Begin, knowing which runs go on and which are over."""

    def admit(self, wish: RunRequest) -> RunAllocation:
        """Decide; ``RunRejectedError`` when there is no room."""

    def shared(self) -> CpuSet:
        """The CPUs of those that have none of their own."""

    def release(self, uid: str) -> None:
        """A run is over."""

    def keep(self) -> None:
        """Make it last."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunJob:
    """What is to be run, and how."""

    wish: RunRequest
    command: tuple[str, ...]
    runs: RunRegistry
    by: str  #: one of ``ENFORCEMENT_METHODS``
    note: Callable[[str], None]  #: tells people what they should know


@dataclass(frozen=True, slots=True)
class _Begun:
    """A run that is written down, and may begin."""

    intent: RunRecord
    given: RunPlacement


def run(office: Allocator, job: RunJob, *, patience: float = 0.0) -> int:
    """Run the command and give its exit code; ``RunRejectedError`` when there is no room within *patience* seconds."""
    end = time.monotonic() + patience
    while True:
        with launcher.block_signals() as blocked:
            try:
                begun = _begin(office, job)
            except RunRejectedError as refused:
                if refused.impossible or time.monotonic() >= end:
                    raise
            else:
                return _attended(office, job, begun, blocked)
        _idle(job.runs, until=min(end, time.monotonic() + _EVERY))


def _idle(runs: RunRegistry, *, until: float) -> None:
    """Do nothing until another run may have ended: whoever ends one writes here, and whoever was killed does not."""
    seen = runs.directory.stat().st_mtime_ns
    while time.monotonic() < until and runs.directory.stat().st_mtime_ns == seen:
        time.sleep(_GLANCE)


def remove_finished_runs(office: Allocator, runs: RunRegistry) -> tuple[RunRecord, ...]:
    """Clear away the runs of *office* that are over, with the lock held, and open it; those that go on."""
    known = [one for one in runs.all() if one.agent == office.address]
    gone = {one.uid: one for one in registry.finished_runs(known)}
    alive = tuple(one for one in known if one.uid not in gone)
    office.open(alive=[one.uid for one in alive], gone=list(gone))
    for one in gone.values():
        runs.remove(one)
    return alive


def _begin(office: Allocator, job: RunJob) -> _Begun:
    with job.runs.locked():
        alive = remove_finished_runs(office, job.runs)
        start = RunRecord(
            uid=job.wish.uid,
            name=job.wish.name,
            runner=ProcessIdentity.of(os.getpid()),
            command=job.command,
            since=time.time(),
            cpus=0,
            exclusive=False,
            agent=office.address,
        )
        if office.address:
            job.runs.put(start)  # an agent that has it will know it by this, should we be killed now
        so_far = start
        try:
            offer = office.admit(job.wish)
            begun = _placed(job, start, resolve_placement(offer), strict=offer.strict)
            so_far = begun.intent
            job.runs.put(so_far)
            office.keep()
        except BaseException:
            _undo(office, job, so_far)
            raise
        _share(office, job, alive)
        return begun


def _trouble(office: Allocator) -> tuple[type[Exception], ...]:
    """What can go wrong with a ledger, an agent or the kernel."""
    return (AlignError, OSError, *office.trouble)


def _undo(office: Allocator, job: RunJob, so_far: RunRecord) -> None:
    """Leave nothing behind; what cannot be undone now is cleared away by the next one, since we are gone then."""
    try:
        office.release(so_far.uid)
        office.keep()
    except _trouble(office) as error:
        job.note(f"{so_far.name} is given back later: {error}")
    finally:
        job.runs.remove(so_far)


def _placed(job: RunJob, start: RunRecord, got: RunPlacement, *, strict: bool) -> _Begun:
    """The run in its place, as far as that is made before it begins."""
    needed = _needed(got.memory)
    folder = _group(job, got.cpus, nodes=needed)
    if folder is None and needed and not memory.can_bind(needed):
        if strict:
            raise EnforceError(f"this process may not bind memory to NUMA nodes {bits.show(needed)}")
        job.note(f"memory is not bound to NUMA nodes {bits.show(needed)}: this process may not do that")
        needed = 0
    intent = replace(start, cpus=got.cpus, exclusive=got.exclusive, memory=needed, devices=got.devices, cgroup=folder)
    return _Begun(intent, got)


def _needed(nodes: NodeSet) -> NodeSet:
    """The nodes to hold memory to; empty where it could come from nowhere else anyway."""
    return nodes if node_map.read().with_memory & ~nodes else 0


def _group(job: RunJob, cpus: CpuSet, *, nodes: NodeSet) -> Path | None:
    if job.by == "affinity":
        return None
    try:
        return cgroup.create(job.wish.uid, cpus, nodes=nodes)
    except EnforceError:
        if job.by == "cgroup":
            raise
        return None


def _attended(office: Allocator, job: RunJob, begun: _Begun, blocked: launcher.Signals) -> int:
    told = {**os.environ, **build_environment(job.wish, begun.given)}
    intent = begun.intent
    try:
        try:
            pid = _start(intent, told, blocked)
        except launcher.CommandStartError:
            raise
        except EnforceError:
            if intent.cgroup is None or job.by == "cgroup":
                raise
            intent = _loosened(job, intent)
            pid = _start(intent, told, blocked)
        if not intent.exclusive and intent.cgroup is None:
            _catch_up(job, intent, pid)
        return launcher.wait(pid)
    finally:
        _give_back(office, job, intent)


def _start(intent: RunRecord, told: Mapping[str, str], blocked: launcher.Signals) -> int:
    place = launcher.ProcessPlacement(cpus=intent.cpus, memory=intent.memory, cgroup=intent.cgroup)
    return launcher.start(intent.command, place=place, environment=told, blocked=blocked)


def _loosened(job: RunJob, intent: RunRecord) -> RunRecord:
    """The same without a group: one could be made, but the command may not go there."""
    if intent.cgroup is not None:
        cgroup.remove(intent.cgroup)
    loose = replace(intent, cgroup=None)
    with job.runs.locked():
        job.runs.put(loose)
    return loose


def _catch_up(job: RunJob, intent: RunRecord, pid: int) -> None:
    """While the command was starting nobody could move it, so what is shared may be something else by now."""
    with job.runs.locked():
        now = next((one for one in job.runs.all() if one.uid == intent.uid), intent)
        if now.cpus != intent.cpus:
            process.pin(pid, now.cpus)


def _give_back(office: Allocator, job: RunJob, intent: RunRecord) -> None:
    """The command has ended: what it had is free again, unless it left processes behind."""
    if not registry.wait_until_finished(intent):
        own = f"CPUs {bits.show(intent.cpus)}" if intent.exclusive else "what it has"
        job.note(f"processes of {intent.name} go on and keep {own}, which is free again when they end")
        return
    try:
        with job.runs.locked():
            alive = remove_finished_runs(office, job.runs)
            office.release(intent.uid)
            office.keep()
            job.runs.remove(intent)
            _share(office, job, [one for one in alive if one.uid != intent.uid])
    except _trouble(office) as error:
        job.note(f"{intent.name} has ended, and what it had is free again at the next start: {error}")


def _share(office: Allocator, job: RunJob, alive: Sequence[RunRecord]) -> None:
    """Those on shared CPUs share what is shared now."""
    sharing = [one for one in alive if not one.exclusive and one.cpus]
    if not sharing:
        return
    shared = office.shared()
    moved = [replace(one, cpus=shared) for one in sharing if one.cpus != shared]
    for run_ in audit.find_run_processes(moved):
        try:
            job.runs.put(run_.intent)
            _move(run_.intent, run_.pids)
        except _trouble(office) as error:
            job.note(f"{run_.intent.name} could not be moved to CPUs {bits.show(shared)}: {error}")


def _move(intent: RunRecord, pids: Sequence[int]) -> None:
    if intent.cgroup is not None:
        cgroup.write(intent.cgroup, intent.cpus, nodes=intent.memory)
        return
    for pid in pids:
        process.pin(pid, intent.cpus)
