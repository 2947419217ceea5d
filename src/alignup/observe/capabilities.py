"""Drops all Linux capabilities of this process.

The observer reads files of its own user, root, and needs none: not even ``CAP_DAC_READ_SEARCH``. Capabilities belong to
threads, so this must happen before the first other thread starts.
"""

import ctypes
import os
from pathlib import Path

_CAPBSET_DROP, _NO_NEW_PRIVILEGES, _CAP_AMBIENT, _CLEAR_ALL = 24, 38, 47, 4
_VERSION_3 = 0x20080522
_LAST_CAPABILITY = Path("/proc/sys/kernel/cap_last_cap")


class _Header(ctypes.Structure):
    _fields_ = (("version", ctypes.c_uint32), ("pid", ctypes.c_int))


class _Sets(ctypes.Structure):
    _fields_ = (("effective", ctypes.c_uint32), ("permitted", ctypes.c_uint32), ("inheritable", ctypes.c_uint32))


def drop_capabilities() -> None:
    """Drop them for good, also for programs that this process starts; ``OSError`` if the kernel refuses."""
    libc = ctypes.CDLL(None, use_errno=True)
    for capability in range(int(_LAST_CAPABILITY.read_text("ascii")) + 1):
        libc.prctl(_CAPBSET_DROP, capability, 0, 0, 0)  # fails without CAP_SETPCAP, when there is nothing to drop
    libc.prctl(_CAP_AMBIENT, _CLEAR_ALL, 0, 0, 0)
    if libc.prctl(_NO_NEW_PRIVILEGES, 1, 0, 0, 0) or libc.capset(
        ctypes.byref(_Header(_VERSION_3, 0)), ctypes.byref((_Sets * 2)())
    ):
        error = ctypes.get_errno()
        raise OSError(error, f"cannot drop capabilities: {os.strerror(error)}")
