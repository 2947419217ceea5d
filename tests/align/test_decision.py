"""The record of an admission: what it shows, and that it goes to JSON and back unharmed."""

import json
from copy import deepcopy
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from alignup.align.decision import MAX_SHOWN_HINTS, Decision, Outcome, ResourceHints, Shortfall
from alignup.align.errors import ParseError
from alignup.align.hint import DONT_CARE, IMPOSSIBLE, AmountFamily, Hint, HintList
from alignup.align.machine import Device
from alignup.align.settings import Policy, Scope
from alignup.schema.decisions import VERSION, from_document, to_document
from tests.align.hosts import GPU, host, pod


def admitted() -> Decision:
    return host().decide(pod(gpu="1"))


def refused() -> Decision:
    return host().decide(pod(cpu="5", gpu="1"))


def refused_by_a_provider() -> Decision:
    return host(Policy.BEST_EFFORT).decide(pod(gpu="3"))


def out_of_room() -> Decision:
    return host(Policy.NONE, max_pods=0).decide(pod())


def asking() -> Decision:
    one = host(preferred_allocation=frozenset({GPU}))
    one.announce(GPU, [Device(GPU, f"gpu-{number}", nodes=1) for number in range(3)])
    return one.decide(pod(gpu="2"))


def kept() -> Decision:
    one = host(scope=Scope.POD)
    one.admit(pod())
    return one.decide(pod())


def unaligned() -> Decision:
    return host(Policy.BEST_EFFORT, shape="numa:8 core:4 pu:1").decide(pod(cpu="9"))


MAKERS = [admitted, refused, refused_by_a_provider, out_of_room, asking, kept, unaligned]
every_kind = pytest.mark.parametrize("make", MAKERS, ids=lambda make: make.__name__.replace("_", " "))


@every_kind
def test_to_json_and_back(make):
    decision = make()

    document = to_document(decision)
    read = from_document(json.loads(json.dumps(document)))

    assert read == decision
    assert to_document(read) == document


@every_kind
def test_the_document_is_plain_json(make):
    """What JSON would change (tuples, sets of nodes as numbers) is not in it."""
    document = to_document(make())

    assert json.loads(json.dumps(document)) == document


def test_the_ledgers_are_no_part_of_the_record():
    decision = admitted()

    read = from_document(to_document(decision))

    assert (read.before, read.after) == (None, None)
    assert decision.after is not None


def test_sets_are_linux_lists():
    document = to_document(unaligned())

    assert document["placements"][0]["hint"] == {"nodes": "0-2", "preferred": False}
    assert document["placements"][0]["given"]["cpu"] == {"cpu": "1,4-11"}


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        pytest.param({"version": 2}, "a decision of version 2; this program reads version 1", id="a later one"),
        pytest.param({"version": "1"}, "a decision of version '1'", id="one in words"),
        pytest.param({"version": True}, "a decision of version True", id="one that is none"),
        pytest.param({"version": None}, "a decision of version None", id="none at all"),
    ],
)
def test_another_version_is_refused_by_name(changed, message):
    assert VERSION == 1

    with pytest.raises(ParseError, match=message):
        from_document(to_document(admitted()) | changed)


@pytest.mark.parametrize("value", [None, [], "decision", 1, {}], ids=repr)
def test_what_is_no_decision_at_all_is_refused(value):
    with pytest.raises(ParseError):
        from_document(value)


def paths(value: Any, here: tuple = ()):
    """Every place in a document."""
    yield here
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, inner in items:
        yield from paths(inner, (*here, key))


PLACES = [(make, path) for make in MAKERS for path in paths(to_document(make())) if path]
GONE = object()
anything = st.sampled_from([GONE, None, True, 0, -1, 1.5, "", "x", "3-1", [], {}, [None], ["a"], {"a": 1}])


@given(st.sampled_from(PLACES), anything)
def test_a_damaged_document_is_refused_or_read_as_a_decision(place, instead):
    make, path = place
    document = deepcopy(to_document(make()))
    around = document
    for key in path[:-1]:
        around = around[key]
    if instead is GONE:
        del around[path[-1]]
    else:
        around[path[-1]] = instead

    try:
        read = from_document(document)
    except ParseError as error:
        assert str(error)
    else:
        assert from_document(json.loads(json.dumps(to_document(read)))) == read


@pytest.mark.parametrize(
    ("path", "instead", "message"),
    [
        pytest.param(("pod",), {}, "there is no 'uid'", id="a missing field"),
        pytest.param(("pod", "name"), 5, "5 is no text", id="a number for a text"),
        pytest.param(("kept",), "no", "'no' is neither true nor false", id="a text for a flag"),
        pytest.param(("steps",), {}, "{} is no list", id="an object for a list"),
        pytest.param(("steps", 0, "width"), 1.0, "1.0 is no whole number", id="a fraction for a number"),
        pytest.param(("steps", 0, "rule"), "LUCK", "there is no 'LUCK'", id="an unknown rule"),
        pytest.param(("outcome",), "maybe", "'maybe' is not a valid Outcome", id="an unknown outcome"),
        pytest.param(("steps", 0, "hint", "nodes"), "b", 'parsing "b"', id="a set that is none"),
    ],
)
def test_what_is_wrong_is_said(path, instead, message):
    document = to_document(admitted())
    around: Any = document
    for key in path[:-1]:
        around = around[key]
    around[path[-1]] = instead

    with pytest.raises(ParseError) as caught:
        from_document(document)

    assert message in str(caught.value)


def test_fields_that_came_later_are_passed_over():
    """Adding a field does not make a new version."""
    decision = refused()
    document = to_document(decision)
    for place in (document, document["pod"], document["steps"][0], document["refusal"]["shortfalls"][0]):
        place["mood"] = "good"

    assert from_document(document) == decision


class TestVoices:
    @staticmethod
    def voice(options, **more: Any) -> ResourceHints:
        return ResourceHints("cpu", "cpu", 2, {0: 4}, options, **more)

    def test_hints_are_spelled_out_in_the_kubelets_order(self):
        said = self.voice(AmountFamily({0: 1, 1: 4}, 2, preferred_width=1))

        assert said.hints == (Hint(0b10, preferred=True), Hint(0b11, preferred=False))
        assert not said.hidden

    def test_only_so_many_are_shown(self):
        said = self.voice(AmountFamily(dict.fromkeys(range(6), 4), 2, preferred_width=1))

        assert len(said.hints) == MAX_SHOWN_HINTS
        assert said.hidden

    def test_many_nodes_are_not_walked_for_them(self):
        """On 64 nodes with room on the last ones only there are 2⁶⁴ sets to look through."""
        said = self.voice(
            AmountFamily(dict.fromkeys(range(60), 0) | dict.fromkeys(range(60, 64), 1), 3, preferred_width=1)
        )

        assert said.hints == ()
        assert said.hidden

    @pytest.mark.parametrize(
        ("options", "hints", "indifferent"),
        [
            pytest.param(DONT_CARE, (Hint(None, preferred=True),), True, id="anywhere would do"),
            pytest.param(IMPOSSIBLE, (), False, id="nowhere will do"),
            pytest.param(HintList.of([Hint(1, preferred=True)]), (Hint(1, preferred=True),), False, id="one place"),
        ],
    )
    def test_anywhere_and_nowhere_are_told_apart(self, options, hints, indifferent):
        said = self.voice(options)

        assert said.hints == hints
        assert said.has_no_preference is indifferent

    def test_two_are_equal_when_they_show_the_same(self):
        family = self.voice(AmountFamily({0: 1, 1: 4}, 2, preferred_width=1))
        listed = self.voice(HintList.of([Hint(0b10, preferred=True), Hint(0b11, preferred=False)]))

        assert family == listed
        assert hash(family) == hash(listed)
        assert family != self.voice(listed.options, cut=True)
        assert family != "cpu"


def test_outcomes():
    assert [make().outcome for make in MAKERS] == [
        Outcome.ADMITTED,
        Outcome.REJECTED,
        Outcome.REJECTED,
        Outcome.REJECTED,
        Outcome.ASKING,
        Outcome.ADMITTED,
        Outcome.ADMITTED,
    ]


def test_a_shortfall_knows_what_is_missing():
    assert Shortfall("cpu", "cpu", needed=5, free=3).missing == 2
