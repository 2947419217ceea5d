"""Starting on a stored assignment: which ones fit the machine and the settings."""

from alignup.align import bits
from alignup.align.cpus.options import CpuOptions, CpuPolicy
from alignup.align.cpus.provider import CpuProvider
from alignup.align.errors import StateError
from tests.conformance.cpu_cases import held_of, sets_of
from tests.conformance.harness import Case, run
from tests.vector_types import view_of


def test_stored_assignments_are_accepted_and_rejected_as_in_the_kubelet(request):
    run(request, "cpu_validate", check)


def check(case: Case) -> None:
    provider = CpuProvider(
        view=view_of(case["topology"]),
        policy=CpuPolicy.STATIC,
        options=CpuOptions(strict_cpu_reservation=case["strict"]),
        reserved=bits.parse(case["reserved"]),
        pod_level="PodLevelResourceManagers" in case["gates"],
        kubelet_faults=True,
    )
    pod_held = sets_of(case.get("pod_assignments"))

    try:
        ledger = provider.restore_ledger(bits.parse(case["default"]), held_of(case["assignments"]), pod_held=pod_held)
    except StateError as error:
        assert str(error) in case["errors"]
        return

    assert not case["errors"], f"started instead of {case['errors']}"
    assert bits.show(ledger.shared) == case["default_after"]
