"""Types of the pod worker: the observed status of a pod, the worker's state, and the actions it can take."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Self

from alignup.agent.pods.backoff import DEFAULT_INTERVALS, PodIntervals
from alignup.enforce.cri.types import ContainerState, CriContainer, CriSandbox

_PULL_ERRORS = frozenset({"ErrImagePull", "ImagePullBackOff"})  #: each retry sends a request to a registry
LIVE_STATES = frozenset({ContainerState.RUNNING, ContainerState.UNKNOWN})  #: a container may have processes


class PodPhase(StrEnum):
    PENDING = "Pending"  #: init containers are not done, or no app container has started yet
    RUNNING = "Running"
    SUCCEEDED = "Succeeded"  #: every container exited with 0 and none restarts
    FAILED = "Failed"  #: every container has terminated, at least one with an error; or the pod exceeded its deadline


class PodStartError(Exception):
    """A sandbox or container cannot be started now; *reason* is Kubernetes' waiting reason."""

    def __init__(self, reason: str, message: str) -> None:
        super().__init__(message)
        self.reason = reason

    @classmethod
    def config(cls, message: str) -> Self:
        """The configuration of a container is invalid, or cannot be applied on this host."""
        return cls("CreateContainerConfigError", message)


@dataclass(frozen=True, slots=True, kw_only=True)
class PodStatus:
    """All sandboxes and containers of one pod in the runtime, including terminated ones."""

    sandboxes: tuple[CriSandbox, ...] = ()
    containers: tuple[CriContainer, ...] = ()

    @property
    def newest_sandbox(self) -> CriSandbox | None:
        return max(self.sandboxes, key=lambda one: (one.attempt, one.created), default=None)

    @property
    def ready_sandbox(self) -> CriSandbox | None:
        """The sandbox that containers belong in: the newest one, if it is ready."""
        newest = self.newest_sandbox
        return newest if newest is not None and newest.ready else None

    @property
    def live_containers(self) -> tuple[CriContainer, ...]:
        return tuple(one for one in self.containers if one.state in LIVE_STATES)

    def instances(self, name: str, sandbox: str = "") -> tuple[CriContainer, ...]:
        """All containers called *name*, in one sandbox or in any, newest first."""
        found = [one for one in self.containers if one.name == name and sandbox in {"", one.sandbox}]
        return tuple(sorted(found, key=lambda one: (one.attempt, one.created), reverse=True))


@dataclass(frozen=True, slots=True, kw_only=True)
class PodTermination:
    """The pod is terminating: nothing new starts."""

    since: float
    grace: float  #: seconds after *since* until its containers are killed
    reason: str = ""  #: such as ``DeadlineExceeded``; empty: requested by a user


@dataclass(frozen=True, slots=True, kw_only=True)
class Backoff:
    """A container or sandbox must not start before *until*."""

    until: float
    reason: str  #: ``CrashLoopBackOff``, ``ImagePullBackOff``, ``ErrImageNeverPull``, ``CreateContainerError``, …
    message: str
    failures: int = 1  #: in a row

    @classmethod
    def after_failure(
        cls,
        previous: Self | None,
        *,
        reason: str,
        message: str,
        now: float,
        intervals: PodIntervals = DEFAULT_INTERVALS,
    ) -> Self:
        failures = 1
        if previous is not None and previous.reason == reason and now < previous.until + intervals.reset_after:
            failures += previous.failures
        delay = intervals.delay(failures if reason in _PULL_ERRORS else 1)
        return cls(until=now + delay, reason=reason, message=message, failures=failures)


@dataclass(frozen=True, slots=True, kw_only=True)
class ProbeStatus:
    """Probe results of a running container; a container without probes is started and ready once it runs."""

    started: bool = False
    ready: bool = False
    failure: str = ""  #: why the container must be stopped; empty: it need not be
    grace: float | None = None  #: seconds to stop in after that failure; ``None``: the pod's grace period


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerState:
    """What a worker remembers because the runtime does not store it."""

    termination: PodTermination | None = None
    #: container → back-off after its last failed start, expired or not; crash back-off is computed from the status
    backoffs: Mapping[str, Backoff] = field(default_factory=dict)
    probes: Mapping[str, ProbeStatus] = field(default_factory=dict)  #: by container id
    sandbox_backoff: Backoff | None = None  #: after the last failure to create a sandbox
    admitted_at: float = 0.0  #: seconds since the epoch; 0: unknown, so ``activeDeadlineSeconds`` does not apply


@dataclass(frozen=True, slots=True)
class CreateSandbox:
    attempt: int
    replaces: str = ""  #: id of a dead sandbox; stopped first, so that it frees its address and ports


@dataclass(frozen=True, slots=True)
class StopSandbox:
    id: str  #: of a sandbox without running containers


@dataclass(frozen=True, slots=True)
class StartContainer:
    container: str
    sandbox: str
    attempt: int


@dataclass(frozen=True, slots=True)
class StopContainer:
    id: str
    container: str
    grace: float  #: seconds until it is killed
    why: str


@dataclass(frozen=True, slots=True)
class RemoveFromRuntime:
    """Remove a container, or a sandbox with its containers, that has terminated and is no longer needed."""

    id: str
    sandbox: bool = False


Action = CreateSandbox | StopSandbox | StartContainer | StopContainer | RemoveFromRuntime


@dataclass(frozen=True, slots=True, kw_only=True)
class PodActions:
    """The next actions for a pod; all of them may run concurrently."""

    actions: tuple[Action, ...] = ()
    wake_at: float | None = None  #: when to compute again even without a change; ``None``: only after a change
    phase: PodPhase = PodPhase.PENDING
    terminated: bool = False  #: nothing runs and nothing will: the pod's resources can be released
    backing_off: Mapping[str, Backoff] = field(default_factory=dict)  #: container → why its start is delayed
    reason: str = ""  #: of a pod that failed as a whole
    message: str = ""
