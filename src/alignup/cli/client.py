"""The HTTP client for the agent: one connection per request, over a Unix socket or TCP.

It writes HTTP/1.0 to a plain socket. Importing ``http.client`` or an HTTP library takes longer than all the requests
of ``alignup run``, and that time would be added to the start of every command.
"""
# ruff: noqa: RUF009 - options are declared by calls, as fields are

import json
import os
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from io import BufferedReader
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import quote, urlencode

import click

from alignup.agent.address import SOCKET_NAME, Address, UnixAddress, default_root, parse_address
from alignup.align import bits
from alignup.align.bits import CpuSet, NodeSet
from alignup.align.errors import ParseError
from alignup.cli.app import InputError
from alignup.cli.options import option

if TYPE_CHECKING:
    import socket

Document = dict[str, Any]
Query = Mapping[str, str | int | None]

TIMEOUT = 65.0  #: seconds; slightly longer than the agent takes to answer at most
_LOOPBACK = ("127.0.0.1", "::1", "localhost")
_MAX_LINE, _MAX_HEADERS = 65536, 100
_NO_RUNTIME: Document = {"runtime": None, "strays": [], "problems": []}


class AgentError(InputError):
    """The agent does not answer, or reports an error."""

    exit_code = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentOptions:
    """The options that locate the agent."""

    agent: str | None = option(
        "ADDRESS",
        "Address of the agent, unix:PATH or HOST:PORT",
        "ALIGNUP_AGENT, or this user's agent",
        envvar="ALIGNUP_AGENT",
    )
    token_file: Path | None = option(
        "FILE",
        "File with the token of an agent on the network",
        "ALIGNUP_TOKEN_FILE",
        type=click.Path(path_type=Path),
        envvar="ALIGNUP_TOKEN_FILE",
    )


class AgentClient:
    """Client for one agent. Every method raises :class:`AgentError` when the agent does not answer or reports one."""

    def __init__(self, address: Address, *, token: str = "") -> None:
        self.address = str(address)
        self._address = address
        self._authorization = f"Authorization: Bearer {token}\r\n" if token else ""

    @property
    def is_local(self) -> bool:
        """Whether the agent certainly runs on this machine."""
        return isinstance(self._address, UnixAddress) or self._address.host in _LOOPBACK

    def ping(self) -> None:
        """Connect and disconnect."""
        self._connect().close()

    def get(self, path: str, **query: str | int | None) -> Document:
        return self._checked(*self._request("GET", path, query))

    def find(self, path: str) -> Document | None:
        """Like :meth:`get`, but return ``None`` when nothing is at *path*."""
        status, document = self._request("GET", path)
        return None if status == 404 else self._checked(status, document)

    def delete(self, path: str, **query: str | int | None) -> Document:
        return self._checked(*self._request("DELETE", path, query))

    def admit(self, manifest: Mapping[str, Any], *, dry_run: bool = False) -> Document:
        """Send in a pod. A rejection is a result like any other."""
        status, document = self._request("POST", "/v1/pods", {"dryRun": "true" if dry_run else None}, body=manifest)
        if status == 409:
            return {"outcome": "rejected", "dryRun": dry_run, "pod": None, **document}
        return self._checked(status, document)

    def release(self, uid: str) -> None:
        """Release a pod, whether the agent has it or not."""
        status, document = self._request("DELETE", pod_path(uid))
        if status != 404:
            self._checked(status, document)

    def pod(self, uid: str) -> Document | None:
        return self.find(pod_path(uid))

    def pods(self) -> list[Document]:
        found: list[Document] = self.get("/v1/pods")["pods"]
        return found

    def runtime(self) -> Document:
        """The state of its container runtime; an older agent has no such report."""
        return self.find("/v1/runtime") or _NO_RUNTIME

    def exclusive_cpus(self) -> CpuSet:
        """The CPUs that are assigned exclusively to some container."""
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
        """Yield events as they happen, until the agent closes the stream."""
        with self._stream("/v1/events", {}) as response:
            for line in response:
                if line.startswith(b"data: "):
                    yield json.loads(line.removeprefix(b"data: "))

    def stream(self, path: str, **query: str | int | None) -> Iterator[bytes]:
        """Yield the body at *path* as it arrives."""
        with self._stream(path, query) as response:
            while chunk := response.read1(_MAX_LINE):
                yield chunk

    @contextmanager
    def _stream(self, path: str, query: Query) -> Iterator[BufferedReader]:
        with self._send("GET", path, query) as (status, response, connection):
            if status >= 400:
                self._checked(status, self._decode(response.read()))
            connection.settimeout(None)
            yield response

    def _request(
        self, method: str, path: str, query: Query | None = None, *, body: object = None
    ) -> tuple[int, Document]:
        with self._send(method, path, query or {}, body=body) as (status, response, _):
            content = response.read()
        return status, self._decode(content)

    @contextmanager
    def _send(
        self, method: str, path: str, query: Query, *, body: object = None
    ) -> Iterator[tuple[int, BufferedReader, "socket.socket"]]:
        """Send a request; yield the status, the response's body as a file, and the connection."""
        given = urlencode({name: value for name, value in query.items() if value is not None})
        content = b"" if body is None else json.dumps(body).encode("ascii")
        head = (
            f"{method} {path}{'?' if given else ''}{given} HTTP/1.0\r\nHost: agent\r\n{self._authorization}"
            f"Content-Type: application/json\r\nContent-Length: {len(content)}\r\n\r\n"
        )
        try:
            with self._connect() as connection, connection.makefile("rb") as response:
                connection.sendall(head.encode("ascii") + content)
                status = _read_status(response)
                if status is None:
                    raise self._not_an_agent()
                yield status, response, connection
        except TimeoutError as error:
            raise AgentError(
                f"the agent at {self.address} did not answer within {TIMEOUT:.0f} seconds",
                advice="The request may still take effect. Check with 'alignup ps'.",
            ) from error
        except OSError as error:
            raise AgentError(
                f"the agent at {self.address} closed the connection: {error.strerror or error}",
                advice="Read the agent's log, and check with 'alignup ps' whether the request took effect.",
            ) from error

    def _connect(self) -> "socket.socket":
        import socket  # noqa: PLC0415 - not needed without an agent

        address = self._address
        try:
            if not isinstance(address, UnixAddress):
                return socket.create_connection((address.host, address.port), timeout=TIMEOUT)
            connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
            connection.settimeout(TIMEOUT)
            with ExitStack() as stack:
                stack.callback(connection.close)
                connection.connect(str(address.path))
                stack.pop_all()
        except OSError as error:
            raise AgentError(
                f"no agent answers at {self.address}: {error.strerror or error}",
                advice="Start one with 'alignup agent', or give its address with --agent or ALIGNUP_AGENT.",
            ) from error
        return connection

    def _decode(self, content: bytes) -> Document:
        try:
            document = json.loads(content)
        except ValueError as error:
            raise self._not_an_agent() from error
        return document if isinstance(document, dict) else {}

    def _checked(self, status: int, document: Document) -> Document:
        if status < 400:
            return document
        problems = [
            f"{one['field']}: {one['what']}" if one["field"] else one["what"] for one in document.get("errors", ())
        ]
        raise AgentError(
            *(problems or [str(document.get("detail", status))]), where=f"reported by the agent at {self.address}"
        )

    def _not_an_agent(self) -> AgentError:
        return AgentError(
            f"the server at {self.address} is not an agent", advice="Give the agent's address with --agent."
        )


def connect(options: AgentOptions) -> AgentClient:
    """Return a client for the agent that *options* name (default: this user's). Nothing is sent yet."""
    try:
        default = UnixAddress(default_root(os.environ) / SOCKET_NAME)
        address = parse_address(options.agent) if options.agent else default
    except ParseError as error:
        raise InputError(str(error), where="in --agent") from error
    try:
        token = options.token_file.read_text("utf-8").strip() if options.token_file else ""
    except OSError as error:
        raise InputError(f"{error.filename}: {error.strerror}", where="in --token-file") from error
    return AgentClient(address, token=token)


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


def _read_status(response: BufferedReader) -> int | None:
    """Read the head of a response; ``None`` when it is not HTTP."""
    line = response.readline(_MAX_LINE)
    if not line:
        raise ConnectionError("no response")
    words = line.split(b" ", 2)
    if len(words) < 2 or not words[0].startswith(b"HTTP/") or not words[1].isdigit():
        return None
    for _ in range(_MAX_HEADERS):
        if response.readline(_MAX_LINE).strip() == b"":
            return int(words[1])
    return None
