"""Credentials: files that rotate, and credential plugins."""

import asyncio
import base64
import json
import os
import shlex
import sys

import pytest

from alignup.kubernetes.api import Access, ApiClient
from alignup.kubernetes.api.credentials import (
    ClientCertificate,
    Credential,
    CredentialFile,
    CredentialPlugin,
    PluginCredentials,
    UserCredentials,
)
from alignup.kubernetes.api.errors import AccessError, UnauthorizedError

pytestmark = pytest.mark.anyio

V1 = "client.authentication.k8s.io/v1"


def swap(path, text):
    """Replace a file as Kubernetes replaces those of a projected volume."""
    new = path.with_suffix(".new")
    new.write_text(text)
    new.rename(path)


async def test_a_token_file_is_read_again_when_it_rotates(server, tmp_path):
    path = tmp_path / "token"
    path.write_text("first\n")
    server.tokens = {"first"}
    credentials = UserCredentials(token=CredentialFile(path, content="token"))
    async with ApiClient(Access(server=server.url, credentials=credentials)) as client:
        await client.version()
        swap(path, "other")
        server.tokens = {"other"}
        await client.version()

    assert [request.headers["authorization"] for request in server.requests] == ["Bearer first", "Bearer other"]


async def test_a_rejected_credential_without_another_is_an_error(server):
    server.tokens = set()
    credentials = UserCredentials(token="old")  # noqa: S106
    async with ApiClient(Access(server=server.url, credentials=credentials, source="context x")) as client:
        with pytest.raises(UnauthorizedError, match="get /version as context x: Unauthorized"):
            await client.version()

    assert len(server.requests) == 1


async def test_a_missing_token_file_is_named(tmp_path):
    credentials = UserCredentials(token=CredentialFile(tmp_path / "token", content="token"))

    with pytest.raises(AccessError, match=r"/token: cannot read the token: No such file or directory"):
        await credentials.current()


async def test_a_user_with_a_password():
    basic = base64.b64encode(b"eve:pass word").decode()

    assert await UserCredentials(user="eve", password="pass word").current() == Credential(f"Basic {basic}")  # noqa: S106


async def test_secrets_are_not_shown():
    shown = repr(UserCredentials(token="s3cret", key=b"s3cret"))  # noqa: S106
    shown += repr(Credential("s3cret", ClientCertificate(b"", b"s3cret")))
    shown += repr(CredentialPlugin(command="x", environment={"KEY": "s3cret"}))

    assert "s3cret" not in shown


class Script:
    """A credential plugin that prints what a test says, and counts its runs."""

    def __init__(self, directory):
        self.path = directory / "plugin"
        self._output, self._runs, self._info = (directory / name for name in ("output", "runs", "info"))
        self.path.write_text(
            f"#!/bin/sh\necho >>{shlex.quote(str(self._runs))}\n"
            f'printf %s "$KUBERNETES_EXEC_INFO" >{shlex.quote(str(self._info))}\n'
            f". {shlex.quote(str(self._output))}\n"
        )
        self.path.chmod(0o755)

    def prints(self, **status):
        self.prints_text(json.dumps({"apiVersion": V1, "kind": "ExecCredential", "status": status}))

    def prints_text(self, text):
        self.does(f"printf %s {shlex.quote(text)}")

    def does(self, command):
        self._output.write_text(command + "\n")

    @property
    def runs(self):
        return len(self._runs.read_text()) if self._runs.exists() else 0

    @property
    def info(self):
        return json.loads(self._info.read_text())

    def plugin(self, **options):
        return CredentialPlugin(command=str(self.path), environment=dict(os.environ), source="config", **options)


@pytest.fixture
def script(tmp_path):
    return Script(tmp_path)


async def test_a_plugin_is_run_once_for_many_requests(script):
    script.prints(token="t", expirationTimestamp="2026-01-01T00:00:00Z")  # noqa: S106
    credentials = PluginCredentials(script.plugin(), now=lambda: 0.0)

    returned = await asyncio.gather(*(credentials.current() for _ in range(5)))

    assert returned == [Credential("Bearer t")] * 5
    assert script.runs == 1
    assert script.info == {"apiVersion": V1, "kind": "ExecCredential", "spec": {"interactive": False}}


async def test_a_plugin_is_run_again_when_its_credential_expires(script):
    now = [0.0]
    credentials = PluginCredentials(script.plugin(), now=lambda: now[0])
    script.prints(token="first", expirationTimestamp="1970-01-01T01:00:00Z")  # noqa: S106
    await credentials.current()
    script.prints(token="second")  # noqa: S106

    now[0] = 3590.0
    assert (await credentials.current()).authorization == "Bearer first"
    now[0] = 3596.0
    assert (await credentials.current()).authorization == "Bearer second"


async def test_a_plugin_is_run_again_when_its_credential_is_rejected(server, script):
    script.prints(token="old")  # noqa: S106
    server.tokens = {"old"}
    async with ApiClient(Access(server=server.url, credentials=PluginCredentials(script.plugin()))) as client:
        await client.version()
        script.prints(token="new")  # noqa: S106
        server.tokens = {"new"}
        await client.version()

    assert script.runs == 2
    assert len(server.requests) == 3


async def test_a_plugin_can_give_a_certificate_and_know_the_cluster(script):
    script.prints(clientCertificateData="CERTIFICATE", clientKeyData="KEY")
    credentials = PluginCredentials(script.plugin(cluster={"server": "https://a"}))

    assert await credentials.current() == Credential("", ClientCertificate(b"CERTIFICATE", b"KEY"))
    assert script.info["spec"]["cluster"] == {"server": "https://a"}


@pytest.mark.parametrize(
    ("command", "message"),
    [
        pytest.param(
            "echo first >&2; echo expired login >&2; exit 3", "failed with exit code 3: expired login", id="fails"
        ),
        pytest.param("echo no", "did not print an ExecCredential: .*", id="prints no JSON"),
        pytest.param(
            "echo '{}'", "printed no kind of no apiVersion, not an ExecCredential of .*/v1", id="prints another object"
        ),
        pytest.param(
            f"""echo '{{"apiVersion":"{V1}","kind":"ExecCredential","status":{{}}}}'""",
            "printed neither a token nor a certificate with its key",
            id="prints no credential",
        ),
        pytest.param("exec sleep 60", "did not end within 0.2 seconds", id="does not end"),
    ],
)
async def test_what_a_plugin_does_wrong_is_said(script, command, message):
    script.does(command)

    with pytest.raises(AccessError, match=f"^config: credential plugin plugin {message}$"):
        await PluginCredentials(script.plugin(), timeout=0.2 if "sleep" in command else 60.0).current()


async def test_a_plugin_that_is_not_installed_is_named_with_the_hint():
    plugin = CredentialPlugin(command="alignup-no-such-plugin", install_hint="Get it at https://example.com\n")

    with pytest.raises(AccessError, match=r"alignup-no-such-plugin is not installed\. Get it at https://example\.com$"):
        await PluginCredentials(plugin).current()


async def test_a_plugin_that_needs_a_terminal_is_not_run_without_one(script, monkeypatch):
    with open(os.devnull) as nothing:  # noqa: ASYNC230, PTH123 - it does not block
        monkeypatch.setattr(sys, "stdin", nothing)
        with pytest.raises(AccessError, match="needs a terminal"):
            await PluginCredentials(script.plugin(interactive="Always")).current()

    assert script.runs == 0
