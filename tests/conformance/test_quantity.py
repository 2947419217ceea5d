"""Quantities: read, rounded, printed, compared, added and subtracted as Kubernetes does it."""

import json

from alignup.align.errors import DocumentError, QuantityError
from alignup.align.quantity import Quantity
from alignup.kubernetes.manifests import documents
from alignup.kubernetes.manifests.documents import NumberLiteral
from alignup.kubernetes.manifests.object_reader import ObjectReader
from tests.conformance.harness import Case, run


def test_quantities_equal_those_of_kubernetes(request):
    run(request, "quantity", check)


def check(case: Case) -> str | None:
    match case["kind"]:
        case "parse":
            return check_text(case, Quantity.parse)
        case "json":
            return check_text(case, from_json_token)
        case "pair":
            check_pair(case)
            return None
        case "yaml":
            return check_yaml(case)
        case kind:
            raise AssertionError(f"nothing here checks cases of kind {kind!r}")


def check_text(case: Case, read) -> str | None:
    try:
        quantity = read(case["text"]).under(case["release"])
    except QuantityError as error:
        assert not case["ok"], f"{case['text']!r} rejected: {error}"
        assert error.message == case["error"]
        return None

    assert case["ok"], f"{case['text']!r} read as {quantity}"
    if case["format"]:
        assert facts(quantity) == expected(case)
        return None
    # A null leaves a Go value's format alone, so it is empty; zero takes the format of what is added to it in any case.
    assert facts(quantity) == expected(case) | {"format": "DecimalSI"}
    return "null has no format in the kubelet, the default here"


def from_json_token(token: str) -> Quantity:
    """Parse one JSON value as spelled; as in Kubernetes, escapes are not decoded, and ``null`` is zero."""
    if token == "null":  # noqa: S105 - a JSON literal
        return Quantity.ZERO
    quoted = len(token) >= 2 and token[0] == token[-1] == '"'
    return Quantity.parse((token[1:-1] if quoted else token).strip())


def check_yaml(case: Case) -> str | None:
    try:
        (document,) = documents.read(case["text"])
    except DocumentError as error:
        assert error.message == case.get("error"), f"{case['text']!r} rejected: {error}"
        assert "as_json" not in case
        return None

    decoded = json.loads(case["as_json"], parse_int=NumberLiteral, parse_float=NumberLiteral)
    assert (type(document.value["q"]), document.value) == (type(decoded["q"]), decoded)
    return check_text(case, lambda _: amount_of(document.value))


def amount_of(document: Case) -> Quantity:
    """The amount a pod would have under ``q``."""
    reader = ObjectReader.of({"limits": document})
    amounts = reader.quantities("limits")
    for problem in reader.diagnostics.problems:
        assert problem.field == "limits[q]"
        raise QuantityError(problem.message)
    return amounts["q"]


def check_pair(case: Case) -> None:
    a, b = (Quantity.parse(case[name]).under(case["release"]) for name in ("a", "b"))

    assert (a > b) - (a < b) == case["cmp"]
    assert (a == b) == case["equal"]
    assert facts(a + b) == expected(case["sum"])
    assert facts(a - b) == expected(case["difference"])


def facts(quantity: Quantity) -> Case:
    return {
        "canonical": quantity.canonical(),
        "exp10": quantity.power,
        "format": quantity.format,
        "milli": quantity.milli(),
        "repr": "dec" if quantity.dec else "int",
        "sign": quantity.sign,
        "string": str(quantity),
        "unscaled": str(quantity.unscaled),
        "value": quantity.value(),
    }


def expected(case: Case) -> Case:
    inputs = {"release", "kind", "text", "ok", "valid_json", "as_json"}
    return {name: value for name, value in case.items() if name not in inputs}
