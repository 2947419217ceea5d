"""A test runtime on its socket."""

import asyncio
import signal
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Self

import grpc
import grpc.aio
from google.protobuf import message_factory

from alignup.rpc import address, check_socket_path
from alignup.testing.call_log import CallLog
from alignup.testing.faults import Fault
from alignup.testing.runtime.containers import ContainerOptions, RuntimeContainer, Sandbox
from alignup.testing.runtime.images import ImageStore
from alignup.testing.runtime.service import RuntimeService
from alignup.wire import cri_pb2 as wire

SERVICES = ("RuntimeService", "ImageService")


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
        self.calls = CallLog()
        self.images = ImageStore(tuple(images), tuple(pullable))
        self.service = RuntimeService(ContainerOptions(directory=directory, affinity=affinity), self.images)
        self._server: grpc.aio.Server | None = None

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

    def requests(self, method: str) -> tuple[Any, ...]:
        """Return the requests to *method*, in order of arrival; ``calls.entries`` has those of all methods."""
        return self.calls.requests(method)

    async def wait_called(self, method: str, times: int = 1) -> None:
        """Return once *method* has been called *times* times."""
        await self.calls.wait_called(method, times)

    def inject(self, method: str, fault: Fault) -> None:
        """Apply *fault* to calls of *method*, ``*`` for all, from now on; ``Fault()`` removes it."""
        self.calls.faults.set(method, fault)

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
        if self._server is not None:
            await self.calls.stop()
            await self._server.stop(grace=0)
            self._server = None
            self.socket.unlink(missing_ok=True)

    async def serve(self) -> None:
        """Listen, possibly again, with the state from before; raise ``ListenError`` if another server listens."""
        check_socket_path(self.socket)
        self.socket.parent.mkdir(mode=0o750, parents=True, exist_ok=True)
        self.socket.unlink(missing_ok=True)
        self.calls.restart()
        self._server = grpc.aio.server(handlers=[self._handler(name) for name in SERVICES])
        self._server.add_insecure_port(address(self.socket))
        await self._server.start()

    async def restart(self) -> None:
        """Break every connection and listen again."""
        await self.drop()
        await self.serve()

    def _handler(self, service: str) -> grpc.GenericRpcHandler:
        descriptor = wire.DESCRIPTOR.services_by_name[service]
        respond = self.service.methods()
        methods = {
            one.name: self.calls.handler(one.name, message_factory.GetMessageClass(one.input_type), respond[one.name])
            for one in descriptor.methods
        }
        return grpc.method_handlers_generic_handler(descriptor.full_name, methods)
