"""Pods in few words, for tests of their lives: what they are to be, and what a runtime shows of them."""

from collections.abc import Iterable

from alignup.agent.pods.life import Seen
from alignup.enforce.cri.plan import SeenContainer, SeenSandbox, State
from alignup.kube.spec import ContainerSpec, Kind, PodSpec, Probe, PullPolicy, RestartPolicy

NOW = 10_000.0

ALWAYS, ON_FAILURE, NEVER = RestartPolicy.ALWAYS, RestartPolicy.ON_FAILURE, RestartPolicy.NEVER
CREATED, RUNNING, EXITED, UNKNOWN = State.CREATED, State.RUNNING, State.EXITED, State.UNKNOWN


def container(name: str, kind: Kind = Kind.APP, *, probed: bool = False, ready: bool = False) -> ContainerSpec:
    """A container that, *probed*, has started when its probe says so, and with *ready* is so when one says so."""
    return ContainerSpec(
        name=name,
        kind=kind,
        image=f"example.org/{name}",
        pull=PullPolicy.IF_NOT_PRESENT,
        startup=Probe(command=("up",)) if probed else None,
        readiness=Probe(command=("ready",)) if ready else None,
    )


def init(name: str) -> ContainerSpec:
    return container(name, Kind.INIT)


def sidecar(name: str, *, probed: bool = False) -> ContainerSpec:
    return container(name, Kind.SIDECAR, probed=probed)


APP = container("app")


def pod(*containers: ContainerSpec, restart: RestartPolicy = ALWAYS, deadline: int | None = None) -> PodSpec:
    return PodSpec(
        name="pod", namespace="default", containers=containers or (APP,), restart=restart, grace=30, deadline=deadline
    )


def box(attempt: int = 0, *, ready: bool = True, created: float = NOW - 5000) -> SeenSandbox:
    """The sandbox ``s0``, or of another attempt."""
    return SeenSandbox(
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
    state: State = RUNNING,
    code: int = 0,
    *,
    attempt: int = 0,
    sandbox: int = 0,
    ran: tuple[float, float] = (NOW - 1000, NOW - 500),
    reason: str = "",
) -> SeenContainer:
    """The container ``NAME-ATTEMPT``, which began, and if it has ended, ended then."""
    began, ended = ran
    return SeenContainer(
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


def seen(*containers: SeenContainer, boxes: Iterable[SeenSandbox] = (box(),)) -> Seen:
    return Seen(sandboxes=tuple(boxes), containers=containers)
