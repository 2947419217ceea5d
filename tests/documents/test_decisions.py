"""Decisions as JSON documents: they read back the same, and a damaged one is an error with a path."""

import json
from copy import deepcopy
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from alignup.align.decision import Decision, Outcome
from alignup.align.errors import ParseError
from alignup.align.machine import Device
from alignup.align.settings import Policy, Scope
from alignup.documents import codec
from alignup.documents.decisions import (
    VERSION,
    DecisionDocument,
    RecentDocuments,
    decision_document,
    from_document,
    to_document,
)
from tests.align.hosts import GPU, make_host, make_pod


def admitted() -> Decision:
    return make_host().decide(make_pod(gpu="1"))


def rejected() -> Decision:
    return make_host().decide(make_pod(cpu="5", gpu="1"))


def rejected_by_a_provider() -> Decision:
    return make_host(Policy.BEST_EFFORT).decide(make_pod(gpu="3"))


def too_many_pods() -> Decision:
    return make_host(Policy.NONE, max_pods=0).decide(make_pod())


def asking() -> Decision:
    host = make_host(preferred_allocation=frozenset({GPU}))
    host.update_devices(GPU, [Device(GPU, f"gpu-{number}", nodes=1) for number in range(3)])
    return host.decide(make_pod(gpu="2"))


def kept() -> Decision:
    host = make_host(scope=Scope.POD)
    host.admit(make_pod())
    return host.decide(make_pod())


def unaligned() -> Decision:
    return make_host(Policy.BEST_EFFORT, shape="numa:8 core:4 pu:1").decide(make_pod(cpu="9"))


MAKERS = [admitted, rejected, rejected_by_a_provider, too_many_pods, asking, kept, unaligned]
every_kind = pytest.mark.parametrize("make", MAKERS, ids=lambda make: make.__name__.replace("_", " "))


@every_kind
def test_a_decision_reads_back(make):
    decision = make()

    document = to_document(decision)
    plain = json.loads(json.dumps(document))
    read = from_document(plain)

    assert plain == to_document(read) == document
    assert (read.before, read.after) == (None, None), "the ledgers are not part of the document"
    assert codec.decode(codec.encode(decision_document(decision)), DecisionDocument) == decision_document(read)


def test_one_decision_has_one_document():
    documents = RecentDocuments(size=2)
    first = admitted()
    document = documents.document(first)

    assert documents.document(first) is document
    assert document == decision_document(first)
    documents.document(rejected())
    documents.document(kept())
    assert documents.document(first) is not document, "the oldest is dropped"


def test_sets_are_linux_lists():
    document = to_document(unaligned())

    assert document["placements"][0]["hint"] == {"nodes": "0-2", "preferred": False}
    assert document["placements"][0]["given"]["cpu"] == {"cpu": "1,4-11"}


@pytest.mark.parametrize("version", [3, 1, 0, "2", True, None], ids=repr)
def test_an_unsupported_version_is_named(version):
    assert VERSION == 2

    with pytest.raises(ParseError, match=f"version {version!r} is not supported: this release reads version 2"):
        from_document(to_document(admitted()) | {"version": version})


@pytest.mark.parametrize("value", [None, [], "decision", 1, {}], ids=repr)
def test_other_values_are_rejected(value):
    with pytest.raises(ParseError):
        from_document(value)


def paths(value: Any, here: tuple = ()):
    """Yield every path in a document."""
    yield here
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, inner in items:
        yield from paths(inner, (*here, key))


PLACES = [(make, path) for make in MAKERS for path in paths(to_document(make())) if path]
GONE = object()
anything = st.sampled_from([GONE, None, True, 0, -1, 1.5, "", "x", "3-1", [], {}, [None], ["a"], {"a": 1}])


@given(st.sampled_from(PLACES), anything)
def test_a_damaged_document_is_rejected_or_read_as_a_decision(place, instead):
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
        pytest.param("pod", {}, "pod: object missing required field `uid`", id="a missing field"),
        pytest.param("pod.name", 5, "pod.name: expected `str`, got `int`", id="a number instead of a string"),
        pytest.param("kept", "no", "kept: expected `bool`, got `str`", id="a string instead of a boolean"),
        pytest.param("steps", {}, "steps: expected `array`, got `object`", id="an object instead of a list"),
        pytest.param(
            "steps.0.width", 1.0, "steps[0].width: expected `int`, got `float`", id="a float instead of an integer"
        ),
        pytest.param("steps.0.rule", "LUCK", "steps[0].rule: expected `str` matching regex", id="an unknown rule"),
        pytest.param("outcome", "maybe", "outcome: invalid enum value 'maybe'", id="an unknown outcome"),
        pytest.param(
            "steps.0.hint.nodes", "b", "steps[0].hint.nodes: expected `str` matching regex", id="an invalid set"
        ),
    ],
)
def test_errors_name_the_path(path, instead, message):
    document = to_document(admitted())
    around: Any = document
    *way, last = (int(step) if step.isdigit() else step for step in path.split("."))
    for step in way:
        around = around[step]
    around[last] = instead

    with pytest.raises(ParseError) as caught:
        from_document(document)

    assert message in str(caught.value)


def test_unknown_fields_are_ignored():
    """A new field does not change the version."""
    decision = rejected()
    document = to_document(decision)
    for place in (document, document["pod"], document["steps"][0], document["rejection"]["shortfalls"][0]):
        place["mood"] = "good"

    assert to_document(from_document(document)) == to_document(decision)


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
