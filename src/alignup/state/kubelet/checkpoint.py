"""What the state files of the CPU manager and the memory manager have in common: versions and checksums.

The newest version wraps its contents as JSON in a string, with a checksum of that string. A copy in the format of the
oldest version lets older kubelets read the file; it is ignored if the wrapped contents are usable, even if it is
damaged. Files of older kubelets are read too, newest version first.

The surprising rule: the checksum of an older version is not of the file but of a dump of Go structs with type names.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from alignup.align.bits import quote
from alignup.align.errors import ParseError, StateError
from alignup.align.settings import FeatureGates
from alignup.state.kubelet.go_types import GoField, GoInteger, GoMap, GoString, GoStruct, decode

CORRUPT = "checkpoint is corrupted"
CHECKSUM = GoField("checksum", "Checksum", GoInteger("checksum.Checksum"))
PODS_GATE = "PodLevelResourceManagers"


@dataclass(frozen=True, slots=True)
class OlderVersion:
    """An older version: its struct, and the struct names its checksum may contain."""

    number: int
    struct: GoStruct
    checksum_optional: bool = False  #: whether a checksum that is 0 or missing is accepted
    accepts_own_name: bool = False  #: whether its own struct name is accepted besides the name that all versions share
    own_name_disabled_by: str = ""  #: a feature gate that takes this back


@dataclass(frozen=True, slots=True)
class StateFileFormat:
    """The state file of one manager."""

    title: str  #: the manager's name in its errors
    called: str  #: the manager's name in advice to delete the file
    prefix: str  #: of errors about the policy
    number: int  #: the newest version
    data: GoStruct  #: what is wrapped
    name: str  #: the type name of the newest version, and once of all versions
    older: tuple[OlderVersion, ...]  #: newest first

    @property
    def newest(self) -> GoStruct:
        """The whole file: the fields of the oldest version, and the wrapped contents."""
        wrapped = (GoField("data", "Data", GoString()), GoField("dataChecksum", "DataChecksum", CHECKSUM.type))
        return GoStruct(self.name, self.older[-1].struct.fields + wrapped)


@dataclass(frozen=True, slots=True)
class LoadedStateFile:
    version: int  #: in which the file was written
    contents: dict[str, Any]  #: by the field names of the newest version


@contextmanager
def restore_errors(format_: StateFileFormat, path: str) -> Iterator[None]:
    """Turn an error about the file at *path* into the ``StateError`` with which a kubelet exits."""
    try:
        yield
    except (ParseError, StateError) as error:
        raise StateError(
            f"could not restore state from checkpoint: {error}, please drain this node and delete "
            f"the {format_.called} checkpoint file {quote(path)} before restarting Kubelet"
        ) from None


def load_state_file(format_: StateFileFormat, text: bytes, *, gates: FeatureGates) -> LoadedStateFile:
    """Decode a state file; ``ParseError`` with the kubelet's message if the kubelet would reject it."""
    whole, error = decode(format_.newest, text, into=empty_maps(format_.newest))
    contents = format_.data.zero
    if error is not None:
        error = f"failed to deserialize {format_.title} checkpoint: {error}"
    else:
        contents, error = decode(format_.data, whole["data"].encode(), into=empty_maps(format_.data))
        if error is not None:
            error = f"failed to deserialize {format_.title} checkpoint data: {error}"
        elif whole["dataChecksum"] != fnv1a(data_checksum_text(whole["data"])):
            error = CORRUPT
    if error is None:
        return LoadedStateFile(format_.number, contents)
    if whole["data"] or whole["dataChecksum"]:
        raise ParseError(f"could not load v{format_.number} checkpoint: {error}")
    for version in format_.older:
        contents, error = decode(version.struct, text, into=empty_maps(version.struct))
        if error is None and not _checksum_matches(format_, version, contents, gates):
            error = CORRUPT
        if error is None:
            return LoadedStateFile(version.number, format_.data.zero | empty_maps(format_.data) | contents)
    raise ParseError(error)


def encode_state_file(format_: StateFileFormat, contents: dict[str, Any]) -> bytes:
    """Return a file of the newest version, byte for byte as the kubelet writes it."""
    oldest = format_.older[-1].struct
    data = format_.data.write(contents)
    copy = {one.key: contents[one.key] for one in oldest.fields if one is not CHECKSUM}
    whole = {
        **copy,
        CHECKSUM.key: fnv1a(struct_checksum_text(format_, oldest, copy)),
        "data": data,
        "dataChecksum": fnv1a(data_checksum_text(data)),
    }
    return format_.newest.write(whole).encode()


def check_policy(format_: StateFileFormat, *, configured: str | None, stored: str) -> None:
    """Reject a file that another policy wrote, as the kubelet does; ``None``: any policy may have written it."""
    if configured not in (None, stored):
        raise StateError(
            f"{format_.prefix}configured policy {quote(configured or '')} differs from "
            f"state checkpoint policy {quote(stored)}"
        )


def data_checksum_text(data: str) -> str:
    return f"(string){data}"


def struct_checksum_text(
    format_: StateFileFormat, struct: GoStruct, contents: dict[str, Any], *, name: str | None = None
) -> str:
    return f"(*{name or format_.name}){struct.dump({**contents, CHECKSUM.key: 0})}"


@lru_cache(maxsize=8)  # of the same file again and again
def fnv1a(text: str) -> int:
    """Return the checksum of *text* in the kubelet's state files: 32-bit FNV-1a."""
    value = 0x811C9DC5
    for byte in text.encode():
        value = (value ^ byte) * 0x01000193 & 0xFFFFFFFF
    return value


def empty_maps(struct: GoStruct) -> dict[str, Any]:
    """Return the maps of *struct*, which are empty and not nil before a kubelet reads a file."""
    return {one.key: {} for one in struct.fields if isinstance(one.type, GoMap)}


def _checksum_matches(
    format_: StateFileFormat, version: OlderVersion, contents: dict[str, Any], gates: FeatureGates
) -> bool:
    checksum = contents[CHECKSUM.key]
    if version.checksum_optional and not checksum:
        return True
    names = [format_.name]
    if version.accepts_own_name and not (version.own_name_disabled_by and gates.on(version.own_name_disabled_by)):
        names.append(version.struct.name)
    return checksum in (fnv1a(struct_checksum_text(format_, version.struct, contents, name=name)) for name in names)
