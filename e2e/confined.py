"""A command under the restrictions of a systemd unit, where no systemd runs: ``python -m e2e.confined UNIT COMMAND…``.

Done here is what the kernel can be asked for directly: umask, limits, capabilities, no new privileges, and with
libseccomp the calls that ``SystemCallFilter=`` and the like leave. Only units as small as ours are understood: a line
that is not in :data:`DONE` or :data:`ELSEWHERE` is refused, so that none is taken for tried that was not.
"""

import ctypes
import ctypes.util
import errno
import os
import resource
import socket
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from tests.systemd_units import settings

DONE = frozenset(
    {
        *("UMask", "LimitNOFILE", "CapabilityBoundingSet", "NoNewPrivileges", "SystemCallFilter", "LockPersonality"),
        *("RestrictNamespaces", "MemoryDenyWriteExecute", "RestrictRealtime", "RestrictAddressFamilies"),
        *("SystemCallArchitectures", "SystemCallErrorNumber"),
    }
)
#: What is about starting and stopping, or needs systemd's own groups and directories.
ELSEWHERE = frozenset(
    {
        *("ExecStart", "Type", "WatchdogSec", "Restart", "RestartSec", "RestartPreventExitStatus", "KillMode"),
        *("TimeoutStopSec", "StateDirectory", "StateDirectoryMode", "ConfigurationDirectory"),
        *("OOMScoreAdjust", "TasksMax"),
    }
)

_ALLOW, _REFUSE = 0x7FFF0000, 0x00050000  # SCMP_ACT_ALLOW, SCMP_ACT_ERRNO
_MASKED_EQ = 7  # SCMP_CMP_MASKED_EQ
_NAMESPACES = (0x00020000, 0x02000000, 0x04000000, 0x08000000, 0x10000000, 0x20000000, 0x40000000)  # CLONE_NEW*
_EXECUTE, _WRITE = 0x4, 0x2  # PROT_*


def main(words: Sequence[str]) -> None:
    """Become the command, confined."""
    unit, *command = words
    said = settings(Path(unit))
    unknown = said.keys() - DONE - ELSEWHERE
    if unknown:
        sys.exit(f"what these lines of {unit} do is not known here: {', '.join(sorted(unknown))}")
    os.umask(int(said["UMask"], 8))
    files = min(int(said["LimitNOFILE"]), resource.getrlimit(resource.RLIMIT_NOFILE)[1])
    resource.setrlimit(resource.RLIMIT_NOFILE, (files, files))
    kept = ",".join(f"+{name.removeprefix('CAP_').lower()}" for name in said["CapabilityBoundingSet"].split())
    rest = ("setpriv", "--no-new-privs", f"--bounding-set=-all,{kept}", f"--inh-caps=-all,{kept}", "--", *command)
    _filter(said)  # setpriv may still drop what it has to: those calls are among @system-service
    os.execvp(rest[0], rest)  # noqa: S606 - the very purpose


def _filter(said: Mapping[str, str]) -> None:
    """Have the kernel refuse every call that the unit does not leave."""
    library = ctypes.CDLL(ctypes.util.find_library("seccomp") or "libseccomp.so.2")
    library.seccomp_init.restype = ctypes.c_void_p
    context = ctypes.c_void_p(library.seccomp_init(ctypes.c_uint32(_REFUSE | errno.EPERM)))
    left = {call for group in said["SystemCallFilter"].split() for call in _calls(group)}
    narrowed = {"socket", "mmap", "mprotect", "pkey_mprotect", "clone", "personality", "sched_setscheduler"}
    refused = {"unshare", "setns", "clone3"}
    for call in left - narrowed - refused:
        number = library.seccomp_syscall_resolve_name(call.encode())
        if number >= 0:
            _rule(library, context, number)
    resolve = library.seccomp_syscall_resolve_name
    for family in said["RestrictAddressFamilies"].split():
        _rule(library, context, resolve(b"socket"), (0, _MASKED_EQ, 0xFFFFFFFF, getattr(socket, family)))
    # What it is told cannot be looked into; libraries that find it missing take clone.
    _rule(library, context, resolve(b"clone3"), action=_REFUSE | errno.ENOSYS)
    _rule(library, context, resolve(b"mmap"), (2, _MASKED_EQ, _EXECUTE, 0))
    _rule(library, context, resolve(b"mmap"), (2, _MASKED_EQ, _EXECUTE | _WRITE, _EXECUTE))
    _rule(library, context, resolve(b"mprotect"), (2, _MASKED_EQ, _EXECUTE, 0))
    _rule(library, context, resolve(b"clone"), (0, _MASKED_EQ, sum(_NAMESPACES), 0))
    _rule(library, context, resolve(b"sched_setscheduler"), (1, _MASKED_EQ, 0xFFFFFFFF, os.SCHED_OTHER))
    if library.seccomp_load(context):
        sys.exit("the kernel takes no filter of calls")


def _calls(group: str) -> Iterator[str]:
    """The calls of one of systemd's groups, and of those in it; a call is itself."""
    if not group.startswith("@"):
        yield group
        return
    asked = ["systemd-analyze", "syscall-filter", group]
    told = subprocess.run(asked, capture_output=True, text=True, check=True).stdout  # noqa: S603
    for line in told.splitlines()[1:]:
        name = line.strip()
        if name and not name.startswith("#"):
            yield from _calls(name)


class _Compare(ctypes.Structure):
    _fields_ = (
        ("argument", ctypes.c_uint),
        ("how", ctypes.c_int),
        ("first", ctypes.c_uint64),
        ("second", ctypes.c_uint64),
    )


def _rule(
    library: ctypes.CDLL,
    context: ctypes.c_void_p,
    number: int,
    *compares: tuple[int, int, int, int],
    action: int = _ALLOW,
) -> None:
    made = (_Compare * len(compares))(*(_Compare(*one) for one in compares))
    wrong = library.seccomp_rule_add_array(context, ctypes.c_uint32(action), number, len(compares), made)
    if wrong:
        sys.exit(f"no rule for call {number}: {os.strerror(-wrong)}")


if __name__ == "__main__":
    main(sys.argv[1:])
