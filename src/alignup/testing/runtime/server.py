"""A runtime for tests on its socket."""

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
    """A container runtime that listens at *socket* as long as it is entered; then all its containers are killed.

    It has *images*, and can fetch those that are *pullable* (``alignup.testing.runtime.images`` says how they are
    written). Containers run in *directory*, and with *affinity* on the CPUs they were given, where this machine has
    such. More about what it says of itself can be set in ``service``.
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
        self.service.place.directory.mkdir(parents=True, exist_ok=True)
        await self.serve()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.drop()
        await asyncio.gather(*(self.service.lose(sandbox) for sandbox in self.sandboxes))

    @property
    def sandboxes(self) -> tuple[Sandbox, ...]:
        """All there are, in the order they were made."""
        return tuple(self.service.sandboxes.values())

    @property
    def containers(self) -> tuple[RuntimeContainer, ...]:
        """All there are, in the order they were made."""
        return tuple(self.service.containers.values())

    def container(self, name: str) -> RuntimeContainer:
        """The last one that was made under this name; ``KeyError`` where there is none."""
        for container in reversed(self.containers):
            if container.config.metadata.name == name:
                return container
        raise KeyError(name)

    def asked(self, method: str) -> tuple[Any, ...]:
        """The requests of one kind, in the order they came; ``calls.came`` are all of them."""
        return self.calls.of(method)

    async def called(self, method: str, times: int = 1) -> None:
        """Return when *method* was called so many times."""
        await self.calls.until(method, times)

    def misbehave(self, method: str, fault: Fault) -> None:
        """Spoil the answers to *method*, or with ``*`` to all, from now on; a plain ``Fault()`` ends that."""
        self.calls.faults.set(method, fault)

    async def lose(self, pod: str) -> None:
        """Have the sandboxes of a pod of this name end by themselves, with all that runs in them."""
        for sandbox in self.sandboxes:
            if sandbox.config.metadata.name == pod:
                await self.service.lose(sandbox)

    def kill(self, name: str, number: signal.Signals = signal.SIGKILL, *, reason: str = "") -> None:
        """Send a signal to the last container of this name, as an operator might, or for a *reason* the kernel.

        ``OOMKilled`` is one. ``KeyError`` where there is no such container.
        """
        container = self.container(name)
        if container.process:
            container.fate = reason
            container.process.signal(number)

    async def drop(self) -> None:
        """Listen no more, and end every connection; what runs goes on."""
        if self._server is not None:
            await self.calls.end()
            await self._server.stop(grace=0)
            self._server = None
            self.socket.unlink(missing_ok=True)

    async def serve(self) -> None:
        """Listen, again if need be, and know all that was there before; ``ListenError`` where somebody else does."""
        check_socket_path(self.socket)
        self.socket.parent.mkdir(mode=0o750, parents=True, exist_ok=True)
        self.socket.unlink(missing_ok=True)
        self.calls.again()
        self._server = grpc.aio.server(handlers=[self._handler(name) for name in SERVICES])
        self._server.add_insecure_port(address(self.socket))
        await self._server.start()

    async def restart(self) -> None:
        """End every connection and listen again."""
        await self.drop()
        await self.serve()

    def _handler(self, service: str) -> grpc.GenericRpcHandler:
        described = wire.DESCRIPTOR.services_by_name[service]
        respond = self.service.methods()
        methods = {
            one.name: self.calls.answered(one.name, message_factory.GetMessageClass(one.input_type), respond[one.name])
            for one in described.methods
        }
        return grpc.method_handlers_generic_handler(described.full_name, methods)
