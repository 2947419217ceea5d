"""gRPC on unix sockets: calls that fail with the caller's own error, and services whose callers may send anything.

Messages are taken as bytes and read here. The library would write a page into the log for each one that cannot be read,
and hand on nothing in its place.
"""

import asyncio
import os
import stat
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from socket import AF_UNIX, SOCK_STREAM, socket
from typing import Any, TypeVar
from urllib.parse import quote

import grpc
import grpc.aio
from google.protobuf.descriptor import ServiceDescriptor
from google.protobuf.message import DecodeError, Message

from alignup.align.errors import ListenError

Context = grpc.aio.ServicerContext[Any, Any]
Method = tuple[type[Message], Callable[[Any], Awaitable[Message]]]  #: what is asked, and who answers
ErrorFactory = Callable[
    [grpc.StatusCode, str], Exception
]  #: what a caller raises for a call that failed, and why it did

_LONGEST_PATH = 107  #: bytes; the kernel's limit for the name of a unix socket, less its end
_CLIENT = (
    # Whoever comes back at the same path is to be reached at once, whatever became of the one before.
    ("grpc.use_local_subchannel_pool", 1),
    ("grpc.initial_reconnect_backoff_ms", 50),
    ("grpc.max_reconnect_backoff_ms", 500),
    ("grpc.default_authority", "localhost"),
)
#: What the kubelet calls them where that is not the name with its words joined.
_CODES = {"CANCELLED": "Canceled", "OK": "OK"}

_HUNG_UP = "grpc: the client connection is closing"

Response = TypeVar("Response", bound=Message)


class StatusError(Exception):
    """An answer that is none: what the caller is told, and under which code."""

    def __init__(self, text: str, *, code: grpc.StatusCode = grpc.StatusCode.UNKNOWN) -> None:
        super().__init__(text)
        self.code = code


def address(path: Path) -> str:
    """A path as gRPC takes it: as part of an URI, in which ``%`` and ``?`` would mean something."""
    return f"unix:{quote(str(path.absolute()))}"


def channel(path: Path, *, largest: int = 4 << 20) -> grpc.aio.Channel:
    """A channel to whoever listens at *path*, for answers of up to *largest* bytes; it connects when first used."""
    return grpc.aio.insecure_channel(address(path), options=(*_CLIENT, ("grpc.max_receive_message_length", largest)))


def error_text(code: grpc.StatusCode, details: str | None) -> str:
    """A failed call in the words of the kubelet."""
    name = _CODES.get(code.name) or "".join(part.capitalize() for part in code.name.split("_"))
    return f"rpc error: code = {name} desc = {details or ''}"


def decode(kind: type[Response], raw: bytes, *, failure: ErrorFactory) -> Response:
    """The message in an answer; *failure* when it holds none."""
    try:
        return kind.FromString(raw)
    except DecodeError as error:
        what = f"grpc: failed to unmarshal the received message: {error}"
        raise failure(grpc.StatusCode.INTERNAL, what) from error


async def call(  # noqa: PLR0913 - a call has these parts
    line: grpc.aio.Channel,
    method: str,
    request: Message,
    *,
    answer: type[Response],
    seconds: float,
    failure: ErrorFactory,
    patient: bool = True,
) -> Response:
    """Call *method*; *failure* is raised when that fails, or takes longer than *seconds*, connecting included.

    Where nobody listens, a *patient* call waits for somebody to come, and another fails at once.
    """
    ask: grpc.aio.UnaryUnaryMultiCallable[Message, bytes] = line.unary_unary(method, request_serializer=_bytes)
    try:
        raw = await ask(request, timeout=seconds, wait_for_ready=patient)
    except grpc.aio.AioRpcError as error:
        raise failure(error.code(), error.details() or "") from error
    except asyncio.CancelledError:
        if _ends():
            raise
        raise failure(grpc.StatusCode.CANCELLED, _HUNG_UP) from None
    return decode(answer, raw, failure=failure)


async def stream(
    line: grpc.aio.Channel, method: str, request: Message, *, answer: type[Response], failure: ErrorFactory
) -> AsyncIterator[Response]:
    """The messages *method* sends, as they come; *failure* when the stream breaks or holds something else."""
    ask: grpc.aio.UnaryStreamMultiCallable[Message, bytes] = line.unary_stream(method, request_serializer=_bytes)
    watch = ask(request)
    try:
        async for raw in watch:
            yield decode(answer, raw, failure=failure)
    except grpc.aio.AioRpcError as error:
        raise failure(error.code(), error.details() or "") from error
    except asyncio.CancelledError:
        if _ends():
            raise
        raise failure(grpc.StatusCode.CANCELLED, _HUNG_UP) from None
    finally:
        watch.cancel()


@asynccontextmanager
async def serve(path: Path, service: ServiceDescriptor, methods: Mapping[str, Method]) -> AsyncIterator[None]:
    """Answer at *path* as long as this lasts; ``ListenError`` where that cannot be."""
    check_socket_path(path)
    handlers = {name: _handler(*method) for name, method in methods.items()}
    server = grpc.aio.server(handlers=[grpc.method_handlers_generic_handler(service.full_name, handlers)])
    _bind(server, path)
    await server.start()
    own = _identity(path)
    try:
        yield
    finally:
        _remove(path, own)
        await server.stop(grace=0)


def check_socket_path(path: Path) -> None:
    """Refuse a path that is no good for a socket, or where somebody listens already."""
    length = len(str(path.absolute()).encode())
    if length > _LONGEST_PATH:
        what = f"{path} is {length} bytes long, and the name of a socket cannot have more than {_LONGEST_PATH}"
        raise ListenError(f"{what}\nchoose a directory with a shorter name")
    if not os.path.lexists(path):
        return
    if not stat.S_ISSOCK(path.lstat().st_mode):
        raise ListenError(f"{path} is there and is no socket\nmove it away, or choose another directory")
    with socket(AF_UNIX, SOCK_STREAM) as probe:
        probe.settimeout(1)
        if probe.connect_ex(str(path)) == 0:
            raise ListenError(
                f"somebody listens at {path} already, a kubelet or another agent\nend it, or choose another directory"
            )


def _bind(server: grpc.aio.Server, path: Path) -> None:
    """Have *server* listen at *path*, where nobody does."""
    try:
        path.unlink(missing_ok=True)
        server.add_insecure_port(address(path))
    except (OSError, RuntimeError) as error:
        raise ListenError(f"there can be no socket at {path}: {error}") from error


def _identity(path: Path) -> tuple[int, int] | None:
    """What tells a file from another that took its place; ``None`` when there is none."""
    try:
        found = path.lstat()
    except FileNotFoundError:
        return None
    return found.st_dev, found.st_ino


def _remove(path: Path, own: tuple[int, int] | None) -> None:
    """Take the socket away, unless another is in its place."""
    if _identity(path) == own:
        path.unlink(missing_ok=True)


def _handler(asked: type[Message], respond: Callable[[Any], Awaitable[Message]]) -> "grpc.RpcMethodHandler[Any, Any]":
    """Answers a call; what cannot be read is refused as a server in Go refuses it."""

    async def answer(raw: bytes, context: Context) -> Message:
        try:
            return await respond(asked.FromString(raw))
        except DecodeError as error:
            what = f"grpc: error unmarshalling request: {error}"
            await context.abort(grpc.StatusCode.INTERNAL, what)
        except StatusError as error:
            await context.abort(error.code, str(error))

    return grpc.unary_unary_rpc_method_handler(answer, response_serializer=_bytes)


def _ends() -> bool:
    """Whether this task is to end: the library raises the same error when the line is closed."""
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0


def _bytes(message: Message) -> bytes:
    return message.SerializeToString()
