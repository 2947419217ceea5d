"""What one decision adds to the kubelet's counters.

The kubelet counts on the way, in many places; here all of it follows from the decision when it is made. A refused pod
was counted for by every provider up to the one that refused it, so for such a pod the CPUs given until then are worked
out again from the ledger before it, which costs little and changes nothing.
"""

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from alignup.align.admit import NO_AFFINITY
from alignup.align.bits import CpuSet
from alignup.align.cpus.provider import CpuProvider
from alignup.align.decision import Decision, Outcome
from alignup.align.errors import ProviderError
from alignup.align.hint import Hint
from alignup.align.host import Host
from alignup.align.memory.provider import MemoryProvider, pinned_containers
from alignup.align.settings import Policy, Scope
from alignup.align.workload import Container, Pod

SeriesKey = tuple[str, ...]  #: the name of a metric and the values of its labels, in the order it lists them

REQUESTS = "kubelet_topology_manager_admission_requests_total"
ERRORS = "kubelet_topology_manager_admission_errors_total"
ALIGNED = "kubelet_container_aligned_compute_resources_count"  #: scope, boundary
UNALIGNED = "kubelet_container_aligned_compute_resources_failure_count"  #: scope, boundary
CPU_REQUESTS = "kubelet_cpu_manager_pinning_requests_total"
CPU_ERRORS = "kubelet_cpu_manager_pinning_errors_total"
MEMORY_REQUESTS = "kubelet_memory_manager_pinning_requests_total"
MEMORY_ERRORS = "kubelet_memory_manager_pinning_errors_total"
REJECTIONS = "kubelet_admission_rejections_total"  #: reason

NUMA_NODE, PHYSICAL_CPU, UNCORE_CACHE = "numa_node", "physical_cpu", "uncore_cache"

#: Reasons that are counted under their own name; there are no more, so that nobody can make series without end.
_REASONS = frozenset(
    {
        "Evicted",
        "InitContainerRestartPolicyForbidden",
        "InvalidNodeInfo",
        "NodeShutdown",
        "OutOfcpu",
        "OutOfephemeral-storage",
        "OutOfmemory",
        "OutOfpods",
        "PodOSNotSupported",
        "PodOSSelectorNodeLabelDoesNotMatch",
        "SupplementalGroupsPolicyNotSupported",
        "SysctlForbidden",
        "TopologyAffinityError",
        "UnexpectedAdmissionError",
        "UnexpectedPredicateFailureType",
        "UnknownReason",
    }
)
_FIT_CHECK = "host"  #: who refuses when the topology manager has long agreed


def decision_counts(decision: Decision, *, pod: Pod, host: Host) -> Counter[SeriesKey]:
    """What to add for a *decision* about *pod*, as ``host.decide`` made it; nothing while plugins are to be asked."""
    if decision.outcome is Outcome.ASKING:
        return Counter()
    course = _Course.of(decision, pod, host)
    total = Counter[SeriesKey]({(REQUESTS,): 1})
    if decision.rejection:
        total[REJECTIONS, reason_label(decision.rejection.reason)] += 1
    if course.refused and decision.policy is not Policy.NONE:
        total[(ERRORS,)] += 1
    total.update(_aligned(decision, course))
    total.update(_cpus(decision, course, host.cpus))
    total.update(_memory(course, host.memory))
    return total


def reason_label(reason: str) -> str:
    """Under which reason a refusal is counted."""
    if reason in _REASONS:
        return reason
    return "OutOfExtendedResources" if reason.startswith("OutOf") else "Other"


@dataclass(frozen=True, slots=True, kw_only=True)
class _Course:
    """How far a pod came on its way past the providers."""

    pod: Pod
    order: tuple[str, ...]  #: of the providers
    served: tuple[Container, ...]  #: containers that every provider gave their part
    refused: bool  #: on this way, and not by the fit check after it
    stuck: Container | None  #: the container a provider refused; ``None``: nobody did, or the pod as a whole
    by: str | None  #: that provider; ``None`` when *refused*: no set of nodes suits everybody
    in_one_piece: bool  #: whether the pod's own resources were given out, not those of its containers

    @classmethod
    def of(cls, decision: Decision, pod: Pod, host: Host) -> "_Course":
        """The course *decision* tells of."""
        refusal = decision.rejection
        refused = refusal is not None and refusal.provider != _FIT_CHECK
        by = refusal.provider if refusal and refused else None
        names = [container.name for container in pod.all_containers]
        far = len(names)
        if refused:
            far = names.index(refusal.container) if refusal and refusal.container in names else 0
        return cls(
            pod=pod,
            order=tuple(one.name for one in host.providers),
            served=pod.all_containers[:far],
            refused=refused,
            stuck=pod.all_containers[far] if by and refusal and refusal.container in names else None,
            by=by,
            in_one_piece=(
                decision.policy is not Policy.NONE
                and decision.scope is Scope.POD
                and host.rules.pod_level
                and pod.has_pod_level_resources
            ),
        )

    def asked(self, provider: str) -> tuple[Container, ...]:
        """The containers that *provider* was asked to give its part, one it refused among them."""
        return (*self.served, self.stuck) if self.stuck and self._reached(provider) else self.served

    def pod_asked(self, provider: str) -> bool:
        """Whether *provider* was asked to give out its part of a pod in one piece."""
        return not self.refused or self._reached(provider)

    def _reached(self, provider: str) -> bool:
        return self.by is not None and self.order.index(provider) <= self.order.index(self.by)


def _aligned(decision: Decision, course: _Course) -> Counter[SeriesKey]:
    """Alignment to NUMA nodes, counted under the strictest policy only."""
    if decision.policy is not Policy.SINGLE_NUMA_NODE:
        return Counter()
    scope = str(decision.scope)
    by_container = decision.scope is Scope.CONTAINER
    found = Counter[SeriesKey]()
    found[ALIGNED, scope, NUMA_NODE] = len(course.served) if by_container else int(not course.refused)
    found[UNALIGNED, scope, NUMA_NODE] = int(course.refused and course.by is None)
    return +found


def _cpus(decision: Decision, course: _Course, provider: CpuProvider) -> Counter[SeriesKey]:
    """Requests for CPUs of one's own, and whether those given are whole cores and of one cache."""
    rules, pod = provider, course.pod
    failed = course.by == provider.name
    found = Counter[SeriesKey]({(CPU_ERRORS,): int(failed)})
    pinned = [one for one in course.asked(provider.name) if rules.exclusive_cpus(pod, one)]
    if course.in_one_piece:
        given = course.pod_asked(provider.name) and not failed
        found[(CPU_REQUESTS,)] = sum(1 for one in pod.all_containers if rules.exclusive_cpus(pod, one)) if given else 0
    else:
        found[(CPU_REQUESTS,)] = len(pinned)
        if rules.options.full_pcpus_only:
            found[ALIGNED, "container", PHYSICAL_CPU] = len(pinned) - failed
            found[UNALIGNED, "container", PHYSICAL_CPU] = int(failed)
    if not decision.kept:
        caches = rules.view.cache_cpus.values()
        for cpus in _given(decision, course, rules):
            found[ALIGNED, "container", UNCORE_CACHE] += any(cpus & ~cache == 0 for cache in caches)
    return +found


def _given(decision: Decision, course: _Course, rules: CpuProvider) -> Iterator[CpuSet]:
    """The CPUs of each allocation that succeeded, also where they were taken back when the pod was refused later."""
    pod, name = course.pod, CpuProvider.name
    containers = [
        one
        for one in course.asked(name)
        if rules.exclusive_cpus(pod, one) and not (course.by == name and one is course.stuck)
    ]
    if decision.after is not None:
        book = decision.after.cpus
        sets = (
            [book.pod_held.get(pod.uid)] if course.in_one_piece else [book.holds(pod.uid, c.name) for c in containers]
        )
        yield from filter(None, sets)
        return
    if decision.before is None:
        return
    book, affinity = decision.before.cpus, _affinities(decision)
    if course.in_one_piece:
        if course.pod_asked(name) and course.by != name:
            book = rules.allocate(book, pod, None, affinity=affinity.get(None, NO_AFFINITY))
            yield from filter(None, [book.pod_held.get(pod.uid)])
        return
    for one in containers:
        hint = affinity.get(one.name, affinity.get(None, NO_AFFINITY))
        book = rules.allocate(book, pod, one, affinity=hint)
        yield book.holds(pod.uid, one.name) or 0


def _affinities(decision: Decision) -> Mapping[str | None, Hint]:
    """Container → the nodes its providers were to follow; ``None``: the pod as a whole."""
    return {step.container: step.hint for step in decision.steps}


def _memory(course: _Course, provider: MemoryProvider) -> Counter[SeriesKey]:
    """Requests for memory on nodes of one's own."""
    name = provider.name
    failed = course.by == name
    found = Counter[SeriesKey]({(MEMORY_ERRORS,): int(failed)})
    if not course.in_one_piece:
        found[(MEMORY_REQUESTS,)] = sum(_needs(course.pod, one, provider) for one in course.asked(name))
    elif course.pod_asked(name) and provider.pod_need(course.pod):
        found[(MEMORY_REQUESTS,)] = 1 + (0 if failed else len(pinned_containers(course.pod)))
    return +found


def _needs(pod: Pod, container: Container, provider: MemoryProvider) -> bool:
    try:
        return bool(provider.container_need(pod, container))
    except ProviderError:  # an amount that cannot be read is refused before anything is counted
        return False
