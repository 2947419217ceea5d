"""Hints for containers and pods on machines in all states."""

from alignup.align.memory.ledger import MemoryLedger
from alignup.align.memory.provider import MemoryProvider
from tests.conformance import memory_cases as cases
from tests.conformance.cpu_cases import seen_pod
from tests.conformance.harness import Case, run
from tests.vector_types import named


def test_memory_hints_are_the_kubelets(request):
    run(request, "memory_hints", check)


def check(case: Case) -> None:
    pod = seen_pod(case, case["pod"])
    ledger = MemoryLedger(
        nodes=cases.state_of(case["machine_state"]),
        held=cases.held_of(case["assignments"]),
        last_pod=pod.uid,
        reusable=cases.reusable_of(case["reusable"]),
    )
    provider = MemoryProvider(cases.settings_of(case))

    container = None if case["level"] == "pod" else named(pod, case["container"])
    answer = provider.hints(ledger, pod, container)

    assert cases.listed(answer) == case["hints"]
