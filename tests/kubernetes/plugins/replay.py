"""Recorded sessions of real device plugins, replayed.

A recording is split into sessions, from a plugin's Register to the end of its device list. In each one the plugin
listens on its socket and sends the recorded responses; its requests must be the recorded ones.
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

from alignup.kubernetes.plugins import unix_grpc
from alignup.wire import device_plugin_pb2 as wire
from tests.kubernetes.plugins.raw import send

Document = dict[str, Any]

RECORDED = Path(__file__).parent / "recorded"
DIRECTION = "plugin->registry"

#: Method → request and response types.
METHODS: Mapping[str, tuple[type[Message], type[Message]]] = {
    "GetDevicePluginOptions": (wire.Empty, wire.DevicePluginOptions),
    "GetPreferredAllocation": (wire.PreferredAllocationRequest, wire.PreferredAllocationResponse),
    "Allocate": (wire.AllocateRequest, wire.AllocateResponse),
    "PreStartContainer": (wire.PreStartContainerRequest, wire.PreStartContainerResponse),
}


@dataclass
class RecordedCall:
    """A request to a plugin, and its response."""

    method: str
    request_document: Document
    response: Document = field(default_factory=dict)
    error: Document | None = None
    finished: bool = False


@dataclass
class Session:
    """One connection of a plugin."""

    plugin: str
    register: wire.RegisterRequest
    lists: list[Document] = field(default_factory=list)
    calls: list[RecordedCall] = field(default_factory=list)
    ended: bool = False

    @property
    def resource(self) -> str:
        return self.register.resource_name


def sessions(path: Path) -> Iterator[Session]:
    """Yield the sessions of a recording, in order of registration."""
    by_resource: dict[str, Session] = {}
    for line in path.read_text().splitlines():
        entry = json.loads(line)
        if entry["direction"] == "event" or (entry["rpc"] == "Register" and entry["direction"] != DIRECTION):
            continue
        resource = entry["resource"]
        if entry["rpc"] == "Register":
            request: wire.RegisterRequest = ParseDict(entry["message"], wire.RegisterRequest())
            by_resource[resource] = Session(path.stem, request)
            yield by_resource[resource]
        else:
            _record(by_resource[resource], entry)


def _record(session: Session, entry: Document) -> None:
    method = entry["rpc"]
    if method == "ListAndWatch-end":
        session.ended = True
    elif method == "ListAndWatch":
        if entry["direction"] == DIRECTION:
            session.lists.append(entry["message"])
    elif entry["direction"] != DIRECTION:
        session.calls.append(RecordedCall(method, entry["message"]))
    else:
        call = next(known for known in session.calls if known.method == method and not known.finished)
        call.response, call.error, call.finished = entry.get("message", {}), entry.get("error"), True


class ReplayedPlugin:
    """A plugin that sends the recorded responses; ``requests`` are those of this replay."""

    def __init__(self, session: Session) -> None:
        self.session = session
        self.requests: list[tuple[str, Document]] = []
        self.more = asyncio.Semaphore(1)  #: device lists it may send

    def handler(self) -> grpc.GenericRpcHandler:
        handlers: dict[str, Any] = {
            method: grpc.unary_unary_rpc_method_handler(
                self._answer(method), request_type.FromString, response_type.SerializeToString
            )
            for method, (request_type, response_type) in METHODS.items()
        }
        handlers["ListAndWatch"] = grpc.unary_stream_rpc_method_handler(
            self._lists, wire.Empty.FromString, wire.ListAndWatchResponse.SerializeToString
        )
        return grpc.method_handlers_generic_handler("v1beta1.DevicePlugin", handlers)

    def _answer(self, method: str) -> Any:
        async def answer(request: Message, context: Any) -> Message:
            request_document = MessageToDict(request, preserving_proto_field_name=True)
            self.requests.append((method, request_document))
            request_type, response_type = METHODS[method]
            for known in self.session.calls:
                if known.method == method and ParseDict(known.request_document, request_type()) == request:
                    if known.error:
                        await context.abort(grpc.StatusCode[known.error["code"]], known.error["details"])
                    return ParseDict(known.response, response_type())
            await context.abort(
                grpc.StatusCode.FAILED_PRECONDITION, f"unexpected request: {method}: {request_document}"
            )
            raise AssertionError

        return answer

    async def _lists(self, request: Message, context: Any) -> AsyncIterator[Message]:
        self.requests.append(("ListAndWatch", {}))
        for devices in self.session.lists:
            await self.more.acquire()
            yield ParseDict(devices, wire.ListAndWatchResponse())
        await asyncio.Event().wait()


@asynccontextmanager
async def replayed(session: Session, directory: Path) -> AsyncIterator[ReplayedPlugin]:
    """Yield the plugin of *session*, listening and registered."""
    plugin = ReplayedPlugin(session)
    server = grpc.aio.server(handlers=[plugin.handler()])
    socket = directory / session.register.endpoint
    socket.unlink(missing_ok=True)
    server.add_insecure_port(unix_grpc.address(socket))
    await server.start()
    try:
        async with unix_grpc.channel(directory / "kubelet.sock") as channel:
            await send(channel, "/v1beta1.Registration/Register", session.register.SerializeToString())
        yield plugin
    finally:
        await server.stop(grace=0)
