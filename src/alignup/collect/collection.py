"""The archive of ``alignup collect``: a ``tar.gz`` of a few files with fixed names, which ``alignup why`` reads.

Its parts are files that other commands take, too: ``tar -xzf`` unpacks them. ``collection.json`` says what they are
about, and which parts could not be collected. Archives are untrusted: limits are those of recorded machines, links and
other names than those of parts are refused.
"""

import gzip
import io
import tarfile
from collections.abc import Mapping
from enum import StrEnum
from pathlib import Path

from alignup import atomic_files
from alignup.align.errors import AlignError, SourceError
from alignup.documents.codec import Document, decode, encode
from alignup.machines.archive import COLLECTION_INDEX as INDEX
from alignup.machines.archive import read_members

FORMAT = "collection/v1"
MAX_PART_BYTES = 32 << 20


class Part(StrEnum):
    """The names of files in an archive."""

    POD = "pod.json"
    NODE = "node.json"
    PODS = "pods.json"  #: of the node
    EVENTS = "events.json"  #: of the pod
    CLAIMS = "claims.json"
    CONFIGURATION = "kubelet.json"
    RECORDING = "machine.tar.gz"  #: of the reader
    MACHINE = "machine.json"  #: of a HostState
    CPU_STATE = "state/cpu_manager_state"
    MEMORY_STATE = "state/memory_manager_state"
    DEVICE_STATE = "state/kubelet_internal_checkpoint"
    SUBUID = "etc/subuid"  #: the lines of the kubelet
    SUBGID = "etc/subgid"


#: The directories of the kubelet's state files, and of its ranges of IDs.
STATE, ETC = "state", "etc"
STATE_PARTS = (Part.CPU_STATE, Part.MEMORY_STATE, Part.DEVICE_STATE)
READER_PARTS = (Part.RECORDING, *STATE_PARTS, Part.SUBUID, Part.SUBGID)  #: what a reader prints; others are not its own


class MissingPart(Document, frozen=True):
    """Something that could not be collected, and which permission is needed for it."""

    title: str
    problem: str
    needs: str = ""


class CollectionIndex(Document, frozen=True, kw_only=True):
    alignup: str = FORMAT
    collected_at: str
    pod: str  #: ``NAMESPACE/NAME``
    node: str
    kubelet_version: str = ""  #: empty: unknown
    reported: str = ""  #: what the kubelet says of the pod, such as ``Failed: TopologyAffinityError``
    missing: tuple[MissingPart, ...] = ()
    notes: tuple[str, ...] = ()  #: what differs from the node


class Collection(Document, frozen=True):
    index: CollectionIndex
    parts: Mapping[str, bytes]


def missing_inputs(collection: Collection) -> dict[str, str]:
    """Return what 'alignup why' needs and the archive lacks, with the option that gives it instead."""
    parts = collection.parts
    present = {
        "the machine": (Part.RECORDING in parts or Part.MACHINE in parts, "--machine"),
        "the configuration": (Part.CONFIGURATION in parts, "--config"),
        "the state files": (any(part in parts for part in STATE_PARTS), "--kubelet-dir"),
    }
    return {title: option for title, (has, option) in present.items() if not has}


def write(path: Path, collection: Collection) -> None:
    """Write the archive to *path* as a whole, readable by its owner only; ``FileError``."""
    packed_archive = io.BytesIO()
    with (
        gzip.GzipFile(filename="", mode="wb", fileobj=packed_archive, mtime=0) as gzip_file,
        tarfile.open(fileobj=gzip_file, mode="w", format=tarfile.USTAR_FORMAT) as archive,
    ):
        for name, content in {INDEX: encode(collection.index), **collection.parts}.items():
            member = tarfile.TarInfo(name)
            member.size = len(content)
            member.mode = 0o600
            archive.addfile(member, io.BytesIO(content))
    if path.is_file() and not path.is_symlink():
        path.chmod(0o600)  # a file that is replaced keeps its mode
    atomic_files.write(path, packed_archive.getvalue(), mode=0o600)


def read(path: Path) -> Collection:
    """Return the archive at *path*; ``SourceError`` if the file is no collection, or exceeds a limit."""
    contents, links = read_members(path, limit=lambda _path: MAX_PART_BYTES)
    if INDEX not in contents:
        raise SourceError(f"{path} is not an archive of 'alignup collect': it has no {INDEX}")
    if links:
        raise SourceError(f"{path} is rejected: {min(links)!r} is a link")
    try:
        index = decode(contents.pop(INDEX), CollectionIndex)
    except AlignError as error:
        raise SourceError(f"{path}: {INDEX}: {error}") from error
    if index.alignup != FORMAT:
        raise SourceError(f"{path}: {INDEX}: the format {index.alignup[:40]!r} is unknown: expected {FORMAT!r}")
    parts = {name: content for name, content in contents.items() if name not in {f"{STATE}/", f"{ETC}/"}}
    if unknown_parts := sorted(parts.keys() - set(Part)):
        raise SourceError(f"{path} is rejected: {unknown_parts[0]!r} is not a part of such an archive")
    if large := [name for name, content in parts.items() if len(content) > MAX_PART_BYTES]:
        raise SourceError(f"{path} is rejected: {large[0]} has more than {MAX_PART_BYTES >> 20} MiB")
    return Collection(index, parts)
