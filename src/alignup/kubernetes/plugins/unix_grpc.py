"""gRPC over Unix sockets: unary and streaming calls that raise the caller's own error type, and a small server.

Requests and responses travel as bytes and are decoded here: grpcio logs a traceback for each message that fails to
decode, and passes ``None`` in its place.
"""

import asyncio
import os
import stat
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager, suppress
from pathlib import Path
from socket import AF_UNIX, SOCK_STREAM, socket
from tempfile import TemporaryDirectory
from typing import Any, TypeAlias, TypeVar
from urllib.parse import quote

import grpc
import grpc.aio
from google.protobuf.descriptor import ServiceDescriptor
from google.protobuf.message import DecodeError, Message

from alignup.align.errors import ListenError, SocketPathError
from alignup.socket_paths import length_problem

Context = grpc.aio.ServicerContext[Any, Any]
Handler: TypeAlias = "grpc.RpcMethodHandler[Any, Any]"  # generic for the type checker only
Method = tuple[type[Message], Callable[[Any], Awaitable[Message]]]  #: request type and handler
StreamMethod = tuple[type[Message], Callable[[Any], AsyncIterator[Message]]]
ErrorFactory = Callable[[grpc.StatusCode, str], Exception]  #: builds the error that a failed call raises

_CLIENT_OPTIONS = (
    # A server that restarts at the same path must be reachable at once, whatever happened to its predecessor.
    ("grpc.use_local_subchannel_pool", 1),
    ("grpc.initial_reconnect_backoff_ms", 50),
    ("grpc.max_reconnect_backoff_ms", 500),
    ("grpc.default_authority", "localhost"),
)
#: Go's names of status codes that differ from the joined words of the gRPC name.
_GO_CODES = {"CANCELLED": "Canceled", "OK": "OK"}

Response = TypeVar("Response", bound=Message)


class StatusError(Exception):
    """Raised by a handler to fail a call with a status *code* and a message."""

    def __init__(self, text: str, *, code: grpc.StatusCode = grpc.StatusCode.UNKNOWN) -> None:
        super().__init__(text)
        self.code = code


def address(path: Path) -> str:
    """Return *path* as a gRPC target, which is a URI: ``%`` and ``?`` are escaped."""
    return f"unix:{quote(str(path.absolute()))}"


def channel(path: Path, *, max_response: int = 4 << 20) -> grpc.aio.Channel:
    """Return a channel to the server at *path*; it connects on first use."""
    options = (*_CLIENT_OPTIONS, ("grpc.max_receive_message_length", max_response))
    return grpc.aio.insecure_channel(address(path), options=options)


def error_text(code: grpc.StatusCode, details: str | None) -> str:
    """Format a failed call as grpc-go does, and so the kubelet."""
    name = _GO_CODES.get(code.name) or "".join(part.capitalize() for part in code.name.split("_"))
    return f"rpc error: code = {name} desc = {details or ''}"


async def call(  # noqa: PLR0913 - the parts of a call
    connection: grpc.aio.Channel,
    method: str,
    request: Message,
    *,
    response: type[Response],
    seconds: float,
    error: ErrorFactory,
    wait_for_ready: bool = True,
    max_messages: int = 1 << 40,
) -> Response:
    """Call *method* and return its response; raise what *error* builds if the call fails.

    *seconds* is the timeout, which includes connecting. Without *wait_for_ready* the call fails at once if no server
    listens. *max_messages* limits the messages that are nested in the response.
    """
    send: Any = connection.unary_unary(method, request_serializer=_serialize)
    with _translated_errors(error):
        raw = await send(request, timeout=seconds, wait_for_ready=wait_for_ready)
        # The shortest message has two bytes here and a hundred in memory.
        if len(raw) > 2 * max_messages and _count_messages(raw, response.DESCRIPTOR, max_messages) > max_messages:
            raise error(grpc.StatusCode.RESOURCE_EXHAUSTED, f"the response has more than {max_messages} entries")
        return response.FromString(raw)


def _count_messages(raw: bytes, kind: Any, limit: int) -> int:  # noqa: ANN401 - descriptors have several types
    """Return the number of messages in a message of *kind*, more than *limit* at most by one; the text may be damaged.

    https://protobuf.dev/programming-guides/encoding/ describes the format.
    """
    count = 0
    queue = [(0, len(raw), kind)]
    while queue and count <= limit:
        at, end, kind = queue.pop()
        inner = {field.number: field.message_type for field in kind.fields if field.message_type is not None}
        while at < end and count <= limit:
            tag, at = _varint(raw, at)
            size = {1: 8, 5: 4}.get(tag & 7, 0)
            if tag & 7 == 0:
                _, at = _varint(raw, at)
            elif tag & 7 == 2:
                size, at = _varint(raw, at)
                if (message := inner.get(tag >> 3)) is not None:
                    count += 1
                    queue.append((at, min(at + size, end), message))
            at += size
    return count


def _varint(raw: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while at < len(raw):
        byte = raw[at]
        value |= (byte & 0x7F) << shift
        at, shift = at + 1, shift + 7
        if byte < 0x80 or shift > 63:
            break
    return value, at


async def stream(
    connection: grpc.aio.Channel, method: str, request: Message, *, response: type[Response], error: ErrorFactory
) -> AsyncIterator[Response]:
    """Yield the messages that *method* sends; raise what *error* builds if the stream breaks."""
    send: Any = connection.unary_stream(method, request_serializer=_serialize)
    messages = send(request)
    try:
        with _translated_errors(error):
            async for raw in messages:
                yield response.FromString(raw)
    finally:
        messages.cancel()


@asynccontextmanager
async def serve(
    path: Path,
    service: ServiceDescriptor,
    methods: Mapping[str, Method],
    *,
    streams: Mapping[str, StreamMethod] | None = None,
) -> AsyncIterator[None]:
    """Serve *methods* and *streams* at *path*; raise ``ListenError`` if that is not possible.

    End the streams before: grpcio logs errors for calls that are pending when a server stops.
    """
    check_socket_path(path)
    handlers = {name: unary_handler(*method) for name, method in methods.items()}
    handlers |= {name: _stream_handler(*method) for name, method in (streams or {}).items()}
    server = grpc.aio.server(handlers=[grpc.method_handlers_generic_handler(service.full_name, handlers)])
    try:
        listen(server, path)
    except (OSError, RuntimeError) as error:
        raise ListenError(f"cannot create a socket at {path}: {error}") from error
    await server.start()
    created_inode = _inode(path)
    try:
        yield
    finally:
        if _inode(path) == created_inode:  # no other server has replaced the socket
            path.unlink(missing_ok=True)  # noqa: ASYNC240 - a directory entry
        await server.stop(grace=0)


def listen(server: grpc.aio.Server, path: Path) -> None:
    """Have *server* listen at *path*; raise ``SocketPathError``, ``OSError`` or ``RuntimeError`` if it cannot.

    Whatever the umask, only the owner can connect, from the moment the socket appears: it is bound in a private
    directory, and moved to its path once its mode is set.
    """
    with TemporaryDirectory(prefix=".", dir=path.parent) as private:
        bound_path = Path(private) / "s"
        if problem := length_problem(path, bound_path=bound_path):
            raise SocketPathError(f"cannot create a socket at {path}: {problem}")
        server.add_insecure_port(address(bound_path))
        bound_path.chmod(0o600)
        bound_path.replace(path)


def unary_handler(kind: type[Message], respond: Callable[[Any], Awaitable[Message | bytes]]) -> Handler:
    """Return a handler of one method; *respond* gets a request of *kind*, and may return a serialized response."""

    async def handle(raw: bytes, context: Context) -> Message | bytes:
        try:
            return await respond(kind.FromString(raw))
        except DecodeError as error:
            await context.abort(grpc.StatusCode.INTERNAL, f"grpc: error unmarshalling request: {error}")
        except StatusError as error:
            await context.abort(error.code, str(error))

    return grpc.unary_unary_rpc_method_handler(handle, response_serializer=_serialize)


def _stream_handler(kind: type[Message], respond: Callable[[Any], AsyncIterator[Message]]) -> Handler:
    async def handle(raw: bytes, context: Context) -> AsyncIterator[Message]:
        try:
            request = kind.FromString(raw)
        except DecodeError as error:
            await context.abort(grpc.StatusCode.INTERNAL, f"grpc: error unmarshalling request: {error}")
        async for message in respond(request):
            yield message

    return grpc.unary_stream_rpc_method_handler(handle, response_serializer=_serialize)


def check_socket_path(path: Path) -> None:
    """Raise ``ListenError`` if no socket can be created at *path*, or if a server listens there."""
    if problem := length_problem(path):
        raise SocketPathError(f"cannot create a socket at {path}: {problem}")
    if not os.path.lexists(path):
        return
    if not stat.S_ISSOCK(path.lstat().st_mode):
        raise ListenError(f"{path} exists and is not a socket\nmove it away, or choose another directory")
    with socket(AF_UNIX, SOCK_STREAM) as probe:
        probe.settimeout(1)
        if probe.connect_ex(str(path)) == 0:
            problem = f"another process listens at {path}, a kubelet or another agent"
            raise ListenError(f"{problem}\nstop it, or choose another directory")


def _inode(path: Path) -> tuple[int, int] | None:
    with suppress(FileNotFoundError):
        status = path.lstat()
        return status.st_dev, status.st_ino
    return None


@contextmanager
def _translated_errors(error: ErrorFactory) -> Iterator[None]:
    """Raise what *error* builds instead of errors of grpcio and protobuf."""
    try:
        yield
    except grpc.aio.AioRpcError as rpc_error:
        raise error(rpc_error.code(), rpc_error.details() or "") from rpc_error
    except DecodeError as decode_error:
        problem = f"grpc: failed to unmarshal the received message: {decode_error}"
        raise error(grpc.StatusCode.INTERNAL, problem) from decode_error
    except asyncio.CancelledError:
        # grpcio raises it for a closed channel as well as for a cancelled task.
        task = asyncio.current_task()
        if task is not None and task.cancelling():
            raise
        raise error(grpc.StatusCode.CANCELLED, "grpc: the client connection is closing") from None


def _serialize(message: Message | bytes) -> bytes:
    return message if isinstance(message, bytes) else message.SerializeToString()
