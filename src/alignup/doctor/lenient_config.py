"""Read as much as possible of a KubeletConfiguration, although the kubelet stops at the first error.

Each error is recorded, the fields it concerns are dropped, and the rest is read again, so that all errors can be fixed
at once. Draw no conclusions from a dropped field: ``LenientConfig.dropped`` lists them.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace

from alignup.align.errors import ConfigurationError, DocumentError
from alignup.align.machine import Machine
from alignup.kube import configuration, documents
from alignup.kube.configuration import Configuration, NodeReservations, StartupStage
from alignup.kube.yaml_documents import ParsedDocument

_TYPE_FIELDS = {"", "kind", "apiVersion"}  #: without these the type of the file is unknown


@dataclass(frozen=True, slots=True)
class LenientConfig:
    configuration: Configuration | None  #: ``None``: not even the rest can be read
    errors: tuple[ConfigurationError, ...] = ()
    dropped: frozenset[str] = frozenset()  #: such as ``systemReserved`` or ``systemReserved[cpu]``

    def has_dropped(self, *fields: str) -> bool:
        """Whether one of *fields*, or the map it is in, was dropped."""
        return any(name in self.dropped or name.partition("[")[0] in self.dropped for name in fields)


def read(text: bytes, *, name: str) -> LenientConfig:
    """Everything that is wrong with *text* on its own, and the configuration without it."""
    errors: list[ConfigurationError] = []
    dropped: set[str] = set()
    document, rest = None, text
    while True:
        try:
            found = configuration.read(rest, name=name)
        except ConfigurationError as error:
            document = document or _first_document(text)
            errors.append(error)
            concerned = _concerned_fields(error) - dropped
            if document is None or not concerned or concerned & _TYPE_FIELDS:
                return LenientConfig(None, tuple(errors), frozenset(dropped))
            dropped |= concerned
            kept = {str(key): value for key, value in document.value.items() if key not in dropped}
            gates = kept.get("featureGates")
            if isinstance(gates, Mapping):
                named = {str(key): on for key, on in gates.items() if f"featureGates[{key}]" not in dropped}
                kept["featureGates"] = named
            rest = documents.to_json(kept).encode()
        else:
            if document and dropped:  # the duplicate keys are gone once the document is written again
                duplicates = [f"line {one.line}: {one}" for one in document.repeated]
                found = replace(found, warnings=(*found.warnings, *duplicates))
            return LenientConfig(found, tuple(errors), frozenset(dropped))


def compute_reservations(config: LenientConfig, machine: Machine) -> tuple[LenientConfig, NodeReservations]:
    """The reservations, and the configuration without amounts and CPUs that cannot be reserved."""
    found = config.configuration or Configuration()
    errors, dropped = list(config.errors), set(config.dropped)
    while True:
        try:
            reservations = configuration.compute_reservations(found, machine)
        except ConfigurationError as error:
            errors.append(error)
            concerned = {problem.field for problem in error.problems}
            dropped |= concerned | ({"kubeReserved", "evictionHard"} if "systemReserved" in concerned else set())
            found = _without_reservations(found, concerned)
        else:
            return LenientConfig(found, tuple(errors), frozenset(dropped)), reservations


def _first_document(text: bytes) -> ParsedDocument | None:
    """The document the kubelet reads; ``None`` if it is not an object."""
    try:
        found = documents.read(text)
    except DocumentError:
        return None
    return found[0] if found and found[0].number == 1 and isinstance(found[0].value, Mapping) else None


def _concerned_fields(error: ConfigurationError) -> set[str]:
    """The fields to drop; of the feature gates only the named ones, where that is enough."""
    if error.stage == StartupStage.DEFAULTING_PANIC:
        single = all(problem.what.startswith(("unrecognized", "cannot set")) for problem in error.problems)
        return {problem.field for problem in error.problems} if single else {"featureGates"}
    return {problem.field.partition("[")[0].partition(".")[0] for problem in error.problems}


def _without_reservations(found: Configuration, fields: set[str]) -> Configuration:
    unusable = "systemReserved" in fields  # the amounts cannot even be added up

    def usable(name: str, texts: Mapping[str, str]) -> dict[str, str]:
        return {key: text for key, text in texts.items() if not unusable and f"{name}[{key}]" not in fields}

    return replace(
        found,
        reserved_system_cpus="" if "reservedSystemCPUs" in fields else found.reserved_system_cpus,
        kube_reserved=usable("kubeReserved", found.kube_reserved),
        system_reserved=usable("systemReserved", found.system_reserved),
        eviction_hard=usable("evictionHard", found.eviction_hard),
    )
