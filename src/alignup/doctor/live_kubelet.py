"""Is a kubelet at work in a directory? One that runs would not notice what is written there, and write over it."""

import os
import socket
from collections.abc import Iterator
from pathlib import Path

from alignup.state.kubelet.state_dir import PLUGINS_DIR

ROOT = Path("/var/lib/kubelet")  #: where a kubelet keeps its state unless it is told otherwise
_SOCKETS = (f"{PLUGINS_DIR}/kubelet.sock", "pod-resources/kubelet.sock")
_SECONDS = 2.0


def find_live_kubelets(directory: Path, *, proc: Path = Path("/proc")) -> tuple[str, ...]:
    """Who uses *directory*, a line each; none when nobody does."""
    return (*_listeners(directory), *_processes(directory, proc))


def _listeners(directory: Path) -> Iterator[str]:
    for name in _SOCKETS:
        if why := _answers(directory / name):
            yield f"{directory / name} {why}"


def _answers(path: Path) -> str:
    """Whether somebody is behind a socket, in words; empty when nobody is."""
    try:
        folder = os.open(path.parent, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    except FileNotFoundError:
        return ""
    except OSError as error:
        return f"cannot be asked: {error.strerror}"
    try:
        with socket.socket(socket.AF_UNIX) as asking:
            asking.settimeout(_SECONDS)
            # By way of the open directory: the name of a socket may not have more than 107 bytes.
            asking.connect(f"/proc/self/fd/{folder}/{path.name}")
    except (FileNotFoundError, ConnectionRefusedError):
        return ""
    except (TimeoutError, BlockingIOError):
        return "is listened on, but nobody answers"
    except OSError as error:
        return f"cannot be asked: {error.strerror}"
    finally:
        os.close(folder)
    return "answers"


def _processes(directory: Path, proc: Path) -> Iterator[str]:
    for folder in sorted(proc.glob("[0-9]*")):
        arguments = _command_line(folder)
        if not arguments or Path(arguments[0]).name != "kubelet":
            continue
        root = _root_dir(arguments)
        if _same(folder, root, directory):
            yield f"process {folder.name} is a kubelet with --root-dir {root}"


def _command_line(folder: Path) -> list[str]:
    try:
        return os.fsdecode((folder / "cmdline").read_bytes()).split("\0")
    except OSError:  # it has ended, or is none of ours to look at
        return []


def _root_dir(arguments: list[str]) -> Path:
    """``--root-dir`` of a kubelet; the last one counts."""
    root = ROOT
    for argument, following in zip(arguments, [*arguments[1:], ""], strict=True):
        name, equals, value = argument.lstrip("-").partition("=")
        if argument.startswith("-") and name == "root-dir":
            root = Path(value if equals else following)
    return root


def _same(process: Path, root: Path, directory: Path) -> bool:
    """Whether *root*, as *process* sees it, is *directory*; by name alone where one may not look."""
    inside = process / "root" / root.relative_to("/") if root.is_absolute() else process / "cwd" / root
    try:
        return inside.samefile(directory)
    except OSError:
        return root.resolve() == directory.resolve()
