"""The course of a pod: what is to be done next, given what it is to be and what the runtime shows.

Pure, so every turn a pod can take is tried without any container. Whoever drives it looks at the runtime, asks here,
does what is said, remembers what the runtime does not (:class:`WorkerState`), and looks again: when something has changed,
or at ``PodActions.wake``. Whatever order things happen in, a pod that is to run runs, and one that is to end ends.

Only what the runtime shows counts. So an act is said again until its effect is seen; whoever drives this does not do
the same twice at a time, nor in haste what had no effect, and does not take a pod for ended while something is being
done. Where the kubelet remembers, here everything is read off the containers: who has ended when tells how long to
wait, and after the agent was away all goes on as if it had not been.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace

from alignup.agent.pods import backoff
from alignup.agent.pods.pod_state import (
    LIVE_STATES,
    Action,
    Backoff,
    CreateSandbox,
    PodActions,
    PodPhase,
    PodStatus,
    PodTermination,
    ProbeStatus,
    RemoveFromRuntime,
    StartContainer,
    StopContainer,
    StopSandbox,
    WorkerState,
)
from alignup.enforce.cri.types import ContainerState, CriContainer, CriSandbox
from alignup.kube.podspec.types import ContainerKind, ContainerSpec, PodSpec, RestartPolicy

DEADLINE_EXCEEDED = "DeadlineExceeded"
CRASH_LOOP_BACK_OFF = "CrashLoopBackOff"
MIN_GRACE_SECONDS = 2.0  #: seconds that every container has to stop in, also when the time of its pod is over

_TOO_LONG = "Pod was active on the node longer than the specified deadline"
_LOST = "its sandbox is gone, and nothing of it is started again"


def compute_pod_actions(spec: PodSpec, seen: PodStatus, memory: WorkerState, *, now: float) -> PodActions:
    """What is to be done next."""
    turn = _Turn(spec, seen, memory, now)
    ending = _ending(turn)
    if ending is not None:
        return _end(turn, ending)
    return _renew(turn) if seen.ready_sandbox is None else _go_on(turn, seen.ready_sandbox)


def should_restart(spec: PodSpec, container: ContainerSpec, ended: CriContainer) -> bool:
    """Whether a container that has ended is started again, as long as its pod goes on."""
    good = ended.exit_code == 0
    if container.kind is ContainerKind.SIDECAR:
        return True
    if container.kind is ContainerKind.INIT and good:
        return False
    return spec.restart is RestartPolicy.ALWAYS or (spec.restart is RestartPolicy.ON_FAILURE and not good)


def has_started(container: ContainerSpec, newest: CriContainer, memory: WorkerState) -> bool:
    """Whether a container runs and, where it is probed for that, has come up."""
    up = container.startup is None or memory.health.get(newest.id, ProbeStatus()).started
    return newest.state is ContainerState.RUNNING and up


@dataclass(frozen=True, slots=True)
class _Turn:
    """All that is known at one moment."""

    spec: PodSpec
    seen: PodStatus
    memory: WorkerState
    now: float

    @property
    def apps(self) -> list[ContainerSpec]:
        return [one for one in self.spec.containers if one.kind is ContainerKind.APP]

    @property
    def inits(self) -> list[ContainerSpec]:
        """Those that begin before the apps: init containers and sidecars."""
        return [one for one in self.spec.containers if one.kind is not ContainerKind.APP]

    @property
    def sidecars(self) -> list[str]:
        return [one.name for one in self.spec.containers if one.kind is ContainerKind.SIDECAR]

    @property
    def limit(self) -> float:
        """Until when the pod may run."""
        began, deadline = self.memory.admitted_at, self.spec.deadline
        return began + deadline if began and deadline is not None else math.inf

    def ended(self, container: ContainerSpec) -> CriContainer | None:
        """The newest of a container, if it has ended."""
        newest = next(iter(self.seen.instances(container.name)), None)
        return newest if newest is not None and newest.state is ContainerState.EXITED else None

    def done(self, container: ContainerSpec) -> bool:
        """Whether a container has ended for good."""
        ended = self.ended(container)
        return ended is not None and not should_restart(self.spec, container, ended)

    def good(self, container: ContainerSpec) -> bool:
        """Whether a container has ended well."""
        ended = self.ended(container)
        return ended is not None and ended.exit_code == 0

    def lives(self, container: ContainerSpec) -> bool:
        return any(one.state in LIVE_STATES for one in self.seen.instances(container.name))

    def waits(self, container: ContainerSpec) -> bool:
        """Whether one of it was made, and not started; it may be yet, if who made it was interrupted: it goes first."""
        return any(one.state is ContainerState.CREATED for one in self.seen.instances(container.name))


def _ending(turn: _Turn) -> PodTermination | None:
    """Since when, and why, a pod is to end; ``None``: it goes on."""
    if turn.memory.ending is not None:
        return turn.memory.ending
    since = _over_since(turn)
    if since is not None and since < turn.limit:
        return PodTermination(since=since, grace=turn.spec.grace)
    late = turn.now >= turn.limit
    return PodTermination(since=turn.limit, grace=turn.spec.grace, reason=DEADLINE_EXCEEDED) if late else None


def _over_since(turn: _Turn) -> float | None:
    """Since when there is nothing left for a pod to do; ``None``: there is."""
    if not (all(map(turn.done, turn.apps)) or _init_failed(turn) or _lost(turn)):
        return None
    ran = [one for one in turn.seen.containers if one.state is not ContainerState.CREATED]
    counting = [one for one in ran if one.name not in turn.sidecars] or ran
    if any(one.state in LIVE_STATES for one in counting):
        return turn.now
    return max(map(backoff.finished_at, counting), default=turn.now)


def _init_failed(turn: _Turn) -> bool:
    """Whether an init container has failed, and is not started again."""
    return any(turn.done(one) and not turn.good(one) for one in turn.inits)


def _lost(turn: _Turn) -> bool:
    """Whether the sandbox is gone in which a pod ran that runs only once."""
    ran = any(one.state is not ContainerState.CREATED for one in turn.seen.containers)
    return turn.spec.restart is RestartPolicy.NEVER and turn.seen.ready_sandbox is None and ran


def _end(turn: _Turn, ending: PodTermination) -> PodActions:
    """Bring a pod to its end: containers stop, sidecars after all others and the last first, then the sandbox."""
    live = turn.seen.live_containers
    ready = [one for one in turn.seen.sandboxes if one.ready]
    ended = not live and not ready
    why = _TOO_LONG if ending.reason == DEADLINE_EXCEEDED else "the pod is to end"
    stops = _stops(turn, live, since=ending.since, grace=ending.grace, why=why)
    over = ending.since + ending.grace
    boxes = () if live else tuple(StopSandbox(one.id) for one in ready)
    return PodActions(
        actions=() if ended else (*stops, *boxes, *_discards(turn)),
        wake=over if len(stops) < len(live) and turn.now < over else None,
        phase=_phase_at_end(turn, ending),
        ended=ended,
        reason=ending.reason,
        message=_message_at_end(turn, ending),
    )


def _stops(
    turn: _Turn, live: tuple[CriContainer, ...], *, since: float, grace: float, why: str
) -> tuple[StopContainer, ...]:
    """Those of *live* whose turn it is to stop; when the time is over, it is everybody's."""
    left = min(since + grace - turn.now, grace)  # a clock that is set back makes nobody wait for longer
    due = [one for one in live if one.name not in turn.sidecars]
    if not due and live:
        last = max(turn.sidecars.index(one.name) for one in live)
        due = [one for one in live if one.name == turn.sidecars[last]]
    return tuple(
        StopContainer(one.id, one.name, max(left, MIN_GRACE_SECONDS), why) for one in (due if left > 0 else live)
    )


def _phase_at_end(turn: _Turn, ending: PodTermination) -> PodPhase:
    if ending.reason or _init_failed(turn):
        return PodPhase.FAILED
    if turn.seen.live_containers:
        return _phase(turn)
    return PodPhase.SUCCEEDED if all(map(turn.good, turn.apps)) else PodPhase.FAILED


def _message_at_end(turn: _Turn, ending: PodTermination) -> str:
    if ending.reason == DEADLINE_EXCEEDED:
        return _TOO_LONG
    ran_out = all(map(turn.done, turn.apps)) or _init_failed(turn)
    return _LOST if turn.memory.ending is None and not ran_out else ""


def _renew(turn: _Turn) -> PodActions:
    """Make a sandbox, once nothing is left in those before; one that dies young is not made again in haste."""
    seen, newest = turn.seen, turn.seen.newest
    acts = (*_clearing(turn, None), *_discards(turn))
    until = max(
        turn.memory.sandbox.until if turn.memory.sandbox is not None else 0.0,
        newest.created + backoff.delay(newest.attempt) if newest is not None else 0.0,
    )
    waits = turn.now < until <= turn.now + backoff.MAX_DELAY  # more than that only where the clock was set back
    if not waits and not seen.live_containers and not any(one.ready for one in seen.sandboxes):
        make = CreateSandbox(newest.attempt + 1, newest.id) if newest is not None else CreateSandbox(0)
        acts = (make, *acts)
    wake = min(until if waits else math.inf, turn.limit)
    return PodActions(actions=acts, wake=wake if wake < math.inf else None, phase=_phase(turn))


def _go_on(turn: _Turn, box: CriSandbox) -> PodActions:
    """Bring a pod further in its sandbox."""
    starts = []
    resting = {}
    for container in _wanted(turn, box):
        rest = _rest(turn, container, box)
        if rest is not None:
            resting[container.name] = rest
        elif not turn.waits(container):
            attempt = max((one.attempt + 1 for one in turn.seen.instances(container.name)), default=0)
            starts.append(StartContainer(container.name, box.id, attempt))
    wake = min((*(rest.until for rest in resting.values()), turn.limit))
    return PodActions(
        actions=(*_clearing(turn, box), *_repairs(turn, box), *starts, *_discards(turn)),
        wake=wake if wake < math.inf else None,
        phase=_phase(turn),
        backing_off=resting,
    )


def _clearing(turn: _Turn, box: CriSandbox | None) -> Iterator[Action]:
    """What is not in its place goes: containers in other sandboxes than *box*, and then these."""
    strays = tuple(one for one in turn.seen.live_containers if box is None or one.sandbox != box.id)
    yield from _stops(turn, strays, since=turn.now, grace=turn.spec.grace, why="its sandbox is gone")
    held = {one.sandbox for one in strays}
    yield from (
        StopSandbox(one.id) for one in turn.seen.sandboxes if one.ready and one is not box and one.id not in held
    )


def _repairs(turn: _Turn, box: CriSandbox) -> Iterator[StopContainer]:
    """What runs in its place and has to stop all the same; whether it starts again shows when it has ended."""
    for one in turn.seen.live_containers:
        health = turn.memory.health.get(one.id, ProbeStatus())
        grace = float(turn.spec.grace)
        if one.sandbox != box.id:
            continue
        elif one is not turn.seen.instances(one.name)[0]:
            why = "there is a newer one"
        elif one.state is ContainerState.UNKNOWN:
            why = "the runtime does not know whether it runs"
        elif health.failure:
            why, grace = health.failure, grace if health.grace is None else health.grace
        else:
            continue
        yield StopContainer(one.id, one.name, max(grace, MIN_GRACE_SECONDS), why)


def _wanted(turn: _Turn, box: CriSandbox) -> Iterator[ContainerSpec]:
    """The containers whose turn it is and that do not run; those that have to wait are among them."""
    inits, behind = turn.inits, _behind(turn, box)
    due = [one for one in inits[:behind] if one.kind is ContainerKind.SIDECAR]
    due += inits[behind : behind + 1] or [app for app in turn.apps if not turn.done(app)]
    return (one for one in due if not turn.lives(one))


def _behind(turn: _Turn, box: CriSandbox) -> int:
    """How many init containers a pod has behind it: ended well, or as sidecars started.

    The runtime may have lost some, but whoever comes before one that was begun is behind it.
    """
    if any(turn.seen.instances(app.name, box.id) for app in turn.apps):
        return len(turn.inits)
    begun = [(place, turn.seen.instances(one.name, box.id)) for place, one in enumerate(turn.inits)]
    place, instances = next((one for one in reversed(begun) if one[1]), (0, ()))
    if not instances:
        return 0
    container, newest = turn.inits[place], instances[0]
    if container.kind is ContainerKind.SIDECAR:
        return place + has_started(container, newest, turn.memory)
    return place + (newest.state is ContainerState.EXITED and newest.exit_code == 0)


def _rest(turn: _Turn, container: ContainerSpec, box: CriSandbox) -> Backoff | None:
    """Why a container is not started yet; ``None``: it is."""
    ends = [one for one in turn.seen.instances(container.name) if one.state is ContainerState.EXITED]
    rests = []
    # In a new sandbox, what comes before the apps begins anew.
    if ends and (container.kind is ContainerKind.APP or ends[0].sandbox == box.id):
        before = ends[1] if len(ends) > 1 else None
        crashes = backoff.crash_count(ends[0], before)
        message = f"back-off {backoff.delay(crashes):.0f}s restarting failed container={container.name}"
        until = backoff.restart_at(ends[0], before)
        rests.append(Backoff(until=until, reason=CRASH_LOOP_BACK_OFF, message=message, failures=crashes))
    if container.name in turn.memory.backoffs:
        rests.append(_in_words(turn.memory.backoffs[container.name], container))
    # Nobody rests for longer than that, unless the clock was set back.
    lasting = [one for one in rests if turn.now < one.until <= turn.now + backoff.MAX_DELAY]
    return max(lasting, key=lambda one: one.until, default=None)


def _in_words(rest: Backoff, container: ContainerSpec) -> Backoff:
    """A rest as it is told while it lasts; Kubernetes has two words for an image that could not be pulled."""
    if rest.reason != "ErrImagePull":
        return rest
    message = f'Back-off pulling image "{container.image}": {rest.reason}: {rest.message}'
    return replace(rest, reason="ImagePullBackOff", message=message)


def _phase(turn: _Turn) -> PodPhase:
    """How far a pod is that has not ended."""
    box = turn.seen.ready_sandbox
    set_up = box is None or _behind(turn, box) == len(turn.inits)
    ran = {one.name for one in turn.seen.containers if one.state is not ContainerState.CREATED}
    return PodPhase.RUNNING if set_up and all(app.name in ran for app in turn.apps) else PodPhase.PENDING


def _discards(turn: _Turn) -> Iterator[RemoveFromRuntime]:
    """Who has ended, or never began: of each container the newest is kept, and how it ended the time before."""
    seen = turn.seen
    kept = {one.id for one in seen.live_containers}
    for container in turn.spec.containers:
        instances = [one for one in seen.instances(container.name) if one.state is not ContainerState.CREATED]
        newest, *older = instances or (None,)
        last = next((one for one in older if one is not None and one.state is ContainerState.EXITED), None)
        kept |= {one.id for one in (newest, last) if one is not None}
    needed = {one.sandbox for one in seen.containers if one.id in kept}
    gone = {one.id for one in seen.sandboxes if not one.ready and one is not seen.newest and one.id not in needed}
    yield from (RemoveFromRuntime(one, sandbox=True) for one in sorted(gone))
    yield from (RemoveFromRuntime(one.id) for one in seen.containers if one.id not in kept and one.sandbox not in gone)
