"""Run a command under the restrictions of a systemd unit, without systemd: ``python -m e2e.confined UNIT COMMAND…``.

Applies what the kernel supports directly: umask, limits, capabilities, no new privileges and, with libseccomp, the
system call filters. Only units as simple as ours are supported: a setting that is in neither :data:`APPLIED` nor
:data:`NOT_APPLIED` is an error, so that no setting is silently left untested.
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

from tests.systemd_units import lines, settings

APPLIED = frozenset(
    {
        *("UMask", "LimitNOFILE", "CapabilityBoundingSet", "NoNewPrivileges", "SystemCallFilter", "LockPersonality"),
        *("RestrictNamespaces", "MemoryDenyWriteExecute", "RestrictRealtime", "RestrictAddressFamilies"),
        *("SystemCallArchitectures", "SystemCallErrorNumber"),
    }
)
#: Settings about starting and stopping, or that need systemd's cgroups, directories or a mount namespace.
NOT_APPLIED = frozenset(
    {
        *("ExecStart", "Type", "WatchdogSec", "Restart", "RestartSec", "RestartPreventExitStatus"),
        *("TimeoutStopSec", "StateDirectory", "StateDirectoryMode", "ConfigurationDirectory"),
        *("ProtectSystem", "ProtectHome", "PrivateTmp", "PrivateDevices", "ProtectProc", "ProtectControlGroups"),
        *("ProtectKernelLogs", "ProtectKernelModules", "ProtectKernelTunables"),
        *("OOMScoreAdjust", "TasksMax", "RestrictSUIDSGID"),
    }
)

_ALLOW, _REJECT = 0x7FFF0000, 0x00050000  # SCMP_ACT_ALLOW, SCMP_ACT_ERRNO
_MASKED_EQ = 7  # SCMP_CMP_MASKED_EQ
_NAMESPACES = (0x00020000, 0x02000000, 0x04000000, 0x08000000, 0x10000000, 0x20000000, 0x40000000)  # CLONE_NEW*
_EXECUTE, _WRITE = 0x4, 0x2  # PROT_*


def main(words: Sequence[str]) -> None:
    """Replace this process with the confined command."""
    unit, *command = words
    unit_settings = settings(Path(unit))
    unknown = unit_settings.keys() - APPLIED - NOT_APPLIED
    if unknown:
        sys.exit(f"unsupported settings in {unit}: {', '.join(sorted(unknown))}")
    os.umask(int(unit_settings["UMask"], 8))
    files = min(int(unit_settings["LimitNOFILE"]), resource.getrlimit(resource.RLIMIT_NOFILE)[1])
    resource.setrlimit(resource.RLIMIT_NOFILE, (files, files))
    kept = [f"+{name.removeprefix('CAP_').lower()}" for name in unit_settings["CapabilityBoundingSet"].split()]
    capabilities = ",".join(["-all", *kept])
    rest = ("setpriv", "--no-new-privs", f"--bounding-set={capabilities}", f"--inh-caps={capabilities}", "--", *command)
    _filter(unit_settings, [value for name, value in lines(Path(unit)) if name == "SystemCallFilter"])
    os.execvp(rest[0], rest)  # noqa: S606


def _filter(unit_settings: Mapping[str, str], filters: Sequence[str]) -> None:
    """Make the kernel reject every system call that the unit does not allow; *filters* are its system call filters."""
    library = ctypes.CDLL(ctypes.util.find_library("seccomp") or "libseccomp.so.2")
    library.seccomp_init.restype = ctypes.c_void_p
    context = ctypes.c_void_p(library.seccomp_init(ctypes.c_uint32(_REJECT | errno.EPERM)))
    allowed: set[str] = set()
    for value in filters:
        calls = {call for group in value.removeprefix("~").split() for call in _calls(group)}
        allowed = allowed - calls if value.startswith("~") else allowed | calls
    allowed |= {"capset", "execve"}  # setpriv drops the capabilities after the filter is in force
    narrowed = {"socket", "mmap", "mprotect", "pkey_mprotect", "clone", "personality", "sched_setscheduler"}
    rejected = {"unshare", "setns", "clone3"}
    for call in allowed - narrowed - rejected:
        number = library.seccomp_syscall_resolve_name(call.encode())
        if number >= 0:
            _rule(library, context, number)
    resolve = library.seccomp_syscall_resolve_name
    for family in unit_settings["RestrictAddressFamilies"].split():
        _rule(library, context, resolve(b"socket"), (0, _MASKED_EQ, 0xFFFFFFFF, getattr(socket, family)))
    # Its arguments cannot be filtered; libraries fall back to clone when it is missing.
    _rule(library, context, resolve(b"clone3"), action=_REJECT | errno.ENOSYS)
    _rule(library, context, resolve(b"mmap"), (2, _MASKED_EQ, _EXECUTE, 0))
    _rule(library, context, resolve(b"mmap"), (2, _MASKED_EQ, _EXECUTE | _WRITE, _EXECUTE))
    _rule(library, context, resolve(b"mprotect"), (2, _MASKED_EQ, _EXECUTE, 0))
    _rule(library, context, resolve(b"clone"), (0, _MASKED_EQ, sum(_NAMESPACES), 0))
    _rule(library, context, resolve(b"sched_setscheduler"), (1, _MASKED_EQ, 0xFFFFFFFF, os.SCHED_OTHER))
    if library.seccomp_load(context):
        sys.exit("the kernel rejected the system call filter")


def _calls(group: str) -> Iterator[str]:
    """Return the system calls of one of systemd's groups, recursively."""
    if not group.startswith("@"):
        yield group
        return
    command = ["systemd-analyze", "syscall-filter", group]
    output = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    for line in output.splitlines()[1:]:
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
    array = (_Compare * len(compares))(*(_Compare(*compare) for compare in compares))
    wrong = library.seccomp_rule_add_array(context, ctypes.c_uint32(action), number, len(compares), array)
    if wrong:
        sys.exit(f"cannot add a rule for system call {number}: {os.strerror(-wrong)}")


if __name__ == "__main__":
    main(sys.argv[1:])
