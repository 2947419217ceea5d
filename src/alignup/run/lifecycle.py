r"""The lifecycle of one run: admit, record, place, start, wait, release.

A run is recorded before its command starts, and released only when none of its processes is left. So no two runs ever
have the same exclusive CPU, no matter which process is killed, and when. Signals are blocked while the run is being
recorded, so that none is lost and none interrupts it.

The command stays in our process group, so that a terminal treats both as one job: the kernel sends keyboard signals
(Ctrl-C, Ctrl-\, Ctrl-Z) to both, and only signals that were sent to us alone are forwarded. When the command stops, we
stop with it, so that the shell notices, and continue together.
"""

import errno
import os
import signal
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import NamedTuple, NoReturn, Protocol

from alignup.align import bits
from alignup.align.bits import CpuSet
from alignup.align.errors import AlignError, EnforceError
from alignup.run import cgroup, process, registry
from alignup.run.process import NodeMap, ProcessIdentity
from alignup.run.registry import RunRegistry, find_run_processes
from alignup.run.request import RunPlacement, RunRecord, RunRejectedError, RunRequest, build_environment

_RETRY_INTERVAL = 1.0  #: seconds between attempts of a waiting run, at most
_POLL_INTERVAL = 0.02  #: seconds between checks whether another run has ended
NOT_EXECUTABLE, NOT_FOUND, SIGNAL_EXIT_BASE = 126, 127, 128

FORWARDED_SIGNALS = frozenset(
    signal.Signals[f"SIG{name}"] for name in ("TERM", "INT", "HUP", "QUIT", "USR1", "USR2", "TSTP", "CONT")
)
Signals = set[signal.Signals]

_BLOCKED = FORWARDED_SIGNALS | {signal.SIGCHLD}
_POLL = 1.0  #: seconds between checks whether the command has ended
_IGNORED_BY_PYTHON = (signal.SIGPIPE, signal.SIGXFSZ)  #: a command should not inherit that


class CommandStartError(EnforceError):
    """The command cannot be started; ``exit_code`` is what a shell returns for it."""

    def __init__(self, command: str, number: int) -> None:
        self.exit_code = NOT_FOUND if number == errno.ENOENT else NOT_EXECUTABLE
        super().__init__(f"{command}: {os.strerror(number)}")


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


class RunJob(NamedTuple):
    request: RunRequest
    command: tuple[str, ...]
    registry: RunRegistry
    method: str  #: ``cgroup``, ``affinity``, or ``auto``: the first that is permitted
    notify: Callable[[str], None]  #: shows a note to the user


def run(allocator: Allocator, job: RunJob, *, timeout: float = 0.0) -> int:
    """Run the command and return its exit code; ``RunRejectedError`` when it does not fit within *timeout* seconds."""
    end = time.monotonic() + timeout
    while True:
        with block_signals() as blocked_signals:
            try:
                record, placement = _admit(allocator, job)
            except RunRejectedError as rejection:
                if rejection.impossible or time.monotonic() >= end:
                    raise
            else:
                environment = {**os.environ, **build_environment(job.request, placement)}
                code = _start_and_wait(allocator, job, record, environment, blocked_signals)
                while signal.sigtimedwait(_BLOCKED, 0) is not None:
                    pass  # signals that came too late for the command are dropped
                return code
        # Wait until a run ends, which changes the directory, or until the next attempt: a killed run changes nothing.
        directory, until = job.registry.directory, min(end, time.monotonic() + _RETRY_INTERVAL)
        modified_at = directory.stat().st_mtime_ns
        while time.monotonic() < until and directory.stat().st_mtime_ns == modified_at:
            time.sleep(_POLL_INTERVAL)


def remove_finished_runs(allocator: Allocator, runs: RunRegistry) -> tuple[RunRecord, ...]:
    """Load the allocator and remove its finished runs; return the other runs. The caller holds the lock."""
    records = [record for record in runs.all() if record.agent == allocator.address]
    finished_runs = {record.uid: record for record in registry.finished_runs(records)}
    active = tuple(record for record in records if record.uid not in finished_runs)
    runs.record_processes([record.uid for record in active if not record.runner.alive])
    allocator.load(active=[record.uid for record in active], finished=list(finished_runs))
    for record in finished_runs.values():
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
    nodes = placement.memory if NodeMap.read().with_memory & ~placement.memory else 0
    folder = None
    if job.method != "affinity":
        try:
            # Recorded first: if we are killed now, the next run removes the cgroup.
            announce = lambda directory: job.registry.put(record._replace(cgroup=directory))  # noqa: E731
            folder = cgroup.create(job.request.uid, placement.cpus, nodes=nodes, announce=announce)
        except EnforceError:
            if job.method == "cgroup":
                raise
    if folder is None and nodes and not process.can_bind_memory(nodes):
        message = f"this process may not bind memory to NUMA nodes {bits.show(nodes)}"
        if placement.strict:
            raise EnforceError(message)
        job.notify(f"memory is not bound: {message}")
        nodes = 0
    placed_record = record._replace(cpus=placement.cpus, exclusive=placement.exclusive, devices=placement.devices)
    return placed_record._replace(memory=nodes, cgroup=folder)


def _start_and_wait(
    allocator: Allocator, job: RunJob, record: RunRecord, environment: Mapping[str, str], blocked_signals: Signals
) -> int:
    try:
        try:
            pid = start_command(record, environment=environment, blocked_signals=blocked_signals)
        except CommandStartError:
            raise
        except EnforceError:
            if record.cgroup is None or job.method == "cgroup":
                raise
            # The cgroup was created, but the command may not join it: fall back to affinity.
            cgroup.remove(record.cgroup)
            record = record._replace(cgroup=None)
            with job.registry.locked():
                job.registry.put(record)
            pid = start_command(record, environment=environment, blocked_signals=blocked_signals)
        if record.cgroup is None:
            _record_started(job, record, pid)
        return wait_for_command(pid)
    finally:
        _release(allocator, job, record)


def _record_started(job: RunJob, record: RunRecord, pid: int) -> None:
    try:
        with job.registry.locked():
            current = job.registry.get(record.uid) or record
            job.registry.put(current._replace(started=(ProcessIdentity.of(pid),)))
            if current.cpus != record.cpus:  # the shared pool changed while the command was starting
                process.pin(pid, current.cpus)
    except (AlignError, OSError) as error:
        job.notify(f"the process of {record.name} was not recorded: {error}")


def _release(allocator: Allocator, job: RunJob, record: RunRecord) -> None:
    """Release the run after its command has ended, unless it left processes behind."""
    if not registry.wait_until_finished(record):
        resources = f"CPUs {bits.show(record.cpus)}" if record.exclusive else "its resources"
        job.notify(f"processes of {record.name} are still running and keep {resources} until they end")
    try:
        with job.registry.locked():
            if record.uid not in (
                finished_run.uid for finished_run in registry.finished_runs([record], ending=record.uid)
            ):
                job.registry.record_processes([record.uid])
                return
            active = remove_finished_runs(allocator, job.registry)
            allocator.release(record.uid)
            allocator.save()
            job.registry.remove(record)
            _update_shared(allocator, job, [other for other in active if other.uid != record.uid])
    except (AlignError, OSError) as error:
        job.notify(f"{record.name} has ended; the next run releases its resources: {error}")


def _update_shared(allocator: Allocator, job: RunJob, active: Sequence[RunRecord]) -> None:
    sharing = [record for record in active if not record.exclusive and record.cpus]
    if not sharing:
        return
    shared_cpus = allocator.shared()
    moved_records = [record._replace(cpus=shared_cpus) for record in sharing if record.cpus != shared_cpus]
    for moved_run in find_run_processes(moved_records):
        try:
            job.registry.put(moved_run.record)
            if moved_run.record.cgroup is not None:
                cgroup.write(moved_run.record.cgroup, shared_cpus, nodes=moved_run.record.memory)
                continue
            for pid in moved_run.pids:
                process.pin(pid, shared_cpus)
        except (AlignError, OSError) as error:
            job.notify(f"{moved_run.record.name} was not moved to CPUs {bits.show(shared_cpus)}: {error}")


@contextmanager
def block_signals() -> Iterator[Signals]:
    """Block the forwarded signals; yield the signals that were blocked before, for :func:`start_command`."""
    old_mask = signal.pthread_sigmask(signal.SIG_BLOCK, _BLOCKED)
    try:
        yield {signal.Signals(number) for number in old_mask}
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, old_mask)


def start_command(run: RunRecord, *, environment: Mapping[str, str], blocked_signals: Signals) -> int:
    """Start the command of *run* where the run is placed, and return its pid.

    Raises ``CommandStartError`` if it cannot be executed, ``EnforceError`` if it cannot be placed.
    """
    process.adopt_orphans()  # so that processes of the run can be found, also in sessions of their own
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)  # our parent may have ignored it, and with it the end of the command
    reader, writer = os.pipe()  # exec closes both ends in the child
    pid = os.fork()
    if pid == 0:
        os.close(reader)
        _exec(run, environment=environment, blocked_signals=blocked_signals, errors=writer)
    os.close(writer)
    with os.fdopen(reader, "rb") as pipe:
        error = pipe.read().decode("utf-8", "replace")
    if not error:
        return pid
    os.waitpid(pid, 0)
    if error.isdecimal():
        raise CommandStartError(run.command[0], int(error))
    raise EnforceError(error)


def wait_for_command(pid: int) -> int:
    """Forward signals until the command ends, and return its exit code; 128 plus the signal that killed it."""
    while True:
        # The timeout matters in a process with other threads: one of them may receive SIGCHLD instead and drop it.
        signal_info = signal.sigtimedwait(_BLOCKED, _POLL)
        if signal_info is None or signal_info.si_signo == signal.SIGCHLD:
            code = _exit_code(pid)
            if code is not None:
                return code
        elif signal_info.si_code <= 0:  # sent by a process; signals from the kernel reach the command as well
            with suppress(ProcessLookupError):
                os.kill(pid, signal_info.si_signo)


def _exit_code(pid: int) -> int | None:
    """Return the exit code if the command has ended; if it was stopped, stop with it. Orphans are reaped."""
    while True:
        child, status = os.waitpid(-1, os.WNOHANG | os.WUNTRACED)
        if not child:
            return None
        if child != pid:
            continue
        if os.WIFSTOPPED(status):
            os.kill(os.getpid(), signal.SIGSTOP)
            continue
        code = os.waitstatus_to_exitcode(status)
        return code if code >= 0 else SIGNAL_EXIT_BASE - code


def _exec(run: RunRecord, *, environment: Mapping[str, str], blocked_signals: Signals, errors: int) -> NoReturn:
    """Place this process and replace it with the command; on failure write the error to the pipe and exit."""
    try:
        _place_self(run)
        for number in _IGNORED_BY_PYTHON:
            signal.signal(number, signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_SETMASK, blocked_signals)
        os.execvpe(run.command[0], run.command, environment)  # noqa: S606 - the user's command, without a shell
    except EnforceError as error:
        os.write(errors, str(error).encode("utf-8", "replace"))
    except OSError as error:
        reason = error.errno
        if reason == errno.EACCES and not _exists(run.command[0], environment):
            reason = errno.ENOENT  # a directory of PATH is closed to this user
        os.write(errors, str(reason).encode("ascii"))
    except BaseException as error:  # noqa: BLE001 - the forked copy must not continue
        os.write(errors, f"{type(error).__name__}: {error}".encode("utf-8", "replace"))
    os._exit(NOT_EXECUTABLE)


def _exists(program: str, environment: Mapping[str, str]) -> bool:
    directories = [""] if "/" in program else os.get_exec_path(environment)
    return any(os.path.lexists(os.path.join(directory, program)) for directory in directories)  # noqa: PTH118


def _place_self(run: RunRecord) -> None:
    cpus = bits.show(run.cpus)
    try:
        if run.cgroup is not None:
            process.reset_affinity()
            cgroup.join(run.cgroup, os.getpid())
            return
        os.sched_setaffinity(0, bits.members(run.cpus))
        granted_cpus = bits.of(os.sched_getaffinity(0))
    except OSError as error:
        raise EnforceError(f"cannot run the command on CPUs {cpus}: {error.strerror}") from error
    if granted_cpus != run.cpus:
        raise EnforceError(f"the kernel granted CPUs {bits.show(granted_cpus)} instead of {cpus}")
    if run.memory:
        process.bind_memory(run.memory)
