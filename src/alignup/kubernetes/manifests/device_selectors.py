"""CEL selectors of device classes and claims, evaluated on devices of slices.

As in Kubernetes, attributes of a domain that the device does not have are an empty map.
"""

import re
from collections.abc import Hashable, Mapping
from functools import lru_cache, partial
from typing import TYPE_CHECKING, Any

from alignup.align.bits import quote
from alignup.align.claims.allocation import Matches
from alignup.align.claims.resource_claims import ClaimObjects, ClaimRequest, SliceDevice
from alignup.align.errors import AlignError

if TYPE_CHECKING:
    from cel_expr_python import cel

_DOMAIN = re.compile(r"""(?:attributes|capacity)\s*\[\s*(?:"([^"]*)"|'([^']*)')\s*\]""")
_ACCESS = re.compile(rf"{_DOMAIN.pattern}\s*\.\s*\??\s*(\w+)")  #: to one attribute or capacity
_MAPS = re.compile(r"\b(?:attributes|capacity)\b")
_TOO_LONG = "Iteration budget exceeded"  #: in an error of the library
_QUANTITY, _VERSION = "quantity", "version"  #: as in ``cel_environment``


class SelectorError(AlignError):
    """It is not known whether a selector selects a device."""


class FailingSelectorError(SelectorError):
    """A selector that is not valid, or that fails on a device."""


class LongSelectorError(SelectorError):
    """A selector that takes more steps than are computed here; a scheduler computes more."""


def class_selectors(objects: ClaimObjects) -> Matches:
    """Return the function that matches a device with the selectors of a request and of its class."""
    return partial(_matches, {name: device_class.selectors for name, device_class in objects.classes.items()})


def _matches(classes: Mapping[str, tuple[str, ...]], request: ClaimRequest, device: SliceDevice) -> bool:
    selectors = classes.get(request.device_class)
    return selectors is not None and all(select(text, device) for text in (*selectors, *request.selectors))


def select(expression: str, device: SliceDevice) -> bool:
    """Return whether *expression* selects *device*; ``SelectorError`` if that is not known."""
    values, compiled = _variables(device, _domains(expression)), _compile(expression)
    try:
        value = compiled.eval(data={"device": values}).value()
    except Exception as error:  # noqa: BLE001 - the library raises errors of many types
        if _TOO_LONG in str(error):  # a scheduler allows more
            reason = "takes more than 10,000 steps, which only the scheduler computes"
            raise LongSelectorError(f"selector {quote(expression)} {reason}") from None
        value = error
    if not isinstance(value, bool):
        raise FailingSelectorError(f"selector {quote(expression)} fails for device {device.id}: {value}")
    return value


def relevant_values(expression: str, device: SliceDevice) -> Hashable:
    """Return everything of *device* that *expression* can depend on: equal values, equal results.

    An expression that only accesses attributes and capacities by their names depends on these alone.
    """
    named = _named(expression)
    values = [
        (name, type(value), name in device.versions, value)  # 1 and true are equal in Python, not in CEL
        for name, value in device.attributes.items()
        if _is_named(name, named)
    ]
    amounts = [(name, str(amount)) for name, amount in device.capacity.items() if _is_named(name, named)]
    return device.id.driver, device.shared, tuple(values), tuple(amounts)


def _is_named(name: str, named: frozenset[str] | None) -> bool:
    return named is None or name.rpartition("/")[2] in named


@lru_cache(maxsize=1024)
def _named(expression: str) -> frozenset[str] | None:
    """Return the attributes and capacities that *expression* accesses; ``None``: it may depend on others."""
    if _MAPS.search(_ACCESS.sub("", expression)):
        return None
    return frozenset(access[-1] for access in _ACCESS.findall(expression))


@lru_cache(maxsize=1024)
def _compile(expression: str) -> "cel.Expression":
    try:
        from alignup.kubernetes.manifests.cel_environment import device_environment  # noqa: PLC0415 - an extra
    except ImportError:
        raise SelectorError("selectors of claims need the library cel-expr-python; install alignup[claims]") from None
    try:
        return device_environment().compile(expression)
    except Exception as error:  # noqa: BLE001 - a TypeError, for example, for text that is not valid Unicode
        text = str(error)
        reason = (text.partition("ERROR: <input>:")[2] or text).partition("\n")[0]
        raise FailingSelectorError(f"selector {quote(expression)} is not valid: {reason}") from None


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
