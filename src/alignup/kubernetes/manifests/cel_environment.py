"""The CEL environment of device selectors: the functions that Kubernetes adds to the language.

``cel-expr-python`` evaluates expressions. A quantity is a map ``{"quantity": "80Gi"}`` in them, and a semantic version
``{"version": "1.2.3"}``; both have the comparisons that Kubernetes defines.
"""

from collections.abc import Callable, Mapping
from functools import cache
from typing import Any

from cel_expr_python import cel
from cel_expr_python.ext import ext_bindings, ext_optional, ext_strings

from alignup.align.bits import quote
from alignup.align.quantity import Quantity

QUANTITY, VERSION = "quantity", "version"  #: the keys of such values


@cache
def device_environment() -> cel.Env:
    any_, text, integer, flag = cel.Type.DYN, cel.Type.STRING, cel.Type.INT, cel.Type.BOOL
    value = cel.Type.Map(text, any_)

    def function(name: str, result: cel.Type, *parameters: cel.Type, call: Callable[..., Any]) -> Any:  # noqa: ANN401
        member = parameters[0] is value
        overload = cel.Overload(f"alignup_{name}", result, parameters, is_member=member, impl=call)
        return cel.FunctionDecl(name, [overload])

    return cel.NewEnv(
        variables={"device": any_},
        extensions=[ext_bindings.ExtBindings(), ext_optional.ExtOptional(), ext_strings.ExtStrings()],
        functions=[
            function("quantity", value, text, call=lambda amount: {QUANTITY: str(Quantity.parse(amount))}),
            function("isQuantity", flag, text, call=_is_quantity),
            function("semver", value, text, call=lambda version: {VERSION: _checked_version(version)}),
            function("compareTo", integer, value, value, call=_compare),
            function("isGreaterThan", flag, value, value, call=lambda left, right: _compare(left, right) > 0),
            function("isLessThan", flag, value, value, call=lambda left, right: _compare(left, right) < 0),
            function("asInteger", integer, value, call=lambda amount: Quantity.parse(amount[QUANTITY]).value()),
            function("sign", integer, value, call=lambda amount: Quantity.parse(amount[QUANTITY]).sign),
            function("major", integer, value, call=lambda version: _version_key(version[VERSION])[0]),
            function("minor", integer, value, call=lambda version: _version_key(version[VERSION])[1]),
            function("patch", integer, value, call=lambda version: _version_key(version[VERSION])[2]),
        ],
    )


def _is_quantity(text: str) -> bool:
    try:
        Quantity.parse(text)
    except ValueError:
        return False
    return True


def _compare(left: Mapping[str, str], right: Mapping[str, str]) -> int:
    if QUANTITY in left:
        amount, other = Quantity.parse(left[QUANTITY]), Quantity.parse(right[QUANTITY])
        return (amount > other) - (amount < other)
    version, other_version = _version_key(left[VERSION]), _version_key(right[VERSION])
    return (version > other_version) - (version < other_version)


def _checked_version(text: str) -> str:
    _version_key(text)
    return text


def _version_key(text: str) -> tuple[int, int, int, tuple[tuple[int, int, str], ...]]:
    """Return a key in the order of semantic versions, in which a release follows its pre-releases."""
    release, _, pre = text.partition("+")[0].partition("-")
    numbers = [int(part) for part in release.split(".")]
    if len(numbers) != 3:
        raise ValueError(f"{quote(text)} is not a semantic version; write 1.2.3")
    parts = [(0, int(part), "") if part.isdecimal() else (1, 0, part) for part in pre.split(".")]
    return (numbers[0], numbers[1], numbers[2], tuple(parts) if pre else ((2, 0, ""),))
