"""Kubeconfig files as kubectl reads them: several are merged, and the first definition of a name counts."""

import base64
import binascii
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from alignup.align.bits import quote
from alignup.align.errors import DocumentError, FieldError, ParseError
from alignup.atomic_files import open_input
from alignup.documents.codec import convert
from alignup.documents.line_numbers import find_line
from alignup.kubernetes.api.credentials import (
    CredentialFile,
    CredentialPlugin,
    Credentials,
    PluginCredentials,
    UserCredentials,
)
from alignup.kubernetes.api.errors import AccessError
from alignup.kubernetes.manifests import documents

_MAX_BYTES = 16 << 20
_EXEC_VERSIONS = ("client.authentication.k8s.io/v1", "client.authentication.k8s.io/v1beta1")

_T = TypeVar("_T")


class _Entry(msgspec.Struct, frozen=True, rename="kebab"):
    """The base of all parts of a kubeconfig; fields that are not used here are skipped."""


class KubeconfigCluster(_Entry, frozen=True):
    """An API server, and how to verify it."""

    server: str = ""
    certificate_authority: str = ""
    certificate_authority_data: str = ""
    insecure_skip_tls_verify: bool = False
    tls_server_name: str = ""
    proxy_url: str = ""
    disable_compression: bool = False
    extensions: tuple[dict[str, Any], ...] | None = None


class ExecVariable(_Entry, frozen=True):
    """An environment variable of a credential plugin."""

    name: str
    value: str = ""


class ExecConfig(_Entry, frozen=True, rename="camel"):
    """A credential plugin."""

    command: str
    api_version: str = ""
    args: tuple[str, ...] | None = None
    env: tuple[ExecVariable, ...] | None = None
    install_hint: str = ""
    interactive_mode: str = "IfAvailable"
    provide_cluster_info: bool = False


class KubeconfigUser(_Entry, frozen=True):
    """Credentials."""

    token: str = ""
    token_file: str = msgspec.field(name="tokenFile", default="")
    client_certificate: str = ""
    client_certificate_data: str = ""
    client_key: str = ""
    client_key_data: str = ""
    username: str = ""
    password: str = ""
    exec: ExecConfig | None = None
    auth_provider: Any = None
    impersonate: str = msgspec.field(name="as", default="")
    impersonate_uid: str = msgspec.field(name="as-uid", default="")
    impersonate_groups: tuple[str, ...] | None = msgspec.field(name="as-groups", default=None)


class KubeconfigContext(_Entry, frozen=True):
    """A cluster with a user and a default namespace."""

    cluster: str = ""
    user: str = ""
    namespace: str = ""


class _NamedCluster(_Entry, frozen=True):
    name: str
    cluster: KubeconfigCluster | None = None


class _NamedUser(_Entry, frozen=True):
    name: str
    user: KubeconfigUser | None = None


class _NamedContext(_Entry, frozen=True):
    name: str
    context: KubeconfigContext | None = None


class _File(_Entry, frozen=True):
    clusters: tuple[_NamedCluster, ...] | None = None
    users: tuple[_NamedUser, ...] | None = None
    contexts: tuple[_NamedContext, ...] | None = None
    current_context: str | None = None


@dataclass(slots=True)
class Kubeconfig:
    """One or several files, merged; clusters and users with their file, from which relative paths in it start."""

    files: list[Path] = field(default_factory=list)
    clusters: dict[str, tuple[KubeconfigCluster, Path]] = field(default_factory=dict)
    users: dict[str, tuple[KubeconfigUser, Path]] = field(default_factory=dict)
    contexts: dict[str, KubeconfigContext] = field(default_factory=dict)
    current_context: str = ""

    @property
    def name(self) -> str:
        return ":".join(map(str, self.files))

    def add(self, path: Path) -> None:
        """Read a file; what earlier files define stays."""
        kubeconfig = _read(path)
        self.files.append(path)
        for cluster in kubeconfig.clusters or ():
            self.clusters.setdefault(cluster.name, (cluster.cluster or KubeconfigCluster(), path))
        for user in kubeconfig.users or ():
            self.users.setdefault(user.name, (user.user or KubeconfigUser(), path))
        for context in kubeconfig.contexts or ():
            self.contexts.setdefault(context.name, context.context or KubeconfigContext())
        self.current_context = self.current_context or kubeconfig.current_context or ""

    def context(self, name: str = "") -> tuple[str, KubeconfigContext]:
        """Return the context called *name*, by default the current context, with its name."""
        context_name = name or self.current_context
        if not context_name:
            advice = "set it with: kubectl config use-context NAME"
            raise AccessError(f"{self.name}: no current context; {advice} ({_choices(self.contexts)})")
        return context_name, self._find(self.contexts, context_name, "context")

    def cluster(self, name: str) -> tuple[KubeconfigCluster, Path]:
        cluster, file = self._find(self.clusters, name, "cluster")
        if not cluster.server.startswith(("https://", "http://")):
            server = quote(cluster.server) if cluster.server else "missing"
            raise AccessError(
                f"{file}: cluster {quote(name)}: server: must be a URL such as https://host:6443, {server}"
            )
        return cluster, file

    def user(self, name: str) -> tuple[KubeconfigUser, Path]:
        """Return the user called *name*; a context without one is anonymous."""
        return self._find(self.users, name, "user") if name else (KubeconfigUser(), self.files[0])

    def _find(self, entries: Mapping[str, _T], name: str, kind: str) -> _T:
        if name not in entries:
            raise AccessError(f"{self.name}: no {kind} is called {quote(name)} ({_choices(entries)})")
        return entries[name]


def read_kubeconfig(paths: Iterable[Path]) -> Kubeconfig:
    """Merge these files. As in kubectl, missing files are skipped if there are several."""
    paths = list(paths)
    config = Kubeconfig()
    for path in paths:
        if len(paths) == 1 or path.exists():
            config.add(path)
    if not config.files:
        raise AccessError(f"{':'.join(map(str, paths))}: none of these kubeconfig files exists")
    return config


def authority(cluster: KubeconfigCluster, file: Path) -> bytes:
    """Return the PEM certificates that verify the server's certificate; empty: the certificates of the system."""
    if cluster.certificate_authority_data:
        return _decode(cluster.certificate_authority_data, "certificate-authority-data", file)
    if cluster.certificate_authority:
        return CredentialFile(file.parent / cluster.certificate_authority, content="certificate authority").read()
    return b""


def credentials(
    user: KubeconfigUser, file: Path, *, cluster: Mapping[str, object], environ: Mapping[str, str], timeout: float
) -> Credentials:
    """Return the credentials of a user; *cluster* describes the cluster for plugins that ask for it."""
    if user.exec is not None and not (user.token or user.token_file):
        return PluginCredentials(_plugin(user.exec, file, cluster=cluster, environ=environ), timeout=timeout)
    if user.auth_provider is not None:
        raise AccessError(f"{file}: auth-provider is not supported, nor by kubectl since 1.26; use an exec plugin")
    token: str | CredentialFile = user.token
    if user.token_file and not token:
        token = CredentialFile(file.parent / user.token_file, content="token")
    certificate = _pem(user.client_certificate_data, user.client_certificate, "client-certificate", file)
    key = _pem(user.client_key_data, user.client_key, "client-key", file)
    if bool(certificate) is not bool(key):
        missing_field = "client-key" if certificate else "client-certificate"
        raise AccessError(f"{file}: a user has no {missing_field}; a certificate needs both")
    return UserCredentials(token=token, user=user.username, password=user.password, certificate=certificate, key=key)


def cluster_info(cluster: KubeconfigCluster, certificates: bytes) -> dict[str, object]:
    """Return the description of a cluster for credential plugins that ask for it."""
    info: dict[str, object] = {
        "server": cluster.server,
        "tls-server-name": cluster.tls_server_name,
        "insecure-skip-tls-verify": cluster.insecure_skip_tls_verify,
        "certificate-authority-data": base64.b64encode(certificates).decode(),
        "proxy-url": cluster.proxy_url,
    }
    info = {name: value for name, value in info.items() if value}
    for extension in cluster.extensions or ():
        if extension.get("name") == "client.authentication.k8s.io/exec":
            info["config"] = extension.get("extension")
    return info


def _plugin(
    config: ExecConfig, file: Path, *, cluster: Mapping[str, object], environ: Mapping[str, str]
) -> CredentialPlugin:
    if config.api_version not in _EXEC_VERSIONS:
        raise AccessError(
            f"{file}: exec: apiVersion {quote(config.api_version)} is not supported; use {_EXEC_VERSIONS[0]}"
        )
    if config.interactive_mode not in {"Never", "IfAvailable", "Always"}:
        raise AccessError(f"{file}: exec: interactiveMode must be Never, IfAvailable or Always")
    return CredentialPlugin(
        # As in kubectl, a relative path starts at the kubeconfig, and a bare name is looked up in PATH.
        command=str(file.parent / config.command) if "/" in config.command else config.command,
        arguments=config.args or (),
        environment={**environ, **{variable.name: variable.value for variable in config.env or ()}},
        api_version=config.api_version,
        interactive=config.interactive_mode,
        cluster=cluster if config.provide_cluster_info else None,
        install_hint=config.install_hint,
        source=str(file),
    )


def _pem(data: str, path: str, name: str, file: Path) -> bytes | CredentialFile:
    if data:
        return _decode(data, f"{name}-data", file)
    return CredentialFile(file.parent / path, content=name) if path else b""


def _decode(data: str, name: str, file: Path) -> bytes:
    try:
        return base64.b64decode("".join(data.split()), validate=True)
    except (binascii.Error, ValueError):
        raise AccessError(f"{file}: {name} is not base64") from None


def _read(path: Path) -> _File:
    try:
        with open_input(path) as file:
            text = file.read(_MAX_BYTES + 1)
    except OSError as error:
        raise AccessError(f"{path}: cannot read the kubeconfig: {error.strerror}") from None
    if len(text) > _MAX_BYTES:
        raise AccessError(f"{path}: larger than {_MAX_BYTES >> 20} MiB, so it is not a kubeconfig")
    try:
        parsed_documents = documents.read(text)
    except DocumentError as error:
        raise AccessError(f"{path}:{error.line}: {error.message}") from None
    if len(parsed_documents) > 1:
        raise AccessError(f"{path}:{parsed_documents[1].line}: a second document; a kubeconfig is one document")
    try:
        return convert(documents.to_builtins(parsed_documents[0].value) if parsed_documents else {}, _File)
    except FieldError as error:
        line = find_line(text, error.field)
        raise AccessError(f"{path}:{line}: {error}" if line else f"{path}: {error}") from None
    except ParseError as error:
        raise AccessError(f"{path}: not a kubeconfig: {error}") from None


def _choices(names: Iterable[str]) -> str:
    choices = ", ".join(sorted(names))
    return f"there are: {choices}" if choices else "there are none"
