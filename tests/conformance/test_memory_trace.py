"""The memory of a machine, event by event: hints, allocations, releases, restarts, and the state after each.

Two faults of the kubelet run through the traces without a mark: one node of a group is given away alone, and a pod
placed as one piece is charged again when it is admitted again. With these faults switched on every trace is followed to
its end. Without them, as is the default, each trace is followed up to the first of them and may part only there.
"""

from collections import Counter

from alignup.align.errors import ProviderError, StateError
from alignup.align.memory.ledger import MemoryLedger
from alignup.align.memory.provider import MemoryPolicy, MemoryProvider, pinned_containers
from alignup.align.workload import Container, Pod
from tests.conformance import memory_cases as cases
from tests.conformance.cpu_cases import seen_pod
from tests.conformance.harness import Case, run
from tests.vector_types import named


def test_memory_is_allocated_and_released_as_in_the_kubelet(request):
    run(request, "memory_trace", check)


def check(case: Case) -> None:
    pods = {pod["uid"]: seen_pod(case, pod) for pod in case["pods"]}
    events = [(event, state_after(event)) for event in case["events"]]
    replay = Replay(case, pods, kubelet_faults=True)
    for number, (event, state) in enumerate(events):
        try:
            replay.step(event, state)
        except AssertionError as error:
            raise AssertionError(f"event {number} ({event['op']}): {error}") from error

    if not case.get("differs_from_1_37"):  # those were not measured again
        counted = case["metrics"]
        assert replay.counts["requests"] == counted["kubelet_memory_manager_pinning_requests_total"]
        assert replay.counts["errors"] == counted["kubelet_memory_manager_pinning_errors_total"]
    check_without_faults(Replay(case, pods, kubelet_faults=False), events)


def check_without_faults(replay: "Replay", events: list[tuple[Case, Case]]) -> None:
    for number, (event, state) in enumerate(events):
        faulty = replay.is_fault(event)
        try:
            replay.step(event, state)
        except AssertionError as error:
            assert faulty, f"event {number} ({event['op']}), without faults: {error}"
            return


def state_after(event: Case) -> Case:
    """What the ledger holds after *event*; the state of the nodes is not always listed."""
    state = {
        "held": cases.held_of(event["assignments"]),
        "pod_held": {pod: cases.blocks_of(blocks) for pod, blocks in event.get("pod_assignments", {}).items()},
        "reusable": {pod: cases.reusable_of(groups) for pod, groups in event.get("reusable", {}).items()},
    }
    return state | ({"nodes": cases.state_of(event["machine_state"])} if "machine_state" in event else {})


class Replay:
    """One trace: the ledger as it goes through the events."""

    def __init__(self, case: Case, pods: dict[str, Pod], *, kubelet_faults: bool) -> None:
        self.settings = cases.settings_of(case, kubelet_faults=kubelet_faults)
        self.provider = MemoryProvider(self.settings)
        self.pods = pods
        managed = self.settings.policy is MemoryPolicy.STATIC
        self.idle = cases.idle_of(case["machine"]) if managed else MemoryLedger()
        self.ledger = MemoryLedger()
        self.counts: Counter[str] = Counter()

    def is_fault(self, event: Case) -> bool:
        """Whether the kubelet is about to split a group, or to place a pod again."""
        if event["op"] == "allocate_pod" and event["pod"] in self.ledger.pod_held:
            return True
        if not event["op"].startswith("allocate") or len(event.get("affinity", ())) != 1:
            return False
        node = self.ledger.nodes.get(event["affinity"][0])
        return node is not None and node.cells.bit_count() > 1

    def step(self, event: Case, state: Case) -> None:
        """Do what *event* says, and compare everything it shows with *state*."""
        match event["op"]:
            case "start" | "restart":
                self.start(event)
            case "hints" | "pod_hints":
                self.ask(event)
            case "allocate" | "allocate_pod":
                self.allocate(event)
            case "add_container":
                self.ledger = self.provider.start_container(self.ledger, *self.subject(event))
            case "remove":
                self.ledger = self.ledger.release(event["pod"], event["container"])
        ledger = self.ledger
        assert ledger.nodes == state.get("nodes", ledger.nodes)
        assert ledger.held == state["held"]
        assert ledger.pod_held == state["pod_held"]
        assert ({ledger.last_pod: ledger.reusable} if ledger.reusable else {}) == state["reusable"]

    def subject(self, event: Case) -> tuple[Pod, Container]:
        pod = self.pods[event["pod"]]
        return pod, named(pod, event["container"])

    def start(self, event: Case) -> None:
        try:
            self.ledger = self.ledger.restored(self.idle, pod_level=self.settings.pod_level_managers)
        except StateError as error:
            assert str(error) in event["outcomes"]
            # The vectors go on with the state that was rejected.
            self.ledger = MemoryLedger(self.ledger.nodes, self.ledger.held, self.ledger.pod_held)
        else:
            assert "ok" in event["outcomes"]

    def ask(self, event: Case) -> None:
        if event["op"] == "hints":
            answer = self.provider.hints(self.ledger, *self.subject(event))
        else:
            answer = self.provider.hints(self.ledger, self.pods[event["pod"]], None)
        assert cases.listed(answer) == event.get("hints")

    def allocate(self, event: Case) -> None:
        affinity = cases.affinity_of(event)
        try:
            if event["op"] == "allocate":
                pod, container = self.subject(event)
                self.counts["requests"] += bool(self.provider.need(pod, container))
                self.ledger = self.provider.allocate(self.ledger, pod, container, affinity=affinity)
            else:
                pod = self.pods[event["pod"]]
                handled = bool(self.provider.need(pod, None))
                self.counts["requests"] += handled
                self.ledger = self.provider.allocate(self.ledger, pod, None, affinity=affinity)
                self.counts["requests"] += len(pinned_containers(pod)) if handled else 0
        except ProviderError as error:
            self.counts["errors"] += 1
            assert "error" in event, f"rejected: {error}"
            assert str(error) == event["error"]["raw"]
            assert error.reason == event["error"]["admission_reason"]
            assert error.message == event["error"]["admission_message"]
        else:
            assert "error" not in event, f"not rejected: {event['error']['raw']}"
