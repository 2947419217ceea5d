"""The life of a pod in a runtime: what is seen of it, what is remembered, and what can be done (types only)."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Self

from alignup.agent.pods import backoff
from alignup.enforce.cri.types import ContainerState, CriContainer, CriSandbox

LIVE_STATES = frozenset(
    {ContainerState.RUNNING, ContainerState.UNKNOWN}
)  #: containers that have processes, or may have


class PodPhase(StrEnum):
    """How far a pod is, in Kubernetes' words."""

    PENDING = "Pending"  #: not all init containers are done, or no container has started yet
    RUNNING = "Running"
    SUCCEEDED = "Succeeded"  #: every container has ended well, and none is started again
    FAILED = "Failed"  #: every container has ended, one of them badly; or the pod was not allowed to go on


@dataclass(frozen=True, slots=True, kw_only=True)
class PodStatus:
    """All sandboxes and containers of one pod that the runtime has, in full; those that have ended too."""

    sandboxes: tuple[CriSandbox, ...] = ()
    containers: tuple[CriContainer, ...] = ()

    @property
    def newest(self) -> CriSandbox | None:
        """The newest sandbox, ready or not."""
        return max(self.sandboxes, key=lambda one: (one.attempt, one.created), default=None)

    @property
    def ready_sandbox(self) -> CriSandbox | None:
        """The sandbox that containers belong in: the newest, if it is ready."""
        return self.newest if self.newest is not None and self.newest.ready else None

    @property
    def live_containers(self) -> tuple[CriContainer, ...]:
        """The containers that have processes, or may have."""
        return tuple(one for one in self.containers if one.state in LIVE_STATES)

    def instances(self, name: str, sandbox: str = "") -> tuple[CriContainer, ...]:
        """All containers of that name, in that sandbox or in any; the newest first."""
        found = [one for one in self.containers if one.name == name and sandbox in {"", one.sandbox}]
        return tuple(sorted(found, key=lambda one: (one.attempt, one.created), reverse=True))


@dataclass(frozen=True, slots=True, kw_only=True)
class PodTermination:
    """The pod is to end, and not to start anything any more."""

    since: float
    grace: float  #: seconds from then until its containers are killed
    reason: str = ""  #: ``DeadlineExceeded`` and so on; empty: it was asked for


@dataclass(frozen=True, slots=True, kw_only=True)
class Backoff:
    """A container that is not to be started for a while."""

    until: float
    reason: str  #: ``CrashLoopBackOff``, ``ImagePullBackOff``, ``ErrImageNeverPull``, ``CreateContainerError`` …
    message: str
    failures: int = 1  #: in a row

    @classmethod
    def after(cls, before: Self | None, *, reason: str, message: str, now: float) -> Self:
        """The rest after a failure; *before* is the one after the failure before, if there was one."""
        failures = 1
        if before is not None and before.reason == reason and now < before.until + backoff.RESET_AFTER:
            failures += before.failures
        until = now + backoff.failure_delay(reason, failures)
        return cls(until=until, reason=reason, message=message, failures=failures)


@dataclass(frozen=True, slots=True, kw_only=True)
class ProbeStatus:
    """What probes say of a running container; one without probes is well as soon as it runs."""

    started: bool = False
    ready: bool = False
    failure: str = ""  #: why it has to be stopped, and started again if its pod is so; empty: it need not be
    grace: float | None = None  #: seconds to stop in, then; ``None``: the pod's


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerState:
    """What the runtime cannot show."""

    ending: PodTermination | None = None
    #: container → the newest after a failure to start it, over or not; who ends by itself rests without being told
    backoffs: Mapping[str, Backoff] = field(default_factory=dict)
    health: Mapping[str, ProbeStatus] = field(default_factory=dict)  #: container id → as probes say
    sandbox: Backoff | None = None  #: the newest failure to make a sandbox
    admitted_at: float = 0.0  #: when the pod was admitted, in seconds since 1970; 0: not known, and it has no deadline


@dataclass(frozen=True, slots=True)
class CreateSandbox:
    """Make a sandbox."""

    attempt: int
    instead_of: str = ""  #: the id of one that died; told to stop first, it gives back its address and ports


@dataclass(frozen=True, slots=True)
class StopSandbox:
    """Stop a sandbox in which no container runs any more."""

    id: str


@dataclass(frozen=True, slots=True)
class StartContainer:
    """Make a container in a sandbox, and start it."""

    container: str
    sandbox: str
    attempt: int


@dataclass(frozen=True, slots=True)
class StopContainer:
    """Tell a container to stop, and kill it after *grace* seconds."""

    id: str
    container: str
    grace: float
    why: str


@dataclass(frozen=True, slots=True)
class RemoveFromRuntime:
    """Remove a container, or a sandbox with all in it, that has ended and that nobody needs to know of any more."""

    id: str
    sandbox: bool = False


Action = CreateSandbox | StopSandbox | StartContainer | StopContainer | RemoveFromRuntime


@dataclass(frozen=True, slots=True, kw_only=True)
class PodActions:
    """What is to be done now; all of it may be done at the same time."""

    actions: tuple[Action, ...] = ()
    wake: float | None = None  #: when to look again even if nothing has changed; ``None``: not before something has
    phase: PodPhase = PodPhase.PENDING
    ended: bool = False  #: nothing runs, nothing will: what the pod holds can be given back
    backing_off: Mapping[str, Backoff] = field(
        default_factory=dict
    )  #: container → why it is not started now, but would be
    reason: str = ""  #: of a pod that failed as a whole
    message: str = ""
