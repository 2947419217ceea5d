"""Keeps the pods of a manifest directory here: looks every second, and has the desk do what has changed."""

import asyncio
from collections.abc import Iterable

from structlog.typing import FilteringBoundLogger

from alignup.agent.manifests.directory import ManifestChanges, ManifestDir, ManifestPod, plan_changes
from alignup.agent.queue import AdmissionQueue
from alignup.align.workload import Pod
from alignup.schema.api import AdmissionResult, BusyError, NotReadyError

SCAN_INTERVAL = 1.0  #: seconds between looks

_Pods = dict[str, Pod]  # by uid


class ManifestWatcher:
    """Looks at *folder* for *desk*.

    A pod of a manifest that does not fit waits at the desk as any other. One that could never fit, or is wrong, is told
    of once and left until its file changes.

    Where somebody runs the pods, one that goes has to end first (*ends*), and who comes in its place waits for that.
    """

    def __init__(
        self,
        folder: ManifestDir,
        desk: AdmissionQueue,
        *,
        log: FilteringBoundLogger,
        every: float = SCAN_INTERVAL,
        ends: bool = False,
    ) -> None:
        self._folder = folder
        self._desk = desk
        self._log = log
        self._every = every
        self._ends = ends
        self._given_up: _Pods = {}  #: those that cannot be had here
        self._why: dict[str, str] = {}  #: uid → why not
        self._complaint = ""  #: why the desk would not do it, the last time

    @property
    def notes(self) -> tuple[str, ...]:
        """What is wrong with the manifests now, a sentence each."""
        return (*self._folder.problems, *self._why.values(), *filter(None, (self._complaint,)))

    async def watch(self) -> None:
        """Look for ever."""
        while True:
            try:
                await self.scan_once()
            except Exception as error:  # noqa: BLE001 - whatever one file can do, the others are looked after
                self._log.error("manifest", detail=f"a fault of alignup: {type(error).__name__}: {error}")
            await asyncio.sleep(self._every)

    async def scan_once(self) -> None:
        """Look once, and have done what has changed."""
        look = await asyncio.to_thread(self._folder.look)
        for note in look.notes:
            self._log.warning("manifest", detail=note)
        wanted = {one.pod.uid for one in look.pods}
        self._why = {uid: why for uid, why in self._why.items() if uid in wanted}
        found = plan_changes(look, self._desk.standing.everyone())
        come = tuple(wanted for wanted in found.added if self._given_up.get(wanted.pod.uid) != wanted.pod)
        if self._ends:
            found, come = await self._ended(found.gone), tuple(one for one in come if not self._occupied(one.pod))
        if found.gone or come:
            await self._exchange(ManifestChanges(found.gone, come))

    async def _ended(self, gone: Iterable[str]) -> ManifestChanges:
        """Have pods end that are gone, each told once."""
        ending = {known.pod.uid for known in self._desk.standing.everyone() if known.ending}
        try:
            for uid in gone:
                if uid not in ending:
                    await self._desk.end(uid)
        except (NotReadyError, BusyError) as error:
            self._complain(str(error))
        return ManifestChanges()

    def _occupied(self, pod: Pod) -> bool:
        """Whether one that ends still has the uid or the name of a pod."""
        return any(
            known.ending and (known.pod.uid == pod.uid or _name(known.pod) == _name(pod))
            for known in self._desk.standing.everyone()
        )

    async def _exchange(self, change: ManifestChanges) -> None:
        """Hand a change to the desk; what it cannot do now is tried at the next look."""
        try:
            answers = await self._desk.exchange(change.gone, [(wanted.pod, wanted.file) for wanted in change.added])
        except (NotReadyError, BusyError) as error:
            self._complain(str(error))
            return
        busy = ""
        for wanted, answer in zip(change.added, answers, strict=True):
            busy = self._heard(wanted, answer) or busy
        self._complain(busy)

    def _heard(self, wanted: ManifestPod, answer: AdmissionResult | Exception) -> str:
        """Remember what became of a pod; why it has to be tried again, if it has."""
        if isinstance(answer, BusyError | NotReadyError):
            return str(answer)
        if isinstance(answer, Exception):
            self._log.warning("manifest", detail=f"{wanted.file}: {answer}")
        if isinstance(answer, Exception) or answer.pod_view is None or answer.pod_view.source != wanted.file:
            self._given_up[wanted.pod.uid] = wanted.pod
            self._why[wanted.pod.uid] = f"{wanted.file}: {_reason(wanted.pod, answer)}"
        else:
            self._why.pop(wanted.pod.uid, None)
        return ""

    def _complain(self, why: str) -> None:
        """Say once why the manifests cannot be followed."""
        if why and why != self._complaint:
            self._log.warning("manifest", detail=f"the manifests cannot be followed now: {why}")
        self._complaint = why


def _reason(pod: Pod, answer: AdmissionResult | Exception) -> str:
    """Why a pod of a manifest is not here."""
    name = f"pod {pod.namespace}/{pod.name}"
    if isinstance(answer, Exception):
        return f"{name}: {answer}"
    if answer.decision.rejection is not None:
        return f"{name} is refused: {answer.decision.rejection.reason}: {answer.decision.rejection.message}"
    return f"{name}: another pod has its uid"


def _name(pod: Pod) -> tuple[str, str]:
    return pod.namespace, pod.name
