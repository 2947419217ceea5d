"""Which connections the server keeps, so that strangers cannot lock out clients with the token.

A connection is unauthenticated until a request on it is authorized: with the token, or on a socket that needs none.
A new connection is never refused. If there are too many unauthenticated ones, the oldest of them is closed instead: a
client with the token sends it at once, and moves to the slots that are reserved for authenticated connections.
"""

import ipaddress
import resource
import select
from dataclasses import dataclass
from typing import Protocol

_DESCRIPTORS_PER_SLOT = 4  #: of each kind; the other half of the descriptors is for everything else


@dataclass(frozen=True, slots=True, kw_only=True)
class ConnectionLimits:
    authenticated: int = 768
    unauthenticated: int = 256
    per_peer: int = 64  #: unauthenticated connections from one address

    def within_descriptors(self) -> "ConnectionLimits":
        """Return limits that leave half of the file descriptors of this process for other uses."""
        slots = max(1, resource.getrlimit(resource.RLIMIT_NOFILE)[0] // _DESCRIPTORS_PER_SLOT)
        return ConnectionLimits(
            authenticated=min(self.authenticated, slots),
            unauthenticated=min(self.unauthenticated, slots),
            per_peer=min(self.per_peer, slots),
        )


class Closable(Protocol):
    def close_now(self) -> None:
        """Close the connection without waiting for the client."""


class ConnectionTable:
    """The open connections of a server, authenticated and unauthenticated ones."""

    def __init__(self, limits: ConnectionLimits) -> None:
        self._limits = limits
        self._authenticated: set[Closable] = set()
        self._peers: dict[Closable, str | None] = {}  #: of unauthenticated connections
        self._by_peer: dict[str | None, dict[Closable, None]] = {}  #: unauthenticated connections, oldest first

    def __len__(self) -> int:
        return len(self._authenticated) + len(self._peers)

    def add(self, connection: Closable, peer: str | None) -> None:
        """Add an unauthenticated connection; close the oldest if there are too many now.

        *peer* is the address of the client, ``None`` on a unix socket.
        """
        group = self._by_peer.setdefault(peer, {})
        if peer is not None and len(group) >= self._limits.per_peer:
            self._close_oldest(peer)
        elif len(self._peers) >= self._limits.unauthenticated:
            self.close_one()
        self._by_peer.setdefault(peer, group)[connection] = None
        self._peers[connection] = peer

    def authenticate(self, connection: Closable) -> bool:
        """Count *connection* as authenticated; return whether there is a slot for it."""
        if connection not in self._peers:  # authenticated or closed
            return True
        if len(self._authenticated) >= self._limits.authenticated:
            return False
        self._remove_unauthenticated(connection)
        self._authenticated.add(connection)
        return True

    def remove(self, connection: Closable) -> None:
        self._authenticated.discard(connection)
        self._remove_unauthenticated(connection)

    def close_one(self) -> None:
        """Close the oldest unauthenticated connection of the client that has most of them, if there is one."""
        if self._by_peer:
            self._close_oldest(max(self._by_peer, key=lambda peer: len(self._by_peer[peer])))

    def _close_oldest(self, peer: str | None) -> None:
        oldest = next(iter(self._by_peer[peer]), None)
        if oldest is not None:
            self._remove_unauthenticated(oldest)
            oldest.close_now()

    def _remove_unauthenticated(self, connection: Closable) -> None:
        if connection not in self._peers:
            return
        peer = self._peers.pop(connection)
        del self._by_peer[peer][connection]
        if not self._by_peer[peer]:
            del self._by_peer[peer]


def peer_of(address: object) -> str | None:
    """Return the client in the address of a socket: its IPv4 address, or its IPv6 network; ``None``: a unix socket.

    One client usually has a whole IPv6 network (/64) of addresses.
    """
    if not isinstance(address, tuple):
        return None
    try:
        found = ipaddress.ip_address(str(address[0]).partition("%")[0])
    except ValueError:
        return str(address[0])
    if isinstance(found, ipaddress.IPv6Address):
        if found.ipv4_mapped is not None:
            return str(found.ipv4_mapped)
        return str(ipaddress.ip_network((int(found) >> 64 << 64, 64)))
    return str(found)


def has_hung_up(descriptor: int) -> bool:
    """Whether the peer of a socket sends nothing more, even if something it sent was not read."""
    poll = select.poll()
    poll.register(descriptor, select.POLLRDHUP)
    return bool(poll.poll(0))
