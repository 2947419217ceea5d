"""What a pod runs, with Kubernetes' defaults: images, commands, environment, volumes, security, restart policy.

Names follow the Kubernetes API. ``None`` and empty values mean that the manifest does not set a field.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum


class RestartPolicy(StrEnum):
    ALWAYS = "Always"
    ON_FAILURE = "OnFailure"
    NEVER = "Never"


class PullPolicy(StrEnum):
    ALWAYS = "Always"
    IF_NOT_PRESENT = "IfNotPresent"
    NEVER = "Never"


class ContainerKind(StrEnum):
    INIT = "init"  #: runs to completion before the next container starts
    SIDECAR = "sidecar"  #: an init container that keeps running beside the containers after it
    APP = "app"


class Permission(StrEnum):
    """What a manifest may use only if the agent allows it."""

    HOST_PATH = "host-path"
    HOST_NETWORK = "host-network"
    HOST_PID = "host-pid"
    HOST_IPC = "host-ipc"
    HOST_PORT = "host-port"
    PRIVILEGED = "privileged"  #: privileged containers, added capabilities and the like
    SYSCTL = "sysctl"  #: unsafe sysctls


@dataclass(frozen=True, slots=True)
class EnvVar:
    """An environment variable: a value, which may refer to others as ``$(NAME)``, or a field of the pod."""

    name: str
    value: str = ""
    field_path: str = ""  #: ``metadata.name``, ``status.podIP`` …
    resource: str = ""  #: ``limits.cpu``, ``requests.memory`` …
    container_name: str = ""  #: of the resource; empty: the container itself
    divisor: str = "0"  #: of the resource; ``0``: the default


@dataclass(frozen=True, slots=True)
class VolumeMount:
    volume: str
    path: str
    read_only: bool = False
    sub_path: str = ""
    expand_sub_path: bool = False  #: whether ``sub_path`` is a ``subPathExpr`` with ``$(NAME)`` references
    propagation: str = "None"  #: ``None``, ``HostToContainer`` or ``Bidirectional``


class VolumeKind(StrEnum):
    EMPTY_DIR = "emptyDir"
    HOST_PATH = "hostPath"
    DOWNWARD = "downwardAPI"


@dataclass(frozen=True, slots=True, kw_only=True)
class DownwardApiFile:
    path: str
    source: EnvVar
    mode: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Volume:
    name: str
    kind: VolumeKind
    medium: str = ""  #: of an ``emptyDir``: empty, ``Memory``, ``HugePages`` or ``HugePages-2Mi``
    size_limit: int | None = None  #: bytes
    path: str = ""  #: of a ``hostPath``
    path_type: str = ""  #: of a ``hostPath``: ``DirectoryOrCreate`` …; empty: not checked
    items: tuple[DownwardApiFile, ...] = ()  #: of a ``downwardAPI`` volume
    mode: int = 0o644  #: of these files


@dataclass(frozen=True, slots=True, kw_only=True)
class SecurityContext:
    """The user and the privileges of a container; ``None``: decided by the image or the runtime."""

    user: int | None = None
    group: int | None = None
    run_as_non_root: bool = False
    privileged: bool = False
    read_only_root: bool = False
    no_new_privileges: bool = False
    add: tuple[str, ...] = ()  #: capabilities
    drop: tuple[str, ...] = ()
    seccomp: str = ""  #: ``RuntimeDefault``, ``Unconfined``, ``Localhost/PATH``; empty: not set
    apparmor: str = ""  #: likewise
    selinux: Mapping[str, str] = field(default_factory=dict)  #: user, role, type, level
    unmasked: bool = False  #: ``procMount: Unmasked``


@dataclass(frozen=True, slots=True, kw_only=True)
class LifecycleHook:
    """A command to run after a container starts or before it stops, or a time to wait."""

    command: tuple[str, ...] = ()
    sleep: int | None = None  #: seconds


@dataclass(frozen=True, slots=True, kw_only=True)
class Probe:
    command: tuple[str, ...] = ()
    http_path: str | None = None  #: ``None``: not an HTTP probe
    http_scheme: str = "HTTP"
    http_headers: tuple[tuple[str, str], ...] = ()
    host: str = ""  #: empty: the pod's address
    port: int = 0  #: of an HTTP or TCP probe
    delay: int = 0  #: seconds until the first probe
    period: int = 10  #: seconds
    timeout: int = 1  #: seconds
    successes: int = 1  #: ``successThreshold``
    failures: int = 3  #: ``failureThreshold``
    grace: int | None = None  #: ``terminationGracePeriodSeconds`` after a failure


@dataclass(frozen=True, slots=True, kw_only=True)
class ContainerSpec:
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
    fallback_to_logs_on_error: bool = False  #: ``terminationMessagePolicy: FallbackToLogsOnError``


@dataclass(frozen=True, slots=True, kw_only=True)
class HostPort:
    container_port: int
    host_port: int
    host_ip: str = ""
    protocol: str = "TCP"


@dataclass(frozen=True, slots=True, kw_only=True)
class PodSpec:
    name: str
    namespace: str
    labels: Mapping[str, str] = field(default_factory=dict)
    annotations: Mapping[str, str] = field(default_factory=dict)
    containers: tuple[ContainerSpec, ...] = ()  #: in start order: init containers and sidecars first
    volumes: tuple[Volume, ...] = ()
    restart: RestartPolicy = RestartPolicy.ALWAYS
    grace: int = 30  #: ``terminationGracePeriodSeconds``
    deadline: int | None = None  #: ``activeDeadlineSeconds``
    hostname: str = ""  #: empty: the pod's name, or the host's on the host network
    host_network: bool = False
    host_pid: bool = False
    host_ipc: bool = False
    share_pid: bool = False  #: ``shareProcessNamespace``
    dns_policy: str = "ClusterFirst"
    nameservers: tuple[str, ...] = ()
    searches: tuple[str, ...] = ()
    dns_options: tuple[str, ...] = ()
    host_aliases: tuple[tuple[str, tuple[str, ...]], ...] = ()  #: address and names, for ``/etc/hosts``
    ports: tuple[HostPort, ...] = ()
    sysctls: Mapping[str, str] = field(default_factory=dict)
    security_context: SecurityContext = field(default_factory=SecurityContext)  #: of the pod sandbox
    groups: tuple[int, ...] = ()  #: supplemental groups, including ``fsGroup``
    fs_group: int | None = None
    runtime_handler: str = ""  #: ``runtimeClassName``
    service_account: str = ""
