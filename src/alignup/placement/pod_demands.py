"""What a pod demands of a host beyond its admission, in annotations: where that is not met, the pod does not go.

A demand never lets a host admit a pod that its kubelet rejects. It counts for everything that says which hosts a pod
gets: verdicts, gangs, victims and kept hosts.
"""

from collections.abc import Collection, Iterator
from typing import NamedTuple

from alignup.align import reason_codes
from alignup.align.claims.alignment import ExplainedClaim
from alignup.align.claims.claimed_locality import claims_used
from alignup.align.decision import Decision
from alignup.align.demanded_policy import DemandedPolicy, is_enforced, unmet_demand, unplaced_resource
from alignup.align.devices.demanded_locality import locality_demands
from alignup.align.errors import PodError
from alignup.align.host import Host
from alignup.align.possible_locality import find_unmet_locality
from alignup.align.reason_codes import DEMAND_NOT_MET, UNKNOWN_DEMAND
from alignup.align.settings import Policy, Scope
from alignup.align.workload import Pod
from alignup.align.workload.names import DEVICES_ANNOTATION, POLICY_ANNOTATION, SCOPE_ANNOTATION
from alignup.placement.verdict import MAY_BE_REJECTED

_POLICY_ANNOTATIONS = frozenset({POLICY_ANNOTATION, SCOPE_ANNOTATION})
DEMAND_ANNOTATIONS = _POLICY_ANNOTATIONS | {DEVICES_ANNOTATION}
NOT_EXACT = "what its pods hold is not exactly known, and the pod demands a policy or near devices"

_SUPPORTED_VALUES = {POLICY_ANNOTATION: tuple(Policy), SCOPE_ANNOTATION: tuple(Scope)}
CLAIMED = "the pod demands near devices, and which devices its claims will get is unknown"
NOT_NEAR = "the devices that its claims have or may get are not as near as the pod demands"
_SHOWN = 40  #: characters of an unknown value
_MAX_PROBLEM = 300  #: characters about a wrong value


class Refusal(NamedTuple):
    """Why a host that admits a pod does not meet its demands."""

    reason: str  #: in words that hosts have in common
    detail: str = ""  #: about one host, and what would change it
    code: str = DEMAND_NOT_MET


def has_demands(pod: Pod) -> bool:
    return not DEMAND_ANNOTATIONS.isdisjoint(pod.annotations)


def needs_exact_host(pod: Pod) -> bool:
    """Return whether the demands of *pod* can be met only where it is known exactly what the pods of a host hold."""
    if DEVICES_ANNOTATION in pod.annotations:
        return True
    return has_demands(pod) and pod.annotations.get(POLICY_ANNOTATION) not in {Policy.NONE, Policy.BEST_EFFORT}


def demand_problem(pod: Pod) -> str:
    """Return which annotation of *pod* has an unknown value, so that it gets no host; empty: none."""
    for annotation, values in _SUPPORTED_VALUES.items():
        value = pod.annotations.get(annotation)
        if value is not None and value not in set(values):
            excerpt = value if len(value) <= _SHOWN else f"{value[:_SHOWN]}…"
            return f"annotation {annotation} is {excerpt!r}; use {', '.join(values)}"
    return devices_problem(pod)


def devices_problem(pod: Pod) -> str:
    """Return what is wrong with the demand of *pod* on the locality of its devices; empty: nothing."""
    try:
        locality_demands(pod)
    except PodError as error:
        return str(error)[:_MAX_PROBLEM]
    return ""


def find_refusal(
    host: Host,
    pod: Pod,
    decision: Decision | None = None,
    *,
    exact: bool = True,
    claims: Collection[ExplainedClaim] | None = (),
) -> Refusal | None:
    """Return which demand of a pod *host* does not meet although it admits it; ``None``: it meets all.

    *decision* is the prediction of the host. *exact*: whether the ledger of the host is known exactly. *claims* are the
    claims of the pod, as far as they are known; ``None``: demands on their devices are checked elsewhere.
    """
    if not has_demands(pod):
        return None
    policy_demanded = not host.settings.pod_policy_annotations  # else the annotations are the policy
    if problem := demand_problem(pod) if policy_demanded else devices_problem(pod):
        return Refusal(problem, code=UNKNOWN_DEMAND)
    decision = decision or host.predict(pod)
    if not decision.admitted or decision.kept:
        return None
    refusal = None
    if policy_demanded and not _POLICY_ANNOTATIONS.isdisjoint(pod.annotations):
        refusal = _refuse_policy(host, pod, decision, exact=exact)
    return refusal or _refuse_devices(host, pod, decision, exact=exact, claims=claims)


def _claimed(pod: Pod, decision: Decision) -> Iterator[tuple[str, str]]:
    """Yield containers with their claims, and with the resources that a claim serves instead of a device plugin."""
    devices_by_container = {placement.container: placement.devices for placement in decision.placements}
    for container in pod.all_containers:
        for name in claims_used(pod, container):
            if name not in devices_by_container.get(container.name, ()):
                yield container.name, name


def _refuse_devices(
    host: Host, pod: Pod, decision: Decision, *, exact: bool, claims: Collection[ExplainedClaim] | None
) -> Refusal | None:
    demands = locality_demands(pod)
    users = [(demand, *part) for demand in demands for part in _claimed(pod, decision) if demand.concerns(part[1])]
    names = dict.fromkeys(name for _, _, name in users)
    if claims is not None and not names.keys() <= {claim.state.name for claim in claims}:
        return Refusal(CLAIMED, f"{', '.join(names)}: name the resources that the demand is about")
    if not demands or not (users or any(placement.devices for placement in decision.placements)):
        return None
    if not exact:
        return Refusal(NOT_EXACT)
    if decision.may_be_rejected:
        return Refusal(MAY_BE_REJECTED, code=reason_codes.MAY_BE_REJECTED)
    unmet_claims = (claim.locality.unmet for claim in claims or () if users)
    if problem := next(filter(None, unmet_claims), ""):
        return Refusal(NOT_NEAR, problem)
    ledger = host.ledger
    others = {
        resource: ids - ledger.devices.owned(pod.uid, resource) for resource, ids in ledger.devices.in_use.items()
    }
    locality = (ledger.places.machine if ledger.places else host.machine).locality
    unsettled_devices = ledger.places.unsettled if ledger.places else {}
    checked_claims = {(demand, container) for demand, container, _ in users}  # together with the devices of claims
    for demand in demands:
        placements = [other for other in decision.placements if (demand, other.container) not in checked_claims]
        unmet = find_unmet_locality([demand], placements, locality, others=others, unsettled=unsettled_devices)
        if unmet:
            return Refusal(unmet.reason, unmet.detail)
    return None


def _refuse_policy(host: Host, pod: Pod, decision: Decision, *, exact: bool) -> Refusal | None:
    demand = DemandedPolicy.of(pod, host)
    if demand.policy in (Policy.NONE, Policy.BEST_EFFORT):
        return None
    if problem := unplaced_resource(host, pod):
        reason = f"{problem}, so it counts for best-effort only, and the pod demands {demand.policy}"
        return Refusal(reason, "a node whose managers place everything that the pod requests can meet the demand")
    if (
        not exact
        and not is_enforced(decision, demand)
        and any(placement.as_text() for placement in decision.placements)
    ):
        return Refusal(NOT_EXACT)
    unmet = unmet_demand(host, pod, decision, demand)
    if unmet is None:
        return None
    topology = host.settings.topology
    demanded_policy = f"topologyManagerPolicy {demand.policy} and topologyManagerScope {demand.scope}"
    if not unmet.certain:
        change = f"a kubelet with {demanded_policy} chooses such devices, one with {topology.policy} may take any"
        return Refusal(f"the kubelet may choose devices that {demand.policy} does not accept", f"{unmet}; {change}")
    change = f"a kubelet with {demanded_policy} places it so, or rejects it"
    return Refusal(f"the kubelet would not place the pod as {demand.policy} demands", f"{unmet}; {change}")
