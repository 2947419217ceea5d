"""Workloads from the files people have: what they would run, how often, and where it is written.

A workload is a Pod or anything that makes pods from a template. What runs no pods is skipped with a warning, so that a
whole directory of an application can be given, or everything a cluster has. What is wrong is told all at once, each
problem with its file, document, line and field; then nothing is read.
"""

import re
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, BinaryIO

from alignup.align.bits import quote
from alignup.align.errors import DocumentError, LocatedProblem, ManifestError, PodError, Problem
from alignup.align.workload import Pod, validation
from alignup.kube import documents
from alignup.kube.documents import Document, NumberLiteral
from alignup.kube.fields import FieldReader
from alignup.kube.pod import read_pod, read_type

MAX_REPLICAS = 100_000  #: the most pods of one workload
SUFFIXES = (".json", ".yaml", ".yml")  #: what is read in a directory

_FINISHED = ("Failed", "Succeeded")
_IDS = uuid.UUID("6f5a2f2b-6f0e-5c39-9a53-0c1a3d0f7c55")  # made once; ids made from it stay the same for ever
_STEP = re.compile(r"\.?([A-Za-z]+)|\[([^]]*)\]")

_Identity = tuple[str, str, str]  # kind, namespace, name

#: What the API server, or whoever stands for it, makes of a pod; a :class:`PodError` when it refuses it.
Accept = Callable[[Pod], Pod]
_Make = Callable[[Mapping[str, Any]], Pod]  # the same, from a document


@dataclass(frozen=True, slots=True)
class SourceLocation:
    """Where something is written."""

    file: str
    document: int | None = None  #: from 1; ``None``: the file has only one
    line: int | None = None  #: from 1; ``None``: not known

    def __str__(self) -> str:
        document = f", document {self.document}" if self.document else ""
        line = f", line {self.line}" if self.line else ""
        return f"{self.file}{document}{line}"


@dataclass(frozen=True, slots=True)
class Workload:
    """What runs pods: the kind and name people know it by, and the pods it makes."""

    kind: str
    name: str
    namespace: str
    replicas: int  #: pods at a time
    pod: Pod  #: the first of them, accepted; there even if none are wanted
    source: SourceLocation
    phase: str = ""  #: of a Pod from a cluster
    host: str = ""  #: where a Pod from a cluster runs; empty: nowhere yet
    known: bool = False  #: whether this is a Pod that tells its uid, as one from a cluster does

    @property
    def finished(self) -> bool:
        """Whether this is a Pod that has run, and holds nothing any more."""
        return self.phase in _FINISHED

    def pods(self) -> Iterator[Pod]:
        """All its pods, each with a name and uid of its own, the same ones every time."""
        for index in range(self.replicas):
            yield self.pod if index == 0 else _replica(self.pod, self, index)


@dataclass(frozen=True, slots=True)
class LoadedWorkloads:
    """What was found, and what was skipped or looks like a mistake."""

    workloads: tuple[Workload, ...] = ()
    warnings: tuple[str, ...] = ()


def read_paths(
    paths: Iterable[str | Path],
    stdin: BinaryIO | None = None,
    *,
    accept: Accept = validation.accept,
    keep: bool = False,
) -> LoadedWorkloads:
    """The workloads in files and directories, ``-`` being *stdin*; :class:`ManifestError` tells all that is wrong.

    Of a directory the files that end in ``SUFFIXES`` are read, in the order of their names, as ``kubectl -f`` does it.
    With *keep* each pod has its manifest; pods made from one template share it, under the name of what makes them.
    """
    collector = _Collector(_maker(accept, keep=keep))
    for path in paths:
        if str(path) == "-":
            collector.add_file(stdin, "standard input")
            continue
        for file in _files(Path(path), collector):
            collector.add_file(file, str(file))
    return collector.reading()


def read_workloads(
    text: str | bytes, *, name: str, accept: Accept = validation.accept, keep: bool = False
) -> LoadedWorkloads:
    """The workloads in a YAML or JSON text that people call *name*; :class:`ManifestError` tells all that is wrong.

    With *keep* each pod has its manifest, as :func:`read_paths` has it.
    """
    collector = _Collector(_maker(accept, keep=keep))
    collector.add(text, name)
    return collector.reading()


def with_derived_uid(pod: Pod) -> Pod:
    """*pod* with a uid derived from its namespace and name."""
    return replace(pod, uid=_uid("Pod", pod.namespace, pod.name))


def _maker(accept: Accept, *, keep: bool) -> _Make:
    return lambda document: accept(read_pod(document, keep=keep))


def _files(path: Path, collector: "_Collector") -> list[Path]:
    """What is to be read at *path*."""
    try:
        if not path.is_dir():
            return [path]
        files = sorted(each for each in path.iterdir() if each.suffix in SUFFIXES and not each.is_dir())
    except OSError as error:
        collector.cannot_read(str(path), error)
        return []
    if not files:
        collector.fail(str(path), f"a directory without any file that ends in {', '.join(SUFFIXES)}")
    return files


@dataclass
class _Collector:
    """Gathers what the texts hold, and what is wrong with them."""

    make: _Make
    workloads: dict[_Identity, Workload] = field(default_factory=dict)
    owners: set[_Identity] = field(default_factory=set)  #: what made some of them
    warnings: list[str] = field(default_factory=list)
    problems: list[LocatedProblem] = field(default_factory=list)

    def reading(self) -> LoadedWorkloads:
        """All of it, if nothing was wrong."""
        if self.problems:
            raise ManifestError(self.problems)
        # Everything a cluster has: a Deployment, its ReplicaSet and its pods are the same pods three times.
        for key in sorted(self.owners & self.workloads.keys()):
            owner = self.workloads.pop(key)
            self.warnings.append(f"{owner.source}: {owner.kind} {owner.name} is skipped: what it runs is there too")
        return LoadedWorkloads(tuple(self.workloads.values()), tuple(self.warnings))

    def add_file(self, file: Path | BinaryIO | None, name: str) -> None:
        """Read one file; none at all is as good as an empty one."""
        try:
            with file.open("rb") if isinstance(file, Path) else nullcontext(file) as opened:
                text = opened.read(documents.MAX_BYTES + 1) if opened else b""
        except (OSError, ValueError) as error:
            self.cannot_read(name, error)
        else:
            self.add(text, name)

    def add(self, text: str | bytes, name: str) -> None:
        """Read one text."""
        try:
            found = documents.read(text)
        except DocumentError as error:
            where = SourceLocation(name, error.document if error.document > 1 else None, error.line)
            self.fail(str(where), error.what)
            return
        if not found:
            self.fail(name, "has no objects: it is empty")
        several = len(found) > 1 or any(document.number > 1 for document in found)
        for document in found:
            place = _Place(name, document, document.value, several=several)
            for again in document.repeated:
                source = replace(place.source(), line=again.line)
                self.warnings.append(f"{source}: {quote(again.key)} is set twice, the last one counts")
            self._add_object(place, {})

    def fail(self, where: str, what: str) -> None:
        """Note what is wrong with a file as a whole."""
        self.problems.append(LocatedProblem(where, Problem("", what)))

    def cannot_read(self, where: str, error: OSError | ValueError) -> None:
        """Note that a file cannot be read."""
        self.fail(where, f"cannot be read: {getattr(error, 'strerror', None) or error}")

    def _add_object(self, place: "_Place", inherited: Mapping[str, str]) -> None:
        """Read one document, or one item of a list, which may have its kind from there."""
        reader = FieldReader()
        top = {**inherited, **reader.mapping(place.part, "")}
        kind, version = read_type(reader, top)
        if reader.problems:
            self._tell(reader.problems, place)
        elif kind.endswith("List") and "items" in top:
            self._add_items(place, top["items"], kind=kind, version=version)
        elif (version, kind) in _TEMPLATES or kind == "Pod":
            self._add_workload(place, top)
        else:
            name = _name(top)
            self.warnings.append(f"{place.source()}: {kind} {name} of {version} is skipped: it runs no pods known here")

    def _add_items(self, place: "_Place", items: object, *, kind: str, version: str) -> None:
        if items is not None and not isinstance(items, list):
            self._tell([Problem("items", "must be a list")], place)
            return
        inherited = {"kind": kind.removesuffix("List"), "apiVersion": version} if kind != "List" else {}
        for index, item in enumerate(items or ()):
            self._add_object(place.item(index, item), inherited)

    def _add_workload(self, place: "_Place", top: Mapping[str, Any]) -> None:
        try:
            workload = _workload(place, top, self.make)
        except PodError as error:
            self._tell(error.problems, place, name=f"{top['kind']} {_name(top)}")
            return
        key = (workload.kind, workload.namespace, workload.name)
        if key in self.workloads:
            what = f"{workload.kind} {workload.name} is there twice, the last one counts"
            self.warnings.append(f"{workload.source}: {what}")
        self.workloads[key] = workload
        self.owners.update(_owners(top, workload.namespace))

    def _tell(self, problems: Iterable[Problem], place: "_Place", name: str = "") -> None:
        for problem in problems:
            where = f"{place.source(problem.field)}{name and ', '}{name}"
            *_, value = None, *place.along(problem.field)
            what = f"{problem.what}{_shown(value, problem.what)}"
            self.problems.append(LocatedProblem(where, Problem(place.field(problem.field), what)))


@dataclass(frozen=True, slots=True)
class _Place:
    """An object in a document: the document itself, or an item of the list it is."""

    file: str
    document: Document
    part: Any
    path: str = ""  #: where in the document
    several: bool = False  #: whether the file has other documents

    def item(self, index: int, item: object) -> "_Place":
        """The place of an item of this list."""
        return replace(self, part=item, path=self.field(f"items[{index}]"))

    def field(self, inner: str) -> str:
        """A path in this object as one in the document."""
        return f"{self.path}.{inner}" if self.path and inner else self.path or inner

    def source(self, field: str = "") -> SourceLocation:
        """Where the object begins, or what is at *field* in it, as near as that is known."""
        document = self.document
        line: int | None = document.line_of(self.part)
        for part in self.along(field):
            line = document.lines.get(id(part), line)
        if isinstance(document.value, dict) and not document.lines and not self.several:
            line = None  # JSON does not tell
        return SourceLocation(self.file, document.number if self.several else None, line)

    def along(self, field: str) -> Iterator[object]:
        """What is found on the way to *field*, step by step; ``None`` where nothing is."""
        part = self.part
        for name, index in _STEP.findall(field):
            part = _step(part, name or index)
            yield part


def _shown(value: object, what: str) -> str:
    """A text or number that is wrong, where it is not told already."""
    if not isinstance(value, str) or not value:
        return ""
    shown = value[:40] if isinstance(value, NumberLiteral) else quote(value[:40])
    return "" if shown in what else f" (it is {shown})"


def _step(part: object, name: str) -> object:
    """What is called *name* in an object or list; ``None`` where nothing is."""
    if isinstance(part, dict):
        return part.get(name)
    if isinstance(part, list) and name.isdecimal() and len(name) < 10 and int(name) < len(part):
        return part[int(name)]
    return None


#: Kinds that make pods → the path of their template.
_TEMPLATES = {
    ("v1", "PodTemplate"): "template",
    ("v1", "ReplicationController"): "spec.template",
    ("apps/v1", "DaemonSet"): "spec.template",
    ("apps/v1", "Deployment"): "spec.template",
    ("apps/v1", "ReplicaSet"): "spec.template",
    ("apps/v1", "StatefulSet"): "spec.template",
    ("batch/v1", "CronJob"): "spec.jobTemplate.spec.template",
    ("batch/v1", "Job"): "spec.template",
}


def _workload(place: _Place, top: Mapping[str, Any], make: _Make) -> Workload:
    """The workload an object describes; :class:`PodError` names the fields of the object that are wrong."""
    kind = top["kind"]
    template = _TEMPLATES.get((top["apiVersion"], kind))
    if template is None:
        return _single(place, top, make)
    reader = FieldReader()
    metadata = reader.mapping(top.get("metadata"), "metadata")
    holder, where = top, ""
    for step in template.split("."):
        where = f"{where}.{step}" if where else step
        outer, holder = holder, reader.mapping(holder.get(step), where)
    replicas = _replicas(reader, outer, kind=kind, where=where.rpartition(".")[0])
    own = reader.mapping(holder.get("metadata"), f"{where}.metadata")
    if reader.problems:
        raise PodError(reader.problems)
    made = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {**own, "name": _named(metadata, place), "namespace": metadata.get("namespace"), "uid": None},
        "spec": holder.get("spec"),
    }
    pod = _accepted(made, make, template=where)
    workload = Workload(kind, pod.name, pod.namespace, replicas, pod, place.source())
    return replace(workload, pod=_replica(pod, workload, 0))


def _single(place: _Place, top: Mapping[str, Any], make: _Make) -> Workload:
    """A Pod by itself."""
    reader = FieldReader()
    metadata = reader.mapping(top.get("metadata"), "metadata")
    spec, status = reader.mapping(top.get("spec"), "spec"), reader.mapping(top.get("status"), "status")
    phase = reader.text(status.get("phase"), "status.phase")
    host = reader.text(spec.get("nodeName"), "spec.nodeName")
    if reader.problems:
        raise PodError(reader.problems)
    pod = _accepted({**top, "metadata": {**metadata, "name": _named(metadata, place)}}, make)
    known = bool(pod.uid)
    pod = pod if known else with_derived_uid(pod)
    return Workload("Pod", pod.name, pod.namespace, 1, pod, place.source(), phase=phase, host=host, known=known)


def _accepted(document: Mapping[str, Any], make: _Make, *, template: str = "") -> Pod:
    """The pod, its problems told by their fields in the object that has it as *template*."""
    try:
        return make(document)
    except PodError as error:
        if not template:
            raise
        outside = ("metadata.name", "metadata.namespace")
        raise PodError(
            [
                problem if problem.field in outside else replace(problem, field=f"{template}.{problem.field}")
                for problem in error.problems
            ]
        ) from None


def _replicas(reader: FieldReader, spec: Mapping[str, Any], *, kind: str, where: str) -> int:
    """How many pods there are to be at a time."""

    def count(name: str, default: int) -> int:
        return reader.count(spec.get(name), f"{where}.{name}", default=default, most=MAX_REPLICAS)

    match kind:
        case "Deployment" | "ReplicaSet" | "ReplicationController" | "StatefulSet":
            return count("replicas", 1)
        case "Job" | "CronJob":
            # A suspended job counts as if it ran: queues for jobs suspend all of them, until there is room.
            parallelism = count("parallelism", 1)
            return min(parallelism, count("completions", parallelism))
        case _:
            return 1


def _replica(pod: Pod, workload: Workload, index: int) -> Pod:
    """One pod of several."""
    name = f"{workload.name}-{index}"
    return replace(pod, name=name, uid=_uid(workload.kind, workload.namespace, name))


def _uid(*names: str) -> str:
    """An id that is the same for the same names."""
    return str(uuid.uuid5(_IDS, "/".join(names)))


def _named(metadata: Mapping[str, Any], place: _Place) -> object:
    """The name, or one made as the API server makes it, though the same every time."""
    name, prefix = metadata.get("name"), metadata.get("generateName")
    if name or type(prefix) is not str or not prefix:
        return name
    return prefix + _uid(place.file, str(place.document.number), place.path)[:5]


def _name(top: Mapping[str, Any]) -> str:
    """What to call an object that may have no name, or anything in its place."""
    metadata = top.get("metadata")
    name = metadata.get("name") or metadata.get("generateName") if isinstance(metadata, dict) else None
    return name if isinstance(name, str) else "without a name"


def _owners(top: Mapping[str, Any], namespace: str) -> Iterator[_Identity]:
    """What made this object."""
    metadata = top.get("metadata")
    owners = metadata.get("ownerReferences") if isinstance(metadata, dict) else None
    for owner in owners if isinstance(owners, list) else ():
        if isinstance(owner, dict):
            yield str(owner.get("kind")), namespace, str(owner.get("name"))
