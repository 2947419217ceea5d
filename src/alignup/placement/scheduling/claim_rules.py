"""Rules for pods with ResourceClaims: which nodes they get, and whether CPUs and memory will be beside the devices.

The kubelet does not align claims, and the scheduler chooses their devices without looking at NUMA nodes. Before they
are allocated, it is predicted whether they can be aligned; at the binding it is known.

A pod behind the gate is released before its devices are allocated, and a released pod cannot go elsewhere. So it gets
more than one node: what is not computed here (parts of devices, rules of others, pods without the gate) may exclude one
of them. On each of them the pod counts until it is bound, and until its claims have devices no other pod with claims is
released there: they would compete.
"""

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping
from enum import StrEnum
from typing import NamedTuple

from alignup.align.bits import NodeSet
from alignup.align.claims.claimed_locality import demands_near_claims
from alignup.align.errors import AlignError
from alignup.align.workload import Pod
from alignup.align.workload.names import CLAIMS_ANNOTATION
from alignup.placement.cluster import Cluster
from alignup.placement.pod_demands import NOT_NEAR
from alignup.placement.scheduling.facts import ClaimFit, ClusterFacts, Explained
from alignup.placement.steered import SteeringChoice, choose_node, count_markers, numa_preference
from alignup.placement.verdict import Verdict, VerdictKind

SURE = 4  #: nodes, if it is computed that they have devices
UNSURE = 64  #: nodes, if only the scheduler can tell
JUDGED = 16  #: nodes, of which the best are taken, first the nodes where devices can be beside the CPUs
MAX_JUDGED = 64  #: nodes whose devices are looked at to prefer some of them
SETTLE_SECONDS = 10.0  #: after which a bound pod has its devices, although no watch has shown it
WAITS = "waits until the claims of an earlier pod have devices"
NOT_ALIGNED = "not all devices that its claims may get are beside its CPUs"


class ClaimPreference(StrEnum):
    """The value of the annotation: whether CPUs and memory must be beside the devices."""

    REQUIRE = "require"
    PREFER = "prefer"
    IGNORE = "ignore"


class ClaimAlignment(StrEnum):
    ALIGNED = "aligned"
    UNALIGNED = "unaligned"
    UNKNOWN = "unknown"  #: which devices it gets, on which NUMA nodes they are, or the pod has no CPUs of its own


def claim_preference(pod: Pod) -> tuple[ClaimPreference, str]:
    """Return the rule of *pod*, and what is wrong with its annotation."""
    value = pod.annotations.get(CLAIMS_ANNOTATION, ClaimPreference.PREFER.value)
    if value in [preference.value for preference in ClaimPreference]:
        return ClaimPreference(value), ""
    return ClaimPreference.PREFER, f"annotation {CLAIMS_ANNOTATION} is {value!r}; use {', '.join(ClaimPreference)}"


def claims_beside(options: Mapping[NodeSet, Verdict], explain: Callable[[Verdict], Explained]) -> dict[NodeSet, str]:
    """Return the NUMA nodes to steer a pod to that have the devices of its claims, with the names of the claims.

    *explain* returns the claims beside a verdict.
    """
    near: dict[NodeSet, str] = {}
    for nodes, verdict in options.items():
        explanation = explain(verdict)
        if any(explanation) and alignment(explanation) is ClaimAlignment.ALIGNED:
            near[nodes] = " and ".join(claim.state.name for claim in explanation[0])
    return near


def choose_steering(
    options: Mapping[NodeSet, Verdict], pod: Pod, explain: Callable[[Verdict], Explained]
) -> SteeringChoice | None:
    """Return the NUMA node that *pod* would be steered to now; ``None``: none."""
    beside = claims_beside(options, explain) if claim_preference(pod)[0] is not ClaimPreference.IGNORE else {}
    return choose_node(options, numa_preference(pod)[0], beside)


def alignment(explanation: Explained) -> ClaimAlignment:
    """Return whether everything is beside the devices of all claims, with every placement that the pod may get."""
    if explanation and not any(explanation):
        return ClaimAlignment.ALIGNED  # device plugins of the node serve everything
    verdicts = {claim.aligned for claims in explanation for claim in claims}
    if False in verdicts:
        return ClaimAlignment.UNALIGNED
    return ClaimAlignment.ALIGNED if verdicts == {True} else ClaimAlignment.UNKNOWN


def may_be_near(explanation: Explained) -> bool:
    """Return whether the scheduler can choose devices that are as near as the pod demands."""
    return all(claim.locality.possible for claims in explanation for claim in claims)


def restricts_claims(pod: Pod) -> bool:
    """Return whether *pod* may get some devices for its claims only: beside its CPUs and memory, or near each other."""
    return must_align(pod) or demands_near_claims(pod)


def unmet_locality(explanation: Explained) -> str:
    """Return which demand on near devices is not satisfied by devices that the claims have or may get; empty: none."""
    return next((claim.locality.unmet for claims in explanation for claim in claims if claim.locality.unmet), "")


def may_align(explanation: Explained, *, required: bool = False) -> bool:
    """Return whether the scheduler can choose devices so that everything is beside them.

    Where that is unknown, the answer is yes, unless it is *required*.
    """
    suitable = {True} if required else {True, None}
    return bool(explanation or not required) and all(
        claim.aligned in suitable or (not claim.state.allocated and bool(claim.better))
        for claims in explanation
        for claim in claims
    )


def must_align(pod: Pod) -> bool:
    """Return whether the annotation of *pod* requires that its CPUs and memory are beside its devices."""
    return pod.uses_claims and claim_preference(pod)[0] is ClaimPreference.REQUIRE


class ClaimSuitability:
    """The nodes where the devices of a pod's claims can be beside its CPUs and memory."""

    def __init__(self, cluster: Cluster, facts: ClusterFacts) -> None:
        self._cluster = cluster
        self._facts = facts

    def select(self, pod: Pod, nodes: Iterable[str], limit: int) -> list[str]:
        """Return at most *limit* of *nodes*, first the nodes where devices can be beside the CPUs.

        If the pod requires devices beside its CPUs, return only these nodes.
        """
        preference, is_restricted = claim_preference(pod)[0], restricts_claims(pod)
        beside: list[str] = []
        others: list[str] = []
        for number, node in enumerate(nodes):
            is_judged = is_restricted or preference is ClaimPreference.IGNORE or number < MAX_JUDGED
            if is_judged and self.suits(pod, node):
                beside.append(node)
                if len(beside) >= limit:
                    break
            else:
                others.append(node)
        return (beside if is_restricted else [*beside, *others])[:limit]

    def suits(self, pod: Pod, node: str) -> bool:
        """Return whether the devices of *pod* can be beside its CPUs on a node; as far as known, unless required."""
        preference, explain = claim_preference(pod)[0], self._facts.explain_claims
        near = restricts_claims(pod) and not must_align(pod)
        if preference is ClaimPreference.IGNORE and not near:
            return True
        required = preference is ClaimPreference.REQUIRE

        def is_suitable(explanation: Explained) -> bool:
            if not may_be_near(explanation) or (near and not explanation):
                return False
            return near or may_align(explanation, required=required)

        if is_suitable(explain(pod, node)):
            return True
        options = self._cluster.steered(pod, node) if count_markers(pod) else {}
        return any(is_suitable(explain(pod, node, verdict)) for verdict in options.values())

    def suitable(self, pod: Pod, nodes: Iterable[str]) -> frozenset[str]:
        """Return the nodes of *nodes* that suit *pod* and may admit the pod."""
        verdicts = self._cluster.verdicts(pod, nodes).items()
        possible = [node for node, verdict in verdicts if verdict.kind is not VerdictKind.REJECTS]
        return frozenset(node for node in possible if self.suits(pod, node))


class SettledClaims(NamedTuple):
    """A pod whose claims have devices, or that is gone."""

    uid: str
    nodes: tuple[str, ...]  #: where other pods with claims can be released again
    alignment: ClaimAlignment | None = None  #: ``None``: nothing is to be counted


class GatedClaims:
    """The nodes of gated pods with claims, and the released pods whose claims have no devices yet."""

    def __init__(self, facts: ClusterFacts) -> None:
        self._facts = facts
        self._waiting: dict[str, tuple[Pod, tuple[str, ...]]] = {}  #: released pods by uid, and their nodes
        self._open_nodes: Counter[str] = Counter()  #: how many of these pods a node may get
        self._open_claims: Counter[tuple[str, str]] = Counter()  #: how many have a claim, by namespace and name
        self._bound: dict[str, tuple[Pod, str, float]] = {}  #: bound pods, their node, and since when

    @property
    def waiting(self) -> Collection[str]:
        """The uids of released pods whose claims have no devices yet."""
        return self._waiting.keys()

    def choose(self, pod: Pod, candidates: Iterable[str], drop: Callable[[str], object]) -> tuple[str, ...]:
        """Return the nodes of *candidates*, the best first, that the pod can be released to.

        *drop* is called with the nodes that have no devices for it until they change.
        """
        chosen_nodes: list[tuple[bool, int, str]] = []
        limit, busy = SURE, self._busy(pod)
        if busy is None:
            return ()
        for position, name in enumerate(candidates):
            if name in busy:
                continue
            fit = self._facts.claim_fit(pod, name)
            if self._refusal(pod, name, fit):
                if not fit.possible:
                    drop(name)
                continue
            if not fit.certain:
                limit = UNSURE
            chosen_nodes.append((not self._may_align(pod, name), position, name))
            if len(chosen_nodes) >= max(limit, JUDGED):
                break
        return tuple(name for _, _, name in sorted(chosen_nodes)[:limit])

    def refusal(self, pod: Pod, name: str) -> str:
        """Return why a pod is not released to a node because of its claims; empty: it may be."""
        reason, busy = self._refusal(pod, name, self._facts.claim_fit(pod, name)), self._busy(pod)
        return reason or (WAITS if busy is None or name in busy else "")

    def _refusal(self, pod: Pod, name: str, fit: ClaimFit) -> str:
        if not fit.possible:
            return fit.reason
        if not restricts_claims(pod):
            return ""
        explanation = self._facts.explain_claims(pod, name)
        if must_align(pod) and alignment(explanation) is not ClaimAlignment.ALIGNED:
            return NOT_ALIGNED
        return NOT_NEAR if unmet_locality(explanation) or not explanation else ""

    def _busy(self, pod: Pod) -> Collection[str] | None:
        """Return the nodes where claims of other pods have no devices yet; ``None``: such a claim is one of *pod*."""
        if not self._facts.claims_open(pod):
            return ()
        if any(self._open_claims[pod.namespace, claim.claim] for claim in pod.claims):
            return None
        return self._open_nodes

    def _may_align(self, pod: Pod, name: str) -> bool:
        if claim_preference(pod)[0] is not ClaimPreference.PREFER:  # a node that is not refused is aligned if required
            return True
        return may_align(self._facts.explain_claims(pod, name))

    # Released pods

    def released(self, pod: Pod, nodes: tuple[str, ...]) -> None:
        if self._facts.claims_open(pod):
            self._put(pod, nodes)

    def _put(self, pod: Pod, nodes: tuple[str, ...]) -> None:
        self._remove(pod.uid)
        self._waiting[pod.uid] = (pod, nodes)
        self._open_nodes.update(nodes)
        self._open_claims.update(_claim_names(pod))

    def _remove(self, uid: str) -> tuple[str, ...]:
        pod, nodes = self._waiting.pop(uid, (None, ()))
        self._open_nodes -= Counter(nodes)
        self._open_claims -= Counter(_claim_names(pod) if pod else ())
        return nodes

    def bound(self, uid: str, node: str, pod: Pod | None, *, now: float) -> list[SettledClaims]:
        """Note that a pod, as it is now if it can be read, is bound; it counts until its claims have devices."""
        if uid not in self._waiting:
            return []
        pod_before, nodes = self._waiting[uid]
        pod = pod or pod_before
        self._put(pod, (node,))
        since = self._bound[uid][2] if uid in self._bound else now
        self._bound[uid] = (pod, node, since)
        return [SettledClaims(uid, tuple(other for other in nodes if other != node)), *self.check(now)]

    def check(self, now: float) -> list[SettledClaims]:
        """Forget bound pods whose claims have devices."""
        all_settled = []
        for uid, (pod, node, since) in tuple(self._bound.items()):
            claims_known = self._facts.claims_known
            if now - since < SETTLE_SECONDS and claims_known and self._facts.claims_open(pod):
                continue
            claim_alignment = None
            if claim_preference(pod)[0] is not ClaimPreference.IGNORE:
                try:
                    claim_alignment = alignment(self._facts.explain_claims(pod, node))
                except AlignError:
                    claim_alignment = ClaimAlignment.UNKNOWN
            all_settled += [settled_claims._replace(alignment=claim_alignment) for settled_claims in self.forget(uid)]
        return all_settled

    def forget(self, uid: str) -> list[SettledClaims]:
        """Forget a pod that is gone or was not bound."""
        self._bound.pop(uid, None)
        return [SettledClaims(uid, self._remove(uid))] if uid in self._waiting else []

    def next_check(self) -> float | None:
        """Return the seconds until a bound pod may have its devices; ``None``: none waits for them."""
        return SETTLE_SECONDS if self._bound else None


def _claim_names(pod: Pod) -> list[tuple[str, str]]:
    return [(pod.namespace, claim.claim) for claim in pod.claims if claim.claim]
