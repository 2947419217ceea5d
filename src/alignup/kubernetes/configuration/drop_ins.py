"""Merges drop-in files into a KubeletConfiguration, as a kubelet started with ``--config-dir`` does.

The kubelet takes every ``*.conf`` file of the directory and its subdirectories, in the order of their names. Each is
merged as a JSON merge patch: objects key by key, lists as a whole, and ``null`` removes a field, which then has its
default. The first file is decoded and has its defaults before anything is merged, which shows in a few fields:

* Thresholds in ``evictionHard`` are added to the default ones. Without a first file there are no default ones.
* ``mergeDefaultEvictionSettings`` has no effect in a drop-in.
* An empty ``enforceNodeAllocatable`` of the first file becomes the default, ``[pods]``.
* Quantities in ``reservedMemory`` of the first file get their canonical form, so ``1.5Gi`` is valid there.

Drop-ins are decoded more strictly than the first file in one way, duplicate keys, and less strictly in another: the
case of field names does not matter.
"""

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import MISSING, dataclass, fields
from pathlib import Path
from typing import Any

from alignup.align.bits import quote
from alignup.align.errors import OWN_LIMIT, ConfigurationError, FileError, Problem
from alignup.kubernetes.configuration.fields import FIELDS
from alignup.kubernetes.configuration.load import KIND, USED_FIELDS, VERSION, first_document, has_type, load
from alignup.kubernetes.configuration.model import Configuration, StartupStage
from alignup.kubernetes.configuration.wrapping_objects import ConfigurationText
from alignup.kubernetes.manifests import documents
from alignup.kubernetes.manifests.object_reader import ObjectReader

SUFFIX = ".conf"
MAX_FILES = 10_000  #: in a directory of drop-ins, also those that are not read

_FOLDED = {name.lower(): name for name in FIELDS}
_EVICTION, _MERGE_EVICTION = "evictionHard", "mergeDefaultEvictionSettings"


@dataclass(frozen=True, slots=True)
class DropIn:
    name: str  #: of the file
    fields: Mapping[str, Any]


def find_drop_ins(directory: Path) -> tuple[Path, ...]:
    """The files that the kubelet merges, in its order. ``OSError`` if a directory cannot be read."""
    found = []
    for number, path in enumerate(_walk(directory)):
        if number >= MAX_FILES:
            raise FileError(f"{directory} has more than {MAX_FILES:,} files {OWN_LIMIT}")
        if path.name.endswith(SUFFIX):
            found.append(path)
    return tuple(found)


def parse_drop_in(text: bytes, *, name: str) -> DropIn:
    """A drop-in file; :class:`ConfigurationError` if the kubelet would reject it before it merges anything."""
    document = first_document(text, name=name)
    top = ObjectReader.of(document.value)
    has_type(top)
    problems = list(top.diagnostics.problems)
    for one in document.repeated:
        where = f"line {one.line}: " if document.lines else ""
        problems.append(Problem(one.key, f"{where}duplicate key, which the kubelet rejects in a drop-in"))
    if problems:
        raise ConfigurationError(problems, stage=StartupStage.LOAD, source=name)
    return DropIn(name, {key: value for key, value in top.fields.items() if key not in {"kind", "apiVersion"}})


def merge_drop_ins(base: ConfigurationText | None, drop_ins: Sequence[DropIn], *, directory: str) -> ConfigurationText:
    """*base*, the file of ``--config``, with *drop_ins* of *directory* merged into it in order.

    :class:`ConfigurationError` if *base* cannot be loaded. Invalid fields of drop-ins are found when the result is
    read, since a later drop-in may replace them.
    """
    document: Mapping[str, Any] = {}
    notes: list[str] = []
    origins: dict[str, str] = {}
    if base is not None:
        loaded = load(base.text, name=base.name)
        notes += [*base.notes, *(f"{base.name}: {warning}" for warning in loaded.warnings)]
        document = _encoded(base, loaded)
        _record(origins, document, base.name)
    for drop_in in drop_ins:
        document = _patched(document, drop_in.fields)
        _record(origins, drop_in.fields, drop_in.name)
        if drop_in.fields.get(_MERGE_EVICTION) is not None:
            notes.append(f"{drop_in.name}: {_MERGE_EVICTION} has no effect in a drop-in")
        for name in drop_in.fields:
            known = _FOLDED.get(name.lower())
            if name not in FIELDS and known is None:
                notes.append(f"{drop_in.name}: the kubelet ignores unknown field {quote(name[:200])}")
            elif name not in FIELDS:
                notes.append(f"{drop_in.name}: the case of names does not matter in drop-ins: {quote(name)} is {known}")
    merged = {name: one for name, one in _fold_names(document).items() if name in FIELDS and one is not None}
    merged.pop(_MERGE_EVICTION, None)
    text = documents.to_json({"apiVersion": VERSION, "kind": KIND, _EVICTION: {}, **merged}).encode()
    name = f"{base.name} with the drop-ins of {directory}" if base else f"the drop-ins of {directory}"
    return ConfigurationText(text, name, tuple(notes), origins)


def _walk(directory: Path) -> Iterator[Path]:
    """The files below *directory*, subdirectories in their place among them; links to directories are files."""
    with os.scandir(directory) as entries:
        ordered = sorted(entries, key=lambda entry: os.fsencode(entry.name))
    for entry in ordered:
        if entry.is_dir(follow_symlinks=False):
            yield from _walk(Path(entry.path))
        else:
            yield Path(entry.path)


def _encoded(base: ConfigurationText, loaded: Configuration) -> dict[str, Any]:
    """The fields of the first file as the kubelet encodes them for merging: known ones that are not empty."""
    value = first_document(base.text, name=base.name).value
    encoded = {name: one for name, one in value.items() if name in FIELDS and one not in (None, [], {}, "")}
    encoded[_EVICTION] = dict(loaded.eviction_hard)
    if loaded.reserved_memory:
        encoded["reservedMemory"] = [
            {"numaNode": one.node, "limits": {key: str(amount) for key, amount in one.limits.items()}}
            for one in loaded.reserved_memory
        ]
    return {name: one for name, one in encoded.items() if name not in {"kind", "apiVersion"}}


def _record(origins: dict[str, str], patch: Mapping[str, Any], name: str) -> None:
    for key, value in patch.items():
        field = key if key in FIELDS else _FOLDED.get(key.lower(), key)
        origins[field] = name
        if isinstance(value, Mapping):
            origins.update((f"{field}[{inner}]", name) for inner in value)


def _patched(value: object, patch: object) -> Any:  # noqa: ANN401 - any JSON
    """*value* after the JSON merge patch *patch* (RFC 7386)."""
    if isinstance(patch, list):
        return [_patched(None, item) for item in patch]
    if not isinstance(patch, Mapping):
        return patch
    merged = dict(value) if isinstance(value, Mapping) else {}
    for key, new in patch.items():
        if new is None:
            merged.pop(key, None)
        else:
            merged[key] = _patched(merged.get(key), new)
    return merged


def _fold_names(document: Mapping[str, Any]) -> dict[str, Any]:
    """*document* with all field names in the right case.

    Of several spellings of a field the last in order of bytes counts; objects add up. A field with a default is always
    there in its right spelling.
    """
    spelled: dict[str, list[str]] = {}
    for name in document:
        spelled.setdefault(name if name in FIELDS else _FOLDED.get(name.lower(), name), []).append(name)
    folded: dict[str, Any] = {}
    for field, names in spelled.items():
        if field not in document and _has_default(field):
            names = [*names, field]  # noqa: PLW2901 - the spelling that the kubelet adds
        for name in sorted(names):
            value, before = document.get(name), folded.get(field)
            both = isinstance(value, Mapping) and isinstance(before, Mapping)
            folded[field] = {**before, **value} if both else value  # type: ignore[dict-item]
    return folded


def _has_default(field: str) -> bool:
    """Whether the kubelet encodes a field that no file sets."""
    defaults = {one.name: one for one in fields(Configuration)}
    default = defaults[USED_FIELDS[field]] if field in USED_FIELDS else None
    if default is None or default.default_factory is not MISSING:
        return False
    return isinstance(default.default, bool) or bool(default.default)
