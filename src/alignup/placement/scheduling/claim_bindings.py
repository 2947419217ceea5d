"""Pods with ResourceClaims whose scheduler asks: which bindings are refused because of the devices.

The scheduler allocates devices immediately before the binding. A pod whose annotations require that its CPUs and memory
are beside them, or that they are near each other, is not bound otherwise. The scheduler then tries again: the node is
not offered while the claim has these devices, so the scheduler takes them back if they cannot be used elsewhere. After
a few such tries the pod waits.
"""

from collections import OrderedDict
from dataclasses import dataclass
from typing import NamedTuple

from alignup.align.reason_codes import CLAIMS_NOT_ALIGNED, DEMAND_NOT_MET
from alignup.align.workload import Pod
from alignup.align.workload.names import CLAIMS_ANNOTATION, DEVICES_ANNOTATION
from alignup.placement.scheduling.claim_rules import (
    ClaimAlignment,
    ClaimPreference,
    alignment,
    must_align,
    restricts_claims,
    unmet_locality,
)
from alignup.placement.scheduling.facts import Explained, PodFacts
from alignup.placement.scheduling.instructions import Report, WriteEvent
from alignup.placement.scheduling.turn import Turn

MAX_TRIES = 5  #: bindings of a pod that are refused before it waits
WAIT_SECONDS = 600.0
MAX_PODS = 4096  #: pods whose refused bindings are remembered
UNKNOWN_PLACES = "it is not known where its devices are"
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
        if refusals is None or refusals.until <= self._turn.now or not restricts_claims(pod):
            return ""
        wish = "beside its CPUs" if must_align(pod) else "that are as near as it demands"
        return f"its claims got no devices {wish} in {MAX_TRIES} tries"

    def check(self, facts: PodFacts, node: str, claims: Explained) -> ClaimCheck:
        """Compare the devices that the scheduler has allocated with what a pod will get on *node*."""
        claim_alignment = alignment(claims)
        if must_align(facts.pod) and claim_alignment is not ClaimAlignment.ALIGNED:
            why = _sentences(claims) or "it is not known where the devices of its claims are, or the pod has no CPUs"
            rule = f"{CLAIMS_ANNOTATION} is {ClaimPreference.REQUIRE}"
            change = f"change the annotation to {ClaimPreference.PREFER}"
            return ClaimCheck(self._refuse(facts.uid, node, CLAIMS_NOT_ALIGNED, f"{rule}: {why}", change))
        if restricts_claims(facts.pod) and (why := unmet_locality(claims) or ("" if claims else UNKNOWN_PLACES)):
            rule = f"{DEVICES_ANNOTATION} is {facts.pod.annotations.get(DEVICES_ANNOTATION)}"
            return ClaimCheck(self._refuse(facts.uid, node, DEMAND_NOT_MET, f"{rule}: {why}", "change the annotation"))
        details = {"node": node, "alignment": claim_alignment, "devices": _sentences(claims)}
        self._turn.emit(Report("claims", facts.uid, facts.full_name, details))
        return ClaimCheck(alignment=claim_alignment)

    def bound(self, uid: str, check: ClaimCheck) -> None:
        """Count a pod that was bound after its *check*."""
        self.forget(uid)
        if check.alignment is not None:
            self._turn.emit(Report("claims settled", uid, details={"alignment": check.alignment}))

    def forget(self, uid: str) -> None:
        self._refusals.pop(uid, None)

    def _refuse(self, uid: str, node: str, code: str, why: str, change: str) -> str:
        now, refusals = self._turn.now, self._refusals.pop(uid, None) or _Refusals()
        if refusals.until and refusals.until <= now:
            refusals = _Refusals()
        refusals.count += 1
        self._refusals[uid] = refusals
        while len(self._refusals) > MAX_PODS:
            self._refusals.popitem(last=False)
        message = f"node {node} is refused, since {why}"
        if refusals.count >= MAX_TRIES:
            refusals.until = now + WAIT_SECONDS
            message += (
                f"; after {refusals.count} tries the pod waits for {WAIT_SECONDS / 60:.0f} minutes: "
                f"delete its claims, or {change}"
            )
        same = (node, refusals.count >= MAX_TRIES)
        self._turn.emit(WriteEvent(uid, code, message, same, gate=False))
        self._turn.emit(Report("claims settled", uid, details={"alignment": REFUSED}))
        return message


def _sentences(explanation: Explained) -> str:
    texts = [claim.sentence() or claim.state.problem for claims in explanation[:1] for claim in claims]
    return "; ".join(filter(None, texts))
