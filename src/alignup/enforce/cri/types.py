"""Sandboxes, containers and images: what a runtime is asked to create, and what it reports."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from alignup.align.bits import CpuSet, NodeSet


@dataclass(frozen=True, slots=True, kw_only=True)
class LinuxResources:
    """The cgroup limits of a container; 0 or empty means unset."""

    cpus: CpuSet = 0
    nodes: NodeSet = 0  #: NUMA nodes for memory
    cpu_shares: int = 0
    cpu_quota: int = 0  #: microseconds a period; -1: no limit
    cpu_period: int = 0
    memory_limit: int = 0  #: bytes
    memory_swap_limit: int = 0  #: bytes of memory and swap together; cgroup v1 only
    oom_score_adj: int = 0
    hugepages: Mapping[str, int] = field(default_factory=dict)  #: page size, such as ``2MB`` → bytes
    unified: Mapping[str, str] = field(default_factory=dict)  #: cgroup v2: file → content


@dataclass(frozen=True, slots=True, kw_only=True)
class ContainerMount:
    container_path: str
    host_path: str
    read_only: bool = False
    propagation: str = "None"  #: ``None``, ``HostToContainer`` or ``Bidirectional``
    relabel: bool = False  #: for SELinux


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceNode:
    container_path: str
    host_path: str
    permissions: str = "rwm"  #: a combination of r, w and m


@dataclass(frozen=True, slots=True, kw_only=True)
class SecurityOptions:
    """User, groups and privileges; ``None`` or empty leaves the choice to the image or the runtime."""

    user: int | None = None
    username: str = ""  #: instead of ``user``; containers only
    group: int | None = None
    groups: tuple[int, ...] = ()
    privileged: bool = False
    read_only_root: bool = False
    no_new_privileges: bool = False
    add: tuple[str, ...] = ()  #: capabilities
    drop: tuple[str, ...] = ()
    seccomp: str = "RuntimeDefault"  #: ``RuntimeDefault``, ``Unconfined`` or ``Localhost/PATH``
    apparmor: str = ""  #: the same; empty: unset
    selinux: Mapping[str, str] = field(default_factory=dict)  #: user, role, type, level
    unmasked: bool = False  #: hide nothing of ``/proc``


@dataclass(frozen=True, slots=True, kw_only=True)
class NamespaceOptions:
    host_network: bool = False
    host_pid: bool = False
    host_ipc: bool = False
    share_pid: bool = False  #: among the containers of a pod


@dataclass(frozen=True, slots=True, kw_only=True)
class PortMapping:
    container_port: int
    host_port: int
    host_ip: str = ""
    protocol: str = "TCP"  #: TCP, UDP or SCTP


@dataclass(frozen=True, slots=True, kw_only=True)
class DnsConfig:
    servers: tuple[str, ...] = ()
    searches: tuple[str, ...] = ()
    options: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class SandboxConfig:
    """A sandbox to create: what the containers of a pod share."""

    uid: str
    name: str
    namespace: str
    attempt: int = 0
    hostname: str = ""
    log_directory: str = ""
    labels: Mapping[str, str] = field(default_factory=dict)
    annotations: Mapping[str, str] = field(default_factory=dict)
    cgroup_parent: str = ""  #: a path, or a slice with the systemd driver
    namespaces: NamespaceOptions = field(default_factory=NamespaceOptions)
    dns: DnsConfig | None = None  #: ``None``: the host's
    ports: tuple[PortMapping, ...] = ()
    sysctls: Mapping[str, str] = field(default_factory=dict)
    security: SecurityOptions = field(default_factory=SecurityOptions)  #: ``privileged``: allows privileged containers
    handler: str = ""  #: the runtime handler; empty: the default one


@dataclass(frozen=True, slots=True, kw_only=True)
class ContainerConfig:
    name: str
    attempt: int = 0
    image: str  #: an id or a name that the runtime knows
    requested_image: str = ""  #: the image in the manifest
    command: tuple[str, ...] = ()
    args: tuple[str, ...] = ()
    working_dir: str = ""
    envs: Mapping[str, str] = field(default_factory=dict)  #: in this order
    mounts: tuple[ContainerMount, ...] = ()
    devices: tuple[DeviceNode, ...] = ()
    cdi: tuple[str, ...] = ()  #: names of CDI devices
    labels: Mapping[str, str] = field(default_factory=dict)
    annotations: Mapping[str, str] = field(default_factory=dict)
    log_path: str = ""  #: relative to the sandbox's log directory
    stdin: bool = False
    stdin_once: bool = False
    tty: bool = False
    resources: LinuxResources = field(default_factory=LinuxResources)
    security: SecurityOptions = field(default_factory=SecurityOptions)
    namespaces: NamespaceOptions = field(default_factory=NamespaceOptions)  #: those of its sandbox


class ContainerState(StrEnum):
    CREATED = "created"
    RUNNING = "running"
    EXITED = "exited"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True, kw_only=True)
class CriSandbox:
    id: str
    uid: str
    name: str
    namespace: str
    attempt: int
    ready: bool
    created: float  #: seconds since 1970
    labels: Mapping[str, str] = field(default_factory=dict)
    annotations: Mapping[str, str] = field(default_factory=dict)
    ips: tuple[str, ...] = ()  #: empty in a list, and on the host network


@dataclass(frozen=True, slots=True, kw_only=True)
class CriContainer:
    """A container as the runtime reports it; entries of a list leave out everything below ``image_ref``."""

    id: str
    sandbox: str  #: its id
    name: str
    attempt: int
    state: ContainerState
    created: float  #: seconds since 1970
    labels: Mapping[str, str] = field(default_factory=dict)
    annotations: Mapping[str, str] = field(default_factory=dict)
    image: str = ""
    image_ref: str = ""
    started: float = 0.0  #: 0: not yet
    finished: float = 0.0  #: 0: not yet
    exit_code: int = 0
    reason: str = ""  #: ``OOMKilled`` and so on
    message: str = ""
    pid: int | None = None  #: ``None``: not reported


@dataclass(frozen=True, slots=True)
class RuntimeCondition:
    type: str  #: ``RuntimeReady`` or ``NetworkReady``
    ready: bool
    reason: str = ""
    message: str = ""


@dataclass(frozen=True, slots=True)
class RuntimeVersion:
    name: str
    version: str
    api: str  #: the version of CRI that it implements


@dataclass(frozen=True, slots=True, kw_only=True)
class ExecResult:
    exit_code: int
    output: bytes = b""
    errors: bytes = b""


@dataclass(frozen=True, slots=True, kw_only=True)
class CriImage:
    id: str
    tags: tuple[str, ...] = ()
    digests: tuple[str, ...] = ()
    user: int | None = None  #: ``None``: not reported as a number
    username: str = ""
