"""A pod whose devices are being prepared, and the devices of device plugins in the ledger.

Device plugins may be slow, so they are called outside the queue: first for their preferred devices, then to allocate
them. Meanwhile the pod holds its resources, but nothing is written: a crash leaves no trace, and if a plugin fails, the
resources are released.
"""

from collections.abc import Collection, Iterator, Sequence
from copy import copy
from dataclasses import dataclass, replace

from alignup.align.decision import Decision, Outcome, Rejection, Shortfall
from alignup.align.devices.provider import DeviceProvider, PreferenceAnswers, PreferenceRequest
from alignup.align.errors import ProviderError
from alignup.align.fit import InsufficientResource
from alignup.align.host import Host
from alignup.align.ledger import Ledger
from alignup.align.reason_codes import NOT_RETRIED, PREPARING_DEVICES, RELEASED_WHILE_PENDING, WAITS_ITS_TURN
from alignup.align.workload import Pod, demand, names


@dataclass(frozen=True, slots=True)
class RequestedDevices:
    container: str
    resource: str
    ids: tuple[str, ...]


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


class PluginRejectedError(ProviderError):
    def __init__(self, text: str, *, container: str) -> None:
        super().__init__(text)
        self.container = container


def assume_no_preferences(host: Host, pod: Pod, decision: Decision, answers: PreferenceAnswers) -> Decision:
    """Complete a *decision* as if plugins had no preferences beyond *answers*."""
    assumed_answers = dict(answers)
    while decision.outcome is Outcome.ASKING:
        assumed_answers |= dict.fromkeys(decision.preference_requests, ())
        decision = host.decide(pod, assumed_answers)
    return decision


def rejected_by_plugin(decision: Decision, error: ProviderError) -> Decision:
    container = error.container if isinstance(error, PluginRejectedError) else None
    return _rejected(decision, Rejection(error.reason, error.message, container, DeviceProvider.name))


def rejected_for_missing_devices(decision: Decision, resources: Sequence[InsufficientResource]) -> Decision:
    """Reject a pod that fits except for resources that no plugin has registered."""
    first = resources[0]
    shortfalls = tuple(Shortfall("host", lack.resource, lack.requested, lack.capacity) for lack in resources)
    return _rejected(decision, Rejection(first.reason, first.message, provider="host", shortfalls=shortfalls))


def waiting_for_devices(admission: PendingAdmission) -> Decision:
    resources = ", ".join(sorted({request.resource for request in admission.device_requests}))
    return _rejected(admission.decision, Rejection(PREPARING_DEVICES, f"Its devices are being prepared: {resources}"))


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


def without_resources(ledger: Ledger, resources: Collection[str]) -> Ledger:
    devices = ledger.devices
    inventories = {name: inventory for name, inventory in devices.inventories.items() if name not in resources}
    free = {name: indexes for name, indexes in devices.free.items() if name not in resources}
    return replace(ledger, devices=replace(devices, inventories=inventories, free=free))


def persistent_facts(host: Host, resource: str) -> tuple[object, ...]:
    """Return what must survive a crash: whether a plugin serves the resource, and where the held devices are."""
    devices = host.ledger.devices
    inventory = devices.inventories.get(resource)
    if inventory is None:
        return (None,)
    devices_in_use = (device for device in inventory.devices if device.id in devices.in_use.get(resource, ()))
    return inventory.registered, tuple((device.id, device.nodes) for device in devices_in_use)


def device_requests(decision: Decision, pod: Pod, *, served: Collection[str]) -> tuple[RequestedDevices, ...]:
    """Return what plugins must allocate for an admitted pod; *served*: the resources of all plugins."""
    if not served or decision.kept or decision.after is None:
        return ()
    ledger = decision.after.devices
    return tuple(
        RequestedDevices(container.name, resource, ids)
        for container in pod.all_containers
        for resource, ids in sorted(ledger.holds(pod.uid, container.name).items())
        if resource in served
    )


def unknown_resources(host: Host, pod: Pod) -> Iterator[InsufficientResource]:
    """Yield requested resources that no plugin has registered; the kubelet would ignore them."""
    handled_resources = host.ledger.devices.handled
    for name, amount in demand.limits(pod, overhead=False).items():
        if names.is_extended(name) and name not in handled_resources and amount.value() > 0:
            yield InsufficientResource(name, amount.value(), 0, 0)


def lacks_healthy_devices(host: Host, pod: Pod) -> bool:
    """Whether a pod waits for a plugin: it requests more devices than are healthy, free or not."""
    inventories = host.ledger.devices.inventories
    for name, amount in demand.limits(pod, overhead=False).items():
        if names.is_extended(name):
            healthy = (
                inventories[name].healthy.bit_count() if name in inventories and inventories[name].registered else 0
            )
            if amount.value() > healthy:
                return True
    return False


def with_announced_devices(host: Host) -> Host:
    """Return the host with the devices that plugins list now as the devices of its machine."""
    devices = tuple(
        device
        for _, inventory in sorted(host.ledger.devices.inventories.items())
        if inventory.registered
        for device in inventory.devices
    )
    if set(devices) == set(host.machine.devices):
        return host
    other = copy(host)
    other.machine = host.machine.with_reported(devices)
    return other
