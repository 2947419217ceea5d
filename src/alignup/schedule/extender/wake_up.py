"""Wake-ups: pods that were refused before are tried again; see ``placement.scheduling.wake_ups``.

The smallest event that makes kube-scheduler try a pod again is a change of that pod, so the pod gets an annotation.
"""

import asyncio
from collections import deque
from datetime import UTC, datetime

import structlog

from alignup.kubernetes.api import PODS, ApiClient
from alignup.kubernetes.api.errors import ApiError, NotFoundError
from alignup.placement.scheduling.events import PodGone, WakeNext
from alignup.placement.scheduling.instructions import WakePod
from alignup.schedule.live_cluster import LiveCluster
from alignup.schedule.step_guard import ServiceStep

ANNOTATION = "alignup.dev/room-found"

_log = structlog.get_logger()


class WakeUpWriter:
    def __init__(self, client: ApiClient, live: LiveCluster) -> None:
        self._client = client
        self._live = live
        self._changed = asyncio.Event()
        self._writes: deque[WakePod] = deque()
        self.woken = 0
        live.on_instruction(self._writes.append, WakePod)
        live.on_event(self._handled)

    def _handled(self, _event: object) -> None:
        if self._live.scheduling.wake_ups.due:
            self._changed.set()

    async def run(self) -> None:
        """Wake pods until cancelled."""
        while True:
            await self._changed.wait()
            while self._live.scheduling.wake_ups.due:
                self._live.schedule(WakeNext())
                while self._writes:
                    wake = self._writes.popleft()
                    with self._live.guard.guarded(ServiceStep.WAKE, f"{wake.namespace}/{wake.name}"):
                        await self._wake(wake)
                await asyncio.sleep(0)
            self._changed.clear()

    async def _wake(self, wake: WakePod) -> None:
        ids = {"pod": f"{wake.namespace}/{wake.name}", "uid": wake.uid}
        now = datetime.fromtimestamp(self._client.timing.time_of_day(), UTC).isoformat()
        # Annotations may be changed there, the spec may not.
        ref = PODS.at(wake.name, namespace=wake.namespace, subresource="status")
        try:
            await self._client.patch(ref, {"metadata": {"uid": wake.uid, "annotations": {ANNOTATION: now}}})
        except ApiError as error:
            _log.warning("cannot wake a pod", **ids, problem=str(error))
            if isinstance(error, NotFoundError):
                self._live.schedule(PodGone(wake.uid))
            return
        self.woken += 1
        _log.info("pod woken", **ids, node=wake.node)
