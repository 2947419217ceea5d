"""How a pod is, in Kubernetes' words: what ``kubectl get pod`` would show of it."""

from collections.abc import Mapping
from dataclasses import dataclass, replace

from alignup.agent.pods.actions import has_started, should_restart
from alignup.agent.pods.pod_state import Backoff, PodActions, PodStatus, ProbeStatus, WorkerState
from alignup.align.bits import CpuSet, NodeSet
from alignup.enforce.cri.types import ContainerState, CriContainer
from alignup.kube.podspec.types import ContainerKind, ContainerSpec, PodSpec
from alignup.schema.api import ContainerRunStatus, PodRunStatus

WAITING, RUNNING, TERMINATED = "waiting", "running", "ended"  #: what ``ContainerRunStatus.state`` says

_KILLED = 137  #: the exit code of one of which nobody knows how it ended
_NOT_KNOWN = "the runtime does not know how it is"
_FORGOTTEN = "the runtime has forgotten it; its pod got further, so it ended well"


def generate_pod_run(  # noqa: PLR0913 - all that is known of a pod comes together here
    spec: PodSpec,
    seen: PodStatus,
    memory: WorkerState,
    *,
    course: PodActions,
    warnings: tuple[str, ...],
    placed: Mapping[str, tuple[CpuSet, NodeSet]],
) -> PodRunStatus:
    """How a pod is; *placed* says by name on which CPUs and nodes a container was put."""
    look = _Look(spec, seen, memory, course, placed)
    trouble = _sandbox_trouble(look)
    return PodRunStatus(
        phase=course.phase,
        reason=course.reason or (trouble.reason if trouble is not None else ""),
        message=course.message or (trouble.message if trouble is not None else ""),
        ending=memory.ending is not None,
        ips=seen.ready_sandbox.ips if seen.ready_sandbox is not None else (),
        containers=tuple(_container_run(look, container) for container in spec.containers),
        warnings=warnings,
    )


@dataclass(frozen=True, slots=True)
class _Look:
    """All that is known of a pod."""

    spec: PodSpec
    seen: PodStatus
    memory: WorkerState
    course: PodActions
    placed: Mapping[str, tuple[CpuSet, NodeSet]]

    @property
    def goes_on(self) -> bool:
        return self.memory.ending is None and not self.course.ended


def _sandbox_trouble(look: _Look) -> Backoff | None:
    """Why there is no sandbox; ``None``: there is one, or nothing has failed since there was."""
    rest, newest = look.memory.sandbox, look.seen.newest
    if rest is None or look.seen.ready_sandbox is not None or not look.goes_on:
        return None
    return rest if newest is None or newest.created < rest.until else None


def _container_run(look: _Look, container: ContainerSpec) -> ContainerRunStatus:
    cpus, nodes = look.placed.get(container.name, (0, 0))
    run = ContainerRunStatus(
        name=container.name, kind=container.kind, state=WAITING, image=container.image, cpus=cpus, nodes=nodes
    )
    instances = look.seen.instances(container.name)
    if not instances:
        return _missing(look, container, run)
    newest, *older = instances
    last = next((_ended(run, one) for one in older if one.state is ContainerState.EXITED), None)
    run = replace(run, id=newest.id, restarts=newest.attempt, last=last)
    if newest.state is ContainerState.RUNNING:
        ready = has_started(container, newest, look.memory) and _is_ready(look, container, newest)
        return replace(run, state=RUNNING, ready=ready, pid=newest.pid, started=newest.started or None)
    if newest.state is ContainerState.CREATED:
        return _waiting(look, run, _rest(look, newest))
    rest = _rest(look, newest) if look.goes_on and should_restart(look.spec, container, newest) else None
    if rest is not None:
        return _waiting(look, replace(run, last=_ended(run, newest)), rest)
    ended = _ended(run, newest)
    return replace(ended, last=last, ready=container.kind is ContainerKind.INIT and ended.exit_code == 0)


def _missing(look: _Look, container: ContainerSpec, run: ContainerRunStatus) -> ContainerRunStatus:
    """One that the runtime does not have: it waits, unless its pod could not be where it is without it."""
    apps = [one.name for one in look.spec.containers if one.kind is ContainerKind.APP]
    if container.kind is ContainerKind.INIT and any(map(look.seen.instances, apps)):
        return replace(run, state=TERMINATED, ready=True, exit_code=0, reason="Completed", message=_FORGOTTEN)
    return _waiting(look, run, look.course.backing_off.get(run.name) or look.memory.backoffs.get(run.name))


def _is_ready(look: _Look, container: ContainerSpec, newest: CriContainer) -> bool:
    return container.readiness is None or look.memory.health.get(newest.id, ProbeStatus()).ready


def _waiting(look: _Look, run: ContainerRunStatus, rest: Backoff | None) -> ContainerRunStatus:
    """One that waits: because something failed, or in its turn."""
    if rest is not None:
        return replace(run, state=WAITING, reason=rest.reason, message=rest.message)
    alone = all(one.kind is ContainerKind.APP for one in look.spec.containers)
    return replace(run, state=WAITING, reason="ContainerCreating" if alone else "PodInitializing")


def _rest(look: _Look, newest: CriContainer) -> Backoff | None:
    """Why one is not started again: what lasts, or else what has failed since the newest of it was made."""
    failed = look.memory.backoffs.get(newest.name)
    since = failed if failed is not None and failed.until > newest.created else None
    return look.course.backing_off.get(newest.name, since)


def _ended(run: ContainerRunStatus, one: CriContainer) -> ContainerRunStatus:
    """How an instance of a container ended, or may have."""
    known = one.state is ContainerState.EXITED
    usual = "Completed" if one.exit_code == 0 else "Error"
    return replace(
        run,
        state=TERMINATED,
        id=one.id,
        restarts=one.attempt,
        started=one.started or None,
        ended=one.finished or None,
        exit_code=one.exit_code if known else _KILLED,
        reason=(one.reason or usual) if known else "ContainerStatusUnknown",
        message=one.message if known else _NOT_KNOWN,
        last=None,
    )
