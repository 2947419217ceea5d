"""The subordinate IDs for pods with user namespaces: the kubelet's lines in ``/etc/subuid`` and ``/etc/subgid``.

A line is ``kubelet:65536:1048576``: the user, the first ID and their number. The largest 32-bit number is no valid ID.
The kubelet stores which of them a pod has in ``pods/UID/userns`` of its directory.
"""

from collections.abc import Iterator, Mapping
from pathlib import Path

import msgspec

from alignup import atomic_files
from alignup.align.errors import Problem
from alignup.align.release import Release

FILES = ("subuid", "subgid")
SubIds = Mapping[str, str]  #: file → ``FIRST:COUNT`` of the kubelet

_USER = "kubelet:"
_INVALID = (1 << 32) - 1


def find_range(text: str) -> str:
    """Return the range of the kubelet in the text of a file; empty if it has none."""
    return next((line.removeprefix(_USER).strip() for line in text.splitlines() if line.startswith(_USER)), "")


def read_sub_ids(directory: Path) -> SubIds:
    """Return the ranges in the files of *directory*, such as /etc; ``FileError`` if one cannot be read."""
    texts = {name: (atomic_files.read(directory / name) or b"").decode(errors="replace") for name in FILES}
    return {name: span for name, text in texts.items() if (span := find_range(text))}


class _IdMapping(msgspec.Struct):
    host_id: int = msgspec.field(name="hostId", default=0)
    length: int = 0


class _PodMappings(msgspec.Struct):
    uids: list[_IdMapping] = msgspec.field(name="uidMappings", default_factory=list)
    gids: list[_IdMapping] = msgspec.field(name="gidMappings", default_factory=list)


def pod_problems(directory: Path, release: Release) -> Iterator[Problem]:
    """Yield the pods in a kubelet's *directory* with whose IDs a kubelet of *release* does not start."""
    for path in sorted(directory.glob("pods/*/userns")) if release.checks_sub_ids else ():
        try:
            mappings = msgspec.json.decode(atomic_files.read(path) or b"{}", type=_PodMappings)
        except msgspec.DecodeError:
            continue
        for mapping in (*mappings.uids, *mappings.gids):
            if mapping.host_id + mapping.length > _INVALID:
                message = f'pod "{path.parent.name}": id {mapping.host_id} is out of range'
                yield Problem(f"pods/{path.parent.name}/userns", message)
                break


def sub_id_problems(ranges: SubIds, release: Release) -> Iterator[Problem]:
    """Yield the ranges with which a kubelet of *release* does not start."""
    for name, text in ranges.items():
        first, _, count = text.partition(":")
        if not (release.checks_sub_ids and first.isdigit() and count.isdigit()):
            continue
        last = int(first) + int(count) - 1
        if last >= _INVALID:
            yield Problem(f"/etc/{name}", f"kubelet:{text} ends at {last}, which is out of range")
