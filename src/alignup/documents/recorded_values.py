"""Values of the scheduling state as JSON, for recordings: events, instructions, facts, and snapshots.

Everything that consists of data types of ``align`` and ``placement`` can be written: dataclasses, named tuples, enums,
and the usual collections. Other hashable values, such as parsed selectors, are keys that are only compared, so a number
stands for each. An error is its type and text.

    {"$": "GroupKey", "namespace": "ml", "name": "train", "source": "label"}    a dataclass or a named tuple
    {"$": "Pod", "#": 7, "name": …}, later {"#": 7}                              one that occurs more than once
    {"$": "WaitState", "=": "gated"}, {"$": "set", "=": […]}, [1, 2]             an enum, a set, a tuple

Reading never runs code of a file: only the types above are constructed.
"""

import math
import pkgutil
from collections import Counter, OrderedDict, deque
from collections.abc import Callable, Collection, Hashable, Mapping, Sequence
from dataclasses import MISSING, fields, is_dataclass
from enum import Enum
from functools import cache
from importlib import import_module
from itertools import count
from typing import Any, NamedTuple

import alignup.align
import alignup.placement
from alignup.align.devices.hints import DeviceInventory
from alignup.align.errors import AlignError, ParseError, PodError
from alignup.align.host import Settings
from alignup.align.ledger import AdmittedPod
from alignup.align.machine import Distances, Machine
from alignup.align.release import Release, find_release
from alignup.align.workload import Pod
from alignup.documents.codec import encode
from alignup.placement.scheduling.facts import PodFacts
from alignup.placement.scheduling.pod_queue import WaitingGang
from alignup.placement.verdict import Verdict
from alignup.placement.wait_queue import Entry

FORMAT, FORMAT_VERSION = "alignup decisions", 1  #: of files; see ``schedule.recording``

#: Immutable values that are written once a file.
_WRITTEN_ONCE = (Pod, AdmittedPod, PodFacts, WaitingGang, Machine, Settings, DeviceInventory, Verdict)
_LONG = 16  #: parts of a tuple that is written once as well
_INT64 = range(-(1 << 63), 1 << 63)
_ERRORS: dict[str, type[Exception]] = {"PodError": PodError, "AlignError": AlignError, "Exception": Exception}
_COLLECTIONS: dict[str, Callable[[Any], Any]] = {
    "tuple": tuple,
    "list": list,
    "set": set,
    "frozenset": frozenset,
    "deque": deque,
    "dict_keys": lambda keys: dict.fromkeys(keys).keys(),
    "dict": dict,
    "OrderedDict": OrderedDict,
    "Counter": lambda pairs: Counter(dict(pairs)),
}


class RecordedKey(NamedTuple):
    """Stands for a value that is only compared."""

    number: int


class NotRecordableError(TypeError):
    """A value that recordings cannot contain, such as a function."""


class RecordedError(Exception):
    """An error of a recording; its type has the recorded name."""

    def __init__(self, text: str) -> None:
        Exception.__init__(self, text)

    def __str__(self) -> str:
        return str(self.args[0])


@cache
def recordable_types() -> dict[str, type]:
    """Return all data types of ``align`` and ``placement`` by name, with their module if two have the same name."""
    types: list[type] = []
    for package in (alignup.align, alignup.placement):
        for info in pkgutil.walk_packages(package.__path__, f"{package.__name__}."):
            values = vars(import_module(info.name)).values()
            types += [value for value in values if isinstance(value, type) and value.__module__ == info.name]
    types = [type_ for type_ in types if _is_data(type_)]
    counts = Counter(type_.__name__ for type_ in types)
    return {
        type_.__name__
        if counts[type_.__name__] == 1
        else f"{type_.__module__.rpartition('.')[2]}.{type_.__name__}": type_
        for type_ in types
    }


@cache
def _names() -> dict[type, str]:
    return {type_: name for name, type_ in recordable_types().items()}


def _is_data(type_: type) -> bool:
    return is_dataclass(type_) or issubclass(type_, Enum) or (issubclass(type_, tuple) and hasattr(type_, "_fields"))


class ValueWriter:
    """Writes the values of one file; with *alone*, each value is complete, so that two values can be compared."""

    def __init__(self, *, alone: bool = False) -> None:
        self._alone = alone
        self._numbers = count(1)
        self._file: dict[int, tuple[object, int]] = {}  #: by identity, values that the file has, and their numbers
        self._line: dict[int, tuple[object, int]] = {}  #: mutable ones, which later lines write again
        self._keys: dict[Hashable, RecordedKey] = {}
        self._writers: dict[type, Callable[[Any], Any]] = dict.fromkeys((str, bool, type(None)), lambda value: value)
        self._writers |= {
            int: lambda value: value if value in _INT64 else {"$": "int", "=": hex(value)},
            float: lambda value: value if math.isfinite(value) else {"$": "float", "=": str(value)},
            tuple: self._write_tuple,
            list: lambda value: {"$": "list", "=": [self.write(part) for part in value]},
            Release: lambda release: {"$": "Release", "=": release.version},
            Distances: lambda distances: {"$": "Distances", "=": [list(distances.ids), list(distances.matrix)]},
            RecordedKey: lambda key: {"$": "key", "=": key.number},
        }

    def line(self, value: object) -> bytes:
        """Return a value as one line."""
        self._line.clear()
        return encode(self.write(value)) + b"\n"

    def write(self, value: Any) -> Any:  # noqa: ANN401 - everything that the module's docstring names
        writer = self._writers.get(type(value))
        if writer is None:
            writer = self._writers[type(value)] = self._writer_for(value)
        return writer(value)

    def _writer_for(self, value: object) -> Callable[[Any], Any]:
        type_ = type(value)
        if type_ in _names():
            name = _names()[type_]
            return (
                (lambda enum: {"$": name, "=": enum.value}) if isinstance(value, Enum) else self._object_writer(type_)
            )
        if isinstance(value, Mapping):
            return self._write_mapping
        if isinstance(value, Collection) and not isinstance(value, str | bytes | tuple):
            kind = type_.__name__ if type_.__name__ in _COLLECTIONS else "tuple"
            return lambda members: {"$": kind, "=": self._write_members(members)}
        if isinstance(value, Exception):
            return _write_error
        if isinstance(value, str):  # an enum of a front end
            return str
        if callable(value) or type_.__module__.startswith((alignup.align.__name__, alignup.placement.__name__)):
            raise NotRecordableError(f"cannot record a value of type {type_.__name__}")
        return lambda key: self.write(self._keys.setdefault(key, RecordedKey(len(self._keys) + 1)))

    def _object_writer(self, type_: type) -> Callable[[Any], Any]:
        tag, plan = _names()[type_], _fields(type_)
        once = type_ in _WRITTEN_ONCE
        entries = self._file if once else self._line
        has_identity = not self._alone and (once or type_ is Entry or not _is_frozen(type_))

        def write(value: Any) -> dict[str, Any]:  # noqa: ANN401 - of this type
            document: dict[str, Any] = {"$": tag}
            if has_identity:
                if (entry := entries.get(id(value))) is not None:
                    return {"#": entry[1]}
                document["#"] = number = next(self._numbers)
                entries[id(value)] = (value, number)
            for name, default in plan:
                part = getattr(value, name)
                if part is not default and (type(part) is not type(default) or part != default):
                    document[name] = self.write(part)
            return document

        return write

    def _write_tuple(self, value: tuple[Any, ...]) -> Any:  # noqa: ANN401
        if (entry := self._file.get(id(value))) is not None:
            return {"#": entry[1]}
        parts = [self.write(part) for part in value]
        if len(value) < _LONG or self._alone:
            return parts
        self._file[id(value)] = (value, number := next(self._numbers))
        return {"$": "tuple", "#": number, "=": parts}

    def _write_members(self, members: Collection[Any]) -> list[Any]:
        values = [self.write(member) for member in members]
        return sorted(values, key=encode) if self._alone and isinstance(members, set | frozenset) else values

    def _write_mapping(self, mapping: Mapping[Any, Any]) -> dict[str, Any]:
        if all(type(key) is str and key[:1] not in {"$", "#"} for key in mapping) and type(mapping) is dict:
            return {key: self.write(value) for key, value in mapping.items()}
        name = type(mapping).__name__ if type(mapping).__name__ in _COLLECTIONS else "dict"
        return {"$": name, "=": [[self.write(key), self.write(value)] for key, value in mapping.items()]}


def _write_error(error: Exception) -> dict[str, Any]:
    kind = next(name for name, type_ in _ERRORS.items() if isinstance(error, type_))
    return {"$": "error", "=": [type(error).__name__, kind, str(error)]}


def _read_error(parts: Sequence[str]) -> Exception:
    name, kind, text = parts
    error: Exception = type(name, (RecordedError, _ERRORS[kind]), {})(text)
    return error


def _read_distances(parts: Sequence[Any]) -> Distances:
    ids, matrix = parts
    return Distances({a: dict(zip(ids, row, strict=True)) for a, row in zip(ids, matrix, strict=True)})


_SCALARS: dict[str, Callable[[Any], Any]] = {
    "int": lambda text: int(text, 16),
    "float": float,
    "key": RecordedKey,
    "error": _read_error,
    "Release": find_release,
    "Distances": _read_distances,
}


def _is_frozen(type_: type) -> bool:
    return not is_dataclass(type_) or type_.__dataclass_params__.frozen  # type: ignore[attr-defined]


def _fields(type_: type) -> list[tuple[str, Any]]:
    """Return the fields that a value is made of, with their defaults."""
    if not is_dataclass(type_):
        defaults = type_._field_defaults  # type: ignore[attr-defined]  # of a named tuple
        return [(name, defaults.get(name, MISSING)) for name in type_._fields]  # type: ignore[attr-defined]
    return [
        (field.name, field.default if field.default_factory is MISSING else field.default_factory())
        for field in fields(type_)
        if field.init
    ]


class ValueReader:
    """Reads the values of one file."""

    def __init__(self) -> None:
        self._numbered: dict[int, Any] = {}

    def read(self, value: Any) -> Any:  # noqa: ANN401 - everything that is written
        """Return a value; ``ParseError`` for a value that cannot be written."""
        try:
            return self._read(value)
        except (TypeError, ValueError, KeyError, IndexError, AttributeError, RecursionError) as error:
            if isinstance(error, ParseError):
                raise
            raise ParseError(f"not a recorded value: {type(error).__name__}: {error}") from None

    def _read(self, value: Any) -> Any:  # noqa: ANN401
        if isinstance(value, list):
            return tuple([self._read(part) for part in value])
        if not isinstance(value, dict):
            return value
        if "$" not in value:
            return (
                self._numbered[value["#"]] if "#" in value else {key: self._read(part) for key, part in value.items()}
            )
        tag, number = value.pop("$"), value.pop("#", None)
        instance = self._make(tag, value)
        if number is not None:
            self._numbered[number] = instance
        return instance

    def _make(self, tag: str, value: dict[str, Any]) -> Any:  # noqa: ANN401
        if tag in _COLLECTIONS:
            return _COLLECTIONS[tag]([self._read(part) for part in value["="]])
        if tag in _SCALARS:
            return _SCALARS[tag](value["="])
        type_ = recordable_types().get(tag)
        if type_ is None:
            raise ParseError(f"{tag!r} is not a type that recordings have")
        if issubclass(type_, Enum):
            return type_(value["="])
        return type_(**{name: self._read(part) for name, part in value.items()})
