"""Starting on a stored state: accepted or rejected, with the kubelet's words."""

from alignup.align.errors import StateError
from alignup.align.memory.ledger import MemoryLedger
from tests.conformance import memory_cases as cases
from tests.conformance.harness import Case, run


def test_stored_memory_is_checked_as_the_kubelet_does(request):
    run(request, "memory_validate", check)


def check(case: Case) -> None:
    idle = cases.idle_of(case["machine"])
    stored = MemoryLedger(nodes=cases.state_of(case["machine_state"]), held=cases.held_of(case["assignments"]))

    try:
        restored = stored.restored(idle)
    except StateError as error:
        assert str(error) in case["outcomes"]
        return

    assert "ok" in case["outcomes"]
    assert restored == (stored if stored.nodes else idle)
