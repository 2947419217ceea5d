"""What one host makes of a pod under each policy: as the policy of the host, and as the demand of the pod."""

from dataclasses import replace
from typing import Any, NamedTuple

from alignup.align.decision import Decision
from alignup.align.errors import SettingsError
from alignup.align.explain import sentences
from alignup.align.host import Host
from alignup.align.settings import Policy
from alignup.align.workload import Pod
from alignup.align.workload.names import POLICY_ANNOTATION
from alignup.placement.pod_demands import Refusal, find_refusal


class PolicyOutcome(NamedTuple):
    policy: Policy
    decision: Decision | None  #: of a kubelet with this policy; ``None``: it does not start
    problem: str  #: why it does not start
    refusal: Refusal | None  #: why a pod that demands the policy does not get the host as it is

    @property
    def by_kubelet(self) -> str:
        """What the pod gets from a kubelet with this policy."""
        if self.decision is None:
            return f"the kubelet does not start: {self.problem}"
        if self.decision.rejection:
            return f"rejected: {self.decision.rejection.reason}"
        allocations = sentences.describe_allocations(self.decision.placements)
        return f"{'may be rejected' if self.decision.may_be_rejected else 'admitted'}: {allocations}"

    def to_document(self) -> dict[str, Any]:
        return {
            "policy": str(self.policy),
            "asNodePolicy": self.by_kubelet,
            "admitted": bool(self.decision and self.decision.admitted and not self.decision.may_be_rejected),
            "meetsDemand": self.refusal is None,
            "reason": self.refusal.reason if self.refusal else "",
            "detail": self.refusal.detail if self.refusal else "",
        }


def policy_outcomes(host: Host, pod: Pod) -> list[PolicyOutcome]:
    """Return what *pod* gets under each policy, with the scope of *host*, or of the pod as its demand."""
    decision = host.predict(pod)
    kubelet_refusal = Refusal(decision.rejection.reason, decision.rejection.message) if decision.rejection else None
    outcomes = []
    for policy in Policy:
        demanding_pod = replace(pod, annotations={**pod.annotations, POLICY_ANNOTATION: policy})
        refusal = kubelet_refusal or find_refusal(host, demanding_pod, decision)
        settings = replace(host.settings, topology=replace(host.settings.topology, policy=policy))
        try:
            other = Host(host.machine, settings, ledger=host.ledger, others=host.others)
            outcomes.append(PolicyOutcome(policy, other.predict(pod), "", refusal))
        except SettingsError as error:
            outcomes.append(PolicyOutcome(policy, None, str(error), refusal))
    return outcomes
