"""From a manifest to what the runtime is told: the sandbox of a pod, and each container in it.

Labels, annotations and paths of logs are the kubelet's, so that ``crictl`` and whatever collects logs and metrics find
their way; one label more says which agent a sandbox or container belongs to. All here is pure: directories, images and
addresses are there before, and are handed in.

The order is the kubelet's too. Of variables the manifest's count, not those of a device plugin; of annotations ours.
Mounts of device plugins come first, then volumes, then files of ours.
"""

import json
import zlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from alignup.agent.pods import dns
from alignup.agent.pods.environment import PodFacts, expand_all
from alignup.agent.pods.errors import PodStartError
from alignup.agent.pods.pod_dirs import path_component
from alignup.align.workload import Amounts, Pod
from alignup.enforce.cri.types import (
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
from alignup.kube.podspec.types import ContainerSpec, LifecycleHook, PodSpec, SecurityContext
from alignup.kube.podspec.types import HostPort as SpecPort
from alignup.plugins.allocate_response import AllocateResponse
from alignup.plugins.allocate_response import DeviceSpec as GrantedDevice
from alignup.plugins.allocate_response import MountSpec as GrantedMount

AGENT_LABEL = "alignup.agent"
POD_NAME = "io.kubernetes.pod.name"
POD_NAMESPACE = "io.kubernetes.pod.namespace"
POD_UID = "io.kubernetes.pod.uid"
CONTAINER_NAME = "io.kubernetes.container.name"

CONTAINER_HASH = "io.kubernetes.container.hash"
RESTART_COUNT = "io.kubernetes.container.restartCount"
TERMINATION_MESSAGE_PATH = "io.kubernetes.container.terminationMessagePath"
TERMINATION_MESSAGE_POLICY = "io.kubernetes.container.terminationMessagePolicy"
PRE_STOP_HANDLER = "io.kubernetes.container.preStopHandler"
TERMINATION_GRACE_PERIOD = "io.kubernetes.pod.terminationGracePeriod"

UNCONFINED, RUNTIME_DEFAULT = "Unconfined", "RuntimeDefault"
_LONGEST_HOSTNAME = 63


@dataclass(frozen=True, slots=True, kw_only=True)
class HostConfig:
    """What all pods have in common on this host."""

    agent: str  #: its id, by which it knows its own again
    log_root: Path
    cgroup_parent: str = ""  #: of every sandbox; empty: the runtime's own choice
    host_network: bool = False  #: the runtime has no network: every pod is on the host's
    host: str = ""  #: its name
    host_ips: tuple[str, ...] = ()
    dns: DnsConfig = field(default_factory=DnsConfig)  #: the host's, to which pods may add
    allocatable: Amounts = field(default_factory=dict)  #: what containers without a limit are told they may use
    seccomp: str = UNCONFINED  #: of containers that do not say; with ``seccompDefault``: ``RuntimeDefault``
    seccomp_root: Path = Path("/var/lib/kubelet/seccomp")  #: where profiles of this host lie


def sandbox_config(pod: Pod, spec: PodSpec, *, attempt: int, place: HostConfig) -> SandboxConfig:
    """The sandbox of a pod, made for the *attempt*-th time.

    ``PodStartError`` when its name is of no use, or when it would change the network of the host.
    """
    on_host = shares_network(spec, place)
    if on_host:
        _check_sysctls(spec)
    return SandboxConfig(
        uid=pod.uid,
        name=pod.name,
        namespace=pod.namespace,
        attempt=attempt,
        hostname="" if on_host else hostname(spec),
        log_directory=str(log_directory(place.log_root, pod)),
        labels={**spec.labels, **_pod_labels(pod), AGENT_LABEL: place.agent},
        annotations=dict(spec.annotations),
        cgroup_parent=place.cgroup_parent,
        namespaces=_namespaces(spec, place),
        dns=dns.pod_dns(spec, place.dns),
        ports=() if on_host else tuple(map(_port, spec.ports)),  # on the host's network nothing leads anywhere
        sysctls=dict(spec.sysctls),
        security=SecurityOptions(
            user=spec.security_context.user,
            group=None if spec.security_context.user is None else spec.security_context.group,  # containerd takes none without a user
            groups=spec.groups,
            privileged=any(container.security_context.privileged for container in spec.containers),
            selinux=dict(spec.security_context.selinux),
        ),
        handler=spec.runtime_handler,
    )


def container_config(  # noqa: PLR0913 - all that a container is made of
    pod: Pod,
    spec: PodSpec,
    container: ContainerSpec,
    *,
    attempt: int,
    image: CriImage,
    resources: LinuxResources,
    place: HostConfig,
    envs: Mapping[str, str],
    mounts: tuple[ContainerMount, ...] = (),
    grant: AllocateResponse | None = None,
) -> ContainerConfig:
    """A container, made for the *attempt*-th time.

    *envs* is its ``variables.environment``; *mounts* is what ``volumes.furnish`` made ready; *grant* is all that device
    plugins gave. ``PodStartError`` when its command grows too long.
    """
    grant = grant or AllocateResponse()
    return ContainerConfig(
        name=container.name,
        attempt=attempt,
        image=image.id,
        named=container.image,
        command=expand_all(container.command, envs),
        args=expand_all(container.args, envs),
        working_dir=container.working_dir,
        envs=dict(envs),
        mounts=(*map(_granted_mount, grant.mounts), *mounts),
        devices=tuple(map(_granted_device, grant.devices)),
        cdi=grant.cdi,
        labels={**_pod_labels(pod), CONTAINER_NAME: container.name, AGENT_LABEL: place.agent},
        annotations={**grant.annotations, **_annotations(spec, container, attempt=attempt)},
        log_path=log_path(container.name, attempt),
        stdin=container.stdin,
        stdin_once=container.stdin_once,
        tty=container.tty,
        resources=resources,
        security=_security(container.security_context, image, groups=spec.groups, place=place),
        namespaces=_namespaces(spec, place),
    )


def pod_facts(pod: Pod, spec: PodSpec, *, place: HostConfig, addresses: tuple[str, ...] = ()) -> PodFacts:
    """What variables and volumes can tell of a pod; on the host's network its addresses are the host's."""
    return PodFacts(
        pod=pod,
        host=place.host,
        host_ips=place.host_ips,
        pod_ips=place.host_ips if shares_network(spec, place) else addresses,
        service_account=spec.service_account,
        allocatable=place.allocatable,
    )


def shares_network(spec: PodSpec, place: HostConfig) -> bool:
    """Whether a pod is on the host's network."""
    return spec.host_network or place.host_network


def hostname(spec: PodSpec) -> str:
    """The name a pod has for itself; the kernel takes 63 characters."""
    name = (spec.hostname or spec.name)[:_LONGEST_HOSTNAME].rstrip("-.")
    if not name:
        raise PodStartError("CreatePodSandboxError", f"pod {spec.name} cannot be named {spec.hostname or spec.name!r}")
    return name


def log_directory(root: Path, pod: Pod) -> Path:
    """Where all logs of a pod are."""
    return root / path_component(f"{pod.namespace}_{pod.name}_{pod.uid}")


def log_path(container: str, attempt: int) -> str:
    """The log of a container in that directory."""
    return f"{path_component(container)}/{attempt}.log"


def container_hash(container: ContainerSpec) -> str:
    """The same as long as the name and the image of a container are: all else of it never changes in a pod."""
    return f"{zlib.crc32(json.dumps([container.name, container.image]).encode()):x}"


def _pod_labels(pod: Pod) -> dict[str, str]:
    return {POD_NAME: pod.name, POD_NAMESPACE: pod.namespace, POD_UID: pod.uid}


def _annotations(spec: PodSpec, container: ContainerSpec, *, attempt: int) -> Mapping[str, str]:
    """What is needed to know a container again, and to stop it right, when its manifest is gone."""
    told = {
        CONTAINER_HASH: container_hash(container),
        RESTART_COUNT: str(attempt),
        TERMINATION_MESSAGE_PATH: container.termination_message_path,
        TERMINATION_MESSAGE_POLICY: "FallbackToLogsOnError" if container.fallback_to_logs_on_error else "File",
        TERMINATION_GRACE_PERIOD: str(spec.grace),
    }
    if container.pre_stop is not None:
        told[PRE_STOP_HANDLER] = json.dumps(_handler(container.pre_stop), separators=(",", ":"))
    return told


def _handler(hook: LifecycleHook) -> dict[str, object]:
    if hook.sleep is not None:
        return {"sleep": {"seconds": hook.sleep}}
    return {"exec": {"command": list(hook.command)}}


def _namespaces(spec: PodSpec, place: HostConfig) -> NamespaceOptions:
    return NamespaceOptions(
        host_network=shares_network(spec, place),
        host_pid=spec.host_pid,
        host_ipc=spec.host_ipc,
        share_pid=spec.share_pid and not spec.host_pid,
    )


def _check_sysctls(spec: PodSpec) -> None:
    """A manifest that asks for the host's network may not set these; one that is put there by force must not either."""
    for name in spec.sysctls:
        if name.startswith("net.") or name == "kernel.domainname":
            what = f"sysctl {name} would be the host's, as pods have no network of their own here"
            raise PodStartError("CreatePodSandboxError", f"{what}; leave it out, or give the runtime a network (CNI)")


def _security(
    rights: SecurityContext, image: CriImage, *, groups: tuple[int, ...], place: HostConfig
) -> SecurityOptions:
    kind, _, profile = (rights.seccomp or place.seccomp).partition("/")
    user, username = _user(rights, image)
    return SecurityOptions(
        user=user,
        username=username,
        group=rights.group,
        groups=groups,
        privileged=rights.privileged,
        read_only_root=rights.read_only_root,
        no_new_privileges=rights.no_new_privileges,
        add=rights.add,
        drop=rights.drop,
        seccomp=f"{kind}/{place.seccomp_root / profile}" if profile else kind,
        apparmor=rights.apparmor,
        selinux=dict(rights.selinux),
        unmasked=rights.unmasked,
    )


def _user(rights: SecurityContext, image: CriImage) -> tuple[int | None, str]:
    """As whom a container runs: a number, or a name that only its image knows; runtimes take no group without it."""
    if rights.user is not None:
        return rights.user, ""
    if image.user is None and image.username:
        return None, image.username
    return image.user or 0, ""


def _port(one: SpecPort) -> PortMapping:
    return PortMapping(
        container_port=one.container_port, host_port=one.host_port, host_ip=one.host_ip, protocol=one.protocol
    )


def _granted_device(one: GrantedDevice) -> DeviceNode:
    return DeviceNode(container_path=one.container_path, host_path=one.host_path, permissions=one.permissions or "rwm")


def _granted_mount(one: GrantedMount) -> ContainerMount:
    return ContainerMount(container_path=one.container_path, host_path=one.host_path, read_only=one.read_only)
