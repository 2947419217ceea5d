"""Models of hosts: hosts with the same machine and settings share everything but their ledgers.

A :class:`HostModel` decides on any ledger of such a host. :class:`HostModels` has one for each kind of host.
"""

from collections.abc import Collection, Hashable, Iterable, Iterator
from copy import copy
from dataclasses import replace

from alignup.align import admit, bits
from alignup.align.bits import NodeSet
from alignup.align.decision import Decision
from alignup.align.devices.plugin_rules import NEEDS_LINKS, PluginRules
from alignup.align.devices.provider import by_affinity
from alignup.align.errors import ProviderError
from alignup.align.host import Host, Settings
from alignup.align.ledger import Ledger
from alignup.align.machine import Device, Machine
from alignup.align.prediction import predict
from alignup.align.workload import Pod
from alignup.placement.pod_demands import find_refusal
from alignup.placement.pod_shape import PodShape
from alignup.placement.steered import ANYWHERE, decide_steered


class HostModel:
    def __init__(self, machine: Machine, settings: Settings, located_machine: Machine | None = None) -> None:
        """Make a model; *located_machine* is the machine with PCI devices, if decisions depend on them."""
        self.machine = machine
        self.settings = settings
        self.host = Host(machine, settings)
        # A wrong rule would send pods to nodes that reject them, so only rules of the configuration count.
        rules = PluginRules(settings.plugin_rules, by_name=False, machine=located_machine)
        self.host.devices = replace(self.host.devices, plugin_rules=rules)
        self.host.providers = (self.host.devices, *self.host.providers[1:])
        self._aligning = copy(self.host)
        self._aligning.rules = replace(self.host.rules, allocatable=None)

    def at(self, ledger: Ledger, *, fit_check: bool = True) -> Host:
        """Return a host of this kind with *ledger*, perhaps without the fit check of the whole host."""
        return (self.host if fit_check else self._aligning).with_ledger(ledger)

    def counted(self, shape: PodShape) -> PodShape:
        """Return a shape as the kubelet counts it, perhaps without pod-level resources."""
        ignored = shape.by_containers is not None and not self.settings.gates.on("PodLevelResources")
        return (shape.by_containers if ignored else None) or shape

    def align(self, ledger: Ledger, pod: Pod) -> Decision:
        """Decide on a valid pod without the fit check of the whole host; with all choices of devices."""
        host, devices = self._aligning, ledger.devices.handled
        if all(devices.isdisjoint(container.resources.limits) for container in pod.all_containers):
            return admit.decide(pod, ledger, providers=host.providers, rules=host.rules)
        return predict(pod, ledger, providers=host.providers, rules=host.rules)

    def admit(self, ledger: Ledger, pod: Pod, nodes: NodeSet = ANYWHERE) -> Ledger | None:
        """Return *ledger* after the admission of *pod* while markers are on *nodes* only.

        ``None``: it is rejected, or a demand is not met.
        """
        host = self.at(ledger)
        decision = decide_steered(host, pod, nodes)
        return None if not decision.admitted or find_refusal(host, pod) else ledger_after(decision)

    def requests_nothing(self, pod: Pod, devices: Collection[str]) -> bool:
        """Return whether *pod* requests no exclusive CPUs, no managed memory and none of these devices.

        It then goes anywhere on any host of this kind.
        """
        host = self.host
        for container in (*pod.all_containers, None):
            resources = pod.resources if container is None else container.resources
            if host.cpus.exclusive_cpus(pod, container) or not resources.limits.keys().isdisjoint(devices):
                return False
            try:
                if host.memory.need(pod, container):
                    return False
            except ProviderError:  # an amount that is rejected at allocation
                return False
        return True

    def without(self, ledger: Ledger, uids: Iterable[str]) -> Ledger:
        """Return *ledger* after the end of these pods."""
        host = self.at(ledger)
        for uid in uids:
            host.release(uid)
        return host.ledger


class HostModels:
    def __init__(self) -> None:
        self._models: dict[Hashable, list[HostModel]] = {}
        self._last: tuple[Machine, Settings, HostModel] | None = None
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def keep(self, used_models: Collection[HostModel]) -> None:
        """Forget the models that no host is of any more; a host may report another machine every second."""
        by_key = {key: [model for model in models if model in used_models] for key, models in self._models.items()}
        self._models = {key: models for key, models in by_key.items() if models}
        self._count = sum(map(len, self._models.values()))

    def find(self, machine: Machine, settings: Settings) -> HostModel:
        """Return the model for this machine and these settings; the devices of the machine are in the ledger."""
        if self._last is not None and self._last[0] is machine and self._last[1] is settings:
            return self._last[2]
        # Machines with equal facts decide alike, apart from their devices.
        located_machine = machine if machine.pci and NEEDS_LINKS.intersection(settings.plugin_rules.values()) else None
        models = self._models.setdefault((machine.cpus, machine.nodes, machine.memory, _places(located_machine)), [])
        facts = (machine.distances, machine.report)
        for model in models:
            if facts == (model.machine.distances, model.machine.report) and settings == model.settings:
                break
        else:
            plain = replace(machine, devices=(), pci=(), gaps=(), links=(), stated_levels=())
            models.append(model := HostModel(plain, settings, located_machine))
            self._count += 1
        self._last = (machine, settings, model)
        return model


def _places(machine: Machine | None) -> Hashable:
    """Return what the answers of device plugins on *machine* depend on."""
    if machine is None:
        return None
    addresses = {(device.id, machine.locality.find(device.id)) for device in machine.devices}
    return frozenset(addresses), machine.pci, machine.links, machine.stated_levels


def unsettled_devices(decision: Decision) -> frozenset[str]:
    """Return the resources whose devices may be chosen on other NUMA nodes than in *decision*.

    The kubelet takes any of several equally near devices. It does not matter which if all are on the same nodes, or if
    all are taken.
    """
    return frozenset(
        resource for resource, devices in _random_stages(decision) if len({device.nodes for device in devices}) > 1
    )


def ledger_after(decision: Decision) -> Ledger | None:
    """Return the ledger after an admission, with other devices that the pod may have got instead."""
    after = decision.after
    if after is None or after.places is None:
        return after
    unsettled_devices = dict(after.places.unsettled)
    for resource, devices in _random_stages(decision):
        unsettled_devices[resource] = (*unsettled_devices.get(resource, ()), frozenset(device.id for device in devices))
    return replace(after, places=after.places._replace(unsettled=unsettled_devices))


def _random_stages(decision: Decision) -> Iterator[tuple[str, list[Device]]]:
    """Yield each resource where the pod gets some of several equally near devices."""
    before, after = decision.before, decision.after
    if before is None or after is None or before is after:
        return
    for placement in decision.placements:
        for resource, ids in placement.devices.items():
            inventory = after.devices.inventories[resource]
            allocated_devices = inventory.find(ids)
            free = before.devices.free[resource]
            for stage in by_affinity(inventory, free, placement.hint.nodes):
                if stage & allocated_devices and stage & ~allocated_devices:
                    yield resource, [inventory.devices[index] for index in bits.members(stage)]
