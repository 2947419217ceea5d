"""An upgrade check: what a kubelet of another release makes of a node that runs.

A new kubelet reads the configuration, then the state files, then it admits the pods that run already once more, the
oldest first. Each can fail: a feature gate is gone, a file is not understood, a container is checked by another rule.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from alignup.align.errors import AlignError
from alignup.align.fit import UsedResources
from alignup.align.host import Host
from alignup.align.ledger import Ledger
from alignup.align.machine import Machine
from alignup.align.release import Release
from alignup.align.workload import Pod
from alignup.doctor.diagnosis import diagnose
from alignup.doctor.findings import Finding, Severity
from alignup.documents.codec import to_builtins
from alignup.documents.ledgers import pod_entry
from alignup.kubernetes.configuration import ConfigurationText, host_settings
from alignup.kubernetes.kubelet_files.ledger import restore_ledger
from alignup.kubernetes.kubelet_files.state_files import read_state_files

VERSION = 1  #: of the JSON document


@dataclass(frozen=True, slots=True)
class PodChange:
    """A running pod that a restarted kubelet rejects, or gives other resources than it has."""

    pod: str  #: NAMESPACE/NAME
    uid: str
    reason: str  #: of the kubelet; empty: the pod is admitted, but placed elsewhere
    message: str
    also_now: bool  #: whether a restart of the present kubelet does the same

    def describe(self, release: Release) -> str:
        rejected = f"is rejected when a kubelet {release} starts: {self.reason}: {self.message}"
        moved = f"gets other resources when a kubelet {release} starts: {self.message}"
        now = "; a restart of the present kubelet does the same" if self.also_now else ""
        return f"{self.pod} {rejected if self.reason else moved}{now}"


@dataclass(frozen=True, slots=True, kw_only=True)
class UpgradeReport:
    old: Release
    new: Release
    findings: tuple[Finding, ...]  #: of the new kubelet, which the old one does not have
    pods: tuple[PodChange, ...]
    checked: int  #: running pods

    @property
    def safe(self) -> bool:
        return not self.pods and not any(finding.severity is Severity.ERROR for finding in self.findings)

    def to_document(self) -> dict[str, Any]:
        pods = [
            {"pod": pod.pod, "uid": pod.uid, "reason": pod.reason, "message": pod.message, "alsoNow": pod.also_now}
            for pod in self.pods
        ]
        return {
            "version": VERSION,
            "from": self.old.version,
            "to": self.new.version,
            "safe": self.safe,
            "findings": [finding.to_document() for finding in self.findings],
            "checkedPods": self.checked,
            "pods": pods,
        }


def check_upgrade(
    source: ConfigurationText,
    machine: Machine,
    *,
    directory: Path | None,
    pods: Sequence[Pod],
    releases: Sequence[Release],
) -> UpgradeReport:
    """Compare kubelets of two *releases*, the present one first, on a node; *pods* run there, the oldest first.

    ``FileError`` if the *directory* of state files does not exist.
    """
    old, new = releases
    names = {pod.uid: f"{pod.namespace}/{pod.name}" for pod in pods}
    reports = [
        diagnose(replace(source, release=release), machine, directory=directory, pods=names).report
        for release in releases
    ]
    known = {_identity(finding) for finding in reports[0].findings}
    findings = tuple(
        finding
        for finding in reports[1].findings
        if finding.severity in {Severity.ERROR, Severity.WARNING} and _identity(finding) not in known
    )
    changes: Mapping[str, PodChange] = {}
    if directory is not None and not any(finding.severity is Severity.ERROR for finding in findings):
        before = _restart(source, machine, directory, pods, old)
        after = _restart(source, machine, directory, pods, new)
        changes = {uid: replace(change, also_now=change == before.get(uid)) for uid, change in after.items()}
    return UpgradeReport(old=old, new=new, findings=findings, pods=tuple(changes.values()), checked=len(pods))


def _identity(finding: Finding) -> tuple[str, str, str]:
    return finding.area, finding.where, finding.kubelet_message or finding.summary


def _restart(
    source: ConfigurationText, machine: Machine, directory: Path, pods: Iterable[Pod], release: Release
) -> dict[str, PodChange]:
    """Return the changes when a kubelet of *release* starts, by uid; none if it does not start."""
    try:
        settings = host_settings(replace(source, release=release).read(), machine)
        host = Host(machine, replace(settings, kubelet_faults=True))
        files = read_state_files(directory, gates=settings.gates, devices_optional=True)
        restored = restore_ledger(host, files, pods).ledger
    except AlignError:
        return {}
    # The kubelet knows what containers hold, but has admitted no pod yet.
    host.ledger = replace(restored, pods={}, used=UsedResources())
    changes = {}
    for pod in pods:
        decision = host.decide(pod)
        name = f"{pod.namespace}/{pod.name}"
        if decision.rejection is not None:
            reason, message = decision.rejection.reason, decision.rejection.message
            changes[pod.uid] = PodChange(name, pod.uid, reason, message, also_now=False)
            continue
        host.apply(decision)
        if difference := _difference(restored, host.ledger, pod.uid):
            changes[pod.uid] = PodChange(name, pod.uid, "", difference, also_now=False)
    return changes


def _difference(before: Ledger, after: Ledger, uid: str) -> str:
    """Say which resources of a pod changed; empty: none."""
    held, holds = (to_builtins(pod_entry(ledger, uid)) for ledger in (before, after))
    changed = [kind for kind in ("cpus", "memory", "devices") if held.get(kind) != holds.get(kind)]
    return f"its {' and '.join(changed)} change" if changed else ""
