"""Reads the spec in a manifest: containers in start order, probes, ports, host namespaces, DNS, host aliases."""

import re
from collections.abc import Mapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass

from alignup.align.bits import quote
from alignup.align.workload import names
from alignup.kubernetes.manifests.object_reader import ObjectReader
from alignup.kubernetes.podspec.environment import read_env
from alignup.kubernetes.podspec.security_context import read_security_context, read_sysctls
from alignup.kubernetes.podspec.types import (
    ContainerKind,
    ContainerSpec,
    HostPort,
    LifecycleHook,
    Permission,
    PodSpec,
    Probe,
    PullPolicy,
    RestartPolicy,
    Volume,
)
from alignup.kubernetes.podspec.volumes import read_mounts, read_volumes

_MAX_PORT = 65_535

_PROBE_HANDLERS = ("exec", "httpGet", "tcpSocket", "grpc")
_HOOK_HANDLERS = ("exec", "httpGet", "tcpSocket", "sleep")
_HEADER = re.compile(r"[-A-Za-z0-9]+")
_CONTROL = re.compile(r"[\x00-\x08\x0a-\x1f\x7f]")
#: Probe → what holds without it.
_WITHOUT_PROBE = {
    "startupProbe": "the container counts as started once it runs",
    "livenessProbe": "the container counts as live while it runs",
    "readinessProbe": "the container counts as ready once it runs",
}
_IMAGE_ID = re.compile(r"[0-9a-f]{64}")
_PORT_NAME = re.compile(r"(?=.*[a-z])[a-z0-9]+(-[a-z0-9]+)*")
_PORT_NAME_LENGTH = 15
_PROTOCOLS = ("TCP", "UDP", "SCTP")
_FALLBACK_TO_LOGS = "FallbackToLogsOnError"
_DEFAULT_GRACE = 30
_DNS_POLICIES = ("ClusterFirstWithHostNet", "ClusterFirst", "Default", "None")
_MAX_NAMESERVERS = 3
_MAX_SEARCHES = 32
_MAX_SEARCH_LENGTH = 2048
_SEARCH = re.compile(r"[a-z0-9_]([-_a-z0-9]*[a-z0-9_])?(\.[a-z0-9_]([-_a-z0-9]*[a-z0-9_])?)*")
_MAX_HOSTNAME = 64

_Containers = tuple[tuple[ObjectReader, ContainerKind], ...]


@dataclass(frozen=True, slots=True)
class _PodContext:
    """What reading a container needs from the rest of the pod."""

    spec: ObjectReader
    metadata: ObjectReader
    containers: AbstractSet[str]  #: the names of all containers
    volumes: tuple[Volume, ...]
    volume_names: AbstractSet[str]  #: including unavailable volumes
    restart: RestartPolicy
    grace: int


def read_pod_spec(top: ObjectReader) -> PodSpec:
    metadata, spec = top.child("metadata"), top.child("spec")
    containers = _containers(spec)
    grace = spec.number("terminationGracePeriodSeconds")
    grace = _DEFAULT_GRACE if grace is None else grace
    restart = RestartPolicy(spec.choice("restartPolicy", RestartPolicy, RestartPolicy.ALWAYS))
    container_names: set[str] = set()
    for container, _ in containers:
        container.label("name", container_names)
    volumes, volume_names = read_volumes(spec, [container for container, _ in containers], container_names)
    context = _PodContext(spec, metadata, container_names, volumes, volume_names, restart, grace)
    security = spec.child("securityContext")
    groups = (*security.list_of("supplementalGroups", ObjectReader.number), security.number("fsGroup"))
    dns = spec.child("dnsConfig")
    empty = ObjectReader(spec.diagnostics, "", {})
    pod = PodSpec(
        name=metadata.required("name"),
        namespace=metadata.text("namespace", "default"),
        labels=metadata.string_map("labels"),
        annotations=metadata.string_map("annotations"),
        containers=tuple(_read_container(container, kind, context) for container, kind in containers),
        volumes=volumes,
        restart=restart,
        grace=grace,
        deadline=spec.number("activeDeadlineSeconds", low=1),
        hostname=_hostname(spec),
        host_network=_shares_with_host(spec, "hostNetwork", Permission.HOST_NETWORK, "the host network"),
        host_pid=_shares_with_host(spec, "hostPID", Permission.HOST_PID, "the host PID namespace"),
        host_ipc=_shares_with_host(spec, "hostIPC", Permission.HOST_IPC, "the host IPC namespace"),
        share_pid=spec.flag("shareProcessNamespace"),
        host_aliases=_host_aliases(spec),
        ports=_host_ports(spec, containers),
        sysctls=read_sysctls(spec),
        security_context=read_security_context(empty, spec, metadata=empty),
        groups=tuple(dict.fromkeys(group for group in groups if group is not None)),
        fs_group=security.number("fsGroup"),
        runtime_handler=spec.text("runtimeClassName"),
        service_account=spec.text("serviceAccountName") or spec.text("serviceAccount"),
        dns_policy=spec.choice("dnsPolicy", _DNS_POLICIES, "ClusterFirst"),
        nameservers=dns.list_of("nameservers", ObjectReader.ip_address),
        searches=dns.strings("searches"),
        dns_options=tuple(
            ":".join(filter(None, (option.required("name"), option.text("value"))))
            for option in dns.children("options")
        ),
    )
    if pod.share_pid and pod.host_pid:
        spec.error("shareProcessNamespace", "Invalid value: true: must not be set together with hostPID")
    _check_dns(pod, dns)
    return pod


def _containers(spec: ObjectReader) -> _Containers:
    init = spec.children("initContainers")
    sidecars = [one.choice("restartPolicy", RestartPolicy) == RestartPolicy.ALWAYS for one in init]
    kinds = [ContainerKind.SIDECAR if sidecar else ContainerKind.INIT for sidecar in sidecars]
    containers = tuple((container, ContainerKind.APP) for container in spec.children("containers"))
    if not containers:
        spec.error("containers", "Required value")
    return (*zip(init, kinds, strict=True), *containers)


def _shares_with_host(spec: ObjectReader, name: str, permission: Permission, what: str) -> bool:
    shares = spec.flag(name)
    if shares:
        spec.require(permission, name, what)
    return shares


def _hostname(spec: ObjectReader) -> str:
    for name in ("hostname", "subdomain"):
        if text := spec.text(name):
            spec.faults(name, text, names.label_problems(text))
    override = spec.text("hostnameOverride")
    if override:
        spec.faults("hostnameOverride", override, names.subdomain_problems(override))
        if len(override) > _MAX_HOSTNAME:
            spec.error("hostnameOverride", f"Too long: may not be more than {_MAX_HOSTNAME} bytes")
        for name in ("setHostnameAsFQDN", "hostNetwork"):
            if spec.flag(name):
                spec.error("hostnameOverride", f"Forbidden: may not be specified when {name} is true")
    return override or spec.text("hostname")


def _host_aliases(spec: ObjectReader) -> tuple[tuple[str, tuple[str, ...]], ...]:
    found = []
    for alias in spec.children("hostAliases"):
        hostnames = alias.strings("hostnames")
        alias.required("ip")
        for index, name in enumerate(hostnames):
            alias.faults(f"hostnames[{index}]", name, names.subdomain_problems(name))
        found.append((alias.ip_address("ip"), hostnames))
    return tuple(found)


def _check_dns(pod: PodSpec, dns: ObjectReader) -> None:
    if pod.dns_policy == "None" and not pod.nameservers:
        dns.error("nameservers", "Required value: must provide at least one DNS nameserver when `dnsPolicy` is None")
    if len(pod.nameservers) > _MAX_NAMESERVERS:
        dns.error("nameservers", f"Invalid value: must not have more than {_MAX_NAMESERVERS} nameservers")
    if len(pod.searches) > _MAX_SEARCHES:
        dns.error("searches", f"Invalid value: must not have more than {_MAX_SEARCHES} search paths")
    if len(" ".join(pod.searches)) > _MAX_SEARCH_LENGTH:
        dns.error("searches", f"Invalid value: must not have more than {_MAX_SEARCH_LENGTH} characters in total")
    for index, search in enumerate(pod.searches):
        if search != "." and not _SEARCH.fullmatch(search.removesuffix(".")):
            dns.invalid(f"searches[{index}]", search, "must be a lowercase domain name")


def _read_container(container: ObjectReader, kind: ContainerKind, pod: _PodContext) -> ContainerSpec:
    image = container.required("image")
    if image != image.strip():
        container.invalid("image", image, "must not have leading or trailing whitespace")
    _check_kind(container, kind, pod)
    if container.child("resources").children("claims"):
        what = "resource claims are not supported: there is no Kubernetes API; request devices of a device plugin"
        container.error("resources.claims", what)
    ports = _named_ports(container)
    startup, liveness, readiness = (_read_probe(container, name, ports=ports) for name in _WITHOUT_PROBE)
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
        post_start=_read_hook(container, "postStart", max_sleep=pod.grace),
        pre_stop=_read_hook(container, "preStop", max_sleep=pod.grace),
        startup=startup,
        liveness=liveness,
        readiness=readiness,
        stdin=container.flag("stdin"),
        stdin_once=container.flag("stdinOnce"),
        tty=container.flag("tty"),
        termination_message_path=container.text("terminationMessagePath", "/dev/termination-log"),
        fallback_to_logs_on_error=message_policy == _FALLBACK_TO_LOGS,
    )


def _host_ports(spec: ObjectReader, containers: _Containers) -> tuple[HostPort, ...]:
    """The host ports to forward; on the host network there is nothing to forward."""
    found: dict[tuple[str, str, int], HostPort] = {}
    for port, kind in ((port, kind) for container, kind in containers for port in container.children("ports")):
        inner = port.number("containerPort", low=1, high=_MAX_PORT)
        outer = port.number("hostPort", high=_MAX_PORT)
        protocol = port.choice("protocol", _PROTOCOLS, "TCP")
        if inner is None and not port.has("containerPort"):
            port.error("containerPort", "Required value")
        if not outer or inner is None:
            continue
        if spec.flag("hostNetwork"):
            if outer != inner:
                what = f"Invalid value: {outer}: must match `containerPort` when `hostNetwork` is true"
                port.error("hostPort", what)
            continue
        port.require(Permission.HOST_PORT, "hostPort", "a host port")
        if kind is not ContainerKind.APP:
            port.warn("hostPort", "ignored: as in Kubernetes, host ports of init containers are not opened")
            continue
        key = (protocol, port.ip_address("hostIP"), outer)
        if key in found:
            port.error("hostPort", f"Duplicate value: {quote('/'.join(map(str, key)))}")
        found[key] = HostPort(container_port=inner, host_port=outer, host_ip=key[1], protocol=protocol)
    return tuple(found.values())


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
        found[name] = port.number("containerPort", low=1, high=_MAX_PORT) or 0
    return found


def _check_kind(container: ObjectReader, kind: ContainerKind, pod: _PodContext) -> None:
    if kind is ContainerKind.INIT:
        for name in ("lifecycle", *_WITHOUT_PROBE):
            if container.has(name):
                container.error(name, "Forbidden: may not be set for init containers without restartPolicy=Always")
    # With restartPolicy Always, an init container restarts only on failure.
    inherits = kind is ContainerKind.APP or pod.restart is RestartPolicy.NEVER
    expected = pod.restart if inherits else RestartPolicy.ON_FAILURE
    own = container.choice("restartPolicy", RestartPolicy, expected)
    if kind is not ContainerKind.SIDECAR and own != expected:
        container.warn("restartPolicy", f"ignored: spec.restartPolicy applies ({pod.restart})")


def _read_probe(container: ObjectReader, name: str, *, ports: Mapping[str, int]) -> Probe | None:
    """A probe of *container*, whose named ports are *ports*; ``None`` if it has no such probe."""
    if not container.has(name):
        return None
    probe = container.child(name)
    handler = _handler(probe, _PROBE_HANDLERS)
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


def _read_hook(container: ObjectReader, name: str, *, max_sleep: int) -> LifecycleHook | None:
    """A lifecycle hook of *container*; ``None`` if it has no such hook, or one without effect."""
    lifecycle = container.child("lifecycle")
    if not lifecycle.has(name):
        return None
    hook = lifecycle.child(name)
    match _handler(hook, _HOOK_HANDLERS):
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
        return target.number("port", low=1, high=_MAX_PORT) or 0
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
