"""Requests on which the kubelet never comes back: here they are served."""

from alignup.align import bits
from alignup.align.cpus.provider import create_selection
from tests.conformance.cpu_cases import options_of
from tests.conformance.harness import Case, run
from tests.vector_types import view_of


def test_requests_on_which_the_kubelet_hangs_are_allocated(request):
    run(request, "cpu_take_hangs", check)


def check(case: Case) -> str:
    available = bits.parse(case["available"])

    taken = create_selection(view_of(case["topology"]), options_of(case["options"])).take(available, case["count"])

    assert not taken & ~available, f"{bits.show(taken & ~available)} was not available"
    assert taken.bit_count() == case["count"]
    return "endless loops"
