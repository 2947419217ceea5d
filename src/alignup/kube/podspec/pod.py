"""Reads the pod level of a manifest: host namespaces, DNS, host aliases, and the containers in start order."""

import re

from alignup.align.bits import quote
from alignup.align.workload import names
from alignup.kube.object_reader import ObjectReader
from alignup.kube.podspec.containers import PodContext, read_container, read_host_ports
from alignup.kube.podspec.security_context import read_security_context, read_sysctls
from alignup.kube.podspec.types import ContainerKind, HostPort, Permission, PodSpec, RestartPolicy
from alignup.kube.podspec.volumes import read_volumes

_DEFAULT_GRACE = 30
_DNS_POLICIES = ("ClusterFirstWithHostNet", "ClusterFirst", "Default", "None")
_MAX_NAMESERVERS = 3
_MAX_SEARCHES = 32
_MAX_SEARCH_LENGTH = 2048
_SEARCH = re.compile(r"[a-z0-9_]([-_a-z0-9]*[a-z0-9_])?(\.[a-z0-9_]([-_a-z0-9]*[a-z0-9_])?)*")
_MAX_HOSTNAME = 64

_Containers = tuple[tuple[ObjectReader, ContainerKind], ...]


def read_pod_spec(top: ObjectReader) -> PodSpec:
    """The spec in the manifest *top*; problems are recorded."""
    metadata, spec = top.child("metadata"), top.child("spec")
    containers = _containers(spec)
    grace = spec.number("terminationGracePeriodSeconds")
    grace = _DEFAULT_GRACE if grace is None else grace
    restart = RestartPolicy(spec.choice("restartPolicy", RestartPolicy, RestartPolicy.ALWAYS))
    container_names: set[str] = set()
    for container, _ in containers:
        container.label("name", container_names)
    volumes, volume_names = read_volumes(spec, [container for container, _ in containers], container_names)
    context = PodContext(spec, metadata, container_names, volumes, volume_names, restart, grace)
    security = spec.child("securityContext")
    groups = (*security.list_of("supplementalGroups", ObjectReader.number), security.number("fsGroup"))
    dns = spec.child("dnsConfig")
    empty = ObjectReader(spec.diagnostics, "", {})
    pod = PodSpec(
        name=metadata.required("name"),
        namespace=metadata.text("namespace", "default"),
        labels=metadata.string_map("labels"),
        annotations=metadata.string_map("annotations"),
        containers=tuple(read_container(container, kind, context) for container, kind in containers),
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
        dns_options=tuple(map(_dns_option, dns.children("options"))),
    )
    if pod.share_pid and pod.host_pid:
        spec.error("shareProcessNamespace", "Invalid value: true: must not be set together with hostPID")
    _check_dns(pod, dns)
    return pod


def _containers(spec: ObjectReader) -> _Containers:
    """The containers in start order."""
    init = spec.children("initContainers")
    sidecars = [one.choice("restartPolicy", RestartPolicy) == RestartPolicy.ALWAYS for one in init]
    kinds = [ContainerKind.SIDECAR if sidecar else ContainerKind.INIT for sidecar in sidecars]
    containers = tuple((container, ContainerKind.APP) for container in spec.children("containers"))
    if not containers:
        spec.error("containers", "Required value")
    return (*zip(init, kinds, strict=True), *containers)


def _host_ports(spec: ObjectReader, containers: _Containers) -> tuple[HostPort, ...]:
    host_network = spec.flag("hostNetwork")
    found: dict[tuple[str, str, int], HostPort] = {}
    for container, kind in containers:
        for where, port in read_host_ports(container, kind, host_network=host_network):
            key = (port.protocol, port.host_ip, port.host_port)
            if key in found:
                where.error("hostPort", f"Duplicate value: {quote('/'.join(map(str, key)))}")
            found[key] = port
    return tuple(found.values())


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


def _dns_option(option: ObjectReader) -> str:
    name, value = option.required("name"), option.text("value")
    return f"{name}:{value}" if value else name


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
