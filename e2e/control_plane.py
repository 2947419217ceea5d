"""A real etcd and kube-apiserver on free ports of 127.0.0.1, with everything in one directory.

They need no privileges. ``ALIGNUP_KUBERNETES_BIN`` names the directory of ``kube-apiserver``; ``etcd`` may be there or
on the PATH.
"""
# ruff: noqa: S603, S607

import base64
import json
import os
import shutil
import signal
import socket
import ssl
import subprocess
import time
import urllib.request
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from e2e.programs import not_installed

VARIABLE = "ALIGNUP_KUBERNETES_BIN"
ADMIN = "admin-token"
STRANGER = "stranger-token"  #: of a user without permissions

_TIMEOUT = 120.0  #: seconds until the server is ready


def missing() -> str | None:
    """Why the programs cannot run here; ``None`` if they can."""
    directory = os.environ.get(VARIABLE)
    if not directory or not (Path(directory) / "kube-apiserver").is_file():
        return (
            f"set {VARIABLE} to a directory with kube-apiserver: it is in kubernetes-server-linux-amd64.tar.gz "
            "(https://kubernetes.io/releases/download/)"
        )
    if not (Path(directory) / "etcd").is_file() and (absent := not_installed(["etcd"])):
        return absent
    return not_installed(["openssl"])


class ControlPlane:
    """An API server with its own authority, tokens and, in ``directory``, its files."""

    def __init__(self, directory: Path, *, flags: tuple[str, ...] = ()) -> None:
        self.directory = directory
        self.certificate = directory / "ca.crt"
        self._flags = flags
        self._port, self._etcd_port, self._peer_port = _free_ports(3)
        self._processes: dict[str, subprocess.Popen[bytes]] = {}

    @property
    def url(self) -> str:
        """The address of the API server."""
        return f"https://127.0.0.1:{self._port}"

    def __enter__(self) -> Self:
        self._make_certificates()
        tokens = (f'{ADMIN},admin,1,"system:masters"', f"{STRANGER},stranger,2")
        (self.directory / "tokens.csv").write_text("\n".join(tokens) + "\n")
        self._start_etcd()
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for name in tuple(self._processes):
            self._kill(name)

    def start(self) -> None:
        """Start the API server, and wait until it is ready."""
        place = self.directory
        self._start(
            "kube-apiserver",
            "--bind-address=127.0.0.1",
            f"--secure-port={self._port}",
            "--advertise-address=127.0.0.1",
            "--endpoint-reconciler-type=none",
            f"--etcd-servers=http://127.0.0.1:{self._etcd_port}",
            f"--token-auth-file={place / 'tokens.csv'}",
            "--authorization-mode=RBAC",
            f"--client-ca-file={self.certificate}",
            f"--tls-cert-file={place / 'server.crt'}",
            f"--tls-private-key-file={place / 'server.key'}",
            "--service-account-issuer=https://kubernetes.default.svc",
            f"--service-account-key-file={place / 'ca.key'}",
            f"--service-account-signing-key-file={place / 'ca.key'}",
            "--service-cluster-ip-range=10.96.0.0/16",
            "--disable-admission-plugins=ServiceAccount",  # pods need no controller that makes service accounts
            "--allow-privileged",
            *self._flags,
        )
        self._wait_ready()

    def kill(self) -> None:
        """Kill the API server as a crash would; :meth:`start` starts it again, on the same port and data."""
        self._kill("kube-apiserver")

    def kubeconfig(self, path: Path, user: Mapping[str, Any] | None = None) -> Path:
        """Write a kubeconfig; the default user is the administrator."""
        authority = base64.b64encode(self.certificate.read_bytes()).decode()
        config = {
            "apiVersion": "v1",
            "kind": "Config",
            "current-context": "e2e",
            "clusters": [{"name": "e2e", "cluster": {"server": self.url, "certificate-authority-data": authority}}],
            "users": [{"name": "e2e", "user": {"token": ADMIN} if user is None else dict(user)}],
            "contexts": [{"name": "e2e", "context": {"cluster": "e2e", "user": "e2e"}}],
        }
        path.write_text(json.dumps(config))
        return path

    def sign(self, name: str, *, subject: str, extensions: str) -> tuple[Path, Path]:
        """Return a certificate of the authority, and its key."""
        certificate, key, request = (self.directory / f"{name}.{kind}" for kind in ("crt", "key", "csr"))
        config = self.directory / f"{name}.cnf"
        config.write_text(extensions)
        _openssl("req", "-newkey", "rsa:2048", "-nodes", "-subj", subject, "-keyout", key, "-out", request)
        authority = ("-CA", self.certificate, "-CAkey", self.directory / "ca.key", "-CAcreateserial")
        _openssl("x509", "-req", "-in", request, *authority, "-extfile", config, "-days", "2", "-out", certificate)
        return certificate, key

    def _make_certificates(self) -> None:
        subject = ("-subj", "/CN=e2e", "-days", "2")
        key = self.directory / "ca.key"
        _openssl("req", "-x509", "-newkey", "rsa:2048", "-nodes", *subject, "-keyout", key, "-out", self.certificate)
        self.sign("server", subject="/CN=kube-apiserver", extensions="subjectAltName=IP:127.0.0.1\n")

    def _start_etcd(self) -> None:
        client, peer = (f"http://127.0.0.1:{port}" for port in (self._etcd_port, self._peer_port))
        self._start(
            "etcd",
            f"--data-dir={self.directory / 'etcd'}",
            f"--listen-client-urls={client}",
            f"--advertise-client-urls={client}",
            f"--listen-peer-urls={peer}",
            f"--initial-advertise-peer-urls={peer}",
            f"--initial-cluster=default={peer}",
            "--unsafe-no-fsync",
        )

    def _start(self, program: str, *arguments: str) -> None:
        own = Path(os.environ[VARIABLE]) / program
        command = str(own) if own.is_file() else shutil.which(program) or program
        with (self.directory / f"{program}.log").open("ab") as log:
            self._processes[program] = subprocess.Popen([command, *arguments], stdout=log, stderr=log)

    def _kill(self, name: str) -> None:
        process = self._processes.pop(name)
        process.send_signal(signal.SIGKILL)
        process.wait()

    def _wait_ready(self) -> None:
        context = ssl.create_default_context(cafile=str(self.certificate))
        context.verify_flags &= ~ssl.VERIFY_X509_STRICT
        request = urllib.request.Request(f"{self.url}/readyz", headers={"Authorization": f"Bearer {ADMIN}"})  # noqa: S310
        deadline = time.monotonic() + _TIMEOUT
        while True:
            try:
                with urllib.request.urlopen(request, context=context, timeout=5):  # noqa: S310 - https
                    return
            except OSError as error:
                if self._processes["kube-apiserver"].poll() is not None or time.monotonic() > deadline:
                    log = (self.directory / "kube-apiserver.log").read_text(errors="replace")[-2000:]
                    raise RuntimeError(f"kube-apiserver is not ready: {log}") from error
                time.sleep(0.2)


def _openssl(*arguments: object) -> None:
    subprocess.run(["openssl", *map(str, arguments)], check=True, capture_output=True)


def _free_ports(count: int) -> list[int]:
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports: list[int] = [one.getsockname()[1] for one in sockets]
    for one in sockets:
        one.close()
    return ports
