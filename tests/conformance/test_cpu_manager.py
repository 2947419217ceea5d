"""The CPU manager of a node, event by event: what pods leave behind, and containers kept on their CPUs.

The kubelet updates the runtime pod by pod; we update containers on shared CPUs first. So the updates of a pass are
compared without their order, and traces where it differs are counted apart. From a fault of the kubelet on only what
must always hold is checked.
"""

from collections import defaultdict
from typing import Any

from alignup.agent.pods.cpusets import (
    AppliedCpusets,
    CpusetResult,
    ObservedContainer,
    ObservedContainers,
    containers_of,
)
from alignup.align import bits
from alignup.align.bits import CpuSet
from alignup.align.cpus.options import CpuPolicy
from alignup.align.cpus.provider import CpuProvider
from alignup.align.errors import EnforceError, ProviderError
from alignup.run.cri.types import ContainerState
from tests.agent.pods.cpuset_passes import reconcile_now
from tests.conformance.cpu_cases import held_of, options_of
from tests.conformance.harness import Case, run
from tests.conformance.test_cpu_trace import Trace, fault_of
from tests.vector_types import pod_of, view_of

Updates = list[tuple[str, str]]  #: container id and Linux list
Event = dict[str, Any]

STATES = {
    "waiting": ContainerState.CREATED,
    "running": ContainerState.RUNNING,
    "terminated": ContainerState.EXITED,
}


def test_containers_are_kept_on_the_cpus_where_the_kubelet_keeps_them(request):
    run(request, "cpu_manager", check)


def check(case: Case) -> str | None:
    manager = Manager(case)
    label = None
    fault = None
    for number, event in enumerate(case["events"]):
        manager.tidy(event)
        before, applied = manager.trace.ledger, manager.applied
        seen = manager.play(event)
        manager.trace.check_owners()
        if fault:
            continue
        if seen != expected(event):
            fault = fault_of(event, before, manager.trace.provider) or overlooked(manager, applied)
            assert fault, f"event {number} {event}: {seen}"
        elif manager.updates != updates_of(event):
            assert sharers_first(manager), f"event {number} {event}: {manager.updates}"
            label = "shared CPUs updated first"
    return fault or label


def overlooked(manager: "Manager", applied: AppliedCpusets) -> str | None:
    """Whether a container was updated that restarted on other CPUs, which the kubelet misses."""
    again = {id_ for id_, name in manager.applied.ids.items() if name in applied.stale}
    return "started again on other CPUs" if again.intersection(id_ for id_, _ in manager.updates) else None


def sharers_first(manager: "Manager") -> bool:
    ledger, names = manager.trace.ledger, manager.applied.ids
    exclusive = [ledger.holds(*names[id_]) is not None for id_, _ in manager.updates]
    return exclusive == sorted(exclusive)


class Scripted:
    """A runtime that shows what an event says and rejects what the event says."""

    def __init__(self, event: Event) -> None:
        self.failing = event.get("runtime_fails_for", ())
        self.shown = {uid: seen_of(texts) for uid, texts in event.get("statuses", {}).items()}
        self.updates: Updates = []

    def statuses(self) -> ObservedContainers:
        return self.shown

    def update(self, container_id: str, cpus: CpuSet) -> None:
        self.updates.append((container_id, bits.show(cpus)))
        if container_id in self.failing:
            raise EnforceError("the runtime failed")


class Manager:
    """The CPUs of a node, its pods, and the cpusets applied by its runtime."""

    def __init__(self, case: Case) -> None:
        provider = CpuProvider(
            view=view_of(case["topology"]),
            policy=CpuPolicy.STATIC,
            options=options_of(case["options"]),
            reserved=bits.parse(case["reserved"]),
        )
        pods = {pod["uid"]: pod_of(pod) for pod in case["pods"]}
        self.trace = Trace(case, provider, pods)
        self.trace.start({})
        self.applied = AppliedCpusets()
        self.active: list[str] = []
        self.ready = True
        self.updates: Updates = []
        self.results: tuple[CpusetResult, ...] = ()

    def tidy(self, event: Event) -> None:
        """Before an allocation or a pass, take back what gone pods left behind, if all pods are known."""
        if self.ready and event["op"] in {"allocate", "reconcile"}:
            here = containers_of(self.trace.pods[uid] for uid in self.active)
            self.trace.ledger = self.trace.ledger.only(here)
            self.applied = self.applied.only(here)

    def play(self, event: Event) -> dict[str, Any]:
        """Apply one event and return the result in the format of the vectors."""
        self.updates = []
        self.results = ()
        error = None
        try:
            getattr(self, event["op"])(event)
        except ProviderError as rejection:
            error = {
                "raw": str(rejection),
                "admission_reason": rejection.reason,
                "admission_message": rejection.message,
            }
        return {
            "error": error,
            "updates": sorted(self.updates),
            "success": self.listed(problem=False),
            "failure": self.listed(problem=True),
            "default": self.trace.ledger.shared,
            "assignments": self.trace.ledger.held,
            "last_update": self.last_update(),
            "container_map": sorted(f"{uid}/{name}={id_}" for id_, (uid, name) in self.applied.ids.items()),
        }

    def listed(self, *, problem: bool) -> list[str]:
        """The containers that the pass updated, and those it failed to update."""
        return [
            f"{result.uid}/{result.container}={result.id}" for result in self.results if bool(result.problem) is problem
        ]

    def last_update(self) -> dict[str, dict[str, CpuSet]]:
        last: dict[str, dict[str, CpuSet]] = defaultdict(dict)
        for (uid, name), cpus in self.applied.last.items():
            last[uid][name] = cpus
        return last

    def pod_active(self, event: Event) -> None:
        self.active.append(event["pod"])

    def pod_inactive(self, event: Event) -> None:
        self.active.remove(event["pod"])

    def sources_ready(self, event: Event) -> None:
        self.ready = event["sources_ready"]

    def allocate(self, event: Event) -> None:
        self.trace.allocate(event)

    def add_container(self, event: Event) -> None:
        name = event["pod"], event["container"]
        self.applied = self.applied.added(event["container_id"], name, ledger=self.trace.ledger)

    def remove_container(self, event: Event) -> None:
        gone = self.applied.ids.get(event["container_id"])
        if gone:
            self.trace.ledger = self.trace.ledger.take_back(*gone)
        self.applied = self.applied.removed(event["container_id"])

    def reconcile(self, event: Event) -> None:
        assert self.active == event.get("active", [])
        pods = [self.trace.pods[uid] for uid in self.active]
        runtime = Scripted(event)
        self.applied, self.results = reconcile_now(
            self.applied, pods, ledger=self.trace.ledger, runtime=runtime, ready=self.ready
        )
        self.updates = runtime.updates


def seen_of(texts: dict[str, str]) -> dict[str, ObservedContainer]:
    """Containers by name, those that are ``absent`` left out."""
    shown = {name: text.partition(":") for name, text in texts.items() if text != "absent"}
    return {
        name: ObservedContainer() if phase == "no-id" else ObservedContainer(STATES[phase], container_id)
        for name, (phase, _, container_id) in shown.items()
    }


def updates_of(event: Event) -> Updates:
    return [(id_, cpus) for id_, cpus in event.get("runtime_updates") or ()]


def expected(event: Event) -> dict[str, Any]:
    return {
        "error": event.get("error"),
        "updates": sorted(updates_of(event)),
        "success": event.get("success") or [],
        "failure": event.get("failure") or [],
        "default": bits.parse(event["default"]),
        "assignments": held_of(event["assignments"]),
        "last_update": held_of(event["last_update"]),
        "container_map": sorted(event["container_map"]),
    }
