"""The files and objects in which people have a KubeletConfiguration.

* The kubelet's own file, and drop-in files beside it.
* The answer of a running kubelet's ``/configz``: ``{"kubeletconfig": {…}}``.
* The ConfigMap of kubeadm, ``kubelet-config``: a file in ``data.kubelet``.
* A file of a distribution or a cloud: see :mod:`~alignup.kubernetes.configuration.distributions`.
* A List with one of these objects, as ``kubectl get -o yaml`` prints it.

A kubelet with a directory of drop-ins takes every ``*.conf`` file of it and its subdirectories, in the order of their
names. Each is merged as a JSON merge patch: objects key by key, lists as a whole, and ``null`` removes a field, which
then has its default. The first file is decoded and has its defaults before anything is merged, which shows in a few
fields:

* Thresholds in ``evictionHard`` are added to the default ones. Without a first file there are no default ones.
* ``mergeDefaultEvictionSettings`` has no effect in a drop-in.
* An empty ``enforceNodeAllocatable`` of the first file becomes the default, ``[pods]``.
* Quantities in ``reservedMemory`` of the first file get their canonical form, so ``1.5Gi`` is valid there.

Drop-ins are decoded more strictly than the first file in one way, duplicate keys, and less strictly in another: the
case of field names does not matter.
"""

import json
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import MISSING, dataclass, field, fields, replace
from pathlib import Path
from typing import Any

from alignup.align.bits import CpuSet, quote
from alignup.align.errors import OWN_LIMIT, ConfigurationError, FileError, ParseError, Problem, ProblemKind
from alignup.align.release import NEWEST, Release
from alignup.documents.line_numbers import find_line
from alignup.kubernetes.configuration import distributions, feature_gates
from alignup.kubernetes.configuration.fields import FIELDS, KIND, USED_FIELDS, VERSION, Configuration, StartupStage
from alignup.kubernetes.configuration.load import (
    decode_document,
    first_document,
    has_type,
    parse_override,
    read_document,
    reserved_memory_document,
)
from alignup.kubernetes.manifests import documents
from alignup.kubernetes.manifests.documents import ParsedDocument
from alignup.kubernetes.manifests.object_reader import Diagnostics, ObjectReader

SUFFIX = ".conf"
MAX_FILES = 10_000  #: in a directory of drop-ins, also files that are not read

_TYPE = {"apiVersion": VERSION, "kind": KIND}
_FOLDED = {name.lower(): name for name in FIELDS}
_EVICTION, _MERGE_EVICTION = "evictionHard", "mergeDefaultEvictionSettings"
_DEFAULTS = {attribute.name: attribute.default for attribute in fields(Configuration)}
#: The fields that the kubelet encodes although no file sets them.
_DEFAULTED = {
    name
    for name, attribute in USED_FIELDS.items()
    if _DEFAULTS[attribute] is not MISSING and (isinstance(_DEFAULTS[attribute], bool) or _DEFAULTS[attribute])
}


@dataclass(frozen=True, slots=True)
class ConfigurationText:
    """A KubeletConfiguration as a file that the kubelet reads."""

    text: bytes
    file: str  #: that it comes from
    notes: tuple[str, ...] = ()  #: what the text does not say, each with the name of a file
    #: field or ``field[key]`` → the file that sets it; empty if there is only one file
    origins: Mapping[str, str] = field(default_factory=dict)
    #: the document that the kubelet reads in the text; ``None``: not parsed yet, or it cannot be parsed
    parsed: ParsedDocument | None = field(default=None, compare=False, repr=False)
    part: str = ""  #: the field of the file that contains it, such as ``data.kubelet``
    number: int = 0  #: of the document that contains it; 0: the only one
    release: Release = NEWEST  #: of the kubelet that reads it
    #: field → the path of its value in the file, where it is not below *part*
    places: Mapping[str, str] = field(default_factory=dict)
    incomplete: str = ""  #: says which fields only the node has
    path: str = ""  #: of the object in the file that has its fields under their own names; empty: the file itself
    snippet: Mapping[str, Any] | None = None  #: the fields in an annotation of the file; ``None``: it can have none
    offline: CpuSet = 0  #: CPUs of the node that the file takes offline

    @classmethod
    def of(
        cls, fields: Mapping[str, Any], file: str, notes: Sequence[str] = (), *, part: str = "", number: int = 0
    ) -> "ConfigurationText":
        text, document = documents.to_json(fields).encode(), ParsedDocument(1, 1, fields)
        return cls(text, file, tuple(notes), parsed=document, part=part, number=number)

    @property
    def name(self) -> str:
        """The file, and where it is there."""
        part = f"document {self.number}" if self.number else self.part
        return f"{self.file}, {part}" if part else self.file

    @property
    def document(self) -> ParsedDocument:
        """Return what the kubelet reads; :class:`ConfigurationError` if it cannot be parsed."""
        return self.parsed or first_document(self.text, name=self.name)

    def write_fields(self, text: str) -> str:
        """Return fields of a KubeletConfiguration, as YAML, in the form of the file that they come from."""
        if not text or not (self.path or self.places or self.snippet is not None):
            return text
        (document,) = documents.read(text)
        fields_by_parent: dict[str, Any] = {}
        annotations: dict[str, Any] = {}
        for name, value in document.value.items():
            path = self.places.get(name, "")
            if self.snippet is not None and not path:
                annotations[name] = value
                continue
            is_flag = "[" in path  # which has no path of fields
            *outer, last = (path if path and not is_flag else f"{self.path}.{name}".lstrip(".")).split(".")
            holder = fields_by_parent
            for key in outer:
                holder = holder.setdefault(key, {})
            holder[last] = value
        if annotations:
            snippet = documents.to_json({**(self.snippet or {}), **annotations})
            fields_by_parent["metadata"] = {"annotations": {distributions.SNIPPET: snippet}}
        return documents.to_yaml(json.loads(documents.to_json(fields_by_parent)))  # plain numbers

    def read(self) -> Configuration:
        """Return the configuration with defaults; :class:`ConfigurationError` if the kubelet would reject it."""
        return read_document(self.document, name=self.name, release=self.release)

    def override(self, changes: Sequence[str]) -> "ConfigurationText":
        """Apply ``FIELD=VALUE`` or ``FIELD.KEY=VALUE`` for each of *changes*; ``ParseError`` for an unknown field."""
        overrides = [parse_override(change) for change in changes]
        try:
            document = self.document
        except ConfigurationError:
            return self  # the kubelet rejects it, whatever is changed
        value = dict(document.value) if isinstance(document.value, Mapping) else {}
        for name, key, new in overrides:
            inner = value.get(name)
            value[name] = {**(inner if isinstance(inner, Mapping) else {}), key: new} if key else new
        return replace(self, text=documents.to_json(value).encode(), parsed=ParsedDocument(1, 1, value))

    def origin(self, path: str) -> str:
        """Return the file that sets the field at *path*; empty if only one file can, or none does."""
        return self.origins.get(path) or self.origins.get(path.partition("[")[0].partition(".")[0], "")


def unwrap(
    text: bytes, *, name: str, release: Release = NEWEST, ignore_unknown_fields: bool = False
) -> ConfigurationText:
    """Return the KubeletConfiguration in *text*; a text in another form is returned as it is.

    :class:`ConfigurationError` if *text* is one of the objects above, but without a configuration, or with fields that
    it does not have; with *ignore_unknown_fields*, a note names these.
    """
    return replace(_unwrap(text, name, release, lenient=ignore_unknown_fields), release=release)


def _unwrap(text: bytes, name: str, release: Release, *, lenient: bool) -> ConfigurationText:
    try:
        parts = documents.read(text)
    except ParseError:
        parts = ()  # the kubelet's own reader explains what is wrong
    if not parts or not isinstance(parts[0].value, Mapping):
        return ConfigurationText(text, name)
    value = parts[0].value
    if "kind" not in value and isinstance(value.get("kubeletconfig"), Mapping):
        return _live_configuration(value["kubeletconfig"], name, release)
    if value.get("kind") == "List" and isinstance(items := value.get("items"), list):
        value = _only_item(items, name)
    version, kind = str(value.get("apiVersion")), value.get("kind")
    if (version, kind) == ("v1", "ConfigMap"):
        return ConfigurationText(_config_map_text(value, name), name, part="data.kubelet")
    if len(parts) > 1 or (version, kind) != (VERSION, KIND):
        whole = parts if value is parts[0].value else (ParsedDocument(1, 1, value),)
        if source := _node_file(whole, text, name, lenient=lenient):
            return source
    if value is not parts[0].value:
        return ConfigurationText.of(value, name, part="items[0]")
    try:
        return ConfigurationText(text, name, parsed=first_document(text, name=name, parts=parts))
    except ConfigurationError:
        return ConfigurationText(text, name)  # the same when it is read


def _live_configuration(live: Mapping[str, Any], name: str, release: Release) -> ConfigurationText:
    """Return a running kubelet's configuration, in which absent fields are empty: its defaults are already set.

    A kubelet of another release may have feature gates that *release* does not know. They do not keep it from running.
    """
    fields: dict[str, Any] = {**_TYPE, "evictionHard": {}, "enforceNodeAllocatable": [], **live}
    fields.pop("mergeDefaultEvictionSettings", None)  # evictionHard has the defaults that it added
    notes = []
    gates = fields.get("featureGates")
    if isinstance(gates, Mapping) and all(isinstance(on, bool) for on in gates.values()):
        unsettable = {problem.field: problem for problem in feature_gates.unsettable(gates, release)}
        fields["featureGates"] = {gate: on for gate, on in gates.items() if f"featureGates[{gate}]" not in unsettable}
        notes = [
            f"{name}: ignored {problem.field}, which Kubernetes {release} rejects: {problem.message}"
            for problem in unsettable.values()
        ]
    return ConfigurationText.of(fields, name, notes, part="kubeletconfig")


def _only_item(items: list[Any], name: str) -> Mapping[str, Any]:
    if len(items) != 1 or not isinstance(items[0], Mapping):
        raise _error("items", f"must have one object with a configuration, not {len(items)}", name)
    return items[0]


def _config_map_text(value: Mapping[str, Any], name: str) -> bytes:
    top = ObjectReader.of(value)
    data = top.child("data")
    text = data.text("kubelet")
    if not text and not top.diagnostics.problems:
        parts = f"has only {', '.join(data.fields)}" if data.fields else "is empty"
        data.error("kubelet", f"Required value: data {parts}, and the kubelet-config ConfigMap has a file here")
    if problems := top.diagnostics.problems:
        raise ConfigurationError(problems, stage=StartupStage.LOAD, source=name)
    return text.encode()


def _node_file(parts: Sequence[ParsedDocument], text: bytes, name: str, *, lenient: bool) -> ConfigurationText | None:
    """Return the configuration in a file of a distribution or a cloud; ``None`` for any other file."""
    diagnostics = Diagnostics()
    node_file = distributions.read_node_file(parts, diagnostics)
    if node_file is None:
        return None
    unknown_fields = [
        problem for problem in diagnostics.problems if lenient and problem.kind is ProblemKind.UNKNOWN_FIELD
    ]
    node_file.notes += [f"ignored {problem}" for problem in unknown_fields]
    if problems := [problem for problem in diagnostics.problems if problem not in unknown_fields]:
        lines = (find_line(text, problem.field, document=node_file.number) for problem in problems)
        located_problems = [replace(problem, line=line) for problem, line in zip(problems, lines, strict=True)]
        advice = f"Correct it, or give the configuration of a running kubelet: {distributions.FETCH}"
        raise ConfigurationError(located_problems, stage=StartupStage.LOAD, source=name, advice=advice)
    notes = [f"{name}: {note}" for note in node_file.notes]
    if node_file.defaults:
        notes.append(f"{name}: set as {node_file.title} sets it: {', '.join(node_file.defaults)}")
    incomplete = ""
    if node_file.computed:
        incomplete = (
            f"each node sets {node_file.computed}, unknown here: use --set, or fetch it with {distributions.FETCH}"
        )
        notes.append(f"{name}: {incomplete}")
    number = node_file.number if len(parts) > 1 else 0
    source = ConfigurationText.of({**node_file.fields, **_TYPE}, name, notes, part=node_file.part, number=number)
    return replace(
        source,
        places=node_file.places,
        incomplete=incomplete,
        path="" if "[" in node_file.part else node_file.part,
        snippet=node_file.snippet,
        offline=node_file.offline,
    )


def _error(path: str, message: str, name: str) -> ConfigurationError:
    return ConfigurationError([Problem(path, message)], stage=StartupStage.LOAD, source=name)


def find_drop_ins(directory: Path) -> tuple[Path, ...]:
    """Return the files that the kubelet merges, in its order. ``OSError`` if a directory cannot be read."""
    files = []
    for number, path in enumerate(_walk(directory)):
        if number >= MAX_FILES:
            raise FileError(f"{directory} has more than {MAX_FILES:,} files {OWN_LIMIT}")
        if path.name.endswith(SUFFIX):
            files.append(path)
    return tuple(files)


def parse_drop_in(text: bytes, *, name: str) -> ConfigurationText:
    """Parse a drop-in file; :class:`ConfigurationError` if the kubelet would reject it before it merges anything."""
    document = first_document(text, name=name)
    top = ObjectReader.of(document.value)
    has_type(top)
    problems = list(top.diagnostics.problems)
    for key in document.repeated:
        prefix = f"line {key.line}: " if document.lines else ""
        problems.append(Problem(key.key, f"{prefix}duplicate key, which the kubelet rejects in a drop-in"))
    if problems:
        raise ConfigurationError(problems, stage=StartupStage.LOAD, source=name)
    return ConfigurationText(text, name, parsed=document)


def merge_drop_ins(
    base: ConfigurationText | None,
    drop_ins: Sequence[ConfigurationText],
    *,
    directory: str,
    release: Release = NEWEST,
) -> ConfigurationText:
    """Merge *drop_ins* of *directory* in order into *base*, the kubelet's first file; *release* counts without one.

    :class:`ConfigurationError` if *base* cannot be loaded. Invalid fields of drop-ins are found when the result is
    read, since a later drop-in may replace them.
    """
    document: Mapping[str, Any] = {}
    notes: list[str] = []
    origins: dict[str, str] = {}
    if base is not None:
        configuration = decode_document(base.document, name=base.name, release=base.release)
        notes += [*base.notes, *(f"{base.name}: {warning}" for warning in configuration.warnings)]
        document = _encoded(base, configuration)
        _record(origins, document, base.name)
    for drop_in in drop_ins:
        patch = {key: value for key, value in drop_in.document.value.items() if key not in _TYPE}
        document = _patched(document, patch)
        _record(origins, patch, drop_in.name)
        if patch.get(_MERGE_EVICTION) is not None:
            notes.append(f"{drop_in.name}: {_MERGE_EVICTION} has no effect in a drop-in")
        for name in (name for name in patch if name not in FIELDS):
            if field := _FOLDED.get(name.lower()):
                notes.append(f"{drop_in.name}: the case of names does not matter in drop-ins: {quote(name)} is {field}")
            else:
                notes.append(f"{drop_in.name}: the kubelet ignores unknown field {quote(name[:200])}")
    known_fields = {
        name: value for name, value in _fold_names(document).items() if name in FIELDS and value is not None
    }
    known_fields.pop(_MERGE_EVICTION, None)
    name = f"{base.name} with the drop-ins of {directory}" if base else f"the drop-ins of {directory}"
    text = ConfigurationText.of({**_TYPE, _EVICTION: {}, **known_fields}, name, notes)
    return replace(text, origins=origins, release=base.release if base else release)


def _walk(directory: Path) -> Iterator[Path]:
    """Yield the files below *directory*, subdirectories in their place among them; links to directories are files."""
    with os.scandir(directory) as entries:
        ordered_entries = sorted(entries, key=lambda entry: os.fsencode(entry.name))
    for entry in ordered_entries:
        if entry.is_dir(follow_symlinks=False):
            yield from _walk(Path(entry.path))
        else:
            yield Path(entry.path)


def _encoded(base: ConfigurationText, configuration: Configuration) -> dict[str, Any]:
    """Return the fields of the first file as the kubelet encodes them for merging: known ones that are not empty."""
    encoded_fields = {
        name: value
        for name, value in base.document.value.items()
        if name in FIELDS and name not in _TYPE and value not in (None, [], {}, "")
    }
    encoded_fields[_EVICTION] = dict(configuration.eviction_hard)
    if configuration.reserved_memory:
        encoded_fields["reservedMemory"] = reserved_memory_document(configuration.reserved_memory)
    return encoded_fields


def _record(origins: dict[str, str], patch: Mapping[str, Any], name: str) -> None:
    for key, value in patch.items():
        field = key if key in FIELDS else _FOLDED.get(key.lower(), key)
        origins[field] = name
        if isinstance(value, Mapping):
            origins.update((f"{field}[{inner}]", name) for inner in value)


def _patched(value: object, patch: object) -> Any:  # noqa: ANN401 - any JSON
    """Return *value* after the JSON merge patch *patch* (RFC 7386)."""
    if isinstance(patch, list):
        return [_patched(None, item) for item in patch]
    if not isinstance(patch, Mapping):
        return patch
    patched_fields = dict(value) if isinstance(value, Mapping) else {}
    for key, new in patch.items():
        if new is None:
            patched_fields.pop(key, None)
        else:
            patched_fields[key] = _patched(patched_fields.get(key), new)
    return patched_fields


def _fold_names(document: Mapping[str, Any]) -> dict[str, Any]:
    """Return *document* with all field names in the right case.

    Of several spellings of a field the last in order of bytes counts; objects add up. A field with a default is always
    there in its right spelling.
    """
    names_by_key: dict[str, list[str]] = {}
    for name in document:
        names_by_key.setdefault(name if name in FIELDS else _FOLDED.get(name.lower(), name), []).append(name)
    folded_fields: dict[str, Any] = {}
    for field_name, spellings in names_by_key.items():
        if field_name not in document and field_name in _DEFAULTED:
            spellings.append(field_name)  # the spelling that the kubelet adds
        for name in sorted(spellings):
            value, earlier = document.get(name), folded_fields.get(field_name)
            both = isinstance(value, Mapping) and isinstance(earlier, Mapping)
            folded_fields[field_name] = {**earlier, **value} if both else value  # type: ignore[dict-item]
    return folded_fields
