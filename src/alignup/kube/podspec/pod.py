"""The pod as a whole: its containers in the order they begin, and what they have in common."""

import re
from typing import TypedDict

from alignup.align.bits import quote
from alignup.align.workload import names
from alignup.kube.podspec.containers import PodContext, init_container_kind, read_container, read_host_ports
from alignup.kube.podspec.object_reader import ObjectReader, read_ip_address
from alignup.kube.podspec.security_context import read_pod_security_context, read_supplemental_groups, read_sysctls
from alignup.kube.podspec.types import ContainerKind, ContainerSpec, HostPort, Permission, PodSpec, RestartPolicy
from alignup.kube.podspec.volumes import mounted_volume_names, read_volumes

_USUAL_GRACE = 30
_DNS_POLICIES = ("ClusterFirstWithHostNet", "ClusterFirst", "Default", "None")
_MAX_NAMESERVERS = 3
_MAX_SEARCHES = 32
_MAX_SEARCH_LENGTH = 2048
_SEARCH = re.compile(r"[a-z0-9_]([-_a-z0-9]*[a-z0-9_])?(\.[a-z0-9_]([-_a-z0-9]*[a-z0-9_])?)*")
_MAX_HOSTNAME = 64

_Parts = tuple[tuple[ObjectReader, ContainerKind], ...]


class _Dns(TypedDict):
    dns_policy: str
    nameservers: tuple[str, ...]
    searches: tuple[str, ...]
    dns_options: tuple[str, ...]


def read_pod_spec(top: ObjectReader) -> PodSpec:
    """What the manifest *top* wants to be run; what is wrong with it is noted."""
    metadata, spec = top.part("metadata"), top.part("spec")
    parts = _parts(spec)
    grace = spec.number("terminationGracePeriodSeconds")
    grace = _USUAL_GRACE if grace is None else grace
    restart = RestartPolicy(spec.choice("restartPolicy", RestartPolicy, RestartPolicy.ALWAYS))
    everyone = _names(parts)
    volumes = read_volumes(spec, used=mounted_volume_names(tuple(part for part, _ in parts)), everyone=everyone)
    around = PodContext(spec=spec, everyone=everyone, volumes=volumes, metadata=metadata, restart=restart, grace=grace)
    return PodSpec(
        name=metadata.required("name"),
        namespace=metadata.text("namespace", "default"),
        labels=metadata.texts("labels"),
        annotations=metadata.texts("annotations"),
        containers=_containers(parts, around),
        volumes=volumes.kept,
        restart=restart,
        grace=grace,
        deadline=spec.number("activeDeadlineSeconds", least=1),
        hostname=_hostname(spec),
        host_network=_of_host(spec, Permission.HOST_NETWORK, "hostNetwork", "network"),
        host_pid=_of_host(spec, Permission.HOST_PID, "hostPID", "processes"),
        host_ipc=_of_host(spec, Permission.HOST_IPC, "hostIPC", "shared memory and semaphores"),
        share_pid=_share_pid(spec),
        host_aliases=_aliases(spec),
        ports=_ports(spec, parts),
        sysctls=read_sysctls(spec),
        security_context=read_pod_security_context(spec),
        groups=read_supplemental_groups(spec),
        fs_group=spec.part("securityContext").number("fsGroup"),
        runtime_handler=spec.text("runtimeClassName"),
        service_account=spec.text("serviceAccountName") or spec.text("serviceAccount"),
        **_dns(spec),
    )


def _parts(spec: ObjectReader) -> _Parts:
    """The containers, those first that begin first."""
    init = tuple((part, init_container_kind(part)) for part in spec.parts("initContainers"))
    containers = tuple((part, ContainerKind.APP) for part in spec.parts("containers"))
    if not containers:
        spec.bad("containers", "Required value")
    return init + containers


def _names(parts: _Parts) -> frozenset[str]:
    taken: set[str] = set()
    for part, _ in parts:
        part.label("name", taken)
    return frozenset(taken)


def _containers(parts: _Parts, around: PodContext) -> tuple[ContainerSpec, ...]:
    return tuple(read_container(part, kind, around) for part, kind in parts)


def _ports(spec: ObjectReader, parts: _Parts) -> tuple[HostPort, ...]:
    """The ports of the host; two cannot be the same."""
    on_host = spec.flag("hostNetwork")
    found: list[HostPort] = []
    taken: set[tuple[str, str, int]] = set()
    for part, kind in parts:
        for where, port in read_host_ports(part, kind, host_network=on_host):
            key = (port.protocol, port.host_ip, port.host_port)
            if key in taken:
                where.bad("hostPort", f"Duplicate value: {quote('/'.join(map(str, key)))}")
            taken.add(key)
            found.append(port)
    return tuple(found)


def _of_host(spec: ObjectReader, permission: Permission, name: str, what: str) -> bool:
    """Whether the pod shares something with the host, which has to be allowed."""
    shares = spec.flag(name)
    if shares:
        spec.ask(permission, name, f"asks for the host's {what}")
    return shares


def _share_pid(spec: ObjectReader) -> bool:
    shares = spec.flag("shareProcessNamespace")
    if shares and spec.flag("hostPID"):
        spec.bad("shareProcessNamespace", "Invalid value: true: cannot be set where hostPID is")
    return shares


def _hostname(spec: ObjectReader) -> str:
    """What the pod is to call itself."""
    for name in ("hostname", "subdomain"):
        if text := spec.text(name):
            spec.judge(name, text, names.label_faults(text))
    override = spec.text("hostnameOverride")
    if override:
        spec.judge("hostnameOverride", override, names.subdomain_faults(override))
        if len(override) > _MAX_HOSTNAME:
            spec.bad("hostnameOverride", f"Too long: may not be more than {_MAX_HOSTNAME} bytes")
        for name in ("setHostnameAsFQDN", "hostNetwork"):
            if spec.flag(name):
                spec.bad("hostnameOverride", f"Forbidden: may not be specified when {name} is true")
    return override or spec.text("hostname")


def _aliases(spec: ObjectReader) -> tuple[tuple[str, tuple[str, ...]], ...]:
    found = []
    for part in spec.parts("hostAliases"):
        hostnames = part.strings("hostnames")
        part.required("ip")
        for index, name in enumerate(hostnames):
            part.judge(f"hostnames[{index}]", name, names.subdomain_faults(name))
        found.append((read_ip_address(part, "ip"), hostnames))
    return tuple(found)


def _dns(spec: ObjectReader) -> _Dns:
    """How names are looked up, and where."""
    policy = spec.choice("dnsPolicy", _DNS_POLICIES, "ClusterFirst")
    config = spec.part("dnsConfig")
    servers, searches = config.strings("nameservers"), config.strings("searches")
    if policy == "None" and not servers:
        config.bad("nameservers", "Required value: must provide at least one DNS nameserver when `dnsPolicy` is None")
    if len(servers) > _MAX_NAMESERVERS:
        config.bad("nameservers", f"Invalid value: must not have more than {_MAX_NAMESERVERS} nameservers")
    listed = config.each("nameservers")
    for name in listed.found:
        read_ip_address(listed, name)
    _judge_searches(config, searches)
    options = tuple(_option(part) for part in config.parts("options"))
    return {"dns_policy": policy, "nameservers": servers, "searches": searches, "dns_options": options}


def _judge_searches(config: ObjectReader, searches: tuple[str, ...]) -> None:
    if len(searches) > _MAX_SEARCHES:
        config.bad("searches", f"Invalid value: must not have more than {_MAX_SEARCHES} search paths")
    if len(" ".join(searches)) > _MAX_SEARCH_LENGTH:
        config.bad("searches", f"Invalid value: must not have more than {_MAX_SEARCH_LENGTH} characters in all")
    for index, search in enumerate(searches):
        if search != "." and not _SEARCH.fullmatch(search.removesuffix(".")):
            config.bad(f"searches[{index}]", f"Invalid value: {quote(search)}: must be a domain in lower case")


def _option(part: ObjectReader) -> str:
    name, value = part.required("name"), part.text("value")
    return f"{name}:{value}" if value else name
