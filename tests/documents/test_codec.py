"""The codec: errors with a path, lone surrogates, and JSON Schemas with short names."""

from dataclasses import dataclass

import pytest
from hypothesis import given
from hypothesis import strategies as st

from alignup.align import bits
from alignup.align.errors import ParseError
from alignup.documents import codec
from alignup.documents.codec import Count, Document, LinuxList


class RackDocument(Document, frozen=True):
    name: str
    cpu_list: LinuxList = ""
    units: list[Count] = []  # noqa: RUF012 - msgspec copies it
    inner: "RackDocument | None" = None


@dataclass(frozen=True)
class Rack:
    name: str
    cpus: int
    units: tuple[int, ...] = ()
    inner: None = None


def test_names_are_camel_case_in_json():
    rack = RackDocument("a", "0-3", [1])

    assert codec.encode(rack) == b'{"name":"a","cpuList":"0-3","units":[1],"inner":null}'
    assert codec.decode(codec.encode(rack), RackDocument) == rack
    assert codec.convert(codec.to_builtins(rack), RackDocument) == rack


@given(st.text(st.characters(exclude_categories=())))
def test_any_text_reads_back(text):
    """Also one with lone surrogates, which UTF-8 cannot represent."""
    rack = RackDocument(text)

    assert codec.decode(codec.encode(rack), RackDocument) == rack
    assert codec.load(codec.encode(rack))["name"] == text


@pytest.mark.parametrize(
    ("data", "error"),
    [
        pytest.param(b'{"name": 5}', "name: expected `str`, got `int`", id="a wrong type"),
        pytest.param(b"{}", "object missing required field `name`", id="a missing field"),
        pytest.param(
            b'{"name": "a", "units": [0, -1]}', "units[1]: expected `int` >= 0", id="a value that is out of range"
        ),
        pytest.param(b'{"name": "a", "inner": {"name": 1}}', "inner.name: expected `str`, got `int`", id="nested"),
        pytest.param(b"[]", "expected `object`, got `array`", id="not an object"),
        pytest.param(b"{", "not JSON: ", id="not JSON"),
        pytest.param(b"\xff", "not JSON: ", id="not UTF-8"),
        pytest.param(b'{"name": "a", "other": ' + b"[" * 100_000, "not JSON: ", id="too deep"),
    ],
)
def test_errors_name_the_path(data, error):
    with pytest.raises(ParseError) as caught:
        codec.decode(data, RackDocument)

    assert str(caught.value).startswith(error)


@given(st.integers(0, 1 << 70))
def test_linux_lists_match_what_bits_prints(members):
    assert codec.convert({"name": "a", "cpuList": bits.show(members)}, RackDocument).cpu_list == bits.show(members)


@pytest.mark.parametrize("text", ["x", "1-", ",", "1,", "-1", "0x1", " 1"])
def test_other_texts_are_not_linux_lists(text):
    with pytest.raises(ParseError, match="cpuList: expected `str` matching regex"):
        codec.convert({"name": "a", "cpuList": text}, RackDocument)


def test_schemas_have_short_names():
    schemas = codec.json_schemas([RackDocument])

    assert list(schemas) == ["Rack"]
    assert schemas["Rack"]["title"] == "Rack"
    assert schemas["Rack"]["required"] == ["name"]
    assert {"$ref": "#/components/schemas/Rack"} in schemas["Rack"]["properties"]["inner"]["anyOf"]


def test_documents_and_values_are_built_from_fields_of_the_same_name():
    rack = Rack("a", cpus=0b111, units=(1, 2))

    document = codec.build(RackDocument, rack, cpu_list=bits.show(rack.cpus), units=list(rack.units))

    assert document == RackDocument("a", "0-2", [1, 2])
    assert codec.build(Rack, document, cpus=bits.parse(document.cpu_list), units=tuple(document.units)) == rack
