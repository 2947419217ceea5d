"""Requests on which the kubelet never comes back: here they are served."""

import pytest

from alignup.align import bits
from alignup.align.cpus.provider import create_selection
from alignup.align.cpus.selection import ENDLESS
from alignup.align.errors import ProviderError
from tests.conformance.cpu_cases import options_of
from tests.conformance.harness import Case, run
from tests.vector_types import view_of


def test_requests_on_which_the_kubelet_hangs_are_allocated(request):
    run(request, "cpu_take_hangs", check)


def test_the_kubelet_is_known_to_hang(request):
    run(request, "cpu_take_hangs", check_hang)


def check_hang(case: Case) -> None:
    view, options, release = view_of(case["topology"]), options_of(case["options"]), case["release"]
    selection = create_selection(view, options, release, kubelet_faults=True)
    if not case.get("hang", True):  # an answer of a release that returns
        assert bits.show(selection.take(bits.parse(case["available"]), case["count"])) == case["result"]
        return

    with pytest.raises(ProviderError) as caught:
        selection.take(bits.parse(case["available"]), case["count"])

    assert str(caught.value) == ENDLESS


def check(case: Case) -> str:
    available = bits.parse(case["available"])

    taken = create_selection(view_of(case["topology"]), options_of(case["options"])).take(available, case["count"])

    assert not taken & ~available, f"{bits.show(taken & ~available)} was not available"
    assert taken.bit_count() == case["count"]
    return "endless loops"
