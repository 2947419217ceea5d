"""A test runtime on its socket."""

import asyncio
import signal
from collections.abc import Iterable
from pathlib import Path
from typing import Self

from alignup.rpc import check_socket_path
from alignup.testing.recording_server import RecordingServer
from alignup.testing.runtime.containers import ContainerOptions, RuntimeContainer, Sandbox
from alignup.testing.runtime.service import RuntimeService
from alignup.wire import cri_pb2 as wire


class Runtime:
    """A container runtime that listens at *socket* while entered; leaving kills its containers.

    *images* are local, *pullable* ones can be pulled (``alignup.testing.runtime.images`` has the format). Containers
    run in *directory*, with *affinity* on the CPUs of their cpuset that this machine has. Further behavior can be set
    on ``service``.
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
        self.service = RuntimeService(ContainerOptions(directory=directory, affinity=affinity))
        self.images = self.service.images
        for text in images:
            self.images.add(text)
        for text in pullable:
            self.images.add(text, pullable=True)

    async def __aenter__(self) -> Self:
        self.service.options.directory.mkdir(parents=True, exist_ok=True)
        await self.serve()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.drop()
        await asyncio.gather(*(self.service.fail(sandbox) for sandbox in self.sandboxes))

    @property
    def sandboxes(self) -> tuple[Sandbox, ...]:
        """All sandboxes, oldest first."""
        return tuple(self.service.sandboxes.values())

    @property
    def containers(self) -> tuple[RuntimeContainer, ...]:
        """All containers, oldest first."""
        return tuple(self.service.containers.values())

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
                await self.service.fail(sandbox)

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
        await self.calls.serve(*(self.calls.service(one, self.service) for one in services))

    async def restart(self) -> None:
        await self.drop()
        await self.serve()
