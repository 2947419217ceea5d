"""An agent asked by ``alignup run``: a pod in, a pod out, over HTTP with nothing that takes long to load.

``cli.client`` is for people's questions; here every tenth of a second is added to somebody's command.
"""

import json
import os
import socket
import sys
from collections.abc import Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TextIO
from urllib.parse import quote

import click

from alignup.agent.address import SOCKET_NAME, Address, UnixAddress, default_root, parse_address
from alignup.align import bits
from alignup.cli.app import escape_control
from alignup.cli.client import AgentError, AgentOptions
from alignup.enforce import numa_nodes
from alignup.runs.request import CONTAINER, RunAllocation, RunRejectedError, RunRequest

if TYPE_CHECKING:
    from alignup.align.bits import CpuSet
    from alignup.enforce.run_record import RunDevices

Document = Mapping[str, Any]

NAMESPACE = "run"  #: of the pods that runs are to an agent
#: Annotations, here once more: loading those who heed them would take longer than asking.
POLICY, SCOPE = "topology.alignup.dev/policy", "topology.alignup.dev/scope"
RUNS_ITSELF = "run.alignup.dev/itself"
_NOMINAL = "1Mi"  #: asked for beside whole CPUs, which only pods with memory of their own get
_SECONDS = 65.0
_HERE = ("127.0.0.1", "::1", "localhost")


class RunClient:
    """One agent that answers."""

    def __init__(self, address: Address, *, token: str = "") -> None:
        self.address = str(address)
        self._address = address
        self._token = f"Authorization: Bearer {token}\r\n" if token else ""

    def admit(self, wish: RunRequest, *, dry_run: bool = False) -> Document:
        """Send a run in as a pod; a refusal is an answer like any other."""
        query = "?dryRun=true" if dry_run else ""
        status, found = self._ask("POST", f"/v1/pods{query}", _manifest(wish))
        if status == 409:
            return {"outcome": "rejected", **found}
        return self._good(status, found)

    def pod(self, uid: str) -> Document | None:
        """What the agent knows of a run; ``None``: nothing."""
        status, found = self._ask("GET", f"/v1/pods/{quote(uid, safe='')}")
        return None if status == 404 else self._good(status, found)

    def release(self, uid: str) -> None:
        """A run is over; it does not matter whether the agent knew of it."""
        status, found = self._ask("DELETE", f"/v1/pods/{quote(uid, safe='')}")
        if status != 404:
            self._good(status, found)

    @property
    def is_here(self) -> bool:
        """Whether it is on this machine beyond doubt."""
        return isinstance(self._address, UnixAddress) or self._address.host in _HERE

    def pods(self) -> Sequence[Document]:
        """Every pod it knows."""
        status, found = self._ask("GET", "/v1/pods")
        known: Sequence[Document] = self._good(status, found)["pods"]
        return known

    def runtime(self) -> Document:
        """Its container runtime; an agent that knows of none says nothing of it."""
        status, found = self._ask("GET", "/v1/runtime")
        return {"runtime": None, "strays": [], "problems": []} if status == 404 else self._good(status, found)

    def taken(self) -> "CpuSet":
        """The CPUs that are somebody's own."""
        placements = [one for pod in self.pods() for one in pod["placements"]]
        return bits.union(bits.parse(one["given"].get("cpu", {}).get("cpu", "")) for one in placements)

    def devices(self) -> "RunDevices":
        """Where the devices of its machine are, as far as it tells."""
        status, found = self._ask("GET", "/v1/machine")
        known: dict[str, dict[str, int | None]] = {}
        for one in self._good(status, found).get("devices", ()):
            nodes = one.get("nodes")
            known.setdefault(one["resource"], {})[one["id"]] = None if nodes is None else bits.parse(str(nodes))
        return known

    def _ask(self, method: str, path: str, document: object = None) -> tuple[int, Document]:
        body = b"" if document is None else json.dumps(document).encode("ascii")
        head = (
            f"{method} {path} HTTP/1.0\r\nHost: agent\r\nContent-Type: application/json\r\n"
            f"Content-Length: {len(body)}\r\n{self._token}\r\n"
        )
        try:
            with open_socket(self._address) as line:
                line.sendall(head.encode("ascii") + body)
                status, found = _answer(line)
        except (OSError, ValueError) as error:
            raise AgentError(
                f"the agent at {self.address} broke off: {error or type(error).__name__}",
                advice="Look at its log, and at what was done with 'alignup ps'.",
            ) from error
        return status, found if isinstance(found, dict) else {}

    def _good(self, status: int, found: Document) -> Document:
        if status < 400:
            return found
        errors = [f"{one['field']}: {one['what']}" if one["field"] else one["what"] for one in found.get("errors", ())]
        raise AgentError(*(errors or [str(found.get("detail", status))]), where=f"said the agent at {self.address}")


class AgentAllocator:
    """An agent, as who decides on runs."""

    trouble: tuple[type[Exception], ...] = (AgentError,)

    def __init__(self, agent: RunClient, *, online: "CpuSet") -> None:
        self._agent = agent
        self._online = online
        self.address = agent.address

    def open(self, *, alive: Collection[str], gone: Collection[str]) -> None:
        """Clear away runs that are over."""
        del alive
        for uid in gone:
            self._agent.release(uid)

    def admit(self, wish: RunRequest) -> RunAllocation:
        """Have the agent decide; one it would let wait is refused, for who waits here asks again."""
        answer = self._agent.admit(wish)
        decision = answer["decision"]
        if answer["outcome"] not in {"admitted", "kept"}:
            self._agent.release(wish.uid)
            reason = str((decision["rejection"] or {}).get("reason", answer["outcome"]))
            raise RunRejectedError(reason, lambda: print_explanation(answer, file=sys.stderr))
        if wish.policy not in {None, decision["policy"]}:
            self._agent.release(wish.uid)
            raise AgentError(
                f"the agent decides by policy {decision['policy']}, and lets nobody choose another",
                advice="Leave --policy out, or do without the agent: --no-agent.",
            )
        (placement,) = decision["placements"]
        return RunAllocation(
            placement=placement,
            shared=0 if placement["given"].get("cpu") else self.shared(),
            devices=self._agent.devices() if placement["given"].get("device") else {},
            node_map=numa_nodes.read(),
            strict=decision["policy"] in {"restricted", "single-numa-node"},
            environment=_granted(answer["pod"]),
        )

    def shared(self) -> "CpuSet":
        """The CPUs that are nobody's own."""
        return self._online & ~self._agent.taken()

    def release(self, uid: str) -> None:
        """A run is over."""
        self._agent.release(uid)

    def keep(self) -> None:
        """The agent has written it down already."""


def print_explanation(answer: Document, *, file: TextIO) -> None:
    """What an agent says about a run, in sentences."""
    for sentence in answer.get("story", ()):
        click.echo(escape_control(str(sentence)), file=file)
    refusal = answer["decision"]["rejection"]
    if refusal:
        click.echo(escape_control(refusal["message"]), file=file)


def find_agent(where: AgentOptions, *, otherwise: str = "do without: --no-agent") -> RunClient | None:
    """The agent that the options name, which has to be there; or the one of this user, ``None`` when none runs.

    *otherwise* is what else can be done where it is not.
    """
    address = parse_address(where.agent) if where.agent else UnixAddress(default_root(os.environ) / SOCKET_NAME)
    token = where.token_file.read_text("utf-8").strip() if where.token_file else ""
    try:
        open_socket(address).close()
    except OSError as error:
        if not where.agent:
            return None
        raise AgentError(
            f"no agent answers at {address}: {error.strerror or error}",
            advice=f"Start one with 'alignup agent', or {otherwise}.",
        ) from error
    return RunClient(address, token=token)


def open_socket(address: Address) -> socket.socket:
    """A connection to *address*."""
    if not isinstance(address, UnixAddress):
        return socket.create_connection((address.host, address.port), timeout=_SECONDS)
    line = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    line.settimeout(_SECONDS)
    try:
        line.connect(str(address.path))
    except OSError:
        line.close()
        raise
    return line


def _answer(line: socket.socket) -> tuple[int, Any]:
    """Status and document of an answer in HTTP/1.0, which ends where the connection does."""
    data = bytearray()
    while part := line.recv(1 << 16):
        data += part
    head, blank, body = bytes(data).partition(b"\r\n\r\n")
    words = head.split(b" ", 2)
    if not blank or len(words) < 2 or not words[0].startswith(b"HTTP/"):
        raise ValueError("what answers there is no agent")
    return int(words[1]), json.loads(body)


def _granted(pod: Document) -> dict[str, str]:
    """What device plugins want the command to find in its environment; mounts and the like are for containers."""
    grants: Mapping[str, Document] = pod.get("grants", {}).get(CONTAINER, {})
    return {name: str(value) for grant in grants.values() for name, value in grant["envs"].items()}


def _manifest(wish: RunRequest) -> dict[str, Any]:
    """A run as a v1 Pod."""
    amounts = dict(wish.amounts)
    if amounts.get("cpu", "").isdecimal() and "memory" not in amounts:
        amounts["memory"] = _NOMINAL
    choices = {name: said for name, said in ((POLICY, wish.policy), (SCOPE, wish.scope)) if said}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": wish.name,
            "namespace": NAMESPACE,
            "uid": wish.uid,
            "annotations": {RUNS_ITSELF: "true", **choices},
        },
        "spec": {"containers": [{"name": CONTAINER, "resources": {"limits": amounts, "requests": amounts}}]},
    }
