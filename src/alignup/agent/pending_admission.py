"""A pod on its way in: it has a place that nobody else can take, while device plugins are asked about its devices.

A plugin may take its time, so it is asked outside the queue, in two steps: which devices it prefers, where it wants to
be asked that, and then to prepare them. Until the last has answered nothing is written down. So a crash meanwhile
leaves no trace, and where a plugin says no, the pod gives its place back and all is as before.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from alignup.agent.devices.device_state import RequestedDevices
from alignup.align.decision import Decision, Outcome, Rejection, Shortfall
from alignup.align.devices import DeviceProvider, PreferenceAnswers, PreferenceRequest
from alignup.align.errors import ProviderError
from alignup.align.fit import InsufficientResource as Missing
from alignup.align.host import Host
from alignup.align.workload import Pod
from alignup.schema.api import AdmissionStatus, PodView

WAITS_ITS_TURN = (
    "WaitsItsTurn"  #: the reason of a pod that would fit, but has one in front of it that was overtaken too often
)
PREPARING_DEVICES = "DevicesArePrepared"  #: the reason of a pod that would fit, and waits for its device plugins
RELEASED_WHILE_PENDING = "Released"  #: the reason of a pod that was released on its way in

#: Container → resource → what the plugin gave with the devices, as ``plugins.allocate_response`` writes it.
PodGrants = Mapping[str, Mapping[str, Mapping[str, Any]]]


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class PendingAdmission:
    """A pod that has a place."""

    pod: Pod
    source: str
    decision: Decision  #: by which it has its place
    asks: tuple[
        PreferenceRequest, ...
    ]  #: what plugins are to be asked first; the decision takes it that they have no advice
    device_requests: tuple[RequestedDevices, ...]  #: what they are to prepare then
    seconds: float  #: what deciding took
    ticket: object = field(default_factory=object)  #: the same as long as it has a place


class PluginRejectedError(ProviderError):
    """A plugin cannot serve a container."""

    def __init__(self, text: str, *, container: str) -> None:
        super().__init__(text)
        self.container = container


def decide_without_preferences(
    host: Host, pod: Pod, answers: PreferenceAnswers
) -> tuple[Decision, tuple[PreferenceRequest, ...]]:
    """What would become of *pod* if plugins had no advice beside *answers*, and what to ask them first."""
    decision = host.decide(pod, answers)
    first = decision.preference_requests
    taken = dict(answers)
    while decision.outcome is Outcome.ASKING:
        taken |= dict.fromkeys(decision.preference_requests, ())
        decision = host.decide(pod, taken)
    return decision, first


def rejected_by_plugin(decision: Decision, error: ProviderError) -> Decision:
    """The record of a pod that had a place until a plugin said no, in the kubelet's words."""
    container = error.container if isinstance(error, PluginRejectedError) else None
    return _turned(decision, Rejection(error.reason, error.message, container=container, provider=DeviceProvider.name))


def rejected_for_missing_devices(decision: Decision, missing: Sequence[Missing]) -> Decision:
    """The record of a pod that fits, but for devices that nobody has announced yet."""
    first = missing[0]
    shortfalls = tuple(Shortfall("host", one.resource, one.requested, one.capacity) for one in missing)
    return _turned(decision, Rejection(first.reason, first.message, provider="host", shortfalls=shortfalls))


def waiting_for_devices(pending: PendingAdmission) -> Decision:
    """The record of a pod that waits for its plugins and for nothing else."""
    resources = ", ".join(sorted({want.resource for want in pending.device_requests}))
    return _turned(pending.decision, Rejection(PREPARING_DEVICES, f"Its devices are being prepared: {resources}"))


def released_while_pending(decision: Decision) -> Decision:
    """The record of a pod that was released before its plugins had answered."""
    return _turned(
        decision, Rejection(RELEASED_WHILE_PENDING, "Pod was released while its devices were being prepared")
    )


def waiting_behind(decision: Decision, first: Pod) -> Decision:
    """The record of a pod that would fit, but may not overtake *first* any more."""
    message = f"Pod {first.namespace}/{first.name} waits in front of it and has been overtaken as often as it may be"
    return _turned(decision, Rejection(WAITS_ITS_TURN, message))


def pending_pod_view(pending: PendingAdmission, *, since: float) -> PodView:
    """A pod on its way in, as others are told of it."""
    return PodView(
        pod=pending.pod,
        status=AdmissionStatus.WAITING,
        since=since,
        source=pending.source,
        decision=waiting_for_devices(pending),
    )


def _turned(decision: Decision, refusal: Rejection) -> Decision:
    return replace(decision, outcome=Outcome.REJECTED, placements=(), rejection=refusal, preference_requests=())
