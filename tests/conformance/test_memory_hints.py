"""Hints for containers and pods on machines in all states."""

from alignup.align.memory import provider as memory
from alignup.align.memory.ledger import MemoryLedger
from tests.conformance import memory_cases as cases
from tests.conformance.harness import Case, run
from tests.vector_types import named, pod_of


def test_memory_hints_are_the_kubelets(request):
    run(request, "memory_hints", check)


def check(case: Case) -> None:
    pod = pod_of(case["pod"])
    ledger = MemoryLedger(
        nodes=cases.state_of(case["machine_state"]),
        held=cases.held_of(case["assignments"]),
        last_pod=pod.uid,
        reusable=cases.reusable_of(case["reusable"]),
    )
    settings = cases.settings_of(case)

    if case["level"] == "pod":
        answer = memory.pod_hints(ledger, pod, settings=settings)
    else:
        container = named(pod, case["container"])
        answer = memory.container_hints(ledger, pod, container, settings=settings)

    assert cases.listed(answer) == case["hints"]
