"""An upgrade check: what a kubelet of another release makes of a node that runs.

A new kubelet reads the configuration, then the state files, then it admits the pods that run already once more, the
oldest first. Each can fail: a feature gate is gone, a file is not understood, a container is checked by another rule.
Pods that wait may get another answer from it.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from alignup.align.host import Host
from alignup.align.machine import Machine
from alignup.align.reason_codes import INVALID_SUB_IDS
from alignup.align.release import Release
from alignup.align.restart import PodChange, Restart, UpgradeItem, UpgradeSeverity, compare_restarts, restart
from alignup.align.workload import Pod
from alignup.doctor.diagnosis import diagnose
from alignup.doctor.findings import Area, Finding, Severity, error
from alignup.kubernetes.configuration import ConfigurationText, host_settings
from alignup.kubernetes.kubelet_files.ledger import restore_ledger
from alignup.kubernetes.kubelet_files.state_files import read_state_files
from alignup.kubernetes.kubelet_files.sub_ids import SubIds, pod_problems, sub_id_problems

VERSION = 1  #: of the JSON document


@dataclass(frozen=True, slots=True, kw_only=True)
class UpgradeReport:
    old: Release
    new: Release
    findings: tuple[Finding, ...]  #: of the new kubelet, which the old one does not have
    shared: tuple[Finding, ...]  #: errors with which neither kubelet starts
    pods: tuple[PodChange, ...] = ()  #: pods that run, then pods that wait
    checked: int = 0  #: running pods; none if the new kubelet does not start
    waiting: int = 0  #: pods that wait and were asked about
    unchecked: tuple[str, ...] = ()  #: uids of pods that hold resources in the state files and are not listed

    @property
    def safe(self) -> bool:
        return all(item.severity > UpgradeSeverity.UNCHECKED for item in self.items)

    @property
    def items(self) -> list[UpgradeItem]:
        """Everything that happens, the worst first."""
        items = [
            *(_item(finding) for finding in self.findings),
            *(_item(finding, "; the present kubelet does not start either") for finding in self.shared),
            *(change.item(self.new) for change in self.pods),
            *(
                UpgradeItem(
                    UpgradeSeverity.UNCHECKED, f"pod {uid} of the state files is not checked", "add it to --pods"
                )
                for uid in self.unchecked
            ),
        ]
        return sorted(items, key=lambda item: item.severity)

    def to_document(self) -> dict[str, Any]:
        return {
            "version": VERSION,
            "from": self.old.version,
            "to": self.new.version,
            **self.new.date_document(),
            "safe": self.safe,
            "findings": [finding.to_document() for finding in self.findings],
            "sharedErrors": [finding.to_document() for finding in self.shared],
            "checkedPods": self.checked,
            "waitingPods": self.waiting,
            "uncheckedPods": list(self.unchecked),
            "pods": [pod.to_document() for pod in self.pods],
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class UpgradedNode:
    """A node whose kubelet is replaced."""

    source: ConfigurationText
    machine: Machine
    directory: Path | None = None  #: of the state files; ``None``: the node is empty
    pods: Sequence[Pod] = ()  #: that run there, the oldest first
    waiting: Sequence[Pod] = ()
    sub_ids: SubIds = field(default_factory=dict)


def check_upgrade(node: UpgradedNode, releases: Sequence[Release]) -> UpgradeReport:
    """Compare kubelets of two *releases*, the present one first, on a node.

    ``FileError`` if the directory of state files does not exist, ``AlignError`` if its files do not fit the machine.
    """
    old, new = releases
    names = {pod.uid: f"{pod.namespace}/{pod.name}" for pod in node.pods}
    old_findings, new_findings = (
        (
            *diagnose(
                replace(node.source, release=release), node.machine, directory=node.directory, pods=names
            ).report.findings,
            *_sub_id_findings(node, release),
        )
        for release in releases
    )
    present = {_identity(finding) for finding in old_findings}
    report = UpgradeReport(
        old=old,
        new=new,
        findings=tuple(
            finding
            for finding in new_findings
            if finding.severity in {Severity.ERROR, Severity.WARNING} and _identity(finding) not in present
        ),
        shared=tuple(finding for finding in filter(_is_error, new_findings) if _identity(finding) in present),
    )
    if any(map(_is_error, new_findings)):
        return report
    restart, unchecked_parts = _restart(node, new)
    previous = Restart({}, restart.host) if any(map(_is_error, old_findings)) else _restart(node, old)[0]
    return replace(
        report,
        pods=compare_restarts(previous, restart, node.waiting),
        checked=0 if node.directory is None else len(node.pods),
        waiting=len(node.waiting),
        unchecked=unchecked_parts,
    )


def _item(finding: Finding, more: str = "") -> UpgradeItem:
    severity = UpgradeSeverity.NOT_STARTED if _is_error(finding) else UpgradeSeverity.WARNING
    prefix = f"{finding.where}: " if finding.where else ""
    return UpgradeItem(severity, f"{prefix}{finding.kubelet_message or finding.summary}{more}", finding.advice)


def _sub_id_findings(node: UpgradedNode, release: Release) -> Iterator[Finding]:
    advice = "give the user kubelet a range that ends below 4294967295"
    pods = pod_problems(node.directory, release) if node.directory else ()
    problems = [(problem, advice) for problem in sub_id_problems(node.sub_ids, release)]
    problems += [(problem, "delete the pod before the upgrade") for problem in pods]
    for problem, remedy in problems:
        summary = f"a kubelet {release} does not start: {problem.message}"
        yield error(Area.CONFIGURATION, summary, INVALID_SUB_IDS, advice=remedy, where=problem.field)


def _is_error(finding: Finding) -> bool:
    return finding.severity is Severity.ERROR


def _identity(finding: Finding) -> tuple[str, str, str]:
    return finding.area, finding.where, finding.kubelet_message or finding.summary


def _restart(node: UpgradedNode, release: Release) -> tuple[Restart, tuple[str, ...]]:
    """Return what happens when a kubelet of *release* starts, and the uids in the files that are no running pods.

    ``AlignError`` if it does not start.
    """
    settings = host_settings(replace(node.source, release=release).read(), node.machine)
    host = Host(node.machine, replace(settings, kubelet_faults=True))
    if node.directory is None:
        return Restart({}, host), ()
    files = read_state_files(node.directory, gates=settings.gates, devices_optional=True)
    restored_ledger = restore_ledger(host, files, node.pods)
    return restart(host, restored_ledger.ledger, node.pods), restored_ledger.unknown
