"""Notifies systemd that the service is ready, stopping or alive (sd_notify(3)).

``NOTIFY_SOCKET`` names a datagram socket: a path, or with an ``@`` an abstract address.
"""

import socket
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Self

READY = "READY=1"
STOPPING = "STOPPING=1"
WATCHDOG = "WATCHDOG=1"


@dataclass(frozen=True, slots=True)
class Notifier:
    address: str  #: empty: not started by systemd
    watchdog: float | None = None  #: seconds between required notifications; ``None``: no watchdog

    @classmethod
    def of_environment(cls, environment: Mapping[str, str], *, pid: int) -> Self:
        path = environment.get("NOTIFY_SOCKET", "")
        address = path if path[:1] in {"/", "@"} else ""
        micros = environment.get("WATCHDOG_USEC", "")
        for_this_process = environment.get("WATCHDOG_PID", str(pid)) == str(pid)
        watched = bool(address) and for_this_process and micros.isdecimal() and int(micros) > 0
        return cls(address, int(micros) / 1_000_000 if watched else None)

    def send(self, *messages: str) -> bool:
        """Return whether the messages were sent; failures are ignored."""
        if not self.address:
            return False
        address = "\0" + self.address[1:] if self.address.startswith("@") else self.address
        try:
            with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as sender:
                sender.settimeout(0)
                sender.sendto("\n".join(messages).encode("utf-8", "replace"), address)
        except OSError:
            return False
        return True


def status_line(text: str) -> str:
    return f"STATUS={' '.join(text.split())}"
