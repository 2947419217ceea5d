"""An agent and a container runtime as processes that can be killed.

Containers leave marks on disk: each instance records its start, and whether the previous instance was still alive.
"""

import os
import signal
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

import grpc

from alignup.align import bits
from alignup.kubernetes.plugins.rpc import address
from alignup.wire import cri_pb2 as wire
from tests.agent import agents
from tests.agent.agent_process import serve_pods, serve_runtime
from tests.agent.agents import Agent, Document
from tests.agent.pods.files.mounting import names_in
from tests.agent.pods.harness import IMAGE
from tests.deadlines import wait_for
from tests.forked_processes import forked

RUNNING = wire.ContainerState.CONTAINER_RUNNING

_MARK = """\
if p=$(cat {mark}.pid 2>/dev/null) && kill -0 "$p" 2>/dev/null; then echo {mark} >> twice; fi
echo $$ > {mark}.pid
echo ran >> {mark}.ran
"""


@dataclass
class Rig:
    """A running container runtime, and directories for an agent."""

    directory: Path
    process: BaseProcess
    agents: list[Agent] = field(default_factory=list)  #: all that were started

    @property
    def root(self) -> Path:
        return self.directory / "root"

    @property
    def boxes(self) -> Path:
        """The working directory of containers."""
        return self.directory / "boxes"

    @property
    def manifests(self) -> Path:
        return self.directory / "manifests"

    def agent(self, *, largest: int | None = None) -> Agent:
        """Start an agent on the runtime; *largest* limits the size of its files."""
        started = agents.start_with([str(self.directory)], self.root, largest=largest, serve=serve_pods)
        self.agents.append(started)
        return started

    def stall(self) -> None:
        """Suspend the runtime; containers keep running."""
        self._send(signal.SIGSTOP)

    def resume(self) -> None:
        self._send(signal.SIGCONT)

    def _send(self, number: signal.Signals) -> None:
        assert self.process.pid is not None
        os.kill(self.process.pid, number)

    def ran(self, uid: str, container: str) -> int:
        """How many times a container was started."""
        try:
            return len((self.boxes / f"{uid}-{container}.ran").read_text().splitlines())
        except FileNotFoundError:
            return 0

    def twice(self) -> list[str]:
        """Containers with two live instances at the same time."""
        try:
            return (self.boxes / "twice").read_text().split()
        except FileNotFoundError:
            return []

    def sandboxes(self) -> Counter[str]:
        """The number of sandboxes by pod uid."""
        response = self._call("ListPodSandbox", wire.ListPodSandboxRequest(), wire.ListPodSandboxResponse)
        return Counter(one.metadata.uid for one in response.items)

    def running(self) -> dict[tuple[str, str], list[int]]:
        """The CPUs of the running instances of each container."""
        found: dict[tuple[str, str], list[int]] = {}
        listed = self._call("ListContainers", wire.ListContainersRequest(), wire.ListContainersResponse)
        for one in listed.containers:
            if one.state != RUNNING:
                continue
            request = wire.ContainerStatusRequest(container_id=one.id)
            status = self._call("ContainerStatus", request, wire.ContainerStatusResponse).status
            name = one.labels["io.kubernetes.pod.uid"], one.metadata.name
            found.setdefault(name, []).append(bits.parse(status.resources.linux.cpuset_cpus))
        return found

    def left(self) -> list[str]:
        """Files of pods on disk."""
        places = (self.root / "pods", self.root / "logs")
        return sorted(name for place in places if place.exists() for name in names_in(place))

    def _call(self, method: str, request: Any, response: Any) -> Any:
        with grpc.insecure_channel(address(self.directory / "cri.sock")) as line:
            call = line.unary_unary(
                f"/runtime.v1.RuntimeService/{method}",
                request_serializer=type(request).SerializeToString,
                response_deserializer=response.FromString,
            )
            return call(request, timeout=20, wait_for_ready=True)


@contextmanager
def rig(directory: Path) -> Iterator[Rig]:
    """Run a container runtime; at the end, it and its agents are killed."""
    made = Rig(directory, _runtime(directory))
    made.manifests.mkdir()
    try:
        yield made
    finally:
        for agent in made.agents:
            if agent.process.is_alive():
                agent.kill()
        made.resume()
        made.process.terminate()
        made.process.join(20)


def container(uid: str, name: str, does: str = "exec sleep 1000", **more: Any) -> Document:
    """A container that leaves its mark and then runs *does*."""
    script = _MARK.format(mark=f"{uid}-{name}") + does
    return {"name": name, "image": IMAGE, "command": ["sh", "-c", script], **more}


def manifest(uid: str, *containers: Mapping[str, Any], **spec: Any) -> Document:
    """A pod with a grace period of one second."""
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": uid, "uid": uid},
        "spec": {"terminationGracePeriodSeconds": 1, "containers": list(containers), **spec},
    }


def server(uid: str, cpus: int = 0, inits: int = 0) -> Document:
    """A pod that runs until it is released, with *inits* init containers, on exclusive or shared CPUs."""
    own: Document = {"resources": {"limits": {"cpu": str(cpus), "memory": "64Mi"}}} if cpus else {}
    begins = [container(uid, f"init{number}", "sleep 0.02", **own) for number in range(inits)]
    return manifest(uid, container(uid, "app", **own), initContainers=begins)


def job(uid: str, does: str = "sleep 0.1") -> Document:
    """A pod that runs once and exits by itself."""
    return manifest(uid, container(uid, "app", does), restartPolicy="Never")


def is_running(entry: Document | None) -> bool:
    """Whether all containers of a pod in the API run, or are completed init containers."""
    run = (entry or {}).get("run") or {}
    return run.get("phase") == "Running" and all(
        one["state"] == ("ended" if one["kind"] == "init" else "running") for one in run["containers"]
    )


def has_finished(entry: Document | None) -> bool:
    """Whether a pod has succeeded."""
    return entry is not None and entry["status"] == "finished" and entry["run"]["phase"] == "Succeeded"


def owned(agent: Agent) -> dict[tuple[str, str], int]:
    """The CPUs that the ledger assigns to each container."""
    return {
        (uid, one["name"]): bits.parse(one["cpus"])
        for uid, entry in agent.pods().items()
        for one in (entry.get("run") or {"containers": ()})["containers"]
        if entry["status"] == "admitted" and one["state"] == "running"
    }


def _runtime(directory: Path) -> BaseProcess:
    socket, output = directory / "cri.sock", directory / "runtime.log"
    given = ["--socket", str(socket), "--dir", str(directory / "boxes"), "--image", IMAGE]
    process = forked(serve_runtime, given, output)
    wait_for(lambda: output.exists() and "listening" in output.read_text(), what=lambda: "the runtime to listen")
    return process
