r"""Run a command where it belongs, forward signals to it, and return its exit code.

The command stays in our process group, so that a terminal treats both as one job: the kernel sends keyboard signals
(Ctrl-C, Ctrl-\, Ctrl-Z) to both, and only signals that were sent to us alone are forwarded. When the command stops, we
stop with it, so that the shell notices, and continue together.

Signals are blocked while the run is being recorded, so that none is lost and none interrupts us halfway.
"""

import errno
import os
import signal
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import NoReturn

from alignup.align import bits
from alignup.align.errors import EnforceError
from alignup.run import cgroup, process
from alignup.run import process_memory as memory
from alignup.run.run_record import RunRecord

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


@contextmanager
def block_signals() -> Iterator[Signals]:
    """Block the forwarded signals; yield the signals that were blocked before, for :func:`start`."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, _BLOCKED)
    try:
        yield {signal.Signals(one) for one in before}
    finally:
        while signal.sigtimedwait(_BLOCKED, 0) is not None:
            pass  # signals that came too late for the command are dropped
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def start(run: RunRecord, *, environment: Mapping[str, str], blocked: Signals) -> int:
    """Start the command of *run* where the run is placed, and return its pid.

    Raises ``CommandStartError`` if it cannot be executed, ``EnforceError`` if it cannot be placed.
    """
    process.adopt_orphans()  # so that processes of the run can be found, also in sessions of their own
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)  # our parent may have ignored it, and with it the end of the command
    reader, writer = os.pipe()  # exec closes both ends in the child
    pid = os.fork()
    if pid == 0:
        os.close(reader)
        _exec(run, environment=environment, blocked=blocked, errors=writer)
    os.close(writer)
    with os.fdopen(reader, "rb") as pipe:
        error = pipe.read().decode("utf-8", "replace")
    if not error:
        return pid
    os.waitpid(pid, 0)
    if error.isdecimal():
        raise CommandStartError(run.command[0], int(error))
    raise EnforceError(error)


def wait(pid: int) -> int:
    """Forward signals until the command ends, and return its exit code; 128 plus the signal that killed it."""
    while True:
        # The timeout matters in a process with other threads: one of them may receive SIGCHLD instead and drop it.
        received = signal.sigtimedwait(_BLOCKED, _POLL)
        if received is None or received.si_signo == signal.SIGCHLD:
            code = _exit_code(pid)
            if code is not None:
                return code
        elif received.si_code <= 0:  # sent by a process; signals from the kernel reach the command as well
            with suppress(ProcessLookupError):
                os.kill(pid, received.si_signo)


def _exit_code(pid: int) -> int | None:
    """Return the exit code if the command has ended; if it was stopped, stop with it. Orphans are reaped."""
    while True:
        found, status = os.waitpid(-1, os.WNOHANG | os.WUNTRACED)
        if not found:
            return None
        if found != pid:
            continue
        if os.WIFSTOPPED(status):
            os.kill(os.getpid(), signal.SIGSTOP)
            continue
        code = os.waitstatus_to_exitcode(status)
        return code if code >= 0 else SIGNAL_EXIT_BASE - code


def _exec(run: RunRecord, *, environment: Mapping[str, str], blocked: Signals, errors: int) -> NoReturn:
    """Place this process and replace it with the command; on failure write the error to the pipe and exit."""
    try:
        _place_self(run)
        for number in _IGNORED_BY_PYTHON:
            signal.signal(number, signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_SETMASK, blocked)
        os.execvpe(run.command[0], run.command, environment)  # noqa: S606 - the user's command, without a shell
    except EnforceError as error:
        os.write(errors, str(error).encode("utf-8", "replace"))
    except OSError as error:
        os.write(errors, str(error.errno).encode("ascii"))
    except BaseException as error:  # noqa: BLE001 - the forked copy must not continue
        os.write(errors, f"{type(error).__name__}: {error}".encode("utf-8", "replace"))
    os._exit(NOT_EXECUTABLE)


def _place_self(run: RunRecord) -> None:
    wanted = bits.show(run.cpus)
    try:
        if run.cgroup is not None:
            process.reset_affinity()
            cgroup.join(run.cgroup, os.getpid())
            return
        os.sched_setaffinity(0, bits.members(run.cpus))
        granted = bits.of(os.sched_getaffinity(0))
    except OSError as error:
        raise EnforceError(f"cannot run the command on CPUs {wanted}: {error.strerror}") from error
    if granted != run.cpus:
        raise EnforceError(f"the kernel granted CPUs {bits.show(granted)} instead of {wanted}")
    if run.memory:
        memory.bind(run.memory)
