"""Which devices a container is given: the classes, what the plugin is asked, the stages of the choice, the rejections.

The kubelet leaves devices marked in use when a plugin answers with an error. Nothing is marked here, which is checked
for every rejection.
"""

from dataclasses import replace

from alignup.align import bits
from alignup.align.devices.ledger import DeviceLedger
from alignup.align.devices.provider import (
    DeviceProvider,
    DeviceRequest,
    PreferenceRequest,
    PreferencesNeededError,
    by_affinity,
    devices_to_allocate,
)
from alignup.align.errors import ProviderError
from alignup.align.hint import Hint
from alignup.align.machine import Device
from alignup.align.quantity import Quantity
from alignup.align.workload import Container, Pod, Resources
from tests.conformance.harness import Case, run

RESOURCE = "example.com/dev"
CLASSES = ("aligned", "unaligned", "without_topology")


def test_devices_are_chosen_as_the_kubelet_does(request):
    run(request, "device_alloc", check)


def check(case: Case) -> str | None:
    ledger = ledger_of(case)
    container = Container("app", Resources(limits={RESOURCE: Quantity(case["required"])}))
    pod = Pod(name="self", uid="self", containers=(container,))

    check_classes(case, ledger)
    try:
        after = allocated(case, ledger, pod)
    except ProviderError as rejection:
        assert str(rejection) == case.get("error")
        assert rejection.message == f"Allocate failed due to {case['error']}, which is unexpected"
        assert ledger == ledger_of(case)
        return "devices left marked in use" if "left_marked_in_use_after_error" in case else None

    assert "error" not in case, f"not rejected: {case['error']}"
    chosen = set(after.holds("self", "app").get(RESOURCE, ()))
    if case.get("nothing_to_allocate"):
        assert chosen == set(case["already_allocated_to_container"] or ())
        assert after.in_use == ledger.in_use
        return None
    assert len(chosen) == case["required"]
    for stage in case["stages"]:
        assert len(chosen.intersection(stage["from"])) == stage["take"], f"{sorted(chosen)}, but {stage}"
    assert chosen.issuperset(case["always_chosen"])
    assert chosen.issubset(case["may_be_chosen"])
    assert after.in_use[RESOURCE] == ledger.in_use.get(RESOURCE, frozenset()) | chosen
    return None


def allocated(case: Case, ledger: DeviceLedger, pod: Pod) -> DeviceLedger:
    """Allocate, and if the plugin has to be asked, check the question and allocate with its answer."""
    container = pod.containers[0]
    affinity = affinity_of(case)
    provider = DeviceProvider(ledger.nodes)
    if RESOURCE not in ledger.handled:
        # Of a container's limits these are not looked at; the vectors ask about the resource itself.
        assert provider.allocate(ledger, pod, container, affinity=Hint(affinity, preferred=True)) == ledger
        devices_to_allocate(ledger, DeviceRequest("self", "app", RESOURCE, case["required"]), affinity=affinity)
    answers: dict[PreferenceRequest, tuple[str, ...] | str] = {}
    try:
        after = provider.allocate(ledger, pod, container, affinity=Hint(affinity, preferred=True))
    except PreferencesNeededError as needed:
        (ask,) = needed.requests
        answers[ask] = answer_of(case)
    assert [request_of(ask) for ask in answers] == [
        {**call, "available": sorted(call["available"]), "must_include": sorted(call["must_include"])}
        for call in case["preferred_calls"]
    ]
    if answers:
        provider = replace(provider, answers=answers)
        after = provider.allocate(ledger, pod, container, affinity=Hint(affinity, preferred=True))
    return after


def check_classes(case: Case, ledger: DeviceLedger) -> None:
    if case["aligned"] is None:
        assert RESOURCE not in ledger.inventories
        return
    inventory = ledger.inventories[RESOURCE]
    classes = by_affinity(inventory, ledger.free[RESOURCE], affinity_of(case))
    assert {name: sorted(inventory.names(getattr(classes, name))) for name in CLASSES} == {
        name: sorted(case[name]) for name in CLASSES
    }


def request_of(ask: PreferenceRequest) -> dict[str, object]:
    assert (ask.uid, ask.container, ask.resource) == ("self", "app", RESOURCE)
    return {"available": sorted(ask.available), "must_include": sorted(ask.must_include), "size": ask.size}


def answer_of(case: Case) -> tuple[str, ...] | str:
    if case["plugin_answer_mode"] == "error":
        return str(case["error"]).rpartition("rpc failed with err: ")[2]
    return tuple(case["plugin_answer"] or ())


def affinity_of(case: Case) -> bits.NodeSet | None:
    mask = case["hint"]["mask"]
    return None if mask is None else bits.of(mask)


def ledger_of(case: Case) -> DeviceLedger:
    ledger = DeviceLedger(nodes=bits.of(case["numa_nodes"]))
    if case["registered"]:
        announced = [
            Device(
                RESOURCE,
                device["id"],
                device["numa"] if device["numa"] is None else bits.of(device["numa"]),
                device["healthy"],
            )
            for device in case["devices"]
        ]
        ledger = ledger.announce(RESOURCE, announced, preferred_allocation=case["plugin_has_preferred_allocation"])
    ledger = ledger.give("other", "app", devices={RESOURCE: case["in_use_by_other_pods"]})
    ledger = ledger.give("self", "init", devices={RESOURCE: case["reusable"]})
    ledger = ledger.give("self", "app", devices={RESOURCE: case["already_allocated_to_container"] or ()})
    reusable = frozenset(case["reusable"])
    return ledger.with_reusable("self", {RESOURCE: reusable} if reusable else {})
