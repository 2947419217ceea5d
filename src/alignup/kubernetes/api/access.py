"""Access to an API server: kubeconfig files, or the service account of a pod.

The order is kubectl's: a given file, the files in ``KUBECONFIG``, ``~/.kube/config``, the service account of the pod.
"""

import ipaddress
import os
import ssl
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import urlsplit

import structlog

from alignup.align.bits import quote
from alignup.kubernetes.api.credentials import ClientCertificate, CredentialFile, Credentials, UserCredentials
from alignup.kubernetes.api.errors import AccessError
from alignup.kubernetes.api.kubeconfig import authority, cluster_info, credentials, read_kubeconfig
from alignup.kubernetes.api.timing import Timing

SERVICE_ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")

_log = structlog.get_logger()


@dataclass(frozen=True, slots=True, kw_only=True)
class Access:
    """An API server, how to verify it, and who we are."""

    server: str  #: a URL
    credentials: Credentials = field(default_factory=UserCredentials)
    authority: bytes = b""  #: PEM certificates that verify the server's certificate; empty: those of the system
    verify: bool = True  #: whether the server's certificate is verified
    server_name: str = ""  #: in the server's certificate; empty: the host in the URL
    proxy: str = ""  #: a URL; empty: none
    compress: bool = False  #: whether the server may compress responses, which pays on slow networks
    headers: tuple[tuple[str, str], ...] = ()  #: of every request
    user_agent: str = "alignup"
    namespace: str = "default"  #: for objects without one
    source: str = ""  #: where all of this comes from, for messages

    def ssl_context(self, certificate: ClientCertificate | None) -> ssl.SSLContext:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        # As for kubectl, any certificate of the authority is trusted, also one that another has signed.
        context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
        try:
            if not self.verify:
                context.check_hostname = False
                context.verify_mode = ssl.CERT_NONE
            elif self.authority:
                context.load_verify_locations(cadata=self.authority.decode("ascii", "replace"))
            else:
                context.load_default_certs()
        except (ssl.SSLError, ValueError) as error:
            raise AccessError(f"{self.source}: unusable certificate authority: {_reason(error)}") from None
        if certificate is not None:
            try:
                _load(context, certificate)
            except ssl.SSLError as error:
                raise AccessError(f"{self.source}: unusable client certificate or key: {_reason(error)}") from None
        return context


def find_access(
    kubeconfig: str | Path | None = None,
    *,
    context: str = "",
    environ: Mapping[str, str] = os.environ,
    service_account: Path = SERVICE_ACCOUNT,
) -> Access:
    """Find the API server; :class:`AccessError` says where it was looked for and what to do."""
    paths = (
        [Path(kubeconfig)] if kubeconfig else [Path(path) for path in environ.get("KUBECONFIG", "").split(":") if path]
    )
    default = Path(environ.get("HOME", "/")) / ".kube" / "config"
    if not paths and default.exists():
        paths = [default]
    if paths:
        return kubeconfig_access(paths, context=context, environ=environ)
    if environ.get("KUBERNETES_SERVICE_HOST"):
        return service_account_access(environ, service_account)
    raise AccessError(
        f"no Kubernetes API server: KUBECONFIG is not set, {default} does not exist, and this is not a pod"
    )


def pod_namespace(directory: Path = SERVICE_ACCOUNT) -> str:
    """Return the namespace of this process's pod; empty: it runs in no pod, or in one without a token."""
    try:
        return (directory / "namespace").read_text("utf-8").strip()
    except (OSError, UnicodeDecodeError):
        return ""


def service_account_access(environ: Mapping[str, str] = os.environ, directory: Path = SERVICE_ACCOUNT) -> Access:
    """Return the access of a pod by its service account."""
    host, port = environ.get("KUBERNETES_SERVICE_HOST", ""), environ.get("KUBERNETES_SERVICE_PORT", "443")
    server = f"https://[{host}]:{port}" if ":" in host else f"https://{host}:{port}"
    token = CredentialFile(directory / "token", content="token of the service account")
    token.read()  # so that a pod without one fails here
    return Access(
        server=server,
        credentials=UserCredentials(token=token),
        authority=CredentialFile(directory / "ca.crt", content="certificate authority of the cluster").read(),
        proxy=proxy_for(server, environ),
        namespace=pod_namespace(directory) or "default",
        source="the service account of this pod",
    )


def kubeconfig_access(paths: list[Path], *, context: str = "", environ: Mapping[str, str] = os.environ) -> Access:
    """Return the access that a context of kubeconfig files describes; the default is their current context."""
    config = read_kubeconfig(paths)
    name, selected_context = config.context(context)
    cluster, cluster_file = config.cluster(selected_context.cluster)
    user, user_file = config.user(selected_context.user)
    certificates = authority(cluster, cluster_file)
    source = f"context {quote(name)} of {config.name}"
    server = cluster.server.rstrip("/")
    if cluster.insecure_skip_tls_verify:
        _log.warning("server certificate not verified: insecure-skip-tls-verify is set", source=source, server=server)
    impersonation = [("Impersonate-User", user.impersonate), ("Impersonate-Uid", user.impersonate_uid)]
    impersonation += [("Impersonate-Group", group) for group in user.impersonate_groups or ()]
    return Access(
        server=server,
        credentials=credentials(
            user,
            user_file,
            cluster=cluster_info(cluster, certificates),
            environ=environ,
            timeout=Timing().credentials,
        ),
        authority=certificates,
        verify=not cluster.insecure_skip_tls_verify,
        server_name=cluster.tls_server_name,
        proxy=cluster.proxy_url or proxy_for(server, environ),
        compress=not cluster.disable_compression,
        headers=tuple((header, value) for header, value in impersonation if value),
        namespace=selected_context.namespace or "default",
        source=source,
    )


def proxy_for(server: str, environ: Mapping[str, str]) -> str:
    """Return the proxy for a URL by the usual environment variables; ``NO_PROXY`` may have networks, as for kubectl."""
    parts = urlsplit(server)
    names = (f"{parts.scheme}_proxy".upper(), f"{parts.scheme}_proxy")
    proxy = next((environ[name] for name in names if environ.get(name)), "")
    host = parts.hostname or ""
    if not proxy or host == "localhost":
        return ""
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        address = None
    if address is not None and address.is_loopback:
        return ""
    exceptions = environ.get("NO_PROXY") or environ.get("no_proxy") or ""
    if any(_excepted(host, address, exception.strip().lower()) for exception in exceptions.split(",")):
        return ""
    return proxy if "://" in proxy else f"http://{proxy}"


def _excepted(host: str, address: ipaddress.IPv4Address | ipaddress.IPv6Address | None, exception: str) -> bool:
    if exception == "*":
        return True
    if address is not None:
        try:
            return address in ipaddress.ip_network(exception, strict=False)
        except ValueError:
            return False
    domain = exception.removeprefix("*").removeprefix(".")
    return bool(domain) and (host.endswith(f".{domain}") or (host == domain and not exception.startswith(".")))


def _load(context: ssl.SSLContext, certificate: ClientCertificate) -> None:
    """Load a certificate and its key; Python reads them from files only."""
    with tempfile.NamedTemporaryFile(prefix="alignup-", suffix=".pem") as file:  # only the owner can read it
        file.write(certificate.certificate.rstrip() + b"\n" + certificate.key)
        file.flush()
        context.load_cert_chain(file.name, password="")  # fails where it would ask for one


def _reason(error: Exception) -> str:
    return getattr(error, "reason", None) or str(error)
