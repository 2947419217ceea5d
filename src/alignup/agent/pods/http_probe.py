"""HTTP GET and TCP connections of probes, with the kubelet's rules and Go's error messages.

Only the status of a response counts. Certificates are not verified, and redirects are followed on the same host only;
a redirect to another host counts as the response.
"""

import asyncio
import os
import re
import ssl
from contextlib import suppress
from urllib.parse import quote, urljoin, urlsplit

from alignup.kube.podspec.types import Probe

MAX_REDIRECTS = 10

_STATUS = re.compile(rb"HTTP/1\.[01] (\d{3})(?: |\r?\n)")
_LOCATION = re.compile(rb"^location:[ \t]*(.*?)[ \t]*\r?$", re.IGNORECASE | re.MULTILINE)
_REDIRECTS = frozenset({301, 302, 303, 307, 308})
_PORTS = {"http": 80, "https": 443}
_UNQUOTED = "%/:=&?~#+!$,;'@()*[]"  #: characters of a path that are not percent-encoded
_HEADER = re.compile(r"[!#$%&'*+\-.^_`|~0-9A-Za-z]+")

Headers = tuple[tuple[str, str], ...]


class ProbeRequestError(Exception):
    """There is no response, or it cannot be parsed; the message is Go's."""


def probe_url(probe: Probe, address: str) -> str:
    path = quote(probe.http_path or "", safe=_UNQUOTED).partition("#")[0]
    return f"{probe.http_scheme.lower()}://{join_host_port(probe.host or address, probe.port)}/{path.removeprefix('/')}"


def join_host_port(host: str, port: int) -> str:
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


async def get_status(url: str, headers: Headers) -> int:
    """The status of the final response, or :class:`ProbeRequestError`; the caller sets the timeout."""
    first = urlsplit(url).hostname
    for _ in range(MAX_REDIRECTS):
        try:
            status, location = await _request(url, headers)
            target = urljoin(url, location)
            other_host = urlsplit(target).hostname != first
        except (ProbeRequestError, ValueError) as error:  # ValueError: an invalid URL
            raise ProbeRequestError(f'Get "{url}": {error}') from error
        if status not in _REDIRECTS or not location or other_host:
            return status
        url = target
    raise ProbeRequestError(f'Get "{url}": stopped after {MAX_REDIRECTS} redirects')


async def open_connection(
    host: str, port: int, *, tls: bool = False
) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    try:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT) if tls else None
        if context is not None:
            context.check_hostname = False
            context.verify_mode = ssl.CERT_NONE
        return await asyncio.open_connection(host, port, ssl=context)
    except ssl.SSLError as error:
        raise ProbeRequestError(f"tls: {error.reason or error}") from error
    except UnicodeError as error:
        raise ProbeRequestError(f"dial tcp: lookup {host}: no such host") from error
    except OSError as error:
        text = os.strerror(error.errno).lower() if error.errno and error.errno > 0 else str(error)
        raise ProbeRequestError(f"dial tcp {join_host_port(host, port)}: connect: {text}") from error


async def close_connection(writer: asyncio.StreamWriter) -> None:
    writer.transport.abort()
    with suppress(OSError):
        await writer.wait_closed()


async def _request(url: str, headers: Headers) -> tuple[int, str]:
    """Send one request; return the status and the ``Location`` header, which may be empty."""
    parts = urlsplit(url)
    scheme, host = parts.scheme, parts.hostname or ""
    port = parts.port or _PORTS.get(scheme, 0)
    if not port or not host:
        raise ProbeRequestError(f"unsupported protocol scheme {scheme!r}")
    target = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
    request = _encode_request(target, parts.netloc, headers)
    reader, writer = await open_connection(host, port, tls=scheme == "https")
    try:
        writer.write(request)
        await writer.drain()
        return await _read_response(reader)
    except OSError as error:
        raise ProbeRequestError(str(error)) from error
    finally:
        await close_connection(writer)


async def _read_response(reader: asyncio.StreamReader) -> tuple[int, str]:
    """Read the first response that is not informational (1xx)."""
    while True:
        try:
            head = await reader.readuntil(b"\r\n\r\n")
        except asyncio.IncompleteReadError as error:
            text = "EOF" if not error.partial else f"malformed HTTP response {error.partial!r}"
            raise ProbeRequestError(text) from error
        except asyncio.LimitOverrunError as error:
            raise ProbeRequestError("net/http: server response headers exceeded 65536 bytes; aborted") from error
        found = _STATUS.match(head)
        if found is None:
            raise ProbeRequestError(f"malformed HTTP response {head[:80]!r}")
        status = int(found[1])
        if not 100 <= status < 200 or status == 101:
            location = _LOCATION.search(head)
            return status, location[1].decode("latin-1") if location else ""


def _encode_request(target: str, host: str, headers: Headers) -> bytes:
    """Encode a request; *headers* override the defaults, and an empty ``Accept`` removes that header."""
    lines = {
        "host": ("Host", host),
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
