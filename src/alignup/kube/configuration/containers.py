"""What a KubeletConfiguration says about running containers: as much of it as an agent heeds, and the rest by name.

A kubelet's file says more than a node without a cluster can make use of. What would change how a pod runs and is not
heeded here is told to whoever starts the agent; what is about the cluster, the kubelet's own ports and its reports is
left alone.
"""

from collections.abc import Iterator
from dataclasses import dataclass

from alignup.align.bits import quote
from alignup.align.errors import ConfigurationError, ParseError, Problem
from alignup.align.machine import Machine
from alignup.align.quantity import Quantity
from alignup.align.workload import Amounts
from alignup.kube import feature_gates
from alignup.kube.configuration import node_allocatable
from alignup.kube.configuration.model import Configuration, Duration, StartupStage

_PODS = "pods"  #: in ``enforceNodeAllocatable``
_PERIOD = Duration.parse("100ms")
_SHORTEST, _LONGEST = Duration.parse("1ms"), Duration.parse("1s")
_PERIOD_GATE = "CustomCPUCFSQuotaPeriod"

#: Fields that an option of ours takes the place of.
_OPTIONS = {
    "allowedUnsafeSysctls": "--allow sysctl",
    "cgroupDriver": "--cgroup-driver",
    "cgroupRoot": "--cgroup-root",
    "containerRuntimeEndpoint": "--runtime-endpoint",
    "podLogsDir": "--log-dir",
    "staticPodPath": "--manifest-dir",
}

#: Fields that would change how pods run, and do not here.
_UNHEEDED = frozenset(
    {
        "clusterDNS",
        "clusterDomain",
        "containerLogMaxWorkers",
        "containerLogMonitorInterval",
        "crashLoopBackOff",
        "defaultPodSysctls",
        "evictionMaxPodGracePeriod",
        "evictionMinimumReclaim",
        "evictionPressureTransitionPeriod",
        "evictionSoft",
        "evictionSoftGracePeriod",
        "imageGCHighThresholdPercent",
        "imageGCLowThresholdPercent",
        "imageMaximumGCAge",
        "imageMinimumGCAge",
        "imagePullCredentialsVerificationPolicy",
        "imageServiceEndpoint",
        "maxParallelImagePulls",
        "memoryReservationPolicy",
        "memorySwap",
        "memoryThrottlingFactor",
        "podCIDR",
        "preloadedImagesVerificationAllowlist",
        "registryBurst",
        "registryPullQPS",
        "resolvConf",
        "runtimeRequestTimeout",
        "serializeImagePulls",
        "shutdownGracePeriod",
        "shutdownGracePeriodByPodPriority",
        "shutdownGracePeriodCriticalPods",
        "staticPodURL",
        "userNamespaces",
    }
)


@dataclass(frozen=True, slots=True, kw_only=True)
class ContainerSettings:
    """How containers are run; without arguments: a kubelet's defaults."""

    seccomp_default: bool = False  #: those that do not say have the runtime's own seccomp profile, not none
    log_max_bytes: int = 10 << 20  #: bytes after which a log is begun anew; negative: it grows without end
    log_max_files: int = 5  #: that are kept of a log
    cpu_quota: bool = True  #: whether limits of CPU time are held
    cpu_period: int = 100_000  #: microseconds over which they are
    pids_limit: int = 0  #: that a pod may have; 0: as many as it likes
    oom_kill_group: bool = True  #: all processes of a container, when its memory runs out


def container_settings(configuration: Configuration) -> ContainerSettings:
    """How containers are to be run; a :class:`ConfigurationError` where a kubelet would not start."""
    problems = tuple(_problems(configuration))
    if problems:
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
    """What all pods together are held to: what is left when reservations are taken off, or all of the *machine*."""
    known = node_allocatable.compute_node_allocatable(configuration, machine)
    enforced = configuration.cgroups_per_qos and _PODS in configuration.enforce_node_allocatable
    return known.pods_limits if enforced else known.capacity


def ignored_fields(configuration: Configuration) -> tuple[str, ...]:
    """What of *configuration* will not be so when an agent runs the pods, a sentence each."""
    replaced = [f"{name} ({option} says it here)" for name, option in _OPTIONS.items() if name in configuration.given]
    ignored = sorted(_UNHEEDED & configuration.given)
    found = ", ".join((*replaced, *ignored))
    return (f"not heeded where an agent runs pods: {found}",) if found else ()


def _problems(configuration: Configuration) -> Iterator[Problem]:
    """What keeps a kubelet from starting, in its words where it has some."""
    period, custom = (
        configuration.cpu_cfs_quota_period,
        feature_gates.is_enabled(_PERIOD_GATE, configuration.feature_gates),
    )
    field = "cpuCFSQuotaPeriod"
    what = f"invalid configuration: {field} (--cpu-cfs-quota-period) {period}"
    if not custom and period != _PERIOD:
        yield Problem(field, f"{what} requires feature gate {_PERIOD_GATE}")
    elif not _SHORTEST <= period <= _LONGEST:
        yield Problem(field, f"{what} must be between 1ms and 1sec, inclusive")
    if configuration.container_log_max_files <= 1:
        yield Problem("containerLogMaxFiles", "invalid configuration: containerLogMaxFiles must be greater than 1")
    size = configuration.container_log_max_size
    try:
        Quantity.parse(size)
    except ParseError as error:
        yield Problem("containerLogMaxSize", f"failed to parse container log max size {quote(size)}: {error}")
