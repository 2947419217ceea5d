"""Choosing CPUs out of a free set: which ones, in which order, under every combination of options."""

from alignup.align import bits
from alignup.align.cpus.provider import create_selection
from alignup.align.errors import ProviderError
from tests.align.cpus import naive
from tests.conformance.cpu_cases import options_of
from tests.conformance.harness import Case, run
from tests.vector_types import view_of


def test_cpus_are_chosen_as_the_kubelet_chooses_them(request):
    run(request, "cpu_take", check)


def test_cpus_are_chosen_with_the_defects_of_the_kubelet(request):
    run(request, "cpu_take", check_with_defects)


def check_with_defects(case: Case) -> None:
    selection = create_selection(
        view_of(case["topology"]), options_of(case["options"]), case["release"], kubelet_faults=True
    )
    try:
        taken = selection.take(bits.parse(case["available"]), case["count"])
    except ProviderError as error:
        assert str(error) == case["error"]
    else:
        assert (bits.show(taken), None) == (case["result"], case["error"])


def check(case: Case) -> str | None:
    view = view_of(case["topology"])
    options = options_of(case["options"])
    available = bits.parse(case["available"])

    try:
        taken = create_selection(view, options, case["release"]).take(available, case["count"])
    except ProviderError as error:
        assert str(error) == case["error"]
        return None

    if case.get("result_outside_available"):
        assert not taken & ~available, f"{bits.show(taken & ~available)} was not available"
        assert taken.bit_count() == case["count"]
        return "CPUs that were not available"
    if "result_if_combinations_copied" in case:
        assert bits.show(taken) == case["result_if_combinations_copied"]
        return "overwritten combinations"
    if case["result"] != bits.show(taken) and options.distribute_cpus_across_numa:
        group = max(view.cpus_per_core if options.full_pcpus_only else 1, 1)
        by_socket = options.align_by_socket and case["release"].distributes_by_socket
        overwritten = naive.Distributed(view, group=group, by_socket=by_socket).take(available, case["count"])
        assert bits.show(overwritten) == case["result"]
        return "overwritten combinations"
    assert case["error"] is None, f"{bits.show(taken)} instead of {case['error']!r}"
    assert bits.show(taken) == case["result"]
    return None
