"""What systemd wants to hear of a service: that it is ready, that it stops, that it is still alive.

Messages go to the datagram socket that ``NOTIFY_SOCKET`` names, which may be a file or, with an ``@``, a name in the
kernel's own space. Without one nobody listens, and nothing is said.
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
    """Tells systemd; to be asked for anew in every process."""

    address: str  #: empty: nobody listens
    watchdog: float | None = None  #: seconds within which it wants a sign of life; ``None``: it does not

    @classmethod
    def of_environment(cls, environment: Mapping[str, str], *, pid: int) -> Self:
        """What the environment of process *pid* says."""
        said = environment.get("NOTIFY_SOCKET", "")
        address = said if said[:1] in {"/", "@"} else ""
        micros = environment.get("WATCHDOG_USEC", "")
        meant = environment.get("WATCHDOG_PID", str(pid)) == str(pid)
        watched = bool(address) and meant and micros.isdecimal() and int(micros) > 0
        return cls(address, int(micros) / 1_000_000 if watched else None)

    def tell(self, *messages: str) -> bool:
        """Whether the messages went out; that nobody takes them is no reason to stop working."""
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
    """A line for ``systemctl status``."""
    return f"STATUS={' '.join(text.split())}"
