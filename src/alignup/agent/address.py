"""Where an agent is to be found: a socket in the file system, or a port on the network."""

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from alignup.align.errors import ParseError

SOCKET_NAME = "agent.sock"  #: in the agent's root directory
_PORT = re.compile(r"(?P<host>\[[^]]*\]|[^:]*):(?P<port>[0-9]{1,5})", re.ASCII)


@dataclass(frozen=True, slots=True)
class UnixAddress:
    """A socket in the file system."""

    path: Path

    def __str__(self) -> str:
        return f"unix:{self.path}"


@dataclass(frozen=True, slots=True)
class TcpAddress:
    """A port on the network."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"{f'[{self.host}]' if ':' in self.host else self.host}:{self.port}"


Address = UnixAddress | TcpAddress


def parse_address(text: str) -> Address:
    """The address *text* names: ``unix:PATH``, ``HOST:PORT``, or ``:PORT`` on this machine alone."""
    if text.startswith("unix:") and len(text) > len("unix:"):
        return UnixAddress(Path(text.removeprefix("unix:")).absolute())
    found = _PORT.fullmatch(text)
    if found is None or int(found["port"]) > 65535:
        raise ParseError(f"{text!r} is no address; write unix:PATH, HOST:PORT, or :PORT for this machine alone")
    return TcpAddress(found["host"].strip("[]") or "127.0.0.1", int(found["port"]))


def default_root(environment: Mapping[str, str], *, uid: int | None = None) -> Path:
    """Where an agent keeps its things unless told otherwise: the system's place for root, the user's for others."""
    if (os.geteuid() if uid is None else uid) == 0:
        return Path("/var/lib/alignup")
    state = environment.get("XDG_STATE_HOME") or ""
    home = Path(state) if state.startswith("/") else Path(environment.get("HOME") or "/") / ".local" / "state"
    return home / "alignup"
