"""Commands and the agent over HTTPS."""

from contextlib import asynccontextmanager

import pytest

from alignup.cli.agent_client import input_error
from alignup.web import sockets
from alignup.web.address import TcpAddress
from alignup.web.agent_client import AgentClient, AgentError, AgentErrorKind
from alignup.web.asgi_server import ServerLimits, serve_app
from alignup.web.sockets import ServerCertificate
from tests.agent.fake_backend import FakeBackend, app_of
from tests.certificates import ca_file, install
from tests.cli.commands import in_process
from tests.cli.fake_agent import served_in_a_thread


def serving(certificate):
    """Serve an agent in a thread, with TLS unless *certificate* is ``None``; its port."""

    @asynccontextmanager
    async def serve(stopping):
        tls = None if certificate is None else certificate.context
        app = app_of(FakeBackend(), stopping=stopping, token=b"secret")
        limits = ServerLimits(end=1, names=("node-7",))
        with sockets.tcp_socket(0) as listener:
            async with serve_app(app, listener, stopping=stopping, limits=limits, tls=tls):
                yield listener.getsockname()[1]

    return served_in_a_thread(serve)


@pytest.fixture(scope="module")
def port(tmp_path_factory):
    with serving(ServerCertificate(*install("first", tmp_path_factory.mktemp("tls")))) as port:
        yield port


@pytest.fixture
def token(tmp_path):
    path = tmp_path / "token"
    path.write_text("secret\n")
    path.chmod(0o600)
    return path


def test_commands_verify_the_certificate(port, token):
    address = ("--agent", f"https://localhost:{port}", "--token-file", token)

    verified = in_process("ps", *address, "--ca-file", ca_file())
    by_environment = in_process("ps", *address, env={"ALIGNUP_CA_FILE": str(ca_file())})
    unverified = in_process("ps", *address)

    assert (verified.returncode, verified.stderr) == (0, "note: web.yaml cannot be used\nNo pods found.\n")
    assert by_environment.returncode == 0
    assert unverified.returncode == 1
    assert f"the certificate of the agent at https://localhost:{port} is not valid: " in unverified.stderr
    assert "--ca-file" in unverified.stderr


def test_the_host_name_is_verified(port, monkeypatch):
    monkeypatch.setattr("socket.getaddrinfo", lambda *_args, **_kw: [(2, 1, 6, "", ("127.0.0.1", port))])

    with pytest.raises(AgentError, match="Hostname mismatch"):
        AgentClient(TcpAddress("node-7.example.com", port), token="secret", ca_file=ca_file()).pods()  # noqa: S106 - made up


def test_other_addresses_mean_https(monkeypatch):
    """A token is never sent in plain text without being told."""
    with serving(None) as port:
        monkeypatch.setattr("socket.getaddrinfo", lambda *_args, **_kw: [(2, 1, 6, "", ("127.0.0.1", port))])

        with pytest.raises(AgentError, match="does not speak HTTPS") as error:
            AgentClient(TcpAddress("node-7", port), token="secret").pods()  # noqa: S106 - made up
        plain = AgentClient(TcpAddress("node-7", port, tls=False), token="secret").pods()  # noqa: S106

    assert error.value.kind is AgentErrorKind.NOT_TLS
    assert f"http://node-7:{port}" in input_error(error.value).advice
    assert plain == []


def test_plain_http_to_an_agent_with_https_names_the_scheme(port):
    with pytest.raises(AgentError) as error:
        AgentClient(TcpAddress("127.0.0.1", port)).pods()

    assert f"https://127.0.0.1:{port}" in input_error(error.value).advice


@pytest.mark.parametrize("content", [None, "hello"])
def test_an_unusable_ca_file_is_an_error(port, tmp_path, content):
    if content:
        (tmp_path / "ca.pem").write_text(content)

    with pytest.raises(AgentError, match=r"cannot use .*ca\.pem: "):
        AgentClient(TcpAddress("localhost", port, tls=True), ca_file=tmp_path / "ca.pem").pods()


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        (["--tls-cert-file", "x"], "need each other"),
        (["--tls-private-key-file", "x"], "need each other"),
        (["--tls-cert-file", "x", "--tls-private-key-file", "x"], "not for unix:"),
        (["--listen", "http://:1", "--tls-cert-file", "x", "--tls-private-key-file", "x"], "not for http:"),
        (["--listen", "https://:1"], "needs --tls-cert-file"),
        (["--listen", ":1", "--tls-cert-file", "x", "--tls-private-key-file", "x", "--insecure-http"], "contradicts"),
    ],
)
def test_contradictory_options_are_usage_errors(tmp_path, options, reason):
    result = in_process("agent", "--root-dir", tmp_path / "root", "--machine", "pack:1 core:2 pu:1", *options)

    assert result.returncode == 2
    assert reason in result.stderr
    assert not (tmp_path / "root").exists()
