"""Nodes that are kept for pods that have waited long, so that smaller pods do not overtake them for ever.

A large pod fits only after several small ones on one node have ended. If every freed CPU goes to the next small pod,
that never happens. So for the pods that have waited longest, one node each is kept: other pods go there only if the
waiting pod will fit beside them once those have ended that are there now.

kube-scheduler does not ask about nodes that are full, so a pod that waits need not be known from its requests. It is
known from its condition, if its scheduler is one that asks.
"""

from collections.abc import Callable, Collection
from dataclasses import dataclass, field

import structlog

from alignup.align.errors import AlignError
from alignup.align.workload import Pod
from alignup.kubernetes.api import Change, EventType
from alignup.kubernetes.api.objects import ApiPod
from alignup.placement.kept_hosts import admits_alone, fits_after
from alignup.schedule.large_pods import is_large
from alignup.schedule.live_cluster import LiveCluster
from alignup.schedule.node_selection import exclusions
from alignup.schedule.pod_answers import missing_devices

PATIENCE_SECONDS = 60.0
MAX_KEPT = 3  #: nodes at a time
ROOM_SECONDS = 120.0  #: for which a node with room is kept for a pod; then something else prevents it
RETRY_SECONDS = 600.0  #: after a pod did not take its node, or no node was suitable
CHECK_SECONDS = 1.0  #: between searches for a node, each for one pod
MAX_TRIED = 20  #: nodes that are tried for one pod
MAX_SCHEDULERS = 100

_log = structlog.get_logger()


@dataclass(slots=True, eq=False)
class OvertakenPod:
    api_pod: ApiPod
    since: float
    retry: float = float("-inf")  #: when a node may be searched for again

    @property
    def order(self) -> tuple[int, float]:
        """The highest priority first, then the oldest."""
        return -(self.api_pod.spec.priority or 0), self.since


@dataclass(slots=True, eq=False)
class KeptNode:
    name: str
    holder: OvertakenPod
    pod: Pod  #: the holder, as decisions need it
    later: set[str] = field(default_factory=set)  #: uids of pods that were bound to the node since
    room_since: float | None = None  #: since when it has had room for the holder; ``None``: it has none


class KeptNodes:
    """The nodes that are kept, by the clock of the client; *keep* is called with a pod and the node kept for it."""

    def __init__(
        self, live: LiveCluster, clock: Callable[[], float], keep: Callable[[ApiPod, str], object], *, patience: float
    ) -> None:
        self._live, self._clock, self._keep, self._patience = live, clock, keep, patience
        self._schedulers: set[str] = set()  #: that have asked
        self._waiting: dict[str, OvertakenPod] = {}  #: by uid, the oldest first
        self._kept: dict[str, KeptNode] = {}  #: by node
        self._checked = float("-inf")
        live.pods.subscribe(self._pod_changed)

    def __len__(self) -> int:
        return len(self._kept)

    def asked(self, pod: ApiPod) -> None:
        """Note that a scheduler asks about *pod*; from time to time, keep a node for the pod that waits longest."""
        if len(self._schedulers) < MAX_SCHEDULERS:
            self._schedulers.add(pod.spec.scheduler_name)
        now = self._clock()
        if (self._waiting or self._kept) and now - self._checked >= CHECK_SECONDS:
            self._checked = now
            self._drop_unsuitable(now)
            if len(self._kept) < MAX_KEPT:
                self._keep_one(now)

    def refused(self, pod: Pod) -> dict[str, str]:
        """Return the nodes that are kept from *pod*, and why."""
        return {
            node: f"kept for {kept.holder.api_pod.metadata.full_name}, which has waited longer"
            for node, kept in self._kept.items()
            if self._keeps_out(kept, pod)
        }

    def keeps_out(self, node: str, pod: Pod) -> bool:
        kept = self._kept.get(node)
        return kept is not None and self._keeps_out(kept, pod)

    def bound(self, node: str, uid: str) -> None:
        """Note that a pod was bound to *node*."""
        kept = self._kept.get(node)
        if kept is not None:
            kept.later.add(uid)

    def _keeps_out(self, kept: KeptNode, pod: Pod) -> bool:
        if kept.pod.uid == pod.uid:
            return False
        waiting = self._waiting.get(pod.uid)
        order = waiting.order if waiting else (-(pod.priority or 0), float("inf"))
        if order < kept.holder.order:
            return False
        record = self._live.cluster.record(kept.name)
        return record is None or not fits_after(record, kept.pod, pod, staying={*kept.later, pod.uid})

    def _pod_changed(self, change: Change[ApiPod]) -> None:
        pod = change.object
        uid, deleted = pod.metadata.uid, change.type is EventType.DELETED
        if deleted or pod.finished:
            for kept in self._kept.values():
                kept.later.discard(uid)
        if deleted or pod.finished or pod.spec.node_name or pod.metadata.deletion_timestamp is not None:
            if self._waiting.pop(uid, None) is not None:
                self._drop([kept for kept in self._kept.values() if kept.pod.uid == uid], "the pod waits no longer")
        elif uid in self._waiting:
            self._waiting[uid].api_pod = pod
        elif _is_unschedulable(pod):
            self._waiting[uid] = OvertakenPod(pod, self._clock())

    def _drop(self, dropped: Collection[KeptNode], reason: str) -> None:
        for kept in dropped:
            del self._kept[kept.name]
            name = kept.holder.api_pod.metadata.full_name
            _log.info("node no longer kept", pod=name, uid=kept.pod.uid, node=kept.name, reason=reason)

    def _drop_unsuitable(self, now: float) -> None:
        """Drop nodes that the waiting pod cannot use any more, or did not use although there was room."""
        unsuitable, unused = [], []
        for kept in self._kept.values():
            node = self._live.nodes.get(kept.name)
            if (
                node is None
                or exclusions(node, kept.holder.api_pod.spec)
                or self._live.cluster.record(kept.name) is None
            ):
                unsuitable.append(kept)
                continue
            has_room = self._live.verdict(kept.pod, kept.name).admits
            kept.room_since = (kept.room_since if kept.room_since is not None else now) if has_room else None
            if kept.room_since is not None and now - kept.room_since >= ROOM_SECONDS:
                kept.holder.retry = now + RETRY_SECONDS
                unused.append(kept)
        self._drop(unsuitable, "the pod cannot go there any more")
        self._drop(unused, "the pod was not bound although there was room")

    def _keep_one(self, now: float) -> None:
        """Keep a node for the first pod that has waited long, and for which none was searched lately."""
        holders = {kept.pod.uid for kept in self._kept.values()}
        due = []
        for uid, waiting in self._waiting.items():
            if now - waiting.since < self._patience:
                break
            if uid not in holders and waiting.retry <= now and waiting.api_pod.spec.scheduler_name in self._schedulers:
                due.append(waiting)
        if not due:
            return
        first = min(due, key=lambda waiting: waiting.order)
        first.retry = now + RETRY_SECONDS
        try:
            pod = self._live.read(first.api_pod)
            node = self._find_node(first.api_pod, pod)
            self._live.verdict(pod, node)
        except AlignError:  # no kubelet can decide on it
            return
        if node:
            self._kept[node] = KeptNode(node, first, pod)
            waited = round(now - first.since)
            _log.info("node kept", pod=first.api_pod.metadata.full_name, uid=pod.uid, node=node, waited=waited)
            self._keep(first.api_pod, node)

    def _find_node(self, api_pod: ApiPod, pod: Pod) -> str:
        """Return the node with the fewest pods of those that would admit *pod* without them; empty: there is none."""
        cluster, tries = self._live.cluster, 1 if is_large(pod) else MAX_TRIED
        records = [record for name in cluster.hosts if name not in self._kept and (record := cluster.record(name))]
        for record in sorted(records, key=lambda record: (len(record.ledger.pods), record.name)):
            node = self._live.nodes.get(record.name)
            if node is None or exclusions(node, api_pod.spec) or missing_devices(record, node, pod):
                continue
            if pod.uses_claims and not self._live.claim_fit(pod, record.name).possible:
                continue
            if admits_alone(record.model, record.ledger, pod):
                return record.name
            tries -= 1
            if not tries:
                break
        return ""


def _is_unschedulable(pod: ApiPod) -> bool:
    """Return whether its scheduler has found no node for *pod*."""
    conditions = [condition for condition in pod.status.conditions if condition.type == "PodScheduled"]
    return any(condition.status == "False" and condition.reason == "Unschedulable" for condition in conditions)
