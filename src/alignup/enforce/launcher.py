r"""The command itself: started where it belongs, its signals passed on, and its exit code taken home.

The command stays in our process group, so that a terminal treats the two as one job: what is typed there (Ctrl-C,
Ctrl-\, Ctrl-Z) the kernel sends to both, and only what somebody sends to us alone is passed on. When the command is
stopped we stop with it, so that the shell sees it, and go on together.

Signals are held back from before anything is written down until everything is, so none is lost and none tears us away
half-way.
"""

import errno
import os
import signal
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

from alignup.align import bits
from alignup.align.bits import CpuSet, NodeSet
from alignup.align.errors import EnforceError
from alignup.enforce import cgroup, memory, process

NOT_EXECUTABLE, NOT_FOUND, SIGNAL_EXIT_BASE = 126, 127, 128

FORWARDED_SIGNALS = frozenset(
    {
        signal.SIGTERM,
        signal.SIGINT,
        signal.SIGHUP,
        signal.SIGQUIT,
        signal.SIGUSR1,
        signal.SIGUSR2,
        signal.SIGTSTP,
        signal.SIGCONT,
    }
)
Signals = set[signal.Signals]

_HEARD = FORWARDED_SIGNALS | {signal.SIGCHLD}
_LOOK = 1.0  #: seconds after which we look for ourselves whether the command has ended
_PYTHONS_OWN = (signal.SIGPIPE, signal.SIGXFSZ)  #: what Python ignores, and a command should not


class CommandStartError(EnforceError):
    """The command cannot be started; ``exit_code`` is what a shell would give for it."""

    def __init__(self, command: str, number: int) -> None:
        self.exit_code = NOT_FOUND if number == errno.ENOENT else NOT_EXECUTABLE
        super().__init__(f"{command}: {os.strerror(number)}")


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessPlacement:
    """Where a command is to be."""

    cpus: CpuSet
    memory: NodeSet = 0  #: empty: any
    cgroup: Path | None = None  #: ``None``: by affinity and memory policy


@contextmanager
def block_signals() -> Iterator[Signals]:
    """Hold back the signals that are passed on; what was held back before is handed to :func:`start`."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, _HEARD)
    try:
        yield {signal.Signals(one) for one in before}
    finally:
        while signal.sigtimedwait(_HEARD, 0) is not None:
            pass  # what came too late for the command is nobody's
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def start(
    command: tuple[str, ...], *, place: ProcessPlacement, environment: Mapping[str, str], blocked: set[signal.Signals]
) -> int:
    """Start *command* at its place and give its number.

    ``CommandStartError`` when there is no such command, ``EnforceError`` when it cannot be put there.
    """
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)  # whoever started us may have ignored it, and the end with it
    hears, tells = os.pipe()  # both are closed when the command begins
    pid = os.fork()
    if pid == 0:
        os.close(hears)
        _become(command, place=place, environment=environment, blocked=blocked, tells=tells)
    os.close(tells)
    with os.fdopen(hears, "rb") as told:
        trouble = told.read().decode("utf-8", "replace")
    if not trouble:
        return pid
    os.waitpid(pid, 0)
    if trouble.isdecimal():
        raise CommandStartError(command[0], int(trouble))
    raise EnforceError(trouble)


def wait(pid: int) -> int:
    """Pass on signals until the command ends; its exit code, or 128 and the number of the signal that ended it."""
    while True:
        # Where there are other threads one of them may be handed the signal in our place, and drop it.
        heard = signal.sigtimedwait(_HEARD, _LOOK)
        if heard is None or heard.si_signo == signal.SIGCHLD:
            code = _ended(pid)
            if code is not None:
                return code
        elif heard.si_code <= 0:  # of a person or a program; the kernel's own went to the command as well
            with suppress(ProcessLookupError):
                os.kill(pid, heard.si_signo)


def _ended(pid: int) -> int | None:
    """The exit code, if the command has ended; where it was stopped, we stop too."""
    while True:
        found, status = os.waitpid(pid, os.WNOHANG | os.WUNTRACED)
        if not found:
            return None
        if os.WIFSTOPPED(status):
            os.kill(os.getpid(), signal.SIGSTOP)
            continue
        code = os.waitstatus_to_exitcode(status)
        return code if code >= 0 else SIGNAL_EXIT_BASE - code


def _become(
    command: tuple[str, ...],
    *,
    place: ProcessPlacement,
    environment: Mapping[str, str],
    blocked: Signals,
    tells: int,
) -> NoReturn:
    """Go to the place and become the command; what is in the way is told, and nothing of ours goes on."""
    try:
        _settle(place)
        for number in _PYTHONS_OWN:
            signal.signal(number, signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_SETMASK, blocked)
        os.execvpe(command[0], command, environment)  # noqa: S606 - the command somebody asked for, and no shell
    except EnforceError as error:
        os.write(tells, str(error).encode("utf-8", "replace"))
    except OSError as error:
        os.write(tells, str(error.errno).encode("ascii"))
    except BaseException as error:  # noqa: BLE001 - two of us must not go on
        os.write(tells, f"{type(error).__name__}: {error}".encode("utf-8", "replace"))
    os._exit(NOT_EXECUTABLE)


def _settle(place: ProcessPlacement) -> None:
    """Put this process where it belongs."""
    wanted = bits.show(place.cpus)
    try:
        if place.cgroup is not None:
            process.reset_affinity()
            cgroup.join(place.cgroup, os.getpid())
            return
        os.sched_setaffinity(0, bits.members(place.cpus))
        granted = bits.of(os.sched_getaffinity(0))
    except OSError as error:
        raise EnforceError(f"the command cannot be put on CPUs {wanted}: {error.strerror}") from error
    if granted != place.cpus:
        raise EnforceError(f"the command was to be put on CPUs {wanted}, and is granted {bits.show(granted)} only")
    if place.memory:
        memory.bind(place.memory)
