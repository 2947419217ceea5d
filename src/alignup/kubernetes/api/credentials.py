"""The credentials of a client: tokens, certificates and credential plugins.

Files are read again when they change, as the token of a service account does about once per hour. A plugin is run
again when its credential expires or the API server rejects it.
"""

import asyncio
import base64
import os
import shutil
import sys
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Protocol

import msgspec

from alignup.atomic_files import open_input
from alignup.kubernetes.api.errors import AccessError

EXPIRY_MARGIN = 5.0  #: seconds before its expiry at which a plugin's credential is replaced
_MAX_FILE = 1 << 20  #: bytes of a token or certificate


@dataclass(frozen=True, slots=True)
class ClientCertificate:
    """A certificate with its key, both as PEM."""

    certificate: bytes
    key: bytes = field(repr=False)


@dataclass(frozen=True, slots=True)
class Credential:
    """What a request is authenticated with; both can be missing."""

    authorization: str = field(default="", repr=False)  #: the header's value
    certificate: ClientCertificate | None = None


class Credentials(Protocol):
    """A source of credentials that can change with time."""

    async def current(self) -> Credential:
        """Return the credential for the next request; :class:`AccessError` if there is none."""

    def reject(self, credential: Credential) -> None:
        """Forget a credential that the API server did not accept."""


class CredentialFile:
    """The content of a file, read again when the file changes."""

    def __init__(self, path: Path, *, content: str) -> None:
        self._path = path
        self._name = content
        self._version: tuple[int, int, int] | None = None
        self._content = b""

    def read(self) -> bytes:
        try:
            status = self._path.stat()
            version = (status.st_mtime_ns, status.st_ino, status.st_size)
            if version != self._version:
                with open_input(self._path) as file:
                    self._content = file.read(_MAX_FILE)
                self._version = version
        except OSError as error:
            raise AccessError(f"{self._path}: cannot read the {self._name}: {error.strerror}") from None
        return self._content

    def forget(self) -> None:
        self._version = None


@dataclass(frozen=True, slots=True, kw_only=True)
class UserCredentials:
    """A token, a user with a password, a certificate, or none of them; from files or as text."""

    token: str | CredentialFile = field(default="", repr=False)
    user: str = ""
    password: str = field(default="", repr=False)
    certificate: bytes | CredentialFile = b""
    key: bytes | CredentialFile = field(default=b"", repr=False)

    async def current(self) -> Credential:
        certificate, key = _content(self.certificate), _content(self.key)
        token = self.token if isinstance(self.token, str) else self.token.read().decode("utf-8", "replace")
        authorization = f"Bearer {token.strip()}" if token.strip() else ""
        if self.user and not authorization:
            authorization = "Basic " + base64.b64encode(f"{self.user}:{self.password}".encode()).decode()
        return Credential(authorization, ClientCertificate(certificate, key) if certificate else None)

    def reject(self, credential: Credential) -> None:
        del credential
        for source in (self.token, self.certificate, self.key):
            if isinstance(source, CredentialFile):
                source.forget()


def _content(source: bytes | CredentialFile) -> bytes:
    return source.read() if isinstance(source, CredentialFile) else source


class ExecStatus(msgspec.Struct, frozen=True, rename="camel"):
    token: str = ""
    client_certificate_data: str = ""
    client_key_data: str = ""
    expiration_timestamp: datetime | None = None


class ExecCredential(msgspec.Struct, frozen=True, rename="camel"):
    """What a credential plugin prints."""

    api_version: str = ""
    kind: str = ""
    status: ExecStatus | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class CredentialPlugin:
    """A program that prints a credential, as a kubeconfig describes it."""

    command: str
    arguments: tuple[str, ...] = ()
    environment: Mapping[str, str] = field(default_factory=dict, repr=False)
    api_version: str = "client.authentication.k8s.io/v1"
    interactive: str = "IfAvailable"  #: Never, IfAvailable, Always: whether it may use the terminal
    cluster: Mapping[str, object] | None = None  #: passed to a plugin that asks for it
    install_hint: str = ""
    source: str = ""  #: for messages


class PluginCredentials:
    """The credential of a plugin, kept until it expires or is rejected."""

    def __init__(
        self, plugin: CredentialPlugin, *, timeout: float = 60.0, now: Callable[[], float] = time.time
    ) -> None:
        self._plugin = plugin
        self._timeout = timeout
        self._now = now
        self._current: Credential | None = None
        self._expires: float | None = None
        self._lock = asyncio.Lock()

    async def current(self) -> Credential:
        async with self._lock:
            expired = self._expires is not None and self._now() >= self._expires - EXPIRY_MARGIN
            if self._current is None or expired:
                status = await self._run()
                certificate, key = status.client_certificate_data.encode(), status.client_key_data.encode()
                authorization = f"Bearer {status.token}" if status.token else ""
                self._current = Credential(authorization, ClientCertificate(certificate, key) if certificate else None)
                self._expires = status.expiration_timestamp.timestamp() if status.expiration_timestamp else None
            return self._current

    def reject(self, credential: Credential) -> None:
        if credential == self._current:
            self._current = None

    async def _run(self) -> ExecStatus:
        plugin = self._plugin
        terminal = plugin.interactive != "Never" and sys.stdin is not None and sys.stdin.isatty()
        if plugin.interactive == "Always" and not terminal:
            raise self._error("needs a terminal, and standard input is not one")
        program = shutil.which(plugin.command, path=plugin.environment.get("PATH"))
        if program is None:
            hint = f". {plugin.install_hint.strip()}" if plugin.install_hint.strip() else "; install it"
            raise self._error(f"is not installed{hint}")
        spec = {"interactive": terminal, **({"cluster": plugin.cluster} if plugin.cluster else {})}
        info = {"apiVersion": plugin.api_version, "kind": "ExecCredential", "spec": spec}
        environment = {**plugin.environment, "KUBERNETES_EXEC_INFO": msgspec.json.encode(info).decode()}
        try:
            process = await asyncio.create_subprocess_exec(
                program,
                *plugin.arguments,
                env=environment,
                stdin=None if terminal else asyncio.subprocess.DEVNULL,
                stdout=asyncio.subprocess.PIPE,
                stderr=None if terminal else asyncio.subprocess.PIPE,
            )
        except OSError as error:
            raise self._error(f"cannot be started: {error.strerror}") from None
        output, errors = await self._communicate(process)
        if process.returncode:
            lines = (errors or b"").decode("utf-8", "replace").strip().splitlines()
            raise self._error(f"failed with exit code {process.returncode}" + (f": {lines[-1]}" if lines else ""))
        return self._parse(output)

    async def _communicate(self, process: asyncio.subprocess.Process) -> tuple[bytes, bytes | None]:
        try:
            async with asyncio.timeout(self._timeout):
                return await process.communicate()
        except TimeoutError:
            raise self._error(f"did not end within {self._timeout:g} seconds") from None
        finally:
            if process.returncode is None:
                with suppress(ProcessLookupError):
                    process.kill()
                await process.wait()

    def _parse(self, output: bytes) -> ExecStatus:
        try:
            answer = msgspec.json.decode(output, type=ExecCredential)
        except msgspec.DecodeError as error:
            raise self._error(f"did not print an ExecCredential: {error}") from None
        status = answer.status
        if answer.kind != "ExecCredential" or answer.api_version != self._plugin.api_version:
            kind = f"{answer.kind or 'no kind'} of {answer.api_version or 'no apiVersion'}"
            raise self._error(f"printed {kind}, not an ExecCredential of {self._plugin.api_version}")
        if status is None or not (status.token or (status.client_certificate_data and status.client_key_data)):
            raise self._error("printed neither a token nor a certificate with its key")
        return status

    def _error(self, problem: str) -> AccessError:
        prefix = f"{self._plugin.source}: " if self._plugin.source else ""
        return AccessError(f"{prefix}credential plugin {os.path.basename(self._plugin.command)} {problem}")  # noqa: PTH119
