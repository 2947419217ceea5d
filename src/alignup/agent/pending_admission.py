"""A pod whose devices are being prepared.

Device plugins may be slow, so they are called outside the queue: first for their preferred devices, then to allocate
them. Meanwhile the pod holds its resources, but nothing is written: a crash leaves no trace, and if a plugin fails, the
resources are released.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from alignup.agent.devices import device_state
from alignup.agent.devices.device_state import RequestedDevices
from alignup.align.decision import Decision, Outcome, Rejection, Shortfall
from alignup.align.devices.provider import DeviceProvider, PreferenceAnswers, PreferenceRequest
from alignup.align.errors import ProviderError
from alignup.align.fit import InsufficientResource
from alignup.align.host import Host
from alignup.align.workload import Pod

WAITS_ITS_TURN = "WaitsItsTurn"  #: the reason of a pod that fits, but may not overtake another waiting pod again
PREPARING_DEVICES = "DevicesArePrepared"  #: the reason of a pod that fits and waits for its device plugins
RELEASED_WHILE_PENDING = "Released"
NOT_RETRIED = "NotRetriedYet"  #: the reason of a pod that was waiting before a restart, and would fit now


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class PendingAdmission:
    """A decision about a pod, and what device plugins must do before it is final."""

    pod: Pod
    source: str
    decision: Decision
    preference_requests: tuple[PreferenceRequest, ...] = ()  #: to send first; the decision assumes no preferences
    device_requests: tuple[RequestedDevices, ...] = ()  #: to allocate then
    seconds: float = 0.0  #: spent on the decision
    ticket: object = None  #: the same object while the pod holds its resources


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceRules:
    """How the agent decides where device plugins come and go."""

    plugins: frozenset[str]  #: resources that device plugins serve or have served
    rejects_unknown: bool  #: whether a pod is rejected that requests devices which no plugin has registered


def decide(  # noqa: PLR0913
    host: Host, pod: Pod, *, source: str, answers: PreferenceAnswers, rules: DeviceRules, clock: Callable[[], float]
) -> PendingAdmission:
    """Decide on a pod; *clock* measures how long that takes."""
    start = clock()
    decision = host.decide(pod, answers)
    requests = decision.preference_requests
    if requests:
        decision = assume_no_preferences(host, pod, decision, answers)
    if decision.admitted and rules.rejects_unknown:
        missing = tuple(device_state.unknown_resources(host, pod))
        if missing:
            decision = rejected_for_missing_devices(decision, missing)
    requests = tuple(request for request in requests if request.resource in rules.plugins) if decision.admitted else ()
    return PendingAdmission(
        pod=pod, source=source, decision=decision, preference_requests=requests, seconds=clock() - start
    )


class PluginRejectedError(ProviderError):
    def __init__(self, text: str, *, container: str) -> None:
        super().__init__(text)
        self.container = container


def assume_no_preferences(host: Host, pod: Pod, decision: Decision, answers: PreferenceAnswers) -> Decision:
    """Complete a *decision* as if plugins had no preferences beyond *answers*."""
    assumed = dict(answers)
    while decision.outcome is Outcome.ASKING:
        assumed |= dict.fromkeys(decision.preference_requests, ())
        decision = host.decide(pod, assumed)
    return decision


def rejected_by_plugin(decision: Decision, error: ProviderError) -> Decision:
    container = error.container if isinstance(error, PluginRejectedError) else None
    return _rejected(decision, Rejection(error.reason, error.message, container, DeviceProvider.name))


def rejected_for_missing_devices(decision: Decision, missing: Sequence[InsufficientResource]) -> Decision:
    """Reject a pod that fits except for resources that no plugin has registered."""
    first = missing[0]
    shortfalls = tuple(Shortfall("host", lack.resource, lack.requested, lack.capacity) for lack in missing)
    return _rejected(decision, Rejection(first.reason, first.message, provider="host", shortfalls=shortfalls))


def waiting_for_devices(pending: PendingAdmission) -> Decision:
    resources = ", ".join(sorted({request.resource for request in pending.device_requests}))
    return _rejected(pending.decision, Rejection(PREPARING_DEVICES, f"Its devices are being prepared: {resources}"))


def released_while_pending(decision: Decision) -> Decision:
    message = "Pod was released while its devices were being prepared"
    return _rejected(decision, Rejection(RELEASED_WHILE_PENDING, message))


def waiting_behind(decision: Decision, first: Pod) -> Decision:
    """Reject a pod that fits, because *first* may not be overtaken again."""
    message = f"Pod {first.namespace}/{first.name} is waiting ahead of it and must not be overtaken again"
    return _rejected(decision, Rejection(WAITS_ITS_TURN, message))


def waiting_since_restart(decision: Decision) -> Decision:
    """Reject a pod that would fit now: it holds nothing until it is retried."""
    return _rejected(decision, Rejection(NOT_RETRIED, "Pod was waiting when the agent stopped, and is not retried yet"))


def _rejected(decision: Decision, rejection: Rejection) -> Decision:
    return replace(decision, outcome=Outcome.REJECTED, placements=(), rejection=rejection, preference_requests=())
