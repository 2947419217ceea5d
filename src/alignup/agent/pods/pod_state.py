"""Types of the pod worker: the observed status of a pod, the worker's state, its intervals, and its actions."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Self

from alignup.run.cri.types import ContainerState, CriContainer, CriSandbox

_PULL_ERRORS = frozenset({"ErrImagePull", "ImagePullBackOff"})  #: each retry sends a request to a registry
_MAX_STEPS = 6  #: failures in a row that reach the maximum delay
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


@dataclass(frozen=True, slots=True, kw_only=True)
class PodIntervals:
    """Seconds; the defaults of back-off, grace periods and maintenance are the kubelet's.

    The kubelet restarts a container at once the first time, then after 10 s, 20 s and so on up to 5 min, and resets the
    delay when the container has run for 10 min. It counts in memory. Here the count is derived from the container
    statuses, so that it survives a restart of the agent: the pause before the last start is the last delay, and the
    next delay is twice as long.
    """

    initial_delay: float = 10.0
    max_delay: float = 300.0
    reset_after: float = 600.0  #: how long a container must run for its delay to reset
    initial_retry: float = 1.0  #: before a failed operation of the agent is repeated; doubles after each failure
    max_retry: float = 60.0
    poll: float = 1.0  #: between refreshes of the runtime's status
    maintenance: float = 10.0  #: between passes over cpusets and logs
    orphan_delay: float = 5.0  #: before an unknown sandbox is reported as an orphan
    min_grace: float = 2.0  #: every container gets at least this long to stop, even after the grace period is over
    cancel_grace: float = 5.0  #: how long a cancelled call waits for the runtime to finish
    prober_restart: float = 10.0  #: before probes that failed with a bug restart

    def delay(self, failures: int) -> float:
        """Return the back-off after *failures* in a row."""
        return min(self.initial_delay * 2 ** (min(failures, _MAX_STEPS) - 1), self.max_delay) if failures > 0 else 0.0

    def retry_delay(self, failures: int) -> float:
        """Return the delay before an operation is repeated that had failed *failures* times before it failed again."""
        return min(self.initial_retry * 2.0 ** min(failures, 16), self.max_retry)

    def back_off(self, previous: Backoff | None, *, reason: str, message: str, now: float) -> Backoff:
        """Return the back-off after a failed start."""
        failures = 1
        if previous is not None and previous.reason == reason and now < previous.until + self.reset_after:
            failures += previous.failures
        until = now + self.delay(failures if reason in _PULL_ERRORS else 1)
        return Backoff(until=until, reason=reason, message=message, failures=failures)

    def crash_count(self, exited: CriContainer, previous: CriContainer | None) -> int:
        """Return the number of crashes in a row; 0: the container may restart at once.

        *previous* is the instance that exited before this one. Without it, every attempt counts.
        """
        if self._ran_long_enough(exited):
            return 0
        if previous is None:
            return exited.attempt
        pause = 0.0 if self._ran_long_enough(previous) else exited.created - finished_at(previous)
        waited = max((step for step in range(_MAX_STEPS + 1) if self.delay(step) <= pause), default=0)
        return min(waited + 1, exited.attempt)

    def _ran_long_enough(self, container: CriContainer) -> bool:
        return container.started > 0 and finished_at(container) - container.started > self.reset_after


DEFAULT_INTERVALS = PodIntervals()


def finished_at(container: CriContainer) -> float:
    """When a container exited; falls back to when it started if the runtime does not report it."""
    return max(container.finished, container.started, container.created)


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


def describe_bug(error: Exception) -> str:
    return f"internal error (a bug in alignup): {type(error).__name__}: {error}"
