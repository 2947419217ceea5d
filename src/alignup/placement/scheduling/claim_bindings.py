"""Pods with ResourceClaims whose scheduler asks: which bindings are refused because of the devices.

The scheduler allocates devices immediately before the binding. A pod whose annotation requires that its CPUs and memory
are beside them is not bound otherwise. The scheduler then tries again: the node is not offered while the claim has
these devices, so the scheduler takes them back if they cannot be used elsewhere. After a few such tries the pod waits.
"""

from collections import OrderedDict
from dataclasses import dataclass
from typing import NamedTuple

from alignup.align.reason_codes import CLAIMS_NOT_ALIGNED
from alignup.align.workload import Pod
from alignup.align.workload.names import CLAIMS_ANNOTATION
from alignup.placement.scheduling.claim_rules import ClaimAlignment, ClaimPreference, alignment, must_align
from alignup.placement.scheduling.facts import Explained, PodFacts
from alignup.placement.scheduling.instructions import Report, WriteEvent
from alignup.placement.scheduling.turn import Turn

MAX_TRIES = 5  #: bindings of a pod that are refused before it waits
WAIT_SECONDS = 600.0
MAX_PODS = 4096  #: pods whose refused bindings are remembered
REFUSED = "refused"  #: of metrics, beside the alignments


class ClaimCheck(NamedTuple):
    """What is known of the devices of a pod at its binding."""

    problem: str = ""  #: why the pod must not be bound
    alignment: ClaimAlignment | None = None  #: ``None``: nothing is to be counted


NOTHING_CHECKED = ClaimCheck()


@dataclass(slots=True)
class _Refusals:
    count: int = 0
    until: float = 0.0  #: when the pod may be tried again, after too many


class ClaimBindings:
    def __init__(self, *, turn: Turn) -> None:
        self._turn = turn
        self._refusals: OrderedDict[str, _Refusals] = OrderedDict()  #: by uid

    def waits(self, pod: Pod) -> str:
        """Return why *pod* waits after refused bindings; empty: it does not."""
        refusals = self._refusals.get(pod.uid)
        if refusals is None or refusals.until <= self._turn.now or not must_align(pod):
            return ""
        return f"its claims got no devices beside its CPUs in {MAX_TRIES} tries"

    def check(self, facts: PodFacts, node: str, explained: Explained) -> ClaimCheck:
        """Compare the devices that the scheduler has allocated with what a pod will get on *node*."""
        aligned = alignment(explained)
        if must_align(facts.pod) and aligned is not ClaimAlignment.ALIGNED:
            return ClaimCheck(self._refuse(facts.uid, node, explained))
        details = {"node": node, "alignment": aligned, "devices": _sentences(explained)}
        self._turn.emit(Report("claims", facts.uid, facts.full_name, details))
        return ClaimCheck(alignment=aligned)

    def bound(self, uid: str, check: ClaimCheck) -> None:
        """Count a pod that was bound after its *check*."""
        self.forget(uid)
        if check.alignment is not None:
            self._turn.emit(Report("claims settled", uid, details={"alignment": check.alignment}))

    def forget(self, uid: str) -> None:
        self._refusals.pop(uid, None)

    def _refuse(self, uid: str, node: str, explained: Explained) -> str:
        now, refusals = self._turn.now, self._refusals.pop(uid, None) or _Refusals()
        if refusals.until and refusals.until <= now:
            refusals = _Refusals()
        refusals.count += 1
        self._refusals[uid] = refusals
        while len(self._refusals) > MAX_PODS:
            self._refusals.popitem(last=False)
        why = _sentences(explained) or "it is not known where the devices of its claims are, or the pod has no CPUs"
        message = f"node {node} is refused, since {CLAIMS_ANNOTATION} is {ClaimPreference.REQUIRE}: {why}"
        if refusals.count >= MAX_TRIES:
            refusals.until = now + WAIT_SECONDS
            message += (
                f"; after {refusals.count} tries the pod waits for {WAIT_SECONDS / 60:.0f} minutes: "
                f"delete its claims, or change the annotation to {ClaimPreference.PREFER}"
            )
        same = (node, refusals.count >= MAX_TRIES)
        self._turn.emit(WriteEvent(uid, CLAIMS_NOT_ALIGNED, message, same, gate=False))
        self._turn.emit(Report("claims settled", uid, details={"alignment": REFUSED}))
        return message


def _sentences(explained: Explained) -> str:
    texts = [claim.sentence() or claim.state.problem for claims in explained[:1] for claim in claims]
    return "; ".join(filter(None, texts))
