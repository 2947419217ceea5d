"""Listening sockets, and the token of clients on the network.

A unix socket is accessible to its owner only, from the moment it appears: it is bound in a private directory, and moved
to its path once its mode is set. A TCP address requires a token, from a file that only its owner can read.
"""

import os
import re
import socket
import stat
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from alignup.align.errors import ListenError
from alignup.web.bind_lock import bind_lock

_MAX_PATH = 107  #: bytes; the kernel's limit for unix sockets, without the final NUL
_MAX_TOKEN = 4096
_TOKEN = re.compile(rb"[A-Za-z0-9._~+/-]+=*")  #: b64token of RFC 6750


@contextmanager
def unix_socket(path: Path) -> Iterator[socket.socket]:
    """Yield a listening socket at *path*; remove it afterwards, unless another process replaced it."""
    listener = _bound_at(path)
    try:
        own = path.lstat()
        yield listener
    finally:
        listener.close()
        with suppress(FileNotFoundError):
            left = path.lstat()
            if (left.st_dev, left.st_ino) == (own.st_dev, own.st_ino):
                path.unlink()


@contextmanager
def tcp_socket(port: int, host: str = "127.0.0.1") -> Iterator[socket.socket]:
    """Yield a socket bound to an address; port 0 selects a free port."""
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        listener = socket.socket(family, kind, protocol)
    except OSError as error:
        raise ListenError(f"cannot listen on {host} port {port}: {error}") from error
    with listener:
        try:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listener.bind(address)
        except OSError as error:
            what = f"cannot listen on {host} port {port}: {error.strerror}"
            raise ListenError(f"{what}\nchoose another port, or stop the process that uses it") from error
        yield listener


def read_token(path: Path) -> bytes:
    """Read the token from a file; ``ListenError`` if others can read or change it, or if it is not a token."""
    try:
        # Opening a pipe without a writer must not block.
        with open(path, "rb", opener=lambda name, flags: os.open(name, flags | os.O_NONBLOCK)) as file:
            status = os.fstat(file.fileno())
            if not stat.S_ISREG(status.st_mode):
                raise ListenError(f"the token file {path} is not a regular file")
            content = file.read(_MAX_TOKEN + 1)
    except OSError as error:
        raise ListenError(f"cannot read the token file {path}: {error.strerror}") from error
    if status.st_mode & 0o077:
        mode = f"{stat.S_IMODE(status.st_mode):04o}"
        raise ListenError(f"the token file {path} is accessible to other users (mode {mode})\nrun: chmod 600 {path}")
    if status.st_uid not in {os.geteuid(), 0}:
        raise ListenError(f"the token file {path} belongs to another user, who could change it: uid {status.st_uid}")
    token = content.strip()
    if not token:
        raise ListenError(f"the token file {path} is empty\ncreate a token: head -c 32 /dev/urandom | base64 > {path}")
    if len(content) > _MAX_TOKEN or not _TOKEN.fullmatch(token):
        raise ListenError(f"{path} does not contain a token: one line of letters, digits and -._~+/=")
    return token


def _bound_at(path: Path) -> socket.socket:
    parent = path.parent
    try:
        parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        with bind_lock(path):
            _check_free(path)
            with tempfile.TemporaryDirectory(prefix=".", dir=parent) as private:
                return _bind_and_move(Path(private) / "s", path)
    except OSError as error:
        raise ListenError(f"cannot create a socket at {path}: {error.strerror or error}") from error


def _check_free(path: Path) -> None:
    """Raise ``ListenError`` if *path* is in use; a socket without a listener is stale and may be replaced."""
    try:
        found = path.lstat()
    except FileNotFoundError:
        return
    if not stat.S_ISSOCK(found.st_mode):
        raise ListenError(f"{path} exists and is not a socket\nremove it, or choose another path")
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as caller:
        try:
            caller.settimeout(1.0)
            caller.connect(os.fspath(path))
        except (ConnectionRefusedError, FileNotFoundError):
            return
        except OSError as error:
            raise ListenError(f"cannot check whether {path} is in use: {error.strerror or error}") from error
    raise ListenError(f"another process listens at {path}\nstop the other agent, or choose another path")


def _bind_and_move(first: Path, path: Path) -> socket.socket:
    for one in (first, path):
        if len(os.fsencode(one)) > _MAX_PATH:
            raise ListenError(f"{path} is too long for a socket: {len(os.fsencode(one))} bytes, at most {_MAX_PATH}")
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        listener.bind(os.fspath(first))
        first.chmod(0o600)
        listener.listen()
        first.replace(path)
    except OSError:
        listener.close()
        raise
    return listener
