"""How responses are written to a connection: variants of uvicorn's own cycle of a request and its response."""

import asyncio
from typing import Any

from uvicorn.protocols.http.httptools_impl import RequestResponseCycle


class _JoinedWrites:
    """Takes what is written to a transport, and writes it at once."""

    def __init__(self, transport: asyncio.Transport) -> None:
        self._transport, self._parts = transport, list[bytes]()

    def write(self, data: bytes) -> None:
        self._parts.append(data)

    def flush(self) -> None:
        if self._parts:
            self._transport.write(b"".join(self._parts))
            self._parts.clear()

    def close(self) -> None:
        self.flush()
        self._transport.close()


class ResponseCycle(RequestResponseCycle):
    """Writes the head of a response of known length together with its body: one system call less, and one packet."""

    _head: Any = None  #: the message that begins the response, until its body comes

    async def send(self, message: Any) -> None:  # noqa: ANN401 - of uvicorn's own types
        if message["type"] == "http.response.start" and not self.response_started:
            known = any(name == b"content-length" for name, _ in message.get("headers", ()))
            self._head = message if known else None
            if known:
                return
        elif self._head is not None and message["type"] == "http.response.body":
            head, self._head = self._head, None
            transport = self.transport
            joined = _JoinedWrites(transport)
            self.transport = joined  # type: ignore[assignment] # the part of it that sending needs
            try:
                await super().send(head)
                await super().send(message)
            finally:
                self.transport = transport
                joined.flush()
            return
        await super().send(message)


class Http10Cycle(RequestResponseCycle):
    """A response over HTTP/1.0, which has no chunks: without a length, the end of the connection ends it."""

    _until_close = False

    async def send(self, message: Any) -> None:  # noqa: ANN401 - of uvicorn's own types
        if not self.response_started:
            headers = message.get("headers", ())
            self._until_close = all(name.lower() != b"content-length" for name, _ in headers)
            if self._until_close:
                self.chunked_encoding = False
        elif self._until_close:
            self.expected_content_length = len(message.get("body", b""))
        await super().send(message)
