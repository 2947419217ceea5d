"""One HTTP GET as a probe makes it: the status counts and nothing else.

Certificates are not checked, as there is nobody to vouch for a pod. Redirects are followed where they stay on the same
host; one that leads elsewhere is an answer like any other.
"""

import asyncio
import os
import re
import ssl
from dataclasses import dataclass
from urllib.parse import quote, urljoin, urlsplit

from alignup.kube.podspec.types import Probe

MAX_REDIRECTS = 10

_STATUS = re.compile(rb"HTTP/1\.[01] (\d{3})(?: |\r?\n)")
_LOCATION = re.compile(rb"^location:[ \t]*(.*?)[ \t]*\r?$", re.IGNORECASE | re.MULTILINE)
_REDIRECTS = frozenset({301, 302, 303, 307, 308})
_PORTS = {"http": 80, "https": 443}
_AS_IT_IS = "%/:=&?~#+!$,;'@()*[]"  #: what is left alone of a path
_HEADER = re.compile(r"[!#$%&'*+\-.^_`|~0-9A-Za-z]+")


class ProbeRequestError(Exception):
    """There is no answer, or none that can be read; the message is the one Go gives."""


@dataclass(frozen=True, slots=True)
class ProbeResponse:
    """What was answered."""

    status: int
    location: str = ""  #: where it leads; empty: nowhere


def probe_url(probe: Probe, address: str) -> str:
    """What a probe asks of a container at *address*."""
    path = quote(probe.http_path or "", safe=_AS_IT_IS).partition("#")[0]
    return f"{probe.http_scheme.lower()}://{join_host_port(probe.host or address, probe.port)}/{path.removeprefix('/')}"


def join_host_port(host: str, port: int) -> str:
    """A host and a port as they are written together."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


async def get_status(url: str, headers: tuple[tuple[str, str], ...]) -> int:
    """The status of the last answer; :class:`ProbeRequestError` when there is none. Give it a time limit."""
    first = urlsplit(url).hostname
    for _ in range(MAX_REDIRECTS):
        try:
            answer = await _asked(url, headers)
            following = urljoin(url, answer.location)
            abroad = urlsplit(following).hostname != first
        except (ProbeRequestError, ValueError) as error:  # the second: what is no address
            raise ProbeRequestError(f'Get "{url}": {error}') from error
        if answer.status not in _REDIRECTS or not answer.location or abroad:
            return answer.status
        url = following
    raise ProbeRequestError(f'Get "{url}": stopped after {MAX_REDIRECTS} redirects')


async def open_connection(
    host: str, port: int, *, encrypted: bool = False
) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """A connection; :class:`ProbeRequestError` when there is none."""
    try:
        return await asyncio.open_connection(host, port, ssl=_unchecked() if encrypted else None)
    except ssl.SSLError as error:
        raise ProbeRequestError(f"tls: {error.reason or error}") from error
    except UnicodeError as error:
        raise ProbeRequestError(f"dial tcp: lookup {host}: no such host") from error
    except OSError as error:
        text = os.strerror(error.errno).lower() if error.errno and error.errno > 0 else str(error)
        raise ProbeRequestError(f"dial tcp {join_host_port(host, port)}: connect: {text}") from error


async def close_connection(writer: asyncio.StreamWriter) -> None:
    """Hang up, whatever the other side makes of it."""
    writer.transport.abort()
    try:
        await writer.wait_closed()
    except OSError:
        return


async def _asked(url: str, headers: tuple[tuple[str, str], ...]) -> ProbeResponse:
    parts = urlsplit(url)
    scheme, host = parts.scheme, parts.hostname or ""
    port = parts.port or _PORTS.get(scheme, 0)
    if not port or not host:
        raise ProbeRequestError(f"unsupported protocol scheme {scheme!r}")
    target = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
    request = _request(target, {"host": ("Host", parts.netloc)}, headers)
    reader, writer = await open_connection(host, port, encrypted=scheme == "https")
    try:
        writer.write(request)
        await writer.drain()
        return await _answer(reader)
    except OSError as error:
        raise ProbeRequestError(str(error)) from error
    finally:
        await close_connection(writer)


async def _answer(reader: asyncio.StreamReader) -> ProbeResponse:
    """The first that is more than a word on the way."""
    while True:
        try:
            head = await reader.readuntil(b"\r\n\r\n")
        except asyncio.IncompleteReadError as error:
            raise ProbeRequestError(
                "EOF" if not error.partial else f"malformed HTTP response {error.partial!r}"
            ) from error
        except asyncio.LimitOverrunError as error:
            raise ProbeRequestError("net/http: server response headers exceeded 65536 bytes; aborted") from error
        found = _STATUS.match(head)
        if found is None:
            raise ProbeRequestError(f"malformed HTTP response {head[:80]!r}")
        if not 100 <= int(found[1]) < 200 or int(found[1]) == 101:
            location = _LOCATION.search(head)
            return ProbeResponse(int(found[1]), location[1].decode("latin-1") if location else "")


def _request(target: str, usual: dict[str, tuple[str, str]], headers: tuple[tuple[str, str], ...]) -> bytes:
    """A request; what *headers* say stands in place of what is usual, and an empty ``Accept`` is none."""
    lines = {
        **usual,
        "user-agent": ("User-Agent", "kube-probe/alignup"),
        "accept": ("Accept", "*/*"),
        "connection": ("Connection", "close"),
    }
    for name, value in headers:
        if not _HEADER.fullmatch(name):
            raise ProbeRequestError(f"net/http: invalid header field name {name!r}")
        if any(character in value for character in "\r\n\0"):
            raise ProbeRequestError(f"net/http: invalid header field value for {name!r}")
        lines[name.lower()] = (name, value)
    if not lines["accept"][1]:
        del lines["accept"]
    text = "".join(f"{name}: {value}\r\n" for name, value in lines.values())
    return f"GET {target} HTTP/1.1\r\n{text}\r\n".encode()


def _unchecked() -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    return context
