"""The agent as a process: durable admissions over its socket, startup, and memory."""

import json
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from socket import AF_UNIX, SOCK_STREAM, socket

from bench.harness import Figure, durable_write_time, resident_megabytes, user_environment

MACHINE = "pack:2 numa:4(memory=256GiB) core:16 pu:2"
GPU, GPUS = "example.com/gpu", "8@0,8@1,8@2,8@3,8@4,8@5,8@6,8@7"
HELD, ADMISSIONS, ROUNDS = 200, 100, 8
MANY = 5_000
_CHUNK = 1 << 18
CONFIG = {
    "apiVersion": "kubelet.config.k8s.io/v1beta1",
    "kind": "KubeletConfiguration",
    "topologyManagerPolicy": "single-numa-node",
    "cpuManagerPolicy": "static",
    "reservedSystemCPUs": "0",
    "memoryManagerPolicy": "Static",
    "maxPods": 1000,
    "systemReserved": {"memory": "924Mi"},
    "evictionHard": {"memory.available": "100Mi"},
    "reservedMemory": [{"numaNode": 0, "limits": {"memory": "1Gi"}}],
}


class UnixConnection:
    """HTTP over a unix socket, without a client library that would be measured too."""

    def __init__(self, path: Path) -> None:
        self.socket = socket(AF_UNIX, SOCK_STREAM)
        self.socket.settimeout(30)
        self.socket.connect(str(path))

    def send_json(self, method: str, path: str, document: object = None) -> int:
        """Send a request and return the status of the response."""
        return self.send(request(method, path, document))

    def send(self, data: bytes) -> int:
        self.socket.sendall(data)
        return self.receive()[0]

    def get(self, path: str) -> bytes:
        self.socket.sendall(request("GET", path))
        return self.receive()[1]

    def receive(self) -> tuple[int, bytes]:
        """Return the status and the content of a response, which has a length."""
        data = self.socket.recv(_CHUNK)
        while b"\r\n\r\n" not in data:
            data += self.socket.recv(_CHUNK)
        head, _, content = data.partition(b"\r\n\r\n")
        length = int(head.partition(b"content-length: ")[2].partition(b"\r\n")[0])
        while len(content) < length:
            content += self.socket.recv(_CHUNK)
        return int(data[9:12]), content


def request(method: str, path: str, document: object = None) -> bytes:
    content = b"" if document is None else json.dumps(document).encode()
    head = f"{method} {path} HTTP/1.1\r\nHost: agent\r\n"
    if document is not None:
        head += f"Content-Type: application/json\r\nContent-Length: {len(content)}\r\n"
    return f"{head}\r\n".encode() + content


def figures() -> Iterator[Figure]:
    """Yield the figures of the agent."""
    with tempfile.TemporaryDirectory(prefix="alignup-") as place:
        root = Path(place)
        (root / "kubelet.json").write_text(json.dumps(CONFIG))
        yield Figure(
            "start, until the agent is ready", min(_start(root, f"start-{number}") for number in range(5)), 0.6
        )
        with agent(root, devices=(f"{GPU}={GPUS}",)) as (process, connection):
            idle = resident_megabytes(process.pid)
            fill(connection, HELD)
            admissions(connection, ADMISSIONS)
            rounds = [sorted(admissions(connection, ADMISSIONS)) for _ in range(ROUNDS)]
            p50, p99 = (min(times[ADMISSIONS * part // 100] for times in rounds) for part in (50, 99))
            note = f"one durable write of 4 KiB here: {durable_write_time(root) * 1e3:.2f} ms"
            yield Figure("admission over the socket, 200 pods held, p50", p50, 0.004, note)
            yield Figure("admission over the socket, 200 pods held, p99", p99, 0.015)
        yield Figure(
            "admission with a device plugin, 200 pods held, p50", _with_plugin(root), 0.008, "asked and allocated"
        )
        yield Figure("memory of an agent at rest", idle, 60, unit="MB")
        yield from _with_many_pods(root)


def _with_many_pods(root: Path) -> Iterator[Figure]:
    (root / "kubelet.json").write_text(json.dumps({**CONFIG, "maxPods": 2 * MANY}))
    with agent(root, name="crowded") as (_, connection):
        fill(connection, MANY, cpu="1m", memory="1Mi")
    least = min(_start(root, "crowded") for _ in range(3))
    yield Figure(f"start with {MANY:,} pods, until the agent is ready", least, 1.5)


def _start(root: Path, name: str) -> float:
    start = time.perf_counter()
    with agent(root, name=name):
        return time.perf_counter() - start


def _with_plugin(root: Path) -> float:
    """Time an admission whose devices a plugin process selects and allocates."""
    directory = root / "plugged" / "device-plugins"
    program = [sys.executable, "-m", "alignup.testing.plugin", "--resource", GPU, "--devices", GPUS]
    options = ["--dir", str(directory), "--preferred", "highest"]
    with (
        agent(root, name="plugged") as (_, connection),
        subprocess.Popen([*program, *options], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as plugin,  # noqa: S603 - our own
    ):
        try:
            assert plugin.stdout is not None
            plugin.stdout.readline()  # the plugin has registered and lists its devices
            time.sleep(0.2)
            fill(connection, HELD)
            admissions(connection, ADMISSIONS)
            rounds = [sorted(admissions(connection, ADMISSIONS)) for _ in range(ROUNDS)]
        finally:
            plugin.kill()
    return min(times[ADMISSIONS // 2] for times in rounds)


@contextmanager
def agent(
    root: Path, *options: str, name: str = "agent", devices: Sequence[str] = ()
) -> Iterator[tuple[subprocess.Popen[bytes], UnixConnection]]:
    """Start an agent; yield its process and a connection to it."""
    command = [sys.executable, "-m", "alignup", "agent", "--machine", MACHINE, "--config", str(root / "kubelet.json")]
    for declared in devices:
        command += ["--devices", declared]
    command += ["--root-dir", str(root / name), *options]
    with (root / "log").open("wb") as log, subprocess.Popen(command, stderr=log, env=user_environment()) as process:  # noqa: S603
        try:
            yield process, _ready(process, root / name / "agent.sock")
        finally:
            process.send_signal(signal.SIGTERM)
            process.wait(30)


def _ready(process: subprocess.Popen[bytes], path: Path) -> UnixConnection:
    end = time.monotonic() + 30
    while time.monotonic() < end and process.poll() is None:
        try:
            connection = UnixConnection(path)
            if connection.send_json("GET", "/readyz") == 200:
                return connection
        except OSError:
            time.sleep(0.005)
    raise TimeoutError("the agent is not ready after 30 seconds")


def fill(connection: UnixConnection, count: int, *, cpu: str = "1", memory: str = "64Mi") -> None:
    for number in range(count):
        status = connection.send_json("POST", "/v1/pods", pod(f"held-{number}", cpu=cpu, memory=memory))
        assert status == 201, status


def admissions(connection: UnixConnection, rounds: int) -> Sequence[float]:
    """Return the seconds of each admission; the pod is released in between."""
    times = []
    for number in range(rounds):
        data = request("POST", "/v1/pods", pod(f"new-{number}", cpu="2", memory="1Gi", gpu="1"))
        start = time.perf_counter()
        status = connection.send(data)
        times.append(time.perf_counter() - start)
        assert status == 201, status
        assert connection.send_json("DELETE", f"/v1/pods/new-{number}") == 200
    return times


def pod(name: str, *, cpu: str, memory: str, gpu: str = "") -> dict[str, object]:
    limits = {"cpu": cpu, "memory": memory} | ({"example.com/gpu": gpu} if gpu else {})
    container = {"name": "app", "image": "example.com/app", "resources": {"limits": limits}}
    metadata = {"name": name, "namespace": "default", "uid": name}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": {"containers": [container]}}
