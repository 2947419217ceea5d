"""Pods that opted in to the gate and came without it: the API server did not reach the webhook.

With ``failurePolicy: Ignore`` such a pod is created as if it had not opted in, and nobody is told. So the leader
compares every pod that is created while it leads with what the webhook would have answered. A pod that was there before
is not judged: it may have been created before its namespace opted in, or reported by the leader before.
"""

import asyncio

import structlog

from alignup.align.reason_codes import GATE_MISSED
from alignup.kubernetes.api import ApiClient, Change, EventType, Informer, Query, Resource
from alignup.kubernetes.api.objects import ApiPod, PartialObject
from alignup.schedule.gate.admission import LABEL, OPT_IN, ReviewOutcome, review_new_pod
from alignup.schedule.gate.controller import MAX_WAITING_EVENTS
from alignup.schedule.gate.metrics import GateMetrics
from alignup.schedule.live_cluster import LiveCluster
from alignup.schedule.object_events import GATE_COMPONENT, ObjectEvents

NAMESPACES = Resource(type=PartialObject, kind="Namespace", plural="namespaces")
MESSAGE = (
    "opted in to the scheduling gate, but created without it, since the API server did not reach the webhook of "
    "alignup; it is scheduled as if it had not opted in: delete it, so that its controller creates another"
)

_OPTED_IN = Query(labels=f"{LABEL}={OPT_IN}")
_log = structlog.get_logger()


class MissedPods:
    """The pods that a leader misses; pods are released to *schedulers*."""

    def __init__(
        self, client: ApiClient, live: LiveCluster, metrics: GateMetrics, *, schedulers: frozenset[str]
    ) -> None:
        self._client = client
        self._live = live
        self._metrics = metrics
        self._schedulers = schedulers
        self._namespaces = Informer(client, NAMESPACES, _OPTED_IN)
        self._events = ObjectEvents(client, GATE_COMPONENT, live.guard.reporting)
        self.following = False  #: whether new pods are compared

    async def run(self) -> None:
        """Compare new pods until cancelled."""
        await self._live.ready.wait()
        self._namespaces = Informer(self._client, NAMESPACES, _OPTED_IN)  # the last may be of an earlier time as leader
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._namespaces.run())
            tasks.create_task(self._events.run())
            await self._namespaces.wait_tried()  # without the permission, pods that opted in themselves still count
            stop = self._live.pods.subscribe(self._pod_changed)
            self.following = True
            try:
                await asyncio.Event().wait()
            finally:
                self.following = False
                stop()

    def _pod_changed(self, change: Change[ApiPod]) -> None:
        pod = change.object
        metadata = pod.metadata
        if change.type is EventType.DELETED:
            self._events.forget(metadata.uid)
        elif change.type is EventType.ADDED and self.following and self._is_missed(pod):
            self._metrics.missed_pods.inc()
            _log.warning("pod created without the gate", pod=metadata.full_name, uid=metadata.uid)
            if self._events.waiting <= MAX_WAITING_EVENTS:  # thousands of the same would say no more
                self._events.note(pod, GATE_MISSED, MESSAGE)

    def _is_missed(self, pod: ApiPod) -> bool:
        """Return whether the selectors of the webhook select a new pod, and the webhook would have gated it."""
        parent = self._namespaces.get(pod.metadata.namespace)
        labels = (pod.metadata.labels, parent.metadata.labels if parent is not None else {})
        opted_in = any(pod_labels.get(LABEL) == OPT_IN for pod_labels in labels)
        return opted_in and review_new_pod(pod, self._schedulers) is ReviewOutcome.GATED
