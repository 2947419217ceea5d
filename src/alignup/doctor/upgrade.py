"""An upgrade check: what a kubelet of another release makes of a node that runs.

A new kubelet reads the configuration, then the state files, then it admits the pods that run already once more, the
oldest first. Each can fail: a feature gate is gone, a file is not understood, a container is checked by another rule.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from alignup.align.errors import AlignError
from alignup.align.host import Host
from alignup.align.machine import Machine
from alignup.align.release import Release
from alignup.align.restart import PodChange, compare_restarts, restart
from alignup.align.workload import Pod
from alignup.doctor.diagnosis import diagnose
from alignup.doctor.findings import Finding, Severity
from alignup.kubernetes.configuration import ConfigurationText, host_settings
from alignup.kubernetes.kubelet_files.ledger import restore_ledger
from alignup.kubernetes.kubelet_files.state_files import read_state_files

VERSION = 1  #: of the JSON document


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
        return {
            "version": VERSION,
            "from": self.old.version,
            "to": self.new.version,
            "safe": self.safe,
            "findings": [finding.to_document() for finding in self.findings],
            "checkedPods": self.checked,
            "pods": [pod.to_document() for pod in self.pods],
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
    changes: tuple[PodChange, ...] = ()
    if directory is not None and not any(finding.severity is Severity.ERROR for finding in findings):
        before = _restart(source, machine, directory, pods, old)
        after = _restart(source, machine, directory, pods, new)
        changes = compare_restarts(before, after)
    return UpgradeReport(old=old, new=new, findings=findings, pods=changes, checked=len(pods))


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
    return restart(host, restored, pods)
