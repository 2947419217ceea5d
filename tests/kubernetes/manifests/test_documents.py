import json

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from alignup.align.errors import DocumentError
from alignup.kubernetes.manifests import documents
from alignup.kubernetes.manifests.documents import DuplicateKey, NumberLiteral, ParsedDocument, read
from tests.deadlines import cpu_limit

words = st.text(st.sampled_from('ab1":\\é\U0001f600 \t') | st.characters(exclude_categories=["Cs", "Cc"]), max_size=8)


def only(text):
    (document,) = read(text)
    return document.value


def error_of(text):
    with pytest.raises(DocumentError) as rejection:
        read(text)
    return rejection.value


def typed(value):
    """*value* with its types, so that the number 1 differs from the string "1"."""
    if isinstance(value, dict):
        return {key: typed(item) for key, item in value.items()}
    if isinstance(value, list):
        return [typed(item) for item in value]
    return (type(value).__name__, value)


@pytest.mark.parametrize(
    ("text", "value"),
    [
        pytest.param("a: {b: [1, x]}", {"a": {"b": [NumberLiteral("1"), "x"]}}, id="objects, lists and scalars"),
        pytest.param("a: '1'\nb: \"yes\"", {"a": "1", "b": "yes"}, id="quoted scalars are strings"),
        pytest.param("a: |\n  x\n  y\nb: >\n  x\n  y\n", {"a": "x\ny\n", "b": "x y\n"}, id="blocks are strings"),
        pytest.param("a: |\n  010", {"a": "010"}, id="a block without a final line break"),
        pytest.param(
            "yes: 1\n2: x\n1.50: z", {"true": NumberLiteral("1"), "2": "x", "1.5": "z"}, id="keys become strings"
        ),
        pytest.param("a: !!str 1\nb: !!int '7'", {"a": "1", "b": NumberLiteral("7")}, id="tags"),
        pytest.param("a: ! 12\nb: !x {c: 1}", {"a": "12", "b": {"c": NumberLiteral("1")}}, id="unknown tags"),
        pytest.param(
            "a: &x 1\nb: *x\n? *x\n: c", {"a": NumberLiteral("1"), "b": NumberLiteral("1"), "1": "c"}, id="aliases"
        ),
        pytest.param("a: &x {b: 1}\nc: [*x, *x]", {"a": {"b": "1"}, "c": [{"b": "1"}] * 2}, id="aliases of objects"),
        pytest.param("a: &x 1\nb: &x 2\nc: *x", {"a": "1", "b": "2", "c": "2"}, id="an anchor set again"),
        pytest.param("a: &x [&x b, *x]\nc: *x", {"a": ["b", "b"], "c": "b"}, id="an anchor set again inside itself"),
        pytest.param("\ufeffa: 1", {"a": NumberLiteral("1")}, id="a byte order mark"),
        pytest.param("a:\n- b\n- c", {"a": ["b", "c"]}, id="an unindented list"),
        pytest.param("{a: b, c: [d]}", {"a": "b", "c": ["d"]}, id="YAML that starts like JSON"),
    ],
)
def test_yaml(text, value):
    assert only(text) == value


@pytest.mark.parametrize(
    ("text", "value"),
    [
        pytest.param("{<<: *x, b: 0}", {"a": "1", "b": "0"}, id="later keys win"),
        pytest.param("{b: 0, <<: *x}", {"a": "1", "b": "2"}, id="earlier keys do not"),
        pytest.param("{<<: [*x, *y]}", {"a": "1", "b": "2", "c": "4"}, id="the first of several wins"),
        pytest.param("{<<: {c: 0}, d: 1}", {"c": "0", "d": "1"}, id="an inline object"),
        pytest.param("{<<: [{c: 0}, *x]}", {"a": "1", "b": "2", "c": "0"}, id="a list of both"),
        pytest.param("{!!merge <<: *x}", {"a": "1", "b": "2"}, id="by tag"),
        pytest.param("{'<<': *x}", {"<<": {"a": "1", "b": "2"}}, id="quoted, an ordinary key"),
        pytest.param("[<<]", ["<<"], id="in a list, a string"),
        pytest.param("{d: <<}", {"d": "<<"}, id="as a value, a string"),
    ],
)
def test_merge_keys(text, value):
    text = f"- &x {{a: 1, b: 2}}\n- &y {{b: 3, c: 4}}\n- {text}"

    assert only(text)[2] == value
    assert only(text)[:2] == [{"a": "1", "b": "2"}, {"b": "3", "c": "4"}]
    assert not read(text)[0].repeated


@pytest.mark.parametrize(
    ("text", "line", "message"),
    [
        pytest.param("a: b\n\tc: d", 2, "found a tab character that violates indentation", id="a tab in a scalar"),
        pytest.param("a:\n\tb: c", 2, "found a tab where YAML allows only spaces", id="a tab instead of spaces"),
        pytest.param("a: @b", 1, "unexpected character '@'", id="a reserved character"),
        pytest.param("é:\r\n  - @b", 2, "unexpected character '@'", id="after multi-byte characters"),
        pytest.param(
            "a:\x85\tb: c", 2, "found a tab where YAML allows only spaces", id="a tab after an unusual line break"
        ),
        pytest.param("a: [1\nb: 2", 2, "while parsing a flow sequence that begins on line 1", id="an unclosed list"),
        pytest.param("a: b: c", 1, "mapping values are not allowed in this context", id="two colons"),
        pytest.param("a: \x01", 1, "character 0x1 is not allowed in YAML", id="a control character"),
        pytest.param(
            "x: é\na: \x01", 2, "character 0x1 is not allowed in YAML", id="a control character on the second line"
        ),
        pytest.param("a: *x", 1, "unknown anchor 'x' referenced", id="an unknown alias"),
        pytest.param("a: 1\nb: &x [*x]", 2, "anchor 'x' value contains itself", id="an alias of itself"),
        pytest.param("a: .inf", 1, "json: unsupported value: +Inf", id="infinity"),
        pytest.param("a: 1\n~: 2", 2, "null cannot be a key", id="null as a key"),
        pytest.param("a: 1\n[x]: 2", 2, "a list or an object cannot be a key", id="a list as a key"),
        pytest.param("a: &x [1]\n? *x\n: 2", 2, "a list or an object cannot be a key", id="a list as a key by alias"),
        pytest.param("a: !!int x", 1, "`x` is not a valid !!int", id="a wrong tag"),
        pytest.param("<<: 1", 1, "map merge requires map or sequence of maps as the value", id="<< of a number"),
        pytest.param("<<: [1]", 1, "map merge requires map or sequence of maps", id="<< of a list of numbers"),
        pytest.param("a: &x [{}]\n<<: *x", 2, "map merge requires map or sequence of maps", id="<< of another list"),
        pytest.param("a: &x 1\n<<: *x", 2, "map merge requires map or sequence of maps", id="<< of another number"),
        pytest.param("a: !%ED%A0%80 1", 1, "not valid UTF-8", id="a surrogate in a tag"),
        pytest.param(b"a: 1\nb: \xff", 2, "not valid UTF-8 (byte 0xff)", id="invalid UTF-8"),
        pytest.param("a: 1\nb: \ud800", 2, "unpaired surrogate, which UTF-8 cannot encode", id="an unpaired surrogate"),
        pytest.param(b"\xff\xfea", 1, "not valid UTF-8", id="truncated UTF-16"),
        pytest.param('{"a": 1,\n "b" 2}', 2, "not JSON: Expecting ':' delimiter", id="JSON without a colon"),
        pytest.param("{a: 1,\n b: }}", 2, "did not find expected", id="an object closed twice"),
    ],
)
def test_invalid_texts(text, line, message):
    error = error_of(text)

    assert error.line == line
    assert message in error.message
    assert str(error) == f"line {line}: {error.message}"
    assert "\n" not in str(error)


def test_empty_documents_are_counted():
    text = "# nothing\n---\na: 1\n---\n# nothing\n---\n~\n--- b\n...\n---\n- c\n"

    assert [(document.number, document.line, document.value) for document in read(text)] == [
        (1, 2, {"a": "1"}),
        (4, 8, "b"),
        (5, 10, ["c"]),
    ]


@pytest.mark.parametrize("text", ["", " \n", "# nothing\n", "---\n---\n", "null", b"", "\ufeff"])
def test_empty_texts(text):
    assert read(text) == ()


def test_errors_name_the_document():
    assert error_of("a: 1\n---\nb: [").document == 2
    assert error_of("a: 1\n---\nb: 2\n---\nb: *x").document == 3
    assert error_of("a: 1\n...\n%YAML 9.9\n---\n").document == 2


def test_duplicate_keys_are_recorded_and_the_last_one_wins():
    text = "a: 1\nb: {c: 1, c: 2}\na: 3\n1: x\n'1': z\n"

    (document,) = read(text)

    assert document.value == {"a": "3", "b": {"c": "2"}, "1": "z"}
    assert document.repeated == (DuplicateKey(2, "c"), DuplicateKey(3, "a"), DuplicateKey(5, "1"))


def test_duplicate_keys_in_json():
    (document,) = read('\n{"a": 1, "b": {"c": 1, "c": 2}, "a": 3, "a": 4}')

    assert document.value == {"a": "4", "b": {"c": "2"}}
    assert document.repeated == (DuplicateKey(2, "c"), DuplicateKey(2, "a"), DuplicateKey(2, "a"))


@pytest.mark.parametrize(
    ("text", "keys"),
    [
        pytest.param(r'{"a":"\":","b":{"a":1}}', [], id="a quote and a colon in a string"),
        pytest.param(r'{"a\\":1,"b":2}', [], id="a backslash at the end of a key"),
        pytest.param(r'{"a":1,"a":2,"b\\":3}', ["a"], id="beside a duplicate key"),
        pytest.param('{"a":1,"a":2,"b" :3}', ["a"], id="a duplicate key beside spaces"),
        pytest.param('{"a":1,"a":2,"b"\n\t:3}', ["a"], id="beside other white space"),
        pytest.param(r'{"a":1,"\u0061":2}', ["a"], id="a key written in two ways"),
        pytest.param('{"":1,"":2}', [""], id="an empty key"),
    ],
)
def test_duplicate_keys_in_json_however_it_is_written(text, keys):
    (document,) = read(text)

    assert [again.key for again in document.repeated] == keys
    assert document.value == json.loads(text, parse_int=str)


@given(st.lists(st.tuples(words, words), max_size=4), st.sampled_from([":", " :", ": ", "\n:"]))
def test_exactly_the_duplicate_keys_in_json_are_recorded(pairs, colon):
    text = "{" + ",".join(f"{json.dumps(key)}{colon}{json.dumps(value)}" for key, value in pairs) + "}"

    (document,) = read(text)

    assert len(document.repeated) == len(pairs) - len(dict(pairs))
    assert document.value == dict(pairs)


def test_objects_have_lines():
    (document,) = read("# a list\nitems:\n- a: 1\n  b:\n    c: 2\n-   d: 3\n")
    first, second = document.value["items"]

    assert [document.lines[id(part)] for part in (document.value, first, first["b"], second)] == [2, 3, 5, 6]


def test_objects_in_json_have_the_line_of_the_document():
    (document,) = read('\n{"a": {"b": 1}}')

    assert (document.lines, document.line) == ({}, 2)


@pytest.mark.parametrize(
    ("text", "value"),
    [
        pytest.param('{"a": 1e3, "b": 1.50, "c": 010}', {"a": "1000", "b": "1.5", "c": "8"}, id="YAML"),
        pytest.param('{"a": 1e3, "b": 1.50, "c": -0}', {"a": "1e3", "b": "1.50", "c": "-0"}, id="JSON"),
        pytest.param('\t{"a":\t"\\u00e9\\/"}', {"a": "é/"}, id="tabs and escapes"),
        pytest.param('{"a": "\\ud83d\\ude00 \\ud83d \\\\ud83d"}', {"a": "😀 \ufffd \\ud83d"}, id="unpaired surrogates"),
        pytest.param('{"a": [true, null, {}]}', {"a": [True, None, {}]}, id="constants"),
    ],
)
def test_numbers_keep_their_spelling_in_json_only(text, value):
    assert only(text) == value


def test_several_json_documents():
    assert [(document.number, document.line, document.value) for document in read('{"a": 1}\n\n{}\n{"b": 2} null')] == [
        (1, 1, {"a": "1"}),
        (2, 3, {}),
        (3, 4, {"b": "2"}),
    ]


def test_json_documents_separated_by_dashes_are_yaml():
    assert [document.value for document in read('{"a": 1e3}\n---\n{"b": 2}')] == [{"a": "1000"}, {"b": "2"}]


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16"])
def test_encodings(encoding):
    assert only("a: é😀".encode(encoding)) == {"a": "é😀"}


def chain(length):
    """Objects that contain each other twice, by aliases."""
    links = (f"- &n{number} {{a: *n{number - 1}, b: *n{number - 1}}}\n" for number in range(1, length))
    return "- &n0 x\n" + "".join(links)


def nested(length):
    """Lists nested by aliases."""
    return "- &n0 [x]\n" + "".join(f"- &n{number} [*n{number - 1}]\n" for number in range(1, length))


def merged(times):
    """One large object merged into many others."""
    return "- &x {" + "".join(f"k{number}: 1, " for number in range(times)) + "}\n" + "- {<<: *x}\n" * times


MILLION = 1_000_000
BOMBS = {
    "aliases of aliases": (lambda: chain(40), "more than 400,000 values and keys"),
    "nested aliases": (lambda: nested(500), "nested more than 100 levels deep"),
    "repeated merges": (lambda: merged(999), "more than 400,000 values and keys"),
    "open lists": (lambda: "[" * MILLION, "nested more than 100 levels deep"),
    "open objects": (lambda: "{a: " * (3 * MILLION), "more than 3,000,000 commas"),
    "lists in lines": (lambda: "- " * MILLION, "nested more than 100 levels deep"),
    "keys of keys": (lambda: "? " * MILLION, "nested more than 100 levels deep"),
    "open lists in JSON": (lambda: '{"a":' + "[" * MILLION, "nested more than 100 levels deep"),
    "closed lists in JSON": (lambda: '{"a":' + "[" * 100 + "]" * 100 + "}", "nested more than 100 levels deep"),
    "many values in JSON": (lambda: '{"a":[' + "[]," * (3 * MILLION + 1), "more than 3,000,000 commas"),
    "a long key": (lambda: '"' + "k" * MILLION + '": 1', "mapping values are not allowed"),
    "directives": (lambda: "".join(f"%TAG !{i}! x\n" for i in range(10_000)), "more than 100 directives"),
    "documents": (lambda: "--- a\n" * 20_001, "more than 20,000 documents"),
    "documents in JSON": (lambda: "{}\n" * 20_001, "more than 20,000 documents"),
    "too many bytes": (lambda: b"a" * (documents.MAX_BYTES + 1), "larger than 32 MiB"),
    "zeros": (lambda: b"\0" * MILLION, "is not allowed in YAML"),
    "tabs": (lambda: "\t" * MILLION, "a tab"),
}


@pytest.mark.parametrize("bomb", BOMBS)
def test_bombs_are_rejected_quickly(bomb):
    make, message = BOMBS[bomb]
    text = make()

    with cpu_limit():
        error = error_of(text)

    assert message in error.message


LARGE = {
    "a long string": lambda: "a: '" + "x" * MILLION + "'",
    "a long number": lambda: "a: " + "9" * MILLION,
    "a long octal number": lambda: "a: 0" + "7" * MILLION,
    "a number of underscores": lambda: "a: 1" + "_" * MILLION,
    "many comments": lambda: "#\n" * MILLION + "a: b",
    "many escapes": lambda: '{"a": "' + '\\"' * MILLION + '"}',
    "maximum depth": lambda: "[" * 100 + "]" * 100,
    "maximum depth in JSON": lambda: '{"a":' + "[" * 99 + "]" * 99 + "}",
}


@pytest.mark.parametrize("large", LARGE)
def test_large_texts_are_read_quickly(large):
    text = LARGE[large]()

    with cpu_limit():
        assert len(read(text)) == 1


def test_too_many_values_are_rejected_where_the_limit_is_reached():
    error = error_of("- a\n" * 400_001)

    assert (error.line, error.document) == (400_000, 1)
    assert (
        error.message == "more than 400,000 values and keys: split the file, or write it as JSON (a limit of alignup)"
    )


values = st.recursive(
    st.none() | st.booleans() | st.integers(-(1 << 63), (1 << 64) - 1) | words,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(words, inner, max_size=4),
    max_leaves=20,
)


class Quoting(yaml.SafeDumper):
    """Quotes every string."""


Quoting.add_representer(str, lambda dumper, text: dumper.represent_scalar("tag:yaml.org,2002:str", text, style='"'))


@given(st.dictionaries(words, values, max_size=4), st.booleans(), st.booleans())
def test_yaml_and_json_give_the_same_value(value, flow, indent):
    as_json = json.dumps(value, indent=2 if indent else None, ensure_ascii=flow)
    as_yaml = yaml.dump(value, Dumper=Quoting, default_flow_style=flow, allow_unicode=True)

    (from_json,), (from_yaml,) = read(as_json), read("---\n" + as_yaml)

    assert typed(from_json.value) == typed(from_yaml.value)
    assert typed(from_json.value) == typed(json.loads(as_json, parse_int=NumberLiteral))
    assert from_json.repeated == from_yaml.repeated == ()


@given(st.lists(values.filter(lambda value: value is not None), max_size=4))
def test_documents_are_numbered(several):
    text = "".join(f"--- {json.dumps(value, ensure_ascii=False)}\n" for value in several)

    assert [(document.number, document.line) for document in read(text)] == [
        (number, number) for number in range(1, len(several) + 1)
    ]


PIECES = ("\n  ", "&x ", "*x", "<<: ", "!!int ", "null", ".inf", "---", "...", "%TAG ! x", "\\ud800", ": ", "- ")
YAML_BITS = st.sampled_from("a1~#?>|!{}[]'\"\\,:-\t\n\x85\u2028\ufeff\0é") | st.sampled_from(PIECES)


@given(st.lists(YAML_BITS, max_size=30).map("".join))
def test_any_text_gives_documents_or_an_error(text):
    try:
        parsed = read(text)
    except DocumentError as error:
        assert error.line >= 1
        assert error.document >= 1
    else:
        assert all(
            isinstance(document, ParsedDocument) and document.value is not None and document.line >= 1
            for document in parsed
        )
        json.dumps([document.value for document in parsed]).encode()


@given(st.binary(max_size=60) | st.binary(max_size=60).map(lambda some: b"\xff\xfe" + some) | st.text().map(str.encode))
def test_any_bytes_give_documents_or_an_error(text):
    try:
        parsed = read(text)
    except DocumentError as error:
        assert error.line >= 1
    else:
        assert isinstance(parsed, tuple)
