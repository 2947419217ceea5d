"""The comparison of what a pod got with its prediction.

The end of another pod between the prediction and the admission can explain a difference, or a rejection.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import chain, combinations

from alignup.align.admit import build_placements
from alignup.align.bits import CpuSet, NodeSet
from alignup.align.decision import Placement
from alignup.align.devices.choices import DeviceChoices
from alignup.align.errors import AlignError
from alignup.align.ledger import Ledger
from alignup.align.memory.ledger import Block
from alignup.align.workload import Pod
from alignup.placement.host_model import HostModel
from alignup.placement.verdict import Verdict

MAX_NODE_COUNTS = 256  #: numbers of devices by NUMA node that are compared with what a container got
MAX_ENDED = 4  #: pods of which every combination may have ended before an admission; of more, only all together

_DeviceNodes = Counter[NodeSet | str | None]  #: NUMA nodes, or the id of a device that is gone → the number of devices
_Holdings = tuple[CpuSet | None, tuple[Block, ...], dict[str, _DeviceNodes]]  #: of one container


def placement_difference(prediction: Verdict | None, uid: str, model: HostModel, ledger: Ledger) -> str:
    """Describe how what a pod of *ledger* holds differs from all predictions; empty: it does not."""
    real = actual_placements(uid, model, ledger)
    possible = ((),) if prediction is None else prediction.possible_placements
    if any(_agree(placements, real, ledger) for placements in possible):
        return ""
    return f"predicted {' or '.join(map(_show, possible))}, got {_show(real)}"


def pods_ended_before(uid: str, model: HostModel, before: Ledger, after: Ledger, *, earlier: Sequence[Pod]) -> bool:
    """Return whether a pod of *after* holds what it gets if pods of *before* end first that *after* does not contain.

    *earlier*: pods that were admitted before it, and that *before* does not contain.
    """
    ended_uids = [other for other in before.pods if other not in after.pods]
    pod, resources = after.pods[uid].pod, _resources(actual_placements(uid, model, after), after)
    for gone_uids in _combinations(ended_uids):
        host = model.at(model.without(before, gone_uids))
        try:
            for other_pod in earlier:
                host.apply(host.decide_without_plugins(other_pod))
            decision = host.decide_without_plugins(pod)
        except AlignError:
            continue
        if decision.after is not None and _resources(decision.placements, after) == resources:
            return True
    return False


def rejected_after_ends(pod: Pod, model: HostModel, before: Ledger, ended_uids: Sequence[str]) -> bool:
    """Return whether a kubelet with *before* rejects *pod* if some pods of *ended_uids* end first.

    More room can mean a rejection for a pod of several containers: the first one goes where the next one has to go.
    """
    for gone_uids in _combinations(ended_uids):
        try:
            decision = model.at(model.without(before, gone_uids)).decide_without_plugins(pod)
        except AlignError:
            continue
        if decision.rejection is not None:
            return True
    return False


def _combinations(uids: Sequence[str]) -> Iterator[tuple[str, ...]]:
    if len(uids) > MAX_ENDED:
        return iter([tuple(uids)])
    return chain.from_iterable(combinations(uids, count) for count in range(1, len(uids) + 1))


def _agree(predicted_placements: Sequence[Placement], real: Sequence[Placement], ledger: Ledger) -> bool:
    """Return whether *real* is what was predicted, with any of the devices that could be chosen.

    Devices on the same NUMA nodes are equal: which of them earlier pods have got may be unknown.
    """
    expected_resources, actual_resources = _resources(predicted_placements, ledger), _resources(real, ledger)
    if expected_resources == actual_resources:
        return True
    choices = {placement.container: placement.choices for placement in predicted_placements}
    if expected_resources.keys() != actual_resources.keys() or not any(choices.values()):
        return False
    for container, (cpus, memory, devices) in expected_resources.items():
        real_cpus, real_memory, real_devices = actual_resources[container]
        if (cpus, memory, devices.keys()) != (real_cpus, real_memory, real_devices.keys()):
            return False
        for resource, nodes in real_devices.items():
            device_choices = choices[container].get(resource)
            if nodes != devices[resource] and not (device_choices and nodes in _possible_nodes(device_choices, ledger)):
                return False
    return True


def _possible_nodes(choices: DeviceChoices, ledger: Ledger) -> list[_DeviceNodes]:
    inventory = ledger.devices.inventories.get(choices.resource)
    nodes_of = {} if inventory is None else {device.id: device.nodes for device in inventory.devices}
    return [Counter(map(nodes_of.get, ids)) for ids in choices.representatives(nodes_of.get, MAX_NODE_COUNTS)]


def actual_placements(uid: str, model: HostModel, ledger: Ledger) -> tuple[Placement, ...]:
    """Return what a pod of *ledger* holds."""
    admitted_pod = ledger.pods[uid]
    return build_placements(admitted_pod.pod, admitted_pod.hints, ledger, model.host.providers)


def _show(placements: Iterable[Placement]) -> str:
    return "; ".join(f"{placement.container} {placement.as_text()}" for placement in placements) or "nothing"


def _resources(placements: Iterable[Placement], ledger: Ledger) -> dict[str, _Holdings]:
    """Return what each container holds; of devices their NUMA nodes, since the kubelet takes any of equal ones.

    Containers that hold nothing are nowhere in particular: they are left out, as they are in reports.
    """
    return {
        placement.container: (placement.cpus, placement.memory, _device_nodes(placement.devices, ledger))
        for placement in placements
        if placement.cpus or placement.memory or placement.devices
    }


def _device_nodes(devices: Mapping[str, Sequence[str]], ledger: Ledger) -> dict[str, _DeviceNodes]:
    """Return the NUMA nodes of devices by resource; devices that are gone stand for themselves."""
    nodes: dict[str, _DeviceNodes] = {}
    for resource, ids in devices.items():
        inventory = ledger.devices.inventories.get(resource)
        nodes_of = {} if inventory is None else {device.id: device.nodes for device in inventory.devices}
        nodes[resource] = Counter([nodes_of.get(id_, id_) for id_ in ids])
    return nodes
