"""Probes and lifecycle hooks of running containers.

Until the startup probe of a container has succeeded, the other probes do not run. Then a failed liveness probe stops
the container, and the readiness probe changes whether it is ready. A result takes effect when it repeats as often as
the probe's thresholds say. A probe that cannot run, because the runtime is unavailable, has no result.

HTTP and TCP probes follow the kubelet's rules and report Go's error messages. Only the status of a response counts.
Certificates are not verified, and redirects are followed on the same host only; a redirect to another host counts as
the response.
"""

import asyncio
import os
import re
import ssl
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import KW_ONLY, dataclass, replace
from urllib.parse import quote, urljoin, urlsplit

from alignup.agent.pods.environment import expand_all
from alignup.agent.pods.pod_state import PodStartError, ProbeStatus
from alignup.align.errors import CriError, EnforceError
from alignup.kubernetes.podspec.types import ContainerSpec, LifecycleHook, Probe
from alignup.run.cri.types import ExecResult

#: Run a command in a container within a number of seconds; ``CriError.timed_out`` if it takes longer.
ExecSync = Callable[[tuple[str, ...], float], Awaitable[ExecResult]]

MAX_HOOK_SECONDS = 3600.0  #: limit for a postStart hook that hangs; the kubelet has none
MAX_OUTPUT_BYTES = 10 << 10  #: of a command's output
_ATTEMPTS = 3  #: for a probe that cannot run
_STARTUP, _LIVENESS, _READINESS = "Startup", "Liveness", "Readiness"

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


@dataclass(frozen=True, slots=True)
class ProbeResult:
    healthy: bool
    text: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class ProbeTarget:
    """A running container."""

    container: ContainerSpec
    address: str  #: of its pod
    execute: ExecSync


async def run_probe(probe: Probe, target: ProbeTarget, *, seconds: float | None = None) -> ProbeResult:
    """Run *probe* once, with its own timeout or *seconds*; ``EnforceError`` if it cannot run."""
    limit = probe.timeout if seconds is None else seconds
    if probe.command:
        return await _exec(probe, target, seconds=limit)
    host = probe.host or target.address
    url = probe_url(probe, target.address) if probe.http_path is not None else ""
    try:
        async with asyncio.timeout(limit):
            if url:
                status = await get_status(url, probe.http_headers)
                healthy = 200 <= status < 400
                return ProbeResult(healthy, "" if healthy else f"HTTP probe failed with statuscode: {status}")
            _, writer = await open_connection(host, probe.port)
            await close_connection(writer)
            return ProbeResult(healthy=True)
    except ProbeRequestError as error:
        return ProbeResult(healthy=False, text=str(error))
    except TimeoutError:
        where = join_host_port(host, probe.port)
        late = f'Get "{url}": context deadline exceeded' if url else f"dial tcp {where}: i/o timeout"
        return ProbeResult(healthy=False, text=late)


@dataclass
class Prober:
    """Probe one container from its start, and call *report* on each change of its status."""

    target: ProbeTarget
    _: KW_ONLY
    report: Callable[[ProbeStatus], None]
    since: float  #: its start time, on the same clock as *now*
    now: Callable[[], float]
    second: float = 1.0  #: the length of a second, for tests

    def __post_init__(self) -> None:
        spec = self.target.container
        self._status = ProbeStatus(started=spec.startup is None, ready=spec.startup is None and spec.readiness is None)

    async def run(self) -> None:
        """Probe until cancelled, or until the status can no longer change."""
        spec = self.target.container
        self.report(self._status)
        if spec.startup is not None:
            await self._watch(spec.startup, _STARTUP)
        if self._status.failure:
            return
        async with asyncio.TaskGroup() as group:
            for probe, kind in ((spec.liveness, _LIVENESS), (spec.readiness, _READINESS)):
                if probe is not None:
                    group.create_task(self._watch(probe, kind))

    async def _watch(self, probe: Probe, kind: str) -> None:
        """Run a probe until a result is final; results count if they repeat as often as the thresholds require."""
        delay, period = probe.delay * self.second, probe.period * self.second
        await self._sleep_until(self.since + delay, at_most=delay)
        previous: ProbeResult | None = None
        repeats = 0
        while True:
            started_at = self.now()
            result = None  # the probe could not run
            for _ in range(_ATTEMPTS):
                with suppress(EnforceError):
                    result = await run_probe(probe, self.target, seconds=probe.timeout * self.second)
                    break
            if result is not None:
                repeats = repeats + 1 if previous is not None and previous.healthy is result.healthy else 1
                previous = result
                threshold = probe.successes if result.healthy else probe.failures
                if repeats >= threshold and self._is_final(result, probe, kind):
                    return
            await self._sleep_until(started_at + period, at_most=period)

    def _is_final(self, result: ProbeResult, probe: Probe, kind: str) -> bool:
        """Update the status; return whether the probe need not run again."""
        before = self._status
        if kind == _READINESS:
            self._status = replace(before, ready=result.healthy)
        elif not result.healthy:
            self._status = replace(before, failure=f"{kind} probe failed: {result.text}", grace=probe.grace)
        elif kind == _STARTUP:
            self._status = replace(before, started=True, ready=self.target.container.readiness is None)
        if self._status != before:
            self.report(self._status)
        return kind == _STARTUP or (kind == _LIVENESS and not result.healthy)

    async def _sleep_until(self, moment: float, *, at_most: float) -> None:
        """Sleep at most *at_most* seconds, even if the clock is set back."""
        await asyncio.sleep(min(max(0.0, moment - self.now()), at_most))


async def run_post_start(hook: LifecycleHook, execute: ExecSync, *, container: str) -> None:
    """Run a postStart hook; ``PodStartError`` if it fails, and then the container must be stopped."""
    problem = await _run_hook(hook, execute, seconds=MAX_HOOK_SECONDS)
    if problem:
        raise PodStartError("PostStartHookError", f'lifecycle hook for Container "{container}" failed - {problem}')


async def run_pre_stop(hook: LifecycleHook, execute: ExecSync, *, grace: float) -> str:
    """Run a preStop hook for at most *grace* seconds; return the problem, which does not prevent the stop."""
    try:
        async with asyncio.timeout(grace):
            return await _run_hook(hook, execute, seconds=max(grace, 1.0))
    except TimeoutError:
        return f"PreStop hook not completed in grace period of {grace:g} seconds"


async def _run_hook(hook: LifecycleHook, execute: ExecSync, *, seconds: float) -> str:
    """Run a hook; return why it failed, or an empty string."""
    if hook.sleep is not None:
        await asyncio.sleep(min(hook.sleep, seconds))
        return ""
    try:
        result = await execute(hook.command, seconds)
    except EnforceError as error:
        return f"error: {error}"
    if result.exit_code == 0:
        return ""
    output = (result.output + result.errors).decode("utf-8", "replace").strip()
    return f"error: command exited with {result.exit_code}, message: {output[:1024]!r}"


async def _exec(probe: Probe, target: ProbeTarget, *, seconds: float) -> ProbeResult:
    literals = {variable.name: variable.value for variable in target.container.env}
    try:
        command = expand_all(probe.command, literals)
        result = await target.execute(command, seconds)
    except PodStartError as error:
        return ProbeResult(healthy=False, text=str(error))
    except CriError as error:
        if not error.timed_out:
            raise
        return ProbeResult(healthy=False, text=f'command "{" ".join(command)}" timed out')
    output = (result.output + result.errors)[:MAX_OUTPUT_BYTES].decode("utf-8", "replace")
    return ProbeResult(healthy=result.exit_code == 0, text=output)


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
