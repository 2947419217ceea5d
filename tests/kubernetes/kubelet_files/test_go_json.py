"""JSON as Go reads and writes it: the same texts accepted, the same errors, output and dumps for checksums."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from alignup.align.errors import ParseError
from alignup.kubernetes.kubelet_files.go_json import (
    MAX_DEPTH,
    MAX_MARKS,
    STRING,
    GoField,
    GoNumber,
    GoObject,
    GoType,
    GoValue,
    Kind,
    checksum_text,
    decode,
    encode,
    encode_string,
    parse,
)


@pytest.mark.parametrize(
    ("text", "error"),
    [
        pytest.param(b"", "unexpected end of JSON input", id="an empty text"),
        pytest.param(b" \n", "unexpected end of JSON input", id="spaces only"),
        pytest.param(b'{"a":1', "unexpected end of JSON input", id="an open object"),
        pytest.param(b'{"a"', "unexpected end of JSON input", id="a key only"),
        pytest.param(b'"abc', "unexpected end of JSON input", id="an open string"),
        pytest.param(b"[1,", "unexpected end of JSON input", id="an open array"),
        pytest.param(b"not json", "invalid character 'o' in literal null (expecting 'u')", id="almost null"),
        pytest.param(b"tru", "invalid character ' ' in literal true (expecting 'e')", id="half a literal"),
        pytest.param(
            b"falsE", "invalid character 'E' in literal false (expecting 'e')", id="a literal in the wrong case"
        ),
        pytest.param(b"{}x", "invalid character 'x' after top-level value", id="text after the value"),
        pytest.param(b"01", "invalid character '1' after top-level value", id="a leading zero"),
        pytest.param(b"xx", "invalid character 'x' looking for beginning of value", id="not a value"),
        pytest.param(b"[1,]", "invalid character ']' looking for beginning of value", id="an extra comma"),
        pytest.param(b"[1 2]", "invalid character '2' after array element", id="a missing comma"),
        pytest.param(
            b'{"a":1,}',
            "invalid character '}' looking for beginning of object key string",
            id="an extra comma in an object",
        ),
        pytest.param(
            b"{1:2}", "invalid character '1' looking for beginning of object key string", id="a number as key"
        ),
        pytest.param(b'{"a" 1}', "invalid character '1' after object key", id="no colon"),
        pytest.param(b'{"a":1 "b"}', "invalid character '\"' after object key:value pair", id="no comma"),
        pytest.param(b"['a']", r"invalid character '\'' looking for beginning of value", id="single quotes"),
        pytest.param(b'"a\nb"', r"invalid character '\n' in string literal", id="a newline in a string"),
        pytest.param(b'"\\x"', "invalid character 'x' in string escape code", id="an unknown escape"),
        pytest.param(
            b'"\\u12g4"', "invalid character 'g' in \\u hexadecimal character escape", id="an invalid code point"
        ),
        pytest.param(b"-", "invalid character ' ' in numeric literal", id="a sign only"),
        pytest.param(b"1.x", "invalid character 'x' after decimal point in numeric literal", id="no fraction"),
        pytest.param(b"1e+x", "invalid character 'x' in exponent of numeric literal", id="no exponent"),
        pytest.param(b"\xff", "invalid character 'ÿ' looking for beginning of value", id="not UTF-8"),
        pytest.param(b"[" * (MAX_DEPTH + 1), "invalid character '[' exceeded max depth", id="too many levels"),
    ],
)
def test_invalid_json_raises_gos_message(text, error):
    with pytest.raises(ParseError) as caught:
        parse(text)

    assert str(caught.value) == error


@pytest.mark.parametrize(
    ("text", "value"),
    [
        pytest.param(rb'"\u003c\ud83d\ude00"', "<\N{GRINNING FACE}", id="escapes and surrogate pairs"),
        pytest.param(rb'"\ud83dx"', "\N{REPLACEMENT CHARACTER}x", id="a lone surrogate is replaced"),
        pytest.param(b'"a\xe2\x82"', "a" + 2 * "\N{REPLACEMENT CHARACTER}", id="each invalid byte is replaced"),
        pytest.param(rb'"\/\"\\\b\f\n\r\t"', '/"\\\b\f\n\r\t', id="short escapes"),
        pytest.param(b"-1.50e+3", GoNumber("-1.50e+3"), id="numbers stay texts"),
        pytest.param(b' {"a": [true, null], "a": {}} ', None, id="repeated members stay"),
    ],
)
def test_json_is_read(text, value):
    expected = value or GoObject((("a", [True, None]), ("a", GoObject(()))))

    assert parse(text) == expected


trees = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
)


@given(trees)
def test_any_json_is_read(tree):
    assert plain(parse(json.dumps(tree).encode())) == tree


@given(st.binary(max_size=40) | st.text(alphabet='{}[]",:\\u0123e-+. tfn', max_size=25).map(str.encode))
def test_python_accepts_the_same_bytes(text):
    """Except NaN and infinities, and deep nesting, which we limit."""
    try:
        parse(text)
    except ParseError:
        with pytest.raises(ValueError):
            json.loads(text.decode(), parse_constant=int)
    else:
        json.loads(text.decode(errors="replace"), parse_constant=int)


@given(st.text())
def test_an_encoded_string_reads_back(text):
    spelled = encode_string(text)

    assert parse(spelled.encode()) == text
    assert not set(spelled) & set("<>&\u2028\u2029")


def plain(tree: GoValue) -> object:
    match tree:
        case GoObject(pairs):
            return {key: plain(value) for key, value in pairs}
        case list():
            return [plain(item) for item in tree]
        case GoNumber(text):
            return int(text)
        case _:
            return tree


INT = GoType("int", Kind.INT)
SIZE = GoType("uint64", Kind.UINT)
CELLS = GoType("[]int", Kind.SLICE, INT)
INNER = GoType("state.Inner", Kind.STRUCT, fields=(GoField("size", "Size", SIZE), GoField("cells", "Cells", CELLS)))
CPUS_JSON = GoField("cpuSet", "CPUSet", GoType("state.podEntryJSON", Kind.STRUCT))
CPUS = GoType("state.PodEntry", Kind.CPU_SET, fields=(CPUS_JSON,))
OUTER = GoType(
    "state.Outer",
    Kind.STRUCT,
    fields=(
        GoField("name", "Name", STRING),
        GoField("lists", "Lists", GoType("map[string]string", Kind.MAP, STRING)),
        GoField("nodes", "Nodes", GoType("state.Nodes", Kind.POINTER_MAP, INNER, INT), omit_empty=True),
        GoField("pods", "Pods", GoType("state.Pods", Kind.MAP, CPUS), omit_empty=True),
        GoField("raw", "Raw", GoType("[]uint8", Kind.BYTES), omit_empty=True),
    ),
)


@pytest.mark.parametrize(
    ("text", "given", "field", "type_"),
    [
        pytest.param("[]", "array", "value", "state.Outer", id="not a struct"),
        pytest.param('{"name":1}', "number", "Outer.name", "string", id="a number instead of a string"),
        pytest.param('{"lists":{"a":true}}', "bool", "Outer.lists", "string", id="a value of a map"),
        pytest.param('{"lists":"x"}', "string", "Outer.lists", "map[string]string", id="not a map"),
        pytest.param(
            '{"nodes":{"0":{"size":"x"}}}', "string", "Inner.nodes.size", "uint64", id="inside another struct"
        ),
        pytest.param(
            '{"nodes":{"0":{"size":-1}}}', "number -1", "Inner.nodes.size", "uint64", id="a number out of range"
        ),
        pytest.param('{"nodes":{"0":{"cells":[1.5]}}}', "number 1.5", "Inner.nodes.cells", "int", id="a fraction"),
        pytest.param('{"nodes":{"x":{}}}', "number x", "Outer.nodes", "int", id="a key that is not a number"),
        pytest.param(
            '{"pods":{"p":{"cpuSet":7}}}',
            "number",
            "Outer.pods.cpuSet",
            "string",
            id="a number instead of a list of CPUs",
        ),
        pytest.param('{"pods":{"p":[]}}', "array", "Outer.pods", "state.podEntryJSON", id="not a list of CPUs"),
        pytest.param('{"nodes":{"0":{"cells":7}}}', "number", "Inner.nodes.cells", "[]int", id="not a list"),
        pytest.param('{"raw":[]}', "array", "Outer.raw", "[]uint8", id="a list of bytes"),
        pytest.param('{"name":1,"lists":2}', "number", "Outer.name", "string", id="only the first error counts"),
    ],
)
def test_values_of_wrong_types_raise_gos_message(text, given, field, type_):
    _, message = decode(OUTER, text.encode())

    place = "value" if field == "value" else f"struct field {field}"
    assert message == f"json: cannot unmarshal {given} into Go {place} of type {type_}"


@pytest.mark.parametrize(
    ("text", "error"),
    [
        pytest.param(
            '{"pods":{"p":{"cpuSet":"3-1"}}}',
            'failed to parse cpuset: invalid range "3-1" (3 > 1)',
            id="an invalid range of CPUs",
        ),
        pytest.param('{"raw":"?"}', "illegal base64 data", id="not base64"),
    ],
)
def test_invalid_strings_raise_gos_message(text, error):
    _, message = decode(OUTER, text.encode())

    assert message == error


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

    assert checksum_text(OUTER, value) == (
        "{Name:(string)a b Lists:(map[string]string)map[a:2 z:1] "
        "Nodes:(state.Nodes)map[2:<nil> 10:<*>{Size:(uint64)5 Cells:([]int)[1 2]}] "
        "Pods:(state.Pods)map[p:{CPUSet:(cpuset.CPUSet){elems:(map[int]struct {})map[1:{} 2:{}]}}] "
        "Raw:([]uint8)[1 255]}"
    )


def test_nil_is_dumped_as_nil():
    assert checksum_text(OUTER, OUTER.zero) == (
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

    assert encode(OUTER, value) == (
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
    assert decode(OUTER, encode(OUTER, value).encode()) == (value, None)


def test_a_text_that_would_take_much_memory_is_not_decoded():
    struct = GoType(
        "State", Kind.STRUCT, fields=(GoField("list", "List", GoType("[]string", Kind.SLICE, elem=STRING)),)
    )

    value, error = decode(struct, b'{"list":[' + b'"",' * MAX_MARKS + b'""]}')

    assert error == "more than 1000000 commas, colons and brackets (a limit of alignup)"
    assert value == struct.zero
