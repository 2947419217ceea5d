"""Rejections by kubelets: why a pod was rejected then, not what its node would decide now.

The kubelet's reason is in the status of the pod. If the pod was predicted to be admitted, the cause of the difference
follows from what was observed of the node at that time. It is written to an annotation of the pod, so that it is known
as long as the pod is.
"""

import asyncio
from collections.abc import Collection

import structlog

from alignup.align.decision import Rejection
from alignup.align.explain.defects import ISSUES, LATE_PLUGIN, TAINT_UNTIL_READY
from alignup.kubernetes.api import PODS, ApiClient, Change, EventType
from alignup.kubernetes.api.errors import ApiError
from alignup.kubernetes.api.known_pods import kubelet_uid, was_rejected
from alignup.kubernetes.api.objects import ApiPod
from alignup.placement.host_report import Cause
from alignup.placement.verdict import Verdict, VerdictKind
from alignup.schedule.live_cluster import LiveCluster

ANNOTATION = "alignup.dev/rejection-cause"
CAUSES = {
    Cause.FOREIGN_POD: "another pod came to the node that no scheduler had asked about",
    Cause.CONFIGURATION: "the configuration or the machine of the node changed",
    Cause.KUBELET_RESTART: "the kubelet was restarted",
    Cause.DEVICES: "devices of the node came, went, or changed their health",
    Cause.PREEMPTION: "the kubelet ended pods for a critical one",
    Cause.POD_END: "another pod ended between the prediction and the admission, so containers were placed elsewhere",
    Cause.BINDING_ORDER: "other pods, such as those of its gang, were bound in another order than assumed",
    Cause.STEERING: "the markers of NUMA nodes changed between the steering of the pod and its admission",
    Cause.READMISSION: "the kubelet had admitted the pod, was restarted, and rejected it; if its device plugin had not "
    f"registered again ({ISSUES}/{LATE_PLUGIN.issue}): {TAINT_UNTIL_READY}",
    Cause.HOST_RESOURCES: "the node as a whole had no room",
    Cause.APPROXIMATE: "the report about the node was not exact",
    Cause.UNEXPLAINED: "no cause was found; please report it",
}
_NO_PLUGIN = "no healthy devices present"  #: in the kubelet's message

_log = structlog.get_logger()


def rejection_text(pod: ApiPod) -> str:
    """Return why the kubelet rejected *pod*, with the cause if it is recorded; empty: it did not."""
    if not was_rejected(pod):
        return ""
    cause = pod.metadata.annotations.get(ANNOTATION, "")
    if not cause and _NO_PLUGIN in pod.status.message:
        defect = f"a defect of the kubelet: {LATE_PLUGIN.sentence} ({ISSUES}/{LATE_PLUGIN.issue})"
        cause = f"no device plugin had registered; perhaps {defect}; {TAINT_UNTIL_READY}"
    return f"{pod.status.reason}: {pod.status.message}" + (f" (cause: {cause})" if cause else "")


def recorded_verdict(pod: ApiPod, node: str, verdict: Verdict) -> Verdict:
    """Return *verdict*, or that of the kubelet at the time it rejected *pod*, if the present one is unknown."""
    text = rejection_text(pod) if pod.spec.node_name == node and verdict.kind is VerdictKind.UNKNOWN else ""
    if not text:
        return verdict
    rejection = Rejection(pod.status.reason, pod.status.message)
    return Verdict(
        VerdictKind.REJECTS, f"its kubelet rejected the pod: {text}", rejection, note=f"now: {verdict.reason}"
    )


class RejectionWriter:
    """Writes the causes of rejections to the pods."""

    def __init__(self, client: ApiClient, live: LiveCluster) -> None:
        self._client = client
        self._live = live
        self._rejected: dict[str, ApiPod] = {}  #: by the uid that the kubelet uses, pods without a cause
        self._changed = asyncio.Event()
        live.pods.subscribe(self._pod_changed)
        live.on_change(self._nodes_changed)

    def _pod_changed(self, change: Change[ApiPod]) -> None:
        pod, uid = change.object, kubelet_uid(change.object)
        if change.type is EventType.DELETED:
            self._rejected.pop(uid, None)
        elif was_rejected(pod) and not change.listed and ANNOTATION not in pod.metadata.annotations:
            self._rejected[uid] = pod

    def _nodes_changed(self, _nodes: Collection[str]) -> None:
        if self._rejected:
            self._changed.set()

    async def run(self) -> None:
        """Write causes until cancelled."""
        while True:
            await self._changed.wait()
            self._changed.clear()
            rejected = self._live.cluster.rejected
            for uid, cause in [(uid, rejected[uid].cause) for uid in self._rejected if uid in rejected]:
                pod = self._rejected.pop(uid, None)
                if pod is not None:
                    with self._live.guard.reporting(f"rejection of {pod.metadata.full_name}"):
                        await self._write(pod, cause)

    async def _write(self, pod: ApiPod, cause: Cause) -> None:
        ref = PODS.of(pod, subresource="status")  # annotations may be changed there, the spec may not
        annotations = {ANNOTATION: f"{cause}: {CAUSES[cause]}"}
        try:
            await self._client.patch(ref, {"metadata": {"uid": pod.metadata.uid, "annotations": annotations}})
        except ApiError as error:
            _log.warning(
                "cannot record a cause",
                pod=pod.metadata.full_name,
                uid=pod.metadata.uid,
                cause=cause,
                problem=str(error),
            )
