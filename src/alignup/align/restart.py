"""The restart of a kubelet: the pods that run are admitted once more, with what their containers hold already.

A kubelet of another release, or one with other settings, may reject a running pod then, or place it elsewhere. Pods
that wait may get another answer from it.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from enum import IntEnum
from typing import NamedTuple

from alignup.align.decision import Decision
from alignup.align.host import Host
from alignup.align.ledger import Ledger
from alignup.align.release import Release
from alignup.align.workload import Pod


class UpgradeSeverity(IntEnum):
    """What becomes of a node with another kubelet, the worst first; everything up to ``UNCHECKED`` needs a person."""

    NOT_STARTED = 0  #: the kubelet does not start
    REJECTED = 1  #: a running pod is rejected
    MOVED = 2  #: a running pod gets other resources
    WAITING = 3  #: a pod that waits is rejected, and was not before
    UNCHECKED = 4  #: it is not known
    WARNING = 5
    NOTE = 6  #: a pod that waits is admitted, or placed otherwise


class UpgradeItem(NamedTuple):
    """One line of a report on an upgrade: what happens, and what to do."""

    severity: UpgradeSeverity
    text: str
    advice: str = ""


@dataclass(frozen=True, slots=True)
class PodChange:
    """A pod that a restarted kubelet rejects, or gives other resources than it has, or would have got before."""

    pod: str  #: NAMESPACE/NAME
    uid: str
    reason: str  #: of the kubelet; empty: the pod is admitted, but placed elsewhere
    message: str
    also_now: bool = False  #: whether a restart of the present kubelet does the same
    waits: bool = False  #: whether it does not run yet

    def describe(self, release: Release) -> str:
        if self.waits:
            message = f"would be rejected by a kubelet {release}: {self.reason}: {self.message}"
            return f"{self.pod}, which waits, {message if self.reason else self.message}"
        message = f"is rejected when a kubelet {release} starts: {self.reason}: {self.message}"
        change = f"gets other resources when a kubelet {release} starts: {self.message}"
        now = "; a restart of the present kubelet does the same" if self.also_now else ""
        return f"{self.pod} {message if self.reason else change}{now}"

    @property
    def severity(self) -> UpgradeSeverity:
        if self.waits:
            return UpgradeSeverity.WAITING if self.reason else UpgradeSeverity.NOTE
        return UpgradeSeverity.REJECTED if self.reason else UpgradeSeverity.MOVED

    def item(self, release: Release) -> UpgradeItem:
        advice = {
            UpgradeSeverity.REJECTED: "drain the node before, or delete the pod: its owner creates it anew",
            UpgradeSeverity.MOVED: "drain the node before: the containers run elsewhere than the kubelet believes",
            UpgradeSeverity.WAITING: "ask 'alignup why' with the new release what would admit it",
        }
        return UpgradeItem(self.severity, self.describe(release), advice.get(self.severity, ""))

    def to_document(self) -> dict[str, str | bool]:
        return {
            "pod": self.pod,
            "uid": self.uid,
            "reason": self.reason,
            "message": self.message,
            "alsoNow": self.also_now,
            "waits": self.waits,
        }


class Restart(NamedTuple):
    changes: dict[str, PodChange]  #: by uid
    host: Host  #: afterwards


def restart(host: Host, ledger: Ledger, pods: Iterable[Pod]) -> Restart:
    """Admit *pods* on *host* once more, in this order; *ledger* is what they hold."""
    starting_host = Host(host.machine, host.settings, ledger=ledger, others=host.others, starting=True)
    changes = {}
    for pod in pods:
        decision = starting_host.decide_without_plugins(pod)
        name = f"{pod.namespace}/{pod.name}"
        if decision.rejection is not None:
            starting_host.leave_residue(decision)
            changes[pod.uid] = PodChange(name, pod.uid, decision.rejection.reason, decision.rejection.message)
            continue
        starting_host.apply(decision)
        old_holdings, new_holdings = _held(ledger, pod.uid), _held(starting_host.ledger, pod.uid)
        if changed_kinds := [kind for kind in old_holdings if old_holdings[kind] != new_holdings[kind]]:
            changes[pod.uid] = PodChange(name, pod.uid, "", f"its {' and '.join(changed_kinds)} change")
    return Restart(changes, Host(host.machine, host.settings, ledger=starting_host.ledger, others=host.others))


def _held(ledger: Ledger, uid: str) -> dict[str, object]:
    cpus, memory = ledger.cpus, ledger.memory
    return {
        "CPUs": (cpus.held.get(uid), cpus.pod_held.get(uid)),
        "memory": (memory.held.get(uid), memory.pod_held.get(uid)),
        "devices": ledger.devices.held.get(uid),
    }


def compare_restarts(old: Restart, new: Restart, waiting_pods: Iterable[Pod] = ()) -> tuple[PodChange, ...]:
    """Return the changes of a *new* kubelet. Changes that a restart of the *old* kubelet brings as well are marked.

    The *waiting_pods* are decided afterwards, each alone.
    """
    running_changes = (replace(change, also_now=change == old.changes.get(uid)) for uid, change in new.changes.items())
    return *running_changes, *_waiting_changes(old.host, new.host, waiting_pods)


def _waiting_changes(old: Host, new: Host, pods: Iterable[Pod]) -> Iterator[PodChange]:
    for pod in pods:
        old_decision, new_decision = old.decide_without_plugins(pod), new.decide_without_plugins(pod)
        reason, message = "", ""
        if old_decision.rejection is None and new_decision.rejection is not None:
            reason, message = new_decision.rejection.reason, new_decision.rejection.message
        elif new_decision.rejection is None and old_decision.rejection is not None:
            message = f"would be admitted by a kubelet {new.settings.release}, and is rejected now"
        elif new_decision.rejection is None and _placed(old_decision) != _placed(new_decision):
            message = f"would get other resources from a kubelet {new.settings.release}"
        if message:
            yield PodChange(f"{pod.namespace}/{pod.name}", pod.uid, reason, message, waits=True)


def _placed(decision: Decision) -> list[object]:
    return [(placement.cpus, placement.memory, placement.devices) for placement in decision.placements]
