"""Conversion between CRI messages and the types of this package. Pure.

Unset values get the kubelet's defaults: parts of ``/proc`` and ``/sys`` are hidden or read-only unless the container
is privileged. An empty seccomp profile means what the kubelet does without ``seccompDefault``: a container runs without
a profile (``Unconfined``), a sandbox with the runtime's.
"""

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from typing import Any

from alignup.align import bits
from alignup.run.cri.types import (
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

#: Paths that are hidden from containers, besides the CPU temperatures (``cpu*/thermal_throttle``).
MASKED_PATHS = (
    *("/proc/asound", "/proc/acpi", "/proc/interrupts", "/proc/kcore", "/proc/keys", "/proc/latency_stats"),
    *("/proc/timer_list", "/proc/timer_stats", "/proc/sched_debug", "/proc/scsi"),
    *("/sys/firmware", "/sys/devices/virtual/powercap"),
)
READ_ONLY_PATHS = ("/proc/bus", "/proc/fs", "/proc/irq", "/proc/sys", "/proc/sysrq-trigger")

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


def sandbox_config(config: SandboxConfig) -> wire.PodSandboxConfig:
    return wire.PodSandboxConfig(
        metadata=wire.PodSandboxMetadata(
            name=config.name, uid=config.uid, namespace=config.namespace, attempt=config.attempt
        ),
        hostname=config.hostname,
        log_directory=config.log_directory,
        dns_config=None if config.dns is None else wire.DNSConfig(**asdict(config.dns)),
        port_mappings=[wire.PortMapping(**asdict(port)) for port in config.ports],
        labels=config.labels,
        annotations=config.annotations,
        linux=wire.LinuxPodSandboxConfig(
            cgroup_parent=config.cgroup_parent,
            security_context=wire.LinuxSandboxSecurityContext(
                **_security_fields(config.security, config.namespaces, default_seccomp="RuntimeDefault")
            ),
            sysctls=config.sysctls,
        ),
    )


def container_config(config: ContainerConfig, *, masked: Sequence[str] = MASKED_PATHS) -> wire.ContainerConfig:
    """Return the message for a container; *masked* paths are hidden from it unless it is privileged."""
    return wire.ContainerConfig(
        metadata=wire.ContainerMetadata(name=config.name, attempt=config.attempt),
        image=wire.ImageSpec(image=config.image, user_specified_image=config.requested_image),
        command=config.command,
        args=config.args,
        working_dir=config.working_dir,
        envs=[
            wire.KeyValue(key=name, value=value.encode("utf-8", "surrogateescape"))
            for name, value in config.envs.items()
        ],
        mounts=[
            wire.Mount(
                container_path=mount.container_path,
                host_path=mount.host_path,
                readonly=mount.read_only,
                selinux_relabel=mount.relabel,
                propagation=_PROPAGATION[mount.propagation],
            )
            for mount in config.mounts
        ],
        devices=[wire.Device(**asdict(device)) for device in config.devices],
        CDI_devices=[wire.CDIDevice(name=name) for name in config.cdi],
        labels=config.labels,
        annotations=config.annotations,
        log_path=config.log_path,
        stdin=config.stdin,
        stdin_once=config.stdin_once,
        tty=config.tty,
        linux=wire.LinuxContainerConfig(
            resources=linux_resources(config.resources),
            security_context=_container_security(config.security, config.namespaces, masked=masked),
        ),
    )


def linux_resources(resources: LinuxResources) -> wire.LinuxContainerResources:
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


def parse_version(response: wire.VersionResponse) -> RuntimeVersion:
    return RuntimeVersion(response.runtime_name, response.runtime_version, response.runtime_api_version)


def parse_conditions(response: wire.StatusResponse) -> tuple[RuntimeCondition, ...]:
    return tuple(RuntimeCondition(one.type, one.status, one.reason, one.message) for one in response.status.conditions)


def parse_cgroup_driver(response: wire.RuntimeConfigResponse) -> str | None:
    """Return ``systemd`` or ``cgroupfs``; ``None`` if the runtime does not report it."""
    return _DRIVERS.get(response.linux.cgroup_driver) if response.HasField("linux") else None


def parse_sandbox(response: wire.PodSandbox | wire.PodSandboxStatus) -> CriSandbox:
    """Return a sandbox; only a status has IPs."""
    ips: Iterable[str] = ()
    if isinstance(response, wire.PodSandboxStatus):
        ips = (response.network.ip, *(one.ip for one in response.network.additional_ips))
    return CriSandbox(
        id=response.id,
        uid=response.metadata.uid,
        name=response.metadata.name,
        namespace=response.metadata.namespace,
        attempt=response.metadata.attempt,
        ready=response.state == wire.SANDBOX_READY,
        created=_seconds(response.created_at),
        labels=dict(response.labels),
        annotations=dict(response.annotations),
        ips=tuple(filter(None, ips)),
    )


def parse_container(response: wire.Container) -> CriContainer:
    return CriContainer(sandbox=response.pod_sandbox_id, **_container_fields(response))


def parse_container_status(response: wire.ContainerStatusResponse) -> CriContainer:
    status, details = response.status, _details(response.info)
    return CriContainer(
        sandbox=str(details.get("sandboxID") or ""),
        started=_seconds(status.started_at),
        finished=_seconds(status.finished_at),
        exit_code=status.exit_code,
        reason=status.reason,
        message=status.message,
        pid=_pid(details),
        **_container_fields(status),
    )


def parse_exec_result(response: wire.ExecSyncResponse) -> ExecResult:
    return ExecResult(exit_code=response.exit_code, output=response.stdout, errors=response.stderr)


def parse_image(response: wire.ImageStatusResponse) -> CriImage | None:
    """Return an image; ``None`` if the runtime does not have it."""
    if not response.HasField("image"):
        return None
    image = response.image
    return CriImage(
        id=image.id,
        tags=tuple(image.repo_tags),
        digests=tuple(image.repo_digests),
        user=image.uid.value if image.HasField("uid") else None,
        username=image.username,
    )


def _container_fields(message: wire.Container | wire.ContainerStatus) -> dict[str, Any]:
    return {
        "id": message.id,
        "name": message.metadata.name,
        "attempt": message.metadata.attempt,
        "state": _STATES.get(message.state, ContainerState.UNKNOWN),
        "created": _seconds(message.created_at),
        "labels": dict(message.labels),
        "annotations": dict(message.annotations),
        "image": message.image.image,
        "image_ref": message.image_ref,
    }


def _container_security(
    security: SecurityOptions, namespaces: NamespaceOptions, *, masked: Sequence[str]
) -> wire.LinuxContainerSecurityContext:
    unmasked = security.unmasked or security.privileged
    capabilities = None
    if security.add or security.drop:
        capabilities = wire.Capability(add_capabilities=security.add, drop_capabilities=security.drop)
    return wire.LinuxContainerSecurityContext(
        capabilities=capabilities,
        run_as_username=security.username,
        no_new_privs=security.no_new_privileges,
        masked_paths=() if unmasked else masked,
        readonly_paths=() if unmasked else READ_ONLY_PATHS,
        **_security_fields(security, namespaces, default_seccomp="Unconfined"),
    )


def _security_fields(
    security: SecurityOptions, namespaces: NamespaceOptions, *, default_seccomp: str
) -> dict[str, Any]:
    """Return what sandboxes and containers have in common."""
    own_pid = wire.POD if namespaces.share_pid else wire.CONTAINER
    return {
        "namespace_options": wire.NamespaceOption(
            network=wire.NODE if namespaces.host_network else wire.POD,
            pid=wire.NODE if namespaces.host_pid else own_pid,
            ipc=wire.NODE if namespaces.host_ipc else wire.POD,
        ),
        "selinux_options": wire.SELinuxOption(**security.selinux) if security.selinux else None,
        "run_as_user": _number(security.user),
        "run_as_group": _number(security.group),
        "supplemental_groups": security.groups,
        "readonly_rootfs": security.read_only_root,
        "privileged": security.privileged,
        "seccomp": _profile(security.seccomp or default_seccomp),
        "apparmor": _profile(security.apparmor),
    }


def _profile(text: str) -> wire.SecurityProfile | None:
    """Return a seccomp or AppArmor profile; ``None`` for empty text."""
    if not text:
        return None
    kind, slash, path = text.partition("/")
    if slash and kind != "Localhost":
        raise ValueError(f"profile {text}: only a Localhost profile has a path")
    return wire.SecurityProfile(profile_type=kind, localhost_ref=path)


def _number(value: int | None) -> wire.Int64Value | None:
    return None if value is None else wire.Int64Value(value=value)


def _seconds(nanoseconds: int) -> float:
    """Return seconds since 1970; 0 for an event that has not happened, for which some runtimes send the year 1."""
    return max(0, nanoseconds) / 1e9


def _details(info: Mapping[str, str]) -> Mapping[str, Any]:
    """Return verbose details: containerd and CRI-O put them into one JSON value, others into separate ones."""
    try:
        response = json.loads(info.get("info", "{}"))
    except ValueError:
        response = {}
    return {**info, **response} if isinstance(response, dict) else info


def _pid(details: Mapping[str, Any]) -> int | None:
    try:
        return int(details.get("pid", 0)) or None
    except (TypeError, ValueError):
        return None
