"""A KubeletConfiguration read as far as it can be, though the kubelet would stop at the first thing wrong with it.

What stops it is noted, the fields concerned are left out, and the rest is read again, so that everything can be put
right at once. Nobody may draw conclusions from a field that was left out: ``LenientConfig.lost`` says which.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from alignup.align.bits import quote
from alignup.align.errors import ConfigurationError, DocumentError
from alignup.align.machine import Machine
from alignup.kube import configuration, documents
from alignup.kube.configuration import Configuration, NodeReservations, StartupStage
from alignup.kube.documents import Document, NumberLiteral

_HEAD = {"", "kind", "apiVersion"}  #: without these there is no telling what a file is


@dataclass(frozen=True, slots=True)
class LenientConfig:
    """What came of reading a file."""

    configuration: Configuration | None  #: without what was left out; ``None``: not even the rest can be read
    errors: tuple[ConfigurationError, ...] = ()
    lost: frozenset[str] = field(default=frozenset())  #: fields left out, ``systemReserved`` or ``systemReserved[cpu]``

    def has_dropped(self, *fields: str) -> bool:
        """Whether one of *fields*, or the whole map it is in, was left out."""
        return any(name in self.lost or name.partition("[")[0] in self.lost for name in fields)


def read(text: bytes, *, name: str) -> LenientConfig:
    """All that is wrong with *text* for itself, and what is left of it without that."""
    errors: list[ConfigurationError] = []
    lost: set[str] = set()
    document = _first(text)
    now = text
    while True:
        try:
            found = configuration.read(now, name=name)
        except ConfigurationError as error:
            errors.append(error)
            left_out = _concerned(error) - lost
            if document is None or not left_out or left_out & _HEAD:
                return LenientConfig(None, tuple(errors), frozenset(lost))
            lost |= left_out
            now = _without(document, lost)
        else:
            return LenientConfig(_warned(found, document if lost else None), tuple(errors), frozenset(lost))


def compute_reservations(reading: LenientConfig, machine: Machine) -> tuple[LenientConfig, NodeReservations]:
    """The same without amounts and CPUs that cannot be reserved, and what is reserved then."""
    found, errors, lost = reading.configuration or Configuration(), list(reading.errors), set(reading.lost)
    while True:
        try:
            told = configuration.compute_reservations(found, machine)
        except ConfigurationError as error:
            errors.append(error)
            left_out = {one.field for one in error.problems}
            lost |= left_out | ({"kubeReserved", "evictionHard"} if "systemReserved" in left_out else set())
            found = _less(found, left_out)
        else:
            return LenientConfig(found, tuple(errors), frozenset(lost)), told


def to_json(value: object) -> str:
    """*value*, of which a document is made, as JSON, numbers as they were written."""
    match value:
        case Mapping():
            return "{" + ",".join(f"{json.dumps(str(key))}:{to_json(one)}" for key, one in value.items()) + "}"
        case list() | tuple():
            return "[" + ",".join(map(to_json, value)) + "]"
        case NumberLiteral():
            return str(value)
        case _:
            return json.dumps(value)


def _first(text: bytes) -> Document | None:
    """The document the kubelet reads; ``None`` where that is no object, or nothing at all."""
    try:
        found = documents.read(text)
    except DocumentError:
        return None
    return found[0] if found and found[0].number == 1 and isinstance(found[0].value, Mapping) else None


def _concerned(error: ConfigurationError) -> set[str]:
    """The fields to leave out; of feature gates only those named, where that is enough."""
    if error.stage == StartupStage.DEFAULTING_PANIC:
        settable = all(one.what.startswith(("unrecognized", "cannot set")) for one in error.problems)
        return {one.field for one in error.problems} if settable else {"featureGates"}
    return {one.field.partition("[")[0].partition(".")[0] for one in error.problems}


def _without(document: Document, lost: set[str]) -> bytes:
    kept = {key: value for key, value in document.value.items() if key not in lost}
    gates = kept.get("featureGates")
    if isinstance(gates, Mapping):
        kept["featureGates"] = {key: on for key, on in gates.items() if f"featureGates[{key}]" not in lost}
    return to_json(kept).encode()


def _warned(found: Configuration, document: Document | None) -> Configuration:
    """With warnings about keys given twice, which are not seen any more where the *document* was written anew."""
    if document is None:
        return found
    twice = (f"line {one.line}: key {quote(one.key)} is set already; the last one counts" for one in document.repeated)
    return replace(found, warnings=(*found.warnings, *twice))


def _less(found: Configuration, fields: set[str]) -> Configuration:
    """The configuration without reservations and thresholds that cannot be used."""
    beyond = "systemReserved" in fields  # amounts that cannot even be added up

    def usable(name: str, texts: Mapping[str, str]) -> dict[str, str]:
        return {key: text for key, text in texts.items() if not beyond and f"{name}[{key}]" not in fields}

    return replace(
        found,
        reserved_system_cpus="" if "reservedSystemCPUs" in fields else found.reserved_system_cpus,
        kube_reserved=usable("kubeReserved", found.kube_reserved),
        system_reserved=usable("systemReserved", found.system_reserved),
        eviction_hard=usable("evictionHard", found.eviction_hard),
    )
