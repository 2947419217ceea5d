"""A node on this machine: an agent that runs pods on a private containerd."""
# ruff: noqa: S101, S603

import json
import os
import socket
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx2

from alignup.align import bits
from e2e import containerd as containerds
from e2e.containerd import BUSYBOX, Containerd

CONFIG = {
    "apiVersion": "kubelet.config.k8s.io/v1beta1",
    "kind": "KubeletConfiguration",
    "cpuManagerPolicy": "static",
    "topologyManagerPolicy": "best-effort",
    "reservedSystemCPUs": "0",
}
OPTIONS = ("--allow", "host-path")
CGROUPS = Path("/sys/fs/cgroup")
SLEEP = "sleep 100000"
TIMEOUT = 120.0  #: seconds

Document = dict[str, Any]


def container(script: str = SLEEP, /, name: str = "app", **more: Any) -> Document:  # noqa: ANN401
    return {"name": name, "image": BUSYBOX, "command": ["sh", "-c", script], **more}


def pod(name: str, *containers: Document, **spec: Any) -> Document:  # noqa: ANN401
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "uid": name},
        "spec": {"terminationGracePeriodSeconds": 1, "containers": list(containers) or [container()], **spec},
    }


def exclusive(cpus: int = 1) -> Document:
    return {"resources": {"limits": {"cpu": str(cpus), "memory": "64Mi"}}}


@dataclass
class Node:
    """An agent and its container runtime."""

    place: Path
    runtime: Containerd
    cgroup_root: str
    process: subprocess.Popen[bytes] | None = None

    @property
    def root(self) -> Path:
        return self.place / "root"

    def start(self, *options: str, config: Document | None = None) -> None:
        """Start the agent and wait until it serves; *config* is added to its configuration."""
        file = self.place / "kubelet.json"
        file.write_text(json.dumps({**CONFIG, **(config or {})}))
        command = [sys.executable, "-m", "alignup", "agent", "--config", str(file), "--root-dir", str(self.root)]
        command += ["--manifest-dir", str(self.place / "manifests")]
        command += ["--cgroup-root", self.cgroup_root]
        command += ["--runtime", "cri", "--runtime-endpoint", self.runtime.endpoint, *options]
        with (self.place / "agent.log").open("ab") as log:
            self.process = subprocess.Popen(command, stderr=log)
        until(self.is_serving, self.log)

    def is_serving(self) -> bool:
        with socket.socket(socket.AF_UNIX) as probe:
            return probe.connect_ex(str(self.root / "agent.sock")) == 0

    def kill(self) -> None:
        assert self.process is not None
        self.process.kill()
        self.process.wait()

    def stop(self) -> None:
        if self.process is not None and self.process.poll() is None:
            self.process.terminate()
            self.process.wait(TIMEOUT)

    def alignup(self, *words: str, check: bool = True) -> subprocess.CompletedProcess[str]:
        environment = {**os.environ, "ALIGNUP_AGENT": f"unix:{self.root / 'agent.sock'}"}
        done = subprocess.run(
            [sys.executable, "-m", "alignup", *words],
            env=environment,
            capture_output=True,
            text=True,
            timeout=TIMEOUT,
            check=False,
        )
        assert not check or done.returncode == 0, (words, done.stdout, done.stderr, self.log())
        return done

    def admit(self, document: Document, *, check: bool = True) -> subprocess.CompletedProcess[str]:
        file = self.place / "pod.json"
        file.write_text(json.dumps(document))
        return self.alignup("admit", "-f", str(file), check=check)

    def put(self, document: Document) -> Path:
        """Write a pod to the manifest directory."""
        file = self.place / "manifests" / f"{document['metadata']['name']}.json"
        aside = file.with_suffix(".new")
        aside.write_text(json.dumps(document))
        aside.rename(file)
        return file

    def pods(self) -> dict[str, Document]:
        """All pods, by name; without the command line, which takes a second to start."""
        with httpx2.Client(transport=httpx2.HTTPTransport(uds=str(self.root / "agent.sock"))) as http:
            found = http.get("http://agent/v1/pods").json()["pods"]
        return {one["name"]: one for one in found}

    def containers(self, name: str) -> dict[str, Document]:
        run = self.pods().get(name, {}).get("run") or {"containers": []}
        return {one["name"]: one for one in run["containers"]}

    def wait_running(self, name: str, one: str = "app") -> Document:
        """Wait until a container runs; return its status."""
        until(lambda: self.containers(name).get(one, {}).get("state") == "running", self.log)
        return self.containers(name)[one]

    def output(self, name: str) -> str:
        """What a container has printed so far; empty before it starts."""
        return self.alignup("logs", name, check=False).stdout

    def log(self) -> str:
        return (self.place / "agent.log").read_text()[-4000:]


def until(condition: Callable[[], object], detail: Callable[[], str] = str) -> None:
    deadline = time.monotonic() + TIMEOUT
    while not condition():
        assert time.monotonic() < deadline, detail()
        time.sleep(0.1)


def cpus_of(pid: int) -> str:
    """The CPUs that the kernel allows a process."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(line.split()[1] for line in lines if line.startswith("Cpus_allowed_list"))


def all_but(cpus: str) -> str:
    return bits.show(bits.of(os.sched_getaffinity(0)) & ~bits.parse(cpus))


def missing() -> str | None:
    """Why a node cannot run here; ``None`` if it can."""
    return containerds.missing() or (None if len(os.sched_getaffinity(0)) > 1 else "needs a machine with two CPUs")


@contextmanager
def node_in(place: Path) -> Iterator[Node]:
    (place / "manifests").mkdir()
    with ExitStack() as stack:
        root = f"alignup-e2e-{uuid.uuid4().hex[:8]}"
        stack.callback(remove_cgroups, root)
        made = Node(place, stack.enter_context(containerds.containerd(place / "c")), root)
        stack.callback(made.stop)
        made.start(*OPTIONS)
        yield made


def remove_cgroups(root: str) -> None:
    """Remove the cgroups that an agent leaves, in every hierarchy."""
    for hierarchy in (CGROUPS, *CGROUPS.iterdir()):
        for directory, _, _ in os.walk(hierarchy / root, topdown=False):
            os.rmdir(directory)  # noqa: PTH106
