"""Admission without device plugins: each preferred allocation is the first devices available."""

from alignup.align.decision import Decision
from alignup.align.devices import PreferenceRequest
from alignup.align.host import Host
from alignup.align.workload import Pod


def admit(host: Host, pod: Pod) -> Decision:
    """Decide on *pod*, and apply the decision if it is admitted."""
    answers: dict[PreferenceRequest, tuple[str, ...]] = {}
    while (decision := host.admit(pod, answers)).preference_requests:
        answers.update((request, first_devices(request)) for request in decision.preference_requests)
    return decision


def first_devices(request: PreferenceRequest) -> tuple[str, ...]:
    """The devices that must be included, then the first available ones."""
    rest = [id_ for id_ in request.available if id_ not in request.must_include]
    return (*request.must_include, *rest)[: request.size]
