"""Compute the next actions for a pod from its spec and its status in the runtime.

Pure, like the kubelet's ``computePodActions``. The worker reads the status, computes the actions, performs them, keeps
what the runtime does not store (:class:`WorkerState`), and starts over on a change or at ``PodActions.wake_at``.

Only the status counts, so an action is repeated until its effect is visible. The worker must not run the same action
twice at a time, must delay retries of actions without effect, and must not treat a pod as terminated while an action
is in progress. What the kubelet keeps in memory is derived from the containers instead: their exit times give the
back-off, and a restarted agent continues where the last one stopped.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace

from alignup.agent.pods.pod_state import (
    DEFAULT_INTERVALS,
    LIVE_STATES,
    Action,
    Backoff,
    CreateSandbox,
    PodActions,
    PodIntervals,
    PodPhase,
    PodStatus,
    PodTermination,
    ProbeStatus,
    RemoveFromRuntime,
    StartContainer,
    StopContainer,
    StopSandbox,
    WorkerState,
    finished_at,
)
from alignup.kubernetes.podspec.types import ContainerKind, ContainerSpec, PodSpec, RestartPolicy
from alignup.run.cri.types import ContainerState, CriContainer, CriSandbox

DEADLINE_EXCEEDED = "DeadlineExceeded"
CRASH_LOOP_BACK_OFF = "CrashLoopBackOff"

_DEADLINE_MESSAGE = "Pod was active on the node longer than the specified deadline"
_SANDBOX_LOST = "the pod sandbox is gone and restartPolicy is Never"


def compute_pod_actions(
    spec: PodSpec, status: PodStatus, state: WorkerState, *, now: float, intervals: PodIntervals = DEFAULT_INTERVALS
) -> PodActions:
    view = _PodView(spec, status, state, now, intervals)
    termination = _termination(view)
    if termination is not None:
        return _terminate(view, termination)
    sandbox = status.ready_sandbox
    return _recreate_sandbox(view) if sandbox is None else _sync_containers(view, sandbox)


def should_restart(spec: PodSpec, container: ContainerSpec, exited: CriContainer) -> bool:
    """Whether an exited container restarts, as long as its pod is not terminating."""
    succeeded = exited.exit_code == 0
    if container.kind is ContainerKind.SIDECAR:
        return True
    if container.kind is ContainerKind.INIT and succeeded:
        return False
    return spec.restart is RestartPolicy.ALWAYS or (spec.restart is RestartPolicy.ON_FAILURE and not succeeded)


def has_started(container: ContainerSpec, newest: CriContainer, state: WorkerState) -> bool:
    """Whether a container runs and has passed its startup probe, if it has one."""
    passed = container.startup is None or state.probes.get(newest.id, ProbeStatus()).started
    return newest.state is ContainerState.RUNNING and passed


@dataclass(frozen=True, slots=True)
class _PodView:
    spec: PodSpec
    status: PodStatus
    state: WorkerState
    now: float
    intervals: PodIntervals

    @property
    def apps(self) -> list[ContainerSpec]:
        return [one for one in self.spec.containers if one.kind is ContainerKind.APP]

    @property
    def inits(self) -> list[ContainerSpec]:
        """Init containers and sidecars, which start before the apps."""
        return [one for one in self.spec.containers if one.kind is not ContainerKind.APP]

    @property
    def sidecars(self) -> list[str]:
        return [one.name for one in self.spec.containers if one.kind is ContainerKind.SIDECAR]

    @property
    def init_failed(self) -> bool:
        return any(self.is_done(one) and not self.succeeded(one) for one in self.inits)

    @property
    def ran_to_completion(self) -> bool:
        return all(map(self.is_done, self.apps)) or self.init_failed

    @property
    def deadline(self) -> float:
        admitted_at, seconds = self.state.admitted_at, self.spec.deadline
        return admitted_at + seconds if admitted_at and seconds is not None else math.inf

    def exited(self, container: ContainerSpec) -> CriContainer | None:
        """The newest instance of a container, if it has exited."""
        newest = next(iter(self.status.instances(container.name)), None)
        return newest if newest is not None and newest.state is ContainerState.EXITED else None

    def is_done(self, container: ContainerSpec) -> bool:
        exited = self.exited(container)
        return exited is not None and not should_restart(self.spec, container, exited)

    def succeeded(self, container: ContainerSpec) -> bool:
        exited = self.exited(container)
        return exited is not None and exited.exit_code == 0


def _termination(view: _PodView) -> PodTermination | None:
    """Since when and why a pod terminates; ``None``: it does not."""
    if view.state.termination is not None:
        return view.state.termination
    since = _done_since(view)
    if since is not None and since < view.deadline:
        return PodTermination(since=since, grace=view.spec.grace)
    if view.now < view.deadline:
        return None
    return PodTermination(since=view.deadline, grace=view.spec.grace, reason=DEADLINE_EXCEEDED)


def _done_since(view: _PodView) -> float | None:
    """Since when a pod has nothing left to run; ``None``: it has."""
    started = [one for one in view.status.containers if one.state is not ContainerState.CREATED]
    lost_sandbox = bool(started) and view.status.ready_sandbox is None
    if not view.ran_to_completion and not (view.spec.restart is RestartPolicy.NEVER and lost_sandbox):
        return None
    counted = [one for one in started if one.name not in view.sidecars] or started
    if any(one.state in LIVE_STATES for one in counted):
        return view.now
    return max(map(finished_at, counted), default=view.now)


def _terminate(view: _PodView, termination: PodTermination) -> PodActions:
    """Stop the containers, then the sidecars in reverse order, then the sandbox."""
    live = view.status.live_containers
    ready = [one for one in view.status.sandboxes if one.ready]
    terminated = not live and not ready
    if termination.reason or view.init_failed:
        phase = PodPhase.FAILED
    elif live:
        phase = _phase(view)
    else:
        phase = PodPhase.SUCCEEDED if all(map(view.succeeded, view.apps)) else PodPhase.FAILED
    message = _DEADLINE_MESSAGE if termination.reason == DEADLINE_EXCEEDED else ""
    why = message or "the pod is terminating"
    if not message and view.state.termination is None and not view.ran_to_completion:
        message = _SANDBOX_LOST
    stops = _stops(view, live, since=termination.since, grace=termination.grace, why=why)
    grace_ends = termination.since + termination.grace
    sandbox_stops = () if live else tuple(StopSandbox(one.id) for one in ready)
    return PodActions(
        actions=() if terminated else (*stops, *sandbox_stops, *_removals(view)),
        wake_at=grace_ends if len(stops) < len(live) and view.now < grace_ends else None,
        phase=phase,
        terminated=terminated,
        reason=termination.reason,
        message=message,
    )


def _stops(
    view: _PodView, live: tuple[CriContainer, ...], *, since: float, grace: float, why: str
) -> tuple[StopContainer, ...]:
    """Stop those of *live* whose turn it is, or all of them when the grace period is over."""
    left = min(since + grace - view.now, grace)  # never more than *grace*, even if the clock was set back
    due = [one for one in live if one.name not in view.sidecars]
    if not due and live:
        last = max(view.sidecars.index(one.name) for one in live)
        due = [one for one in live if one.name == view.sidecars[last]]
    return tuple(
        StopContainer(one.id, one.name, max(left, view.intervals.min_grace), why) for one in (due if left > 0 else live)
    )


def _recreate_sandbox(view: _PodView) -> PodActions:
    """Create a sandbox once the old ones are empty; back off if sandboxes die quickly."""
    status, newest = view.status, view.status.newest_sandbox
    actions = (*_stop_misplaced(view, None), *_removals(view))
    until = max(
        view.state.sandbox_backoff.until if view.state.sandbox_backoff is not None else 0.0,
        newest.created + view.intervals.delay(newest.attempt) if newest is not None else 0.0,
    )
    waits = view.now < until <= view.now + view.intervals.max_delay  # a longer delay means that the clock was set back
    if not waits and not status.live_containers and not any(one.ready for one in status.sandboxes):
        create = CreateSandbox(newest.attempt + 1, newest.id) if newest is not None else CreateSandbox(0)
        actions = (create, *actions)
    wake_at = min(until if waits else math.inf, view.deadline)
    return PodActions(actions=actions, wake_at=wake_at if wake_at < math.inf else None, phase=_phase(view))


def _sync_containers(view: _PodView, sandbox: CriSandbox) -> PodActions:
    inits, done = view.inits, _inits_done(view, sandbox)
    due = [one for one in inits[:done] if one.kind is ContainerKind.SIDECAR]
    due += inits[done : done + 1] or [app for app in view.apps if not view.is_done(app)]
    starts = []
    backing_off = {}
    for container in due:
        instances = view.status.instances(container.name)
        states = {one.state for one in instances}
        if states & LIVE_STATES:
            continue
        delayed = _backoff(view, container, sandbox)
        if delayed is not None:
            backing_off[container.name] = delayed
        elif ContainerState.CREATED not in states:  # an interrupted start, to be removed first
            attempt = instances[0].attempt + 1 if instances else 0
            starts.append(StartContainer(container.name, sandbox.id, attempt))
    wake_at = min((*(one.until for one in backing_off.values()), view.deadline))
    return PodActions(
        actions=(*_stop_misplaced(view, sandbox), *_stop_failed(view, sandbox), *starts, *_removals(view)),
        wake_at=wake_at if wake_at < math.inf else None,
        phase=_phase(view),
        backing_off=backing_off,
    )


def _stop_misplaced(view: _PodView, sandbox: CriSandbox | None) -> Iterator[Action]:
    """Stop containers outside *sandbox*, then the sandboxes they were in."""
    misplaced = tuple(one for one in view.status.live_containers if sandbox is None or one.sandbox != sandbox.id)
    yield from _stops(view, misplaced, since=view.now, grace=view.spec.grace, why="its sandbox is gone")
    in_use = {one.sandbox for one in misplaced}
    others = [one for one in view.status.sandboxes if one.ready and one is not sandbox]
    yield from (StopSandbox(one.id) for one in others if one.id not in in_use)


def _stop_failed(view: _PodView, sandbox: CriSandbox) -> Iterator[StopContainer]:
    """Stop duplicates, containers in an unknown state and those that fail a probe; some of them restart later."""
    for one in view.status.live_containers:
        probe = view.state.probes.get(one.id, ProbeStatus())
        grace = float(view.spec.grace)
        if one.sandbox != sandbox.id:
            continue
        elif one is not view.status.instances(one.name)[0]:
            why = "a newer instance exists"
        elif one.state is ContainerState.UNKNOWN:
            why = "its state in the runtime is unknown"
        elif probe.failure:
            why, grace = probe.failure, grace if probe.grace is None else probe.grace
        else:
            continue
        yield StopContainer(one.id, one.name, max(grace, view.intervals.min_grace), why)


def _inits_done(view: _PodView, sandbox: CriSandbox) -> int:
    """How many init containers are done: succeeded, or for sidecars started.

    The runtime may have lost some of them: all that precede a started one are done.
    """
    if any(view.status.instances(app.name, sandbox.id) for app in view.apps):
        return len(view.inits)
    started = [(place, view.status.instances(one.name, sandbox.id)) for place, one in enumerate(view.inits)]
    place, instances = next((one for one in reversed(started) if one[1]), (0, ()))
    if not instances:
        return 0
    container, newest = view.inits[place], instances[0]
    if container.kind is ContainerKind.SIDECAR:
        return place + has_started(container, newest, view.state)
    return place + (newest.state is ContainerState.EXITED and newest.exit_code == 0)


def _backoff(view: _PodView, container: ContainerSpec, sandbox: CriSandbox) -> Backoff | None:
    """Why a container does not start yet; ``None``: it may start now."""
    exits = [one for one in view.status.instances(container.name) if one.state is ContainerState.EXITED]
    found = []
    # Init containers and sidecars start afresh in a new sandbox.
    if exits and (container.kind is ContainerKind.APP or exits[0].sandbox == sandbox.id):
        previous = exits[1] if len(exits) > 1 else None
        crashes = view.intervals.crash_count(exits[0], previous)
        delay = view.intervals.delay(crashes)
        message = f"back-off {delay:.0f}s restarting failed container={container.name}"
        until = finished_at(exits[0]) + delay
        found.append(Backoff(until=until, reason=CRASH_LOOP_BACK_OFF, message=message, failures=crashes))
    failure = view.state.backoffs.get(container.name)
    if failure is not None and failure.reason == "ErrImagePull":
        message = f'Back-off pulling image "{container.image}": {failure.reason}: {failure.message}'
        failure = replace(failure, reason="ImagePullBackOff", message=message)
    if failure is not None:
        found.append(failure)
    # A longer delay than the maximum means that the clock was set back.
    lasting = [one for one in found if view.now < one.until <= view.now + view.intervals.max_delay]
    return max(lasting, key=lambda one: one.until, default=None)


def _phase(view: _PodView) -> PodPhase:
    sandbox = view.status.ready_sandbox
    initialized = sandbox is None or _inits_done(view, sandbox) == len(view.inits)
    started = {one.name for one in view.status.containers if one.state is not ContainerState.CREATED}
    return PodPhase.RUNNING if initialized and all(app.name in started for app in view.apps) else PodPhase.PENDING


def _removals(view: _PodView) -> Iterator[RemoveFromRuntime]:
    """Remove terminated and never started containers; keep the newest and the last exited one of each name."""
    status = view.status
    kept = {one.id for one in status.live_containers}
    for container in view.spec.containers:
        started = [one for one in status.instances(container.name) if one.state is not ContainerState.CREATED]
        exited = [one for one in started[1:] if one.state is ContainerState.EXITED]
        kept |= {one.id for one in (*started[:1], *exited[:1])}
    needed = {one.sandbox for one in status.containers if one.id in kept}
    gone = {
        one.id
        for one in status.sandboxes
        if not one.ready and one is not status.newest_sandbox and one.id not in needed
    }
    yield from (RemoveFromRuntime(one, sandbox=True) for one in sorted(gone))
    yield from (
        RemoveFromRuntime(one.id) for one in status.containers if one.id not in kept and one.sandbox not in gone
    )
