"""Plans as the messages of CRI, and the messages of a runtime as what it shows. Pure.

Where a plan does not say, a container gets what the kubelet gives: parts of ``/proc`` and ``/sys`` are hidden or read
only, unless it is privileged. An empty text for seccomp means what the kubelet does without ``seccompDefault``: a
container runs without a profile (``Unconfined``), a sandbox with that of the runtime.
"""

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from alignup.align import bits
from alignup.enforce.cri.types import (
    ContainerConfig,
    ContainerState,
    CriContainer,
    CriImage,
    CriSandbox,
    ExecResult,
    LinuxResources,
    NamespaceOptions,
    RuntimeCondition,
    RuntimeVersion,
    SandboxConfig,
    SecurityOptions,
)
from alignup.wire import cri_pb2 as wire

#: What containers do not see, besides how hot each CPU is (``cpu*/thermal_throttle``).
MASKED_PATHS = (
    "/proc/asound",
    "/proc/acpi",
    "/proc/interrupts",
    "/proc/kcore",
    "/proc/keys",
    "/proc/latency_stats",
    "/proc/timer_list",
    "/proc/timer_stats",
    "/proc/sched_debug",
    "/proc/scsi",
    "/sys/firmware",
    "/sys/devices/virtual/powercap",
)
READ_ONLY_PATHS = ("/proc/bus", "/proc/fs", "/proc/irq", "/proc/sys", "/proc/sysrq-trigger")

_LOCALHOST = "Localhost/"
_PROPAGATION = {
    "None": wire.PROPAGATION_PRIVATE,
    "HostToContainer": wire.PROPAGATION_HOST_TO_CONTAINER,
    "Bidirectional": wire.PROPAGATION_BIDIRECTIONAL,
}
_STATES = {
    wire.CONTAINER_CREATED: ContainerState.CREATED,
    wire.CONTAINER_RUNNING: ContainerState.RUNNING,
    wire.CONTAINER_EXITED: ContainerState.EXITED,
}
_DRIVERS = {wire.SYSTEMD: "systemd", wire.CGROUPFS: "cgroupfs"}


def sandbox_config(plan: SandboxConfig) -> wire.PodSandboxConfig:
    """A sandbox to be made."""
    return wire.PodSandboxConfig(
        metadata=wire.PodSandboxMetadata(name=plan.name, uid=plan.uid, namespace=plan.namespace, attempt=plan.attempt),
        hostname=plan.hostname,
        log_directory=plan.log_directory,
        dns_config=None
        if plan.dns is None
        else wire.DNSConfig(servers=plan.dns.servers, searches=plan.dns.searches, options=plan.dns.options),
        port_mappings=[
            wire.PortMapping(
                protocol=port.protocol,
                container_port=port.container_port,
                host_port=port.host_port,
                host_ip=port.host_ip,
            )
            for port in plan.ports
        ],
        labels=plan.labels,
        annotations=plan.annotations,
        linux=wire.LinuxPodSandboxConfig(
            cgroup_parent=plan.cgroup_parent,
            security_context=_sandbox_security(plan.security, plan.namespaces),
            sysctls=plan.sysctls,
        ),
    )


def container_config(plan: ContainerConfig, *, masked: Sequence[str] = MASKED_PATHS) -> wire.ContainerConfig:
    """A container to be made; *masked* paths are hidden from it, unless it may see all."""
    return wire.ContainerConfig(
        metadata=wire.ContainerMetadata(name=plan.name, attempt=plan.attempt),
        image=wire.ImageSpec(image=plan.image, user_specified_image=plan.named),
        command=plan.command,
        args=plan.args,
        working_dir=plan.working_dir,
        envs=[
            wire.KeyValue(key=name, value=value.encode("utf-8", "surrogateescape")) for name, value in plan.envs.items()
        ],
        mounts=[
            wire.Mount(
                container_path=mount.container_path,
                host_path=mount.host_path,
                readonly=mount.read_only,
                selinux_relabel=mount.relabel,
                propagation=_PROPAGATION[mount.propagation],
            )
            for mount in plan.mounts
        ],
        devices=[
            wire.Device(container_path=one.container_path, host_path=one.host_path, permissions=one.permissions)
            for one in plan.devices
        ],
        CDI_devices=[wire.CDIDevice(name=name) for name in plan.cdi],
        labels=plan.labels,
        annotations=plan.annotations,
        log_path=plan.log_path,
        stdin=plan.stdin,
        stdin_once=plan.stdin_once,
        tty=plan.tty,
        linux=wire.LinuxContainerConfig(
            resources=linux_resources(plan.resources),
            security_context=_container_security(plan.security, plan.namespaces, masked=masked),
        ),
    )


def linux_resources(resources: LinuxResources) -> wire.LinuxContainerResources:
    """What a container is held to."""
    return wire.LinuxContainerResources(
        cpu_period=resources.cpu_period,
        cpu_quota=resources.cpu_quota,
        cpu_shares=resources.cpu_shares,
        memory_limit_in_bytes=resources.memory_limit,
        memory_swap_limit_in_bytes=resources.memory_swap_limit,
        oom_score_adj=resources.oom_score_adj,
        cpuset_cpus=bits.show(resources.cpus),
        cpuset_mems=bits.show(resources.nodes),
        hugepage_limits=[
            wire.HugepageLimit(page_size=size, limit=limit) for size, limit in resources.hugepages.items()
        ],
        unified=resources.unified,
    )


def parse_version(told: wire.VersionResponse) -> RuntimeVersion:
    """Who a runtime is."""
    return RuntimeVersion(told.runtime_name, told.runtime_version, told.runtime_api_version)


def parse_conditions(told: wire.StatusResponse) -> tuple[RuntimeCondition, ...]:
    """What a runtime says of itself."""
    return tuple(RuntimeCondition(one.type, one.status, one.reason, one.message) for one in told.status.conditions)


def parse_cgroup_driver(told: wire.RuntimeConfigResponse) -> str | None:
    """Who makes the groups of containers; ``None`` where nothing is said."""
    return _DRIVERS.get(told.linux.cgroup_driver) if told.HasField("linux") else None


def parse_sandbox(told: wire.PodSandbox | wire.PodSandboxStatus) -> CriSandbox:
    """A sandbox, with addresses where it is a status."""
    ips: Iterable[str] = ()
    if isinstance(told, wire.PodSandboxStatus):
        ips = (told.network.ip, *(one.ip for one in told.network.additional_ips))
    return CriSandbox(
        id=told.id,
        uid=told.metadata.uid,
        name=told.metadata.name,
        namespace=told.metadata.namespace,
        attempt=told.metadata.attempt,
        ready=told.state == wire.SANDBOX_READY,
        created=_seconds(told.created_at),
        labels=dict(told.labels),
        annotations=dict(told.annotations),
        ips=tuple(filter(None, ips)),
    )


def parse_container(told: wire.Container) -> CriContainer:
    """A container in a list."""
    return CriContainer(
        id=told.id,
        sandbox=told.pod_sandbox_id,
        name=told.metadata.name,
        attempt=told.metadata.attempt,
        state=_STATES.get(told.state, ContainerState.UNKNOWN),
        created=_seconds(told.created_at),
        labels=dict(told.labels),
        annotations=dict(told.annotations),
        image=told.image.image,
        image_ref=told.image_ref,
    )


def parse_container_status(told: wire.ContainerStatusResponse) -> CriContainer:
    """A container with all there is to know, as far as the runtime was asked for all."""
    status, more = told.status, _more(told.info)
    return CriContainer(
        id=status.id,
        sandbox=str(more.get("sandboxID") or ""),
        name=status.metadata.name,
        attempt=status.metadata.attempt,
        state=_STATES.get(status.state, ContainerState.UNKNOWN),
        created=_seconds(status.created_at),
        labels=dict(status.labels),
        annotations=dict(status.annotations),
        image=status.image.image,
        image_ref=status.image_ref,
        started=_seconds(status.started_at),
        finished=_seconds(status.finished_at),
        exit_code=status.exit_code,
        reason=status.reason,
        message=status.message,
        pid=_pid(more),
    )


def parse_exec_result(told: wire.ExecSyncResponse) -> ExecResult:
    """What came of a command."""
    return ExecResult(exit_code=told.exit_code, output=told.stdout, errors=told.stderr)


def parse_image(told: wire.ImageStatusResponse) -> CriImage | None:
    """An image; ``None`` when the runtime does not have it."""
    if not told.HasField("image"):
        return None
    image = told.image
    return CriImage(
        id=image.id,
        tags=tuple(image.repo_tags),
        digests=tuple(image.repo_digests),
        user=image.uid.value if image.HasField("uid") else None,
        username=image.username,
    )


def _sandbox_security(security: SecurityOptions, namespaces: NamespaceOptions) -> wire.LinuxSandboxSecurityContext:
    return wire.LinuxSandboxSecurityContext(
        namespace_options=_namespaces(namespaces),
        selinux_options=_selinux(security.selinux),
        run_as_user=_number(security.user),
        run_as_group=_number(security.group),
        supplemental_groups=security.groups,
        readonly_rootfs=security.read_only_root,
        privileged=security.privileged,
        seccomp=_profile(security.seccomp or "RuntimeDefault"),
        apparmor=_profile(security.apparmor),
    )


def _container_security(
    security: SecurityOptions, namespaces: NamespaceOptions, *, masked: Sequence[str]
) -> wire.LinuxContainerSecurityContext:
    sees_all = security.unmasked or security.privileged
    capabilities = None
    if security.add or security.drop:
        capabilities = wire.Capability(add_capabilities=security.add, drop_capabilities=security.drop)
    return wire.LinuxContainerSecurityContext(
        capabilities=capabilities,
        privileged=security.privileged,
        namespace_options=_namespaces(namespaces),
        selinux_options=_selinux(security.selinux),
        run_as_user=_number(security.user),
        run_as_username=security.username,
        run_as_group=_number(security.group),
        supplemental_groups=security.groups,
        readonly_rootfs=security.read_only_root,
        no_new_privs=security.no_new_privileges,
        masked_paths=() if sees_all else masked,
        readonly_paths=() if sees_all else READ_ONLY_PATHS,
        seccomp=_profile(security.seccomp or "Unconfined"),
        apparmor=_profile(security.apparmor),
    )


def _namespaces(shared: NamespaceOptions) -> wire.NamespaceOption:
    together = wire.POD if shared.share_pid else wire.CONTAINER
    return wire.NamespaceOption(
        network=wire.NODE if shared.host_network else wire.POD,
        pid=wire.NODE if shared.host_pid else together,
        ipc=wire.NODE if shared.host_ipc else wire.POD,
    )


def _profile(text: str) -> wire.SecurityProfile | None:
    """A profile of seccomp or AppArmor; ``None`` for the empty text: nothing is said."""
    if not text:
        return None
    if text.startswith(_LOCALHOST):
        return wire.SecurityProfile(
            profile_type=wire.SecurityProfile.Localhost, localhost_ref=text.removeprefix(_LOCALHOST)
        )
    return wire.SecurityProfile(profile_type=text)


def _selinux(options: Mapping[str, str]) -> wire.SELinuxOption | None:
    return wire.SELinuxOption(**options) if options else None


def _number(value: int | None) -> wire.Int64Value | None:
    """A number, of which 0 is one too."""
    return None if value is None else wire.Int64Value(value=value)


def _seconds(nanoseconds: int) -> float:
    """A time; 0 where it has not come. Some send the year 1 for that, which is before 1970."""
    return max(0, nanoseconds) / 1e9


def _more(info: Mapping[str, str]) -> Mapping[str, Any]:
    """What is told beyond the interface: by containerd and CRI-O in one JSON text, by others in texts of their own."""
    try:
        told = json.loads(info.get("info", "{}"))
    except ValueError:
        told = {}
    return {**info, **told} if isinstance(told, dict) else info


def _pid(more: Mapping[str, Any]) -> int | None:
    try:
        return int(more.get("pid", 0)) or None
    except (TypeError, ValueError):
        return None
