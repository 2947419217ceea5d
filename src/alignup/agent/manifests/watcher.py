"""Keeps the admitted pods in line with a manifest directory."""

import asyncio
from dataclasses import dataclass, field

from structlog.typing import FilteringBoundLogger

from alignup.agent.api import AdmissionResult
from alignup.agent.manifests.directory import ManifestDir, ManifestPod, plan_changes
from alignup.agent.queue import AdmissionQueue
from alignup.agent.transaction import Transaction
from alignup.align.workload import Pod
from alignup.web.responses import BusyError, LedgerFullError, NotReadyError


@dataclass(slots=True)
class ManifestWatcher:
    """Scans *directory* and passes changes to *queue*.

    A pod that does not fit waits like any other. A pod that is invalid or can never fit is logged once, and ignored
    until its file changes.
    """

    directory: ManifestDir
    queue: AdmissionQueue
    log: FilteringBoundLogger
    interval: float = 1.0  #: seconds between scans
    _rejected: dict[str, Pod] = field(default_factory=dict)  #: by uid
    _reasons: dict[str, str] = field(default_factory=dict)  #: uid → why the pod is rejected
    _queue_problem: str = ""  #: why the queue did not accept the last changes

    @property
    def notes(self) -> tuple[str, ...]:
        return (*self.directory.problems, *self._reasons.values(), *filter(None, (self._queue_problem,)))

    async def run(self) -> None:
        while True:
            try:
                await self.scan_once()
            except Exception as error:  # noqa: BLE001 - a bug must not stop it
                self.log.error("manifest", detail=f"bug in alignup: {type(error).__name__}: {error}")  # noqa: TRY400
            await asyncio.sleep(self.interval)

    async def scan_once(self) -> None:
        scan = await asyncio.to_thread(self.directory.scan)
        for note in scan.notes:
            self.log.warning("manifest", detail=note)
        uids = {one.pod.uid for one in scan.pods}
        self._reasons = {uid: why for uid, why in self._reasons.items() if uid in uids}
        removed, added = plan_changes(scan, self.queue.state.all_records())
        added = tuple(one for one in added if self._rejected.get(one.pod.uid) != one.pod)
        if removed or added:
            await self._replace(removed, added)

    async def _replace(self, removed: tuple[str, ...], added: tuple[ManifestPod, ...]) -> None:
        """Pass changes to the queue; the next scan retries what it does not accept."""
        try:
            results = await self.queue.run(Transaction.replace_pods, removed, [(one.pod, one.file) for one in added])
        except (NotReadyError, BusyError) as error:
            if isinstance(error, LedgerFullError) and len(removed) + len(added) > 1:
                for uid in removed:
                    await self._replace((uid,), ())
                for one in added:
                    await self._replace((), (one,))
            else:
                self._set_queue_problem(str(error))
            return
        problem = ""
        for one, result in zip(added, results, strict=True):
            problem = self._note_result(one, result) or problem
        self._set_queue_problem(problem)

    def _note_result(self, added: ManifestPod, result: AdmissionResult | Exception) -> str:
        """Remember a rejected pod; return why a pod must be retried, if it must."""
        if isinstance(result, BusyError | NotReadyError):
            return str(result)
        if isinstance(result, Exception):
            self.log.warning("manifest", detail=f"{added.file}: {result}")
        if isinstance(result, Exception) or result.pod_view is None or result.pod_view.source != added.file:
            self._rejected[added.pod.uid] = added.pod
            why = ": another pod has its uid"
            if isinstance(result, Exception):
                why = f": {result}"
            elif rejection := result.decision.rejection:
                why = f" is rejected: {rejection.reason}: {rejection.message}"
            name = f"pod {added.pod.namespace}/{added.pod.name}"
            self._reasons[added.pod.uid] = f"{added.file}: {name}{why}"
        else:
            self._reasons.pop(added.pod.uid, None)
        return ""

    def _set_queue_problem(self, why: str) -> None:
        if why and why != self._queue_problem:
            self.log.warning("manifest", detail=f"manifests cannot be applied now: {why}")
        self._queue_problem = why
