"""The address of an agent: a unix socket or a TCP port."""

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from alignup.align.errors import ParseError

SOCKET_NAME = "agent.sock"  #: in the agent's root directory
_TCP = re.compile(r"(?P<host>\[[^]]*\]|[^:]*):(?P<port>[0-9]{1,5})", re.ASCII)


@dataclass(frozen=True, slots=True)
class UnixAddress:
    path: Path

    def __str__(self) -> str:
        return f"unix:{self.path}"


@dataclass(frozen=True, slots=True)
class TcpAddress:
    host: str
    port: int

    def __str__(self) -> str:
        return f"{f'[{self.host}]' if ':' in self.host else self.host}:{self.port}"


Address = UnixAddress | TcpAddress


def parse_address(text: str) -> Address:
    """Parse ``unix:PATH``, ``HOST:PORT``, or ``:PORT`` for localhost."""
    if text.startswith("unix:") and len(text) > len("unix:"):
        return UnixAddress(Path(text.removeprefix("unix:")).absolute())
    found = _TCP.fullmatch(text)
    if found is None or int(found["port"]) > 65535:
        raise ParseError(f"{text!r} is not an address; write unix:PATH, HOST:PORT, or :PORT for localhost")
    return TcpAddress(found["host"].strip("[]") or "127.0.0.1", int(found["port"]))


def default_root(environment: Mapping[str, str], *, uid: int | None = None) -> Path:
    """Return the default root directory: the system's for root, the user's for others."""
    if (os.geteuid() if uid is None else uid) == 0:
        return Path("/var/lib/alignup")
    state = environment.get("XDG_STATE_HOME") or ""
    home = Path(state) if state.startswith("/") else Path(environment.get("HOME") or "/") / ".local" / "state"
    return home / "alignup"
