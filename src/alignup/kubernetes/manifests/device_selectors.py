"""CEL selectors of device classes and claims, evaluated on devices of slices.

As in Kubernetes, attributes of a domain that the device does not have are an empty map.

An API server refuses selectors that cost too much time or memory. Selectors in a file are not checked, so
:class:`FileSelectors` limits the time of all, and evaluates them in a process with limits, unless nothing in them
repeats or enlarges a value.
"""

import json
import re
import resource
import signal
import subprocess
import sys
import time
import weakref
from collections.abc import Hashable, Mapping
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from alignup.align.bits import quote
from alignup.align.claims.resource_claims import AttributeValue, ClaimObjects, ClaimRequest, SliceDevice
from alignup.align.errors import AlignError

if TYPE_CHECKING:
    from cel_expr_python import cel

_DOMAIN = re.compile(r"""(?:attributes|capacity)\s*\[\s*(?:"([^"]*)"|'([^']*)')\s*\]""")
_ACCESS = re.compile(rf"{_DOMAIN.pattern}\s*\.\s*\??\s*(\w+)")  #: to one attribute or capacity
_MAPS = re.compile(r"\b(?:attributes|capacity)\b")
_TOO_LONG = "Iteration budget exceeded"  #: in an error of the library
MAX_LENGTH = 10 * 1024  #: characters of an expression, as an API server accepts
MAX_SECONDS, MAX_MEGABYTES = 1.0, 128  #: for all selectors of files that are evaluated in a process
MAX_SHORT = 1024  #: characters or items of an attribute that costs little; an API server accepts 64
_CALL = re.compile(r"(\w+)\s*\(")
#: Functions whose results are not larger than their arguments, and the operator ``in``.
_SIMPLE_CALLS = frozenset(
    (
        *("has", "in", "quantity", "isQuantity", "semver", "compareTo", "isGreaterThan", "isLessThan", "asInteger"),
        *("sign", "major", "minor", "patch", "orValue", "hasValue", "value", "startsWith", "endsWith", "contains"),
        *("lowerAscii", "upperAscii", "trim", "size", "int", "string", "bool"),
    )
)
_PROGRAM = """import json, sys
sys.path[:] = json.loads(sys.argv[1])
from alignup.kubernetes.manifests.device_selectors import serve
serve()"""
_QUANTITY, _VERSION = "quantity", "version"  #: as in ``cel_environment``


class SelectorError(AlignError):
    """It is not known whether a selector selects a device."""


class FailingSelectorError(SelectorError):
    """A selector that is not valid, or that fails on a device."""


class LongSelectorError(SelectorError):
    """A selector that takes more steps than are computed here; a scheduler computes more."""


class FileSelectors:
    """Whether a device matches the selectors of a request and of its class, for objects of files.

    Results are kept. All selectors together have ``MAX_SECONDS`` and ``MAX_MEGABYTES``.
    """

    def __init__(self, objects: ClaimObjects) -> None:
        self._objects = objects
        self._results: dict[Hashable, bool | SelectorError] = {}
        #: class, selectors and identity of a device → the answer, and the device, so that no other gets its identity
        self._answers: dict[Hashable, tuple[bool | SelectorError, SliceDevice]] = {}
        self._process: subprocess.Popen[bytes] | None = None
        self._seconds = 0.0  #: of CPU time in this process, which also has ``MAX_SECONDS``

    def __reduce__(self) -> tuple[type["FileSelectors"], tuple[ClaimObjects]]:
        return type(self), (self._objects,)

    def __call__(self, request: ClaimRequest, device: SliceDevice) -> bool:
        key = (request.device_class, request.selectors, id(device))
        if key not in self._answers:
            try:
                answer: bool | SelectorError = self._match(request, device)
            except SelectorError as error:
                answer = error
            self._answers[key] = answer, device
        answer, _ = self._answers[key]
        if isinstance(answer, SelectorError):
            raise answer
        return answer

    def _match(self, request: ClaimRequest, device: SliceDevice) -> bool:
        device_class = self._objects.classes.get(request.device_class)
        if device_class is None:
            return False
        return all(self._select(text, device) for text in (*device_class.selectors, *request.selectors))

    def _select(self, expression: str, device: SliceDevice) -> bool:
        if self._seconds > MAX_SECONDS:
            raise _beyond_limits(expression)
        start = time.process_time()
        key = (expression, relevant_values(expression, device))
        if key not in self._results:
            try:
                self._results[key] = self._compute(expression, device)
            except SelectorError as error:
                self._results[key] = error
        self._seconds += time.process_time() - start  # also if the result is there: there may be millions
        result = self._results[key]
        if isinstance(result, SelectorError):
            raise result
        return result

    def _compute(self, expression: str, device: SliceDevice) -> bool:
        if _is_simple(expression) and all(map(_is_short, device.attributes.values())):
            return select(expression, device)
        return self._ask(expression, device)

    def _ask(self, expression: str, device: SliceDevice) -> bool:
        """Return the answer of the process, which the kernel ends at its limits."""
        _compile(expression)  # a missing library, or an invalid expression, costs no process
        if self._process is None:
            command = [sys.executable, "-I", "-c", _PROGRAM, json.dumps(sys.path)]
            process = subprocess.Popen(  # noqa: S603 - this program
                command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
            )
            self._process = process
            weakref.finalize(self, _end, process)
        question = [expression, _variables(device, _domains(expression)), str(device.id)]
        answer = b""
        if self._process.stdin is not None and self._process.stdout is not None:
            try:
                self._process.stdin.write(json.dumps(question).encode() + b"\n")
                self._process.stdin.flush()
                answer = self._process.stdout.readline()
            except BrokenPipeError:
                pass
        if not answer:
            raise _beyond_limits(expression)
        is_selected, failure, long = json.loads(answer)
        if failure:
            raise (LongSelectorError if long else FailingSelectorError)(failure)
        return bool(is_selected)


def _beyond_limits(expression: str) -> LongSelectorError:
    limits = f"{MAX_SECONDS:g} s or {MAX_MEGABYTES} MB, which only the scheduler computes"
    return LongSelectorError(f"selector {quote(expression)} takes more than {limits}")


def _end(process: "subprocess.Popen[bytes]") -> None:
    process.kill()
    process.communicate()


def serve() -> None:
    """Answer the questions of :class:`FileSelectors` on the standard input, within the limits."""
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    resource.setrlimit(resource.RLIMIT_DATA, (MAX_MEGABYTES << 20, MAX_MEGABYTES << 20))
    signal.setitimer(signal.ITIMER_PROF, MAX_SECONDS)  # of CPU time; its signal ends the process
    for line in sys.stdin.buffer:
        is_selected, failure = False, None
        try:
            is_selected = _evaluate(*json.loads(line))
        except SelectorError as error:
            failure = error
        answer = [is_selected, str(failure or ""), isinstance(failure, LongSelectorError)]
        sys.stdout.buffer.write(json.dumps(answer).encode() + b"\n")
        sys.stdout.buffer.flush()


def _is_simple(expression: str) -> bool:
    """Return whether evaluating *expression* takes little time and memory: it repeats and enlarges nothing."""
    return "//" not in expression and _SIMPLE_CALLS.issuperset(_CALL.findall(expression))


def _is_short(value: AttributeValue) -> bool:
    """Return whether functions on *value* take little time, such as searching another value in it."""
    if isinstance(value, tuple):
        return len(value) <= MAX_SHORT and all(map(_is_short, value))
    return not isinstance(value, str) or len(value) <= MAX_SHORT


def select(expression: str, device: SliceDevice) -> bool:
    """Return whether *expression* selects *device*; ``SelectorError`` if that cannot be evaluated."""
    return _evaluate(expression, _variables(device, _domains(expression)), str(device.id))


def _evaluate(expression: str, values: Mapping[str, Any], device: str) -> bool:
    program = _compile(expression)
    try:
        value = program.eval(data={"device": values}).value()
    except MemoryError:
        raise _beyond_limits(expression) from None
    except Exception as error:  # noqa: BLE001 - the library raises errors of many types
        if _TOO_LONG in str(error):  # a scheduler allows more
            reason = "takes more than 10,000 steps, which only the scheduler computes"
            raise LongSelectorError(f"selector {quote(expression)} {reason}") from None
        value = error
    if not isinstance(value, bool):
        raise FailingSelectorError(f"selector {quote(expression)} fails for device {device}: {value}")
    return value


def relevant_values(expression: str, device: SliceDevice) -> Hashable:
    """Return everything of *device* that *expression* can depend on: equal values, equal results.

    An expression that only accesses attributes and capacities by their names depends on these alone.
    """
    attribute_names = _named(expression)
    values = [
        (name, type(value), name in device.versions, value)  # 1 and true are equal in Python, not in CEL
        for name, value in device.attributes.items()
        if _is_named(name, attribute_names)
    ]
    amounts = [(name, str(amount)) for name, amount in device.capacity.items() if _is_named(name, attribute_names)]
    return device.id.driver, device.shared, tuple(values), tuple(amounts)


def _is_named(name: str, attribute_names: frozenset[str] | None) -> bool:
    return attribute_names is None or name.rpartition("/")[2] in attribute_names


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
    if len(expression) > MAX_LENGTH:
        raise FailingSelectorError(f"selector {quote(expression)} has more than {MAX_LENGTH} characters")
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
