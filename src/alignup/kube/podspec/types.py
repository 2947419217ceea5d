"""What a pod's manifest says beyond resources: images, commands, environment, volumes, rights, and when to start again.

These are the facts whoever runs the pod needs, with Kubernetes' defaults filled in. ``kube.podspec`` reads them from a
manifest, refuses what may not be had, and tells of every field that is not heeded.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum


class RestartPolicy(StrEnum):
    """Whether containers that have ended are started again."""

    ALWAYS = "Always"
    ON_FAILURE = "OnFailure"
    NEVER = "Never"


class PullPolicy(StrEnum):
    """When an image is fetched."""

    ALWAYS = "Always"
    IF_NOT_PRESENT = "IfNotPresent"
    NEVER = "Never"


class ContainerKind(StrEnum):
    """What a container is for."""

    INIT = "init"  #: runs to its end before the next begins
    SIDECAR = "sidecar"  #: begins among the init containers, and runs beside all that follow
    APP = "app"


class Permission(StrEnum):
    """What a manifest has to be allowed to ask for."""

    HOST_PATH = "host-path"
    HOST_NETWORK = "host-network"
    HOST_PID = "host-pid"
    HOST_IPC = "host-ipc"
    HOST_PORT = "host-port"
    PRIVILEGED = "privileged"  #: containers with all rights, added capabilities among them
    SYSCTL = "sysctl"  #: those that are not safe


@dataclass(frozen=True, slots=True)
class EnvVar:
    """A variable of the environment: a text, in which ``$(NAME)`` stands for others, or something of the pod."""

    name: str
    value: str = ""
    field_path: str = ""  #: ``metadata.name``, ``status.podIP`` …; empty: the value counts
    resource: str = ""  #: ``limits.cpu``, ``requests.memory`` …; empty likewise
    container_name: str = ""  #: whose resource; empty: its own
    divisor: str = "0"  #: of the resource; ``0``: the default


@dataclass(frozen=True, slots=True)
class VolumeMount:
    """A volume that a container sees."""

    volume: str
    path: str
    read_only: bool = False
    sub_path: str = ""
    expand_sub_path: bool = False  #: whether ``$(NAME)`` in ``sub_path`` stands for a variable (``subPathExpr``)
    propagation: str = "None"  #: ``None``, ``HostToContainer`` or ``Bidirectional``


class VolumeKind(StrEnum):
    """Where a volume comes from."""

    EMPTY_DIR = "emptyDir"
    HOST_PATH = "hostPath"
    DOWNWARD = "downwardAPI"


@dataclass(frozen=True, slots=True, kw_only=True)
class DownwardApiFile:
    """A file of a ``downwardAPI`` volume."""

    path: str
    source: EnvVar
    mode: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Volume:
    """A directory, or a file of the host, that containers of the pod can see."""

    name: str
    kind: VolumeKind
    medium: str = ""  #: of an ``emptyDir``: empty, ``Memory``, ``HugePages`` or ``HugePages-2Mi``
    size_limit: int | None = None  #: bytes
    path: str = ""  #: of a ``hostPath``
    path_type: str = ""  #: what it has to be, or is made into: ``DirectoryOrCreate`` …; empty: not checked
    items: tuple[DownwardApiFile, ...] = ()  #: of ``downwardAPI``
    mode: int = 0o644  #: of its files


@dataclass(frozen=True, slots=True, kw_only=True)
class SecurityContext:
    """As whom a container runs, and what it may do; ``None``: as the image or the runtime says."""

    user: int | None = None
    group: int | None = None
    run_as_non_root: bool = False  #: refused to start as root
    privileged: bool = False
    read_only_root: bool = False
    no_new_privileges: bool = False
    add: tuple[str, ...] = ()  #: capabilities
    drop: tuple[str, ...] = ()
    seccomp: str = ""  #: ``RuntimeDefault``, ``Unconfined``, ``Localhost/PATH``; empty: not said
    apparmor: str = ""  #: likewise
    selinux: Mapping[str, str] = field(default_factory=dict)  #: user, role, type, level
    unmasked: bool = False  #: ``procMount: Unmasked``


@dataclass(frozen=True, slots=True, kw_only=True)
class LifecycleHook:
    """A command that is run in a container when it has started, or is to stop; or a time to wait."""

    command: tuple[str, ...] = ()
    sleep: int | None = None  #: seconds


@dataclass(frozen=True, slots=True, kw_only=True)
class Probe:
    """A command, request or connection that tells how a container is."""

    command: tuple[str, ...] = ()
    http_path: str | None = None  #: ``None``: it is no HTTP request
    http_scheme: str = "HTTP"
    http_headers: tuple[tuple[str, str], ...] = ()
    host: str = ""  #: empty: the pod's own address
    port: int = 0  #: of an HTTP request or a TCP connection; 0: neither
    delay: int = 0  #: seconds until the first
    period: int = 10
    timeout: int = 1
    successes: int = 1  #: in a row until all is well
    failures: int = 3  #: in a row until it is not
    grace: int | None = None  #: seconds to stop in, where it fails


@dataclass(frozen=True, slots=True, kw_only=True)
class ContainerSpec:
    """One container to run."""

    name: str
    kind: ContainerKind
    image: str
    pull_policy: PullPolicy
    command: tuple[str, ...] = ()
    args: tuple[str, ...] = ()
    working_dir: str = ""
    env: tuple[EnvVar, ...] = ()
    mounts: tuple[VolumeMount, ...] = ()
    security_context: SecurityContext = field(default_factory=SecurityContext)
    post_start: LifecycleHook | None = None
    pre_stop: LifecycleHook | None = None
    startup: Probe | None = None
    liveness: Probe | None = None
    readiness: Probe | None = None
    stdin: bool = False
    stdin_once: bool = False
    tty: bool = False
    termination_message_path: str = "/dev/termination-log"
    fallback_to_logs_on_error: bool = False  #: where that file stays empty and it failed, the end of its log counts


@dataclass(frozen=True, slots=True, kw_only=True)
class HostPort:
    """A port of the host that leads to one of the pod."""

    container_port: int
    host_port: int
    host_ip: str = ""
    protocol: str = "TCP"


@dataclass(frozen=True, slots=True, kw_only=True)
class PodSpec:
    """One pod to run."""

    name: str
    namespace: str
    labels: Mapping[str, str] = field(default_factory=dict)
    annotations: Mapping[str, str] = field(default_factory=dict)
    containers: tuple[ContainerSpec, ...] = ()  #: init containers and sidecars first, each in the order they begin
    volumes: tuple[Volume, ...] = ()
    restart: RestartPolicy = RestartPolicy.ALWAYS
    grace: int = 30  #: seconds between being told to stop and being killed
    deadline: int | None = None  #: seconds it may run (``activeDeadlineSeconds``)
    hostname: str = ""  #: empty: the name of the pod, or of the host on its network
    host_network: bool = False
    host_pid: bool = False
    host_ipc: bool = False
    share_pid: bool = False  #: all containers see each other's processes
    dns_policy: str = "ClusterFirst"
    nameservers: tuple[str, ...] = ()
    searches: tuple[str, ...] = ()
    dns_options: tuple[str, ...] = ()
    host_aliases: tuple[tuple[str, tuple[str, ...]], ...] = ()  #: addresses, and the names they have in ``/etc/hosts``
    ports: tuple[HostPort, ...] = ()
    sysctls: Mapping[str, str] = field(default_factory=dict)
    security_context: SecurityContext = field(default_factory=SecurityContext)  #: of the pod as a whole, as its sandbox has them
    groups: tuple[int, ...] = ()  #: supplemental, ``fsGroup`` among them
    fs_group: int | None = None
    runtime_handler: str = ""  #: ``runtimeClassName``
    service_account: str = ""  #: a name and no more: nobody here gives out its tokens
