"""What one decision adds to the kubelet's counters.

The kubelet counts in many places during an admission; here every count follows from the decision. For a rejected pod it
has counted every provider up to the one that rejected the pod, so the CPUs allocated until then are computed again from
the ledger before the decision.
"""

from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass

from alignup.align import reason_codes
from alignup.align.admit import NO_AFFINITY
from alignup.align.bits import CpuSet
from alignup.align.cpus.provider import CpuProvider
from alignup.align.decision import Decision, Outcome
from alignup.align.errors import ProviderError
from alignup.align.host import Host
from alignup.align.memory.provider import MemoryProvider, pinned_containers
from alignup.align.settings import Policy, Scope
from alignup.align.workload import Container, Pod
from alignup.web.metrics import CounterDefinitions, SeriesKey

REQUESTS = "kubelet_topology_manager_admission_requests_total"
ERRORS = "kubelet_topology_manager_admission_errors_total"
ALIGNED = "kubelet_container_aligned_compute_resources_count"
UNALIGNED = "kubelet_container_aligned_compute_resources_failure_count"
CPU_REQUESTS = "kubelet_cpu_manager_pinning_requests_total"
CPU_ERRORS = "kubelet_cpu_manager_pinning_errors_total"
MEMORY_REQUESTS = "kubelet_memory_manager_pinning_requests_total"
MEMORY_ERRORS = "kubelet_memory_manager_pinning_errors_total"
REJECTIONS = "kubelet_admission_rejections_total"

NUMA_NODE, PHYSICAL_CPU, UNCORE_CACHE = "numa_node", "physical_cpu", "uncore_cache"

COUNTERS: CounterDefinitions = {
    REQUESTS: ((), "Pod admission requests."),
    ERRORS: ((), "Pods rejected because their resources could not be aligned or allocated."),
    ALIGNED: (("scope", "boundary"), "Allocations within a boundary."),
    UNALIGNED: (("scope", "boundary"), "Allocations rejected because they would cross a boundary."),
    CPU_REQUESTS: ((), "Containers that requested exclusive CPUs."),
    CPU_ERRORS: ((), "Containers that could not get exclusive CPUs."),
    MEMORY_REQUESTS: ((), "Containers that requested pinned memory."),
    MEMORY_ERRORS: ((), "Containers that could not get pinned memory."),
    REJECTIONS: (("reason",), "Rejected pods, by reason."),
}

#: Reasons with their own series: a fixed list, so that clients cannot create unlimited series.
_REASONS = frozenset(
    {
        reason_codes.OUT_OF_CPU,
        reason_codes.OUT_OF_EPHEMERAL_STORAGE,
        reason_codes.OUT_OF_MEMORY,
        reason_codes.OUT_OF_PODS,
        reason_codes.POD_OS,
        reason_codes.POD_OS_SELECTOR,
        reason_codes.TOPOLOGY_AFFINITY,
        reason_codes.UNEXPECTED_ADMISSION,
    }
)
_FIT_CHECK = "host"  #: the provider of rejections that follow a successful alignment


def initial_series(*, static: bool) -> Iterator[SeriesKey]:
    """Yield the series that exist before the first admission; some exist only under the *static* CPU policy."""
    yield from ((name,) for name, (labels, _) in COUNTERS.items() if not labels)
    if static:
        yield ALIGNED, "container", PHYSICAL_CPU
        yield ALIGNED, "container", UNCORE_CACHE
        yield UNALIGNED, "container", PHYSICAL_CPU


def decision_counts(decision: Decision, *, pod: Pod, host: Host) -> Counter[SeriesKey]:
    """Return what *decision*, made by ``host.decide``, adds; nothing while a device plugin must answer first."""
    if decision.outcome is Outcome.ASKING:
        return Counter()
    rejection = decision.rejection
    rejected = rejection is not None and rejection.provider != _FIT_CHECK
    names = [container.name for container in pod.all_containers]
    failed_index = names.index(rejection.container) if rejection and rejection.container in names else None
    served_containers = pod.all_containers[: (failed_index or 0) if rejected else len(names)]
    by = rejection.provider if rejection and rejected else None
    reached_providers = [provider.name for provider in host.providers]
    if rejected:
        reached_providers = reached_providers[: reached_providers.index(by) + 1] if by else []
    failed_container = pod.all_containers[failed_index] if by and failed_index is not None else None
    progress = _Progress(
        pod=pod,
        reached=reached_providers,
        served=served_containers,
        attempted=(*served_containers, failed_container) if failed_container else served_containers,
        failed=failed_container,
        by=by,
        pod_level=(
            decision.policy is not Policy.NONE
            and decision.scope is Scope.POD
            and host.rules.pod_level
            and pod.has_pod_level_resources
        ),
    )
    total = Counter[SeriesKey]({(REQUESTS,): 1})
    if rejection:
        total[REJECTIONS, reason_label(rejection.reason)] += 1
    if rejected and decision.policy is not Policy.NONE:
        total[(ERRORS,)] += 1
    if decision.policy is Policy.SINGLE_NUMA_NODE:  # the kubelet counts NUMA alignment under this policy only
        scope, by_container = str(decision.scope), decision.scope is Scope.CONTAINER
        aligned = len(served_containers) if by_container else int(not rejected)
        unaligned = int(rejected and by is None)
        total.update(+Counter({(ALIGNED, scope, NUMA_NODE): aligned, (UNALIGNED, scope, NUMA_NODE): unaligned}))
    total.update(_cpus(decision, progress, host.cpus))
    total.update(_memory(progress, host.memory))
    return total


def reason_label(reason: str) -> str:
    if reason in _REASONS:
        return reason
    is_resource = reason.startswith(reason_codes.OUT_OF)
    return reason_codes.OUT_OF_EXTENDED_RESOURCES if is_resource else reason_codes.OTHER


@dataclass(frozen=True, slots=True, kw_only=True)
class _Progress:
    """How far an admission came through the providers."""

    pod: Pod
    reached: Sequence[str]  #: the providers that tried to allocate the last container, or the pod
    served: tuple[Container, ...]  #: containers that every provider has allocated
    attempted: tuple[Container, ...]  #: and the one that failed, which the *reached* providers tried to allocate
    failed: Container | None  #: the container that failed; ``None``: none, or the whole pod
    by: str | None  #: the provider that failed; ``None``: none, or the hints could not be merged
    pod_level: bool  #: whether pod-level resources were allocated, not the resources of the containers


def _cpus(decision: Decision, progress: _Progress, provider: CpuProvider) -> Counter[SeriesKey]:
    """Count requests for exclusive CPUs, and whether they are whole cores and share a cache."""
    pod, is_reached = progress.pod, provider.name in progress.reached
    failed = progress.by == provider.name
    counts = Counter[SeriesKey]({(CPU_ERRORS,): int(failed)})
    containers = progress.attempted if is_reached else progress.served
    owners = [container for container in containers if provider.exclusive_cpus(pod, container)]
    if progress.pod_level:
        if is_reached and not failed:
            counts[(CPU_REQUESTS,)] = sum(
                bool(provider.exclusive_cpus(pod, container)) for container in pod.all_containers
            )
    else:
        counts[(CPU_REQUESTS,)] = len(owners)
        if provider.options.full_pcpus_only:
            counts[ALIGNED, "container", PHYSICAL_CPU] = len(owners) - failed
            counts[UNALIGNED, "container", PHYSICAL_CPU] = int(failed)
    if not decision.kept:
        caches = provider.view.cache_cpus.values()
        allocated_containers = [container for container in owners if not (failed and container is progress.failed)]
        for cpus in _allocated(decision, progress, provider, allocated_containers):
            counts[ALIGNED, "container", UNCORE_CACHE] += any(cpus & ~cache == 0 for cache in caches)
    return +counts


def _allocated(
    decision: Decision, progress: _Progress, provider: CpuProvider, containers: Sequence[Container]
) -> Iterator[CpuSet]:
    """Yield the CPUs of each successful allocation to *containers*, even if the pod was rejected afterwards."""
    pod, name = progress.pod, provider.name
    if decision.after is not None:
        ledger = decision.after.cpus
        of_containers = (ledger.holds(pod.uid, container.name) for container in containers)
        yield from filter(None, [ledger.pod_held.get(pod.uid)] if progress.pod_level else of_containers)
        return
    if decision.before is None:
        return
    ledger = decision.before.cpus
    affinity = {step.container: step.hint for step in decision.steps}  # under ``None``: of the whole pod
    if progress.pod_level:
        if name in progress.reached and progress.by != name:
            ledger = provider.allocate(ledger, pod, None, affinity=affinity.get(None, NO_AFFINITY))
            yield from filter(None, [ledger.pod_held.get(pod.uid)])
        return
    for container in containers:
        hint = affinity.get(container.name, affinity.get(None, NO_AFFINITY))
        ledger = provider.allocate(ledger, pod, container, affinity=hint)
        yield ledger.holds(pod.uid, container.name) or 0


def _memory(progress: _Progress, provider: MemoryProvider) -> Counter[SeriesKey]:
    is_reached, has_failed = provider.name in progress.reached, progress.by == provider.name
    counts = Counter[SeriesKey]({(MEMORY_ERRORS,): int(has_failed)})
    if not progress.pod_level:
        for container in progress.attempted if is_reached else progress.served:
            with suppress(ProviderError):  # an invalid quantity is rejected before anything is counted
                counts[(MEMORY_REQUESTS,)] += bool(provider.need(progress.pod, container))
    elif is_reached and provider.need(progress.pod, None):
        counts[(MEMORY_REQUESTS,)] = 1 + (0 if has_failed else len(pinned_containers(progress.pod)))
    return +counts
