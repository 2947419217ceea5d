"""One container to run: its image, command and environment, what it mounts, and how it is looked after."""

import re
from collections.abc import Iterator, Mapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass

from alignup.align.bits import quote
from alignup.kube.podspec import environment, probes, security_context, volumes
from alignup.kube.podspec.object_reader import NO_API, ObjectReader, read_ip_address
from alignup.kube.podspec.types import ContainerKind, ContainerSpec, HostPort, Permission, PullPolicy, RestartPolicy

_IMAGE_ID = re.compile(r"[0-9a-f]{64}")
_PORT_NAME = re.compile(r"(?=.*[a-z])[a-z0-9]+(-[a-z0-9]+)*")
_PORT_NAME_LENGTH = 15
_PROTOCOLS = ("TCP", "UDP", "SCTP")
_PROBES = ("startupProbe", "livenessProbe", "readinessProbe")
_FALL_BACK = "FallbackToLogsOnError"


@dataclass(frozen=True, slots=True, kw_only=True)
class PodContext:
    """What a container needs to know of its pod."""

    spec: ObjectReader
    everyone: AbstractSet[str]  #: the names of all containers
    volumes: volumes.PodVolumes
    metadata: ObjectReader
    restart: RestartPolicy
    grace: int


def read_container(part: ObjectReader, kind: ContainerKind, around: PodContext) -> ContainerSpec:
    """The container *part* describes."""
    image = part.required("image")
    if image != image.strip():
        part.bad("image", f"Invalid value: {quote(image)}: must not have leading or trailing whitespace")
    _judge_kind(part, kind, around)
    if tuple(part.part("resources").parts("claims")):
        what = f"names devices of a resource claim, and {NO_API}; ask for those of a device plugin"
        part.bad("resources.claims", what)
    ports = _named_ports(part)
    startup, liveness, readiness = (probes.read_probe(part, probe, ports=ports) for probe in _PROBES)
    return ContainerSpec(
        name=part.text("name"),
        kind=kind,
        image=image,
        pull_policy=PullPolicy(part.choice("imagePullPolicy", PullPolicy, _usual_pull(image))),
        command=part.strings("command"),
        args=part.strings("args"),
        working_dir=part.text("workingDir"),
        env=environment.read_env(part, around.everyone),
        mounts=volumes.read_mounts(part, around.volumes),
        security_context=security_context.read_security_context(part, around.spec, metadata=around.metadata),
        post_start=probes.read_hook(part, "postStart", longest=around.grace),
        pre_stop=probes.read_hook(part, "preStop", longest=around.grace),
        startup=startup,
        liveness=liveness,
        readiness=readiness,
        stdin=part.flag("stdin"),
        stdin_once=part.flag("stdinOnce"),
        tty=part.flag("tty"),
        termination_message_path=part.text("terminationMessagePath", "/dev/termination-log"),
        fallback_to_logs_on_error=part.choice("terminationMessagePolicy", ("File", _FALL_BACK)) == _FALL_BACK,
    )


def init_container_kind(part: ObjectReader) -> ContainerKind:
    """What an init container is for."""
    return (
        ContainerKind.SIDECAR
        if part.choice("restartPolicy", RestartPolicy) == RestartPolicy.ALWAYS
        else ContainerKind.INIT
    )


def read_host_ports(
    part: ObjectReader, kind: ContainerKind, *, host_network: bool
) -> Iterator[tuple[ObjectReader, HostPort]]:
    """The ports of the host that *part* asks for; on the host's network there is nothing to lead anywhere."""
    for port in part.parts("ports"):
        inner = port.number("containerPort", least=probes.PORT_RANGE[0], most=probes.PORT_RANGE[1])
        outer = port.number("hostPort", most=probes.PORT_RANGE[1])
        protocol = port.choice("protocol", _PROTOCOLS, "TCP")
        if inner is None and not port.has("containerPort"):
            port.bad("containerPort", "Required value")
        if not outer or inner is None:
            continue
        if host_network:
            if outer != inner:
                what = f"Invalid value: {outer}: must match `containerPort` when `hostNetwork` is true"
                port.bad("hostPort", what)
            continue
        port.ask(Permission.HOST_PORT, "hostPort", "asks for a port of the host")
        if kind is ContainerKind.APP:
            yield (
                port,
                HostPort(
                    container_port=inner, host_port=outer, host_ip=read_ip_address(port, "hostIP"), protocol=protocol
                ),
            )
        else:
            port.warn("hostPort", "it is not opened: as in a cluster, only those of containers proper are")


def _named_ports(part: ObjectReader) -> Mapping[str, int]:
    """The ports that have a name."""
    found: dict[str, int] = {}
    for port in part.parts("ports"):
        name = port.text("name")
        if not name:
            continue
        if len(name) > _PORT_NAME_LENGTH or not _PORT_NAME.fullmatch(name):
            what = "must be a-z, 0-9 and single '-' inside, a letter among them"
            port.bad("name", f"Invalid value: {quote(name)}: {what}, {_PORT_NAME_LENGTH} characters at most")
        if name in found:
            port.bad("name", f"Duplicate value: {quote(name)}")
        found[name] = port.number("containerPort", least=probes.PORT_RANGE[0], most=probes.PORT_RANGE[1]) or 0
    return found


def _judge_kind(part: ObjectReader, kind: ContainerKind, around: PodContext) -> None:
    """Note what a container of this kind cannot have."""
    if kind is ContainerKind.INIT:
        for name in ("lifecycle", *_PROBES):
            if part.has(name):
                part.bad(name, "Forbidden: may not be set for init containers without restartPolicy=Always")
    # An init container of a pod that is always started again is itself started again on failure only.
    same = (
        around.restart
        if kind is ContainerKind.APP or around.restart is RestartPolicy.NEVER
        else RestartPolicy.ON_FAILURE
    )
    own = part.choice("restartPolicy", RestartPolicy, same)
    if kind is not ContainerKind.SIDECAR and own != same:
        part.warn("restartPolicy", f"the container is treated as spec.restartPolicy says: {around.restart}")


def _usual_pull(image: str) -> PullPolicy:
    """When an image is fetched if nobody says: ``latest`` may have changed."""
    named, _, digest = image.partition("@")
    tag = named.rpartition("/")[2].partition(":")[2]
    if tag == "latest" or (not tag and not digest and not _IMAGE_ID.fullmatch(image)):
        return PullPolicy.ALWAYS
    return PullPolicy.IF_NOT_PRESENT
