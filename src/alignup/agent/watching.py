"""Keeps the pods of a manifest directory here: looks every second, and has the desk do what has changed."""

import asyncio

from structlog.typing import FilteringBoundLogger

from alignup.agent.desk import Desk
from alignup.agent.manifests import Folder, Plan, Wanted, plan
from alignup.align.workload import Pod
from alignup.serve.service import Admission, BusyError, NotReadyError

EVERY = 1.0  #: seconds between looks

_Pods = dict[str, Pod]  # by uid


class Watcher:
    """Looks at *folder* for *desk*.

    A pod of a manifest that does not fit waits at the desk as any other. One that could never fit, or is wrong, is told
    of once and left until its file changes.
    """

    def __init__(self, folder: Folder, desk: Desk, *, log: FilteringBoundLogger, every: float = EVERY) -> None:
        self._folder = folder
        self._desk = desk
        self._log = log
        self._every = every
        self._given_up: _Pods = {}  #: those that cannot be had here
        self._complaint = ""  #: why the desk would not do it, the last time

    async def watch(self) -> None:
        """Look for ever."""
        while True:
            try:
                await self.turn()
            except Exception as error:  # noqa: BLE001 - whatever one file can do, the others are looked after
                self._log.error("manifest", detail=f"a fault of alignup: {type(error).__name__}: {error}")
            await asyncio.sleep(self._every)

    async def turn(self) -> None:
        """Look once, and have done what has changed."""
        look = await asyncio.to_thread(self._folder.look)
        for note in look.notes:
            self._log.warning("manifest", detail=note)
        found = plan(look, self._desk.standing.everyone())
        come = tuple(wanted for wanted in found.come if self._given_up.get(wanted.pod.uid) != wanted.pod)
        if found.gone or come:
            await self._exchange(Plan(found.gone, come))

    async def _exchange(self, change: Plan) -> None:
        """Hand a change to the desk; what it cannot do now is tried at the next look."""
        try:
            answers = await self._desk.exchange(change.gone, [(wanted.pod, wanted.file) for wanted in change.come])
        except (NotReadyError, BusyError) as error:
            self._complain(str(error))
            return
        busy = ""
        for wanted, answer in zip(change.come, answers, strict=True):
            busy = self._heard(wanted, answer) or busy
        self._complain(busy)

    def _heard(self, wanted: Wanted, answer: Admission | Exception) -> str:
        """Remember what became of a pod; why it has to be tried again, if it has."""
        if isinstance(answer, BusyError | NotReadyError):
            return str(answer)
        if isinstance(answer, Exception):
            self._log.warning("manifest", detail=f"{wanted.file}: {answer}")
        if isinstance(answer, Exception) or answer.entry is None or answer.entry.source != wanted.file:
            self._given_up[wanted.pod.uid] = wanted.pod
        return ""

    def _complain(self, why: str) -> None:
        """Say once why the manifests cannot be followed."""
        if why and why != self._complaint:
            self._log.warning("manifest", detail=f"the manifests cannot be followed now: {why}")
        self._complaint = why
