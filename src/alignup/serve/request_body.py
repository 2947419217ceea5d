"""Read request bodies, with limits on size, time and media type."""

import asyncio
from email.message import Message

from starlette.requests import ClientDisconnect, Request

from alignup.align.errors import Problem
from alignup.serve.responses import JSON, ProblemError

YAML = "application/yaml"
MEDIA_TYPES = {JSON: JSON, YAML: YAML, "application/x-yaml": YAML, "text/yaml": YAML, "text/x-yaml": YAML}

#: The rest of the request stays unread, so the connection cannot be reused.
_CLOSE = {"Connection": "close"}


async def read(request: Request, *, limit: int, seconds: float) -> tuple[bytes, str]:
    """Read at most *limit* bytes within *seconds*; return them with their type, ``application/json`` or ``…/yaml``."""
    header = Message()
    header["content-type"] = request.headers.get("content-type", "")
    found = header.get_content_type() if request.headers.get("content-type") else ""
    if found not in MEDIA_TYPES:
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
    return bytes(body), MEDIA_TYPES[found]


def _too_large(limit: int) -> ProblemError:
    return ProblemError(413, f"The document is larger than {limit} bytes.", headers=_CLOSE)


def _unsupported(header: str, what: str) -> ProblemError:
    problem = Problem(header, what)
    return ProblemError(415, f"Unsupported document: {problem}.", errors=[problem], headers=_CLOSE)
