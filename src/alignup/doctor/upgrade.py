"""An upgrade check: what a kubelet of another release makes of a node that runs.

A new kubelet reads the configuration, then the state files, then it admits the pods that run already once more, the
oldest first. Each can fail: a feature gate is gone, a file is not understood, a container is checked by another rule.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

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
    shared: tuple[Finding, ...]  #: errors with which neither kubelet starts
    pods: tuple[PodChange, ...]
    checked: int  #: running pods; none if the new kubelet does not start
    unchecked: tuple[str, ...] = ()  #: uids of pods that hold resources in the state files and are not listed

    @property
    def breaks(self) -> bool:
        return bool(self.pods or self.shared or any(map(_is_error, self.findings)))

    @property
    def safe(self) -> bool:
        return not self.breaks and not self.unchecked

    def to_document(self) -> dict[str, Any]:
        return {
            "version": VERSION,
            "from": self.old.version,
            "to": self.new.version,
            "safe": self.safe,
            "findings": [finding.to_document() for finding in self.findings],
            "sharedErrors": [finding.to_document() for finding in self.shared],
            "checkedPods": self.checked,
            "uncheckedPods": list(self.unchecked),
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

    ``FileError`` if the *directory* of state files does not exist, ``AlignError`` if its files do not fit the machine.
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
    shared = tuple(finding for finding in filter(_is_error, reports[1].findings) if _identity(finding) in known)
    if directory is None or any(map(_is_error, reports[1].findings)):
        return UpgradeReport(old=old, new=new, findings=findings, shared=shared, pods=(), checked=0)
    before: dict[str, PodChange] = {}
    if not any(map(_is_error, reports[0].findings)):
        before, _ = _restart(source, machine, directory, pods, old)
    after, unchecked = _restart(source, machine, directory, pods, new)
    return UpgradeReport(
        old=old,
        new=new,
        findings=findings,
        shared=shared,
        pods=compare_restarts(before, after),
        checked=len(pods),
        unchecked=unchecked,
    )


def _is_error(finding: Finding) -> bool:
    return finding.severity is Severity.ERROR


def _identity(finding: Finding) -> tuple[str, str, str]:
    return finding.area, finding.where, finding.kubelet_message or finding.summary


def _restart(
    source: ConfigurationText, machine: Machine, directory: Path, pods: Iterable[Pod], release: Release
) -> tuple[dict[str, PodChange], tuple[str, ...]]:
    """Return the changes when a kubelet of *release* starts, by uid, and the uids in the files that *pods* lack.

    ``AlignError`` if it does not start.
    """
    settings = host_settings(replace(source, release=release).read(), machine)
    host = Host(machine, replace(settings, kubelet_faults=True))
    files = read_state_files(directory, gates=settings.gates, devices_optional=True)
    restored = restore_ledger(host, files, pods)
    return restart(host, restored.ledger, pods), restored.unknown
