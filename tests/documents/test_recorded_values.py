"""Values of recordings: what is written can be read, and nothing else is constructed."""

import json
import subprocess
from collections import Counter, OrderedDict, deque
from dataclasses import replace
from datetime import UTC, datetime

import pytest

from alignup.align.errors import AlignError, ParseError, PodError, Problem
from alignup.documents.recorded_values import NotRecordableError, RecordedKey, ValueReader, ValueWriter
from alignup.placement.host_record import Binding
from alignup.placement.host_report import PodStage
from alignup.placement.scheduling.facts import GroupKey, WaitState
from tests.align.hosts import host, pod
from tests.placement.clusters import report

POD = pod("a", cpu="2", memory="1Gi")


def read_back(value):
    return ValueReader().read(json.loads(ValueWriter().line(value)))


@pytest.mark.parametrize(
    "value",
    [
        (None, True, 1, -1.5, "text", ()),
        (1 << 200, -(1 << 64), float("inf"), float("-inf")),
        [1, [2]],
        {"a": {"b": (1,)}, "$": 1, "#": 2},
        {1: "a", (2, "b"): "c"},
        OrderedDict(b=1, a=2),
        Counter({("ns", True): 2}),
        {"a", "b"},
        frozenset({GroupKey("ns", "name", "label")}),
        deque(["a", "b"]),
        WaitState.GATED,
        POD,
        replace(POD, priority=7, labels={"a": "b"}),
        report("a", host()),
    ],
    ids=lambda value: type(value).__name__,
)
def test_what_is_written_is_read(value):
    read = read_back(value)
    assert (read, type(read)) == (value, type(value))
    alone = ValueWriter(alone=True)
    assert alone.line(read) == alone.line(value)


def test_the_order_of_keys_is_read():
    read = read_back({"b": 1, "a": 2}.keys())
    assert list(read) == ["b", "a"]
    assert read >= {"a"}


def test_immutable_values_are_written_once_and_mutable_ones_once_a_line():
    writer, reader = ValueWriter(), ValueReader()
    binding = Binding(POD, observed=False, foreign=False)
    lines = [writer.line((binding, binding, POD))]
    binding.observed = True
    lines.append(writer.line((binding, POD)))

    first, same, read_pod = reader.read(json.loads(lines[0]))
    later, again = reader.read(json.loads(lines[1]))

    assert first is same
    assert read_pod is again is first.pod is later.pod
    assert (first.observed, later.observed) == (False, True)
    assert b'"$":"Pod"' not in lines[1]


def test_equal_values_of_other_types_are_equal_keys():
    first, second = datetime(2026, 1, 1, tzinfo=UTC), datetime(2026, 1, 2, tzinfo=UTC)
    keys = read_back((first, (second,), datetime(2026, 1, 1, tzinfo=UTC)))
    assert keys == (RecordedKey(1), (RecordedKey(2),), RecordedKey(1))


def test_errors_keep_their_names_texts_and_kinds():
    problems = PodError([Problem("spec", "no")])
    read = read_back((problems, ZeroDivisionError("a defect"), AlignError("b")))
    assert [(type(error).__name__, str(error)) for error in read] == [
        ("PodError", str(problems)),
        ("ZeroDivisionError", "a defect"),
        ("AlignError", "b"),
    ]
    assert [isinstance(error, PodError) for error in read] == [True, False, False]
    assert [isinstance(error, AlignError) for error in read] == [True, False, True]


@pytest.mark.parametrize("value", [print, host(), {"a": [host]}], ids=["function", "part of the core", "type"])
def test_values_that_are_no_data_are_refused(value):
    with pytest.raises(NotRecordableError, match="cannot record a value of type"):
        ValueWriter().line(value)


@pytest.mark.parametrize(
    "document",
    [
        {"$": "Popen", "args": ["true"]},
        {"$": "subprocess.Popen", "args": ["true"]},
        {"$": "Path", "=": "/etc"},
        {"$": "Host"},
        {"$": "PodStage", "=": "flying"},
        {"$": "error", "=": ["x", "SystemExit", "y"]},
        {"$": ["Pod"]},
        {"#": 1},
        {"$": "int", "=": "one"},
        {"$": "GroupKey", "namespace": "a"},
        {"$": "Pod", "name": "a", "__class__": "b"},
    ],
    ids=str,
)
def test_nothing_else_is_constructed(document, monkeypatch):
    monkeypatch.setattr(subprocess, "Popen", None)
    with pytest.raises(ParseError):
        ValueReader().read(document)


def test_enums_are_read_as_such():
    assert read_back(PodStage.ENDED) is PodStage.ENDED
