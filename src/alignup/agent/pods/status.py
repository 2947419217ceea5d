"""Build the status of a pod in Kubernetes' words, as ``kubectl get pod`` shows it."""

from collections.abc import Mapping
from dataclasses import dataclass

from alignup.agent.pods.actions import has_started, should_restart
from alignup.agent.pods.cpusets import CpusetPlacement
from alignup.agent.pods.pod_state import Backoff, PodActions, PodStatus, ProbeStatus, WorkerState
from alignup.align import bits
from alignup.documents.run_status import ContainerRunStatus, PodRunStatus, optional_timestamp
from alignup.kubernetes.podspec.types import ContainerKind, ContainerSpec, PodSpec
from alignup.run.cri.types import ContainerState, CriContainer

WAITING, RUNNING, TERMINATED = "waiting", "running", "ended"  #: values of ``ContainerRunStatus.state``

_SIGKILL_EXIT_CODE = 137  #: reported when the real exit code is unknown
_UNKNOWN_MESSAGE = "the runtime does not report the state of the container"
_REMOVED_MESSAGE = "the runtime no longer has the container; it completed, because later containers have started"


@dataclass(frozen=True, slots=True, kw_only=True)
class StatusInputs:
    spec: PodSpec
    status: PodStatus
    state: WorkerState
    actions: PodActions
    warnings: tuple[str, ...] = ()
    placements: Mapping[str, CpusetPlacement]  #: by container name

    @property
    def terminating(self) -> bool:
        return self.state.termination is not None or self.actions.terminated


def generate_pod_run(inputs: StatusInputs) -> PodRunStatus:
    actions, sandbox, newest = inputs.actions, inputs.status.ready_sandbox, inputs.status.newest_sandbox
    failure = inputs.state.sandbox_backoff
    if sandbox is not None or inputs.terminating:
        failure = None
    elif failure is not None and newest is not None and newest.created >= failure.until:
        failure = None  # a sandbox was created since
    return PodRunStatus(
        phase=actions.phase,
        reason=actions.reason or (failure.reason if failure is not None else ""),
        message=actions.message or (failure.message if failure is not None else ""),
        ending=inputs.state.termination is not None,
        ips=sandbox.ips if sandbox is not None else (),
        containers=tuple(_container_run(inputs, container) for container in inputs.spec.containers),
        warnings=inputs.warnings,
    )


def _container_run(inputs: StatusInputs, container: ContainerSpec) -> ContainerRunStatus:
    placement = inputs.placements.get(container.name, CpusetPlacement())
    run = ContainerRunStatus(
        name=container.name,
        kind=container.kind,
        state=WAITING,
        image=container.image,
        cpus=bits.show(placement.cpus),
        nodes=bits.show(placement.nodes),
    )
    instances = inputs.status.instances(container.name)
    if not instances:
        # It waits, except for an init container that app containers have followed.
        apps = [one.name for one in inputs.spec.containers if one.kind is ContainerKind.APP]
        if container.kind is ContainerKind.INIT and any(map(inputs.status.instances, apps)):
            return run.replace(state=TERMINATED, ready=True, exit_code=0, reason="Completed", message=_REMOVED_MESSAGE)
        failure = inputs.actions.backing_off.get(run.name) or inputs.state.backoffs.get(run.name)
        return _waiting(inputs, run, failure)
    newest, *older = instances
    last = next((_terminated(run, one) for one in older if one.state is ContainerState.EXITED), None)
    run = run.replace(id=newest.id, restarts=newest.attempt, last=last)
    if newest.state is ContainerState.RUNNING:
        probes = inputs.state.probes.get(newest.id, ProbeStatus())
        ready = has_started(container, newest, inputs.state) and (container.readiness is None or probes.ready)
        return run.replace(state=RUNNING, ready=ready, pid=newest.pid, started=optional_timestamp(newest.started))
    if newest.state is ContainerState.CREATED:
        return _waiting(inputs, run, _start_failure(inputs, newest))
    restarts = not inputs.terminating and should_restart(inputs.spec, container, newest)
    failure = _start_failure(inputs, newest) if restarts else None
    if failure is not None:
        return _waiting(inputs, run.replace(last=_terminated(run, newest)), failure)
    terminated = _terminated(run, newest)
    ready = container.kind is ContainerKind.INIT and terminated.exit_code == 0
    return terminated.replace(last=last, ready=ready)


def _waiting(inputs: StatusInputs, run: ContainerRunStatus, failure: Backoff | None) -> ContainerRunStatus:
    if failure is not None:
        return run.replace(state=WAITING, reason=failure.reason, message=failure.message)
    only_apps = all(one.kind is ContainerKind.APP for one in inputs.spec.containers)
    return run.replace(state=WAITING, reason="ContainerCreating" if only_apps else "PodInitializing")


def _start_failure(inputs: StatusInputs, newest: CriContainer) -> Backoff | None:
    """The current back-off, or the last failed start since *newest* was created."""
    failed = inputs.state.backoffs.get(newest.name)
    since = failed if failed is not None and failed.until > newest.created else None
    return inputs.actions.backing_off.get(newest.name, since)


def _terminated(run: ContainerRunStatus, one: CriContainer) -> ContainerRunStatus:
    known = one.state is ContainerState.EXITED
    default = "Completed" if one.exit_code == 0 else "Error"
    return run.replace(
        state=TERMINATED,
        id=one.id,
        restarts=one.attempt,
        started=optional_timestamp(one.started),
        ended=optional_timestamp(one.finished),
        exit_code=one.exit_code if known else _SIGKILL_EXIT_CODE,
        reason=(one.reason or default) if known else "ContainerStatusUnknown",
        message=one.message if known else _UNKNOWN_MESSAGE,
        last=None,
    )
