"""The restart of a kubelet: the pods that run are admitted once more, with what their containers hold already.

A kubelet of another release, or one with other settings, may reject a running pod then, or place it elsewhere.
"""

from collections.abc import Iterable
from dataclasses import dataclass, replace

from alignup.align.host import Host
from alignup.align.ledger import Ledger
from alignup.align.release import Release
from alignup.align.workload import Pod


@dataclass(frozen=True, slots=True)
class PodChange:
    """A running pod that a restarted kubelet rejects, or gives other resources than it has."""

    pod: str  #: NAMESPACE/NAME
    uid: str
    reason: str  #: of the kubelet; empty: the pod is admitted, but placed elsewhere
    message: str
    also_now: bool = False  #: whether a restart of the present kubelet does the same

    def describe(self, release: Release) -> str:
        rejected = f"is rejected when a kubelet {release} starts: {self.reason}: {self.message}"
        moved = f"gets other resources when a kubelet {release} starts: {self.message}"
        now = "; a restart of the present kubelet does the same" if self.also_now else ""
        return f"{self.pod} {rejected if self.reason else moved}{now}"

    def to_document(self) -> dict[str, str | bool]:
        return {
            "pod": self.pod,
            "uid": self.uid,
            "reason": self.reason,
            "message": self.message,
            "alsoNow": self.also_now,
        }


def restart(host: Host, ledger: Ledger, pods: Iterable[Pod]) -> dict[str, PodChange]:
    """Admit *pods* on *host* once more, in this order, and return the changes by uid; *ledger* is what they hold."""
    started = Host(host.machine, host.settings, ledger=ledger, others=host.others, starting=True)
    changes = {}
    for pod in pods:
        decision = started.decide_without_plugins(pod)
        name = f"{pod.namespace}/{pod.name}"
        if decision.rejection is not None:
            started.leave_residue(decision)
            changes[pod.uid] = PodChange(name, pod.uid, decision.rejection.reason, decision.rejection.message)
            continue
        started.apply(decision)
        before, after = _held(ledger, pod.uid), _held(started.ledger, pod.uid)
        if changed := [kind for kind in before if before[kind] != after[kind]]:
            changes[pod.uid] = PodChange(name, pod.uid, "", f"its {' and '.join(changed)} change")
    return changes


def _held(ledger: Ledger, uid: str) -> dict[str, object]:
    cpus, memory = ledger.cpus, ledger.memory
    return {
        "CPUs": (cpus.held.get(uid), cpus.pod_held.get(uid)),
        "memory": (memory.held.get(uid), memory.pod_held.get(uid)),
        "devices": ledger.devices.held.get(uid),
    }


def compare_restarts(old: dict[str, PodChange], new: dict[str, PodChange]) -> tuple[PodChange, ...]:
    """Return the changes of a *new* kubelet, with those marked that a restart of the *old* one brings as well."""
    return tuple(replace(change, also_now=change == old.get(uid)) for uid, change in new.items())
