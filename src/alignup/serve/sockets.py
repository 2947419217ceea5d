"""Sockets to be asked on, and the server that answers there inside an event loop that is already running.

A unix socket belongs to its owner alone from the moment it can be seen: it is bound in a directory nobody else can
enter, and moved to its place when its mode is right. An address on the network is guarded by a token from a file that
is its owner's alone.
"""

import asyncio
import fcntl
import os
import re
import socket
import stat
import tempfile
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from pathlib import Path

from starlette.types import ASGIApp

from alignup.align.errors import ListenError
from alignup.serve.server import ApiServer, ServerLimits

_LONGEST_PATH = 107  #: bytes; the kernel's limit for the name of a unix socket, less its end
_LONGEST_TOKEN = 4096
_TOKEN = re.compile(rb"[A-Za-z0-9._~+/-]+=*")  #: what can stand in a header after ``Bearer``


@contextmanager
def unix_socket(path: Path) -> Iterator[socket.socket]:
    """A socket at *path* that only its owner can reach; gone again afterwards, unless another took its place."""
    made = _bound_at(path)
    try:
        own = path.lstat()
        yield made
    finally:
        made.close()
        with suppress(FileNotFoundError):
            left = path.lstat()
            if (left.st_dev, left.st_ino) == (own.st_dev, own.st_ino):
                path.unlink()


@contextmanager
def tcp_socket(port: int, host: str = "127.0.0.1") -> Iterator[socket.socket]:
    """A socket on an address of the network; port 0 is one that is free."""
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        made = socket.socket(family, kind, protocol)
    except OSError as error:
        raise ListenError(f"{host} port {port} cannot be listened on: {error}") from error
    with made:
        try:
            made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            made.bind(address)
        except OSError as error:
            what = f"{host} port {port} cannot be listened on: {error.strerror}"
            raise ListenError(f"{what}\nchoose another port, or end whoever listens there") from error
        yield made


def read_token(path: Path) -> bytes:
    """The token in a file; refused where others could read or change it, or where it is none."""
    try:
        with open(path, "rb", opener=_without_waiting) as file:
            status = os.fstat(file.fileno())
            if not stat.S_ISREG(status.st_mode):
                raise ListenError(f"{path} is to hold the token, but is no plain file")
            content = file.read(_LONGEST_TOKEN + 1)
    except OSError as error:
        raise ListenError(f"the token cannot be read from {path}: {error.strerror}") from error
    if status.st_mode & 0o077:
        mode = f"its mode is {stat.S_IMODE(status.st_mode):04o}"
        raise ListenError(f"others than its owner can use the token in {path}: {mode}\nrun: chmod 600 {path}")
    if status.st_uid not in {os.geteuid(), 0}:
        raise ListenError(f"the token in {path} belongs to another user, who could change it: uid {status.st_uid}")
    token = content.strip()
    if not token:
        raise ListenError(f"the token in {path} is empty\nmake one: head -c 32 /dev/urandom | base64 > {path}")
    if len(content) > _LONGEST_TOKEN or not _TOKEN.fullmatch(token):
        raise ListenError(f"{path} holds no token: one line of letters, digits and -._~+/= is expected")
    return token


@asynccontextmanager
async def serve_app(
    app: ASGIApp, made: socket.socket, *, stopping: asyncio.Event, timing: ServerLimits | None = None
) -> AsyncIterator[None]:
    """*app* answers on a socket as long as this lasts.

    At the end *stopping* is set, which ends streams of events; requests under way are answered, as far as that takes no
    longer than *timing* allows.
    """
    server = ApiServer(app, timing or ServerLimits())
    task = asyncio.ensure_future(server.serve(sockets=[made]))
    try:
        await server.ready(task)
        yield
    finally:
        stopping.set()
        await server.end(task)


def _without_waiting(path: str, flags: int) -> int:
    """Open a file, and a pipe without waiting for who writes into it."""
    return os.open(path, flags | os.O_NONBLOCK)


def _bound_at(path: Path) -> socket.socket:
    """A socket that listens at *path*, put there in one step."""
    parent = path.parent
    try:
        parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        with _alone_in(parent):
            _check_place(path)
            with tempfile.TemporaryDirectory(prefix=".", dir=parent) as private:
                return _moved(Path(private) / "s", path)
    except OSError as error:
        raise ListenError(f"there can be no socket at {path}: {error.strerror or error}") from error


@contextmanager
def _alone_in(directory: Path) -> Iterator[None]:
    """Nobody else looks for a place in *directory* meanwhile."""
    handle = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield
    finally:
        os.close(handle)


def _check_place(path: Path) -> None:
    """Refuse a place that is taken; a socket nobody listens at is no more than a leftover."""
    try:
        found = path.lstat()
    except FileNotFoundError:
        return
    if not stat.S_ISSOCK(found.st_mode):
        raise ListenError(f"{path} is there already, and is no socket\nremove it, or choose another place")
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as caller:
        try:
            caller.settimeout(1.0)
            caller.connect(os.fspath(path))
        except (ConnectionRefusedError, FileNotFoundError):
            return
        except OSError as error:
            raise ListenError(f"somebody may be listening at {path}: {error.strerror or error}") from error
    raise ListenError(f"somebody listens at {path} already\nend the other agent, or choose another place")


def _moved(first: Path, path: Path) -> socket.socket:
    """A socket bound at *first* and moved to *path* once it listens and nobody else can reach it."""
    for one in (first, path):
        if len(os.fsencode(one)) > _LONGEST_PATH:
            raise ListenError(f"{path} is too long for a socket: {len(os.fsencode(one))} of {_LONGEST_PATH} bytes")
    made = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        made.bind(os.fspath(first))
        first.chmod(0o600)
        made.listen()
        first.replace(path)
    except OSError:
        made.close()
        raise
    return made
