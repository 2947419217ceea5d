"""JSON as Go reads and writes it: the same texts accepted, the same errors, the same output."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from alignup.align.errors import ParseError
from alignup.kubernetes.kubelet_files.go_json import MAX_DEPTH, GoNumber, GoObject, GoValue, encode_string, parse


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
    expected = value or GoObject((("a", (True, None)), ("a", GoObject(()))))

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
        case tuple():
            return [plain(item) for item in tree]
        case GoNumber(text):
            return int(text)
        case _:
            return tree
