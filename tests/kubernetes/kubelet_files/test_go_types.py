"""Go types: decoding, Go's errors, encoding, and dumps for checksums."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from alignup.kubernetes.kubelet_files.go_types import (
    GoBytes,
    GoCpuSetEntry,
    GoField,
    GoInteger,
    GoMap,
    GoSlice,
    GoString,
    GoStruct,
    decode,
)

TEXT = GoString()
INT = GoInteger("int", signed=True)
SIZE = GoInteger("uint64")
INNER = GoStruct("state.Inner", (GoField("size", "Size", SIZE), GoField("cells", "Cells", GoSlice("[]int", INT))))
CPUS = GoCpuSetEntry("state.PodEntry", "state.podEntryJSON", "cpuSet", "CPUSet")
OUTER = GoStruct(
    "state.Outer",
    (
        GoField("name", "Name", TEXT),
        GoField("lists", "Lists", GoMap("map[string]string", TEXT, TEXT)),
        GoField("nodes", "Nodes", GoMap("state.Nodes", INT, INNER, pointers=True), omit_empty=True),
        GoField("pods", "Pods", GoMap("state.Pods", TEXT, CPUS), omit_empty=True),
        GoField("raw", "Raw", GoBytes(), omit_empty=True),
    ),
)


@pytest.mark.parametrize(
    ("text", "error"),
    [
        pytest.param("[]", "json: cannot unmarshal array into Go value of type state.Outer", id="not a struct"),
        pytest.param(
            '{"name":1}',
            "json: cannot unmarshal number into Go struct field Outer.name of type string",
            id="a number instead of a string",
        ),
        pytest.param(
            '{"lists":{"a":true}}',
            "json: cannot unmarshal bool into Go struct field Outer.lists of type string",
            id="a value of a map",
        ),
        pytest.param(
            '{"lists":"x"}',
            "json: cannot unmarshal string into Go struct field Outer.lists of type map[string]string",
            id="not a map",
        ),
        pytest.param(
            '{"nodes":{"0":{"size":"x"}}}',
            "json: cannot unmarshal string into Go struct field Inner.nodes.size of type uint64",
            id="inside another struct",
        ),
        pytest.param(
            '{"nodes":{"0":{"size":-1}}}',
            "json: cannot unmarshal number -1 into Go struct field Inner.nodes.size of type uint64",
            id="a number out of range",
        ),
        pytest.param(
            '{"nodes":{"0":{"cells":[1.5]}}}',
            "json: cannot unmarshal number 1.5 into Go struct field Inner.nodes.cells of type int",
            id="a fraction",
        ),
        pytest.param(
            '{"nodes":{"x":{}}}',
            "json: cannot unmarshal number x into Go struct field Outer.nodes of type int",
            id="a key that is not a number",
        ),
        pytest.param(
            '{"pods":{"p":{"cpuSet":"3-1"}}}',
            'failed to parse cpuset: invalid range "3-1" (3 > 1)',
            id="an invalid range of CPUs",
        ),
        pytest.param(
            '{"pods":{"p":{"cpuSet":7}}}',
            "json: cannot unmarshal number into Go struct field Outer.pods.cpuSet of type string",
            id="a number instead of a list of CPUs",
        ),
        pytest.param(
            '{"pods":{"p":[]}}',
            "json: cannot unmarshal array into Go struct field Outer.pods of type state.podEntryJSON",
            id="not a list of CPUs",
        ),
        pytest.param(
            '{"nodes":{"0":{"cells":7}}}',
            "json: cannot unmarshal number into Go struct field Inner.nodes.cells of type []int",
            id="not a list",
        ),
        pytest.param(
            '{"raw":[]}',
            "json: cannot unmarshal array into Go struct field Outer.raw of type []uint8",
            id="a list of bytes",
        ),
        pytest.param('{"raw":"?"}', "illegal base64 data", id="not base64"),
        pytest.param(
            '{"name":1,"lists":2}',
            "json: cannot unmarshal number into Go struct field Outer.name of type string",
            id="only the first error counts",
        ),
    ],
)
def test_values_of_wrong_types_raise_gos_message(text, error):
    _, found = decode(OUTER, text.encode())

    assert found == error


def test_values_after_one_of_a_wrong_type_are_decoded():
    value, error = decode(OUTER, b'{"lists":3,"name":"n"}')

    assert error is not None
    assert value["name"] == "n"


def test_values_after_invalid_cpus_are_not_decoded():
    value, error = decode(OUTER, b'{"raw":"AA==","pods":{"p":{"cpuSet":"x"}},"name":"n"}')

    assert error is not None
    assert (value["raw"], value["name"]) == (b"\0", "")


@pytest.mark.parametrize(
    ("text", "key", "expected"),
    [
        pytest.param('{"NAME":"n"}', "name", "n", id="keys match in any case"),
        pytest.param('{"name":"a","name":"b"}', "name", "b", id="the last of two counts"),
        pytest.param('{"lists":{"a":"1"},"lists":{"b":"2"}}', "lists", {"a": "1", "b": "2"}, id="maps are merged"),
        pytest.param('{"other":[{}],"name":"n"}', "name", "n", id="unknown fields are ignored"),
        pytest.param('{"name":null}', "name", "", id="null changes nothing"),
        pytest.param('{"lists":null}', "lists", None, id="null resets a map"),
        pytest.param('{"nodes":{"+1":null}}', "nodes", {1: None}, id="a pointer may be null"),
        pytest.param('{"raw":"AA==","raw":null}', "raw", None, id="null resets bytes"),
        pytest.param('{"raw":"AQ\\nI="}', "raw", b"\1\2", id="base64 on two lines"),
        pytest.param('{"pods":{"p":null,"q":{}}}', "pods", {"p": 0, "q": 0}, id="null and an empty object are no CPUs"),
    ],
)
def test_values_are_decoded_as_go_does(text, key, expected):
    value, error = decode(OUTER, text.encode())

    assert error is None
    assert value[key] == expected


def test_a_struct_is_dumped_with_types_and_sorted_keys():
    value = {
        "name": "a b",
        "lists": {"z": "1", "a": "2"},
        "nodes": {10: {"size": 5, "cells": (1, 2)}, 2: None},
        "pods": {"p": 0b110},
        "raw": b"\x01\xff",
    }

    assert OUTER.dump(value) == (
        "{Name:(string)a b Lists:(map[string]string)map[a:2 z:1] "
        "Nodes:(state.Nodes)map[2:<nil> 10:<*>{Size:(uint64)5 Cells:([]int)[1 2]}] "
        "Pods:(state.Pods)map[p:{CPUSet:(cpuset.CPUSet){elems:(map[int]struct {})map[1:{} 2:{}]}}] "
        "Raw:([]uint8)[1 255]}"
    )


def test_nil_is_dumped_as_nil():
    assert OUTER.dump(OUTER.zero) == (
        "{Name:(string) Lists:(map[string]string)<nil> Nodes:(state.Nodes)<nil> "
        "Pods:(state.Pods)<nil> Raw:([]uint8)<nil>}"
    )


def test_fields_are_written_in_order_and_maps_sorted_as_text():
    value = {
        "name": "<",
        "lists": None,
        "nodes": {10: {"size": 5, "cells": None}, 2: None},
        "pods": {"p": 0b110, "q": 0},
        "raw": b"",
    }

    assert OUTER.write(value) == (
        '{"name":"\\u003c","lists":null,"nodes":{"10":{"size":5,"cells":null},"2":null},"pods":{"p":{"cpuSet":"1-2"},"q":{}}}'
    )


values = st.fixed_dictionaries(
    {
        "name": st.text(),
        "lists": st.none() | st.dictionaries(st.text(), st.text()),
        "nodes": st.none()
        | st.dictionaries(
            st.integers(-(1 << 63), (1 << 63) - 1),
            st.fixed_dictionaries(
                {"size": st.integers(0, (1 << 64) - 1), "cells": st.none() | st.lists(st.integers(-9, 9)).map(tuple)}
            ),
            min_size=1,
        ),
        "pods": st.none() | st.dictionaries(st.text(), st.integers(0, 1 << 20), min_size=1),
        "raw": st.none() | st.binary(min_size=1),
    }
)


@given(values)
def test_a_written_value_reads_back(value):
    assert decode(OUTER, OUTER.write(value).encode()) == (value, None)
