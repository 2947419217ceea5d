"""The lifecycle of one run: admit, record, place, start, wait, release.

A run is recorded before its command starts, and released only when none of its processes is left. So no two runs ever
have the same exclusive CPU, whichever process is killed at whatever moment.
"""

import os
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

from alignup.align import bits
from alignup.align.bits import CpuSet
from alignup.align.errors import AlignError, EnforceError
from alignup.run import cgroup, launcher, process, registry
from alignup.run import process_memory as memory
from alignup.run.placement_audit import find_run_processes
from alignup.run.process import ProcessIdentity
from alignup.run.registry import RunRegistry
from alignup.run.request import RunPlacement, RunRejectedError, RunRequest, build_environment
from alignup.run.run_record import RunRecord

_RETRY_INTERVAL = 1.0  #: seconds between attempts of a waiting run, at most
_POLL_INTERVAL = 0.02  #: seconds between checks whether another run has ended


class Allocator(Protocol):
    """Decides on runs: the user's own ledger, or the agent. Every method may raise ``AlignError`` and ``OSError``."""

    address: str  #: of the agent; empty: the user's own ledger

    def load(self, *, active: Collection[str], finished: Collection[str]) -> None:
        """Load the ledger, and drop the finished runs from it."""

    def admit(self, request: RunRequest) -> RunPlacement:
        """Raises ``RunRejectedError`` when the run does not fit."""

    def shared(self) -> CpuSet: ...

    def release(self, uid: str) -> None: ...

    def save(self) -> None: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class RunJob:
    request: RunRequest
    command: tuple[str, ...]
    registry: RunRegistry
    method: str  #: ``cgroup``, ``affinity``, or ``auto``: the first that is permitted
    notify: Callable[[str], None]  #: shows a note to the user


def run(allocator: Allocator, job: RunJob, *, timeout: float = 0.0) -> int:
    """Run the command and return its exit code; ``RunRejectedError`` when it does not fit within *timeout* seconds."""
    end = time.monotonic() + timeout
    while True:
        with launcher.block_signals() as blocked:
            try:
                record, placement = _admit(allocator, job)
            except RunRejectedError as rejected:
                if rejected.impossible or time.monotonic() >= end:
                    raise
            else:
                environment = {**os.environ, **build_environment(job.request, placement)}
                return _start_and_wait(allocator, job, record, environment, blocked)
        # Wait until a run ends, which changes the directory, or until the next attempt: a killed run changes nothing.
        directory, until = job.registry.directory, min(end, time.monotonic() + _RETRY_INTERVAL)
        before = directory.stat().st_mtime_ns
        while time.monotonic() < until and directory.stat().st_mtime_ns == before:
            time.sleep(_POLL_INTERVAL)


def remove_finished_runs(allocator: Allocator, runs: RunRegistry) -> tuple[RunRecord, ...]:
    """Load the allocator and remove its finished runs; return the others. The caller holds the lock."""
    known = [record for record in runs.all() if record.agent == allocator.address]
    finished = {record.uid: record for record in registry.finished_runs(known)}
    active = tuple(record for record in known if record.uid not in finished)
    runs.record_processes([record.uid for record in active if not record.runner.alive])
    allocator.load(active=[record.uid for record in active], finished=list(finished))
    for record in finished.values():
        runs.remove(record)
    return active


def _admit(allocator: Allocator, job: RunJob) -> tuple[RunRecord, RunPlacement]:
    with job.registry.locked():
        active = remove_finished_runs(allocator, job.registry)
        record = RunRecord(
            uid=job.request.uid,
            name=job.request.name,
            runner=ProcessIdentity.of(os.getpid()),
            command=job.command,
            since=time.time(),
            cpus=0,
            exclusive=False,
            agent=allocator.address,
        )
        if allocator.address:
            job.registry.put(record)  # if we are killed now, the next run releases the pod at the agent
        try:
            placement = allocator.admit(job.request)
            record = _place(job, record, placement)
            job.registry.put(record)
            allocator.save()
        except BaseException:
            _roll_back(allocator, job, record)
            raise
        _update_shared(allocator, job, active)
        return record, placement


def _roll_back(allocator: Allocator, job: RunJob, record: RunRecord) -> None:
    """Undo an admission. What fails now is cleaned up by the next run, since this process is gone by then."""
    try:
        allocator.release(record.uid)
        allocator.save()
    except (AlignError, OSError) as error:
        job.notify(f"{record.name} will be released later: {error}")
    finally:
        job.registry.remove(record)


def _place(job: RunJob, record: RunRecord, placement: RunPlacement) -> RunRecord:
    # Binding is pointless when all memory is on the chosen nodes anyway.
    nodes = placement.memory if memory.NodeMap.read().with_memory & ~placement.memory else 0
    folder = None
    if job.method != "affinity":
        try:
            # Recorded first: if we are killed now, the next run removes the cgroup.
            announce = lambda directory: job.registry.put(replace(record, cgroup=directory))  # noqa: E731
            folder = cgroup.create(job.request.uid, placement.cpus, nodes=nodes, announce=announce)
        except EnforceError:
            if job.method == "cgroup":
                raise
    if folder is None and nodes and not memory.can_bind(nodes):
        message = f"this process may not bind memory to NUMA nodes {bits.show(nodes)}"
        if placement.strict:
            raise EnforceError(message)
        job.notify(f"memory is not bound: {message}")
        nodes = 0
    placed = replace(record, cpus=placement.cpus, exclusive=placement.exclusive, devices=placement.devices)
    return replace(placed, memory=nodes, cgroup=folder)


def _start_and_wait(
    allocator: Allocator, job: RunJob, record: RunRecord, environment: Mapping[str, str], blocked: launcher.Signals
) -> int:
    try:
        try:
            pid = launcher.start(record, environment=environment, blocked=blocked)
        except launcher.CommandStartError:
            raise
        except EnforceError:
            if record.cgroup is None or job.method == "cgroup":
                raise
            # The cgroup was created, but the command may not join it: fall back to affinity.
            cgroup.remove(record.cgroup)
            record = replace(record, cgroup=None)
            with job.registry.locked():
                job.registry.put(record)
            pid = launcher.start(record, environment=environment, blocked=blocked)
        if record.cgroup is None:
            _record_started(job, record, pid)
        return launcher.wait(pid)
    finally:
        _release(allocator, job, record)


def _record_started(job: RunJob, record: RunRecord, pid: int) -> None:
    try:
        with job.registry.locked():
            current = job.registry.get(record.uid) or record
            job.registry.put(replace(current, started=(ProcessIdentity.of(pid),)))
            if current.cpus != record.cpus:  # the shared pool changed while the command was starting
                process.pin(pid, current.cpus)
    except (AlignError, OSError) as error:
        job.notify(f"the process of {record.name} was not recorded: {error}")


def _release(allocator: Allocator, job: RunJob, record: RunRecord) -> None:
    """Release the run after its command has ended, unless it left processes behind."""
    if not registry.wait_until_finished(record):
        kept = f"CPUs {bits.show(record.cpus)}" if record.exclusive else "its resources"
        job.notify(f"processes of {record.name} are still running and keep {kept} until they end")
    try:
        with job.registry.locked():
            if record.uid not in (one.uid for one in registry.finished_runs([record], own=record.uid)):
                job.registry.record_processes([record.uid])
                return
            active = remove_finished_runs(allocator, job.registry)
            allocator.release(record.uid)
            allocator.save()
            job.registry.remove(record)
            _update_shared(allocator, job, [one for one in active if one.uid != record.uid])
    except (AlignError, OSError) as error:
        job.notify(f"{record.name} has ended; the next run releases its resources: {error}")


def _update_shared(allocator: Allocator, job: RunJob, active: Sequence[RunRecord]) -> None:
    sharing = [record for record in active if not record.exclusive and record.cpus]
    if not sharing:
        return
    shared = allocator.shared()
    moved = [replace(record, cpus=shared) for record in sharing if record.cpus != shared]
    for one in find_run_processes(moved):
        try:
            job.registry.put(one.record)
            if one.record.cgroup is not None:
                cgroup.write(one.record.cgroup, shared, nodes=one.record.memory)
                continue
            for pid in one.pids:
                process.pin(pid, shared)
        except (AlignError, OSError) as error:
            job.notify(f"{one.record.name} was not moved to CPUs {bits.show(shared)}: {error}")
