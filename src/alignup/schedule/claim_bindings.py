"""Pods with ResourceClaims in the extender: which nodes come first, and which bindings are refused.

The scheduler allocates devices immediately before the binding. A pod whose annotation requires that its CPUs and memory
are beside them is not bound otherwise. The scheduler then tries again: the node is not offered while the claim has
these devices, so the scheduler takes them back if they cannot be used elsewhere. After a few such tries the pod waits.
"""

from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import NamedTuple

import structlog

from alignup.align.bits import NodeSet
from alignup.align.claims.alignment import ExplainedClaim
from alignup.align.claims.resource_claims import Claim
from alignup.align.workload import Pod
from alignup.align.workload.names import CLAIMS_ANNOTATION
from alignup.kubernetes.api import PODS, ApiClient
from alignup.kubernetes.api.claim_resources import RESOURCE_CLAIMS
from alignup.kubernetes.api.errors import ApiError
from alignup.kubernetes.api.objects import ApiPod
from alignup.kubernetes.manifests.claims import claim_from
from alignup.placement.scheduling.claim_rules import (
    UNKNOWN_PREFERENCE,
    ClaimAlignment,
    ClaimPreference,
    alignment,
    claim_preference,
    claims_beside,
    must_align,
)
from alignup.placement.verdict import Verdict
from alignup.schedule.known_claims import ObjectName
from alignup.schedule.live_cluster import LiveCluster
from alignup.schedule.pod_events import PodEvents

MAX_TRIES = 5  #: bindings of a pod that are refused before it waits
WAIT_SECONDS = 600.0
MAX_PODS = 4096  #: pods whose refused bindings are remembered
NOT_ALIGNED = "no devices for its claims beside its CPUs and memory"
REASON = "ClaimsNotAligned"  #: of events
REFUSED = "refused"  #: of metrics, beside the alignments

_log = structlog.get_logger()


class ClaimCheck(NamedTuple):
    """What is known of the devices of a pod at its binding."""

    problem: str = ""  #: why the pod must not be bound
    alignment: ClaimAlignment | None = None  #: ``None``: nothing is to be counted


@dataclass(slots=True)
class _Refusals:
    count: int = 0
    until: float = 0.0  #: when the pod may be tried again, after too many


class ClaimBindings:
    def __init__(self, client: ApiClient, live: LiveCluster, events: PodEvents) -> None:
        self._client, self._live, self._events = client, live, events
        self._clock = client.timing.clock
        self._refusals: OrderedDict[str, _Refusals] = OrderedDict()  #: by uid

    def waits(self, pod: Pod) -> str:
        """Return why *pod* waits after refused bindings; empty: it does not."""
        refusals = self._refusals.get(pod.uid)
        if refusals is None or refusals.until <= self._clock() or not must_align(pod):
            return ""
        return f"its claims got no devices beside its CPUs in {MAX_TRIES} tries"

    async def beside(
        self, api_pod: ApiPod, pod: Pod, node: str, options: Mapping[NodeSet, Verdict]
    ) -> dict[NodeSet, str]:
        """Return the NUMA nodes to steer *pod* to that have the devices of its claims, with the names of the claims."""
        preference = claim_preference(pod)[0]
        if not pod.uses_claims or preference is ClaimPreference.IGNORE:
            return {}
        try:
            pod, fresh = await self._read_claims(api_pod, pod, current=preference is ClaimPreference.REQUIRE)
        except ApiError:
            return {}
        return claims_beside(options, lambda verdict: self._live.explain_claims(pod, node, verdict, fresh))

    async def check(self, api_pod: ApiPod, pod: Pod, node: str, verdict: Verdict) -> ClaimCheck:
        """Compare the devices that the scheduler has allocated with what *pod* will get on *node*."""
        preference, problem = claim_preference(pod)
        if problem:
            self._events.note(api_pod, UNKNOWN_PREFERENCE, problem)
        if preference is ClaimPreference.IGNORE:
            return ClaimCheck()
        try:
            pod, fresh = await self._read_claims(api_pod, pod, current=preference is ClaimPreference.REQUIRE)
        except ApiError as error:
            if preference is ClaimPreference.REQUIRE:
                return ClaimCheck(f"alignup cannot read the claims of the pod: {error}")
            return ClaimCheck(alignment=ClaimAlignment.UNKNOWN)
        explained = self._live.explain_claims(pod, node, verdict, fresh)
        aligned = alignment(explained)
        if preference is ClaimPreference.REQUIRE and aligned is not ClaimAlignment.ALIGNED:
            return ClaimCheck(self._refuse(api_pod, node, explained))
        ids = {"pod": api_pod.metadata.full_name, "uid": api_pod.metadata.uid, "node": node}
        _log.info("claims", **ids, alignment=str(aligned), devices=_sentences(explained))
        return ClaimCheck(alignment=aligned)

    def bound(self, uid: str, check: ClaimCheck) -> None:
        """Count a pod that was bound after its *check*."""
        self._refusals.pop(uid, None)
        if check.alignment is not None:
            self._live.metrics.claimed_pod(check.alignment)

    def _refuse(self, api_pod: ApiPod, node: str, explained: tuple[tuple[ExplainedClaim, ...], ...]) -> str:
        uid = api_pod.metadata.uid
        refusals = self._refusals.pop(uid, None) or _Refusals()
        if refusals.until and refusals.until <= self._clock():
            refusals = _Refusals()
        refusals.count += 1
        self._refusals[uid] = refusals
        while len(self._refusals) > MAX_PODS:
            self._refusals.popitem(last=False)
        why = _sentences(explained) or "it is not known where the devices of its claims are, or the pod has no CPUs"
        message = f"node {node} is refused, since {CLAIMS_ANNOTATION} is {ClaimPreference.REQUIRE}: {why}"
        if refusals.count >= MAX_TRIES:
            refusals.until = self._clock() + WAIT_SECONDS
            message += (
                f"; after {refusals.count} tries the pod waits for {WAIT_SECONDS / 60:.0f} minutes: "
                f"delete its claims, or change the annotation to {ClaimPreference.PREFER}"
            )
        self._events.note(api_pod, REASON, message, same=(node, refusals.count >= MAX_TRIES))
        self._live.metrics.claimed_pod(REFUSED)
        return message

    async def _read_claims(self, api_pod: ApiPod, pod: Pod, *, current: bool) -> tuple[Pod, dict[ObjectName, Claim]]:
        """Return *pod* with the claims that the scheduler made, and those claims that are not followed far enough.

        With *current*, all are read: one that is followed may have other devices meanwhile.
        """
        namespace = api_pod.metadata.namespace
        unnamed = pod.class_resources and not pod.extended_claim
        if unnamed or any(not named.claim for named in pod.claims):
            latest = await self._client.get(PODS.of(api_pod))
            pod = replace(self._live.read(latest), uid=pod.uid)
        fresh: dict[ObjectName, Claim] = {}
        for name in filter(None, (*(named.claim for named in pod.claims), pod.extended_claim)):
            known = self._live.claims.objects.claims.get((namespace, name))
            if current or known is None or known.allocated is None:
                read = await self._client.find(RESOURCE_CLAIMS.at(name, namespace=namespace))
                if read is not None:
                    fresh[namespace, name] = claim_from(read)
        return pod, fresh


def _sentences(explained: tuple[tuple[ExplainedClaim, ...], ...]) -> str:
    texts = [claim.sentence() or claim.state.problem for claims in explained[:1] for claim in claims]
    return "; ".join(filter(None, texts))
