"""Talking to an agent: where it is, what it is asked, and what is said when it does not answer.

Whatever the agent refuses comes out as a message of its own words; that no agent is there is said with what to do.
"""

import functools
import json
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from alignup.cli.app import InputError

if TYPE_CHECKING:
    import httpx2

    from alignup.align.workload import Pod

Command = TypeVar("Command", bound=Callable[..., Any])
Document = dict[str, Any]

TIMEOUT = 65.0  #: until an answer is given up: a little longer than an agent takes at most


class AgentError(InputError):
    """The agent is not there, or would not do it."""

    exit_code = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentOptions:
    """What was said on the command line about an agent."""

    agent: str | None
    token_file: Path | None


def agent_options(command: Command) -> Command:
    """``--agent`` and ``--token-file``, as one parameter ``where``."""

    @functools.wraps(command)
    def gathered(*args: object, agent: str | None, token_file: Path | None, **rest: object) -> object:
        return command(*args, where=AgentOptions(agent=agent, token_file=token_file), **rest)

    wrapped: Any = click.option(
        "--token-file",
        type=click.Path(path_type=Path),
        envvar="ALIGNUP_TOKEN_FILE",
        metavar="FILE",
        help="The token of an agent on the network (or set ALIGNUP_TOKEN_FILE).",
    )(gathered)
    return click.option(  # type: ignore[no-any-return] # the same command, with options
        "--agent",
        envvar="ALIGNUP_AGENT",
        metavar="ADDRESS",
        help="Where the agent is: unix:PATH or HOST:PORT (or set ALIGNUP_AGENT); this user's unless given.",
    )(wrapped)


class AgentClient:
    """One agent, asked over HTTP."""

    def __init__(self, http: "httpx2.Client", address: str) -> None:
        self._http = http
        self.address = address

    def get(self, path: str, **query: str | int | None) -> Document:
        """What is at *path*."""
        given = {name: value for name, value in query.items() if value is not None}
        return self._answer(self._ask("GET", path, params=given))

    def find(self, path: str) -> Document | None:
        """What is at *path*; ``None`` when nothing is."""
        response = self._ask("GET", path)
        return None if response.status_code == 404 else self._answer(response)

    def delete(self, path: str, **query: str | int | None) -> Document:
        """Have what is at *path* gone."""
        given = {name: value for name, value in query.items() if value is not None}
        return self._answer(self._ask("DELETE", path, params=given))

    def admit(self, pod: "Pod", *, dry_run: bool) -> Document:
        """Send a pod in; a refusal is an answer like any other."""
        query = {"dryRun": "true"} if dry_run else {}
        response = self._ask("POST", "/v1/pods", params=query, json=pod_manifest(pod))
        if response.status_code == 409:
            return {"outcome": "rejected", "dryRun": dry_run, "pod": None, **self._document(response)}
        return self._answer(response)

    def events(self) -> Iterator[Document]:
        """What happens from now on, until the agent ends it."""
        with self._stream("/v1/events", {}) as response:
            for line in response.iter_lines():
                if line.startswith("data: "):
                    yield json.loads(line.removeprefix("data: "))

    def text(self, path: str, **query: str | int | None) -> Iterator[bytes]:
        """What is at *path*, piece by piece as it comes."""
        given = {name: value for name, value in query.items() if value is not None}
        with self._stream(path, given) as response:
            yield from response.iter_raw()

    @contextmanager
    def _stream(self, path: str, query: Mapping[str, str | int]) -> Iterator["httpx2.Response"]:
        """An answer that may take any time."""
        import httpx2  # noqa: PLC0415 - see below

        patience = httpx2.Timeout(TIMEOUT, read=None)
        with self._speaking(), self._http.stream("GET", path, params=query, timeout=patience) as response:
            if response.is_error:
                response.read()
                self._answer(response)
            yield response

    def _ask(self, method: str, path: str, **what: Any) -> "httpx2.Response":  # noqa: ANN401 - as httpx2 has it
        with self._speaking():
            return self._http.request(method, path, **what)

    @contextmanager
    def _speaking(self) -> Iterator[None]:
        """Say in our words why nobody answers."""
        import httpx2  # noqa: PLC0415 - loaded when an agent is asked

        try:
            yield
        except httpx2.ConnectError as error:
            raise _nobody(self.address, _why(error)) from error
        except httpx2.TimeoutException as error:
            raise AgentError(
                f"the agent at {self.address} did not answer in time",
                advice="What it was asked to do may still happen; look with 'alignup ps'.",
            ) from error
        except httpx2.HTTPError as error:
            raise AgentError(
                f"the agent at {self.address} broke off: {_why(error)}",
                advice="Look at its log, and at what was done with 'alignup ps'.",
            ) from error

    def _answer(self, response: "httpx2.Response") -> Document:
        """The document of an answer; one that is a problem is raised in its own words."""
        document = self._document(response)
        if not response.is_error:
            return document
        errors = [f"{one['field']}: {one['what']}" if one["field"] else one["what"] for one in document["errors"]]
        raise AgentError(*(errors or [document["detail"]]), where=f"said the agent at {self.address}")

    def _document(self, response: "httpx2.Response") -> Document:
        try:
            document = response.json()
        except ValueError as error:
            raise AgentError(
                f"what answers at {self.address} is no agent", advice="Say where the agent is with --agent."
            ) from error
        return document if isinstance(document, dict) else {}


@contextmanager
def connect(where: AgentOptions) -> Iterator[AgentClient]:
    """The agent that the options name, or the one of this user."""
    from alignup.agent.address import SOCKET_NAME, UnixAddress, default_root, parse_address  # noqa: PLC0415
    from alignup.cli.inputs import input_errors  # noqa: PLC0415

    with input_errors("in --agent"):
        address = parse_address(where.agent) if where.agent else UnixAddress(default_root(os.environ) / SOCKET_NAME)
    if isinstance(address, UnixAddress) and not os.path.lexists(address.path):
        raise _nobody(str(address), "there is no such socket")
    headers = {}
    if where.token_file is not None:
        with input_errors("in --token-file"):
            headers["Authorization"] = f"Bearer {where.token_file.read_text('utf-8').strip()}"
    with require_agent_extra():
        import httpx2  # noqa: PLC0415 - a tenth of a second, and not needed for help
    socket = str(address.path) if isinstance(address, UnixAddress) else None
    base = "http://agent" if socket else f"http://{address}"
    transport = httpx2.HTTPTransport(uds=socket, trust_env=False)
    with httpx2.Client(transport=transport, base_url=base, headers=headers, timeout=TIMEOUT) as http:
        yield AgentClient(http, str(address))


@contextmanager
def require_agent_extra() -> Iterator[None]:
    """Say what to install where something is missing that only agents and those who talk to them need."""
    try:
        yield
    except ModuleNotFoundError as error:
        raise AgentError(
            f"{error.name} is not installed, and this command needs it", advice="Run: pip install 'alignup[agent]'"
        ) from error


def _nobody(address: str, why: str) -> AgentError:
    advice = "Start one with 'alignup agent', or say where it is with --agent or ALIGNUP_AGENT."
    return AgentError(f"no agent answers at {address}: {why}", advice=advice)


def _why(error: Exception) -> str:
    """What the system said: the cause of the cause of what httpx2 made of it."""
    cause: BaseException | None = error
    while cause is not None and not isinstance(cause, OSError):
        cause = cause.__cause__ or cause.__context__
    return cause.strerror or str(cause) if isinstance(cause, OSError) else str(error) or type(error).__name__


def pod_manifest(pod: "Pod") -> Document:
    """A pod as a v1 Pod: as it was written, so that it can be run, or as much as decides on its place."""
    from alignup.kube.pod_to_dict import pod_to_dict  # noqa: PLC0415 - loaded with the command, not with its help

    if not pod.manifest:
        return pod_to_dict(pod)
    written = json.loads(pod.manifest.text)
    own = {name: said for name in ("name", "namespace", "uid") if (said := getattr(pod, name))}
    metadata = {**written.get("metadata", {}), **own}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": written["spec"]}
