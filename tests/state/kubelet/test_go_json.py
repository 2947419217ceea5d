"""JSON the Go way: the same texts taken, the same words about the others, the same spelling."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from alignup.align.errors import ParseError
from alignup.state.kubelet.go_json import MAX_DEPTH, GoArray, GoNumber, GoObject, GoValue, encode_string, parse


@pytest.mark.parametrize(
    ("text", "error"),
    [
        pytest.param(b"", "unexpected end of JSON input", id="nothing at all"),
        pytest.param(b" \n", "unexpected end of JSON input", id="blanks only"),
        pytest.param(b'{"a":1', "unexpected end of JSON input", id="an object not closed"),
        pytest.param(b'{"a"', "unexpected end of JSON input", id="a key and no more"),
        pytest.param(b'"abc', "unexpected end of JSON input", id="a string not closed"),
        pytest.param(b"[1,", "unexpected end of JSON input", id="an array not closed"),
        pytest.param(b"not json", "invalid character 'o' in literal null (expecting 'u')", id="almost null"),
        pytest.param(b"tru", "invalid character ' ' in literal true (expecting 'e')", id="half a word"),
        pytest.param(b"falsE", "invalid character 'E' in literal false (expecting 'e')", id="a word in wrong case"),
        pytest.param(b"{}x", "invalid character 'x' after top-level value", id="garbage after it"),
        pytest.param(b"01", "invalid character '1' after top-level value", id="a leading zero"),
        pytest.param(b"xx", "invalid character 'x' looking for beginning of value", id="garbage only"),
        pytest.param(b"[1,]", "invalid character ']' looking for beginning of value", id="a comma too many"),
        pytest.param(b"[1 2]", "invalid character '2' after array element", id="a comma too few"),
        pytest.param(
            b'{"a":1,}',
            "invalid character '}' looking for beginning of object key string",
            id="a comma too many in an object",
        ),
        pytest.param(
            b"{1:2}", "invalid character '1' looking for beginning of object key string", id="a number as key"
        ),
        pytest.param(b'{"a" 1}', "invalid character '1' after object key", id="no colon"),
        pytest.param(b'{"a":1 "b"}', "invalid character '\"' after object key:value pair", id="no comma"),
        pytest.param(b"['a']", r"invalid character '\'' looking for beginning of value", id="single quotes"),
        pytest.param(b'"a\nb"', r"invalid character '\n' in string literal", id="a line end in a string"),
        pytest.param(b'"\\x"', "invalid character 'x' in string escape code", id="an escape there is not"),
        pytest.param(
            b'"\\u12g4"', "invalid character 'g' in \\u hexadecimal character escape", id="an escape of no number"
        ),
        pytest.param(b"-", "invalid character ' ' in numeric literal", id="a sign and no more"),
        pytest.param(b"1.x", "invalid character 'x' after decimal point in numeric literal", id="no fraction"),
        pytest.param(b"1e+x", "invalid character 'x' in exponent of numeric literal", id="no exponent"),
        pytest.param(b"\xff", "invalid character 'ÿ' looking for beginning of value", id="no text at all"),
        pytest.param(
            b"[" * (MAX_DEPTH + 1), "invalid character '[' exceeded max depth", id="nested deeper than any state"
        ),
    ],
)
def test_what_is_no_json_is_said_in_the_words_of_go(text, error):
    with pytest.raises(ParseError) as refused:
        parse(text)

    assert str(refused.value) == error


@pytest.mark.parametrize(
    ("text", "value"),
    [
        pytest.param(rb'"\u003c\ud83d\ude00"', "<\N{GRINNING FACE}", id="escapes and pairs of them"),
        pytest.param(rb'"\ud83dx"', "\N{REPLACEMENT CHARACTER}x", id="half a pair is lost"),
        pytest.param(b'"a\xe2\x82"', "a" + 2 * "\N{REPLACEMENT CHARACTER}", id="each byte that is no text is lost"),
        pytest.param(rb'"\/\"\\\b\f\n\r\t"', '/"\\\b\f\n\r\t', id="short escapes"),
        pytest.param(b"-1.50e+3", GoNumber("-1.50e+3"), id="numbers as they are written"),
        pytest.param(b' {"a": [true, null], "a": {}} ', None, id="members stay, also those that come twice"),
    ],
)
def test_what_is_json_is_read(text, value):
    expected = value or GoObject((("a", GoArray((True, None))), ("a", GoObject(()))))

    assert parse(text) == expected


trees = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
)


@given(trees)
def test_all_json_is_read_as_what_it_says(tree):
    assert plain(parse(json.dumps(tree).encode())) == tree


@given(st.binary(max_size=40) | st.text(alphabet='{}[]",:\\u0123e-+. tfn', max_size=25).map(str.encode))
def test_the_same_bytes_are_json_to_us_and_to_python(text):
    """But for the numbers JSON does not have; and where we differ from Go in how deep things may be."""
    try:
        parse(text)
    except ParseError:
        with pytest.raises(ValueError):
            json.loads(text.decode(), parse_constant=int)
    else:
        json.loads(text.decode(errors="replace"), parse_constant=int)


@given(st.text())
def test_what_is_spelled_reads_as_what_it_was(text):
    spelled = encode_string(text)

    assert parse(spelled.encode()) == text
    assert not set(spelled) & set("<>&\u2028\u2029")


def plain(tree: GoValue) -> object:
    match tree:
        case GoObject(pairs):
            return {key: plain(value) for key, value in pairs}
        case GoArray(items):
            return [plain(item) for item in items]
        case GoNumber(text):
            return int(text)
        case _:
            return tree
