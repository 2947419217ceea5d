"""Cluster files: which hosts a simulated cluster has, in groups, described in ``docs/fleet.md``.

Machines and configurations are only named here; the caller resolves them.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from alignup.align.errors import DocumentError, TraceError
from alignup.kubernetes.manifests import documents
from alignup.kubernetes.manifests.object_reader import ObjectReader
from alignup.simulate.cluster_hosts import MAX_HOSTS
from alignup.simulate.trace import FirstProblem, reject_unknown

API_VERSION, KIND = "alignup.dev/v1", "Cluster"
MAX_BYTES = 1 << 20

_FIELDS = ("apiVersion", "kind", "groups")
_GROUP_FIELDS = ("name", "count", "machine", "devices", "config", "set", "labels")


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupDescription:
    name: str
    count: int
    machine: str  #: as for ``--machine``; a relative path is relative to the file
    devices: tuple[str, ...] = ()  #: as for ``--devices``
    config: str = ""  #: a KubeletConfiguration; empty: that of the command, or the kubelet's defaults
    changes: tuple[str, ...] = ()  #: as for ``--set``
    labels: Mapping[str, str] = field(default_factory=dict)
    source: ObjectReader | None = field(default=None, repr=False, compare=False)  #: of messages about it


def read_document(path: Path, *, kind: str, fields: tuple[str, ...]) -> ObjectReader:
    """Return the only document of a file, with its type and field names checked; ``TraceError`` if it is unusable."""
    try:
        with path.open("rb") as stream:
            text = stream.read(MAX_BYTES + 1)
        if len(text) > MAX_BYTES:
            raise TraceError(f"larger than {MAX_BYTES >> 20} MiB", file=str(path))
        objects = documents.read(text)
    except OSError as error:
        raise TraceError(f"cannot be read: {error.strerror}", file=str(path)) from error
    except DocumentError as error:
        raise TraceError(error.message, file=str(path), line=error.line) from error
    if len(objects) != 1:
        raise TraceError(f"must have one document, not {len(objects)}", file=str(path))
    top = ObjectReader.of(objects[0].value, FirstProblem(file=str(path), text=text))
    for name, expected in (("apiVersion", API_VERSION), ("kind", kind)):
        if top.text(name) != expected:
            top.error(name, f"must be {expected}")
    reject_unknown(top, fields)
    return top


def read(path: Path) -> tuple[GroupDescription, ...]:
    """Return the groups of a cluster file; :class:`TraceError` names the place of an error."""
    top = read_document(path, kind=KIND, fields=_FIELDS)
    groups = tuple(read_group(group, path.parent) for group in top.children("groups"))
    if not groups:
        top.error("groups", "Required value")
    return groups


def read_group(group: ObjectReader, base: Path) -> GroupDescription:
    """Return a group; relative paths are relative to *base*."""
    reject_unknown(group, _GROUP_FIELDS)
    count = group.number("count", low=1, high=MAX_HOSTS)
    return GroupDescription(
        name=group.required("name"),
        count=1 if count is None else count,
        machine=_relative(group.required("machine"), base),
        devices=group.strings("devices"),
        config=_relative(group.text("config"), base),
        changes=group.strings("set"),
        labels=group.string_map("labels"),
        source=group,
    )


def _relative(text: str, base: Path) -> str:
    """Return the file *text* beside the cluster file, if there is one."""
    beside = base / text if text and "\n" not in text and ":" not in text else None
    return str(beside) if beside is not None and beside.exists() else text
