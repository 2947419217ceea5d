"""Cluster files: which hosts a simulated cluster has, in groups, described in ``docs/fleet.md``.

Machines and configurations are only named here; what reads the file resolves them.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from alignup.align.errors import DocumentError, Problem, TraceError
from alignup.documents.line_numbers import find_line
from alignup.kubernetes.manifests import documents
from alignup.kubernetes.manifests.object_reader import Diagnostics, ObjectReader
from alignup.simulate.cluster.groups import MAX_HOSTS

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


@dataclass(frozen=True)
class RaisingDiagnostics(Diagnostics):
    """Raises the first problem of a document."""

    file: str = ""
    text: bytes = field(default=b"", repr=False)

    def add(self, problem: Problem) -> None:
        line = find_line(self.text, problem.field)
        raise TraceError(problem.what, file=self.file, line=line, field=problem.field)


def read_document(path: Path, *, kind: str, fields: tuple[str, ...]) -> ObjectReader:
    """The only document of a file of ours, with its type and field names checked; ``TraceError`` if it is unusable."""
    try:
        with path.open("rb") as stream:
            text = stream.read(MAX_BYTES + 1)
        if len(text) > MAX_BYTES:
            raise TraceError(f"larger than {MAX_BYTES >> 20} MiB", file=str(path))
        found = documents.read(text)
    except OSError as error:
        raise TraceError(f"cannot be read: {error.strerror}", file=str(path)) from error
    except DocumentError as error:
        raise TraceError(error.what, file=str(path), line=error.line) from error
    if len(found) != 1:
        raise TraceError(f"must have one document, not {len(found)}", file=str(path))
    top = ObjectReader.of(found[0].value, RaisingDiagnostics(file=str(path), text=text))
    for name, expected in (("apiVersion", API_VERSION), ("kind", kind)):
        if top.text(name) != expected:
            top.error(name, f"must be {expected}")
    reject_unknown(top, fields)
    return top


def reject_unknown(owner: ObjectReader, known: tuple[str, ...]) -> None:
    for name in owner.fields:
        if name not in known:
            owner.error(name, f"unknown field; expected one of {', '.join(known)}")


def read(path: Path) -> tuple[GroupDescription, ...]:
    """The groups of a cluster file; :class:`TraceError` names the place of an error."""
    top = read_document(path, kind=KIND, fields=_FIELDS)
    groups = tuple(read_group(one, path.parent) for one in top.children("groups"))
    if not groups:
        top.error("groups", "Required value")
    return groups


def read_group(group: ObjectReader, base: Path) -> GroupDescription:
    """One group; relative paths are relative to *base*."""
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
    """The file *text* beside the cluster file, if there is one."""
    beside = base / text if text and "\n" not in text and ":" not in text else None
    return str(beside) if beside is not None and beside.exists() else text
