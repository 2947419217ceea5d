"""Short constructors of pod specs and statuses."""

from collections.abc import Iterable

from alignup.agent.pods.pod_state import PodStatus
from alignup.kubernetes.podspec.types import ContainerKind, ContainerSpec, PodSpec, Probe, PullPolicy, RestartPolicy
from alignup.run.cri.types import ContainerState, CriContainer, CriSandbox

NOW = 10_000.0

ALWAYS, ON_FAILURE, NEVER = RestartPolicy.ALWAYS, RestartPolicy.ON_FAILURE, RestartPolicy.NEVER
CREATED, RUNNING, EXITED, UNKNOWN = (
    ContainerState.CREATED,
    ContainerState.RUNNING,
    ContainerState.EXITED,
    ContainerState.UNKNOWN,
)


def container(
    name: str, kind: ContainerKind = ContainerKind.APP, *, probed: bool = False, ready: bool = False
) -> ContainerSpec:
    """A container, *probed* with a startup probe, or with a readiness probe."""
    return ContainerSpec(
        name=name,
        kind=kind,
        image=f"example.org/{name}",
        pull_policy=PullPolicy.IF_NOT_PRESENT,
        startup=Probe(command=("up",)) if probed else None,
        readiness=Probe(command=("ready",)) if ready else None,
    )


def init(name: str) -> ContainerSpec:
    return container(name, ContainerKind.INIT)


def sidecar(name: str, *, probed: bool = False) -> ContainerSpec:
    return container(name, ContainerKind.SIDECAR, probed=probed)


APP = container("app")


def pod(*containers: ContainerSpec, restart: RestartPolicy = ALWAYS, deadline: int | None = None) -> PodSpec:
    return PodSpec(
        name="pod", namespace="default", containers=containers or (APP,), restart=restart, grace=30, deadline=deadline
    )


def sandbox(attempt: int = 0, *, ready: bool = True, created: float = NOW - 5000) -> CriSandbox:
    """The sandbox ``s0``, or that of another attempt."""
    return CriSandbox(
        id=f"s{attempt}",
        uid="uid",
        name="pod",
        namespace="default",
        attempt=attempt,
        ready=ready,
        created=created,
        ips=("10.0.0.7",) if ready else (),
    )


def instance(
    name: str,
    state: ContainerState = RUNNING,
    code: int = 0,
    *,
    attempt: int = 0,
    sandbox: int = 0,
    ran: tuple[float, float] = (NOW - 1000, NOW - 500),
    reason: str = "",
) -> CriContainer:
    """The container ``NAME-ATTEMPT``; *ran* is when it started and, if it has exited, when it finished."""
    began, ended = ran
    return CriContainer(
        id=f"{name}-{attempt}",
        sandbox=f"s{sandbox}",
        name=name,
        attempt=attempt,
        state=state,
        created=began,
        started=0.0 if state is CREATED else began,
        finished=ended if state is EXITED else 0.0,
        exit_code=code,
        reason=reason,
        pid=77 if state is RUNNING else None,
    )


def pod_status(*containers: CriContainer, sandboxes: Iterable[CriSandbox] = (sandbox(),)) -> PodStatus:
    return PodStatus(sandboxes=tuple(sandboxes), containers=containers)
