"""The nodes that a pod with ResourceClaims is released to: several of those that have devices for it.

Devices are allocated by the scheduler, after the release, and a released pod cannot go elsewhere. So it gets more than
one node: what is not computed here (parts of devices, rules of others, pods without the gate) may exclude one of them.
On each of them the pod counts until it is bound, and until its claims have devices no other pod with claims is released
there: they would compete.
"""

from collections.abc import Callable, Iterable

from alignup.align.workload import Pod
from alignup.kubernetes.api.objects import ApiPod
from alignup.schedule.claim_alignment import (
    ClaimAlignment,
    ClaimPreference,
    alignment,
    claim_preference,
    may_align,
)
from alignup.schedule.known_claims import ClaimFit
from alignup.schedule.live_cluster import LiveCluster

SURE = 4  #: nodes, if it is computed that they have devices
UNSURE = 64  #: nodes, if only the scheduler can tell
JUDGED = 16  #: of which the best are taken, those first where devices can be beside the CPUs
SETTLE_SECONDS = 10.0  #: after which a bound pod has its devices, although no watch has shown it
WAITS = "waits until the claims of an earlier pod have devices"
NOT_ALIGNED = "not all devices that its claims may get are beside its CPUs"


class ClaimNodes:
    """The choice of nodes, and the pods whose claims have no devices yet; *settled* is called with free nodes again."""

    def __init__(
        self, live: LiveCluster, settled: Callable[[Iterable[str]], object], clock: Callable[[], float]
    ) -> None:
        self.live, self._settled, self._clock = live, settled, clock
        self._waiting: dict[str, tuple[Pod, tuple[str, ...]]] = {}  #: released pods by uid, and their nodes
        self._bound: dict[str, tuple[ApiPod, float]] = {}  #: those of them that are bound, and since when

    def choose(self, pod: Pod, candidates: Iterable[str]) -> tuple[str, ...]:
        """Return the nodes of *candidates*, the best first, that the pod can be released to."""
        chosen: list[tuple[bool, int, str]] = []
        wanted = SURE
        for place, name in enumerate(candidates):
            fit = self.live.claim_fit(pod, name)
            if self._refusal(pod, name, fit):
                continue
            if not fit.certain:
                wanted = UNSURE
            chosen.append((not self._may_align(pod, name), place, name))
            if len(chosen) >= max(wanted, JUDGED):
                break
        return tuple(name for _, _, name in sorted(chosen)[:wanted])

    def refusal(self, pod: Pod, name: str) -> str:
        """Return why a pod is not released to a node because of its claims; empty: it may be."""
        return self._refusal(pod, name, self.live.claim_fit(pod, name))

    def _refusal(self, pod: Pod, name: str, fit: ClaimFit) -> str:
        if not fit.possible:
            return fit.reason
        if fit.open and any(self._competes(uid, pod, name) for uid in self._waiting):
            return WAITS
        if claim_preference(pod)[0] is ClaimPreference.REQUIRE:
            explained = self.live.explain_claims(pod, name)
            return "" if alignment(explained) is ClaimAlignment.ALIGNED else NOT_ALIGNED
        return ""

    def _competes(self, uid: str, pod: Pod, name: str) -> bool:
        other, nodes = self._waiting[uid]
        if uid == pod.uid:
            return False
        shared = {claim.claim for claim in other.claims if claim.claim} & {claim.claim for claim in pod.claims}
        return name in nodes or (bool(shared) and other.namespace == pod.namespace)

    def _may_align(self, pod: Pod, name: str) -> bool:
        if claim_preference(pod)[0] is ClaimPreference.IGNORE:
            return True
        return may_align(self.live.explain_claims(pod, name))

    # Released pods

    def released(self, pod: Pod, nodes: tuple[str, ...]) -> None:
        if self.live.claims.is_open(pod):
            self._waiting[pod.uid] = (pod, nodes)

    def bound(self, api_pod: ApiPod) -> None:
        """Note that a pod is bound; it counts until its claims have devices."""
        uid = api_pod.metadata.uid
        if uid in self._waiting:
            pod, nodes = self._waiting[uid]
            node = api_pod.spec.node_name
            self._waiting[uid] = (pod, (node,))
            self._bound.setdefault(uid, (api_pod, self._clock()))
            self._settled(other for other in nodes if other != node)
            self.check()

    def next_check(self) -> float | None:
        """Return the seconds until a bound pod may have its devices; ``None``: none waits for them."""
        return SETTLE_SECONDS if self._bound else None

    def check(self) -> None:
        """Forget bound pods whose claims have devices."""
        for uid, (api_pod, since) in tuple(self._bound.items()):
            pod = self.live.read(api_pod)
            claims, late = self.live.claims, self._clock() - since >= SETTLE_SECONDS
            if late or not claims.known or not claims.is_open(pod):
                node = api_pod.spec.node_name
                if claim_preference(pod)[0] is not ClaimPreference.IGNORE:
                    explained = self.live.explain_claims(pod, node)
                    self.live.metrics.claimed_pod(alignment(explained))
                self.forget(uid)

    def forget(self, uid: str) -> None:
        """Forget a pod that is gone or was not bound."""
        self._bound.pop(uid, None)
        _, nodes = self._waiting.pop(uid, (None, ()))
        self._settled(nodes)
