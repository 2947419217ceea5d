"""Find a kubelet that is running in a directory: it would not notice repaired files, and overwrite them."""

import os
import socket
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

from alignup.kubernetes.kubelet_files.state_files import PLUGINS_DIR

ROOT = Path("/var/lib/kubelet")  #: the default of ``--root-dir``
_SOCKETS = (f"{PLUGINS_DIR}/kubelet.sock", "pod-resources/kubelet.sock")
_TIMEOUT = 2.0  #: seconds


def find_live_kubelets(directory: Path, *, proc: Path = Path("/proc")) -> tuple[str, ...]:
    """The sockets and processes that use *directory*, one sentence each."""
    statuses = {directory / name: _socket_status(directory / name) for name in _SOCKETS}
    return (*(f"{path} {status}" for path, status in statuses.items() if status), *_processes(directory, proc))


def _socket_status(path: Path) -> str:
    """Empty if no process listens on the socket."""
    try:
        parent = os.open(path.parent, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    except FileNotFoundError:
        return ""
    except OSError as error:
        return f"cannot be checked: {error.strerror}"
    try:
        with socket.socket(socket.AF_UNIX) as client:
            client.settimeout(_TIMEOUT)
            # Through the open directory: the path of a socket may not exceed 107 bytes.
            client.connect(f"/proc/self/fd/{parent}/{path.name}")
    except (FileNotFoundError, ConnectionRefusedError):
        return ""
    except (TimeoutError, BlockingIOError):
        return "has a listener that does not answer"
    except OSError as error:
        return f"cannot be checked: {error.strerror}"
    finally:
        os.close(parent)
    return "accepts connections"


def _processes(directory: Path, proc: Path) -> Iterator[str]:
    for process in sorted(proc.glob("[0-9]*")):
        try:
            arguments = os.fsdecode((process / "cmdline").read_bytes()).split("\0")
        except OSError:  # the process has ended, or is not readable
            continue
        if Path(arguments[0]).name != "kubelet":
            continue
        root = ROOT
        for argument, following in pairwise([*arguments, ""]):  # the last one counts
            name, equals, value = argument.lstrip("-").partition("=")
            if argument.startswith("-") and name == "root-dir":
                root = Path(value if equals else following)
        inside = process / "root" / root.relative_to("/") if root.is_absolute() else process / "cwd" / root
        try:
            same = inside.samefile(directory)
        except OSError:  # the process is not accessible
            same = root.resolve() == directory.resolve()
        if same:
            yield f"process {process.name} is a kubelet with --root-dir {root}"
