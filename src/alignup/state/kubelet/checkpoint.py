"""What the CPU and the memory manager's state files have in common: versions, checksums, and which one counts.

The newest version wraps its contents, as JSON inside a string, and has a checksum of that string. Beside it stands a
copy in the oldest version's form, so that older kubelets can read the file; it is ignored where the wrapped contents
are usable, and what is wrong with it goes unnoticed. Files that older kubelets wrote are read too, newest version
first.

The surprising rule: an older version's checksum is not of the file but of a dump of Go's structs, type names included.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from alignup.align.bits import quote
from alignup.align.errors import ParseError, StateError
from alignup.align.settings import FeatureGates
from alignup.state.kubelet.checksum import fnv1a
from alignup.state.kubelet.go_types import GoField, GoInteger, GoMap, GoString, GoStruct, decode

CORRUPT = "checkpoint is corrupted"
CHECKSUM = GoField("checksum", "Checksum", GoInteger("checksum.Checksum"))

_TEXT = GoString()


@dataclass(frozen=True, slots=True)
class OlderVersion:
    """A version of before: the struct it is, and by which names of the struct its checksum may have been taken."""

    number: int
    struct: GoStruct
    checksum_optional: bool = False  #: a checksum that is 0 or missing is no reason to refuse it
    accepts_own_name: bool = False  #: its own name will do, not only the one that all versions share
    own_name_disabled_by: str = ""  #: but only while this gate is off


@dataclass(frozen=True, slots=True)
class StateFileFormat:
    """One manager's state file."""

    title: str  #: of the manager, as its errors have it
    called: str  #: the manager, where it tells people to delete the file
    prefix: str  #: before errors about the policy
    number: int  #: the newest version
    data: GoStruct  #: what is wrapped
    name: str  #: the type all versions were called once; the newest still is
    older: tuple[OlderVersion, ...]  #: newest first

    @property
    def newest(self) -> GoStruct:
        """The whole file: the oldest version, and the wrapped contents."""
        wrapped = (GoField("data", "Data", _TEXT), GoField("dataChecksum", "DataChecksum", CHECKSUM.type))
        return GoStruct(self.name, self.older[-1].struct.fields + wrapped)


@dataclass(frozen=True, slots=True)
class LoadedStateFile:
    """What a file says: the version it was written in, and the contents by their names in the newest one."""

    version: int
    contents: dict[str, Any]


def load_state_file(format_: StateFileFormat, text: bytes, *, gates: FeatureGates) -> LoadedStateFile:
    """The contents of a state file; a ``ParseError`` with the kubelet's cause where it would refuse them."""
    whole, error = decode(format_.newest, text, into=_maps(format_.newest))
    contents = format_.data.zero
    if error is not None:
        error = f"failed to deserialize {format_.title} checkpoint: {error}"
    else:
        contents, error = decode(format_.data, whole["data"].encode(), into=_maps(format_.data))
        if error is not None:
            error = f"failed to deserialize {format_.title} checkpoint data: {error}"
        elif whole["dataChecksum"] != fnv1a(data_checksum_text(whole["data"])):
            error = CORRUPT
    if error is None:
        return LoadedStateFile(format_.number, contents)
    if whole["data"] or whole["dataChecksum"]:
        raise ParseError(f"could not load v{format_.number} checkpoint: {error}")
    for version in format_.older:
        contents, error = decode(version.struct, text, into=_maps(version.struct))
        if error is None and not _fits(format_, version, contents, gates):
            error = CORRUPT
        if error is None:
            return LoadedStateFile(version.number, format_.data.zero | _maps(format_.data) | contents)
    raise ParseError(error)


def encode_state_file(format_: StateFileFormat, contents: dict[str, Any]) -> bytes:
    """The file of the newest version with these *contents*, byte for byte as the kubelet writes it."""
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


def check_policy(format_: StateFileFormat, *, configured: str, stored: str) -> None:
    """Refuse a file of another policy than the *configured* one, as the kubelet does."""
    if configured != stored:
        raise StateError(
            f"{format_.prefix}configured policy {quote(configured)} differs from "
            f"state checkpoint policy {quote(stored)}"
        )


def restore_error(format_: StateFileFormat, cause: Exception, path: str) -> StateError:
    """The error a kubelet ends with that cannot use the file at *path*."""
    return StateError(
        f"could not restore state from checkpoint: {cause}, please drain this node and delete "
        f"the {format_.called} checkpoint file {quote(path)} before restarting Kubelet"
    )


def checksum_texts(format_: StateFileFormat, text: bytes) -> tuple[str, str]:
    """What the two checksums of a file of the newest version are taken of: the copy for older kubelets, the data."""
    whole, _ = decode(format_.newest, text, into=_maps(format_.newest))
    return struct_checksum_text(format_, format_.older[-1].struct, whole), data_checksum_text(whole["data"])


def data_checksum_text(data: str) -> str:
    """What the checksum of wrapped contents is taken of."""
    return f"(string){data}"


def struct_checksum_text(
    format_: StateFileFormat, struct: GoStruct, contents: dict[str, Any], *, name: str | None = None
) -> str:
    """What the checksum of *contents* in an older form is taken of."""
    return f"(*{name or format_.name}){struct.show({**contents, CHECKSUM.key: 0})}"


def _fits(format_: StateFileFormat, version: OlderVersion, contents: dict[str, Any], gates: FeatureGates) -> bool:
    """Whether the checksum of *contents* is right."""
    checksum = contents[CHECKSUM.key]
    if version.checksum_optional and not checksum:
        return True
    return any(
        checksum == fnv1a(struct_checksum_text(format_, version.struct, contents, name=name))
        for name in _names(format_, version, gates)
    )


def _names(format_: StateFileFormat, version: OlderVersion, gates: FeatureGates) -> Iterator[str]:
    yield format_.name
    if version.accepts_own_name and not (version.own_name_disabled_by and gates.on(version.own_name_disabled_by)):
        yield version.struct.name


def _maps(struct: GoStruct) -> dict[str, Any]:
    """What a kubelet has in the maps of *struct* before it reads a file: they are there, and empty."""
    return {one.key: {} for one in struct.fields if isinstance(one.type, GoMap)}
