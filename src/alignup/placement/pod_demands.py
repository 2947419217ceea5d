"""What a pod demands of a host beyond its admission, in annotations: where that is not met, the pod does not go.

A demand never lets a host admit a pod that its kubelet rejects. It counts for everything that says which hosts a pod
gets: verdicts, gangs, victims and kept hosts.
"""

from typing import NamedTuple

from alignup.align.decision import Decision
from alignup.align.demanded_policy import DemandedPolicy, is_enforced, unmet_demand, unplaced_resource
from alignup.align.host import Host
from alignup.align.settings import Policy, Scope
from alignup.align.workload import Pod
from alignup.align.workload.names import POLICY_ANNOTATION, SCOPE_ANNOTATION

DEMAND_ANNOTATIONS = frozenset({POLICY_ANNOTATION, SCOPE_ANNOTATION})
NOT_EXACT = "what its pods hold is not exactly known, and the pod demands a policy"

SUPPORTED_VALUES = {POLICY_ANNOTATION: tuple(Policy), SCOPE_ANNOTATION: tuple(Scope)}
_SHOWN = 40  #: characters of an unknown value


class Refusal(NamedTuple):
    """Why a host that admits a pod does not meet its demands."""

    reason: str  #: in words that hosts have in common
    detail: str = ""  #: about one host, and what would change it


def has_demands(pod: Pod) -> bool:
    return not DEMAND_ANNOTATIONS.isdisjoint(pod.annotations)


def needs_exact_host(pod: Pod) -> bool:
    """Return whether the demands of *pod* can be met only where it is known exactly what the pods of a host hold."""
    return has_demands(pod) and pod.annotations.get(POLICY_ANNOTATION) not in {Policy.NONE, Policy.BEST_EFFORT}


def demand_problem(pod: Pod) -> str:
    """Return which annotation of *pod* has an unknown value, so that it gets no host; empty: none."""
    for annotation, supported in SUPPORTED_VALUES.items():
        value = pod.annotations.get(annotation)
        if value is not None and value not in set(supported):
            shown = value if len(value) <= _SHOWN else f"{value[:_SHOWN]}…"
            return f"annotation {annotation} is {shown!r}; use {', '.join(supported)}"
    return ""


def find_refusal(host: Host, pod: Pod, decision: Decision | None = None, *, exact: bool = True) -> Refusal | None:
    """Return which demand of a pod *host* does not meet although it admits it; ``None``: it meets all.

    *decision* is the prediction of the host. *exact*: whether the ledger of the host is known exactly.
    """
    if not has_demands(pod) or host.settings.pod_policy_annotations:  # there, the annotations are the policy
        return None
    if problem := demand_problem(pod):
        return Refusal(problem)
    decision = decision or host.predict(pod)
    return _refuse_policy(host, pod, decision, exact=exact) if decision.admitted and not decision.kept else None


def _refuse_policy(host: Host, pod: Pod, decision: Decision, *, exact: bool) -> Refusal | None:
    demand = DemandedPolicy.of(pod, host)
    if demand.policy in (Policy.NONE, Policy.BEST_EFFORT):
        return None
    if unplaced := unplaced_resource(host, pod):
        reason = f"{unplaced}, so it counts for best-effort only, and the pod demands {demand.policy}"
        return Refusal(reason, "a node whose managers place everything that the pod requests can meet the demand")
    if not exact and not is_enforced(decision, demand) and any(each.as_text() for each in decision.placements):
        return Refusal(NOT_EXACT)
    unmet = unmet_demand(host, pod, decision, demand)
    if unmet is None:
        return None
    topology = host.settings.topology
    wanted = f"topologyManagerPolicy {demand.policy} and topologyManagerScope {demand.scope}"
    if not unmet.certain:
        change = f"a kubelet with {wanted} chooses such devices, one with {topology.policy} may take any"
        return Refusal(f"the kubelet may choose devices that {demand.policy} does not accept", f"{unmet}; {change}")
    change = f"a kubelet with {wanted} places it so, or rejects it"
    return Refusal(f"the kubelet would not place the pod as {demand.policy} demands", f"{unmet}; {change}")
