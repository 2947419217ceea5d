"""A proxy from an API server to kubelets and pods of guests, whose addresses exist only in QEMU's user networks.

The API server asks a proxy for each connection to a node, pod or webhook (HTTP CONNECT on a unix socket). The proxy
passes the request to the guest that has the address, which opens the connection. :data:`HOST` is this machine.
"""

import json
import re
import socket
import socketserver
import tempfile
import threading
from contextlib import suppress
from pathlib import Path
from typing import Any, Self

HOST = "10.0.1.2"  #: an address of this machine for Services
NODE_NETWORK, POD_NETWORK = "10.0.{}.0/24", "10.88.{}.0/24"  #: by the number of the guest
_GUEST_ADDRESS = re.compile(r"10\.(?:0|88)\.(\d+)\.\d+")
_HEAD_END = b"\r\n\r\n"
_CONNECTED = b"HTTP/1.1 200 OK" + _HEAD_END


class EgressProxy:
    """The proxy; ``flags`` are those of an API server that uses it."""

    def __init__(self) -> None:
        self._guests: dict[int, int] = {}
        self._place = tempfile.TemporaryDirectory(prefix="egress-")  # paths of sockets must be short
        self._server = _Server(str(Path(self._place.name) / "proxy.sock"), _Connection)
        self._server.target = self._target

    @property
    def flags(self) -> tuple[str, ...]:
        configuration = Path(self._place.name) / "configuration.json"
        transport = {"uds": {"udsName": self._server.server_address}}
        connection = {"proxyProtocol": "HTTPConnect", "transport": transport}
        document: dict[str, Any] = {
            "apiVersion": "apiserver.k8s.io/v1beta1",
            "kind": "EgressSelectorConfiguration",
            "egressSelections": [{"name": "cluster", "connection": connection}],
        }
        configuration.write_text(json.dumps(document))
        # Webhooks are asked at the addresses of their pods, because there is no kube-proxy.
        return f"--egress-selector-config-file={configuration}", "--enable-aggregator-routing"

    def add_guest(self, number: int, port: int) -> None:
        """Send CONNECT requests for addresses of the guest *number* to this port of this machine."""
        self._guests[number] = port

    def __enter__(self) -> Self:
        threading.Thread(target=self._server.serve_forever, daemon=True).start()
        return self

    def __exit__(self, *exception: object) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._place.cleanup()

    def _target(self, host: str) -> int | None:
        """Return the port of the guest that has an address."""
        match = _GUEST_ADDRESS.fullmatch(host)
        return self._guests.get(int(match[1])) if match else None


class _Server(socketserver.ThreadingMixIn, socketserver.UnixStreamServer):
    daemon_threads = True
    target: Any


class _Connection(socketserver.BaseRequestHandler):
    server: _Server

    def handle(self) -> None:
        head = _read_head(self.request)
        if not head:
            return
        host, _, port = head.split()[1].decode().rpartition(":")
        guest = self.server.target(host)
        address = ("127.0.0.1", guest) if guest else ("127.0.0.1" if host == HOST else host, int(port))
        with suppress(OSError), socket.create_connection(address) as other:
            if guest:
                other.sendall(head)  # it answers
            else:
                self.request.sendall(_CONNECTED)
            copy_both_ways(self.request, other)


def _read_head(line: socket.socket) -> bytes:
    """Return the head of a request, after which nothing comes before the answer."""
    head = b""
    while not head.endswith(_HEAD_END):
        chunk = line.recv(1 << 12)
        if not chunk:
            return b""
        head += chunk
    return head


def copy_both_ways(first: socket.socket, second: socket.socket) -> None:
    """Copy between two connections until both have ended."""
    back = threading.Thread(target=_copy, args=(second, first), daemon=True)
    back.start()
    _copy(first, second)
    back.join()


def _copy(source: socket.socket, target: socket.socket) -> None:
    """Copy until the end, which is passed on."""
    with suppress(OSError):
        while chunk := source.recv(1 << 16):
            target.sendall(chunk)
    for connection in (source, target):
        with suppress(OSError):
            connection.shutdown(socket.SHUT_RDWR)
