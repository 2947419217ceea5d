"""The parts of a KubeletConfiguration that affect how the agent runs containers, and the parts it ignores.

Ignored fields that would change how a pod runs are reported; those about the cluster, the kubelet's ports and its
status reports are not.
"""

from collections.abc import Iterator
from dataclasses import dataclass

from alignup.align.bits import quote
from alignup.align.errors import ConfigurationError, ParseError, Problem
from alignup.align.machine import Machine
from alignup.align.quantity import Quantity
from alignup.align.workload import Amounts
from alignup.kube import feature_gates
from alignup.kube.configuration.model import Configuration, Duration, StartupStage
from alignup.kube.configuration.node_allocatable import compute_node_allocatable

_DEFAULT_PERIOD = Duration.parse("100ms")
_MIN_PERIOD, _MAX_PERIOD = Duration.parse("1ms"), Duration.parse("1s")
_PERIOD_GATE = "CustomCPUCFSQuotaPeriod"

#: Fields that an option of the agent replaces.
_OPTIONS = {
    "allowedUnsafeSysctls": "--allow sysctl",
    "cgroupDriver": "--cgroup-driver",
    "cgroupRoot": "--cgroup-root",
    "containerRuntimeEndpoint": "--runtime-endpoint",
    "podLogsDir": "--log-dir",
    "staticPodPath": "--manifest-dir",
}

#: Other fields that would change how pods run.
_IGNORED = """
    clusterDNS clusterDomain containerLogMaxWorkers containerLogMonitorInterval crashLoopBackOff defaultPodSysctls
    evictionMaxPodGracePeriod evictionMinimumReclaim evictionPressureTransitionPeriod evictionSoft
    evictionSoftGracePeriod imageGCHighThresholdPercent imageGCLowThresholdPercent imageMaximumGCAge imageMinimumGCAge
    imagePullCredentialsVerificationPolicy imageServiceEndpoint maxParallelImagePulls memoryReservationPolicy memorySwap
    memoryThrottlingFactor podCIDR preloadedImagesVerificationAllowlist registryBurst registryPullQPS resolvConf
    runtimeRequestTimeout serializeImagePulls shutdownGracePeriod shutdownGracePeriodByPodPriority
    shutdownGracePeriodCriticalPods staticPodURL userNamespaces
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class ContainerSettings:
    """How the agent runs containers; the defaults are the kubelet's."""

    seccomp_default: bool = False  #: use the runtime's seccomp profile by default
    log_max_bytes: int = 10 << 20  #: size at which a log is rotated; negative: never
    log_max_files: int = 5
    cpu_quota: bool = True  #: whether CPU limits are enforced
    cpu_period: int = 100_000  #: microseconds
    pids_limit: int = 0  #: processes per pod; 0: unlimited
    oom_kill_group: bool = True  #: when out of memory, kill all processes of the container


def container_settings(configuration: Configuration) -> ContainerSettings:
    """:class:`ConfigurationError` if the kubelet would not start."""
    if problems := tuple(_problems(configuration)):
        raise ConfigurationError(problems, stage=StartupStage.VALIDATION, source=configuration.source)
    return ContainerSettings(
        seccomp_default=configuration.seccomp_default,
        log_max_bytes=Quantity.parse(configuration.container_log_max_size).value(),
        log_max_files=configuration.container_log_max_files,
        cpu_quota=configuration.cpu_cfs_quota,
        cpu_period=configuration.cpu_cfs_quota_period.nanoseconds // 1000,
        pids_limit=max(configuration.pod_pids_limit, 0),
        oom_kill_group=not configuration.single_process_oom_kill,
    )


def pods_limits(configuration: Configuration, machine: Machine) -> Amounts:
    """The limits of all pods together: capacity without reservations, if node allocatable is enforced on pods."""
    known = compute_node_allocatable(configuration, machine)
    enforced = configuration.cgroups_per_qos and "pods" in configuration.enforce_node_allocatable
    return known.pods_limits if enforced else known.capacity


def ignored_fields(configuration: Configuration) -> tuple[str, ...]:
    """A warning about fields of *configuration* that the agent ignores, if there are any."""
    replaced = [f"{name} (use {option})" for name, option in _OPTIONS.items() if name in configuration.given]
    ignored = [name for name in _IGNORED.split() if name in configuration.given]
    return (f"the agent ignores {', '.join((*replaced, *ignored))}",) if replaced or ignored else ()


def _problems(configuration: Configuration) -> Iterator[Problem]:
    period = configuration.cpu_cfs_quota_period
    custom = feature_gates.is_enabled(_PERIOD_GATE, configuration.feature_gates)
    field = "cpuCFSQuotaPeriod"
    what = f"invalid configuration: {field} (--cpu-cfs-quota-period) {period}"
    if not custom and period != _DEFAULT_PERIOD:
        yield Problem(field, f"{what} requires feature gate {_PERIOD_GATE}")
    elif not _MIN_PERIOD <= period <= _MAX_PERIOD:
        yield Problem(field, f"{what} must be between 1ms and 1sec, inclusive")
    if configuration.container_log_max_files <= 1:
        yield Problem("containerLogMaxFiles", "invalid configuration: containerLogMaxFiles must be greater than 1")
    size = configuration.container_log_max_size
    try:
        Quantity.parse(size)
    except ParseError as error:
        yield Problem("containerLogMaxSize", f"failed to parse container log max size {quote(size)}: {error}")
