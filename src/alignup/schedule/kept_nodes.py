"""Nodes that are kept for pods that have waited long, so that smaller pods do not overtake them for ever.

A large pod fits only after several small ones on one node have ended. If every freed CPU goes to the next small pod,
that never happens. So for the pods that have waited longest, one node each is kept: other pods go there only if the
waiting pod will fit beside them once those have ended that are there now. For the gang that has waited longest, as many
nodes are kept as it needs when the others have ended there.

kube-scheduler does not ask about nodes that are full, so a pod that waits need not be known from its requests. It is
known from its condition, if its scheduler is one that asks.
"""

from collections.abc import Callable, Collection, Sequence
from contextlib import suppress
from dataclasses import dataclass, field

import structlog

from alignup.align.errors import AlignError
from alignup.align.workload import Pod
from alignup.kubernetes.api import Change, EventType
from alignup.kubernetes.api.objects import ApiPod, ApiPodSpec
from alignup.placement.kept_hosts import MAX_UNSUITABLE, find_hosts, fits_after, usable_hosts
from alignup.schedule.large_pods import is_large
from alignup.schedule.live_cluster import LiveCluster
from alignup.schedule.node_selection import exclusions, needs_alignment, selection_key
from alignup.schedule.pod_answers import missing_devices
from alignup.schedule.pod_groups import GroupKey, group_of
from alignup.schedule.step_guard import ServiceStep

PATIENCE_SECONDS = 60.0
MAX_KEPT = 3  #: pods and gangs at a time for which nodes are kept, of which one is a gang
ROOM_SECONDS = 120.0  #: for which a node with room is kept for a pod; then something else prevents it
RETRY_SECONDS = 600.0  #: after a pod did not take its node, or no node was suitable
CHECK_SECONDS = 1.0  #: between searches for a node, each for one pod
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
    pods: tuple[Pod, ...]  #: the holder, as decisions need it, or those of its gang that will be here
    uids: frozenset[str]  #: of the holder, or of all pods of its gang
    gang: GroupKey | None = None
    later: set[str] = field(default_factory=set)  #: uids of pods that were bound to the node since
    room_since: float | None = None  #: since when it has had room for the holder; ``None``: it has none

    @property
    def holder_name(self) -> str:
        return f"gang {self.gang}" if self.gang else self.holder.api_pod.metadata.full_name


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
            if len({kept.holder.api_pod.metadata.uid for kept in self._kept.values()}) < MAX_KEPT:
                self._keep_one(now)

    def refused(self, pod: Pod) -> dict[str, str]:
        """Return the nodes that are kept from *pod*, and why."""
        return {
            node: f"kept for {kept.holder_name}, which has waited longer"
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
        if pod.uid in kept.uids:
            return False
        waiting = self._waiting.get(pod.uid)
        order = waiting.order if waiting else (-(pod.priority or 0), float("inf"))
        if order < kept.holder.order:
            return False
        record = self._live.cluster.record(kept.name)
        return record is None or not fits_after(record, kept.pods, pod, staying={*kept.later, pod.uid})

    def _pod_changed(self, change: Change[ApiPod]) -> None:
        pod = change.object
        uid, deleted = pod.metadata.uid, change.type is EventType.DELETED
        if deleted or pod.finished:
            for kept in self._kept.values():
                kept.later.discard(uid)
        if deleted or pod.finished or pod.spec.node_name or pod.metadata.deletion_timestamp is not None:
            if self._waiting.pop(uid, None) is not None:
                self._drop([kept for kept in self._kept.values() if uid in kept.uids], "the pod waits no longer")
        elif uid in self._waiting:
            self._waiting[uid].api_pod = pod
        elif _is_unschedulable(pod):
            self._waiting[uid] = OvertakenPod(pod, self._clock())

    def _drop(self, dropped: Collection[KeptNode], reason: str) -> None:
        for kept in dropped:
            del self._kept[kept.name]
            uid = kept.holder.api_pod.metadata.uid
            _log.info("node no longer kept", pod=kept.holder_name, uid=uid, node=kept.name, reason=reason)

    def _drop_unsuitable(self, now: float) -> None:
        """Drop nodes that the waiting pod cannot use any more, or did not use although there was room."""
        unsuitable, unused = set[str](), set[str]()  #: uids of holders
        without_room = {
            kept.holder.api_pod.metadata.uid
            for kept in self._kept.values()
            if not self._live.verdict(kept.pods[0], kept.name).admits
        }
        for kept in self._kept.values():
            node, uid = self._live.nodes.get(kept.name), kept.holder.api_pod.metadata.uid
            if (
                node is None
                or exclusions(node, kept.holder.api_pod.spec)
                or self._live.cluster.record(kept.name) is None
            ):
                unsuitable.add(uid)
                continue
            has_room = uid not in without_room
            kept.room_since = (kept.room_since if kept.room_since is not None else now) if has_room else None
            if kept.room_since is not None and now - kept.room_since >= ROOM_SECONDS:
                kept.holder.retry = now + RETRY_SECONDS
                unused.add(uid)
        self._drop(self._held_by(unsuitable), "the pod cannot go there any more")
        self._drop(self._held_by(unused), "the pod was not bound although there was room")

    def _held_by(self, uids: Collection[str]) -> list[KeptNode]:
        return [kept for kept in self._kept.values() if kept.holder.api_pod.metadata.uid in uids]

    def _keep_one(self, now: float) -> None:
        """Keep a node for the first pod that has waited long, and for which none was searched lately."""
        holders = {uid for kept in self._kept.values() for uid in kept.uids}
        has_gang = any(kept.gang for kept in self._kept.values())
        due = []
        for uid, waiting in self._waiting.items():
            if now - waiting.since < self._patience:
                break
            if uid in holders or waiting.retry > now or waiting.api_pod.spec.scheduler_name not in self._schedulers:
                continue
            if not has_gang or group_of(waiting.api_pod) is None:
                due.append(waiting)
        if not due:
            return
        first = min(due, key=lambda waiting: waiting.order)
        first.retry = now + RETRY_SECONDS
        kept_nodes: list[KeptNode] = []
        with self._live.guard.guarded(ServiceStep.PLACE, first.api_pod.metadata.full_name), suppress(AlignError):
            kept_nodes = self._find_nodes(first)  # unless no kubelet can decide on it
        for kept in kept_nodes:
            self._kept[kept.name] = kept
            uid, waited = first.api_pod.metadata.uid, round(now - first.since)
            _log.info("node kept", pod=kept.holder_name, uid=uid, node=kept.name, waited=waited)
            for held in kept.pods:
                api_pod = self._live.find_pod(held.namespace, held.name)
                self._keep(api_pod or first.api_pod, kept.name)

    def _find_nodes(self, first: OvertakenPod) -> list[KeptNode]:
        """Return the nodes that a pod, or its gang if more than one pod of it is missing, needs when others have ended.

        Those with the fewest pods come first.
        """
        waiting: Sequence[ApiPod] = (first.api_pod,)
        key, missing = group_of(first.api_pod), 1
        if key is not None:
            members = self._live.pod_groups.members(key)
            missing = members.minimum - len(members.bound)
            if missing > len(members.waiting):  # it cannot start anyway
                return []
            if missing > 1:
                waiting = members.waiting
        specs = {pod.metadata.uid: pod.spec for pod in waiting}
        pods = list(map(self._live.read, waiting))
        if len(waiting) > 1:
            pods = [pod for pod in pods if needs_alignment(pod)][:missing]
        cluster = self._live.cluster
        records = [record for name in cluster.hosts if name not in self._kept and (record := cluster.record(name))]
        records.sort(key=lambda record: (len(record.ledger.pods), record.name))
        usable = usable_hosts(
            pods,
            [record.name for record in records],
            kind=lambda pod: (selection_key(specs[pod.uid]), self._live.claims.kind(pod)),
            may_use=lambda pod, name: self._may_use(pod, specs[pod.uid], name),
        )
        tries = 1 if any(map(is_large, pods)) else MAX_UNSUITABLE
        hosts = find_hosts(records, pods, usable, max_unsuitable=tries)
        gang = key if len(waiting) > 1 else None
        return [KeptNode(name, first, held, frozenset(specs), gang) for name, held in hosts.items()]

    def _may_use(self, pod: Pod, spec: ApiPodSpec, name: str) -> bool:
        """Return whether a node could be chosen for a pod if it had no others, and no other claim had devices."""
        node, record = self._live.nodes.get(name), self._live.cluster.record(name)
        if node is None or record is None or exclusions(node, spec) or missing_devices(record, node, pod):
            return False
        return not pod.uses_claims or self._live.claim_fit(pod, name, idle=True).possible


def _is_unschedulable(pod: ApiPod) -> bool:
    """Return whether its scheduler has found no node for *pod*."""
    conditions = [condition for condition in pod.status.conditions if condition.type == "PodScheduled"]
    return any(condition.status == "False" and condition.reason == "Unschedulable" for condition in conditions)
