"""CEL selectors of device classes and claims, evaluated on devices of slices.

``cel-expr-python`` evaluates the expressions. A quantity is a map ``{"quantity": "80Gi"}`` in them, and a semantic
version ``{"version": "1.2.3"}``; both have the comparisons that Kubernetes defines. As in Kubernetes, attributes of a
domain that the device does not have are an empty map.
"""

import re
from collections.abc import Callable, Hashable, Mapping
from functools import cache, lru_cache, partial
from typing import TYPE_CHECKING, Any

from alignup.align.bits import quote
from alignup.align.claims.allocation import Matches
from alignup.align.claims.objects import ClaimObjects, ClaimRequest, SliceDevice
from alignup.align.errors import AlignError
from alignup.align.quantity import Quantity

if TYPE_CHECKING:
    from cel_expr_python import cel

_DOMAIN = re.compile(r"""(?:attributes|capacity)\s*\[\s*(?:"([^"]*)"|'([^']*)')\s*\]""")
_WORD = re.compile(r"\w+")
#: Functions of whole maps.
_LOOPS = {"all", "exists", "exists_one", "existsOne", "map", "filter", "transformList", "transformMap", "size"}
_QUANTITY, _VERSION = "quantity", "version"


class SelectorError(AlignError):
    """A selector that is not valid, that fails on a device, or that cannot be evaluated here."""


def class_selectors(objects: ClaimObjects) -> Matches:
    """Return the function that matches a device with the selectors of a request and of its class."""
    return partial(_matches, {name: device_class.selectors for name, device_class in objects.classes.items()})


def _matches(classes: Mapping[str, tuple[str, ...]], request: ClaimRequest, device: SliceDevice) -> bool:
    selectors = classes.get(request.device_class)
    return selectors is not None and all(select(text, device) for text in (*selectors, *request.selectors))


def select(expression: str, device: SliceDevice) -> bool:
    """Return whether *expression* selects *device*; ``SelectorError`` if that is not known."""
    values = _variables(device, _domains(expression))
    result = _compile(expression).eval(data={"device": values})
    value = result.value()
    if not isinstance(value, bool):
        raise SelectorError(f"selector {quote(expression)} fails for device {device.id}: {value}")
    return value


def relevant_values(expression: str, device: SliceDevice) -> Hashable:
    """Return everything of *device* that *expression* can depend on: equal values, equal results.

    An expression that does not name an attribute can depend on it only if it computes names or looks at all of them.
    """
    named = _named(expression)
    values = [(name, value) for name, value in device.attributes.items() if _is_named(name, named)]
    amounts = [(name, str(amount)) for name, amount in device.capacity.items() if _is_named(name, named)]
    return device.id.driver, device.shared, tuple(values), tuple(amounts)


def _is_named(name: str, named: frozenset[str] | None) -> bool:
    return named is None or name.rpartition("/")[2] in named


@lru_cache(maxsize=1024)
def _named(expression: str) -> frozenset[str] | None:
    """Return all words of *expression*; ``None`` if it may depend on what it does not name."""
    words = frozenset(_WORD.findall(expression))
    return None if "+" in expression or "\\" in expression or not words.isdisjoint(_LOOPS) else words


@lru_cache(maxsize=1024)
def _compile(expression: str) -> "cel.Expression":
    environment = _environment()
    try:
        return environment.compile(expression)
    except RuntimeError as error:
        reason = str(error).partition("ERROR: <input>:")[2].partition("\n")[0] or str(error)
        raise SelectorError(f"selector {quote(expression)} is not valid: {reason}") from None


@lru_cache(maxsize=1024)
def _domains(expression: str) -> tuple[str, ...]:
    """Return the domains of attributes and capacities that *expression* names."""
    return tuple(double or single for double, single in _DOMAIN.findall(expression))


def _variables(device: SliceDevice, domains: tuple[str, ...]) -> dict[str, Any]:
    attributes: dict[str, dict[str, Any]] = {domain: {} for domain in domains}
    for name, value in device.attributes.items():
        domain, _, short = name.rpartition("/")
        plain = list(value) if isinstance(value, tuple) else value
        attributes.setdefault(domain, {})[short] = {_VERSION: plain} if name in device.versions else plain
    capacity: dict[str, dict[str, Any]] = {domain: {} for domain in domains}
    for name, amount in device.capacity.items():
        domain, _, short = name.rpartition("/")
        capacity.setdefault(domain, {})[short] = {_QUANTITY: str(amount)}
    return {
        "driver": device.id.driver,
        "attributes": attributes,
        "capacity": capacity,
        "allowMultipleAllocations": device.shared,
    }


@cache
def _environment() -> "cel.Env":
    """Return the environment of device selectors; ``SelectorError`` if the library is not installed."""
    try:
        from cel_expr_python import cel  # noqa: PLC0415 - an extra
        from cel_expr_python.ext import ext_bindings, ext_optional, ext_strings  # noqa: PLC0415 - as well
    except ImportError:
        raise SelectorError("selectors of claims need the library cel-expr-python; install alignup[claims]") from None
    any_, text, integer, flag = cel.Type.DYN, cel.Type.STRING, cel.Type.INT, cel.Type.BOOL
    value = cel.Type.Map(text, any_)

    def function(name: str, result: "cel.Type", *parameters: "cel.Type", call: Callable[..., Any]) -> Any:  # noqa: ANN401
        member = parameters[0] is value
        overload = cel.Overload(f"alignup_{name}", result, parameters, is_member=member, impl=call)
        return cel.FunctionDecl(name, [overload])

    return cel.NewEnv(
        variables={"device": any_},
        extensions=[ext_bindings.ExtBindings(), ext_optional.ExtOptional(), ext_strings.ExtStrings()],
        functions=[
            function("quantity", value, text, call=lambda amount: {_QUANTITY: str(Quantity.parse(amount))}),
            function("isQuantity", flag, text, call=_is_quantity),
            function("semver", value, text, call=lambda version: {_VERSION: _checked_version(version)}),
            function("compareTo", integer, value, value, call=_compare),
            function("isGreaterThan", flag, value, value, call=lambda left, right: _compare(left, right) > 0),
            function("isLessThan", flag, value, value, call=lambda left, right: _compare(left, right) < 0),
            function("asInteger", integer, value, call=lambda amount: Quantity.parse(amount[_QUANTITY]).value()),
            function("sign", integer, value, call=lambda amount: Quantity.parse(amount[_QUANTITY]).sign),
            function("major", integer, value, call=lambda version: _version_key(version[_VERSION])[0]),
            function("minor", integer, value, call=lambda version: _version_key(version[_VERSION])[1]),
            function("patch", integer, value, call=lambda version: _version_key(version[_VERSION])[2]),
        ],
    )


def _is_quantity(text: str) -> bool:
    try:
        Quantity.parse(text)
    except ValueError:
        return False
    return True


def _compare(left: Mapping[str, str], right: Mapping[str, str]) -> int:
    if _QUANTITY in left:
        amount, other = Quantity.parse(left[_QUANTITY]), Quantity.parse(right[_QUANTITY])
        return (amount > other) - (amount < other)
    version, other_version = _version_key(left[_VERSION]), _version_key(right[_VERSION])
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
