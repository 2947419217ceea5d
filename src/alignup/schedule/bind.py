"""The verb bind: pods are bound to nodes in the order in which the predictions count on them.

A kubelet admits pods in the order of their bindings. So bindings to one node are written one after the other, each
after a last check that the node still admits the pod.
"""

import asyncio
from collections.abc import Callable
from weakref import WeakValueDictionary

from alignup.align.workload import Pod
from alignup.documents.codec import encode
from alignup.documents.decisions import placement_document
from alignup.kubernetes.api import ApiClient, ObjectRef
from alignup.kubernetes.api.errors import ApiError, ServerFailureError, UnreachableError
from alignup.kubernetes.api.objects import ApiPod
from alignup.placement.verdict import Verdict
from alignup.schedule.live_cluster import LiveCluster
from alignup.schedule.node_selection import needs_alignment

PLACEMENT_ANNOTATION = "alignup.dev/predicted-placement"
NOT_LEADING = "this process does not lead any more; the next one has to bind the pod"
SECONDS = 20.0  #: for one binding


class Binder:
    """The writer of bindings, while *leads* returns true: the next leader would not know of later ones."""

    def __init__(
        self,
        client: ApiClient,
        live: LiveCluster,
        *,
        allow_unknown: bool = False,
        leads: Callable[[], bool] = lambda: True,
    ) -> None:
        self._client, self._live, self._allow_unknown, self._leads = client, live, allow_unknown, leads
        self._locks: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()  #: by node
        self._running = 0
        self._idle = asyncio.Event()
        self._idle.set()

    async def bind(self, ref: ObjectRef[ApiPod], pod: Pod, node: str) -> str:
        """Bind a pod if the node still admits it; return why it was not bound, or nothing."""
        lock = self._locks.setdefault(node, asyncio.Lock())
        self._running += 1
        self._idle.clear()
        try:
            async with lock:
                return await self._bind(ref, pod, node) if self._leads() else NOT_LEADING
        finally:
            self._running -= 1
            if not self._running:
                self._idle.set()

    async def wait_idle(self) -> None:
        """Wait until no binding is being written."""
        await self._idle.wait()

    async def _bind(self, ref: ObjectRef[ApiPod], pod: Pod, node: str) -> str:
        verdict = self._live.assume(pod, node)
        accepted = self._allow_unknown and self._live.cluster.record(node) is None
        if not verdict.admits and not accepted and needs_alignment(pod):
            detail = f" ({verdict.detail})" if verdict.detail else ""
            return f"node {node} does not admit the pod any more: {verdict.reason}{detail}"
        try:
            async with asyncio.timeout(SECONDS):
                await self._client.bind(ref, node, annotations=_annotations(verdict))
        except (UnreachableError, ServerFailureError, TimeoutError) as error:
            # It may have happened, so the node counts with the pod until the API server shows otherwise.
            return f"it is unknown whether the pod was bound to {node}: {error or 'no response'}"
        except ApiError as error:
            self._live.forget(pod.uid)
            return str(error)
        return ""


def _annotations(verdict: Verdict) -> dict[str, str]:
    """Return what the containers will get, if something of their own, and if it is certain."""
    if not verdict.takes_resources or verdict.alternatives:
        return {}
    return {PLACEMENT_ANNOTATION: encode([placement_document(placement) for placement in verdict.placements]).decode()}
