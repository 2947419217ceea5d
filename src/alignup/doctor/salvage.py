"""What can still be had from a damaged state file, how far it can be trusted, and what is wrong with the file.

The newest version says everything twice: its contents, and a copy of them for older kubelets, each with a checksum of
its own. Where one is damaged the other may be whole; the kubelet does not look at it then, but a doctor does. A file
that was cut off has its beginning, which is the copy.

Nothing is made up here: what is not in the file, whole, is not in the salvage.
"""

import base64
import json
import re
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
    data_checksum_text,
    load_state_file,
    struct_checksum_text,
)
from alignup.state.kubelet.checksum import fnv1a
from alignup.state.kubelet.device_file import DeviceEntry, DeviceState
from alignup.state.kubelet.go_types import GoMap, GoStruct, decode

#: Down to here parts may be missing: of the file, its entries, a pod. What one container has is whole or not there.
_LOOSE = 3
_DEEP = 50

_BLANKS = frozenset(" \t\r\n")
_STRING = re.compile(r'"(?:[^"\\\x00-\x1f]|\\.)*"')
_DATA = re.compile(r'"data"\s*:\s*("(?:[^"\\\x00-\x1f]|\\.)*")')
_DATA_SUM = re.compile(r'"dataChecksum"\s*:\s*([0-9]{1,10})')
_SCALAR = re.compile(r"-?[0-9][0-9.eE+-]*|true|false|null")


class SalvageSource(StrEnum):
    """Where salvaged contents come from."""

    CONTENTS = "its contents"
    COPY = "its copy for older kubelets"
    UNCHECKED_CONTENTS = "its contents, though their checksum is wrong"
    UNCHECKED_COPY = "its copy for older kubelets, though the checksum is wrong"
    REST = "what can still be read of it, unchecked"
    NOTHING = "nothing: an empty state"


@dataclass(frozen=True, slots=True)
class Salvage:
    """What was found in a file."""

    contents: dict[str, Any]  #: by the names they have in the newest version
    source: SalvageSource
    version: int = 0  #: the file was written in; 0 where that is not clear
    damage: tuple[str, ...] = ()  #: what is wrong with the file as a file, a line each
    tampered: str = ""  #: what is wrong with the copy, where the kubelet does not look at it


def salvage(format_: StateFileFormat, text: bytes, *, gates: FeatureGates) -> Salvage:
    """The best there is in *text*: what its checksum vouches for, else what can be read."""
    try:
        loaded = load_state_file(format_, text, gates=gates)
    except ParseError as error:
        return _rescued(format_, text, gates=gates, refusal=str(error))
    tampered = _tampered(format_, text, loaded.contents) if loaded.version == format_.number else ""
    return Salvage(loaded.contents, SalvageSource.CONTENTS, loaded.version, tampered=tampered)


class JsonPrefix(NamedTuple):
    """What of a text can be read."""

    json: str  #: an object
    whole: bool = False  #: all of the object is there, though something may follow it
    cut: bool = False  #: the text ends before the object does


def readable_prefix(text: bytes) -> JsonPrefix:
    """The JSON object *text* begins with, without what is cut off or broken in it.

    After the first thing that cannot be read nothing is: it might belong elsewhere.
    """
    try:
        value = _Reader(text.decode("utf-8", "replace")).value()
    except _BrokenError as broken:
        part = broken.part if isinstance(broken.part, dict) else {}
        return JsonPrefix(json.dumps(part), cut=broken.at_end)
    return JsonPrefix(json.dumps(value), whole=True) if isinstance(value, dict) else JsonPrefix("{}")


def _rescued(format_: StateFileFormat, text: bytes, *, gates: FeatureGates, refusal: str) -> Salvage:
    """The contents that are vouched for by their own checksum, by the copy's, or by nobody, in this order."""
    part = readable_prefix(text)
    damage = tuple(_damage(format_, text, refusal))
    if part.whole:
        with suppress(ParseError):
            loaded = load_state_file(format_, part.json.encode(), gates=gates)
            return Salvage(loaded.contents, SalvageSource.CONTENTS, loaded.version, damage)
    if sealed := _sealed(format_, text):
        return Salvage(sealed, SalvageSource.CONTENTS, format_.number, damage)
    whole, complaint = decode(format_.newest, part.json.encode(), into=_maps(format_.newest))
    contents, unread = decode(format_.data, whole["data"].encode(), into=_maps(format_.data))
    copied = _copied(format_, whole)
    vouched = complaint is None and bool(whole[CHECKSUM.key]) and whole[CHECKSUM.key] == _sum(format_, copied)
    if unread is None and vouched and _plain(contents, copied) == copied:
        return Salvage(contents, SalvageSource.CONTENTS, format_.number, damage)
    empty = format_.data.zero | _maps(format_.data)
    if vouched:
        return Salvage(empty | copied, SalvageSource.COPY, format_.number, damage)
    if unread is None:
        return Salvage(contents, SalvageSource.UNCHECKED_CONTENTS, format_.number, damage)
    if whole["data"]:
        return Salvage(empty | copied, SalvageSource.UNCHECKED_COPY, format_.number, damage)
    older = format_.older[0].struct
    read, _ = decode(older, part.json.encode(), into=_maps(older))
    if not read["policyName"] and not read["entries"]:
        return Salvage(empty, SalvageSource.NOTHING, damage=damage)
    found = {key: value for key, value in read.items() if key != CHECKSUM.key}
    return Salvage(empty | found, SalvageSource.REST if part.cut else SalvageSource.UNCHECKED_CONTENTS, damage=damage)


def _sealed(format_: StateFileFormat, text: bytes) -> dict[str, Any] | None:
    """Contents whose checksum is right, wherever in the file they stand and whatever is broken around them."""
    source = text.decode("utf-8", "replace")
    sums = {int(one[1]) for one in _DATA_SUM.finditer(source)}
    for one in _DATA.finditer(source):
        with suppress(ValueError):
            data = json.loads(one[1])
            contents, unread = decode(format_.data, data.encode(), into=_maps(format_.data))
            if unread is None and fnv1a(data_checksum_text(data)) in sums:
                return contents
    return None


def _damage(format_: StateFileFormat, text: bytes, refusal: str) -> list[str]:
    """What is wrong with a file the kubelet cannot load, in plain words."""
    if broken := json_error(text):
        return [broken]
    whole, complaint = decode(format_.newest, text, into=_maps(format_.newest))
    found = [f"a value is of a wrong kind: {complaint}"] if complaint else []
    return found + _broken_contents(format_, whole, refusal)


def json_error(text: bytes) -> str:
    """What is wrong with a *text* that is no JSON object; empty when it is one."""
    if not text.strip():
        return "the file is empty"
    if not text.strip(b"\0"):
        return "the file holds nothing but zeros, as after a power failure"
    try:
        tree = go_json.parse(text)
    except ParseError as error:
        part = readable_prefix(text)
        if part.cut:
            return f"the file is cut off after {len(text)} bytes"
        if part.whole:
            return f"something stands after the end of the file's contents: {error}"
        return f"the file is not JSON: {error}"
    return "" if isinstance(tree, go_json.GoObject) else "the file is JSON, but no object"


def _broken_contents(format_: StateFileFormat, whole: dict[str, Any], refusal: str) -> list[str]:
    """What is wrong with contents, and with the copy beside them."""
    found = []
    data, stored, right = whole["data"], whole["dataChecksum"], fnv1a(data_checksum_text(whole["data"]))
    _, unread = decode(format_.data, data.encode(), into=_maps(format_.data))
    if stored and not data:
        found.append("its contents are missing, only their checksum is left")
    elif data and unread:
        found.append(f"its contents cannot be read: {unread}")
    elif data and stored != right:
        found.append(f"the checksum of its contents is wrong: {stored} in the file, {right} by what is there")
    elif not data and CORRUPT in refusal:
        found.append(f"its checksum {whole[CHECKSUM.key]} is wrong for what is there")
    return found


def _tampered(format_: StateFileFormat, text: bytes, contents: dict[str, Any]) -> str:
    """What is wrong with the copy, though the contents are not."""
    whole, _ = decode(format_.newest, text, into=_maps(format_.newest))
    copied, stored = _copied(format_, whole), whole[CHECKSUM.key]
    if _plain(contents, copied) != copied:
        return "the copy for older kubelets differs from the contents"
    right = _sum(format_, copied)
    return "" if stored == right else f"the checksum of the copy for older kubelets is wrong: {stored}, not {right}"


def _copied(format_: StateFileFormat, whole: dict[str, Any]) -> dict[str, Any]:
    """The copy for older kubelets, without its checksum."""
    return {one.key: whole[one.key] for one in format_.older[-1].struct.fields if one is not CHECKSUM}


def _sum(format_: StateFileFormat, copied: dict[str, Any]) -> int:
    """The checksum a copy should have."""
    return fnv1a(struct_checksum_text(format_, format_.older[-1].struct, copied))


def _plain(contents: dict[str, Any], copied: dict[str, Any]) -> dict[str, Any]:
    return {key: contents[key] for key in copied}


def _maps(struct: GoStruct) -> dict[str, Any]:
    """Maps that are there and empty, as a kubelet has them before it reads."""
    return {one.key: {} for one in struct.fields if isinstance(one.type, GoMap)}


def salvage_devices(text: bytes) -> tuple[DeviceState, int]:
    """The entries of a device manager's file that can be read, whatever its checksum is, and how many cannot."""
    data = json.loads(readable_prefix(text).json).get("Data")
    data = data if isinstance(data, dict) else {}
    listed, registered = data.get("PodDeviceEntries"), data.get("RegisteredDevices")
    entries = [_device_entry(one) for one in listed] if isinstance(listed, list) else []
    known = registered.items() if isinstance(registered, dict) else ()
    state = DeviceState(
        entries=tuple(one for one in entries if one),
        registered={resource: tuple(ids) for resource, ids in known if _is_texts(ids)},
    )
    return state, entries.count(None)


def _device_entry(entry: Any) -> DeviceEntry | None:  # noqa: ANN401 - any JSON
    """An entry, if it is one."""
    try:
        devices = {int(node): tuple(ids) for node, ids in entry["DeviceIDs"].items()}
        names = [entry[key] for key in ("PodUID", "ContainerName", "ResourceName")]
        response = base64.b64decode(entry["AllocResp"] or "", validate=True)
    except (TypeError, KeyError, ValueError, AttributeError):
        return None
    if not _is_texts(names) or not all(map(_is_texts, devices.values())):
        return None
    uid, container, resource = names
    return DeviceEntry(uid=uid, container=container, resource=resource, devices=devices, response=response)


def _is_texts(values: object) -> bool:
    return isinstance(values, list | tuple) and all(isinstance(one, str) for one in values)


class _BrokenError(Exception):
    """What begins here is not whole; ``part`` of it is, and the text may have ended in it."""

    def __init__(self, part: dict[str, Any] | list[Any] | None = None, *, at_end: bool) -> None:
        super().__init__()
        self.part, self.at_end = part, at_end


class _Reader:
    """Reads JSON until something is wrong with it."""

    def __init__(self, text: str) -> None:
        self.text, self.at = text.rstrip(" \t\r\n\0"), 0

    def value(self, depth: int = 0) -> Any:  # noqa: ANN401 - any JSON
        """The value that begins here."""
        begun = self._next()
        if begun in {"{", "["} and depth < _DEEP:
            self.at += 1
            return self._object(depth + 1) if begun == "{" else self._array(depth + 1)
        match = (_STRING if begun == '"' else _SCALAR).match(self.text, self.at)
        # A number or a word at the very end may have gone on.
        if match is None or (begun != '"' and match.end() == len(self.text)):
            raise _BrokenError(at_end=begun in {"", '"'} or match is not None)
        self.at = match.end()
        try:
            return json.loads(match[0])
        except ValueError:
            raise _BrokenError(at_end=False) from None

    def _object(self, depth: int) -> dict[str, Any]:
        members: dict[str, Any] = {}
        key = None
        try:
            more = not self._take("}")
            while more:
                key = None
                key = self._key()
                members[key] = self.value(depth)
                more = not self._ended("}")
        except _BrokenError as broken:
            if key is not None and broken.part is not None:
                members[key] = broken.part
            raise _BrokenError(members if depth <= _LOOSE else None, at_end=broken.at_end) from None
        return members

    def _array(self, depth: int) -> list[Any]:
        items: list[Any] = []
        try:
            more = not self._take("]")
            while more:
                items.append(self.value(depth))
                more = not self._ended("]")
        except _BrokenError as broken:
            raise _BrokenError(items if depth <= _LOOSE else None, at_end=broken.at_end) from None
        return items

    def _key(self) -> str:
        if self._next() != '"':
            raise _BrokenError(at_end=not self._next())
        key: str = self.value()
        self._expect(":")
        return key

    def _ended(self, end: str) -> bool:
        """Whether *end* comes next; a comma means that more does."""
        if self._take(end):
            return True
        self._expect(",")
        return False

    def _expect(self, sign: str) -> None:
        if not self._take(sign):
            raise _BrokenError(at_end=not self._next())

    def _take(self, sign: str) -> bool:
        taken = self._next() == sign
        self.at += taken
        return taken

    def _next(self) -> str:
        while self.text[self.at : self.at + 1] in _BLANKS:
            self.at += 1
        return self.text[self.at : self.at + 1]
