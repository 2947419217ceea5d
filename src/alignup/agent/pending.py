"""A pod on its way in: it has a place that nobody else can take, while device plugins are asked about its devices.

A plugin may take its time, so it is asked outside the queue, in two steps: which devices it prefers, where it wants to
be asked that, and then to prepare them. Until the last has answered nothing is written down. So a crash meanwhile
leaves no trace, and where a plugin says no, the pod gives its place back and all is as before.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from alignup.agent.hardware import Want
from alignup.align.decision import Decision, Outcome, Refusal, Shortfall
from alignup.align.devices import Answers, Ask
from alignup.align.errors import ProviderError
from alignup.align.fit import Shortfall as Missing
from alignup.align.host import Host
from alignup.align.providers import Devices
from alignup.align.workload import Pod
from alignup.serve.service import Entry, Status

BEHIND = "WaitsItsTurn"  #: the reason of a pod that would fit, but has one in front of it that was overtaken too often
PREPARING = "DevicesArePrepared"  #: the reason of a pod that would fit, and waits for its device plugins
LEFT = "Released"  #: the reason of a pod that was released on its way in

#: Container → resource → what the plugin gave with the devices, as ``plugins.grants`` writes it.
Grants = Mapping[str, Mapping[str, Mapping[str, Any]]]


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class Pending:
    """A pod that has a place."""

    pod: Pod
    source: str
    decision: Decision  #: by which it has its place
    asks: tuple[Ask, ...]  #: what plugins are to be asked first; the decision takes it that they have no advice
    wants: tuple[Want, ...]  #: what they are to prepare then
    seconds: float  #: what deciding took
    ticket: object = field(default_factory=object)  #: the same as long as it has a place


class RefusingPluginError(ProviderError):
    """A plugin cannot serve a container."""

    def __init__(self, text: str, *, container: str) -> None:
        super().__init__(text)
        self.container = container


def tentative(host: Host, pod: Pod, answers: Answers) -> tuple[Decision, tuple[Ask, ...]]:
    """What would become of *pod* if plugins had no advice beside *answers*, and what to ask them first."""
    decision = host.decide(pod, answers)
    first = decision.asks
    taken = dict(answers)
    while decision.outcome is Outcome.ASKING:
        taken |= dict.fromkeys(decision.asks, ())
        decision = host.decide(pod, taken)
    return decision, first


def refused(decision: Decision, error: ProviderError) -> Decision:
    """The record of a pod that had a place until a plugin said no, in the kubelet's words."""
    container = error.container if isinstance(error, RefusingPluginError) else None
    return _turned(decision, Refusal(error.reason, error.message, container=container, provider=Devices.name))


def unannounced(decision: Decision, missing: Sequence[Missing]) -> Decision:
    """The record of a pod that fits, but for devices that nobody has announced yet."""
    first = missing[0]
    shortfalls = tuple(Shortfall("host", one.resource, one.requested, one.capacity) for one in missing)
    return _turned(decision, Refusal(first.reason, first.message, provider="host", shortfalls=shortfalls))


def preparing(pending: Pending) -> Decision:
    """The record of a pod that waits for its plugins and for nothing else."""
    resources = ", ".join(sorted({want.resource for want in pending.wants}))
    return _turned(pending.decision, Refusal(PREPARING, f"Its devices are being prepared: {resources}"))


def left(decision: Decision) -> Decision:
    """The record of a pod that was released before its plugins had answered."""
    return _turned(decision, Refusal(LEFT, "Pod was released while its devices were being prepared"))


def behind(decision: Decision, first: Pod) -> Decision:
    """The record of a pod that would fit, but may not overtake *first* any more."""
    message = f"Pod {first.namespace}/{first.name} waits in front of it and has been overtaken as often as it may be"
    return _turned(decision, Refusal(BEHIND, message))


def entry_of(pending: Pending, *, since: float) -> Entry:
    """A pod on its way in, as others are told of it."""
    return Entry(
        pod=pending.pod, status=Status.WAITING, since=since, source=pending.source, decision=preparing(pending)
    )


def _turned(decision: Decision, refusal: Refusal) -> Decision:
    return replace(decision, outcome=Outcome.REFUSED, placements=(), refusal=refusal, asks=())
