"""One pod's life, lived: look, ask its course what is next, have it done, and look again.

What takes long (an image, the last seconds of a container) is done beside, so that a pod that is told to end while its
image is fetched ends at once. What fails is remembered, and tried again later. A worker that is cancelled leaves
everything as it is: another goes on from what the runtime shows.
"""

import asyncio
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Protocol

from alignup.agent.pod_record import PodRecord
from alignup.agent.pod_record import TerminationRequest as Told
from alignup.agent.pods.actions import compute_pod_actions
from alignup.agent.pods.errors import PodStartError
from alignup.agent.pods.pod_state import (
    Action,
    Backoff,
    CreateSandbox,
    PodActions,
    PodStatus,
    PodTermination,
    ProbeStatus,
    RemoveFromRuntime,
    StartContainer,
    StopContainer,
    StopSandbox,
    WorkerState,
)
from alignup.agent.pods.retry import MAX_DELAY, describe_bug, retry_delay
from alignup.agent.pods.status import generate_pod_run
from alignup.agent.state import AgentEvent, Clock
from alignup.agent.state import EventKind as What
from alignup.align.bits import CpuSet, NodeSet
from alignup.align.errors import AlignError
from alignup.enforce.cri.types import ContainerState, CriContainer
from alignup.kube.podspec.types import ContainerKind, PodSpec
from alignup.schema.api import PodRunStatus

EventSink = Callable[[AgentEvent], None]


class PodOperationsProtocol(Protocol):
    """Whoever does things for one pod; ``PodStartError`` or an :class:`AlignError` where something cannot be done."""

    async def look(self) -> PodStatus:
        """What there is of the pod."""
        ...

    async def make_sandbox(self, act: CreateSandbox) -> None:
        """Make its directories and a sandbox."""
        ...

    async def start(self, act: StartContainer) -> None:
        """Make a container and start it."""
        ...

    async def stop(self, act: StopContainer) -> None:
        """Stop a container, and return when it has ended."""
        ...

    async def stop_sandbox(self, id_: str) -> None:
        """Stop a sandbox."""
        ...

    async def discard(self, act: RemoveFromRuntime) -> None:
        """Remove a container or a sandbox."""
        ...

    def watch(self, seen: PodStatus, health: Callable[[str, ProbeStatus], None]) -> None:
        """Probe just the containers that run now; *health* hears of each what its probes say."""
        ...

    def places(self) -> Mapping[str, tuple[CpuSet, NodeSet]]:
        """Where its containers belong, by name."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class PodWork:
    """What a worker is told about its pod."""

    known: PodRecord
    spec: PodSpec
    warnings: tuple[str, ...] = ()  #: what its manifest says and nobody here heeds
    barred: str = ""  #: why nothing may be started, though what runs goes on; empty: all may


class PodWorker:
    """Lives the life of one pod."""

    def __init__(self, briefing: PodWork, hands: PodOperationsProtocol, *, clock: Clock, tell: EventSink) -> None:
        self.pod = briefing.known.pod
        self._briefing = briefing
        self._spec = briefing.spec
        self._hands = hands
        self._clock = clock
        self._tell = tell
        self._memory = WorkerState(admitted_at=briefing.known.since)
        self._seen: PodStatus | None = None  #: ``None``: nobody has looked yet
        self._doing: dict[str, tuple[Action, asyncio.Task[None]]] = {}  #: what is being done, by what it is about
        self._done_since: set[str] = set()  #: what was done since the newest look began, which may not show in it
        self._failed: dict[str, tuple[int, float]] = {}  #: what failed, how often in a row, and when to try again
        self._blind = 0  #: looks in a row that failed
        self._something = asyncio.Event()
        self._complaint = ""
        self._course = PodActions()
        self._told: Told | None = None  #: to end, as it was said last
        if briefing.known.ending is not None:
            self.end(briefing.known.ending)

    @property
    def ending(self) -> bool:
        """Whether the pod was told to end; one whose time is over was not."""
        return self._told is not None

    @property
    def run(self) -> PodRunStatus:
        """How the pod is."""
        found = generate_pod_run(
            self._spec,
            self._seen or PodStatus(),
            self._memory,
            course=self._course,
            warnings=self._briefing.warnings,
            placed=self._hands.places(),
        )
        return replace(found, reason="NotAllowed", message=self._briefing.barred) if self._briefing.barred else found

    def end(self, told: Told) -> None:
        """The pod is to end; the same said twice is said once."""
        if told == self._told:
            return
        self._told = told
        seconds = self._spec.grace if told.grace is None else told.grace
        because = "" if self._memory.ending is None else self._memory.ending.reason
        self._memory = replace(self._memory, ending=PodTermination(since=told.since, grace=seconds, reason=because))
        for act, task in self._doing.values():
            if isinstance(
                act, StartContainer | CreateSandbox | StopContainer
            ):  # who is being stopped may have less time now
                task.cancel()
        self.nudge()

    def nudge(self) -> None:
        """Something may have changed."""
        self._something.set()

    async def work(self) -> PodRunStatus:
        """Live until nothing of the pod runs any more, and nothing will; how it was then."""
        try:
            while not await self._turn():
                await self._pause()
            return self.run
        finally:
            self._hands.watch(PodStatus(), self._heard)
            tasks = [task for _, task in self._doing.values()]
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _turn(self) -> bool:
        """Look, and have begun what is next; whether the pod's life has ended."""
        self._something.clear()
        self._done_since.clear()
        try:
            seen = await self._hands.look()
        except AlignError as error:
            self._complain(f"the runtime cannot be asked: {error}")
            self._course = replace(self._course, wake=self._clock.now() + retry_delay(self._blind), actions=())
            self._blind += 1
            return False
        self._complain("")
        self._blind = 0
        self._notice(seen)
        self._ask(seen)
        self._hands.watch(seen, self._heard)
        if self._course.ended and not self._doing and not self._done_since:
            return True
        matters = {*map(_about, self._course.actions), *self._doing}
        self._failed = {what: one for what, one in self._failed.items() if what in matters}
        for act in self._course.actions:
            if self._may(act):
                self._begin(act)
        return False

    def _ask(self, seen: PodStatus) -> None:
        """Ask what is next; a pod whose time is over has its whole grace from when that was noticed."""
        now = self._clock.now()
        self._course = compute_pod_actions(self._spec, seen, self._memory, now=now)
        if self._course.reason and self._memory.ending is None:
            over = PodTermination(since=now, grace=self._spec.grace, reason=self._course.reason)
            self._memory = replace(self._memory, ending=over)
            self._course = compute_pod_actions(self._spec, seen, self._memory, now=now)

    async def _pause(self) -> None:
        """Wait until something has changed, or it is time."""
        now, watch = self._clock.now(), self._clock.watch()
        later = [until - watch for _, until in self._failed.values() if until > watch]
        if self._course.wake is not None:
            # What is due is looked at in a moment. However far off it is, the clock may be set by then.
            later.append(min(max(self._course.wake - now, 0.05), MAX_DELAY))
        patience = min(later, default=None)
        try:
            async with asyncio.timeout(patience):
                await self._something.wait()
        except TimeoutError:
            return

    def _may(self, act: Action) -> bool:
        """Whether something may be begun now."""
        what = _about(act)
        under_way = self._doing.keys() | self._done_since
        if what in under_way:
            return False
        if isinstance(act, StartContainer | CreateSandbox) and self._briefing.barred:
            return False
        if isinstance(act, StartContainer) and self._is_setting_up():
            return False
        if isinstance(act, RemoveFromRuntime) and _starting(act, self._seen or PodStatus()) & under_way:
            return False
        _, until = self._failed.get(what, (0, -math.inf))
        return until <= self._clock.watch()

    def _is_setting_up(self) -> bool:
        """Whether one is being started that others come after: it may run already, but its hook has to end first."""
        first = {one.name for one in self._spec.containers if one.kind is not ContainerKind.APP}
        return any(isinstance(act, StartContainer) and act.container in first for act, _ in self._doing.values())

    def _begin(self, act: Action) -> None:
        what = _about(act)
        task = asyncio.create_task(self._do(act), name=f"{type(act).__name__} {self.pod.uid}")
        self._doing[what] = act, task

        def done(_: asyncio.Task[None]) -> None:
            del self._doing[what]
            self._done_since.add(what)
            self.nudge()

        task.add_done_callback(done)

    async def _do(self, act: Action) -> None:
        """Do one thing; where it fails that is remembered."""
        what = _about(act)
        try:
            await self._done(act)
        except PodStartError as error:
            self._rest(act, error)
        except Exception as error:  # noqa: BLE001 - whatever it is, the pod goes on living
            times = self._failed.get(what, (0, 0.0))[0] + 1
            self._failed[what] = times, self._clock.watch() + retry_delay(times - 1)
            self._trouble(str(error) if isinstance(error, AlignError) else describe_bug(error))
        else:
            self._failed.pop(what, None)
            self._recovered(act)

    async def _done(self, act: Action) -> None:
        match act:
            case CreateSandbox():
                await self._hands.make_sandbox(act)
            case StartContainer():
                await self._hands.start(act)
            case StopContainer():
                await self._hands.stop(act)
            case StopSandbox(id_):
                await self._hands.stop_sandbox(id_)
            case RemoveFromRuntime():
                await self._hands.discard(act)

    def _rest(self, act: Action, error: PodStartError) -> None:
        """Something could not be started: it is tried again after a while."""
        before = self._memory.backoffs.get(act.container) if isinstance(act, StartContainer) else self._memory.sandbox
        rest = Backoff.after(before, reason=error.reason, message=str(error), now=self._clock.now())
        if isinstance(act, StartContainer):
            self._memory = replace(self._memory, backoffs={**self._memory.backoffs, act.container: rest})
            self._trouble(f"container {act.container}: {error.reason}: {error}")
        else:
            self._memory = replace(self._memory, sandbox=rest)
            self._trouble(f"{error.reason}: {error}")

    def _recovered(self, act: Action) -> None:
        """Something could be started."""
        if isinstance(act, CreateSandbox):
            self._memory = replace(self._memory, sandbox=None)
        elif isinstance(act, StartContainer) and act.container in self._memory.backoffs:
            rests = {name: rest for name, rest in self._memory.backoffs.items() if name != act.container}
            self._memory = replace(self._memory, backoffs=rests)

    def _heard(self, id_: str, health: ProbeStatus) -> None:
        """What probes say of a container."""
        self._memory = replace(self._memory, health={**self._memory.health, id_: health})
        self.nudge()

    def _notice(self, seen: PodStatus) -> None:
        """Tell what has become of containers since the last look; nothing the first time, when all is news."""
        before = {} if self._seen is None else {one.id: one for one in self._seen.containers}
        for one in seen.containers if self._seen is not None else ():
            earlier = before.get(one.id)
            if one.state is ContainerState.RUNNING and (earlier is None or earlier.state is not ContainerState.RUNNING):
                self._happened(What.STARTED, f"container {one.name}")
            elif one.state is ContainerState.EXITED and (earlier is None or earlier.state is not ContainerState.EXITED):
                self._happened(What.ENDED, _ended(one))
        self._seen = seen
        ids = {one.id for one in seen.containers}
        self._memory = replace(
            self._memory, health={id_: one for id_, one in self._memory.health.items() if id_ in ids}
        )

    def _complain(self, why: str) -> None:
        """Say once why the pod cannot be looked after."""
        if why and why != self._complaint:
            self._trouble(why)
        self._complaint = why

    def _trouble(self, detail: str) -> None:
        self._happened(What.TROUBLE, detail)

    def _happened(self, kind: What, detail: str) -> None:
        known = self._briefing.known
        self._tell(AgentEvent(kind=kind, time=self._clock.now(), pod=self.pod, source=known.source, detail=detail))


def _about(act: Action) -> str:
    """What an act is about: the same thing is done once at a time, whatever else is said of it."""
    match act:
        case StartContainer():
            return f"start {act.container}"
        case CreateSandbox():
            return "sandbox"
        case StopContainer() | StopSandbox() | RemoveFromRuntime():
            return f"{type(act).__name__} {act.id}"


def _starting(act: RemoveFromRuntime, seen: PodStatus) -> set[str]:
    """What would be under way if what is to be removed were just being started."""
    inside = [one for one in seen.containers if act.id in {one.id, one.sandbox}]
    return {_about(StartContainer(one.name, one.sandbox, one.attempt)) for one in inside}


def _ended(one: CriContainer) -> str:
    because = f" ({one.reason})" if one.reason else ""
    return f"container {one.name} with exit code {one.exit_code}{because}"
