"""The HTTP client of the agent: one connection per request, over a Unix socket or TCP.

It speaks HTTP/1.0 on a plain socket: importing ``http.client`` takes longer than all the requests of ``alignup run``.
A server sends no chunks to an HTTP/1.0 client, and closes the connection after its response.
"""

import json
import re
import socket
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from enum import StrEnum
from io import BufferedReader
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlencode

from alignup.align import bits
from alignup.align.bits import CpuSet, NodeSet
from alignup.align.errors import AlignError
from alignup.socket_paths import length_problem
from alignup.web.address import Address, TcpAddress, UnixAddress

Document = dict[str, Any]

TIMEOUT = 65.0  #: seconds; slightly longer than the agent takes to answer at most
_MAX_LINE, _MAX_HEADERS = 65536, 100
_SLOWEST = 5  #: timeouts for a whole document
_MAX_BODY = 64 << 20  #: bytes of a document or an event
_LIST_ATTEMPTS = 3  #: if the agent no longer has the moment of the first page


class AgentErrorKind(StrEnum):
    UNREACHABLE = "unreachable"  #: nothing listens at the address
    TIMEOUT = "timeout"
    CLOSED = "closed"  #: the connection ended within the response
    NOT_AN_AGENT = "not an agent"
    NOT_TLS = "not TLS"  #: the server does not speak HTTPS
    CERTIFICATE = "certificate"  #: of the agent, which is not valid
    CA_FILE = "CA file"  #: unusable
    BUSY = "busy"
    REPORTED = "reported"  #: by the agent, in ``problems``


class AgentError(AlignError):
    """A request that failed: the agent does not answer, or reports an error."""

    def __init__(self, kind: AgentErrorKind, *problems: str, address: Address, status: int = 0) -> None:
        super().__init__("; ".join(problems))
        self.kind = kind
        self.problems = problems
        self.address = address
        self.status = status  #: of the HTTP response, if the agent reported the problems


class AgentClient:
    """A client of one agent. Every method raises :class:`AgentError` when the agent does not answer or reports one.

    Without a scheme, a non-loopback address means HTTPS. The certificate is verified with the authorities in *ca_file*,
    or with the authorities of the system.
    """

    def __init__(
        self, address: Address, *, token: str = "", timeout: float = TIMEOUT, ca_file: Path | None = None
    ) -> None:
        self.address = str(address)
        self._address = address
        self._timeout = timeout
        self._ca_file = ca_file
        self._authorization = f"Authorization: Bearer {token}\r\n" if token else ""

    def ping(self) -> None:
        self._connect().close()

    def get(self, path: str, **query: str | int | None) -> Document:
        return self._request("GET", _with_query(path, query))[1]

    def post(self, path: str) -> Document:
        return self._request("POST", path)[1]

    def find(self, path: str) -> Document | None:
        status, document = self._request("GET", path, accept=404)
        return None if status == 404 else document

    def delete(self, path: str) -> Document:
        return self._request("DELETE", path)[1]

    def admit(self, manifest: Mapping[str, Any], *, dry_run: bool = False) -> Document:
        """Send in a pod. A rejection is a result like any other."""
        target = "/v1/pods?dryRun=true" if dry_run else "/v1/pods"
        status, document = self._request("POST", target, body=manifest, accept=409)
        return {"outcome": "rejected", "dryRun": dry_run, "pod": None, **document} if status == 409 else document

    def release(self, uid: str) -> None:
        """Release a pod, whether the agent has it or not."""
        self._request("DELETE", pod_path(uid), accept=404)

    def pod(self, uid: str) -> Document | None:
        return self.find(pod_path(uid))

    def pods(self) -> list[Document]:
        return list(self.pod_list()["pods"])

    def pod_list(self) -> Document:
        """Return all pods at one moment, from all pages, and the notes of the agent."""
        for _ in range(_LIST_ATTEMPTS):
            page = self.get("/v1/pods")
            pods = list(page["pods"])
            status = 200
            while status == 200 and (token := page.get("metadata", {}).get("continue")):
                status, page = self._request("GET", _with_query("/v1/pods", {"continue": token}), accept=410)
                pods += page.get("pods", ())
            if status == 200:
                return {"pods": pods, "notes": page.get("notes", [])}
        raise self._error(AgentErrorKind.BUSY, f"the agent at {self.address} is too busy to list its pods")

    def exclusive_cpus(self) -> CpuSet:
        placements = [placement for pod in self.pods() for placement in pod["placements"]]
        return bits.union(bits.parse(placement["given"].get("cpu", {}).get("cpu", "")) for placement in placements)

    def devices(self) -> dict[str, dict[str, NodeSet | None]]:
        """Return resource → device id → its NUMA nodes."""
        devices: dict[str, dict[str, NodeSet | None]] = {}
        for device in self.get("/v1/machine").get("devices", ()):
            nodes = device.get("nodes")
            devices.setdefault(device["resource"], {})[device["id"]] = None if nodes is None else bits.parse(str(nodes))
        return devices

    def events(self) -> Iterator[Document]:
        with self._open("GET", "/v1/events", endless=True) as (_, body, _length):
            while line := body.readline(_MAX_BODY):
                if len(line) == _MAX_BODY:
                    raise ValueError("an event is too large")
                if line.startswith(b"data: "):
                    yield json.loads(line.removeprefix(b"data: "))

    def _request(self, method: str, target: str, *, body: object = None, accept: int = 0) -> tuple[int, Document]:
        """Return the status and the document of the response; raise error statuses other than *accept*."""
        with self._open(method, target, body=body, accept=accept) as (status, response, length):
            return status, _read_document(response, length, self._last_moment())

    @contextmanager
    def _open(
        self, method: str, target: str, *, body: object = None, accept: int = 0, endless: bool = False
    ) -> Iterator[tuple[int, BufferedReader, int | None]]:
        """Send a request; yield the status, the body, and its length if known.

        The body of an *endless* response may pause for longer than the timeout.
        """
        content = b"" if body is None else json.dumps(body).encode("ascii")
        host = str(TcpAddress(*self._address.pair)) if isinstance(self._address, TcpAddress) else "agent"
        head = (
            f"{method} {target} HTTP/1.0\r\nHost: {host}\r\n{self._authorization}"
            f"Content-Type: application/json\r\nContent-Length: {len(content)}\r\n\r\n"
        )
        try:
            with self._connect() as connection, connection.makefile("rb") as response:
                with suppress(ConnectionError):  # the agent may answer before it has read the whole request
                    connection.sendall(head.encode("ascii", "replace") + content)
                status, length = _read_head(response)
                if status >= 400 and status != accept:
                    document = _read_document(response, length, self._last_moment())
                    errors = document.get("errors", ())
                    problems = [": ".join(filter(None, (error["field"], error["message"]))) for error in errors]
                    problems = problems or [str(document.get("detail", status))]
                    raise self._error(AgentErrorKind.REPORTED, *problems, status=status)
                if endless:
                    connection.settimeout(None)
                yield status, response, length
        except TimeoutError as error:
            message = f"the agent at {self.address} did not answer within {self._timeout:.0f} seconds"
            raise self._error(AgentErrorKind.TIMEOUT, message) from error
        except OSError as error:
            message = f"the agent at {self.address} closed the connection: {error.strerror or error}"
            raise self._error(AgentErrorKind.CLOSED, message) from error
        except (ValueError, RecursionError) as error:
            message = f"the server at {self.address} is not an agent"
            raise self._error(AgentErrorKind.NOT_AN_AGENT, message) from error

    def _connect(self) -> socket.socket:
        address = self._address
        try:
            if isinstance(address, TcpAddress):
                connection = socket.create_connection((address.host, address.port), timeout=self._timeout)
                tls = not address.is_loopback if address.tls is None else address.tls
                return self._start_tls(connection, address.host) if tls else connection
            connection = socket.socket(socket.AF_UNIX)
            connection.settimeout(self._timeout)
            try:
                connection.connect(str(address.path))
            except OSError:
                connection.close()
                raise
        except (OSError, UnicodeError) as error:  # UnicodeError: an invalid host name
            problem = length_problem(address.path) if isinstance(address, UnixAddress) else ""
            message = f"no agent answers at {self.address}: {problem or getattr(error, 'strerror', None) or error}"
            raise self._error(AgentErrorKind.UNREACHABLE, message) from error
        return connection

    def _start_tls(self, connection: socket.socket, host: str) -> socket.socket:
        import ssl  # noqa: PLC0415 - slow to import, and most agents listen on a Unix socket

        try:
            context = ssl.create_default_context(cafile=self._ca_file)
        except OSError as error:
            connection.close()
            reason = "it has no certificates" if isinstance(error, ssl.SSLError) else error.strerror
            raise self._error(AgentErrorKind.CA_FILE, f"cannot use {self._ca_file}: {reason}") from error
        try:
            return context.wrap_socket(connection, server_hostname=host)
        except ssl.SSLCertVerificationError as error:
            message = f"the certificate of the agent at {self.address} is not valid: {error.verify_message}"
            raise self._error(AgentErrorKind.CERTIFICATE, message) from error
        except ssl.SSLError as error:
            message = f"the server at {self.address} does not speak HTTPS"
            raise self._error(AgentErrorKind.NOT_TLS, message) from error

    def _last_moment(self) -> float:
        """Return when the whole response must be there, however slowly it comes."""
        return time.monotonic() + _SLOWEST * self._timeout

    def _error(self, kind: AgentErrorKind, *problems: str, status: int = 0) -> AgentError:
        return AgentError(kind, *problems, address=self._address, status=status)


def pod_path(uid: str) -> str:
    return f"/v1/pods/{quote(uid, safe='')}"


def _with_query(path: str, query: Mapping[str, str | int | None]) -> str:
    encoded_query = urlencode({name: value for name, value in query.items() if value is not None})
    return f"{path}?{encoded_query}" if encoded_query else path


def _read_head(response: BufferedReader) -> tuple[int, int | None]:
    """Return the status, and the length of the body unless it ends with the connection."""
    status = re.match(rb"HTTP/1\.[01] (\d{3})\b", _read_line(response))
    if status is None:
        raise ValueError("not a status line")
    length = None
    for _ in range(_MAX_HEADERS):
        name, _, value = _read_line(response).partition(b":")
        if not name:
            return int(status[1]), length
        if name.lower() == b"content-length" and value.strip().isdigit():
            length = int(value)
        elif name.lower() in {b"content-length", b"transfer-encoding"}:
            raise ValueError(f"unsupported header {name!r}")
    raise ValueError("too many headers")


def _read_line(response: BufferedReader) -> bytes:
    line = response.readline(_MAX_LINE)
    if len(line) == _MAX_LINE:
        raise ValueError("a line is too long")
    if not line.endswith(b"\n"):
        raise ConnectionError("incomplete response" if line else "no response")
    return line.rstrip(b"\r\n")


def _read_document(body: BufferedReader, length: int | None, end: float) -> Document:
    content = bytearray()
    while (length is None or len(content) < length) and (chunk := body.read1(1 << 16)):
        content += chunk
        if len(content) > _MAX_BODY:
            raise ValueError("the document is too large")
        if time.monotonic() > end:
            raise TimeoutError
    if len(content) < (length or 0):
        raise ConnectionError("incomplete response")
    document = json.loads(content if length is None else content[:length])
    if isinstance(document, dict):
        return document
    raise ValueError("not a JSON object")
