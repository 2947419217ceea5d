"""What an empty node of each profile would make of the pod of a workload."""

import time
from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from alignup.align.demanded_policy import DemandedPolicy, unmet_demand
from alignup.align.explain import sentences
from alignup.align.explain.remedies import find_remedies
from alignup.align.host import Host
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
from alignup.kubernetes.manifests.workloads import Workload
from alignup.placement.pod_demands import (
    DEMAND_NOT_MET,
    SUPPORTED_VALUES,
    demand_problem,
    devices_problem,
    find_refusal,
)
from alignup.placement.pod_shape import shape_key

NOT_SCHEDULABLE = "NotSchedulable"  #: no device plugin of the node provides a requested resource
MAY_BE_REJECTED = "MayBeRejected"  #: it depends on devices that are chosen at random
NOT_ALIGNED = "NotAligned"
FRACTIONAL_CPUS = "FractionalCPUs"
QOS_BY_RELEASE = "QoSClassDependsOnRelease"
UNKNOWN_ANNOTATION = "UnknownAnnotation"

SEARCH_SECONDS = 10.0  #: for remedies of all rejected pods together

_PREFIX = "topology.alignup.dev/"
_ANNOTATIONS = (
    POLICY_ANNOTATION,
    SCOPE_ANNOTATION,
    DEVICES_ANNOTATION,
    CLAIMS_ANNOTATION,
    NUMA_ANNOTATION,
    f"{_PREFIX}gang-size",
)


class FindingLevel(StrEnum):
    """How bad a finding is, the worst first."""

    REJECTED = "rejected"
    MISALIGNED = "misaligned"
    WARNING = "warning"

    @property
    def rank(self) -> int:
        return tuple(FindingLevel).index(self)


@dataclass(frozen=True, slots=True)
class NodeProfile:
    """A kind of node: its machine and configuration, with no pods."""

    name: str
    host: Host


@dataclass(frozen=True, slots=True)
class ProfileAnswer:
    """What is wrong with a pod, whichever workload has it."""

    code: str  #: the kubelet's reason of a rejection, or one of ours
    level: FindingLevel
    message: str
    remedy: str = ""


@dataclass(frozen=True, slots=True)
class CheckFinding:
    answer: ProfileAnswer
    workload: Workload
    profiles: tuple[str, ...] = ()  #: empty: whatever the node

    @property
    def key(self) -> tuple[str, ...]:
        """What identifies the finding in a baseline: neither lines nor wording, which change without a reason."""
        workload = self.workload
        return (self.answer.code, workload.source.file, workload.kind, workload.namespace, workload.title)

    def to_document(self) -> dict[str, Any]:
        answer, workload = self.answer, self.workload
        return {
            "code": answer.code,
            "level": str(answer.level),
            "message": answer.message,
            "remedy": answer.remedy,
            "nodes": list(self.profiles),
            "file": workload.source.file,
            "line": workload.source.line,
            "kind": workload.kind,
            "namespace": workload.namespace,
            "name": workload.title,
        }


class TemplateCheck:
    """The check of many workloads. Pods of the same shape are decided on once for each profile."""

    def __init__(self, profiles: Sequence[NodeProfile]) -> None:
        self._profiles = profiles
        self._search_seconds = SEARCH_SECONDS
        self._answers: dict[tuple[str, Hashable], tuple[ProfileAnswer, ...]] = {}

    def findings(self, workload: Workload) -> list[CheckFinding]:
        """Return what is wrong with the pod of a workload, the worst first; equal answers are one finding."""
        profiles: dict[ProfileAnswer, list[str]] = {}
        key = shape_key(workload.pod)
        for profile in self._profiles:
            answers = self._answers.get((profile.name, key))
            if answers is None:
                answers = tuple(self._decide(profile.host, workload.pod))
                self._answers[profile.name, key] = answers
            for answer in answers:
                profiles.setdefault(answer, []).append(profile.name)
        findings = [CheckFinding(answer, workload, tuple(names)) for answer, names in profiles.items()]
        findings += [CheckFinding(answer, workload) for answer in _manifest_warnings(workload)]
        return sorted(findings, key=lambda finding: finding.answer.level.rank)

    def _decide(self, host: Host, pod: Pod) -> Iterator[ProfileAnswer]:
        if missing := host.missing_devices(pod):
            yield ProfileAnswer(NOT_SCHEDULABLE, FindingLevel.REJECTED, sentences.no_plugin(missing))
            return
        decision = host.predict(pod)
        if decision.rejection is not None:
            reasons = "; ".join(sentences.describe_rejection(decision)) or decision.rejection.message
            yield ProfileAnswer(decision.rejection.reason, FindingLevel.REJECTED, reasons, self._find_remedy(host, pod))
            return
        if possible := sentences.describe_possible_rejection(decision):
            yield ProfileAnswer(MAY_BE_REJECTED, FindingLevel.REJECTED, possible)
        if not demand_problem(pod) and (refusal := find_refusal(host, pod, decision)):
            yield ProfileAnswer(DEMAND_NOT_MET, FindingLevel.REJECTED, refusal.reason, refusal.detail)
        demand = DemandedPolicy(Policy.RESTRICTED, host.settings.topology.scope)
        if unmet := unmet_demand(host, pod, decision, demand):
            yield ProfileAnswer(NOT_ALIGNED, FindingLevel.MISALIGNED, str(unmet))
        if host.cpus.allocatable and pod.qos is QoS.GUARANTEED:
            for container in pod.all_containers:
                cpus = container.resources.requests.get(CPU)
                if cpus is not None and cpus.milli() % 1000:
                    message = f"container {container.name} requests {cpus} CPU, so it gets no exclusive CPUs"
                    whole = -(-cpus.milli() // 1000)
                    yield ProfileAnswer(
                        FRACTIONAL_CPUS, FindingLevel.WARNING, message, f"request {sentences.format_amount(CPU, whole)}"
                    )

    def _find_remedy(self, host: Host, pod: Pod) -> str:
        """Return the first change of the pod that admits it, in words."""
        start = time.monotonic()
        end = start + min(self._search_seconds, 1.0)
        remedies = find_remedies(host, pod, should_stop=lambda: time.monotonic() > end)
        self._search_seconds -= time.monotonic() - start
        return next((proposal.describe(host.ledger) for proposal in remedies.proposals), "")


def _manifest_warnings(workload: Workload) -> Iterator[ProfileAnswer]:
    """Yield what is wrong whatever the node."""
    annotations = workload.pod.annotations
    for name in sorted(annotations):
        value, choices = annotations[name], SUPPORTED_VALUES.get(name)
        if name.startswith(_PREFIX) and name not in _ANNOTATIONS:
            supported = ", ".join(_ANNOTATIONS)
            yield ProfileAnswer(
                UNKNOWN_ANNOTATION, FindingLevel.WARNING, f"annotation {name} is unknown", f"use one of {supported}"
            )
        elif choices and value not in choices:
            message = f"annotation {name} is {value!r}"
            yield ProfileAnswer(UNKNOWN_ANNOTATION, FindingLevel.REJECTED, message, f"use one of {', '.join(choices)}")
    if problem := devices_problem(workload.pod):
        yield ProfileAnswer(UNKNOWN_ANNOTATION, FindingLevel.REJECTED, problem)
    if workload.pod.has_pod_level_resources:
        old = workload.without_pod_level_fix().pod.qos
        if old is not workload.pod.qos:
            message = (
                f"the pod is {old} up to Kubernetes 1.36 and {workload.pod.qos} since 1.37, "
                "which derives pod-level requests from limits"
            )
            yield ProfileAnswer(QOS_BY_RELEASE, FindingLevel.WARNING, message, "set spec.resources.requests")
