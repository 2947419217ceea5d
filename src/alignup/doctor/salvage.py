"""Recover what a damaged state file still contains, with how far to trust it and what is wrong with the file.

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
from alignup.state.kubelet import go_json
from alignup.state.kubelet.checkpoint import (
    CHECKSUM,
    CORRUPT,
    StateFileFormat,
    copy_for_older_kubelets,
    data_checksum_text,
    fnv1a,
    load_state_file,
)
from alignup.state.kubelet.device_file import DeviceEntry, DeviceState
from alignup.state.kubelet.go_types import decode

#: Down to this depth (file, entries, pod) parts may be missing. What a container holds is complete or absent.
_PARTIAL_DEPTH = 3
_MAX_DEPTH = 50

_TOKEN = re.compile(r'[ \t\r\n]*([{}\[\],:]|"(?:[^"\\\x00-\x1f]|\\.)*"|-?[0-9][0-9.eE+-]*|true|false|null)')
_CLOSING = {"}": "{", "]": "["}
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
    """The best contents of *text*: with a valid checksum if possible, else what can be read."""
    try:
        version, contents = load_state_file(format_, text, gates=gates)
    except ParseError as error:
        return _recover(format_, text, gates=gates, load_error=str(error))
    copy_problem = _copy_problem(format_, text, contents) if version == format_.number else ""
    return Salvage(contents, SalvageSource.CONTENTS, version, copy_problem=copy_problem)


class JsonPrefix(NamedTuple):
    json: str  #: an object
    whole: bool = False  #: the object is complete, though more may follow
    cut: bool = False  #: the text ends inside the object


def readable_prefix(text: bytes) -> JsonPrefix:
    """The JSON object that *text* begins with, without truncated or broken parts.

    Reading ends at the first error: what follows might belong elsewhere.
    """
    reader = _PrefixReader(text.decode("utf-8", "replace").rstrip(" \t\r\n\0"))
    while reader.step():
        pass
    value = json.loads(reader.complete)
    if not isinstance(value, dict):
        return JsonPrefix("{}", cut=reader.at_end)
    return JsonPrefix(json.dumps(value), whole=not reader.open, cut=reader.at_end)


class _PrefixReader:
    """Reads JSON token by token up to the first error, and keeps what is complete so far."""

    def __init__(self, text: str) -> None:
        self.complete = "null"  #: what was read, with its open containers closed
        self.at_end = False  #: whether the text ended before the value
        self.open: list[str] = []  #: the open brackets
        self._text, self._position = text, 0
        self._expected = "value"  #: value, key, colon, separator, "first value" or "first key"

    def step(self) -> bool:
        """Read a token; false at an error or at the end of the value."""
        match = _TOKEN.match(self._text, self._position)
        value_or_key = self._expected.endswith(("value", "key"))
        if match is None:
            rest = self._text[self._position :].lstrip()
            self.at_end = not rest or (value_or_key and rest.startswith('"'))
            return False
        symbol, self._position = match[1], match.end()
        if symbol in _CLOSING:
            may_close = self._expected in {"first key", "first value", "separator"}
            if not may_close or self.open[-1:] != [_CLOSING[symbol]]:
                return False
            self.open.pop()
            return self._expect("separator")
        if symbol in ",:":
            if self._expected != ("separator" if symbol == "," else "colon"):
                return False
            self._expected = "key" if symbol == "," and self.open[-1] == "{" else "value"
            return True
        if not value_or_key or (self._expected.endswith("key") and symbol[0] != '"'):
            return False
        if symbol in "{[":
            self.open.append(symbol)
            return len(self.open) <= _MAX_DEPTH and self._expect("first key" if symbol == "{" else "first value")
        # A number or a literal at the very end may be incomplete.
        self.at_end = symbol[0] != '"' and self._position == len(self._text)
        try:
            json.loads(symbol)
        except ValueError:
            return False
        if self._expected.endswith("key"):
            self._expected = "colon"
            return not self.at_end
        return not self.at_end and self._expect("separator")

    def _expect(self, expected: str) -> bool:
        """Keep what was read, but no parts of deep containers or of containers in lists; false at the end."""
        self._expected = expected
        if len(self.open) <= _PARTIAL_DEPTH and "[" not in self.open[:-1]:
            closing = "".join("}" if bracket == "{" else "]" for bracket in reversed(self.open))
            self.complete = self._text[: self._position] + closing
        return bool(self.open)


def _recover(format_: StateFileFormat, text: bytes, *, gates: FeatureGates, load_error: str) -> Salvage:
    """Contents with a valid checksum, the copy with one, or unchecked, in this order."""
    part = readable_prefix(text)
    damage = tuple(_damage(format_, text, load_error))
    if part.whole:
        with suppress(ParseError):
            version, contents = load_state_file(format_, part.json.encode(), gates=gates)
            return Salvage(contents, SalvageSource.CONTENTS, version, damage)
    if valid := _with_valid_checksum(format_, text):
        return Salvage(valid, SalvageSource.CONTENTS, format_.number, damage)
    whole, type_error = decode(format_.newest, part.json.encode(), into=format_.newest.empty)
    contents, unread = decode(format_.data, whole["data"].encode(), into=format_.data.empty)
    copied, right = copy_for_older_kubelets(format_, whole)
    valid_copy = type_error is None and bool(right) and whole[CHECKSUM.key] == right
    if unread is None and valid_copy and contents | copied == contents:
        return Salvage(contents, SalvageSource.CONTENTS, format_.number, damage)
    empty = format_.data.empty
    if valid_copy:
        return Salvage(empty | copied, SalvageSource.COPY, format_.number, damage)
    if unread is None:
        return Salvage(contents, SalvageSource.UNCHECKED_CONTENTS, format_.number, damage)
    if whole["data"]:
        return Salvage(empty | copied, SalvageSource.UNCHECKED_COPY, format_.number, damage)
    older = format_.older[0].struct
    read, _ = decode(older, part.json.encode(), into=older.empty)
    if not read["policyName"] and not read["entries"]:
        return Salvage(empty, SalvageSource.NOTHING, damage=damage)
    found = {key: value for key, value in read.items() if key != CHECKSUM.key}
    return Salvage(empty | found, SalvageSource.REST if part.cut else SalvageSource.UNCHECKED_CONTENTS, damage=damage)


def _with_valid_checksum(format_: StateFileFormat, text: bytes) -> dict[str, Any] | None:
    """Contents with a valid checksum, wherever they are in the file and whatever is broken around them."""
    source = text.decode("utf-8", "replace")
    sums = {int(one[1]) for one in _DATA_SUM.finditer(source)}
    for one in _DATA.finditer(source):
        with suppress(ValueError):
            data = json.loads(one[1])
            contents, unread = decode(format_.data, data.encode(), into=format_.data.empty)
            if unread is None and fnv1a(data_checksum_text(data)) in sums:
                return contents
    return None


def _damage(format_: StateFileFormat, text: bytes, load_error: str) -> Iterator[str]:
    """What is wrong with a file that the kubelet cannot load."""
    if broken := json_error(text):
        yield broken
        return
    whole, type_error = decode(format_.newest, text, into=format_.newest.empty)
    if type_error:
        yield f"a value has the wrong type: {type_error}"
    data, stored, right = whole["data"], whole["dataChecksum"], fnv1a(data_checksum_text(whole["data"]))
    _, unread = decode(format_.data, data.encode(), into=format_.data.empty)
    if stored and not data:
        yield "the contents are missing; only their checksum is left"
    elif data and unread:
        yield f"the contents cannot be read: {unread}"
    elif data and stored != right:
        yield f"the checksum of the contents is wrong: {stored} in the file, {right} computed"
    elif not data and CORRUPT in load_error:
        yield f"the checksum {whole[CHECKSUM.key]} does not match the contents"


def json_error(text: bytes) -> str:
    """Why *text* is not a JSON object; empty if it is."""
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


def _copy_problem(format_: StateFileFormat, text: bytes, contents: dict[str, Any]) -> str:
    """What is wrong with the copy of valid contents."""
    whole, _ = decode(format_.newest, text, into=format_.newest.empty)
    copied, right = copy_for_older_kubelets(format_, whole)
    stored = whole[CHECKSUM.key]
    if contents | copied != contents:
        return "the copy for older kubelets differs from the contents"
    if stored != right:
        return f"the checksum of the copy for older kubelets is wrong: {stored} instead of {right}"
    return ""


def salvage_devices(text: bytes) -> tuple[DeviceState, int]:
    """The readable entries of a device manager's file, whatever its checksum, and the number of unreadable ones."""
    data = json.loads(readable_prefix(text).json).get("Data")
    data = data if isinstance(data, dict) else {}
    listed, registered = data.get("PodDeviceEntries"), data.get("RegisteredDevices")
    entries = [_device_entry(one) for one in listed] if isinstance(listed, list) else []
    known = registered.items() if isinstance(registered, dict) else ()
    state = DeviceState(
        entries=tuple(one for one in entries if one),
        registered={resource: tuple(ids) for resource, ids in known if _are_strings(ids)},
    )
    return state, entries.count(None)


def _device_entry(entry: Any) -> DeviceEntry | None:  # noqa: ANN401 - any JSON
    """``None`` if it is invalid."""
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
    return isinstance(values, list | tuple) and all(isinstance(one, str) for one in values)
