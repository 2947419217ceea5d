"""What a container runtime is told, and what it shows: sandboxes and containers, in the terms of the heart."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from alignup.align.bits import CpuSet, NodeSet


@dataclass(frozen=True, slots=True, kw_only=True)
class LinuxResources:
    """What a container is held to by its groups; 0 or empty: not said."""

    cpus: CpuSet = 0
    nodes: NodeSet = 0  #: that memory may come from
    cpu_shares: int = 0
    cpu_quota: int = 0  #: microseconds a period; -1: no limit
    cpu_period: int = 0
    memory_limit: int = 0  #: bytes
    memory_swap_limit: int = 0  #: bytes, swap and memory together; cgroup v1 only
    oom_score_adj: int = 0
    hugepages: Mapping[str, int] = field(
        default_factory=dict
    )  #: page size as the kernel's files have it (``2MB``) → bytes
    unified: Mapping[str, str] = field(default_factory=dict)  #: cgroup v2: file → content


@dataclass(frozen=True, slots=True, kw_only=True)
class ContainerMount:
    """A path of the host that a container sees."""

    container_path: str
    host_path: str
    read_only: bool = False
    propagation: str = "None"  #: ``None``, ``HostToContainer`` or ``Bidirectional``
    relabel: bool = False  #: for SELinux


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceNode:
    """A device of the host that a container may use; ``permissions`` are of r, w and m."""

    container_path: str
    host_path: str
    permissions: str = "rwm"


@dataclass(frozen=True, slots=True, kw_only=True)
class SecurityOptions:
    """As whom something runs, and what it may do; ``None`` or empty: as the image or the runtime says."""

    user: int | None = None
    username: str = ""  #: in place of a number; of a container only
    group: int | None = None
    groups: tuple[int, ...] = ()
    privileged: bool = False
    read_only_root: bool = False
    no_new_privileges: bool = False
    add: tuple[str, ...] = ()  #: capabilities
    drop: tuple[str, ...] = ()
    seccomp: str = "RuntimeDefault"  #: ``RuntimeDefault``, ``Unconfined`` or ``Localhost/PATH``
    apparmor: str = ""  #: likewise; empty: not said
    selinux: Mapping[str, str] = field(default_factory=dict)  #: user, role, type, level
    unmasked: bool = False  #: nothing of ``/proc`` is hidden from it


@dataclass(frozen=True, slots=True, kw_only=True)
class NamespaceOptions:
    """What is shared, and with whom."""

    host_network: bool = False
    host_pid: bool = False
    host_ipc: bool = False
    share_pid: bool = False  #: the containers of a pod see each other's processes


@dataclass(frozen=True, slots=True, kw_only=True)
class PortMapping:
    """A port of the host that leads to one of the pod; ``protocol`` is TCP, UDP or SCTP."""

    container_port: int
    host_port: int
    host_ip: str = ""
    protocol: str = "TCP"


@dataclass(frozen=True, slots=True, kw_only=True)
class DnsConfig:
    """How names are looked up."""

    servers: tuple[str, ...] = ()
    searches: tuple[str, ...] = ()
    options: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class SandboxConfig:
    """A sandbox to be made: what the containers of a pod have in common."""

    uid: str
    name: str
    namespace: str
    attempt: int = 0
    hostname: str = ""
    log_directory: str = ""
    labels: Mapping[str, str] = field(default_factory=dict)
    annotations: Mapping[str, str] = field(default_factory=dict)
    cgroup_parent: str = ""  #: a path, or a slice where systemd keeps the groups
    namespaces: NamespaceOptions = field(default_factory=NamespaceOptions)
    dns: DnsConfig | None = None  #: ``None``: as the host
    ports: tuple[PortMapping, ...] = ()
    sysctls: Mapping[str, str] = field(default_factory=dict)
    security: SecurityOptions = field(
        default_factory=SecurityOptions
    )  #: ``privileged``: whether a container in it may be
    handler: str = ""  #: of the runtime; empty: its usual one


@dataclass(frozen=True, slots=True, kw_only=True)
class ContainerConfig:
    """A container to be made in a sandbox."""

    name: str
    attempt: int = 0
    image: str  #: as the runtime knows it: an id, or a name
    named: str = ""  #: the image as the manifest has it
    command: tuple[str, ...] = ()
    args: tuple[str, ...] = ()
    working_dir: str = ""
    envs: Mapping[str, str] = field(default_factory=dict)  #: in this order
    mounts: tuple[ContainerMount, ...] = ()
    devices: tuple[DeviceNode, ...] = ()
    cdi: tuple[str, ...] = ()  #: names of CDI devices
    labels: Mapping[str, str] = field(default_factory=dict)
    annotations: Mapping[str, str] = field(default_factory=dict)
    log_path: str = ""  #: in the sandbox's log directory
    stdin: bool = False
    stdin_once: bool = False
    tty: bool = False
    resources: LinuxResources = field(default_factory=LinuxResources)
    security: SecurityOptions = field(default_factory=SecurityOptions)
    namespaces: NamespaceOptions = field(default_factory=NamespaceOptions)  #: those of its sandbox


class ContainerState(StrEnum):
    """How far a container is."""

    CREATED = "created"
    RUNNING = "running"
    EXITED = "exited"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True, kw_only=True)
class CriSandbox:
    """A sandbox as the runtime shows it."""

    id: str
    uid: str
    name: str
    namespace: str
    attempt: int
    ready: bool
    created: float  #: seconds since 1970
    labels: Mapping[str, str] = field(default_factory=dict)
    annotations: Mapping[str, str] = field(default_factory=dict)
    ips: tuple[str, ...] = ()  #: empty in a list of sandboxes, and on the host's network


@dataclass(frozen=True, slots=True, kw_only=True)
class CriContainer:
    """A container as the runtime shows it; of one in a list, only what is known there."""

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
    started: float = 0.0  #: 0: it was not
    finished: float = 0.0  #: 0: it has not
    exit_code: int = 0
    reason: str = ""  #: ``OOMKilled`` and so on
    message: str = ""
    pid: int | None = None  #: ``None``: not told


@dataclass(frozen=True, slots=True)
class RuntimeCondition:
    """Something the runtime says of itself: ``RuntimeReady`` or ``NetworkReady``."""

    type: str
    ready: bool
    reason: str = ""
    message: str = ""


@dataclass(frozen=True, slots=True)
class RuntimeVersion:
    """Who the runtime is."""

    name: str
    version: str
    api: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ExecResult:
    """What came of a command in a container."""

    exit_code: int
    output: bytes = b""
    errors: bytes = b""


@dataclass(frozen=True, slots=True, kw_only=True)
class CriImage:
    """An image that the runtime has."""

    id: str
    tags: tuple[str, ...] = ()
    digests: tuple[str, ...] = ()
    user: int | None = None  #: as whom it runs; ``None``: not told as a number
    username: str = ""
