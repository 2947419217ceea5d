"""Receives pods in request bodies, with limits on size, time and media type."""

import asyncio
import json
from collections.abc import Callable
from email.message import Message

from starlette.requests import ClientDisconnect, Request

from alignup.align.errors import AlignError, ParseError, PodError, Problem
from alignup.align.workload import Pod
from alignup.serve.responses import JSON, ProblemError

ReadPod = Callable[[bytes], Pod]  #: reads JSON or YAML; raises ``PodError`` or ``ParseError``

YAML = "application/yaml"
MEDIA_TYPES = (JSON, YAML, "application/x-yaml", "text/yaml", "text/x-yaml")

_INLINE_BYTES = 16 << 10  #: parsing JSON up to this size takes less time than a thread switch
_CLOSE = {"Connection": "close"}  #: the rest of the request stays unread, so the connection cannot be reused


async def receive_pod(request: Request, read_pod: ReadPod, *, limit: int, seconds: float) -> Pod:
    """Read a pod from a body of at most *limit* bytes that arrives within *seconds*."""
    content = await _receive(request, limit, seconds)
    inline = len(content) <= _INLINE_BYTES
    try:
        if inline:
            json.loads(content)
    except (ValueError, RecursionError):  # a small YAML document can expand to a huge one
        inline = False
    try:
        return read_pod(content) if inline else await asyncio.to_thread(read_pod, content)
    except PodError:
        raise
    except (ParseError, UnicodeDecodeError, RecursionError) as error:
        detail = f"The document is not valid JSON or YAML: {error}"
        raise ProblemError(400, detail, errors=[Problem("", str(error))]) from error
    except AlignError as error:
        raise ProblemError(422, str(error), errors=[Problem("", str(error))]) from error


async def _receive(request: Request, limit: int, seconds: float) -> bytes:
    header = Message()
    header["content-type"] = request.headers.get("content-type", "")
    if not header["content-type"] or header.get_content_type() not in MEDIA_TYPES:
        raise _unsupported("Content-Type", f"must be {JSON} or {YAML}")
    if str(header.get_param("charset", "utf-8")).lower() not in {"utf-8", "utf8", "us-ascii"}:
        raise _unsupported("Content-Type", "must have the charset utf-8")
    if request.headers.get("content-encoding", "identity").lower() != "identity":
        raise _unsupported("Content-Encoding", "is not supported")
    length = request.headers.get("content-length", "")
    if length.isascii() and length.isdigit() and int(length[:20]) > limit:
        raise _too_large(limit)
    body = bytearray()
    try:
        async with asyncio.timeout(seconds):
            async for chunk in request.stream():
                body += chunk
                if len(body) > limit:
                    raise _too_large(limit)
    except TimeoutError:
        raise ProblemError(408, f"The document did not arrive within {seconds:g} seconds.", headers=_CLOSE) from None
    except ClientDisconnect:
        raise ProblemError(400, "The connection closed before the end of the document.", headers=_CLOSE) from None
    return bytes(body)


def _too_large(limit: int) -> ProblemError:
    return ProblemError(413, f"The document is larger than {limit} bytes.", headers=_CLOSE)


def _unsupported(header: str, what: str) -> ProblemError:
    problem = Problem(header, what)
    return ProblemError(415, f"Unsupported document: {problem}.", errors=[problem], headers=_CLOSE)
