"""Listening sockets, the token of clients on the network, and the certificate of the server.

A unix socket is accessible to its owner only, from the moment it appears: it is bound in a private directory, and moved
to its path once its mode is set. A TCP address requires a token, from a file that only its owner can read.
"""

import fcntl
import ipaddress
import os
import re
import socket
import ssl
import stat
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import structlog

from alignup.align.errors import ListenError, SocketPathError
from alignup.socket_paths import length_problem

_MAX_TOKEN = 4096
_TOKEN = re.compile(rb"[A-Za-z0-9._~+/-]+=*")  #: b64token of RFC 6750
_POLL_SECONDS = 0.02
_LOCK_FLAGS = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
_UNSAFE_MODE = 0o027  #: bits that a private key must not have: the group may read it, others may not

_ESTABLISHED = b"01"  #: the state in the kernel's tables of connections
_MAPPED = bytes(10) + b"\xff\xff"  #: before an IPv4 address in an IPv6 one
_STEP = -1 if sys.byteorder == "little" else 1

_log = structlog.get_logger()


@contextmanager
def unix_socket(path: Path) -> Iterator[socket.socket]:
    """Yield a listening socket at *path*; remove it afterwards, unless another process replaced it."""
    listener = _bound_at(path)
    try:
        bound_status = path.lstat()
        yield listener
    finally:
        listener.close()
        with suppress(FileNotFoundError):
            status = path.lstat()
            if (status.st_dev, status.st_ino) == (bound_status.st_dev, bound_status.st_ino):
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
            problem = f"cannot listen on {host} port {port}: {error.strerror}"
            raise ListenError(f"{problem}\nchoose another port, or stop the process that uses it") from error
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


def loopback_uid(client: tuple[str, int], server: tuple[str, int]) -> int | None:
    """Return the user of the client of a TCP connection on the loopback interface; ``None``: unknown.

    Only an established socket belongs to a process; the kernel may list a closed one as root's.
    """
    ends = [(ipaddress.ip_address(host.partition("%")[0]), port) for host, port in (client, server)]
    if not all((getattr(address, "ipv4_mapped", None) or address).is_loopback for address, _ in ends):
        return None
    for path, six in (("/proc/net/tcp", False), ("/proc/net/tcp6", True)):
        row_start = b"%s %s %s " % (*(_table_address(address, port, six=six) for address, port in ends), _ESTABLISHED)
        with suppress(OSError):
            table = Path(path).read_bytes()
            position = table.find(row_start)
            if position >= 0:
                return int(table[position + len(row_start) : position + 300].split(None, 4)[3])
    return None


def _table_address(address: ipaddress.IPv4Address | ipaddress.IPv6Address, port: int, *, six: bool) -> bytes:
    """Return an address as the kernel's tables list it: words of four bytes, each in the order of the machine.

    The table of IPv6 (*six*) has IPv4 addresses, too, of sockets that can use both.
    """
    packed_address = address.packed
    if six and address.version == 4:
        packed_address = _MAPPED + packed_address
    elif not six:
        packed_address = packed_address.removeprefix(_MAPPED)
    words = [packed_address[start : start + 4][::_STEP].hex().upper() for start in range(0, len(packed_address), 4)]
    return f"{''.join(words)}:{port:04X}".encode()


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
        state = path.lstat()
    except FileNotFoundError:
        return
    if not stat.S_ISSOCK(state.st_mode):
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
    if problem := length_problem(path, bound_path=first):
        raise SocketPathError(f"cannot create a socket at {path}: {problem}")
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


@contextmanager
def bind_lock(path: Path, *, seconds: float = 5.0) -> Iterator[None]:
    """Let one process at a time create a socket at *path*; raise ``ListenError`` if another does so after *seconds*.

    The lock is a file of its own that only its owner can open: every user who can read a directory can lock it.
    """
    name = path.with_name(f".{path.name}.lock")
    deadline = time.monotonic() + seconds
    while (handle := _try_lock(name)) is None:
        if time.monotonic() >= deadline:
            problem = f"another process creates a socket at {path}: {_holder(name)} holds {name}"
            raise ListenError(f"{problem}\nstop that process, or choose another path")
        time.sleep(_POLL_SECONDS)
    try:
        os.pwrite(handle, f"{os.getpid()}\n".encode(), 0)
        yield
    finally:
        name.unlink(missing_ok=True)  # still locked; a process that has opened it looks again
        os.close(handle)


def _try_lock(name: Path) -> int | None:
    """Return the locked file; ``None`` if another process has locked or just removed it."""
    try:
        handle = os.open(name, _LOCK_FLAGS, 0o600)
    except OSError as error:
        raise ListenError(f"cannot lock {name}: {error.strerror}\nremove it, or choose another path") from error
    locked = False
    try:
        open_status = os.fstat(handle)
        if open_status.st_uid != os.geteuid():
            problem = f"cannot lock {name}: it belongs to another user (uid {open_status.st_uid})"
            raise ListenError(f"{problem}\nremove it, or choose a directory that other users cannot write to")
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            current = name.lstat()
            locked = (current.st_dev, current.st_ino) == (open_status.st_dev, open_status.st_ino)
        except (BlockingIOError, FileNotFoundError):
            return None
        return handle if locked else None
    finally:
        if not locked:
            os.close(handle)


def _holder(name: Path) -> str:
    try:
        pid = name.read_text(encoding="ascii", errors="replace")[:20].strip()
    except OSError:
        pid = ""
    return f"process {pid}" if pid.isdecimal() else "an unknown process"


class ServerCertificate:
    """A certificate chain and its private key, in PEM files.

    A renewed certificate is used for new connections. If the new files cannot be used, the old certificate stays. With
    *client_authority*, the certificates of an authority in a PEM file, clients need a certificate of that authority.
    """

    def __init__(self, certificate: Path, private_key: Path, *, client_authority: Path | None = None) -> None:
        self._files = certificate, private_key
        self._client_authority = client_authority
        try:
            self._loaded = self._versions()
            self._context = self._load()
        except (OSError, ValueError) as error:
            authority = f" and the authority {client_authority}" if client_authority else ""
            raise ListenError(
                f"cannot use the certificate {certificate} with the key {private_key}{authority}: {_reason(error)}"
            ) from error

    def context(self) -> ssl.SSLContext:
        """Return the TLS settings for a new connection."""
        try:
            versions = self._versions()
        except OSError:  # the files are being replaced
            return self._context
        if versions != self._loaded:
            self._loaded = versions
            try:
                self._context = self._load()
            except (OSError, ValueError) as error:
                _log.warning("new certificate unusable", file=str(self._files[0]), reason=_reason(error))
        return self._context

    def _versions(self) -> tuple[tuple[int, ...], ...]:
        files = (*self._files, self._client_authority) if self._client_authority else self._files
        states = [path.stat() for path in files]
        return tuple((state.st_dev, state.st_ino, state.st_mtime_ns, state.st_size, state.st_mode) for state in states)

    def _load(self) -> ssl.SSLContext:
        certificate, private_key = self._files
        for path in self._files:
            if not path.is_file():  # reading a pipe would block
                raise ValueError(f"{path} is not a regular file")
        mode = stat.S_IMODE(private_key.stat().st_mode)
        if mode & _UNSAFE_MODE:
            raise ValueError(f"the key is accessible to other users (mode {mode:04o}); run: chmod 600 {private_key}")
        context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        context.load_cert_chain(certificate, private_key, password=_no_password)
        if reason := _invalidity(context, certificate):
            _log.warning("clients will reject the certificate", file=str(certificate), reason=reason)
        if self._client_authority is not None:
            context.load_verify_locations(self._client_authority)
            context.verify_mode = ssl.CERT_REQUIRED
        return context


def _invalidity(context: ssl.SSLContext, certificate: Path) -> str:
    """Return why a client that trusts *certificate* itself rejects it now: it has expired, or is not valid yet."""
    trusting_context = ssl.create_default_context(cafile=str(certificate))
    trusting_context.check_hostname = False
    trusting_context.verify_flags = ssl.VerifyFlags.VERIFY_X509_PARTIAL_CHAIN
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    server = context.wrap_bio(to_server, to_client, server_side=True)
    client = trusting_context.wrap_bio(to_client, to_server)
    for side in (client, server, client):
        try:
            side.do_handshake()
        except ssl.SSLCertVerificationError as error:
            return error.verify_message
        except ssl.SSLError:  # it waits for the other side, or fails for a reason that is none of the certificate
            continue
    return ""


def _no_password() -> str:
    raise ValueError("the key is encrypted; decrypt it, because the agent cannot ask for a password")


def _reason(error: Exception) -> str:
    if isinstance(error, ssl.SSLError):
        return {"KEY_VALUES_MISMATCH": "the key belongs to another certificate"}.get(
            error.reason, "they are not a certificate and a private key in PEM format"
        )
    return str(getattr(error, "strerror", None) or error)
