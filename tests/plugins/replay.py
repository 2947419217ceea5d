"""Recorded conversations of real device plugins, spoken again.

A recording is cut into sessions: from a plugin's Register to the end of its list of devices. In each the plugin is on
its socket again and says what it said; what it is asked has to be what it was asked then.
"""

import asyncio
import json
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
from google.protobuf.json_format import MessageToDict, ParseDict
from google.protobuf.message import Message

from alignup import rpc
from alignup.wire import device_plugin_pb2 as wire
from tests.plugins.raw import send

Document = dict[str, Any]

RECORDED = Path(__file__).parent / "recorded"
DIRECTION = "plugin->registry"

#: Of each method: what it is asked, and what it answers.
METHODS: Mapping[str, tuple[type[Message], type[Message]]] = {
    "GetDevicePluginOptions": (wire.Empty, wire.DevicePluginOptions),
    "GetPreferredAllocation": (wire.PreferredAllocationRequest, wire.PreferredAllocationResponse),
    "Allocate": (wire.AllocateRequest, wire.AllocateResponse),
    "PreStartContainer": (wire.PreStartContainerRequest, wire.PreStartContainerResponse),
}


@dataclass
class Exchanged:
    """A question to a plugin and what it said."""

    method: str
    question: Document
    response: Document = field(default_factory=dict)
    error: Document | None = None
    over: bool = False


@dataclass
class Session:
    """What a plugin said on one connection."""

    plugin: str
    register: wire.RegisterRequest
    lists: list[Document] = field(default_factory=list)
    calls: list[Exchanged] = field(default_factory=list)
    ended: bool = False

    @property
    def resource(self) -> str:
        return self.register.resource_name


def sessions(path: Path) -> Iterator[Session]:
    """Every session of a recording, in the order they began."""
    open_: dict[str, Session] = {}
    for line in path.read_text().splitlines():
        entry = json.loads(line)
        if entry["direction"] == "event" or (entry["rpc"] == "Register" and entry["direction"] != DIRECTION):
            continue
        resource = entry["resource"]
        if entry["rpc"] == "Register":
            request: wire.RegisterRequest = ParseDict(entry["message"], wire.RegisterRequest())
            open_[resource] = Session(path.stem, request)
            yield open_[resource]
        else:
            _said(open_[resource], entry)


def _said(session: Session, entry: Document) -> None:
    method = entry["rpc"]
    if method == "ListAndWatch-end":
        session.ended = True
    elif method == "ListAndWatch":
        if entry["direction"] == DIRECTION:
            session.lists.append(entry["message"])
    elif entry["direction"] != DIRECTION:
        session.calls.append(Exchanged(method, entry["message"]))
    else:
        call = next(one for one in session.calls if one.method == method and not one.over)
        call.response, call.error, call.over = entry.get("message", {}), entry.get("error"), True


class Parrot:
    """A plugin that says what was recorded; ``asked`` is what it was asked this time."""

    def __init__(self, session: Session) -> None:
        self.session = session
        self.asked: list[tuple[str, Document]] = []
        self.more = asyncio.Semaphore(1)  #: lists it may send

    def handler(self) -> grpc.GenericRpcHandler:
        handlers: dict[str, Any] = {
            method: grpc.unary_unary_rpc_method_handler(
                self._answer(method), asked.FromString, answered.SerializeToString
            )
            for method, (asked, answered) in METHODS.items()
        }
        handlers["ListAndWatch"] = grpc.unary_stream_rpc_method_handler(
            self._lists, wire.Empty.FromString, wire.ListAndWatchResponse.SerializeToString
        )
        return grpc.method_handlers_generic_handler("v1beta1.DevicePlugin", handlers)

    def _answer(self, method: str) -> Any:
        async def answer(request: Message, context: Any) -> Message:
            question = MessageToDict(request, preserving_proto_field_name=True)
            self.asked.append((method, question))
            asked, answered = METHODS[method]
            for known in self.session.calls:
                if known.method == method and ParseDict(known.question, asked()) == request:
                    if known.error:
                        await context.abort(grpc.StatusCode[known.error["code"]], known.error["details"])
                    return ParseDict(known.response, answered())
            await context.abort(grpc.StatusCode.FAILED_PRECONDITION, f"never asked {method}: {question}")
            raise AssertionError

        return answer

    async def _lists(self, request: Message, context: Any) -> AsyncIterator[Message]:
        self.asked.append(("ListAndWatch", {}))
        for told in self.session.lists:
            await self.more.acquire()
            yield ParseDict(told, wire.ListAndWatchResponse())
        await asyncio.Event().wait()


@asynccontextmanager
async def speaking(session: Session, directory: Path) -> AsyncIterator[Parrot]:
    """The plugin of *session* on its socket, registered."""
    parrot = Parrot(session)
    server = grpc.aio.server(handlers=[parrot.handler()])
    socket = directory / session.register.endpoint
    socket.unlink(missing_ok=True)
    server.add_insecure_port(rpc.address(socket))
    await server.start()
    try:
        async with rpc.channel(directory / "kubelet.sock") as line:
            await send(line, "/v1beta1.Registration/Register", session.register.SerializeToString())
        yield parrot
    finally:
        await server.stop(grace=0)
