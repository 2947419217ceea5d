"""Events whose handling has failed: they are handled again with back-off, until a newer one is about the same."""

from dataclasses import dataclass

from alignup.placement.scheduling import events
from alignup.placement.scheduling.events import Event

FIRST_RETRY, LONGEST_RETRY = 1.0, 300.0  #: seconds; each failure in a row doubles them
MAX_FAILED = 4096  #: events; of more, the oldest are forgotten

#: What events are about: a newer one of the same group about the same pod, node, request or gang replaces an earlier
#: one. Of other events, such as questions, none is repeated.
_GROUPS: dict[type[Event], tuple[str, str]] = {
    events.PodSeen: ("pod", "facts.uid"),
    events.PodLeft: ("pod", "uid"),
    events.PodBound: ("pod", "uid"),
    events.PodGone: ("pod", "uid"),
    events.PodObserved: ("observed", "pod.uid"),
    events.PodRejected: ("observed", "uid"),
    events.PodPreempted: ("observed", "pod.uid"),
    events.NodeChanged: ("node", "node"),
    events.HostLost: ("host", "node"),
    events.HostsChanged: ("hosts", "hosts"),
    events.GroupChanged: ("gang", "key"),
    events.ClaimsChanged: ("claims", "namespace"),
    events.ReleaseWritten: ("release", "uid"),
    events.ReleaseFailed: ("release", "uid"),
    events.BindingWritten: ("binding", "request"),
    events.BindingFailed: ("binding", "request"),
    events.ClaimsRead: ("binding", "request"),
    events.SteeringWritten: ("written", "node"),
    events.SteeringFailed: ("written", "node"),
    events.SteeringObserved: ("steering", "node"),
    events.StepFailed: ("step", "uid"),
    events.LargePodDecided: ("large pod", "uid"),
}


def back_off(failures: int) -> float:
    """Return the seconds after which something is tried again that has failed so many times in a row."""
    return min(FIRST_RETRY * (1 << min(failures - 1, 16)), LONGEST_RETRY)


@dataclass(frozen=True, slots=True)
class _Failure:
    event: Event
    count: int
    at: float  #: when it is handled again


class FailedEvents:
    def __init__(self) -> None:
        self._failures: dict[tuple[str, object], _Failure] = {}

    def add(self, event: Event, *, now: float) -> float:
        """Let an event be handled again; return the seconds until then, or 0 if it is not."""
        key = _key(event)
        if key is None:
            return 0.0
        earlier_failure = self._failures.pop(key, None)
        count = earlier_failure.count + 1 if earlier_failure else 1
        self._failures[key] = _Failure(event, count, now + back_off(count))
        while len(self._failures) > MAX_FAILED:
            del self._failures[next(iter(self._failures))]
        return back_off(count)

    def handled(self, event: Event) -> None:
        """Forget earlier events about the same."""
        if self._failures and (key := _key(event)) is not None:
            self._failures.pop(key, None)

    def due(self, now: float) -> list[Event]:
        return [failure.event for failure in self._failures.values() if failure.at <= now]


def _key(event: Event) -> tuple[str, object] | None:
    if type(event) not in _GROUPS:
        return None
    group, path = _GROUPS[type(event)]
    value: object = event
    for name in path.split("."):
        value = getattr(value, name)
    return group, value
