"""What the state files of the CPU manager and the memory manager have in common: versions and checksums.

The newest version wraps its contents as JSON in a string, with a checksum of that string. A copy in the format of the
oldest version lets older kubelets read the file; it is ignored if the wrapped contents are usable, even if it is
damaged. Files of older kubelets are read too, newest version first.

The surprising rule: the checksum of an older version is not of the file but of a dump of Go structs with type names.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, TypeVar

from alignup.align.bits import quote
from alignup.align.errors import ParseError, StateError
from alignup.align.settings import FeatureGates
from alignup.kubernetes.kubelet_files.go_types import GoField, GoInteger, GoString, GoStruct, decode

T = TypeVar("T")
Contents = dict[str, Any]  #: by the field names of the newest version

CORRUPT = "checkpoint is corrupted"
CHECKSUM = GoField("checksum", "Checksum", GoInteger("checksum.Checksum"))
PODS_GATE = "PodLevelResourceManagers"


@dataclass(frozen=True, slots=True)
class OlderVersion:
    number: int
    struct: GoStruct
    checksum_optional: bool = False  #: whether a checksum that is 0 or missing is accepted
    #: whether a checksum with its own struct name is accepted besides one with the name that all versions share
    accepts_own_name: Callable[[FeatureGates], bool] = lambda _gates: False


@dataclass(frozen=True, slots=True)
class StateFileFormat:
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


def parse_state_file(  # noqa: PLR0913 - the first two describe the file
    format_: StateFileFormat,
    build: Callable[[int, Contents, FeatureGates], T],
    text: bytes,
    *,
    configured_policy: str | None,
    gates: FeatureGates,
    path: str,
) -> T:
    """Decode the file at *path*; ``StateError`` with the kubelet's message if a kubelet would not start with it.

    The policy is not checked if *configured_policy* is ``None``. What needs a feature gate is ignored unless it is on.
    """
    try:
        version, contents = load_state_file(format_, text, gates=gates)
        check_policy(format_, configured=configured_policy, stored=contents["policyName"])
        return build(version, contents, gates)
    except (ParseError, StateError) as error:
        raise StateError(
            f"could not restore state from checkpoint: {error}, please drain this node and delete "
            f"the {format_.called} checkpoint file {quote(path)} before restarting Kubelet"
        ) from None


def load_state_file(format_: StateFileFormat, text: bytes, *, gates: FeatureGates) -> tuple[int, Contents]:
    """Return the version and the contents; ``ParseError`` with the kubelet's message if the kubelet would reject it."""
    whole, error = decode(format_.newest, text, into=format_.newest.empty)
    contents = format_.data.zero
    if error is not None:
        error = f"failed to deserialize {format_.title} checkpoint: {error}"
    else:
        contents, error = decode(format_.data, whole["data"].encode(), into=format_.data.empty)
        if error is not None:
            error = f"failed to deserialize {format_.title} checkpoint data: {error}"
        elif whole["dataChecksum"] != fnv1a(data_checksum_text(whole["data"])):
            error = CORRUPT
    if error is None:
        return format_.number, contents
    if whole["data"] or whole["dataChecksum"]:
        raise ParseError(f"could not load v{format_.number} checkpoint: {error}")
    for version in format_.older:
        contents, error = decode(version.struct, text, into=version.struct.empty)
        if error is None and not _checksum_matches(format_, version, contents, gates):
            error = CORRUPT
        if error is None:
            return version.number, format_.data.empty | contents
    raise ParseError(error)


def encode_state_file(format_: StateFileFormat, contents: Contents) -> bytes:
    """Return a file of the newest version, byte for byte as the kubelet writes it."""
    data = format_.data.write(contents)
    copy, checksum = copy_for_older_kubelets(format_, contents)
    wrapped = {"data": data, "dataChecksum": fnv1a(data_checksum_text(data))}
    return format_.newest.write({**copy, CHECKSUM.key: checksum, **wrapped}).encode()


def copy_for_older_kubelets(format_: StateFileFormat, contents: Contents) -> tuple[Contents, int]:
    """Return the part of *contents* that the oldest version has, and its checksum."""
    oldest = format_.older[-1].struct
    copy = {one.key: contents[one.key] for one in oldest.fields if one is not CHECKSUM}
    return copy, fnv1a(struct_checksum_text(format_, oldest, copy))


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
    format_: StateFileFormat, struct: GoStruct, contents: Contents, *, name: str | None = None
) -> str:
    return f"(*{name or format_.name}){struct.dump({**contents, CHECKSUM.key: 0})}"


@lru_cache(maxsize=8)  # of the same file again and again
def fnv1a(text: str) -> int:
    """Return the checksum of *text* in the kubelet's state files: 32-bit FNV-1a."""
    value = 0x811C9DC5
    for byte in text.encode():
        value = (value ^ byte) * 0x01000193 & 0xFFFFFFFF
    return value


def _checksum_matches(format_: StateFileFormat, version: OlderVersion, contents: Contents, gates: FeatureGates) -> bool:
    checksum = contents[CHECKSUM.key]
    if version.checksum_optional and not checksum:
        return True
    names = [format_.name, version.struct.name] if version.accepts_own_name(gates) else [format_.name]
    return checksum in (fnv1a(struct_checksum_text(format_, version.struct, contents, name=name)) for name in names)
