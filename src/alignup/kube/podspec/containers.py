"""Reads one container of a manifest."""

import re
from collections.abc import Iterator, Mapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass

from alignup.align.bits import quote
from alignup.kube.object_reader import ObjectReader
from alignup.kube.podspec.environment import read_env
from alignup.kube.podspec.probes import MAX_PORT, read_hook, read_probe
from alignup.kube.podspec.security_context import read_security_context
from alignup.kube.podspec.types import (
    ContainerKind,
    ContainerSpec,
    HostPort,
    Permission,
    PullPolicy,
    RestartPolicy,
    Volume,
)
from alignup.kube.podspec.volumes import read_mounts

_IMAGE_ID = re.compile(r"[0-9a-f]{64}")
_PORT_NAME = re.compile(r"(?=.*[a-z])[a-z0-9]+(-[a-z0-9]+)*")
_PORT_NAME_LENGTH = 15
_PROTOCOLS = ("TCP", "UDP", "SCTP")
_PROBES = ("startupProbe", "livenessProbe", "readinessProbe")
_FALLBACK_TO_LOGS = "FallbackToLogsOnError"


@dataclass(frozen=True, slots=True)
class PodContext:
    """What reading a container needs from the rest of the pod."""

    spec: ObjectReader
    metadata: ObjectReader
    containers: AbstractSet[str]  #: the names of all containers
    volumes: tuple[Volume, ...]
    volume_names: AbstractSet[str]  #: including unavailable volumes
    restart: RestartPolicy
    grace: int


def read_container(container: ObjectReader, kind: ContainerKind, pod: PodContext) -> ContainerSpec:
    image = container.required("image")
    if image != image.strip():
        container.invalid("image", image, "must not have leading or trailing whitespace")
    _check_kind(container, kind, pod)
    if container.child("resources").children("claims"):
        what = "resource claims are not supported: there is no Kubernetes API; request devices of a device plugin"
        container.error("resources.claims", what)
    ports = _named_ports(container)
    startup, liveness, readiness = (read_probe(container, probe, ports=ports) for probe in _PROBES)
    named, _, digest = image.partition("@")
    tag = named.rpartition("/")[2].partition(":")[2]
    latest = tag == "latest" or (not tag and not digest and not _IMAGE_ID.fullmatch(image))
    pull_policy = PullPolicy.ALWAYS if latest else PullPolicy.IF_NOT_PRESENT
    message_policy = container.choice("terminationMessagePolicy", ("File", _FALLBACK_TO_LOGS))
    return ContainerSpec(
        name=container.text("name"),
        kind=kind,
        image=image,
        pull_policy=PullPolicy(container.choice("imagePullPolicy", PullPolicy, pull_policy)),
        command=container.strings("command"),
        args=container.strings("args"),
        working_dir=container.text("workingDir"),
        env=read_env(container, pod.containers),
        mounts=read_mounts(container, pod.volumes, pod.volume_names),
        security_context=read_security_context(container, pod.spec, metadata=pod.metadata),
        post_start=read_hook(container, "postStart", max_sleep=pod.grace),
        pre_stop=read_hook(container, "preStop", max_sleep=pod.grace),
        startup=startup,
        liveness=liveness,
        readiness=readiness,
        stdin=container.flag("stdin"),
        stdin_once=container.flag("stdinOnce"),
        tty=container.flag("tty"),
        termination_message_path=container.text("terminationMessagePath", "/dev/termination-log"),
        fallback_to_logs_on_error=message_policy == _FALLBACK_TO_LOGS,
    )


def read_host_ports(
    container: ObjectReader, kind: ContainerKind, *, host_network: bool
) -> Iterator[tuple[ObjectReader, HostPort]]:
    """The host ports to forward, each with its reader; on the host network there is nothing to forward."""
    for port in container.children("ports"):
        inner = port.number("containerPort", low=1, high=MAX_PORT)
        outer = port.number("hostPort", high=MAX_PORT)
        protocol = port.choice("protocol", _PROTOCOLS, "TCP")
        if inner is None and not port.has("containerPort"):
            port.error("containerPort", "Required value")
        if not outer or inner is None:
            continue
        if host_network:
            if outer != inner:
                what = f"Invalid value: {outer}: must match `containerPort` when `hostNetwork` is true"
                port.error("hostPort", what)
            continue
        port.require(Permission.HOST_PORT, "hostPort", "a host port")
        if kind is ContainerKind.APP:
            address = port.ip_address("hostIP")
            yield port, HostPort(container_port=inner, host_port=outer, host_ip=address, protocol=protocol)
        else:
            port.warn("hostPort", "ignored: as in Kubernetes, host ports of init containers are not opened")


def _named_ports(container: ObjectReader) -> Mapping[str, int]:
    found: dict[str, int] = {}
    for port in container.children("ports"):
        name = port.text("name")
        if not name:
            continue
        if len(name) > _PORT_NAME_LENGTH or not _PORT_NAME.fullmatch(name):
            allowed = f"at most {_PORT_NAME_LENGTH} characters a-z, 0-9 and single inner '-', with at least one letter"
            port.invalid("name", name, f"must have {allowed}")
        if name in found:
            port.error("name", f"Duplicate value: {quote(name)}")
        found[name] = port.number("containerPort", low=1, high=MAX_PORT) or 0
    return found


def _check_kind(container: ObjectReader, kind: ContainerKind, pod: PodContext) -> None:
    """Record fields that a container of this kind must not have."""
    if kind is ContainerKind.INIT:
        for name in ("lifecycle", *_PROBES):
            if container.has(name):
                container.error(name, "Forbidden: may not be set for init containers without restartPolicy=Always")
    # With restartPolicy Always, an init container restarts only on failure.
    inherits = kind is ContainerKind.APP or pod.restart is RestartPolicy.NEVER
    expected = pod.restart if inherits else RestartPolicy.ON_FAILURE
    own = container.choice("restartPolicy", RestartPolicy, expected)
    if kind is not ContainerKind.SIDECAR and own != expected:
        container.warn("restartPolicy", f"ignored: spec.restartPolicy applies ({pod.restart})")
