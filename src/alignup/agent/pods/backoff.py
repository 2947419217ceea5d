"""Back-off delays of containers and sandboxes, and all other intervals of the pod runner.

The kubelet restarts a container at once the first time, then after 10 s, 20 s and so on up to 5 min, and resets the
delay when the container has run for 10 min. It counts in memory. This module derives the count from the container
statuses, so that it survives a restart of the agent: the pause before the last start is the last delay, and the next
delay is twice as long.
"""

from dataclasses import dataclass

from alignup.enforce.cri.types import CriContainer

_MAX_STEPS = 6  #: failures in a row that reach the maximum delay


@dataclass(frozen=True, slots=True, kw_only=True)
class PodIntervals:
    """Seconds; the defaults of back-off, grace periods and maintenance are the kubelet's."""

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
        """Return the delay before the next attempt of an operation that failed *failures* times before the last."""
        return min(self.initial_retry * 2.0 ** min(failures, 16), self.max_retry)

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


def describe_bug(error: Exception) -> str:
    return f"internal error (a bug in alignup): {type(error).__name__}: {error}"
