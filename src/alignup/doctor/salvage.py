"""What a damaged state file still contains, with how far to trust it and what is wrong with the file.

The newest version stores everything twice: its contents, and a copy for older kubelets, each with a checksum. Where one
is damaged the other may be intact; the kubelet ignores it then, but the doctor does not. A truncated file has its
beginning, which is the copy.

Nothing is invented: the salvage has only what is complete in the file.
"""

import base64
import json
import re
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, NamedTuple

from alignup.align.errors import ParseError
from alignup.align.settings import FeatureGates
from alignup.kubernetes.kubelet_files import go_json
from alignup.kubernetes.kubelet_files.go_json import decode
from alignup.kubernetes.kubelet_files.state_files import (
    ChecksumError,
    DeviceEntry,
    DeviceState,
    StateFileFormat,
    copy_for_older_kubelets,
    data_checksum_text,
    fnv1a,
    load_state_file,
)

#: Down to this depth (file, entries, pod) parts may be missing. What a container holds is complete or absent.
_PARTIAL_DEPTH = 3
_MAX_DEPTH = 50

_TOKEN = re.compile(r'[ \t\r\n]*([{}\[\],:]|"(?:[^"\\\x00-\x1f]|\\.)*"|-?[0-9][0-9.eE+-]*|true|false|null)')
_CLOSING = str.maketrans("{[", "}]")
_DECODER = json.JSONDecoder(parse_constant=int)  # which rejects NaN
_DATA = re.compile(r'"data"\s*:\s*("(?:[^"\\\x00-\x1f]|\\.)*")')
_DATA_SUM = re.compile(r'"dataChecksum"\s*:\s*([0-9]{1,10})')


class SalvageSource(StrEnum):
    CONTENTS = "its contents"
    COPY = "its copy for older kubelets"
    UNCHECKED_CONTENTS = "its contents (wrong checksum)"
    UNCHECKED_COPY = "its copy for older kubelets (wrong checksum)"
    REST = "its readable part (unchecked)"
    NOTHING = "nothing: an empty state"


@dataclass(frozen=True, slots=True)
class Salvage:
    contents: dict[str, Any]  #: under the keys of the newest version
    source: SalvageSource
    version: int = 0  #: of the file; 0 if unknown
    damage: tuple[str, ...] = ()  #: sentences about the file itself
    copy_problem: str = ""  #: what is wrong with the copy, which the kubelet ignores


def salvage(format_: StateFileFormat, text: bytes, *, gates: FeatureGates) -> Salvage:
    """Return the best contents of *text*: with a valid checksum if possible, else what can be read."""
    try:
        version, contents = load_state_file(format_, text, gates=gates)
    except ParseError as error:
        return _recover(format_, text, gates=gates, wrong_checksum=isinstance(error, ChecksumError))
    whole, _ = decode(format_.newest, text, into=format_.newest.empty)
    copy_fields, right = copy_for_older_kubelets(format_, whole)
    problem = ""
    if version == format_.number and contents | copy_fields != contents:
        problem = "the copy for older kubelets differs from the contents"
    elif version == format_.number and whole["checksum"] != right:
        checksum = whole["checksum"]
        problem = f"the checksum of the copy for older kubelets is wrong: {checksum} instead of {right}"
    return Salvage(contents, SalvageSource.CONTENTS, version, copy_problem=problem)


class JsonPrefix(NamedTuple):
    json: str  #: an object
    whole: bool = False  #: the object is complete, though more may follow
    cut: bool = False  #: the text ends inside the object


def readable_prefix(text: bytes) -> JsonPrefix:
    """Return the JSON object that *text* begins with, without truncated or broken parts.

    Reading ends at the first error: what follows might belong elsewhere.
    """
    source = text.decode("utf-8", "replace").rstrip(" \t\r\n\0").lstrip(" \t\r\n")
    try:
        value, _ = _DECODER.raw_decode(source)
    except (ValueError, RecursionError) as error:
        return _broken_prefix(source, error)
    return JsonPrefix(json.dumps(value), whole=True) if isinstance(value, dict) else JsonPrefix("{}")


def _broken_prefix(source: str, error: Exception) -> JsonPrefix:
    """Return the object up to *error*, but no parts of deep containers or of containers in lists."""
    limit = getattr(error, "pos", len(source))
    position, open_brackets, complete = 0, "", [(0, "{}")]
    while (match := _TOKEN.match(source, position)) and match.end() <= limit and len(open_brackets) <= _MAX_DEPTH:
        symbol, position = match[1], match.end()
        open_brackets = (
            open_brackets + symbol if symbol in "{[" else open_brackets[:-1] if symbol in "}]" else open_brackets
        )
        unfinished = position == len(source) and symbol[0] not in '{}[],:"'  # a number or a literal
        if len(open_brackets) <= _PARTIAL_DEPTH and "[" not in open_brackets[:-1] and not unfinished:
            complete.append((position, open_brackets[::-1].translate(_CLOSING)))
    rest = source[position:].lstrip()
    in_string = match is None and rest.startswith('"') and _can_continue_with_string(source[:position], open_brackets)
    in_number = match is not None and match[1][0] != '"' and match.start(1) < limit < match.end() == len(source)
    is_cut = position == len(source) or in_string or in_number
    for end, brackets in reversed(complete):  # after a key, a colon or a comma it is not JSON
        with suppress(ValueError):
            value = json.loads(source[:end] + brackets)
            break
    return JsonPrefix(json.dumps(value) if isinstance(value, dict) else "{}", cut=is_cut)


def _can_continue_with_string(source: str, open_brackets: str) -> bool:
    """Return whether a key or value may follow *source*, in which *open_brackets* are not closed."""
    for text in ('""', '"":null'):
        with suppress(ValueError):
            json.loads(source + text + open_brackets[::-1].translate(_CLOSING))
            return True
    return False


def _recover(format_: StateFileFormat, text: bytes, *, gates: FeatureGates, wrong_checksum: bool) -> Salvage:
    """Return contents with a valid checksum, the copy with one, or unchecked, in this order."""
    part = readable_prefix(text)
    damage = tuple(_damage(format_, text, wrong_checksum=wrong_checksum))
    if part.whole:
        with suppress(ParseError):
            version, contents = load_state_file(format_, part.json.encode(), gates=gates)
            return Salvage(contents, SalvageSource.CONTENTS, version, damage)
    if valid := _with_valid_checksum(format_, text):
        return Salvage(valid, SalvageSource.CONTENTS, format_.number, damage)
    whole, type_error = decode(format_.newest, part.json.encode(), into=format_.newest.empty)
    contents, unread = decode(format_.data, whole["data"].encode(), into=format_.data.empty)
    copy_fields, right = copy_for_older_kubelets(format_, whole)
    valid_copy = type_error is None and bool(right) and whole["checksum"] == right
    if unread is None and valid_copy and contents | copy_fields == contents:
        return Salvage(contents, SalvageSource.CONTENTS, format_.number, damage)
    empty = format_.data.empty
    if valid_copy:
        return Salvage(empty | copy_fields, SalvageSource.COPY, format_.number, damage)
    if unread is None:
        return Salvage(contents, SalvageSource.UNCHECKED_CONTENTS, format_.number, damage)
    if whole["data"]:
        return Salvage(empty | copy_fields, SalvageSource.UNCHECKED_COPY, format_.number, damage)
    older = format_.older[0].struct
    checkpoint, _ = decode(older, part.json.encode(), into=older.empty)
    if not checkpoint["policyName"] and not checkpoint["entries"]:
        return Salvage(empty, SalvageSource.NOTHING, damage=damage)
    rest = {key: value for key, value in checkpoint.items() if key != "checksum"}
    return Salvage(empty | rest, SalvageSource.REST if part.cut else SalvageSource.UNCHECKED_CONTENTS, damage=damage)


def _with_valid_checksum(format_: StateFileFormat, text: bytes) -> dict[str, Any] | None:
    """Return contents with a valid checksum, wherever they are in the file and whatever is broken around them."""
    source = text.decode("utf-8", "replace")
    sums = {int(match[1]) for match in _DATA_SUM.finditer(source)}
    for match in _DATA.finditer(source):
        with suppress(ValueError):
            data = json.loads(match[1])
            contents, unread = decode(format_.data, data.encode(), into=format_.data.empty)
            if unread is None and fnv1a(data_checksum_text(data)) in sums:
                return contents
    return None


def _damage(format_: StateFileFormat, text: bytes, *, wrong_checksum: bool) -> Iterator[str]:
    if syntax_error := json_error(text):
        yield syntax_error
        return
    whole, type_error = decode(format_.newest, text, into=format_.newest.empty)
    if type_error:
        yield f"a value has the wrong type: {type_error}"
    data, checksum, right = whole["data"], whole["dataChecksum"], fnv1a(data_checksum_text(whole["data"]))
    _, unread = decode(format_.data, data.encode(), into=format_.data.empty)
    if checksum and not data:
        yield "the contents are missing; only their checksum is left"
    elif data and unread:
        yield f"the contents cannot be read: {unread}"
    elif data and checksum != right:
        yield f"the checksum of the contents is wrong: {checksum} in the file, {right} computed"
    elif not data and wrong_checksum:
        yield f"the checksum {whole['checksum']} does not match the contents"


def json_error(text: bytes) -> str:
    """Return why *text* is not a JSON object; empty if it is."""
    if not text.strip():
        return "the file is empty"
    if not text.strip(b"\0"):
        return "the file contains only zeros, as after a power failure"
    try:
        tree = go_json.parse(text)
    except ParseError as error:
        part = readable_prefix(text)
        if part.cut:
            return f"the file is cut off after {len(text)} bytes"
        if part.whole:
            return f"there is extra data after the end of the object: {error}"
        return f"the file is not JSON: {error}"
    return "" if isinstance(tree, go_json.GoObject) else "the file is JSON, but not an object"


def salvage_devices(text: bytes) -> tuple[DeviceState, int]:
    """Return the readable entries of the device manager's file, and how many are unreadable; ignore its checksum."""
    data = json.loads(readable_prefix(text).json).get("Data")
    data = data if isinstance(data, dict) else {}
    pod_entries, registered_devices = data.get("PodDeviceEntries"), data.get("RegisteredDevices")
    entries = [_device_entry(entry) for entry in pod_entries] if isinstance(pod_entries, list) else []
    resources = registered_devices.items() if isinstance(registered_devices, dict) else ()
    state = DeviceState(
        entries=tuple(entry for entry in entries if entry),
        registered={resource: tuple(ids) for resource, ids in resources if _are_strings(ids)},
    )
    return state, entries.count(None)


def _device_entry(entry: Any) -> DeviceEntry | None:  # noqa: ANN401 - any JSON
    """Return the entry; ``None`` if it is invalid."""
    try:
        devices = {int(node): tuple(ids) for node, ids in entry["DeviceIDs"].items()}
        names = [entry[key] for key in ("PodUID", "ContainerName", "ResourceName")]
        response = base64.b64decode(entry["AllocResp"] or "", validate=True)
    except (TypeError, KeyError, ValueError, AttributeError):
        return None
    if not _are_strings(names) or not all(map(_are_strings, devices.values())):
        return None
    uid, container, resource = names
    return DeviceEntry(uid=uid, container=container, resource=resource, devices=devices, response=response)


def _are_strings(values: object) -> bool:
    return isinstance(values, list | tuple) and all(isinstance(value, str) for value in values)
