"""Somebody at the other end of a socket, who answers as a test says and keeps what was asked."""

from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
from google.protobuf.message import Message

from alignup import rpc
from alignup.wire import cri_pb2 as wire

V1 = ("runtime.v1.RuntimeService", "runtime.v1.ImageService")

#: What is answered to a method: a message, an error, or what a function makes of the question.
Answers = Mapping[str, Message | Exception | Callable[[Message], Any]]


def refused(code: str, details: str) -> Exception:
    """An answer that is none."""
    return rpc.StatusError(details, code=grpc.StatusCode[code])


@dataclass
class Answering(grpc.GenericRpcHandler):
    """Answers to methods by their names, and to no others."""

    answers: Answers
    services: tuple[str, ...] = V1
    asked: list[Message] = field(default_factory=list)

    def service(self, handler_call_details: grpc.HandlerCallDetails) -> Any:
        _, service, method = handler_call_details.method.split("/")
        if service not in self.services or method not in self.answers:
            return None
        question = getattr(wire, f"{method}Request")

        async def respond(raw: bytes, context: Any) -> bytes:
            asked = question.FromString(raw)
            self.asked.append(asked)
            answer = self.answers[method]
            try:
                if isinstance(answer, Exception):
                    raise answer
                told = answer if isinstance(answer, Message) else await answer(asked)
            except rpc.StatusError as error:
                await context.abort(error.code, str(error))
            return told.SerializeToString() if isinstance(told, Message) else told

        return grpc.unary_unary_rpc_method_handler(respond)


@asynccontextmanager
async def answering(path: Path, answers: Answers, *, services: tuple[str, ...] = V1) -> AsyncIterator[list[Message]]:
    """Answer at *path* as long as this lasts; what was asked, as it comes."""
    made = Answering(answers, services)
    server = grpc.aio.server(handlers=[made])
    server.add_insecure_port(rpc.address(path))
    await server.start()
    try:
        yield made.asked
    finally:
        await server.stop(grace=0)
