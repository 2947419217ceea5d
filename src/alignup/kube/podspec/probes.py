"""Probes, which tell how a container is, and hooks, which are run when it has started or is to stop."""

import re
from collections.abc import Mapping

from alignup.align.bits import quote
from alignup.kube.podspec.object_reader import MAX_INT32, ObjectReader
from alignup.kube.podspec.types import LifecycleHook, Permission, Probe

PORT_RANGE = (1, 65_535)  #: the first, and the last

_PROBES = ("exec", "httpGet", "tcpSocket", "grpc")
_HOOKS = ("exec", "httpGet", "tcpSocket", "sleep")
_HEADER = re.compile(r"[-A-Za-z0-9]+")
_UNPRINTABLE = re.compile(r"[\x00-\x08\x0a-\x1f\x7f]")
#: What a probe would have told → what counts instead.
_WITHOUT = {
    "startupProbe": "the container counts as started as soon as it runs",
    "livenessProbe": "the container counts as well for as long as it runs",
    "readinessProbe": "the container counts as ready as soon as it runs",
}


def read_probe(container: ObjectReader, name: str, *, ports: Mapping[str, int]) -> Probe | None:
    """One of the probes of *container*, whose *ports* have names; ``None``: there is none."""
    if not container.has(name):
        return None
    part = container.part(name)
    handler = _handler(part, _PROBES)
    if handler == "grpc":
        part.warn(handler, f"gRPC is not spoken here: {_WITHOUT[name]}")
        return None
    exec_, http, tcp = part.part("exec"), part.part("httpGet"), part.part("tcpSocket")
    asked = http if handler == "httpGet" else tcp
    return Probe(
        command=_command(exec_) if handler == "exec" else (),
        http_path=http.text("path", "/") if handler == "httpGet" else None,
        http_scheme=http.choice("scheme", ("HTTP", "HTTPS"), "HTTP"),
        http_headers=_headers(http),
        host=_host(asked),
        port=_port(asked, ports) if handler in {"httpGet", "tcpSocket"} else 0,
        delay=part.number("initialDelaySeconds") or 0,
        period=part.number("periodSeconds") or 10,
        timeout=part.number("timeoutSeconds") or 1,
        successes=_successes(part, once=name != "readinessProbe"),
        failures=part.number("failureThreshold") or 3,
        grace=_grace(part, name),
    )


def read_hook(container: ObjectReader, name: str, *, longest: int) -> LifecycleHook | None:
    """A hook of *container*, which sleeps for *longest* seconds at most; ``None``: there is none."""
    lifecycle = container.part("lifecycle")
    if not lifecycle.has(name):
        return None
    part = lifecycle.part(name)
    match _handler(part, _HOOKS):
        case "exec":
            return LifecycleHook(command=_command(part.part("exec")))
        case "sleep":
            return LifecycleHook(sleep=part.part("sleep").number("seconds", most=longest) or 0)
        case "httpGet":
            part.warn("httpGet", "hooks make no requests here: nobody is asked")
        case "tcpSocket":
            part.warn("tcpSocket", "hooks make no connections: nothing happens, in a cluster neither")
    return None


def _handler(part: ObjectReader, kinds: tuple[str, ...]) -> str:
    """Which of *kinds* there is; empty if none."""
    found = [kind for kind in kinds if part.has(kind)]
    if not found:
        part.bad("", f"Required value: must specify a handler type: {', '.join(kinds)}")
        return ""
    for kind in found[1:]:
        part.bad(kind, "Forbidden: may not specify more than 1 handler type")
    return found[0]


def _command(part: ObjectReader) -> tuple[str, ...]:
    command = part.strings("command")
    if not command:
        part.bad("command", "Required value")
    return command


def _port(part: ObjectReader, ports: Mapping[str, int]) -> int:
    """A port by its number, or by the name the container gives it."""
    value = part.found.get("port")
    if type(value) is not str:
        if value is None:
            part.bad("port", "Required value")
        return part.number("port", least=PORT_RANGE[0], most=PORT_RANGE[1]) or 0
    if value not in ports:
        part.bad("port", f"Not found: {quote(value)}: must be a number, or the name of one of the container's ports")
    return ports.get(value, 0)


def _host(part: ObjectReader) -> str:
    host = part.text("host")
    if host:
        part.ask(Permission.HOST_NETWORK, "host", f"asks for requests to {quote(host)} on the host's network")
    return host


def _headers(part: ObjectReader) -> tuple[tuple[str, str], ...]:
    found = []
    for header in part.parts("httpHeaders"):
        name, value = header.required("name"), header.text("value")
        if name and not _HEADER.fullmatch(name):
            header.bad("name", f"Invalid value: {quote(name)}: must be letters, digits and '-'")
        if _UNPRINTABLE.search(value):
            header.bad("value", f"Invalid value: {quote(value)}: must not have control characters")
        found.append((name, value))
    return tuple(found)


def _successes(part: ObjectReader, *, once: bool) -> int:
    successes = part.number("successThreshold") or 1
    if once and successes != 1:
        part.bad("successThreshold", f"Invalid value: {successes}: must be 1")
    return successes


def _grace(part: ObjectReader, name: str) -> int | None:
    grace = part.number("terminationGracePeriodSeconds", least=1, most=MAX_INT32)
    if grace is not None and name == "readinessProbe":
        part.bad("terminationGracePeriodSeconds", f"Invalid value: {grace}: must not be set for readinessProbes")
    return grace
