"""What an empty node of each profile would make of the pod of a workload."""

import time
from collections.abc import Hashable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from alignup.align.host import Host
from alignup.align.workload import Pod
from alignup.kubernetes.manifests.workloads import Workload
from alignup.placement.pod_findings import PodFinding, find_remedy, host_findings, manifest_findings
from alignup.placement.pod_shape import shape_key

SEARCH_SECONDS = 10.0  #: for remedies of all rejected pods together


@dataclass(frozen=True, slots=True)
class NodeProfile:
    """A kind of node: its machine and configuration, with no pods."""

    name: str
    host: Host


@dataclass(frozen=True, slots=True)
class CheckFinding:
    answer: PodFinding
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
        self._answers: dict[tuple[str, Hashable], tuple[PodFinding, ...]] = {}

    def findings(self, workload: Workload) -> list[CheckFinding]:
        """Return what is wrong with the pod of a workload, the worst first; equal answers are one finding."""
        profiles: dict[PodFinding, list[str]] = {}
        key = shape_key(workload.pod)
        for profile in self._profiles:
            answers = self._answers.get((profile.name, key))
            if answers is None:
                host, pod = profile.host, workload.pod
                answers = tuple([self._with_remedy(host, pod, finding) for finding in host_findings(host, pod)])
                self._answers[profile.name, key] = answers
            for answer in answers:
                profiles.setdefault(answer, []).append(profile.name)
        findings = [CheckFinding(answer, workload, tuple(names)) for answer, names in profiles.items()]
        of_manifest = manifest_findings(workload.pod, workload.without_pod_level_fix().pod)
        findings += [CheckFinding(answer, workload) for answer in of_manifest]
        return sorted(findings, key=lambda finding: finding.answer.level.rank)

    def _with_remedy(self, host: Host, pod: Pod, finding: PodFinding) -> PodFinding:
        if not finding.is_rejection:
            return finding
        start = time.monotonic()
        end = start + min(self._search_seconds, 1.0)
        remedy = find_remedy(host, pod, lambda: time.monotonic() > end)
        self._search_seconds -= time.monotonic() - start
        return replace(finding, remedy=remedy)
