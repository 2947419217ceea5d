"""Reading what a client sends: as much as allowed, in the time allowed, in a form that is known."""

import asyncio
from email.message import Message

from starlette.requests import ClientDisconnect, Request

from alignup.align.errors import Problem
from alignup.serve.responses import ProblemError

JSON = "application/json"
YAML = "application/yaml"
#: What manifests may be called, and what that means.
MEDIA_TYPES = {JSON: JSON, YAML: YAML, "application/x-yaml": YAML, "text/yaml": YAML, "text/x-yaml": YAML}

#: The rest of a request is not read, so nothing else can come over the connection.
_CLOSE = {"Connection": "close"}


def media_type(request: Request) -> str:
    """What the body is said to be: JSON or YAML, in UTF-8 and as it is; everything else is refused."""
    said = Message()
    said["content-type"] = request.headers.get("content-type", "")
    found = said.get_content_type() if request.headers.get("content-type") else ""
    if found not in MEDIA_TYPES:
        raise _unknown("Content-Type", f"{JSON} or {YAML}")
    if str(said.get_param("charset", "utf-8")).lower() not in {"utf-8", "utf8", "us-ascii"}:
        raise _unknown("Content-Type", "utf-8 as its charset")
    if request.headers.get("content-encoding", "identity").lower() != "identity":
        raise _unknown("Content-Encoding", "no encoding")
    return MEDIA_TYPES[found]


async def read(request: Request, *, most: int, seconds: float) -> bytes:
    """The body, of at most *most* bytes, which has to be here within *seconds*."""
    said = request.headers.get("content-length", "")
    if said.isascii() and said.isdigit() and int(said[:20]) > most:
        raise _too_large(most)
    try:
        async with asyncio.timeout(seconds):
            return await _read(request, most)
    except TimeoutError:
        raise ProblemError(408, f"The document was not here after {seconds:g} seconds.", headers=_CLOSE) from None
    except ClientDisconnect:
        raise ProblemError(400, "The connection ended before the document did.", headers=_CLOSE) from None


async def _read(request: Request, most: int) -> bytes:
    body = bytearray()
    async for chunk in request.stream():
        body += chunk
        if len(body) > most:
            raise _too_large(most)
    return bytes(body)


def _too_large(most: int) -> ProblemError:
    return ProblemError(413, f"Documents here have at most {most} bytes.", headers=_CLOSE)


def _unknown(header: str, wanted: str) -> ProblemError:
    what = Problem(header, f"has to say {wanted}")
    return ProblemError(415, f"The document is in no form that is known here: {what}.", errors=[what], headers=_CLOSE)
