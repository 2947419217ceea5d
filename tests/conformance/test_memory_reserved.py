"""Memory kept back for the system: rejected with the kubelet's words, or the idle machine it leaves."""

from alignup.align.errors import SettingsError
from alignup.align.memory import reserved_memory
from alignup.align.memory.ledger import MemoryLedger
from alignup.align.memory.provider import MemoryPolicy
from alignup.align.memory.reserved_memory import ReservedMemory
from tests.conformance import memory_cases as cases
from tests.conformance.harness import Case, run
from tests.vector_types import amounts_of


def test_reserved_memory_is_checked_as_the_kubelet_does(request):
    run(request, "memory_reserved", check)


def check(case: Case) -> None:
    try:
        ledger = created(case)
    except SettingsError as error:
        assert str(error) in case["errors"]
        return

    assert not case["errors"], f"not rejected: {case['errors']}"
    assert ledger.nodes == cases.state_of(case.get("machine_state", {}))
    assert ledger.allocatable() == cases.blocks_of(case.get("allocatable_memory", ()))


def created(case: Case) -> MemoryLedger:
    """The idle machine under the policy and reservations of *case*."""
    if MemoryPolicy(case["policy"]) is MemoryPolicy.NONE:
        return MemoryLedger()
    entries = [ReservedMemory(entry["numa_node"], amounts_of(entry["limits"])) for entry in case["reserved_memory"]]
    nodes = cases.nodes_of(case["nodes"])
    reservation = amounts_of(case["node_allocatable_reservation"])
    return MemoryLedger.of_machine(nodes, reserved_memory.reserved_by_node(entries, reservation, nodes=nodes))
