"""The HTTP client for the agent: one connection per request, over a Unix socket or TCP.

It speaks HTTP/1.0 on a plain socket: importing ``http.client`` takes longer than all the requests of ``alignup run``.
A server sends no chunks to an HTTP/1.0 client, and closes the connection after its response.
"""
# ruff: noqa: RUF009 - options are declared by calls, as fields are

import json
import os
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from io import BufferedReader
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import quote, urlencode

from alignup.align import bits
from alignup.align.bits import CpuSet, NodeSet
from alignup.align.errors import AlignError, ParseError
from alignup.cli.app import InputError
from alignup.cli.exit_codes import FAILED
from alignup.cli.options import check_exists, option, path_option
from alignup.web.address import SOCKET_NAME, Address, TcpAddress, UnixAddress, default_root, parse_address

if TYPE_CHECKING:
    import socket

Document = dict[str, Any]

TIMEOUT = 65.0  #: seconds; slightly longer than the agent takes to answer at most
_MAX_LINE, _MAX_HEADERS = 65536, 100
_LIST_ATTEMPTS = 3  #: if the agent no longer has the moment of the first page


class AgentError(InputError, AlignError):
    """The agent does not answer, or reports an error."""

    exit_code = FAILED


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentOptions:
    agent: str | None = option(
        "ADDRESS",
        "Address of the agent: unix:PATH, HOST:PORT, or https://HOST:PORT",
        "ALIGNUP_AGENT, or this user's agent",
        envvar="ALIGNUP_AGENT",
    )
    token_file: Path | None = path_option(
        "FILE", "File with the token of an agent on the network", "ALIGNUP_TOKEN_FILE", envvar="ALIGNUP_TOKEN_FILE"
    )
    ca_file: Path | None = path_option(
        "FILE",
        "Certificates (PEM) to verify an agent with HTTPS",
        "ALIGNUP_CA_FILE, or those of the system",
        envvar="ALIGNUP_CA_FILE",
    )


class AgentClient:
    """Client for one agent. Every method raises :class:`AgentError` when the agent does not answer or reports one.

    Without a scheme, an address other than loopback means HTTPS. The certificate is verified with those in *ca_file*,
    or with those of the system.
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
        """All pods at one moment, from all pages, and the notes of the agent."""
        for _ in range(_LIST_ATTEMPTS):
            found = self.get("/v1/pods")
            pods = list(found["pods"])
            status = 200
            while status == 200 and (token := found.get("metadata", {}).get("continue")):
                status, found = self._request("GET", _with_query("/v1/pods", {"continue": token}), accept=410)
                pods += found.get("pods", ())
            if status == 200:
                return {"pods": pods, "notes": found.get("notes", [])}
        raise AgentError(f"the agent at {self.address} is too busy to list its pods", advice="Try again later.")

    def exclusive_cpus(self) -> CpuSet:
        placements = [one for pod in self.pods() for one in pod["placements"]]
        return bits.union(bits.parse(one["given"].get("cpu", {}).get("cpu", "")) for one in placements)

    def devices(self) -> dict[str, dict[str, NodeSet | None]]:
        """Resource → device id → its NUMA nodes."""
        found: dict[str, dict[str, NodeSet | None]] = {}
        for device in self.get("/v1/machine").get("devices", ()):
            nodes = device.get("nodes")
            found.setdefault(device["resource"], {})[device["id"]] = None if nodes is None else bits.parse(str(nodes))
        return found

    def events(self) -> Iterator[Document]:
        with self._open("GET", "/v1/events", endless=True) as (_, body, _length):
            for line in body:
                if line.startswith(b"data: "):
                    yield json.loads(line.removeprefix(b"data: "))

    def _request(self, method: str, target: str, *, body: object = None, accept: int = 0) -> tuple[int, Document]:
        """Return the status and the document of the response; raise error statuses other than *accept*."""
        with self._open(method, target, body=body, accept=accept) as (status, response, length):
            return status, _read_document(response, length)

    @contextmanager
    def _open(
        self, method: str, target: str, *, body: object = None, accept: int = 0, endless: bool = False
    ) -> Iterator[tuple[int, BufferedReader, int | None]]:
        """Send a request; yield the status, the body, and its length if known.

        The body of an *endless* response may pause for longer than the timeout.
        """
        content = b"" if body is None else json.dumps(body).encode("ascii")
        head = (
            f"{method} {target} HTTP/1.0\r\nHost: agent\r\n{self._authorization}"
            f"Content-Type: application/json\r\nContent-Length: {len(content)}\r\n\r\n"
        )
        try:
            with self._connect() as connection, connection.makefile("rb") as response:
                with suppress(ConnectionError):  # the agent may answer before it has read the whole request
                    connection.sendall(head.encode("ascii") + content)
                status, length = _read_head(response)
                if status >= 400 and status != accept:
                    document = _read_document(response, length)
                    what = [": ".join(filter(None, (one["field"], one["what"]))) for one in document.get("errors", ())]
                    what = what or [str(document.get("detail", status))]
                    raise AgentError(*what, where=f"reported by the agent at {self.address}")
                if endless:
                    connection.settimeout(None)
                yield status, response, length
        except TimeoutError as error:
            raise AgentError(
                f"the agent at {self.address} did not answer within {self._timeout:.0f} seconds",
                advice="The request may still take effect. Check with 'alignup ps'.",
            ) from error
        except OSError as error:
            advice = "Read the agent's log, and check with 'alignup ps' whether the request took effect."
            if isinstance(self._address, TcpAddress) and self._address.tls is None and self._address.is_loopback:
                advice += f" If it serves HTTPS, name it as https://{self.address}."
            raise AgentError(
                f"the agent at {self.address} closed the connection: {error.strerror or error}", advice=advice
            ) from error
        except ValueError as error:
            raise AgentError(
                f"the server at {self.address} is not an agent", advice="Give the agent's address with --agent."
            ) from error

    def _connect(self) -> "socket.socket":
        import socket  # noqa: PLC0415 - not needed without an agent

        address = self._address
        try:
            if not isinstance(address, UnixAddress):
                connection = socket.create_connection((address.host, address.port), timeout=self._timeout)
                tls = not address.is_loopback if address.tls is None else address.tls
                return start_tls(connection, address, self._ca_file) if tls else connection
            connection = socket.socket(socket.AF_UNIX)
            connection.settimeout(self._timeout)
            try:
                connection.connect(str(address.path))
            except OSError:
                connection.close()
                raise
        except (OSError, UnicodeError) as error:  # UnicodeError: an invalid host name
            raise AgentError(
                f"no agent answers at {self.address}: {getattr(error, 'strerror', None) or error}",
                advice="Start one with 'alignup agent', or give its address with --agent or ALIGNUP_AGENT.",
            ) from error
        return connection


def start_tls(connection: "socket.socket", address: TcpAddress, ca_file: Path | None) -> "socket.socket":
    """Return the encrypted connection to *address*; raise ``AgentError`` if the server is not who it should be."""
    import ssl  # noqa: PLC0415 - not needed for most agents

    try:
        context = ssl.create_default_context(cafile=ca_file)
    except OSError as error:
        connection.close()
        reason = "it has no certificates" if isinstance(error, ssl.SSLError) else error.strerror
        raise InputError(f"cannot use {ca_file}: {reason}", where="in --ca-file") from error
    try:
        return context.wrap_socket(connection, server_hostname=address.host)
    except ssl.SSLCertVerificationError as error:
        what = f"the certificate of the agent at {address} is not valid: {error.verify_message}"
        raise AgentError(what, advice="Name the certificate of its CA with --ca-file or ALIGNUP_CA_FILE.") from error
    except ssl.SSLError as error:
        advice = f"If it serves plain HTTP, name it as http://{replace(address, tls=None)}."
        raise AgentError(f"the server at {address} does not speak HTTPS", advice=advice) from error


def connect(options: AgentOptions, *, timeout: float = TIMEOUT) -> AgentClient:
    """Return a client for the agent that *options* name (default: this user's). Nothing is sent yet."""
    try:
        default = UnixAddress(default_root(os.environ) / SOCKET_NAME)
        address = parse_address(options.agent) if options.agent else default
    except ParseError as error:
        raise InputError(str(error), where="in --agent") from error
    try:
        token = options.token_file.read_text("ascii", "replace").strip() if options.token_file else ""
    except OSError as error:
        raise InputError(f"{error.filename}: {error.strerror}", where="in --token-file") from error
    if not token.isascii() or len(token.split()) > 1:
        raise InputError(f"{options.token_file} does not contain a token", where="in --token-file")
    check_exists(ca_file=options.ca_file)
    return AgentClient(address, token=token, timeout=timeout, ca_file=options.ca_file)


def find_agent(options: AgentOptions) -> AgentClient | None:
    """Like :func:`connect`, but return ``None`` when no agent is named and this user's agent is not running."""
    client = connect(options)
    try:
        client.ping()
    except AgentError:
        if options.agent:
            raise
        return None
    return client


def pod_path(uid: str) -> str:
    return f"/v1/pods/{quote(uid, safe='')}"


def _with_query(path: str, query: Mapping[str, str | int | None]) -> str:
    given = urlencode({name: value for name, value in query.items() if value is not None})
    return f"{path}?{given}" if given else path


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


def _read_document(body: BufferedReader, length: int | None) -> Document:
    content = body.read(-1 if length is None else length)
    if len(content) < (length or 0):
        raise ConnectionError("incomplete response")
    document = json.loads(content)
    if isinstance(document, dict):
        return document
    raise ValueError("not a JSON object")
