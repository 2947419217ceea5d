"""The address of an agent: a unix socket or a TCP port."""

import os
import re
import socket
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from alignup.align.errors import ParseError

SOCKET_NAME = "agent.sock"  #: in the agent's root directory
_TCP = re.compile(r"(?:(?P<scheme>https?)://)?(?P<host>\[[^]]*\]|[^:]*):(?P<port>[0-9]{1,5})(?(scheme)/?)", re.ASCII)


@dataclass(frozen=True, slots=True)
class UnixAddress:
    path: Path

    def __str__(self) -> str:
        return f"unix:{self.path}"


@dataclass(frozen=True, slots=True)
class TcpAddress:
    host: str
    port: int
    tls: bool | None = None  #: ``None``: the address does not say

    @property
    def is_loopback(self) -> bool:
        """Whether the address is certainly one of this machine only."""
        import ipaddress  # noqa: PLC0415 - only for addresses on the network

        try:
            return ipaddress.ip_address(self.host).is_loopback
        except ValueError:
            return self.host == "localhost"

    @property
    def pair(self) -> tuple[str, int]:
        """Host and port, as sockets take them."""
        return self.host, self.port

    def for_clients(self) -> "TcpAddress":
        """Where clients find a server that listens here: a name if it listens on all addresses, and the scheme."""
        host = socket.gethostname() if self.host in {"0.0.0.0", "::"} else self.host  # noqa: S104 - not to listen on
        return TcpAddress(host, self.port, bool(self.tls))

    def __str__(self) -> str:
        scheme = {None: "", True: "https://", False: "http://"}[self.tls]
        return f"{scheme}{f'[{self.host}]' if ':' in self.host else self.host}:{self.port}"


Address = UnixAddress | TcpAddress


def parse_address(text: str, *, listening: bool = False) -> Address:
    """Parse ``unix:PATH``, ``HOST:PORT``, ``https://HOST:PORT``, ``http://HOST:PORT``, or ``:PORT``.

    Servers listen at ``:PORT`` on all addresses of the machine, as programs of Kubernetes do; clients connect to
    localhost.
    """
    if text.startswith("unix:") and len(text) > len("unix:"):
        return UnixAddress(Path(text.removeprefix("unix:")).absolute())
    match = _TCP.fullmatch(text)
    if match is None or int(match["port"]) > 65535:
        default_host = "all addresses" if listening else "localhost"
        raise ParseError(
            f"{text!r} is not an address; write unix:PATH, HOST:PORT, https://HOST:PORT, or :PORT for {default_host}"
        )
    tls = None if match["scheme"] is None else match["scheme"] == "https"
    host = "0.0.0.0" if listening else "127.0.0.1"  # noqa: S104 - as asked for
    return TcpAddress(match["host"].strip("[]") or host, int(match["port"]), tls)


def default_root(environment: Mapping[str, str], *, uid: int | None = None) -> Path:
    """Return the default root directory: the system's for root, the user's for others."""
    if (os.geteuid() if uid is None else uid) == 0:
        return Path("/var/lib/alignup")
    state = environment.get("XDG_STATE_HOME") or ""
    home = Path(state) if state.startswith("/") else Path(environment.get("HOME") or "/") / ".local" / "state"
    return home / "alignup"
