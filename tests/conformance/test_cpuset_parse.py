"""Linux lists: the kubelet's reading, printing and error texts."""

import itertools

from alignup.align import bits
from alignup.align.errors import ParseError
from tests.conformance.harness import Case, run


def test_lists_are_read_and_printed_as_the_kubelet_does(request):
    run(request, "cpuset_parse", check)


def check(case: Case) -> None:
    try:
        spans = bits.parse_spans(case["in"])
    except ParseError as error:
        assert not case["ok"], f"{case['in']!r} rejected: {error}"
        assert str(error) == case["error"]
        return

    assert case["ok"], f"{case['in']!r} read as {bits.show_spans(spans)}"
    assert bits.show_spans(spans) == case["canonical"]
    assert sum(last - first + 1 for first, last in spans) == case["size"]
    if "list" in case:
        assert list(itertools.chain(*(range(first, last + 1) for first, last in spans))) == case["list"]
    if not spans or spans[-1][1] < bits.MAX_MEMBER:
        assert bits.show(bits.parse(case["in"])) == case["canonical"]
