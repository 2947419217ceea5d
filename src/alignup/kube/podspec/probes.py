"""Reads probes and lifecycle hooks."""

import re
from collections.abc import Mapping

from alignup.align.bits import quote
from alignup.kube.object_reader import ObjectReader
from alignup.kube.podspec.types import LifecycleHook, Permission, Probe

MAX_PORT = 65_535

_PROBES = ("exec", "httpGet", "tcpSocket", "grpc")
_HOOKS = ("exec", "httpGet", "tcpSocket", "sleep")
_HEADER = re.compile(r"[-A-Za-z0-9]+")
_CONTROL = re.compile(r"[\x00-\x08\x0a-\x1f\x7f]")
#: Probe → what holds without it.
_WITHOUT_PROBE = {
    "startupProbe": "the container counts as started once it runs",
    "livenessProbe": "the container counts as live while it runs",
    "readinessProbe": "the container counts as ready once it runs",
}


def read_probe(container: ObjectReader, name: str, *, ports: Mapping[str, int]) -> Probe | None:
    """A probe of *container*, whose named ports are *ports*; ``None`` if it has no such probe."""
    if not container.has(name):
        return None
    probe = container.child(name)
    handler = _handler(probe, _PROBES)
    if handler == "grpc":
        probe.warn(handler, f"gRPC probes are not supported: {_WITHOUT_PROBE[name]}")
        return None
    http = probe.child("httpGet")
    target = http if handler == "httpGet" else probe.child("tcpSocket")
    if host := target.text("host"):
        target.require(Permission.HOST_NETWORK, "host", f"probing {quote(host)} from the host network")
    successes = probe.number("successThreshold") or 1
    grace = probe.number("terminationGracePeriodSeconds", low=1)
    if name != "readinessProbe" and successes != 1:
        probe.error("successThreshold", f"Invalid value: {successes}: must be 1")
    if name == "readinessProbe" and grace is not None:
        probe.error("terminationGracePeriodSeconds", f"Invalid value: {grace}: must not be set for readinessProbes")
    return Probe(
        command=_command(probe.child("exec")) if handler == "exec" else (),
        http_path=http.text("path", "/") if handler == "httpGet" else None,
        http_scheme=http.choice("scheme", ("HTTP", "HTTPS"), "HTTP"),
        http_headers=_headers(http),
        host=host,
        port=_port(target, ports) if handler in {"httpGet", "tcpSocket"} else 0,
        delay=probe.number("initialDelaySeconds") or 0,
        period=probe.number("periodSeconds") or 10,
        timeout=probe.number("timeoutSeconds") or 1,
        successes=successes,
        failures=probe.number("failureThreshold") or 3,
        grace=grace,
    )


def read_hook(container: ObjectReader, name: str, *, max_sleep: int) -> LifecycleHook | None:
    """A lifecycle hook of *container*; ``None`` if it has no such hook, or one without effect."""
    lifecycle = container.child("lifecycle")
    if not lifecycle.has(name):
        return None
    hook = lifecycle.child(name)
    match _handler(hook, _HOOKS):
        case "exec":
            return LifecycleHook(command=_command(hook.child("exec")))
        case "sleep":
            return LifecycleHook(sleep=hook.child("sleep").number("seconds", high=max_sleep) or 0)
        case "httpGet":
            hook.warn("httpGet", "ignored: HTTP hooks are not supported")
        case "tcpSocket":
            hook.warn("tcpSocket", "ignored, as in Kubernetes")
    return None


def _handler(owner: ObjectReader, kinds: tuple[str, ...]) -> str:
    """Which of *kinds* is set; empty if none is."""
    found = [kind for kind in kinds if owner.has(kind)]
    if not found:
        owner.error("", f"Required value: must specify a handler type: {', '.join(kinds)}")
        return ""
    for kind in found[1:]:
        owner.error(kind, "Forbidden: may not specify more than 1 handler type")
    return found[0]


def _command(handler: ObjectReader) -> tuple[str, ...]:
    command = handler.strings("command")
    if not command:
        handler.error("command", "Required value")
    return command


def _port(target: ObjectReader, ports: Mapping[str, int]) -> int:
    value = target.fields.get("port")
    if type(value) is not str:
        if value is None:
            target.error("port", "Required value")
        return target.number("port", low=1, high=MAX_PORT) or 0
    if value not in ports:
        target.error("port", f"Not found: {quote(value)}: must be a number or the name of a port of the container")
    return ports.get(value, 0)


def _headers(http: ObjectReader) -> tuple[tuple[str, str], ...]:
    found = []
    for header in http.children("httpHeaders"):
        name, value = header.required("name"), header.text("value")
        if name and not _HEADER.fullmatch(name):
            header.invalid("name", name, "must consist of letters, digits and '-'")
        if _CONTROL.search(value):
            header.invalid("value", value, "must not contain control characters")
        found.append((name, value))
    return tuple(found)
