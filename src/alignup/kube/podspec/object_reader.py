"""A way through a manifest: each object by the names of its fields, with its path, and a place for what is found."""

import ipaddress
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from alignup.align.bits import quote
from alignup.align.errors import Problem
from alignup.align.quantity import Quantity
from alignup.align.workload import names
from alignup.kube.fields import FieldReader
from alignup.kube.podspec.types import Permission

NO_API = "there is no Kubernetes API here"
MAX_INT32 = (1 << 31) - 1  #: the largest id of a user, and the longest time


@dataclass(frozen=True, slots=True)
class Diagnostics:
    """What is found on the way: what is wrong, and what nobody heeds; and what may be asked for."""

    fields: FieldReader = field(default_factory=FieldReader)
    warnings: list[str] = field(default_factory=list)
    permissions: dict[Problem, Permission] = field(default_factory=dict)  #: problems that a permission solves


@dataclass(frozen=True, slots=True)
class ObjectReader:
    """An object of the manifest; a field that is not what it should be is noted, and read as if it were absent."""

    notes: Diagnostics
    path: str
    found: Mapping[str, Any]

    def at(self, name: str = "") -> str:
        """The path of a field; that of the object itself without one."""
        return f"{self.path}.{name}" if self.path and name else self.path or name

    def has(self, name: str) -> bool:
        """Whether a field is there; ``null`` is not."""
        return self.found.get(name) is not None

    def text(self, name: str, default: str = "") -> str:
        """A string; *default* where there is none, or an empty one."""
        return self.notes.fields.text(self.found.get(name), self.at(name)) or default

    def required(self, name: str) -> str:
        """A string that is not empty."""
        return self.notes.fields.required(self.found.get(name), self.at(name))

    def texts(self, name: str) -> Mapping[str, str]:
        """An object of strings."""
        return self.notes.fields.texts(self.found.get(name), self.at(name))

    def strings(self, name: str) -> tuple[str, ...]:
        """A list of strings."""
        return self.notes.fields.strings(self.found.get(name), self.at(name))

    def flag(self, name: str) -> bool:
        """Whether something is set to true."""
        return self.notes.fields.flag(self.found.get(name), self.at(name)) or False

    def number(self, name: str, *, least: int = 0, most: int = MAX_INT32) -> int | None:
        """A whole number from *least* to *most*; ``None`` where there is none."""
        number = self.notes.fields.long(self.found.get(name), self.at(name))
        if number is None or least <= number <= most:
            return number
        self.bad(name, f"Invalid value: {number}: must be between {least} and {most}, inclusive")
        return None

    def choice(self, name: str, values: Iterable[str], default: str = "") -> str:
        """One of *values*; *default* where there is none."""
        text = self.text(name)
        if not text:
            return default
        known = tuple(map(str, values))
        if text in known:
            return text
        self.bad(name, f"Unsupported value: {quote(text)}: supported values: {', '.join(map(quote, known))}")
        return default

    def amount(self, name: str) -> Quantity | None:
        """A quantity; ``None`` where there is none."""
        if not self.has(name):
            return None
        read = self.notes.fields.amounts({name: self.found[name]}, self.path)
        return read.get(name)

    def part(self, name: str) -> "ObjectReader":
        """An object, without any fields where there is none."""
        return ObjectReader(self.notes, self.at(name), self.notes.fields.mapping(self.found.get(name), self.at(name)))

    def parts(self, name: str) -> Iterator["ObjectReader"]:
        """The objects of a list."""
        for path, item in self.notes.fields.items(self.found.get(name), self.at(name)):
            yield ObjectReader(self.notes, path, item)

    def each(self, name: str) -> "ObjectReader":
        """The values of a list as if each were a field of its own, ``name[0]`` and so on."""
        values = self.found.get(name)
        if values is not None and not isinstance(values, list | tuple):
            self.bad(name, "must be a list")
            values = ()
        return ObjectReader(
            self.notes, self.path, {f"{name}[{index}]": value for index, value in enumerate(values or ())}
        )

    def label(self, name: str, taken: set[str]) -> str:
        """A name that is a DNS label, and nobody else's of those *taken*, to which it is added."""
        text = self.required(name)
        if text:
            self.judge(name, text, names.label_faults(text))
        if text and text in taken:
            self.bad(name, f"Duplicate value: {quote(text)}")
        taken.add(text)
        return text

    def judge(self, name: str, text: str, faults: Iterable[str]) -> None:
        """Note each of a text's *faults*."""
        for fault in faults:
            self.bad(name, f"Invalid value: {quote(text)}: {fault}")

    def bad(self, name: str, what: str) -> None:
        """Note what is wrong with a field."""
        self.notes.fields.problems.append(Problem(self.at(name), what))

    def warn(self, name: str, what: str) -> None:
        """Note what will not happen."""
        self.notes.warnings.append(f"{self.at(name)}: {what}")

    def ask(self, permission: Permission, name: str, what: str) -> None:
        """Note that *what* is asked for, if that is not allowed."""
        what = f"{what}, which is not allowed here; start the agent with --allow {permission}"
        self.notes.permissions[Problem(self.at(name), what)] = permission
        self.bad(name, what)


def read_ip_address(part: ObjectReader, name: str) -> str:
    """An IP address; empty where there is none."""
    text = part.text(name)
    try:
        usable = not text or not getattr(ipaddress.ip_address(text), "scope_id", None)
    except ValueError:
        usable = False
    if not usable:
        part.bad(name, f"Invalid value: {quote(text)}: must be a valid IP address")
    return text
