"""A real etcd, kube-apiserver and, for clusters with nodes, kube-controller-manager and kube-scheduler.

They listen on free ports of 127.0.0.1, have everything in one directory, and need no privileges.
``ALIGNUP_KUBERNETES_BIN`` names the directory of Kubernetes' programs; ``etcd`` may be there or on the PATH. With
several directories, separated by colons, tests of workloads run with each version, tests of upgrades with the kubelets
of all, the others with the first one.
"""

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
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Self

from e2e.egress import EgressProxy
from e2e.programs import not_installed

VARIABLE = "ALIGNUP_KUBERNETES_BIN"
ADMIN = "admin-token"
STRANGER = "stranger-token"  #: of a user without permissions

GATEWAYS = tuple(f"10.0.{number}.2" for number in range(2, 10))  #: addresses of this machine in networks of guests
SERVICE_ADDRESS = "10.96.0.1"  #: of the API server for pods

_SCHEDULER, _CONTROLLER_MANAGER = "kube-scheduler", "kube-controller-manager"
_TIMEOUT = 120.0  #: seconds until the server is ready


def extenders(port: int, *, ignorable: bool = False, token: str = "") -> dict[str, Any]:
    """Return the part of a scheduler's configuration in docs/scheduling.md, for ``alignup schedule`` on *port*."""
    user = f"alignup:{token}@" if token else ""
    return {
        "extenders": [
            {
                "urlPrefix": f"http://{user}127.0.0.1:{port}/v1/extender",
                "filterVerb": "filter",
                "prioritizeVerb": "prioritize",
                "bindVerb": "bind",
                "preemptVerb": "preempt",
                "weight": 5,
                "nodeCacheCapable": True,
                "ignorable": ignorable,
                "httpTimeout": "30s",
            }
        ]
    }


def missing(programs: Iterable[str] = ("kube-apiserver",), places: Sequence[Path] | None = None) -> str | None:
    """Return why *programs* of Kubernetes in *places* (default: all) cannot run here; ``None`` if they can."""
    places = directories() if places is None else places
    absent = [name for name in programs if not places or not all((place / name).is_file() for place in places)]
    if absent:
        return (
            f"set {VARIABLE} to a directory with {', '.join(absent)}: in kubernetes-server-linux-amd64.tar.gz "
            "(https://kubernetes.io/releases/download/)"
        )
    if not all((place / "etcd").is_file() for place in places) and (without := not_installed(["etcd"])):
        return without
    return not_installed(["openssl"])


def missing_kubectl() -> str | None:
    """Return why kubectl cannot run here; ``None`` if it can."""
    return None if directories() and shutil.which(program("kubectl")) else "not installed: kubectl"


def directories() -> tuple[Path, ...]:
    """Return the directories of Kubernetes' programs, one for each version."""
    return tuple(Path(name) for name in os.environ.get(VARIABLE, "").split(os.pathsep) if name)


def version(directory: Path | None) -> str:
    """Return the version of the programs in a directory, such as ``v1.36.4``."""
    paths = [directory / name for name in ("kubelet", "kube-apiserver")] if directory else []
    path = next((path for path in paths if path.is_file()), None)
    if path is None:
        return "none"
    return subprocess.run([path, "--version"], check=True, capture_output=True, text=True).stdout.split()[-1]


def program(name: str, directory: Path | None = None) -> Path:
    """Return the path of a program: in a directory (default: the first with programs of Kubernetes), or on the PATH."""
    path = (directory or directories()[0]) / name
    return path if path.is_file() else Path(shutil.which(name) or name)


def node_token(name: str) -> str:
    """Return the token of the kubelet of a node."""
    return f"token-of-node-{name}"


class ControlPlane:
    """An API server with its own authority, tokens and, in ``directory``, its files.

    With *nodes*, kubelets of these names can join, and controllers and the scheduler can be started. Connections to
    nodes, pods and webhooks go through *egress*, if given. *programs* is the directory of Kubernetes' programs.
    """

    def __init__(
        self,
        directory: Path,
        *,
        flags: tuple[str, ...] = (),
        nodes: tuple[str, ...] = (),
        egress: EgressProxy | None = None,
        programs: Path | None = None,
    ) -> None:
        self.directory = directory
        self.certificate = directory / "ca.crt"
        self.egress = egress
        self.programs = programs
        self.scheduler_flags: tuple[str, ...] = ()
        self._flags, self._nodes = (*flags, *(egress.flags if egress else ())), nodes
        self._port, self._etcd_port, self._peer_port = free_ports(3)
        self._processes: dict[str, subprocess.Popen[bytes]] = {}

    @property
    def port(self) -> int:
        """The port of the API server."""
        return self._port

    @property
    def url(self) -> str:
        """The address of the API server."""
        return self.url_at("127.0.0.1")

    def url_at(self, address: str) -> str:
        """Return the address of the API server for a guest in whose network this machine has *address*."""
        return f"https://{address}:{self._port}"

    def __enter__(self) -> Self:
        self._make_certificates()
        programs = (_SCHEDULER, _CONTROLLER_MANAGER) if self._nodes else ()
        tokens = (
            f'{ADMIN},admin,1,"system:masters"',
            f"{STRANGER},stranger,2",
            *(f"{name},system:{name},{name}" for name in programs),
            *(f'{node_token(name)},system:node:{name},{name},"system:nodes"' for name in self._nodes),
        )
        (self.directory / "tokens.csv").write_text("\n".join(tokens) + "\n")
        self._start_etcd()
        self.start()
        return self

    def __exit__(self, *exception: object) -> None:
        for name in tuple(self._processes):
            self._kill(name)

    def start(self) -> None:
        """Start the API server, and wait until it is ready."""
        place = self.directory
        access = (
            ("--authorization-mode=Node,RBAC", "--enable-admission-plugins=NodeRestriction")
            if self._nodes
            # Pods need no controller that makes service accounts.
            else ("--authorization-mode=RBAC", "--disable-admission-plugins=ServiceAccount")
        )
        self._start(
            "kube-apiserver",
            "--bind-address=127.0.0.1",
            f"--secure-port={self._port}",
            "--advertise-address=127.0.0.1",
            "--endpoint-reconciler-type=none",
            f"--etcd-servers=http://127.0.0.1:{self._etcd_port}",
            f"--token-auth-file={place / 'tokens.csv'}",
            *access,
            f"--client-ca-file={self.certificate}",
            f"--tls-cert-file={place / 'server.crt'}",
            f"--tls-private-key-file={place / 'server.key'}",
            "--service-account-issuer=https://kubernetes.default.svc",
            f"--service-account-key-file={place / 'ca.key'}",
            f"--service-account-signing-key-file={place / 'ca.key'}",
            "--service-cluster-ip-range=10.96.0.0/16",
            "--allow-privileged",
            f"--kubelet-client-certificate={place / 'kubelet-client.crt'}",
            f"--kubelet-client-key={place / 'kubelet-client.key'}",
            "--kubelet-preferred-address-types=InternalIP",
            *self._flags,
        )
        self._wait_ready()

    def kill(self) -> None:
        """Kill the API server as a crash would; :meth:`start` starts it again, on the same port and data."""
        self._kill("kube-apiserver")

    def start_controllers(self, controllers: str = "*") -> None:
        """Start the controllers of workloads, nodes and service accounts, or only these, without waiting."""
        place = self.directory
        self._start(
            _CONTROLLER_MANAGER,
            f"--kubeconfig={self.kubeconfig(place / 'controllers.json', {'token': _CONTROLLER_MANAGER})}",
            "--leader-elect=false",
            f"--controllers={controllers}",
            "--use-service-account-credentials=true",
            f"--service-account-private-key-file={place / 'ca.key'}",
            f"--root-ca-file={self.certificate}",
            "--secure-port=0",
        )

    def start_scheduler(self, configuration: Mapping[str, Any] | None = None) -> None:
        """Start the scheduler without waiting, after killing one that runs; *configuration* is added to its own."""
        if _SCHEDULER in self._processes:
            self._kill(_SCHEDULER)
        access = self.kubeconfig(self.directory / "scheduler.json", {"token": _SCHEDULER})
        file = self.directory / "scheduler-configuration.json"
        document = {
            "apiVersion": "kubescheduler.config.k8s.io/v1",
            "kind": "KubeSchedulerConfiguration",
            "leaderElection": {"leaderElect": False},
            "clientConnection": {"kubeconfig": str(access), "qps": 500, "burst": 1000},
            **(configuration or {}),
        }
        file.write_text(json.dumps(document))
        self._start(_SCHEDULER, f"--config={file}", "--secure-port=0", *self.scheduler_flags)

    def process(self, name: str) -> int:
        """Return the process id of a program."""
        return self._processes[name].pid

    def log(self, name: str, characters: int = 2000) -> str:
        """Return the end of the log of a program."""
        return (self.directory / f"{name}.log").read_text(errors="replace")[-characters:]

    def log_lines(self, name: str, text: str) -> str:
        """Return the lines of the log of a program that contain *text*."""
        lines = (self.directory / f"{name}.log").read_text(errors="replace").splitlines()
        return "\n".join(line for line in lines if text in line)

    def kubeconfig(self, path: Path, user: Mapping[str, Any] | None = None, *, address: str = "127.0.0.1") -> Path:
        """Write a kubeconfig; the default user is the administrator."""
        server = self.url_at(address)
        authority = base64.b64encode(self.certificate.read_bytes()).decode()
        config = {
            "apiVersion": "v1",
            "kind": "Config",
            "current-context": "e2e",
            "clusters": [{"name": "e2e", "cluster": {"server": server, "certificate-authority-data": authority}}],
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
        addresses = ",".join(f"IP:{address}" for address in ("127.0.0.1", SERVICE_ADDRESS, *GATEWAYS))
        self.sign("server", subject="/CN=kube-apiserver", extensions=f"subjectAltName={addresses}\n")
        self.sign(
            "kubelet-client", subject="/O=system:masters/CN=kubelet-client", extensions="extendedKeyUsage=clientAuth\n"
        )

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

    def _start(self, name: str, *arguments: str) -> None:
        with (self.directory / f"{name}.log").open("ab") as log:
            self._processes[name] = subprocess.Popen([program(name, self.programs), *arguments], stdout=log, stderr=log)

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
                    raise RuntimeError(f"kube-apiserver is not ready: {self.log('kube-apiserver')}") from error
                time.sleep(0.2)


def _openssl(*arguments: object) -> None:
    subprocess.run(["openssl", *map(str, arguments)], check=True, capture_output=True)


def free_ports(count: int) -> list[int]:
    """Return ports of 127.0.0.1 that nothing uses."""
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports: list[int] = [listener.getsockname()[1] for listener in sockets]
    for listener in sockets:
        listener.close()
    return ports
