"""How long to wait before something that failed is tried again.

A container that keeps ending is started again at once the first time, then after 10 s, 20 s and so on up to 5 min,
until it has run for 10 min. The kubelet counts that in memory; here it is read off what the runtime shows, so that it
survives the agent: the pause before the newest start says how long the last wait was, and the next is the double.
"""

from alignup.enforce.cri.types import CriContainer

INITIAL_DELAY = 10.0  #: seconds
MAX_DELAY = 300.0
RESET_AFTER = 600.0  #: one that has run for more seconds than these is as good as new

_STEPS = 6  #: failures in a row after which the wait is the longest
_PULLS = frozenset({"ErrImagePull", "ImagePullBackOff"})  #: somebody else's server is asked each time


def delay(failures: int) -> float:
    """Seconds to wait after so many failures in a row."""
    return min(INITIAL_DELAY * 2 ** (min(failures, _STEPS) - 1), MAX_DELAY) if failures > 0 else 0.0


def failure_delay(reason: str, failures: int) -> float:
    """Seconds to wait after a container could not be started: longer and longer only where an image was asked for."""
    return delay(failures) if reason in _PULLS else INITIAL_DELAY


def crash_count(ended: CriContainer, before: CriContainer | None) -> int:
    """How many times in a row a container has been started in vain; 0: it may start again at once.

    *before* is the instance that ended before this one. Where it is not known any more, all attempts count.
    """
    if _was_well(ended):
        return 0
    if before is None:
        return ended.attempt
    waited = 0 if _was_well(before) else _steps_within(ended.created - finished_at(before))
    return min(waited + 1, ended.attempt)


def restart_at(ended: CriContainer, before: CriContainer | None) -> float:
    """From when on a container that has ended may be started again."""
    return finished_at(ended) + delay(crash_count(ended, before))


def finished_at(container: CriContainer) -> float:
    """When a container ended, as far as the runtime tells."""
    return max(container.finished, container.started, container.created)


def _was_well(container: CriContainer) -> bool:
    return container.started > 0 and finished_at(container) - container.started > RESET_AFTER


def _steps_within(seconds: float) -> int:
    """The most failures in a row after which the wait is not longer than that."""
    return max((step for step in range(_STEPS + 1) if delay(step) <= seconds), default=0)
