"""The CPU provider driven event by event: hints, allocations, removals, restarts; the ledger compared after each.

Several faults of the kubelet run through the traces without a mark: a pod placed as one piece is placed again, or
rejected, when it is admitted again, and no start succeeds when no CPU is left to be shared. With these switched on
every trace is followed to its end. Without them, as is the default, it is followed up to the first of them. From there
on only what must always hold is checked.
"""

from dataclasses import replace
from itertools import combinations
from typing import Any

from alignup.align import bits
from alignup.align.bits import CpuSet, union
from alignup.align.cpus.ledger import CpuLedger
from alignup.align.cpus.options import CpuPolicy
from alignup.align.cpus.provider import CpuProvider, select_reserved_cpus
from alignup.align.errors import ProviderError, SettingsError, StateError
from alignup.align.hint import Hint
from alignup.align.workload import Pod
from tests.align.cpus.allocation import cpu_hints
from tests.conformance.cpu_cases import held_of, listed, options_of, parse_cached, seen_pod, sets_of
from tests.conformance.harness import Case, run
from tests.vector_types import named, view_of


def test_traces_equal_the_kubelets_event_by_event(request):
    run(request, "cpu_trace", check)


def check(case: Case) -> None:
    compare(case)


def compare(case: Case) -> str | None:
    """Follow a trace with and without faults; the fault that the provider without them avoids is returned."""
    try:
        provider = create(case, case["options"])
    except SettingsError as error:
        assert str(error) == case["create_error"]
        return None
    assert "create_error" not in case
    assert bits.show(provider.reserved) == case["reserved"]
    assert bits.show(provider.reserved_cores) == case["reserved_physical"]

    pods = {pod["uid"]: seen_pod(case, pod) for pod in case["pods"]}
    events = [(event, expected(event)) for event in case["events"]]
    avoided = follow(Trace(case, provider, pods), events)
    assert avoided or not case.get("same_cpu_for_two_pods")
    follow(Trace(case, replace(provider, kubelet_faults=True), pods), events)
    return avoided


def follow(trace: "Trace", events: list[tuple[dict[str, Any], dict[str, Any]]]) -> str | None:
    """Play the events and compare; without faults, up to the first fault of the kubelet, whose name is returned.

    A difference is a fault if the provider that copies the faults answers as the kubelet does, from the same ledger.
    """
    fault = None
    for number, (event, wanted) in enumerate(events):
        ledger, provider = trace.ledger, trace.provider
        seen = trace.play(event)
        if not provider.kubelet_faults:
            trace.check_owners()
        if fault or seen == wanted:
            continue
        predicting = trace.copying_faults(ledger)
        assert not provider.kubelet_faults, f"event {number} {event}: {seen}"
        assert predicting.play(event) == wanted, f"event {number} {event}: {seen}, with faults {predicting.shown()}"
        fault = fault_of(event, ledger, predicting.ledger)
        if event["op"].startswith("allocate") and trace.ledger is not ledger and predicting.ledger is not ledger:
            assert trace.gave(event) == trace.requested(event)
    return fault


def fault_of(event: dict[str, Any], before: CpuLedger, after: CpuLedger) -> str:
    """The name of the fault that an event shows; *after* is the ledger of the provider that copies it."""
    uid = event.get("pod", "")
    if event["op"] == "restart":
        return "no start without shared CPUs"
    if uid in {"pod_hints": before.pod_held, "allocate_pod": before.held}.get(event["op"], {}):
        return "a pod placed again"
    if "error" in event:
        return "a rejected pod keeping CPUs"
    parts = after.held[uid]
    whole = after.pod_held[uid] if event["op"] == "allocate_pod" else parts[event["container"]]
    taken = whole & ~(before.available | before.owned(uid))
    if event["op"] == "allocate_pod":
        taken |= union(parts.values()) & ~whole
        taken |= union(cpus & other for cpus, other in combinations(parts.values(), 2) if cpus != other)
    return "CPUs given that were not available" if taken else "overwritten combinations"


def create(case: Case, options: list[str], *, reserved: CpuSet | None = None) -> CpuProvider:
    view, parsed = view_of(case["topology"]), options_of(options)
    if reserved is None:
        reserved = select_reserved_cpus(
            view,
            parsed,
            count=case["num_reserved"],
            explicit=bits.parse(case["reserved_cpus_flag"]),
            release=case["release"],
        )
    return CpuProvider(
        view=view,
        policy=CpuPolicy.STATIC,
        options=parsed,
        reserved=reserved,
        pod_level="PodLevelResourceManagers" in case["gates"],
        kubelet_release=case["release"],
    )


class Trace:
    """A provider and its ledger, as the events of a trace change them."""

    def __init__(self, case: Case, provider: CpuProvider, pods: dict[str, Pod]) -> None:
        self.case = case
        self.provider = provider
        self.pods = pods
        self.ledger = CpuLedger(node_cpus={}, reserved=0, shared=0)

    def copying_faults(self, ledger: CpuLedger) -> "Trace":
        """The same trace with the faults of the kubelet, on another ledger."""
        trace = Trace(self.case, replace(self.provider, kubelet_faults=True), self.pods)
        trace.ledger = ledger
        return trace

    def play(self, event: dict[str, Any]) -> dict[str, Any]:
        """Apply one event and return the result in the format of the vectors."""
        seen: dict[str, Any] = {"error": None, "hints": None}
        try:
            seen["hints"] = getattr(self, event["op"])(event)
        except (ProviderError, StateError) as error:
            if isinstance(error, ProviderError) and error.residue is not None:
                self.ledger = error.residue
            rejection = error if isinstance(error, ProviderError) else ProviderError(str(error))
            seen["error"] = {
                "raw": str(rejection),
                "admission_reason": rejection.reason,
                "admission_message": rejection.message,
            }
        return {**seen, "ledger": self.shown()}

    def start(self, event) -> None:
        self.ledger = self.provider.initial_ledger()

    def restart(self, event) -> None:
        provider = replace(
            create(self.case, event.get("options", []), reserved=self.provider.reserved),
            kubelet_faults=self.provider.kubelet_faults,
        )
        self.ledger = provider.restore_ledger(self.ledger.shared, self.ledger.held, pod_held=self.ledger.pod_held)
        self.provider = provider

    def hints(self, event) -> list | None:
        pod = self.pods[event["pod"]]
        return listed(cpu_hints(self.provider, self.ledger, pod, named(pod, event["container"])))

    def pod_hints(self, event) -> list | None:
        return listed(cpu_hints(self.provider, self.ledger, self.pods[event["pod"]]))

    def allocate(self, event) -> None:
        pod = self.pods[event["pod"]]
        container = named(pod, event["container"])
        self.ledger = self.provider.allocate(self.ledger, pod, container, affinity=affinity_of(event))

    def allocate_pod(self, event) -> None:
        pod = self.pods[event["pod"]]
        self.ledger = self.provider.allocate(self.ledger, pod, None, affinity=affinity_of(event))

    def remove(self, event) -> None:
        self.ledger = self.ledger.take_back(event["pod"], event["container"])

    def requested(self, event) -> int:
        pod = self.pods[event["pod"]]
        return self.provider.exclusive_cpus(pod, named(pod, event["container"]) if "container" in event else None)

    def gave(self, event) -> int:
        """How many CPUs an allocation gave."""
        if event["op"] == "allocate_pod":
            return self.ledger.pod_held[event["pod"]].bit_count()
        return self.ledger.held[event["pod"]][event["container"]].bit_count()

    def shown(self) -> tuple:
        reusable = {self.ledger.reusable[0]: self.ledger.reusable[1]} if self.ledger.reusable else {}
        return self.ledger.shared, self.ledger.held, self.ledger.pod_held, reusable

    def check_owners(self) -> None:
        """Every CPU is shared or has one owner; without faults none is ever lost."""
        owned = {uid: self.ledger.owned(uid) for uid in {*self.ledger.held, *self.ledger.pod_held}}
        for (owner, owner_cpus), (other, other_cpus) in combinations(
            [*owned.items(), ("unknown", self.ledger.shared)], 2
        ):
            assert not owner_cpus & other_cpus, f"{owner} and {other} both own {bits.show(owner_cpus & other_cpus)}"
        lost = self.provider.view.all_cpus & ~(self.ledger.shared | union(owned.values()) | self.provider.reserved)
        assert lost == self.ledger.lost, f"{bits.show(lost)} lost"
        assert not lost or self.provider.kubelet_faults


def affinity_of(event) -> Hint:
    return Hint(None if event.get("affinity_none") else bits.of(event["affinity"]), preferred=False)


def expected(event) -> dict[str, Any]:
    ledger = (
        parse_cached(event["default"]),
        held_of(event["assignments"]),
        sets_of(event.get("pod_assignments")),
        sets_of(event.get("reusable")),
    )
    return {"error": event.get("error"), "hints": event.get("hints"), "ledger": ledger}
