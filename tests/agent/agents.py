"""Agent processes on a small machine, and HTTP clients for them."""

import json
import os
import signal
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

import httpx2

from tests.agent.agent_process import serve_command
from tests.deadlines import wait_for
from tests.forked_processes import forked

#: Two nodes, each with four CPUs, 16 GiB, and two GPUs; CPU 0 is reserved.
MACHINE = "pack:2 numa:1(memory=16GiB) core:4 pu:1"
DEVICES = "example.com/gpu=2@0,2@1"
CONFIG = {
    "apiVersion": "kubelet.config.k8s.io/v1beta1",
    "kind": "KubeletConfiguration",
    "topologyManagerPolicy": "single-numa-node",
    "cpuManagerPolicy": "static",
    "reservedSystemCPUs": "0",
    "memoryManagerPolicy": "Static",
    "systemReserved": {"memory": "924Mi"},
    "evictionHard": {"memory.available": "100Mi"},
    "reservedMemory": [{"numaNode": 0, "limits": {"memory": "1Gi"}}],
}

Document = dict[str, Any]


@dataclass(frozen=True)
class Agent:
    """A running agent."""

    process: BaseProcess
    root: Path
    log_file: Path
    http: httpx2.Client

    def get(self, path: str) -> Document:
        response = self.http.get(path)
        assert response.status_code == 200, response.text
        document: Document = response.json()
        return document

    def pods(self) -> dict[str, Document]:
        """Every pod that is known, by uid."""
        page = self.get("/v1/pods?limit=5000")
        assert page["metadata"]["continue"] is None
        return {pod["uid"]: pod for pod in page["pods"]}

    def admit(self, uid: str, **requests: str) -> httpx2.Response:
        return self.http.post("/v1/pods", json=pod(uid, **requests))

    def release(self, uid: str) -> httpx2.Response:
        return self.http.delete(f"/v1/pods/{uid}")

    def ready(self) -> bool:
        return self.http.get("/readyz").status_code == 200

    def log(self) -> list[Document]:
        """What it has logged so far."""
        return [json.loads(line) for line in self.log_file.read_text().splitlines() if line.startswith("{")]

    def send(self, number: int) -> None:
        assert self.process.pid is not None
        os.kill(self.process.pid, number)

    def kill(self) -> None:
        """End it as a power cut would."""
        self.http.close()
        self.send(signal.SIGKILL)
        self.process.join()

    def stop(self, number: int = signal.SIGTERM) -> int | None:
        """End it as systemd would; its exit code."""
        self.http.close()
        if self.process.is_alive():
            self.send(number)
        self.process.join(60)
        if self.process.exitcode is None:
            self.send(signal.SIGABRT)
            self.process.join()
            raise AssertionError(f"it does not end: {self.log_file.read_text()[-8000:]}")
        return self.process.exitcode


def pod(uid: str, *, namespace: str = "default", **requests: str) -> Document:
    """A Guaranteed pod with one container; default: 1 CPU and 1 GiB. Add other requests like ``gpu="1"``."""
    named = {"example.com/gpu" if key == "gpu" else key: amount for key, amount in requests.items()}
    limits = {"cpu": "1", "memory": "1Gi"} | named
    container = {"name": "app", "image": "example.com/app", "resources": {"limits": limits}}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": uid, "namespace": namespace, "uid": uid},
        "spec": {"containers": [container]},
    }


def arguments(
    root: Path,
    *options: str | Path,
    machine: str = MACHINE,
    devices: str = DEVICES,
    config: Mapping[str, Any] = CONFIG,
) -> list[str]:
    """The arguments of ``alignup`` for an agent with this root directory."""
    file = root.with_name(f"{root.name}.config.json")
    file.write_text(json.dumps(config))
    declared = ["--devices", devices] if devices else []
    fixed = ["--machine", machine, *declared, "--config", str(file), "--root-dir", str(root)]
    return ["agent", *fixed, *map(str, options)]


def start(
    root: Path,
    *options: str | Path,
    machine: str = MACHINE,
    devices: str = DEVICES,
    config: Mapping[str, Any] = CONFIG,
    env: Mapping[str, str] | None = None,
    largest: int | None = None,
) -> Agent:
    """Start an agent in the environment *env*; *largest* limits the size of its files."""
    command = arguments(root, *options, machine=machine, devices=devices, config=config)
    return start_with(command, root, env=env, largest=largest)


def start_with(
    command: Sequence[str],
    root: Path,
    *,
    env: Mapping[str, str] | None = None,
    largest: int | None = None,
    serve: Callable[..., None] = serve_command,
) -> Agent:
    """Start an agent with these arguments."""
    log = root.with_name(f"{root.name}.log")
    log_start = log.stat().st_size if log.exists() else 0
    process = forked(serve, command, log, dict(env or {}), largest)
    http = httpx2.Client(
        transport=httpx2.HTTPTransport(uds=str(root / "agent.sock"), verify=False), base_url="http://agent", timeout=30
    )
    agent = Agent(process, root, log, http)
    wait_for(lambda: _listens(agent, log_start), describe=lambda: f"the agent to listen: {log.read_text()[-2000:]}")
    return agent


@contextmanager
def running(root: Path, *options: str | Path, **how: Any) -> Iterator[Agent]:
    """A running agent that SIGTERM stops at the end."""
    agent = start(root, *options, **how)
    try:
        yield agent
    finally:
        agent.stop()


def run_until_exit(root: Path, *options: str | Path, **how: Any) -> tuple[int | None, str]:
    """Run an agent that ends by itself; return its exit code and its output."""
    log = root.with_name(f"{root.name}.exit.log")
    process = forked(serve_command, arguments(root, *options, **how), log, {}, None)
    process.join(60)
    return process.exitcode, log.read_text()


def _listens(agent: Agent, log_start: int) -> bool:
    """Whether the log says so; connecting in a loop would leave sockets behind."""
    output = agent.log_file.read_bytes()[log_start:] if agent.log_file.exists() else b""
    assert agent.process.is_alive(), f"it ended: {output.decode()}"
    return b'"event": "listening"' in output
