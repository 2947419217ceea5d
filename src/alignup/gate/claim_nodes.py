"""The nodes that a pod with ResourceClaims is released to: several of those that have devices for it.

Devices are allocated by the scheduler, after the release, and a released pod cannot go elsewhere. So it gets more than
one node: what is not computed here (parts of devices, rules of others, pods without the gate) may exclude one of them.
On each of them the pod counts until it is bound, and until its claims have devices no other pod with claims is released
there: they would compete.
"""

from collections import Counter
from collections.abc import Callable, Collection, Iterable
from contextlib import suppress

from alignup.align.errors import AlignError
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
from alignup.schedule.step_guard import ServiceStep

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
        self._open_nodes: Counter[str] = Counter()  #: how many of these pods a node may get
        self._open_claims: Counter[tuple[str, str]] = Counter()  #: how many have a claim, by namespace and name
        self._bound: dict[str, tuple[ApiPod, float]] = {}  #: those of them that are bound, and since when

    def choose(self, pod: Pod, candidates: Iterable[str], drop: Callable[[str], object]) -> tuple[str, ...]:
        """Return the nodes of *candidates*, the best first, that the pod can be released to.

        *drop* is called with those that have no devices for it until they change.
        """
        chosen: list[tuple[bool, int, str]] = []
        wanted, busy = SURE, self._busy(pod)
        if busy is None:
            return ()
        for place, name in enumerate(candidates):
            if name in busy:
                continue
            fit = self.live.claim_fit(pod, name)
            if self._refusal(pod, name, fit):
                if not fit.possible:
                    drop(name)
                continue
            if not fit.certain:
                wanted = UNSURE
            chosen.append((not self._may_align(pod, name), place, name))
            if len(chosen) >= max(wanted, JUDGED):
                break
        return tuple(name for _, _, name in sorted(chosen)[:wanted])

    def refusal(self, pod: Pod, name: str) -> str:
        """Return why a pod is not released to a node because of its claims; empty: it may be."""
        reason, busy = self._refusal(pod, name, self.live.claim_fit(pod, name)), self._busy(pod)
        return reason or (WAITS if busy is None or name in busy else "")

    def _refusal(self, pod: Pod, name: str, fit: ClaimFit) -> str:
        if not fit.possible:
            return fit.reason
        if claim_preference(pod)[0] is ClaimPreference.REQUIRE:
            aligned = alignment(self.live.explain_claims(pod, name)) is ClaimAlignment.ALIGNED
            return "" if aligned else NOT_ALIGNED
        return ""

    def _busy(self, pod: Pod) -> Collection[str] | None:
        """Return the nodes where claims of other pods have no devices yet; ``None``: such a claim is one of *pod*."""
        if not self.live.claims.is_open(pod):
            return ()
        if any(self._open_claims[pod.namespace, claim.claim] for claim in pod.claims):
            return None
        return self._open_nodes

    def _may_align(self, pod: Pod, name: str) -> bool:
        if claim_preference(pod)[0] is not ClaimPreference.PREFER:  # a node that is not refused is aligned if required
            return True
        return may_align(self.live.explain_claims(pod, name))

    # Released pods

    def released(self, pod: Pod, nodes: tuple[str, ...]) -> None:
        if self.live.claims.is_open(pod):
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

    def bound(self, api_pod: ApiPod) -> None:
        """Note that a pod is bound; it counts until its claims have devices."""
        uid, node = api_pod.metadata.uid, api_pod.spec.node_name
        if uid in self._waiting:
            pod, nodes = self._waiting[uid]
            self._put(pod, (node,))
            _, since = self._bound.get(uid, (None, self._clock()))
            self._bound[uid] = (api_pod, since)
            self._settled(other for other in nodes if other != node)
            self.check()

    def next_check(self) -> float | None:
        """Return the seconds until a bound pod may have its devices; ``None``: none waits for them."""
        return SETTLE_SECONDS if self._bound else None

    def check(self) -> None:
        """Forget bound pods whose claims have devices."""
        for uid, (api_pod, since) in tuple(self._bound.items()):
            with self.live.guard.guarded(ServiceStep.RELEASE, api_pod.metadata.full_name), suppress(AlignError):
                pod = self.live.read(api_pod)
                claims, late = self.live.claims, self._clock() - since >= SETTLE_SECONDS
                if not late and claims.known and claims.is_open(pod):
                    continue
                if claim_preference(pod)[0] is not ClaimPreference.IGNORE:
                    explained = self.live.explain_claims(pod, api_pod.spec.node_name)
                    self.live.metrics.claimed_pod(alignment(explained))
            self.forget(uid)

    def forget(self, uid: str) -> None:
        """Forget a pod that is gone or was not bound."""
        self._bound.pop(uid, None)
        if uid in self._waiting:
            self._settled(self._remove(uid))


def _claim_names(pod: Pod) -> list[tuple[str, str]]:
    return [(pod.namespace, claim.claim) for claim in pod.claims if claim.claim]
