"""What is wrong with a pod: on an empty host of some kind, and on any host."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from enum import StrEnum

from alignup.align.demanded_policy import DemandedPolicy, unmet_demand
from alignup.align.explain import sentences
from alignup.align.explain.remedies import find_remedies
from alignup.align.host import Host
from alignup.align.reason_codes import (
    DEMAND_NOT_MET,
    FRACTIONAL_CPUS,
    MAY_BE_REJECTED,
    NOT_ALIGNED,
    NOT_SCHEDULABLE,
    QOS_BY_RELEASE,
    UNKNOWN_ANNOTATION,
    UNKNOWN_DEMAND,
)
from alignup.align.settings import Policy
from alignup.align.workload import Pod, QoS
from alignup.align.workload.names import (
    CLAIMS_ANNOTATION,
    CPU,
    DEVICES_ANNOTATION,
    NUMA_ANNOTATION,
    POLICY_ANNOTATION,
    SCOPE_ANNOTATION,
)
from alignup.placement.pod_demands import demand_problem, find_refusal

_PREFIX = "topology.alignup.dev/"
_ANNOTATIONS = (
    POLICY_ANNOTATION,
    SCOPE_ANNOTATION,
    DEVICES_ANNOTATION,
    CLAIMS_ANNOTATION,
    NUMA_ANNOTATION,
    f"{_PREFIX}gang-size",
)
#: Of level REJECTED, but not because a kubelet rejects the pod for certain.
_NOT_BY_KUBELET = {NOT_SCHEDULABLE, MAY_BE_REJECTED, DEMAND_NOT_MET, UNKNOWN_DEMAND}


class FindingLevel(StrEnum):
    """How bad a finding is, the worst first."""

    REJECTED = "rejected"
    MISALIGNED = "misaligned"
    WARNING = "warning"

    @property
    def rank(self) -> int:
        return tuple(FindingLevel).index(self)


@dataclass(frozen=True, slots=True)
class PodFinding:
    code: str  #: the kubelet's reason of a rejection, or another one of ``align.reason_codes``
    level: FindingLevel
    message: str
    remedy: str = ""

    @property
    def is_rejection(self) -> bool:
        """Whether the kubelet rejects the pod for certain."""
        return self.level is FindingLevel.REJECTED and self.code not in _NOT_BY_KUBELET


def host_findings(host: Host, pod: Pod) -> Iterator[PodFinding]:
    """Yield what is wrong with *pod* on *host*; a rejection has no remedy yet: see ``find_remedy``."""
    if missing_devices := host.missing_devices(pod):
        yield PodFinding(NOT_SCHEDULABLE, FindingLevel.REJECTED, sentences.no_plugin(missing_devices))
        return
    decision = host.predict(pod)
    if decision.rejection is not None:
        reasons = "; ".join(sentences.describe_rejection(decision)) or decision.rejection.message
        yield PodFinding(decision.rejection.reason, FindingLevel.REJECTED, reasons)
        return
    if possible := sentences.describe_possible_rejection(decision):
        yield PodFinding(MAY_BE_REJECTED, FindingLevel.REJECTED, possible)
    if not demand_problem(pod) and (refusal := find_refusal(host, pod, decision)):
        yield PodFinding(DEMAND_NOT_MET, FindingLevel.REJECTED, refusal.reason, refusal.detail)
    demand = DemandedPolicy(Policy.RESTRICTED, host.settings.topology.scope)
    if unmet := unmet_demand(host, pod, decision, demand):
        yield PodFinding(NOT_ALIGNED, FindingLevel.MISALIGNED, str(unmet))
    if host.cpus.allocatable and pod.qos is QoS.GUARANTEED:
        for container in pod.all_containers:
            cpus = container.resources.requests.get(CPU)
            if cpus is not None and cpus.milli() % 1000:
                message = f"container {container.name} requests {cpus} CPU, so it gets no exclusive CPUs"
                whole = sentences.format_amount(CPU, -(-cpus.milli() // 1000))
                yield PodFinding(FRACTIONAL_CPUS, FindingLevel.WARNING, message, f"request {whole}")


def find_remedy(host: Host, pod: Pod, should_stop: Callable[[], bool]) -> str:
    """Return the first change that admits a pod that *host* rejects, in words."""
    remedies = find_remedies(host, pod, should_stop=should_stop)
    return next((proposal.describe(host.ledger) for proposal in remedies.proposals), "")


def manifest_findings(pod: Pod, without_pod_level_fix: Pod) -> Iterator[PodFinding]:
    """Yield what is wrong on any host; the second pod is that of an API server up to 1.36."""
    for name in sorted(pod.annotations):
        if name.startswith(_PREFIX) and name not in _ANNOTATIONS:
            advice = f"use one of {', '.join(_ANNOTATIONS)}"
            yield PodFinding(UNKNOWN_ANNOTATION, FindingLevel.WARNING, f"annotation {name} is unknown", advice)
    if problem := demand_problem(pod):
        yield PodFinding(UNKNOWN_DEMAND, FindingLevel.REJECTED, problem)
    old = without_pod_level_fix.qos
    if old is not pod.qos:
        message = (
            f"the pod is {old} up to Kubernetes 1.36 and {pod.qos} since 1.37, "
            "which completes pod-level resources from those of the containers"
        )
        yield PodFinding(QOS_BY_RELEASE, FindingLevel.WARNING, message, "set requests and limits in spec.resources")
