"""A CRI server with fixed responses that records its requests."""

from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
from google.protobuf.message import Message

from alignup.kubernetes.plugins import rpc
from alignup.wire import cri_pb2 as wire

V1 = ("runtime.v1.RuntimeService", "runtime.v1.ImageService")

#: Method → a message, an error, or a function of the request.
Responses = Mapping[str, Message | Exception | Callable[[Message], Any]]


def status_error(code: str, details: str) -> Exception:
    return rpc.StatusError(details, code=grpc.StatusCode[code])


@dataclass
class _Handler(grpc.GenericRpcHandler):
    responses: Responses
    services: tuple[str, ...] = V1
    requests: list[Message] = field(default_factory=list)

    def service(self, handler_call_details: grpc.HandlerCallDetails) -> Any:
        _, service, method = handler_call_details.method.split("/")
        if service not in self.services or method not in self.responses:
            return None

        async def respond(request: Message) -> Message | bytes:
            self.requests.append(request)
            response = self.responses[method]
            if isinstance(response, Exception):
                raise response
            return response if isinstance(response, Message) else await response(request)

        return rpc.unary_handler(getattr(wire, f"{method}Request"), respond)


@asynccontextmanager
async def scripted_runtime(
    path: Path, responses: Responses, *, services: tuple[str, ...] = V1
) -> AsyncIterator[list[Message]]:
    """Serve *responses* at *path*, and yield the list of requests, which grows as they arrive."""
    handler = _Handler(responses, services)
    server = grpc.aio.server(handlers=[handler])
    server.add_insecure_port(rpc.address(path))
    await server.start()
    try:
        yield handler.requests
    finally:
        await server.stop(grace=0)
