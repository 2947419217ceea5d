"""The agent that a command talks to: the options that name it, and advice for its errors."""

import os
from dataclasses import dataclass, replace
from pathlib import Path

from alignup.align.errors import ParseError
from alignup.atomic_files import open_input
from alignup.cli.app import FailureError, InputError, Place
from alignup.cli.options import GIVE_FILE, check_exists, option, path_option
from alignup.web.address import SOCKET_NAME, TcpAddress, UnixAddress, default_root, parse_address
from alignup.web.agent_client import TIMEOUT, AgentClient, AgentError, AgentErrorKind

_ADVICE = {
    AgentErrorKind.UNREACHABLE: "Start one with 'alignup agent', or give its address with --agent or ALIGNUP_AGENT.",
    AgentErrorKind.TIMEOUT: "The request may still take effect. Check with 'alignup ps'.",
    AgentErrorKind.CLOSED: "Read the agent's log, and check with 'alignup ps' whether the request took effect.",
    AgentErrorKind.NOT_AN_AGENT: "Give the agent's address with --agent.",
    AgentErrorKind.CERTIFICATE: "Name the certificate of its CA with --ca-file or ALIGNUP_CA_FILE.",
    AgentErrorKind.BUSY: "Try again later.",
}
_MAX_TOKEN = 64 << 10  #: bytes of a token file


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


def connect(options: AgentOptions, *, timeout: float = TIMEOUT) -> AgentClient:
    """Return a client for the agent that *options* name (default: this user's). Nothing is sent yet."""
    try:
        default = UnixAddress(default_root(os.environ) / SOCKET_NAME)
        address = parse_address(options.agent) if options.agent else default
    except ParseError as error:
        raise InputError(str(error), place=Place("--agent")) from error
    try:
        token = ""
        if options.token_file:
            with open_input(options.token_file) as file:
                token = file.read(_MAX_TOKEN).decode("ascii", "replace").strip()
    except OSError as error:
        place = Place("--token-file")
        raise InputError(f"{error.filename}: {error.strerror}", place=place, advice=GIVE_FILE) from error
    if not token.isascii() or len(token.split()) > 1:
        message = f"{options.token_file} does not contain a token"
        raise InputError(message, place=Place("--token-file"), advice="Give the file that the agent has, too.")
    check_exists(options, "ca_file")
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


def input_error(error: AgentError) -> InputError:
    """Return *error* with its location and with advice that names options and commands."""
    if error.kind is AgentErrorKind.CA_FILE:
        return InputError(*error.problems, place=Place("--ca-file"))
    advice, address = _ADVICE.get(error.kind, ""), error.address
    if error.kind is AgentErrorKind.NOT_TLS and isinstance(address, TcpAddress):
        advice = f"If it serves plain HTTP, name it as http://{replace(address, tls=None)}."
    is_plain = isinstance(address, TcpAddress) and address.tls is None and address.is_loopback
    if error.kind is AgentErrorKind.CLOSED and is_plain:
        advice += f" If it serves HTTPS, name it as https://{address}."
    detail = f"reported by the agent at {address}" if error.kind is AgentErrorKind.REPORTED else ""
    return FailureError(*error.problems, place=Place(detail=detail), advice=advice)
