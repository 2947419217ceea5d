import pytest
from hypothesis import given
from hypothesis import strategies as st

from alignup.kubernetes.manifests import documents
from alignup.kubernetes.manifests.documents import NumberLiteral, ScalarError

TEXTS = """
    yEs nULL tru oats -~ << 500m 1:30 2024-01-01 1,000 _1 . + - 1e .e3 ._5 .5_ 1e400 -1e400
    0x 0xG 0xFFFFFFFFFFFFFFFFFF 0b 0b2 \u0663 1\u0663
"""


def value_of(text):
    return documents.to_value(documents.resolve_plain(text))


@pytest.mark.parametrize(
    ("text", "number"),
    [
        pytest.param("0", "0", id="zero"),
        pytest.param("-0", "0", id="minus zero"),
        pytest.param("+12", "12", id="a plus sign"),
        pytest.param("-0O17", "-15", id="a sign before it"),
        pytest.param("0x1F", "31", id="hexadecimal"),
        pytest.param("-0Xff", "-255", id="negative hexadecimal"),
        pytest.param("0b-101", "-5", id="a sign after the prefix"),
        pytest.param("+_1_", "1", id="underscores anywhere"),
        pytest.param("+9223372036854775808", "9223372036854776000", id="beyond 63 bits with a sign, a float"),
        pytest.param("0777777777777777777777777", "7.777777777777778e+23", id="too long for octal, read as decimal"),
        pytest.param(".5_0e1_0", "5000000000", id="underscores between the digits of a fraction"),
        pytest.param("1E20", "100000000000000000000", id="the largest expanded exponent"),
        pytest.param("0.00000012", "1.2e-7", id="less than a millionth"),
        pytest.param("1e-400", "0", id="too small for a float"),
        pytest.param("-0.0", "-0", id="minus zero as a float"),
    ],
)
def test_numbers_are_spelled_as_in_json(text, number):
    value = value_of(text)

    assert type(value) is NumberLiteral
    assert value == number


@pytest.mark.parametrize(
    ("text", "meaning"),
    [
        *(pytest.param(text, True, id=f"{text} is true") for text in ("y", "Y", "yes", "On", "TRUE")),
        *(pytest.param(text, False, id=f"{text} is false") for text in ("n", "No", "off", "False")),
        *(pytest.param(text, None, id=f"{text or 'nothing'} is null") for text in ("", "~", "null", "Null", "NULL")),
    ],
)
def test_constants(text, meaning):
    assert value_of(text) is meaning


@pytest.mark.parametrize("text", [*TEXTS.split(), "1 Gi", "0b" + "1" * 65, "0b+" + "1" * 64])
def test_everything_else_is_a_string(text):
    assert value_of(text) == text
    assert type(value_of(text)) is str


@pytest.mark.parametrize(
    ("text", "expected"), [(".inf", "+Inf"), ("+.INF", "+Inf"), ("-.Inf", "-Inf"), (".NaN", "NaN")]
)
def test_numbers_that_json_cannot_represent_are_rejected(text, expected):
    with pytest.raises(
        ScalarError, match=f"^json: unsupported value: \\{expected}$" if expected[0] == "+" else expected
    ):
        value_of(text)


@pytest.mark.parametrize(
    ("text", "key"),
    [
        pytest.param("name", "name", id="a string"),
        pytest.param("on", "true", id="true"),
        pytest.param("n", "false", id="false"),
        pytest.param("0x10", "16", id="an integer"),
        pytest.param("1.50", "1.5", id="a float"),
        pytest.param("1e3", "1000", id="a whole float"),
        pytest.param("100000.5", "100000.5", id="six digits before the point"),
        pytest.param("1000000.0", "1e+06", id="seven digits before the point"),
        pytest.param("0.0001", "0.0001", id="a small float"),
        pytest.param("0.00001", "1e-05", id="a smaller float"),
        pytest.param("0.1234567891", "0.12345679", id="32-bit precision"),
        pytest.param("16777217.0", "1.6777216e+07", id="32-bit precision of a whole float"),
        pytest.param("1e39", ".inf", id="too large for 32 bits"),
        pytest.param("-.inf", "-.inf", id="minus infinity"),
        pytest.param(".nan", ".nan", id="NaN"),
        pytest.param("0.0", "0", id="zero"),
    ],
)
def test_keys_are_strings(text, key):
    assert documents.to_key(documents.resolve_plain(text)) == key


@pytest.mark.parametrize("text", ["", "~", "18446744073709551615"])
def test_invalid_keys(text):
    with pytest.raises(ScalarError, match="cannot be a key"):
        documents.to_key(documents.resolve_plain(text))


@pytest.mark.parametrize(
    ("text", "tag", "meaning"),
    [
        pytest.param("010", "str", "010", id="a string that looks like a number"),
        pytest.param("7", "int", 7, id="a number in quotes"),
        pytest.param("3", "float", 3.0, id="an integer tagged as float"),
        pytest.param("yes", "bool", True, id="true"),
        pytest.param("", "null", None, id="null"),
        pytest.param("2024-2-29", "timestamp", "2024-2-29", id="a date"),
        pytest.param("2024-02-29T1:2:3.5Z", "timestamp", "2024-02-29T1:2:3.5Z", id="a time"),
        pytest.param("2024-02-29 01:02:03", "timestamp", "2024-02-29 01:02:03", id="a time without a zone"),
        pytest.param("aGk=", "binary", "hi", id="base64"),
        pytest.param("aG\nk=", "binary", "hi", id="base64 over two lines"),
        pytest.param("/w==", "binary", "\ufffd", id="base64 of invalid UTF-8"),
        pytest.param("7", "!seven", "7", id="an unknown tag"),
    ],
)
def test_tags(text, tag, meaning):
    value = documents.resolve_tagged(text, tag if tag.startswith("!") else f"tag:yaml.org,2002:{tag}")

    assert (type(value), value) == (type(meaning), meaning)


@pytest.mark.parametrize(
    ("text", "tag"),
    [
        ("x", "int"),
        ("1.5", "int"),
        ("x", "float"),
        ("18446744073709551615", "float"),
        ("1", "bool"),
        ("x" * 100, "null"),
        ("2024-02-30", "timestamp"),
        ("2024-02-01T25:00:00Z", "timestamp"),
        ("now", "timestamp"),
        ("a", "binary"),
        ("a b=", "binary"),
    ],
)
def test_scalars_that_do_not_match_their_tag(text, tag):
    with pytest.raises(ScalarError) as rejection:
        documents.resolve_tagged(text, f"tag:yaml.org,2002:{tag}")

    assert len(str(rejection.value)) < 80


@given(st.integers(-(1 << 63), (1 << 64) - 1))
def test_64_bit_integers_are_exact(number):
    assert value_of(str(number)) == str(number)


@given(st.floats(allow_nan=False, allow_infinity=False))
def test_floats_are_exact(number):
    value = value_of(f"{number:.17g}")

    assert type(value) is NumberLiteral
    assert float(value) == number


@given(st.floats(width=32, allow_nan=False, allow_infinity=False))
def test_32_bit_floats_are_exact_as_keys(number):
    assert float(documents.to_key(number)) == pytest.approx(number, rel=1e-7)


@given(st.text())
def test_any_scalar_resolves(text):
    try:
        value = value_of(text)
    except ScalarError:
        assert text.strip("+-.").lower() in ("inf", "nan")
    else:
        assert value is None or isinstance(value, str | bool)
