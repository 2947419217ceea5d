"""The agent that options name, and advice for its errors."""

from pathlib import Path

import pytest

from alignup.cli.agent_client import AgentOptions, connect, find_agent, input_error
from alignup.cli.app import InputError
from alignup.web.address import Address, TcpAddress, UnixAddress
from alignup.web.agent_client import AgentError, AgentErrorKind

SOCKET = UnixAddress(Path("/run/agent.sock"))
LOCAL = TcpAddress("127.0.0.1", 8888)


def options(agent=":1", token_file=None):
    return AgentOptions(agent=agent, token_file=token_file, ca_file=None)


@pytest.mark.parametrize("content", [b"one\ntwo\n", b"one two", "größer".encode(), b"\xff"])
def test_a_file_without_a_token_is_an_error(tmp_path, content):
    (tmp_path / "token").write_bytes(content)

    with pytest.raises(InputError, match="token does not contain a token"):
        connect(options(token_file=tmp_path / "token"))


def test_a_named_agent_must_answer(tmp_path):
    with pytest.raises(AgentError, match="no agent answers at unix:"):
        find_agent(options(f"unix:{tmp_path / 'nowhere'}"))


@pytest.mark.parametrize(
    ("kind", "address", "code", "text"),
    [
        (AgentErrorKind.UNREACHABLE, SOCKET, 1, "give its address with --agent"),
        (AgentErrorKind.TIMEOUT, SOCKET, 1, "Check with 'alignup ps'"),
        (AgentErrorKind.CLOSED, SOCKET, 1, "whether the request took effect."),
        (AgentErrorKind.CLOSED, LOCAL, 1, "If it serves HTTPS, name it as https://127.0.0.1:8888."),
        (AgentErrorKind.NOT_AN_AGENT, SOCKET, 1, "Give the agent's address with --agent."),
        (AgentErrorKind.NOT_TLS, TcpAddress("node-7", 1, tls=True), 1, "name it as http://node-7:1."),
        (AgentErrorKind.CERTIFICATE, LOCAL, 1, "--ca-file"),
        (AgentErrorKind.CA_FILE, LOCAL, 2, "--ca-file"),
        (AgentErrorKind.BUSY, SOCKET, 1, "Try again later."),
        (AgentErrorKind.REPORTED, SOCKET, 1, "reported by the agent at unix:/run/agent.sock"),
    ],
)
def test_every_error_has_an_exit_code_and_says_where_or_what_to_do(kind, address: Address, code, text):
    error = input_error(AgentError(kind, "a problem", address=address))

    assert (error.problems, error.exit_code) == (("a problem",), code)
    assert text in f"{error.place.option}\n{error.place.detail}\n{error.advice}"
