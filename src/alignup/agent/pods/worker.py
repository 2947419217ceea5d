"""The pod worker: read the status of one pod, compute its next actions, perform them, and repeat.

Slow actions (image pulls, graceful stops) run as tasks, so that a pod released during an image pull terminates at
once. A cancelled worker leaves the pod as it is, and the next worker continues from the status in the runtime.
"""

import asyncio
import math
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace

from alignup.agent.pod_record import PodRecord
from alignup.agent.pods.actions import compute_pod_actions
from alignup.agent.pods.operations import PodOperations
from alignup.agent.pods.pod_state import (
    Action,
    CreateSandbox,
    PodActions,
    PodIntervals,
    PodStartError,
    PodStatus,
    PodTermination,
    ProbeStatus,
    RemoveFromRuntime,
    StartContainer,
    StopContainer,
    StopSandbox,
    WorkerState,
    describe_bug,
)
from alignup.agent.pods.status import StatusInputs, generate_pod_run
from alignup.agent.state import AgentEvent, Clock, EventKind
from alignup.align.errors import AlignError
from alignup.documents.checkpoints import TerminationRequest
from alignup.documents.run_status import PodRunStatus
from alignup.kubernetes.podspec.types import ContainerKind, PodSpec
from alignup.run.cri.types import ContainerState

EventSink = Callable[[AgentEvent], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class PodWork:
    record: PodRecord
    spec: PodSpec
    warnings: tuple[str, ...] = ()  #: fields of the manifest that are not supported
    not_allowed: str = ""  #: why nothing new may start, while running containers continue; empty: the pod is allowed


class PodWorker:
    def __init__(
        self, work: PodWork, operations: PodOperations, *, clock: Clock, emit: EventSink, intervals: PodIntervals
    ) -> None:
        self.pod = work.record.pod
        self._work = work
        self._spec = work.spec
        self._operations = operations
        self._clock = clock
        self._emit = emit
        self._intervals = intervals
        self._state = WorkerState(admitted_at=work.record.since)
        self._status: PodStatus | None = None  #: ``None``: not read yet
        self._tasks: dict[str, tuple[Action, asyncio.Task[None]]] = {}  #: actions in progress, by subject
        self._finished: set[str] = set()  #: subjects finished since the last refresh began, which may not show them
        self._failures: dict[str, tuple[int, float]] = {}  #: subject → failures in a row, and when to retry
        self._refresh_error, self._refresh_failures = "", 0  #: the last error, and how many in a row
        self._changed = asyncio.Event()
        self._actions = PodActions()
        self._request: TerminationRequest | None = None
        if work.record.termination is not None:
            self.terminate(work.record.termination)

    @property
    def termination_requested(self) -> bool:
        """Whether a user requested termination; exceeding the deadline does not count."""
        return self._request is not None

    @property
    def run_status(self) -> PodRunStatus:
        inputs = StatusInputs(
            spec=self._spec,
            status=self._status or PodStatus(),
            state=self._state,
            actions=self._actions,
            warnings=self._work.warnings,
            placements=self._operations.placements(),
        )
        found = generate_pod_run(inputs)
        if self._work.not_allowed:
            return found.replace(reason="NotAllowed", message=self._work.not_allowed)
        return found

    def terminate(self, request: TerminationRequest) -> None:
        """Terminate the pod; repeating the same request has no effect."""
        if request == self._request:
            return
        self._request = request
        grace = self._spec.grace if request.grace is None else request.grace
        reason = "" if self._state.termination is None else self._state.termination.reason
        termination = PodTermination(since=request.since, grace=grace, reason=reason)
        self._state = replace(self._state, termination=termination)
        for action, task in self._tasks.values():
            # A stop in progress may have less time now.
            if isinstance(action, StartContainer | CreateSandbox | StopContainer):
                task.cancel()
        self.wake_up()

    def wake_up(self) -> None:
        self._changed.set()

    async def run(self) -> PodRunStatus:
        """Run until nothing of the pod runs and nothing will; return its final status."""
        try:
            while not await self._sync():
                await self._wait()
            return self.run_status
        finally:
            self._operations.sync_probes(PodStatus(), self._set_probe_status)
            tasks = [task for _, task in self._tasks.values()]
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _sync(self) -> bool:
        """Refresh the status and start the next actions; whether the pod has terminated."""
        self._changed.clear()
        self._finished.clear()
        try:
            status = await self._operations.refresh()
        except AlignError as error:
            if str(error) != self._refresh_error:
                self._emit_trouble(f"cannot read the pod status: {error}")
            wake_at = self._clock.now() + self._intervals.retry_delay(self._refresh_failures)
            self._actions = replace(self._actions, wake_at=wake_at, actions=())
            self._refresh_error, self._refresh_failures = str(error), self._refresh_failures + 1
            return False
        self._refresh_error, self._refresh_failures = "", 0
        self._update_status(status)
        now = self._clock.now()
        self._actions = self._compute_actions(status, now)
        if self._actions.reason and self._state.termination is None:
            # A pod that exceeds its deadline gets its whole grace period from now on.
            termination = PodTermination(since=now, grace=self._spec.grace, reason=self._actions.reason)
            self._state = replace(self._state, termination=termination)
            self._actions = self._compute_actions(status, now)
        self._operations.sync_probes(status, self._set_probe_status)
        if self._actions.terminated and not self._tasks and not self._finished:
            return True
        relevant = {*map(_subject, self._actions.actions), *self._tasks}
        self._failures = {subject: one for subject, one in self._failures.items() if subject in relevant}
        for action in self._actions.actions:
            if self._may_start(action):
                self._start(action)
        return False

    def _compute_actions(self, status: PodStatus, now: float) -> PodActions:
        return compute_pod_actions(self._spec, status, self._state, now=now, intervals=self._intervals)

    async def _wait(self) -> None:
        """Wait for a change, a retry or ``wake_at``."""
        now, monotonic = self._clock.now(), self._clock.monotonic()
        delays = [until - monotonic for _, until in self._failures.values() if until > monotonic]
        if self._actions.wake_at is not None:
            # At least a moment, and not too long, because the clock may be set meanwhile.
            delays.append(min(max(self._actions.wake_at - now, 0.05), self._intervals.max_retry))
        with suppress(TimeoutError):
            async with asyncio.timeout(min(delays, default=None)):
                await self._changed.wait()

    def _may_start(self, action: Action) -> bool:
        subject = _subject(action)
        busy = self._tasks.keys() | self._finished
        if subject in busy:
            return False
        if isinstance(action, StartContainer | CreateSandbox) and self._work.not_allowed:
            return False
        if isinstance(action, StartContainer):
            # An init container that is being started may run already, but its postStart hook must finish.
            inits = [one.name for one in self._spec.containers if one.kind is not ContainerKind.APP]
            if any(_start_subject(name) in self._tasks for name in inits):
                return False
        if isinstance(action, RemoveFromRuntime) and self._status is not None:
            removed = [one.name for one in self._status.containers if action.id in {one.id, one.sandbox}]
            if any(_start_subject(name) in busy for name in removed):
                return False
        _, until = self._failures.get(subject, (0, -math.inf))
        return until <= self._clock.monotonic()

    def _start(self, action: Action) -> None:
        subject = _subject(action)
        task = asyncio.create_task(self._attempt(action), name=f"{type(action).__name__} {self.pod.uid}")
        self._tasks[subject] = action, task

        def done(_: asyncio.Task[None]) -> None:
            del self._tasks[subject]
            self._finished.add(subject)
            self.wake_up()

        task.add_done_callback(done)

    async def _attempt(self, action: Action) -> None:
        subject = _subject(action)
        try:
            match action:
                case CreateSandbox():
                    await self._operations.create_sandbox(action)
                    self._state = replace(self._state, sandbox_backoff=None)
                case StartContainer():
                    await self._operations.start(action)
                    backoffs = {name: one for name, one in self._state.backoffs.items() if name != action.container}
                    self._state = replace(self._state, backoffs=backoffs)
                case StopContainer():
                    await self._operations.stop(action)
                case StopSandbox(id_):
                    await self._operations.stop_sandbox(id_)
                case RemoveFromRuntime():
                    await self._operations.remove(action)
        except PodStartError as error:
            self._back_off(action, error)
        except Exception as error:  # noqa: BLE001 - a bug must not stop the worker
            failures = self._failures.get(subject, (0, 0.0))[0] + 1
            self._failures[subject] = failures, self._clock.monotonic() + self._intervals.retry_delay(failures - 1)
            self._emit_trouble(str(error) if isinstance(error, AlignError) else describe_bug(error))
        else:
            self._failures.pop(subject, None)

    def _back_off(self, action: Action, error: PodStartError) -> None:
        state = self._state
        previous = state.backoffs.get(action.container) if isinstance(action, StartContainer) else state.sandbox_backoff
        now, message = self._clock.now(), str(error)
        backoff = self._intervals.back_off(previous, reason=error.reason, message=message, now=now)
        if isinstance(action, StartContainer):
            self._state = replace(state, backoffs={**state.backoffs, action.container: backoff})
            self._emit_trouble(f"container {action.container}: {error.reason}: {error}")
        else:
            self._state = replace(state, sandbox_backoff=backoff)
            self._emit_trouble(f"{error.reason}: {error}")

    def _set_probe_status(self, id_: str, status: ProbeStatus) -> None:
        self._state = replace(self._state, probes={**self._state.probes, id_: status})
        self.wake_up()

    def _update_status(self, status: PodStatus) -> None:
        """Store the status and emit events for containers that changed, except the first time."""
        before = {} if self._status is None else {one.id: one.state for one in self._status.containers}
        for one in status.containers if self._status is not None else ():
            if one.state is before.get(one.id):
                continue
            if one.state is ContainerState.RUNNING:
                self._emit_event(EventKind.STARTED, f"container {one.name}")
            elif one.state is ContainerState.EXITED:
                reason = f" ({one.reason})" if one.reason else ""
                self._emit_event(EventKind.ENDED, f"container {one.name} with exit code {one.exit_code}{reason}")
        self._status = status
        ids = {one.id for one in status.containers}
        probes = {id_: one for id_, one in self._state.probes.items() if id_ in ids}
        self._state = replace(self._state, probes=probes)

    def _emit_trouble(self, detail: str) -> None:
        self._emit_event(EventKind.TROUBLE, detail)

    def _emit_event(self, kind: EventKind, detail: str) -> None:
        source = self._work.record.source
        self._emit(AgentEvent(kind=kind, time=self._clock.now(), pod=self.pod, source=source, detail=detail))


def _subject(action: Action) -> str:
    """What an action is about; only one action per subject runs at a time."""
    match action:
        case StartContainer():
            return _start_subject(action.container)
        case CreateSandbox():
            return "sandbox"
        case StopContainer() | StopSandbox() | RemoveFromRuntime():
            return f"{type(action).__name__} {action.id}"


def _start_subject(container: str) -> str:
    return f"start {container}"
