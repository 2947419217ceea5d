"""Reads the pod level of a manifest: host namespaces, DNS, host aliases, and the containers in start order."""

import re
from typing import TypedDict

from alignup.align.bits import quote
from alignup.align.workload import names
from alignup.kube.object_reader import ObjectReader
from alignup.kube.podspec.containers import PodContext, init_container_kind, read_container, read_host_ports
from alignup.kube.podspec.security_context import (
    read_pod_security_context,
    read_supplemental_groups,
    read_sysctls,
)
from alignup.kube.podspec.types import ContainerKind, HostPort, Permission, PodSpec, RestartPolicy
from alignup.kube.podspec.volumes import mounted_volume_names, read_volumes

_DEFAULT_GRACE = 30
_DNS_POLICIES = ("ClusterFirstWithHostNet", "ClusterFirst", "Default", "None")
_MAX_NAMESERVERS = 3
_MAX_SEARCHES = 32
_MAX_SEARCH_LENGTH = 2048
_SEARCH = re.compile(r"[a-z0-9_]([-_a-z0-9]*[a-z0-9_])?(\.[a-z0-9_]([-_a-z0-9]*[a-z0-9_])?)*")
_MAX_HOSTNAME = 64

_Containers = tuple[tuple[ObjectReader, ContainerKind], ...]


class _Dns(TypedDict):
    dns_policy: str
    nameservers: tuple[str, ...]
    searches: tuple[str, ...]
    dns_options: tuple[str, ...]


def read_pod_spec(top: ObjectReader) -> PodSpec:
    """The spec in the manifest *top*; problems are recorded."""
    metadata, spec = top.child("metadata"), top.child("spec")
    containers = _containers(spec)
    grace = spec.number("terminationGracePeriodSeconds")
    grace = _DEFAULT_GRACE if grace is None else grace
    restart = RestartPolicy(spec.choice("restartPolicy", RestartPolicy, RestartPolicy.ALWAYS))
    container_names = _container_names(containers)
    used = mounted_volume_names(container for container, _ in containers)
    volumes = read_volumes(spec, used=used, containers=container_names)
    context = PodContext(
        spec=spec, containers=container_names, volumes=volumes, metadata=metadata, restart=restart, grace=grace
    )
    return PodSpec(
        name=metadata.required("name"),
        namespace=metadata.text("namespace", "default"),
        labels=metadata.string_map("labels"),
        annotations=metadata.string_map("annotations"),
        containers=tuple(read_container(container, kind, context) for container, kind in containers),
        volumes=volumes.available,
        restart=restart,
        grace=grace,
        deadline=spec.number("activeDeadlineSeconds", low=1),
        hostname=_hostname(spec),
        host_network=_shares_with_host(spec, "hostNetwork", Permission.HOST_NETWORK, "the host network"),
        host_pid=_shares_with_host(spec, "hostPID", Permission.HOST_PID, "the host PID namespace"),
        host_ipc=_shares_with_host(spec, "hostIPC", Permission.HOST_IPC, "the host IPC namespace"),
        share_pid=_share_pid(spec),
        host_aliases=_host_aliases(spec),
        ports=_host_ports(spec, containers),
        sysctls=read_sysctls(spec),
        security_context=read_pod_security_context(spec),
        groups=read_supplemental_groups(spec),
        fs_group=spec.child("securityContext").number("fsGroup"),
        runtime_handler=spec.text("runtimeClassName"),
        service_account=spec.text("serviceAccountName") or spec.text("serviceAccount"),
        **_dns(spec),
    )


def _containers(spec: ObjectReader) -> _Containers:
    """The containers in start order."""
    init = tuple((container, init_container_kind(container)) for container in spec.children("initContainers"))
    containers = tuple((container, ContainerKind.APP) for container in spec.children("containers"))
    if not containers:
        spec.error("containers", "Required value")
    return init + containers


def _container_names(containers: _Containers) -> frozenset[str]:
    taken: set[str] = set()
    for container, _ in containers:
        container.label("name", taken)
    return frozenset(taken)


def _host_ports(spec: ObjectReader, containers: _Containers) -> tuple[HostPort, ...]:
    host_network = spec.flag("hostNetwork")
    found: list[HostPort] = []
    taken: set[tuple[str, str, int]] = set()
    for container, kind in containers:
        for where, port in read_host_ports(container, kind, host_network=host_network):
            key = (port.protocol, port.host_ip, port.host_port)
            if key in taken:
                where.error("hostPort", f"Duplicate value: {quote('/'.join(map(str, key)))}")
            taken.add(key)
            found.append(port)
    return tuple(found)


def _shares_with_host(spec: ObjectReader, name: str, permission: Permission, what: str) -> bool:
    shares = spec.flag(name)
    if shares:
        spec.require(permission, name, what)
    return shares


def _share_pid(spec: ObjectReader) -> bool:
    shares = spec.flag("shareProcessNamespace")
    if shares and spec.flag("hostPID"):
        spec.error("shareProcessNamespace", "Invalid value: true: must not be set together with hostPID")
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


def _dns(spec: ObjectReader) -> _Dns:
    policy = spec.choice("dnsPolicy", _DNS_POLICIES, "ClusterFirst")
    config = spec.child("dnsConfig")
    servers, searches = config.list_of("nameservers", ObjectReader.ip_address), config.strings("searches")
    if policy == "None" and not servers:
        config.error("nameservers", "Required value: must provide at least one DNS nameserver when `dnsPolicy` is None")
    if len(servers) > _MAX_NAMESERVERS:
        config.error("nameservers", f"Invalid value: must not have more than {_MAX_NAMESERVERS} nameservers")
    _check_searches(config, searches)
    options = tuple(_dns_option(option) for option in config.children("options"))
    return {"dns_policy": policy, "nameservers": servers, "searches": searches, "dns_options": options}


def _check_searches(config: ObjectReader, searches: tuple[str, ...]) -> None:
    if len(searches) > _MAX_SEARCHES:
        config.error("searches", f"Invalid value: must not have more than {_MAX_SEARCHES} search paths")
    if len(" ".join(searches)) > _MAX_SEARCH_LENGTH:
        config.error("searches", f"Invalid value: must not have more than {_MAX_SEARCH_LENGTH} characters in total")
    for index, search in enumerate(searches):
        if search != "." and not _SEARCH.fullmatch(search.removesuffix(".")):
            config.error(f"searches[{index}]", f"Invalid value: {quote(search)}: must be a lowercase domain name")


def _dns_option(option: ObjectReader) -> str:
    name, value = option.required("name"), option.text("value")
    return f"{name}:{value}" if value else name
