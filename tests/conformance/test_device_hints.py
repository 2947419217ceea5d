"""Device hints of containers and pods, in the kubelet's order.

Where it crashes, over a device that is held or could be used again but is not announced any more, an answer is given
and checked instead: what is gone restricts nothing, and everything else counts as it always does.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from alignup.align import bits
from alignup.align.devices.ledger import DeviceIds, DeviceLedger
from alignup.align.devices.provider import DeviceProvider
from alignup.align.hint import AnyHints, HintList, subsets
from alignup.align.machine import Device
from alignup.align.workload import Container, Pod, demand
from alignup.kubernetes.manifests.pod_decoder import read_pod
from tests.conformance.harness import Case, run

Lists = dict[str, list | None]


def test_devices_are_hinted_as_the_kubelet_does(request):
    run(request, "device_hints", check)


def check(case: Case) -> str | None:
    pod = read_pod({"apiVersion": "v1", "kind": "Pod", **case["pod"]})
    container = next(candidate for candidate in pod.all_containers if candidate.name == case["container"])
    ledger = ledger_of(case)
    provider = DeviceProvider(ledger.nodes, kubelet_release=case["release"])

    of_container = listed(provider.hints(ledger, pod, container))
    of_pod = listed(provider.hints(ledger, pod, None))

    if case.get("container_panics"):
        check_again(ledger, pod, container, of_container)
        held, wanted = ledger.holds(pod.uid, container.name), demand.devices(pod, container, ledger.handled)
        check_held(ledger, of_container, held=held, wanted=wanted)
    else:
        assert of_container == case["expect_container_hints"]
    if case.get("pod_panics"):
        held = {name: tuple(ledger.owned(pod.uid, name)) for name in case["allocated_to_this_pod"]}
        check_held(ledger, of_pod, held=held, wanted=demand.devices(pod, None, ledger.handled))
    else:
        assert of_pod == case["expect_pod_hints"]
    return "a device is gone" if case.get("container_panics") or case.get("pod_panics") else None


def check_again(ledger: DeviceLedger, pod: Pod, container: Container, answer: Lists) -> None:
    """What is gone cannot be used again: the answer is as if it had never been held."""
    known = {name: ids & ledger.inventories[name].indexes.keys() for name, ids in ledger.reusable_by(pod.uid).items()}
    assert answer == listed(DeviceProvider(ledger.nodes).hints(ledger.with_reusable(pod.uid, known), pod, container))


def check_held(ledger: DeviceLedger, answer: Lists, *, held: DeviceIds, wanted: Mapping[str, int]) -> None:
    """Of devices held, those still there are touched by every set, and those gone keep no set from being one."""
    for name, ids in held.items():
        inventory = ledger.inventories[name]
        there = [device.nodes or 0 for device in inventory.devices if device.id in ids]
        if name in wanted and inventory.placed and len(there) < len(ids) == wanted[name]:
            touching = [mask for mask in subsets(inventory.nodes) if all(mask & nodes for nodes in there)]
            assert [bits.of(mask) for mask, _ in answer[name] or ()] == touching


def ledger_of(case: Case) -> DeviceLedger:
    announced = [device_of(name, device) for name, devices in case["resources"].items() for device in devices]
    ledger = DeviceLedger.of_devices(
        announced, nodes=bits.of(case["numa_nodes"]), hints_all_nodes=not case["release"].hints_device_nodes_only
    )
    ledger = ledger.give("other", "app", devices=case["allocated_to_other_pods"])
    for name, containers in case["allocated_to_this_pod"].items():
        for container, ids in containers.items():
            ledger = ledger.give("self", container, devices={name: ids})
    return ledger.with_reusable("self", {name: frozenset(ids) for name, ids in case["reusable"].items()})


def device_of(resource: str, device: Mapping[str, Any]) -> Device:
    nodes = None if device["numa"] is None else bits.of(device["numa"])
    return Device(resource, device["id"], nodes, healthy=device["healthy"])


def listed(answer: Mapping[str, AnyHints]) -> Lists:
    """An answer in the form of the vectors: resource → null or [[nodes, preferred], …]."""
    return {name: spelled_out(options) for name, options in answer.items()}


def spelled_out(options: AnyHints) -> list | None:
    if options is None:
        return None
    if not isinstance(options, HintList | Sequence):
        options = HintList.of_family(options)
    return [[list(bits.members(nodes or 0)), preferred] for nodes, preferred in options]
