"""Translate a pod spec to CRI: the configuration of its sandbox and containers.

Labels, annotations and log paths are the kubelet's, so that ``crictl`` and log and metric collectors find them. One
more label names the agent that owns a sandbox or container. DNS settings are the host's, because there is no cluster
DNS, plus the pod's ``dnsConfig``. The content of ``/etc/hosts`` is the kubelet's, byte for byte.

The order is the kubelet's, too. Environment variables of the manifest override those of device plugins, and the
agent's annotations override both. Mounts of device plugins come first, then volumes, then the agent's files.
"""

import json
import zlib
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path

from alignup.agent.pods.environment import PodFacts, expand_all
from alignup.agent.pods.files.pod_dirs import path_component
from alignup.agent.pods.pod_state import PodStartError
from alignup.align.workload import Amounts, Pod
from alignup.kubernetes.plugins.allocate_response import AllocateResponse
from alignup.kubernetes.podspec.types import ContainerSpec, PodSpec, SecurityContext
from alignup.run.cri.types import (
    ContainerConfig,
    ContainerMount,
    CriImage,
    DeviceNode,
    DnsConfig,
    LinuxResources,
    NamespaceOptions,
    PortMapping,
    SandboxConfig,
    SecurityOptions,
)

AGENT_LABEL = "alignup.agent"
POD_NAME = "io.kubernetes.pod.name"
POD_NAMESPACE = "io.kubernetes.pod.namespace"
POD_UID = "io.kubernetes.pod.uid"
CONTAINER_NAME = "io.kubernetes.container.name"

UNCONFINED, RUNTIME_DEFAULT = "Unconfined", "RuntimeDefault"
_MAX_HOSTNAME = 63  #: the kernel's limit
MAX_NAMESERVERS, MAX_SEARCHES, MAX_SEARCH_CHARACTERS = 3, 32, 2048  #: the kubelet's limits

_HOSTS_HEADER = """\
127.0.0.1\tlocalhost
::1\tlocalhost ip6-localhost ip6-loopback
fe00::0\tip6-localnet
fe00::0\tip6-mcastprefix
fe00::1\tip6-allnodes
fe00::2\tip6-allrouters
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class HostConfig:
    """What all pods on this host have in common."""

    agent: str  #: id that marks the agent's own sandboxes and containers
    log_root: Path
    cgroup_parent: str = ""  #: of every sandbox; empty: chosen by the runtime
    host_network: bool = False  #: the runtime has no CNI network, so every pod is on the host network
    host_name: str = ""
    host_ips: tuple[str, ...] = ()
    dns: DnsConfig = field(default_factory=DnsConfig)  #: the host's, which pods may extend
    allocatable: Amounts = field(default_factory=dict)  #: reported to containers without a limit
    seccomp: str = UNCONFINED  #: default profile; ``RuntimeDefault`` with ``seccompDefault``
    seccomp_root: Path = Path("/var/lib/kubelet/seccomp")  #: directory of ``Localhost`` profiles
    hosts_file: Path = Path("/etc/hosts")  #: for pods on the host network


def sandbox_config(pod: Pod, spec: PodSpec, *, attempt: int, host: HostConfig) -> SandboxConfig:
    """``PodStartError`` if the hostname is invalid, or if a sysctl would change the host network."""
    on_host = shares_network(spec, host)
    for sysctl in spec.sysctls:
        if on_host and (sysctl.startswith("net.") or sysctl == "kernel.domainname"):
            what = f"sysctl {sysctl} would change the host, because the runtime has no pod network"
            raise PodStartError("CreatePodSandboxError", f"{what}; remove it or configure CNI")
    context = spec.security_context
    return SandboxConfig(
        uid=pod.uid,
        name=pod.name,
        namespace=pod.namespace,
        attempt=attempt,
        hostname="" if on_host else hostname(spec),
        log_directory=str(log_directory(host.log_root, pod)),
        labels={**spec.labels, **_pod_labels(pod), AGENT_LABEL: host.agent},
        annotations=dict(spec.annotations),
        cgroup_parent=host.cgroup_parent,
        namespaces=_namespaces(spec, host),
        dns=pod_dns(spec, host.dns),
        ports=() if on_host else tuple(PortMapping(**asdict(port)) for port in spec.ports),
        sysctls=dict(spec.sysctls),
        security=SecurityOptions(
            user=context.user,
            group=None if context.user is None else context.group,  # containerd rejects a group without a user
            groups=spec.groups,
            privileged=any(container.security_context.privileged for container in spec.containers),
            selinux=dict(context.selinux),
        ),
        handler=spec.runtime_handler,
    )


def container_config(  # noqa: PLR0913
    pod: Pod,
    spec: PodSpec,
    container: ContainerSpec,
    *,
    attempt: int,
    image: CriImage,
    resources: LinuxResources,
    host: HostConfig,
    envs: Mapping[str, str],
    mounts: tuple[ContainerMount, ...] = (),
    devices: AllocateResponse | None = None,
) -> ContainerConfig:
    """*envs* is from ``make_environment``, *mounts* from ``build_mounts``, *devices* from all device plugins together.

    ``PodStartError`` if the command is too long.
    """
    devices = devices or AllocateResponse()
    return ContainerConfig(
        name=container.name,
        attempt=attempt,
        image=image.id,
        requested_image=container.image,
        command=expand_all(container.command, envs),
        args=expand_all(container.args, envs),
        working_dir=container.working_dir,
        envs=dict(envs),
        mounts=(*(ContainerMount(**asdict(one)) for one in devices.mounts), *mounts),
        devices=tuple(
            DeviceNode(container_path=one.container_path, host_path=one.host_path, permissions=one.permissions or "rwm")
            for one in devices.devices
        ),
        cdi=devices.cdi,
        labels={**_pod_labels(pod), CONTAINER_NAME: container.name, AGENT_LABEL: host.agent},
        annotations={**devices.annotations, **_annotations(spec, container, attempt=attempt)},
        log_path=log_path(container.name, attempt),
        stdin=container.stdin,
        stdin_once=container.stdin_once,
        tty=container.tty,
        resources=resources,
        security=_security(container.security_context, image, groups=spec.groups, host=host),
        namespaces=_namespaces(spec, host),
    )


def pod_facts(pod: Pod, spec: PodSpec, *, host: HostConfig, addresses: tuple[str, ...] = ()) -> PodFacts:
    """The downward API's facts; on the host network, the pod's addresses are the host's."""
    return PodFacts(
        pod=pod,
        host_name=host.host_name,
        host_ips=host.host_ips,
        pod_ips=host.host_ips if shares_network(spec, host) else addresses,
        service_account=spec.service_account,
        allocatable=host.allocatable,
    )


def parse_resolv_conf(text: str) -> DnsConfig:
    """Read a ``resolv.conf``: every server, the last search list, the last value of each option."""
    servers: list[str] = []
    searches: tuple[str, ...] = ()
    options: list[str] = []
    for line in text.splitlines():
        keyword, *values = line.split() or [""]
        if keyword == "nameserver":
            servers += values[:1]
        elif keyword == "search":
            searches = tuple(one.removesuffix(".") for one in values if one != ".")
        elif keyword == "options":
            options += values
    return DnsConfig(servers=tuple(servers), searches=searches, options=_last_of_each(options))


def pod_dns(spec: PodSpec, host: DnsConfig) -> DnsConfig | None:
    """The DNS settings of a pod; ``None``: the runtime copies the host's, whatever they are then."""
    own_only = spec.dns_policy == "None"
    if not own_only and not (spec.nameservers or spec.searches or spec.dns_options):
        return None
    base = DnsConfig() if own_only else host
    searches = list(dict.fromkeys((*base.searches, *spec.searches)))[:MAX_SEARCHES]
    while len(" ".join(searches)) > MAX_SEARCH_CHARACTERS:
        searches.pop()
    return DnsConfig(
        servers=tuple(dict.fromkeys((*base.servers, *spec.nameservers)))[:MAX_NAMESERVERS],
        searches=tuple(searches),
        options=_last_of_each((*base.options, *spec.dns_options)),
    )


def hosts_file_content(
    spec: PodSpec, *, hostname: str, addresses: tuple[str, ...], host_file: Path | None = None
) -> str | None:
    """The content of ``/etc/hosts``; *host_file* is the host's file, for a pod on the host network.

    ``None``: the pod has no address yet, so it gets no file.
    """
    aliases = "".join("\t".join((address, *names)) + "\n" for address, names in spec.host_aliases)
    if aliases:
        aliases = f"\n# Entries added by HostAliases.\n{aliases}"
    if host_file is not None:
        text = host_file.read_text("utf-8", "replace")
        return f"# Kubernetes-managed hosts file (host network).\n{text}{aliases}"
    if not addresses:
        return None
    own = "".join(f"{address}\t{hostname}\n" for address in addresses)
    return f"# Kubernetes-managed hosts file.\n{_HOSTS_HEADER}{own}{aliases}"


def shares_network(spec: PodSpec, host: HostConfig) -> bool:
    """Whether a pod is on the host network."""
    return spec.host_network or host.host_network


def hostname(spec: PodSpec) -> str:
    name = (spec.hostname or spec.name)[:_MAX_HOSTNAME].rstrip("-.")
    if not name:
        what = f"pod {spec.name}: {spec.hostname or spec.name!r} is not a valid hostname"
        raise PodStartError("CreatePodSandboxError", what)
    return name


def log_directory(root: Path, pod: Pod) -> Path:
    return root / path_component(f"{pod.namespace}_{pod.name}_{pod.uid}")


def log_path(container: str, attempt: int) -> str:
    """The log of a container, relative to its pod's log directory."""
    return f"{path_component(container)}/{attempt}.log"


def container_hash(container: ContainerSpec) -> str:
    """A hash of the name and image, the only fields that can change in a running pod."""
    return f"{zlib.crc32(json.dumps([container.name, container.image]).encode()):x}"


def _pod_labels(pod: Pod) -> dict[str, str]:
    return {POD_NAME: pod.name, POD_NAMESPACE: pod.namespace, POD_UID: pod.uid}


def _annotations(spec: PodSpec, container: ContainerSpec, *, attempt: int) -> Mapping[str, str]:
    """What is needed to identify a container and to stop it correctly without its manifest."""
    annotations = {
        "io.kubernetes.container.hash": container_hash(container),
        "io.kubernetes.container.restartCount": str(attempt),
        "io.kubernetes.container.terminationMessagePath": container.termination_message_path,
        "io.kubernetes.container.terminationMessagePolicy": (
            "FallbackToLogsOnError" if container.fallback_to_logs_on_error else "File"
        ),
        "io.kubernetes.pod.terminationGracePeriod": str(spec.grace),
    }
    if container.pre_stop is not None:
        hook = container.pre_stop
        handler = {"exec": {"command": hook.command}} if hook.sleep is None else {"sleep": {"seconds": hook.sleep}}
        annotations["io.kubernetes.container.preStopHandler"] = json.dumps(handler, separators=(",", ":"))
    return annotations


def _namespaces(spec: PodSpec, host: HostConfig) -> NamespaceOptions:
    return NamespaceOptions(
        host_network=shares_network(spec, host),
        host_pid=spec.host_pid,
        host_ipc=spec.host_ipc,
        share_pid=spec.share_pid and not spec.host_pid,
    )


def _security(
    context: SecurityContext, image: CriImage, *, groups: tuple[int, ...], host: HostConfig
) -> SecurityOptions:
    kind, _, profile = (context.seccomp or host.seccomp).partition("/")
    user, username = context.user, ""
    if user is None and image.user is None:
        username = image.username  # which only the image can resolve
    if user is None and not username:
        user = image.user or 0  # because runtimes reject a group without a user
    seccomp = f"{kind}/{host.seccomp_root / profile}" if profile else kind
    options = {**asdict(context), "user": user, "username": username, "groups": groups, "seccomp": seccomp}
    del options["run_as_non_root"]
    return SecurityOptions(**options)


def _last_of_each(options: Iterable[str]) -> tuple[str, ...]:
    return tuple({option.partition(":")[0]: option for option in options}.values())
