"""Processes of ``alignup schedule`` beside a control plane on this machine, and a scheduler that uses them.

Replicas elect a leader. An extender has one address, so a forwarder sends each connection to the replica that is ready,
as a Service does.
"""

import os
import signal
import socket
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from urllib.request import urlopen

import yaml

from e2e.api import Api, until
from e2e.control_plane import ControlPlane, extenders, free_ports
from e2e.egress import HOST, copy_both_ways

NAMESPACE = "alignup"  #: of the Lease, the webhook and its Secret
LABEL = "alignup.dev/gate"
METRIC = "alignup_prediction_total"
RECORD = "ALIGNUP_RECORD"  #: a directory: each process records its decisions in a directory of its own there
_WEBHOOK = Path(__file__).parents[1] / "deploy" / "kubernetes" / "gate" / "webhook.yaml"
_WEBHOOKS = "/apis/admissionregistration.k8s.io/v1/mutatingwebhookconfigurations"
_SERVICES = f"/api/v1/namespaces/{NAMESPACE}/services"
_ENDPOINT_SLICES = f"/apis/discovery.k8s.io/v1/namespaces/{NAMESPACE}/endpointslices"
_DEFAULT = "/api/v1/namespaces/default"


@dataclass
class Replica:
    """One process of ``alignup schedule``."""

    port: int
    webhook: int  #: its port, if it serves one
    process: subprocess.Popen[bytes]

    def get(self, path: str) -> str:
        """Return the answer to an HTTP request."""
        with urlopen(f"http://127.0.0.1:{self.port}{path}", timeout=10) as answer:
            content: bytes = answer.read()
        return content.decode()

    def is_ready(self) -> bool:
        """Return whether it leads, and knows the cluster."""
        with suppress(OSError):
            return bool(self.get("/readyz"))
        return False

    def predictions(self) -> Counter[str]:
        """Return the metric of predictions: labels → count."""
        lines = self.get("/metrics").splitlines()
        shown = (line.removeprefix(METRIC).rpartition(" ") for line in lines if line.startswith(f"{METRIC}{{"))
        return Counter({labels: round(float(count)) for labels, _, count in shown if float(count)})


@dataclass
class ScheduleReplicas:
    """All processes of ``alignup schedule`` of a cluster."""

    plane: ControlPlane
    leader_election: bool
    gate: bool = False
    webhook: bool = True  #: of the gate
    options: tuple[str, ...] = ()  #: more of them
    program: tuple[str, ...] = ("-m", "alignup")  #: what Python runs
    access: Path | None = None  #: a kubeconfig; ``None``: that of the administrator
    running: list[Replica] = field(default_factory=list)
    _before: Counter[str] = field(default_factory=Counter)  #: predictions of those that were killed

    def start(self, port: int = 0) -> None:
        """Start one more on *port* (0: any), without waiting."""
        free, webhook = free_ports(2)
        port = port or free
        access = self.access or self.plane.kubeconfig(self.plane.directory / "alignup-schedule.kubeconfig")
        words = ["--kubeconfig", os.fspath(access), "--listen", f"127.0.0.1:{port}", "--lease-namespace", NAMESPACE]
        words += self.options
        if directory := os.environ.get(RECORD):
            Path(directory).mkdir(parents=True, exist_ok=True)
            words += ["--record", os.fspath(Path(directory) / f"{self.plane.directory.name}-{port}")]
        words += [] if self.leader_election else ["--no-leader-elect"]
        words += ["--gate"] if self.gate else []
        words += ["--webhook-listen", f"127.0.0.1:{webhook}"] if self.gate and self.webhook else []
        with (self.plane.directory / "alignup-schedule.log").open("ab") as log:
            command = [sys.executable, *self.program, "schedule", *words]
            self.running.append(Replica(port, webhook, subprocess.Popen(command, stdout=log, stderr=log)))

    def replace_ended(self) -> None:
        """Start others for processes that have ended because another one had taken their port meanwhile."""
        for replica in [replica for replica in self.running if replica.process.poll() is not None]:
            log = self.plane.log("alignup-schedule", 1000)
            if "Address already in use" not in log:
                raise AssertionError(f"a replica has ended:\n{log}")
            self.running.remove(replica)
            self.start()

    def leader(self) -> Replica | None:
        return next((replica for replica in self.running if replica.is_ready()), None)

    def wait_leader(self) -> Replica:
        return until(
            "a replica of alignup schedule is ready", self.leader, detail=lambda: self.plane.log("alignup-schedule")
        )

    def kill_leader(self) -> None:
        """Kill the leader as a crash would; a standby has to take over."""
        leader = self.wait_leader()
        self._before += leader.predictions()
        self.kill(leader)

    def kill(self, replica: Replica) -> None:
        """Kill a replica at once; its predictions are not counted."""
        self.running.remove(replica)
        _end(replica, signal.SIGKILL)

    def predictions(self) -> Counter[str]:
        """Return predictions by verdict, outcome and cause, over all processes."""
        return sum((replica.predictions() for replica in self.running), Counter(self._before))

    def close(self) -> None:
        for replica in self.running:
            _end(replica, signal.SIGTERM)
        self.running.clear()


def _end(replica: Replica, number: signal.Signals) -> None:
    replica.process.send_signal(number)
    replica.process.wait()


@contextmanager
def _started(replicas: ScheduleReplicas, count: int) -> Iterator[Replica]:
    """Start *count* processes, yield the one that leads, and end all of them."""
    try:
        for _ in range(count):
            replicas.start()
        yield replicas.wait_leader()
    finally:
        replicas.close()


@contextmanager
def extender_replicas(plane: ControlPlane, *, count: int, options: tuple[str, ...] = ()) -> Iterator[ScheduleReplicas]:
    """Run *count* processes with *options*, and a kube-scheduler that asks the one that leads."""
    replicas = ScheduleReplicas(plane, leader_election=count > 1, options=options)
    with ExitStack() as stack:
        port = stack.enter_context(_started(replicas, count)).port
        if count > 1:
            port = stack.enter_context(forwarder(lambda: leader.port if (leader := replicas.leader()) else None))
        plane.start_scheduler({"percentageOfNodesToScore": 100, **extenders(port)})
        yield replicas


@contextmanager
def gate_controllers(
    plane: ControlPlane, *, count: int, options: tuple[str, ...] = (), access: Path | None = None
) -> Iterator[ScheduleReplicas]:
    """Run *count* gate controllers without webhook: pods have the gate from their manifests.

    *access* is a kubeconfig; ``None``: that of the administrator.
    """
    replicas = ScheduleReplicas(
        plane, leader_election=count > 1, gate=True, webhook=False, options=options, access=access
    )
    with _started(replicas, count):
        plane.start_scheduler()
        yield replicas


@contextmanager
def gate_replicas(
    plane: ControlPlane, api: Api, *, count: int, options: tuple[str, ...] = ()
) -> Iterator[ScheduleReplicas]:
    """Run *count* gate controllers with *options* and their webhook; all new pods get the gate.

    The scheduler is unmodified. The endpoint of the webhook's Service is this machine.
    """
    replicas = ScheduleReplicas(plane, leader_election=count > 1, gate=True, options=options)
    with ExitStack() as stack:
        port = stack.enter_context(forwarder(lambda: next((replica.webhook for replica in replicas.running), None)))
        _install_webhook(api, port)
        stack.callback(_remove_webhook, api)
        _install_certificates(plane)
        stack.enter_context(_started(replicas, count))
        _label_namespace(api, "enabled")
        stack.callback(_label_namespace, api, None)
        plane.start_scheduler()
        yield replicas


def _install_webhook(api: Api, port: int) -> None:
    """Create the deployed configuration; the endpoint of its Service is *port* of this machine."""
    service, configuration = yaml.safe_load_all(_WEBHOOK.read_text("utf-8"))
    del service["spec"]["selector"]
    name = service["metadata"]["name"]
    slice_ = {
        "metadata": {"name": name, "labels": {"kubernetes.io/service-name": name}},
        "addressType": "IPv4",
        "ports": [{"name": service["spec"]["ports"][0]["name"], "port": port}],
        "endpoints": [{"addresses": [HOST]}],
    }
    for webhook in configuration["webhooks"]:
        webhook.update(failurePolicy="Fail", timeoutSeconds=30)  # no pod comes without the gate
    api.request("POST", _SERVICES, service)
    api.request("POST", _ENDPOINT_SLICES, slice_)
    api.request("POST", _WEBHOOKS, configuration)


def _install_certificates(plane: ControlPlane) -> None:
    """Do what the Job of the installation does."""
    access = plane.kubeconfig(plane.directory / "webhook-certificates.kubeconfig")
    words = ["webhook-certificates", "--kubeconfig", os.fspath(access), "--namespace", NAMESPACE]
    subprocess.run([sys.executable, "-m", "alignup", *words], check=True)


def _remove_webhook(api: Api) -> None:
    api.request("DELETE", f"{_WEBHOOKS}/alignup-gate")
    api.request("DELETE", f"{_SERVICES}/alignup-webhook")
    api.request("DELETE", f"{_ENDPOINT_SLICES}/alignup-webhook")


def _label_namespace(api: Api, value: str | None) -> None:
    """Let pods of the namespace opt in, or no longer."""
    patch = {"metadata": {"labels": {LABEL: value}}}
    api.merge(_DEFAULT, patch)


@contextmanager
def forwarder(choose: Callable[[], int | None]) -> Iterator[int]:
    """Forward each connection to the port that *choose* returns for it; yield the port of the forwarder."""
    with closing(socket.create_server(("127.0.0.1", 0))) as listener:

        def accept() -> None:
            while True:
                try:
                    client, _ = listener.accept()
                except OSError:
                    return  # closed
                threading.Thread(target=_forward, args=(client, choose), daemon=True).start()

        threading.Thread(target=accept, daemon=True).start()
        port: int = listener.getsockname()[1]
        yield port


def _forward(client: socket.socket, choose: Callable[[], int | None]) -> None:
    with client:
        port = choose()
        if port is None:
            return
        with suppress(OSError), socket.create_connection(("127.0.0.1", port)) as server:
            copy_both_ways(client, server)
