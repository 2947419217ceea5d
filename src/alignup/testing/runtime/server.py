"""A container runtime for tests on its socket: the methods of CRI, with containerd's behavior and error messages."""

import asyncio
import json
import signal
from collections.abc import Iterable
from pathlib import Path
from typing import Self

import grpc

from alignup.kubernetes.plugins.rpc import StatusError, check_socket_path
from alignup.testing.recording_server import RecordingServer
from alignup.testing.runtime.containers import ImageStore, RuntimeContainer, Sandbox, full_name
from alignup.wire import cri_pb2 as wire

NAME, VERSION = "alignup-testing", "1"
NO_NETWORK = "cni plugin not initialized"
DRIVERS = {"systemd": wire.CgroupDriver.SYSTEMD, "cgroupfs": wire.CgroupDriver.CGROUPFS}


class Runtime:
    """A container runtime that listens at *socket* while entered; leaving kills its containers.

    *images* are local, *pullable* ones can be pulled (see ``ImageStore.add``). Containers run in *directory*, with
    *affinity* on the CPUs of their cpuset that this machine has.
    """

    def __init__(
        self,
        socket: Path,
        *,
        directory: Path,
        images: Iterable[str] = (),
        pullable: Iterable[str] = (),
        affinity: bool = False,
    ) -> None:
        self.socket = socket
        self.calls = RecordingServer(socket)
        self.inject, self.requests, self.wait_called = self.calls.inject, self.calls.requests, self.calls.wait_called
        self.directory = directory
        self.affinity = affinity
        self.ready = True
        self.network = True  #: whether pods can have their own network
        self.cgroup_driver = ""  #: ``systemd`` or ``cgroupfs``; empty: not reported, as by containerd 1.6
        self.sandboxes_by_id: dict[str, Sandbox] = {}  #: oldest first
        self.containers_by_id: dict[str, RuntimeContainer] = {}  #: oldest first
        self.images = ImageStore()
        for text, remote in (*((one, False) for one in images), *((one, True) for one in pullable)):
            self.images.add(text, pullable=remote)

    async def __aenter__(self) -> Self:
        self.directory.mkdir(parents=True, exist_ok=True)
        await self.serve()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.drop()
        await asyncio.gather(*map(self.fail, self.sandboxes))

    @property
    def sandboxes(self) -> tuple[Sandbox, ...]:
        return tuple(self.sandboxes_by_id.values())

    @property
    def containers(self) -> tuple[RuntimeContainer, ...]:
        return tuple(self.containers_by_id.values())

    def container(self, name: str) -> RuntimeContainer:
        """Return the newest container of that name; raise ``KeyError`` if there is none."""
        for container in reversed(self.containers):
            if container.config.metadata.name == name:
                return container
        raise KeyError(name)

    async def fail_sandboxes(self, pod: str) -> None:
        """End the sandboxes of the pods of that name, with all their containers."""
        for sandbox in self.sandboxes:
            if sandbox.config.metadata.name == pod:
                await self.fail(sandbox)

    def kill(self, name: str, number: signal.Signals = signal.SIGKILL, *, reason: str = "") -> None:
        """Send a signal to the newest container of that name; *reason*, such as ``OOMKilled``, is then reported.

        Raises ``KeyError`` if there is no such container.
        """
        container = self.container(name)
        if container.process:
            container.exit_reason = reason
            container.process.signal(number)

    async def drop(self) -> None:
        """Stop listening and break every connection; containers keep running."""
        await self.calls.stop()

    async def serve(self) -> None:
        """Listen, possibly again, with the state from before; raise ``ListenError`` if another server listens."""
        check_socket_path(self.socket)
        services = wire.DESCRIPTOR.services_by_name.values()
        await self.calls.serve(*(self.calls.service(one, self) for one in services))

    async def restart(self) -> None:
        await self.drop()
        await self.serve()

    async def fail(self, sandbox: Sandbox) -> None:
        await asyncio.gather(*(one.stop(0) for one in self._in(sandbox)))
        sandbox.ready = False

    async def version(self, _: wire.VersionRequest) -> wire.VersionResponse:
        return wire.VersionResponse(
            version="0.1.0", runtime_name=NAME, runtime_version=VERSION, runtime_api_version="v1"
        )

    async def status(self, request: wire.StatusRequest) -> wire.StatusResponse:
        network = wire.RuntimeCondition(type="NetworkReady", status=self.network)
        if not self.network:
            network.reason = "NetworkPluginNotReady"
            network.message = f"Network plugin returns error: {NO_NETWORK}"
        conditions = [wire.RuntimeCondition(type="RuntimeReady", status=self.ready), network]
        runc = {"options": {"SystemdCgroup": self.cgroup_driver == "systemd"}}
        config = {"containerd": {"defaultRuntimeName": "runc", "runtimes": {"runc": runc}}}
        return wire.StatusResponse(
            status=wire.RuntimeStatus(conditions=conditions),
            info={"config": json.dumps(config)} if request.verbose else {},
        )

    async def runtime_config(self, _: wire.RuntimeConfigRequest) -> wire.RuntimeConfigResponse:
        if not self.cgroup_driver:
            what = "unknown method RuntimeConfig for service runtime.v1.RuntimeService"
            raise StatusError(what, code=grpc.StatusCode.UNIMPLEMENTED)
        driver = DRIVERS[self.cgroup_driver]
        return wire.RuntimeConfigResponse(linux=wire.LinuxRuntimeConfiguration(cgroup_driver=driver))

    async def run_pod_sandbox(self, request: wire.RunPodSandboxRequest) -> wire.RunPodSandboxResponse:
        sandbox = Sandbox(request.config, request.runtime_handler)
        _check_name("sandbox", sandbox, self.sandboxes)
        sandbox.has_network = not sandbox.on_host_network
        self.sandboxes_by_id[sandbox.id] = sandbox
        if sandbox.has_network and not self.network:
            # The sandbox and its name remain: without a network, containerd cannot tear down what it set up, either.
            sandbox.ready = False
            raise StatusError(f'failed to setup network for sandbox "{sandbox.id}": {NO_NETWORK}')
        return wire.RunPodSandboxResponse(pod_sandbox_id=sandbox.id)

    async def stop_pod_sandbox(self, request: wire.StopPodSandboxRequest) -> None:
        await self._stop(self._sandbox(request.pod_sandbox_id))

    async def remove_pod_sandbox(self, request: wire.RemovePodSandboxRequest) -> None:
        if sandbox := self.sandboxes_by_id.get(request.pod_sandbox_id):
            try:
                await self._stop(sandbox)
            except StatusError as error:
                raise StatusError(f'failed to forcibly stop sandbox "{sandbox.id}": {error}') from error
            for container in self._in(sandbox):
                self.containers_by_id.pop(container.id, None)
            self.sandboxes_by_id.pop(sandbox.id, None)

    async def pod_sandbox_status(self, request: wire.PodSandboxStatusRequest) -> wire.PodSandboxStatusResponse:
        info = {"info": json.dumps({"pid": 0})} if request.verbose else {}
        return wire.PodSandboxStatusResponse(status=self._sandbox(request.pod_sandbox_id).status(), info=info)

    async def list_pod_sandbox(self, request: wire.ListPodSandboxRequest) -> wire.ListPodSandboxResponse:
        found = (one.summary() for one in self.sandboxes if _matches(one, request.filter))
        return wire.ListPodSandboxResponse(items=found)

    async def create_container(self, request: wire.CreateContainerRequest) -> wire.CreateContainerResponse:
        sandbox = self.sandboxes_by_id.get(request.pod_sandbox_id)
        if not sandbox:
            raise _not_found(f'failed to find sandbox id "{request.pod_sandbox_id}": not found')
        if not sandbox.ready:
            what = "failed to get sandbox container task: no running task found"
            raise _not_found(f"{what}: task {sandbox.id} not found: not found")
        image = self.images.find(request.config.image.image)
        if not image:
            raise _not_found(f'failed to resolve image "{request.config.image.image}": not found')
        container = RuntimeContainer(sandbox, request.config, image, self.directory, affinity=self.affinity)
        _check_name("container", container, self.containers)
        if not container.command:
            raise StatusError(f'failed to generate container "{container.id}" spec: no command specified')
        self.containers_by_id[container.id] = container
        return wire.CreateContainerResponse(container_id=container.id)

    async def start_container(self, request: wire.StartContainerRequest) -> None:
        self._container(request.container_id).start()

    async def stop_container(self, request: wire.StopContainerRequest) -> None:
        await self._container(request.container_id).stop(request.timeout)

    async def remove_container(self, request: wire.RemoveContainerRequest) -> None:
        if container := self.containers_by_id.get(request.container_id):
            await container.stop(0)
            self.containers_by_id.pop(container.id, None)

    async def list_containers(self, request: wire.ListContainersRequest) -> wire.ListContainersResponse:
        inside = request.filter.pod_sandbox_id
        wanted = (one for one in self.containers if inside in {"", one.sandbox.id})
        found = (one.summary() for one in wanted if _matches(one, request.filter))
        return wire.ListContainersResponse(containers=found)

    async def container_status(self, request: wire.ContainerStatusRequest) -> wire.ContainerStatusResponse:
        container = self._container(request.container_id)
        details = {"sandboxID": container.sandbox.id, "pid": container.pid}
        info = {"info": json.dumps(details)} if request.verbose else {}
        return wire.ContainerStatusResponse(status=container.status(), info=info)

    async def update_container_resources(self, request: wire.UpdateContainerResourcesRequest) -> None:
        self._container(request.container_id).update(request.linux)

    async def reopen_container_log(self, request: wire.ReopenContainerLogRequest) -> None:
        self._container(request.container_id).reopen_log()

    async def image_status(self, request: wire.ImageStatusRequest) -> wire.ImageStatusResponse:
        image = self.images.find(request.image.image)
        return wire.ImageStatusResponse(image=image.to_message() if image else None)

    async def pull_image(self, request: wire.PullImageRequest) -> wire.PullImageResponse:
        image = self.images.pull(request.image.image)
        if image is None:
            name = full_name(request.image.image)
            what = f'failed to pull and unpack image "{name}": failed to resolve reference "{name}"'
            raise _not_found(f"{what}: {name}: not found")
        return wire.PullImageResponse(image_ref=image.id)

    async def exec_sync(self, request: wire.ExecSyncRequest) -> wire.ExecSyncResponse:
        return await self._container(request.container_id).execute(tuple(request.cmd), seconds=request.timeout)

    async def _stop(self, sandbox: Sandbox) -> None:
        await self.fail(sandbox)
        if sandbox.has_network and not self.network:
            raise StatusError(f'failed to destroy network for sandbox "{sandbox.id}": {NO_NETWORK}')
        sandbox.has_network = False

    def _in(self, sandbox: Sandbox) -> list[RuntimeContainer]:
        return [one for one in self.containers if one.sandbox is sandbox]

    def _sandbox(self, id_: str) -> Sandbox:
        if id_ not in self.sandboxes_by_id:
            raise _not_found("an error occurred when try to find sandbox: not found")
        return self.sandboxes_by_id[id_]

    def _container(self, id_: str) -> RuntimeContainer:
        if id_ not in self.containers_by_id:
            raise _not_found(f'an error occurred when try to find container "{id_}": not found')
        return self.containers_by_id[id_]


def _matches(one: Sandbox | RuntimeContainer, wanted: wire.PodSandboxFilter | wire.ContainerFilter) -> bool:
    return (
        wanted.id in {"", one.id}
        and (not wanted.HasField("state") or wanted.state.state == one.state)
        and all(one.config.labels.get(key) == value for key, value in wanted.label_selector.items())
    )


def _check_name(kind: str, new: Sandbox | RuntimeContainer, existing: Iterable[Sandbox | RuntimeContainer]) -> None:
    for other in existing:
        if other.name == new.name:
            what = f'failed to reserve {kind} name "{new.name}": name "{new.name}" is reserved for "{other.id}"'
            raise StatusError(what)


def _not_found(text: str) -> StatusError:
    return StatusError(text, code=grpc.StatusCode.NOT_FOUND)
