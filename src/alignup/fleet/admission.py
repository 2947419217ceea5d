"""One admission where nobody is there to be asked: device plugins that want to advise take what comes first."""

from alignup.align.decision import Decision
from alignup.align.devices import PreferenceRequest
from alignup.align.host import Host
from alignup.align.workload import Pod


def admit(host: Host, pod: Pod) -> Decision:
    """Decide, answering for device plugins, and apply when admitted."""
    answers: dict[PreferenceRequest, tuple[str, ...]] = {}
    while (decision := host.admit(pod, answers)).preference_requests:
        answers.update((ask, first_devices(ask)) for ask in decision.preference_requests)
    return decision


def first_devices(ask: PreferenceRequest) -> tuple[str, ...]:
    """The devices that must be among them, then the first ones that may."""
    rest = [id_ for id_ in ask.available if id_ not in ask.must_include]
    return (*ask.must_include, *rest)[: ask.size]
