"""The CPU manager of a node, event by event: what pods hold, and what they leave behind.

The vectors also have the updates of the runtime, which are not compared: Alignup runs no containers. From a fault of
the kubelet on only what must always hold is checked.
"""

from typing import Any

from alignup.align import bits
from alignup.align.cpus.options import CpuPolicy
from alignup.align.cpus.provider import CpuProvider
from alignup.align.errors import ProviderError
from alignup.align.workload import Container
from tests.conformance.cpu_cases import held_of, options_of
from tests.conformance.harness import Case, run
from tests.conformance.test_cpu_trace import Trace, fault_of
from tests.vector_types import pod_of, view_of

Event = dict[str, Any]


def test_containers_hold_the_cpus_that_they_hold_under_the_kubelet(request):
    run(request, "cpu_manager", check)


def check(case: Case) -> str | None:
    manager = Manager(case)
    fault = None
    for number, event in enumerate(case["events"]):
        manager.tidy(event)
        before = manager.trace.ledger
        seen = manager.play(event)
        manager.trace.check_owners()
        if fault:
            continue
        if seen != expected(event):
            copying = manager.trace.copying_faults(before)
            copying.play(event)
            answer = {"default": copying.ledger.shared, "assignments": copying.ledger.held}
            assert expected(event) | answer == expected(event), f"event {number} {event}: {seen}"
            fault = fault_of(event, before, copying.ledger)
    return fault


class Manager:
    """The CPUs of a node, its pods, and the containers that its runtime has created."""

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
        self.ids: dict[str, tuple[str, str]] = {}  #: of containers → uid of the pod, and name
        self.active: list[str] = []
        self.ready = True

    def tidy(self, event: Event) -> None:
        """Before an allocation or a pass, take back what gone pods left behind, if all pods are known."""
        if self.ready and event["op"] in {"allocate", "reconcile"}:
            here = frozenset((uid, container.name) for uid in self.active for container in self.containers(uid))
            self.trace.ledger = self.trace.ledger.only(here)
            self.ids = {id_: name for id_, name in self.ids.items() if name in here}

    def containers(self, uid: str) -> tuple[Container, ...]:
        return self.trace.pods[uid].all_containers

    def play(self, event: Event) -> dict[str, Any]:
        """Apply one event and return the result in the format of the vectors."""
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
            "default": self.trace.ledger.shared,
            "assignments": self.trace.ledger.held,
            "container_map": sorted(f"{uid}/{name}={id_}" for id_, (uid, name) in self.ids.items()),
        }

    def pod_active(self, event: Event) -> None:
        self.active.append(event["pod"])

    def pod_inactive(self, event: Event) -> None:
        self.active.remove(event["pod"])

    def sources_ready(self, event: Event) -> None:
        self.ready = event["sources_ready"]

    def allocate(self, event: Event) -> None:
        self.trace.allocate(event)

    def add_container(self, event: Event) -> None:
        self.ids[event["container_id"]] = event["pod"], event["container"]

    def remove_container(self, event: Event) -> None:
        gone = self.ids.pop(event["container_id"], None)
        if gone:
            self.trace.ledger = self.trace.ledger.take_back(*gone)

    def reconcile(self, event: Event) -> None:
        assert self.active == event.get("active", [])
        statuses = event.get("statuses", {})
        for uid in self.active:
            for container in self.containers(uid):
                phase, _, container_id = statuses.get(uid, {}).get(container.name, "absent").partition(":")
                if phase == "running" and container_id:
                    self.ids[container_id] = uid, container.name


def expected(event: Event) -> dict[str, Any]:
    return {
        "error": event.get("error"),
        "default": bits.parse(event["default"]),
        "assignments": held_of(event["assignments"]),
        "container_map": sorted(event["container_map"]),
    }
