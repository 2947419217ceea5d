"""Pods and containers in a container runtime, as a kubelet creates them: calls of its CRI socket."""

import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from typing import Any

import grpc
from grpc_tools import protoc  # type: ignore[import-untyped]

from e2e.containerd import BUSYBOX

_SERVICE = "/runtime.v1.RuntimeService/"
_HOST_NETWORK = 2


class CriClient:
    """A client of the runtime at *socket*; its containers are in the host's network, and sleep."""

    def __init__(self, channel: grpc.Channel, wire: Any) -> None:  # noqa: ANN401 - generated
        self._channel, self._wire = channel, wire
        self._configs: dict[str, Any] = {}  #: by sandbox

    def _call(self, method: str, request: Any, response: str = "Empty") -> Any:  # noqa: ANN401 - generated
        call = self._channel.unary_unary(
            f"{_SERVICE}{method}",
            request_serializer=type(request).SerializeToString,
            response_deserializer=getattr(self._wire, response).FromString,
        )
        return call(request, timeout=120)

    def run_sandbox(self, name: str, uid: str) -> str:
        wire = self._wire
        options = wire.NamespaceOption(network=_HOST_NETWORK)
        linux = wire.LinuxPodSandboxConfig(security_context=wire.LinuxSandboxSecurityContext(namespace_options=options))
        metadata = wire.PodSandboxMetadata(name=name, uid=uid, namespace="default")
        config = wire.PodSandboxConfig(metadata=metadata, linux=linux)
        sandbox: str = self._call("RunPodSandbox", wire.RunPodSandboxRequest(config=config), "SandboxId").pod_sandbox_id
        self._configs[sandbox] = config
        return sandbox

    def create_container(self, sandbox: str, name: str, **resources: object) -> str:
        """Create a container with these fields of ``LinuxContainerResources``; return its id."""
        wire = self._wire
        config = wire.ContainerConfig(
            metadata=wire.ContainerMetadata(name=name),
            image=wire.ImageSpec(image=BUSYBOX),
            linux=wire.LinuxContainerConfig(resources=wire.LinuxContainerResources(**resources)),
        )
        request = wire.CreateContainerRequest(
            pod_sandbox_id=sandbox, config=config, sandbox_config=self._configs[sandbox]
        )
        container: str = self._call("CreateContainer", request, "ContainerId").container_id
        return container

    def start_container(self, container: str) -> None:
        self._call("StartContainer", self._wire.ContainerId(container_id=container))

    def run_container(self, sandbox: str, name: str, **resources: object) -> str:
        container = self.create_container(sandbox, name, **resources)
        self.start_container(container)
        return container

    def update_container(self, container: str, **resources: object) -> None:
        linux = self._wire.LinuxContainerResources(**resources)
        request = self._wire.UpdateContainerResourcesRequest(container_id=container, linux=linux)
        self._call("UpdateContainerResources", request)

    def stop_container(self, container: str) -> None:
        self._call("StopContainer", self._wire.ContainerId(container_id=container))

    def remove_sandbox(self, sandbox: str) -> None:
        for method in ("StopPodSandbox", "RemovePodSandbox"):
            self._call(method, self._wire.SandboxId(pod_sandbox_id=sandbox))
        del self._configs[sandbox]

    def remove_all(self) -> None:
        """Remove every sandbox that this client has created."""
        for sandbox in list(self._configs):
            self.remove_sandbox(sandbox)

    def execute(self, container: str, *words: str) -> str:
        """Run a command in *container*; return its output."""
        request = self._wire.ExecSyncRequest(container_id=container, cmd=words)
        text: str = self._call("ExecSync", request, "ExecSyncResponse").stdout.decode()
        return text

    def allowed(self, container: str) -> tuple[str, str]:
        """Return the CPUs and the memory nodes that the processes of *container* may use, as the kernel says."""
        lines = self.execute(container, "cat", "/proc/self/status").splitlines()
        fields = dict(line.split(":", 1) for line in lines)
        return fields["Cpus_allowed_list"].strip(), fields["Mems_allowed_list"].strip()


@contextmanager
def cri_client(socket: Path) -> Iterator[CriClient]:
    with tempfile.TemporaryDirectory() as place, grpc.insecure_channel(f"unix:{socket}") as channel:
        source = Path(__file__).with_name("cri.proto")
        if protoc.main(["protoc", f"-I{source.parent}", f"--python_out={place}", str(source)]):
            raise RuntimeError(f"cannot compile {source}")
        sys.path.insert(0, place)
        try:
            wire = import_module("cri_pb2")
        finally:
            sys.path.remove(place)
        yield CriClient(channel, wire)
