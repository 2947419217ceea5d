"""Reads workloads from manifest files: Pods, and objects that create pods from a template.

In objects of custom APIs the templates are found by their shape (``pod_templates``). Objects that run no pods are
skipped and counted in one warning, so a whole application directory or a full cluster export can be given. All problems
are reported at once, each with file, document, line and field; then nothing is read.
"""

import uuid
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, BinaryIO

from alignup.align.bits import quote
from alignup.align.errors import DocumentError, LocatedProblem, ManifestError, PodError, Problem
from alignup.align.workload import Pod, validation
from alignup.kubernetes.manifests import documents
from alignup.kubernetes.manifests.object_location import ObjectLocation, SourceLocation
from alignup.kubernetes.manifests.object_reader import ObjectReader
from alignup.kubernetes.manifests.pod import read_pod, read_type
from alignup.kubernetes.manifests.pod_templates import PodTemplate, find_templates
from alignup.kubernetes.manifests.yaml_scalars import NumberLiteral
from alignup.picture.text_format import pluralize

MAX_REPLICAS = 100_000  #: of one workload
SUFFIXES = (".json", ".yaml", ".yml")  #: of the files read in a directory

_MAX_KINDS = 10  # in the warning that counts skipped objects
_UID_NAMESPACE = uuid.UUID("6f5a2f2b-6f0e-5c39-9a53-0c1a3d0f7c55")  # must never change: derived uids depend on it

_ObjectKey = tuple[str, str, str]  # kind, namespace, name
_PodMaker = Callable[[Mapping[str, Any]], Pod]

#: Validates and defaults a pod as the API server does; raises :class:`PodError` to reject it.
Accept = Callable[[Pod], Pod]


@dataclass(frozen=True, slots=True)
class Workload:
    kind: str
    name: str
    namespace: str
    replicas: int
    pod: Pod  #: the first replica, accepted; present even with 0 replicas
    source: SourceLocation
    phase: str = ""  #: of a Pod from a cluster
    host: str = ""  #: where a Pod from a cluster runs; empty: nowhere yet
    has_uid: bool = False  #: whether this is a Pod whose manifest has a uid
    template: str = ""  #: which of several pod templates of a custom object this is, such as ``Worker``
    prefix: str = ""  #: of the names of the replicas; empty: the name
    manifest: Mapping[str, Any] = field(default_factory=dict, compare=False, repr=False)  #: of the pod

    @property
    def title(self) -> str:
        """``trainer``, or ``trainer: Worker`` for one of several templates."""
        return f"{self.name}: {self.template}" if self.template else self.name

    @property
    def finished(self) -> bool:
        """Whether this is a Pod that has terminated and holds nothing."""
        return self.phase in {"Failed", "Succeeded"}

    def pods(self) -> Iterator[Pod]:
        """All replicas; names and uids are the same on every call."""
        for index in range(self.replicas):
            yield self.pod if index == 0 else _replica(self.pod, self, index)


@dataclass(frozen=True, slots=True)
class LoadedWorkloads:
    workloads: tuple[Workload, ...] = ()
    warnings: tuple[str, ...] = ()  #: skipped objects and likely mistakes


def read_paths(paths: Iterable[str | Path], stdin: BinaryIO | None = None) -> LoadedWorkloads:
    """Read files and directories; ``-`` is *stdin*. :class:`ManifestError` lists every problem.

    Like ``kubectl -f``, a directory stands for its files that end in ``SUFFIXES``, in the order of their names.
    """
    collector = _Collector(validation.accept)
    for path in paths:
        if str(path) == "-":
            collector.add_file(stdin, "standard input")
        else:
            collector.add_path(Path(path))
    return collector.result()


def read_workloads(text: str | bytes, *, name: str, accept: Accept = validation.accept) -> LoadedWorkloads:
    """Like :func:`read_paths`, for a YAML or JSON text that messages call *name*."""
    collector = _Collector(accept)
    collector.add(text, name)
    return collector.result()


def with_derived_uid(pod: Pod) -> Pod:
    return replace(pod, uid=_uid("Pod", pod.namespace, pod.name))


@dataclass
class _Collector:
    accept: Accept
    workloads: dict[_ObjectKey, dict[str, Workload]] = field(default_factory=dict)  #: each by template
    owners: set[_ObjectKey] = field(default_factory=set)  #: from the owner references of workloads
    warnings: list[str] = field(default_factory=list)
    problems: list[LocatedProblem] = field(default_factory=list)
    without_pods: Counter[str] = field(default_factory=Counter)  #: skipped objects that run no pods, by kind

    def result(self) -> LoadedWorkloads:
        if self.problems:
            raise ManifestError(self.problems)
        # A cluster export has the same pods three times: as a Deployment, its ReplicaSet and its Pods.
        for key in sorted(self.owners & self.workloads.keys()):
            owner = next(iter(self.workloads.pop(key).values()))
            self.warnings.append(f"{owner.source}: skipped {owner.kind} {owner.name}: its pods are also listed")
        if count := self.without_pods.total():
            kinds = [f"{kind} ({times})" for kind, times in self.without_pods.most_common(_MAX_KINDS)]
            more = len(self.without_pods) - len(kinds)
            kinds += [f"{more} more kinds"] if more else []
            noun = "object that runs" if count == 1 else "objects that run"
            self.warnings.append(f"skipped {count} {noun} no pods: {', '.join(kinds)}")
        workloads = (workload for templates in self.workloads.values() for workload in templates.values())
        return LoadedWorkloads(tuple(workloads), tuple(self.warnings))

    def add_path(self, path: Path) -> None:
        files = [path]
        try:
            if path.is_dir():
                files = sorted(each for each in path.iterdir() if each.suffix in SUFFIXES and not each.is_dir())
        except OSError as error:
            self._fail(str(path), error)
            return
        if not files:
            self._fail(str(path), f"the directory has no files that end in {', '.join(SUFFIXES)}")
        for file in files:
            self.add_file(file, str(file))

    def add_file(self, file: Path | BinaryIO | None, name: str) -> None:
        """Read one file; ``None`` counts as empty."""
        try:
            with file.open("rb") if isinstance(file, Path) else nullcontext(file) as opened:
                text = opened.read(documents.MAX_BYTES + 1) if opened else b""
        except (OSError, ValueError) as error:
            self._fail(name, error)
        else:
            self.add(text, name)

    def add(self, text: str | bytes, name: str) -> None:
        try:
            found = documents.read(text)
        except DocumentError as error:
            where = SourceLocation(name, error.document if error.document > 1 else None, error.line)
            self._fail(str(where), error.what)
            return
        if not found:
            self._fail(name, "is empty")
        several = len(found) > 1 or any(document.number > 1 for document in found)
        for document in found:
            place = ObjectLocation(name, document, document.value, several=several)
            source = place.source()
            self.warnings += [f"{replace(source, line=one.line)}: {one}" for one in document.repeated]
            self._add_object(place, {})

    def _fail(self, where: str, what: str | Exception) -> None:
        """Record a problem with a whole file; an exception means that it cannot be read."""
        if isinstance(what, Exception):
            what = f"cannot be read: {getattr(what, 'strerror', None) or what}"
        self.problems.append(LocatedProblem(where, Problem("", what)))

    def _add_object(self, place: ObjectLocation, inherited: Mapping[str, str]) -> None:
        """Read a document or a list item; *inherited* is the type that the list gives its items."""
        top = ObjectReader.of(place.part)
        top = replace(top, fields={**inherited, **top.fields})
        kind, version = read_type(top)
        if top.diagnostics.problems:
            self._report(top.diagnostics.problems, place)
        elif kind.endswith("List") and "items" in top.fields:
            items = top.list_of("items", lambda reader, name: reader.fields[name])
            self._report(top.diagnostics.problems, place)
            inherited = {"kind": kind.removesuffix("List"), "apiVersion": version} if kind != "List" else {}
            for index, item in enumerate(items):
                self._add_object(replace(place, part=item, path=place.field(f"items[{index}]")), inherited)
        elif (version, kind) in _TEMPLATES or kind == "Pod":
            self._add_workload(place, top.fields)
        elif not _is_built_in(version):
            self._add_custom(place, top.fields)
        elif kind not in _POD_KINDS:
            self.without_pods[kind] += 1
        else:
            why = "not a supported workload kind"
            if removed := _REMOVED.get(version) if kind in _POD_KINDS else None:
                why = f"Kubernetes {removed[0]} removed this API; use {removed[1]}"
            self.warnings.append(f"{place.source()}: skipped {kind} {_name(top.fields)} of {version}: {why}")

    def _add_workload(self, place: ObjectLocation, top: Mapping[str, Any]) -> None:
        try:
            workload = _workload(place, top, self._make_pod)
        except PodError as error:
            self._report(error.problems, place, name=f"{top['kind']} {_name(top)}")
        else:
            self._keep([workload], top)

    def _add_custom(self, place: ObjectLocation, top: Mapping[str, Any]) -> None:
        """Read every pod template of an object of a custom API."""
        what, found = f"{top['kind']} {_name(top)}", []
        if not (templates := find_templates(top)):
            why = "no pod template found in it"
            self.warnings.append(f"{place.source()}: skipped {what} of {top['apiVersion']}: {why}")
        for template in templates:
            try:
                found.append(_custom_workload(place, top, template, self._make_pod))
            except PodError as error:
                if "{{" not in documents.to_json(template.spec):
                    self._report(error.problems, place, name=what)
                else:
                    placeholders = f"skipped {what}: {template.path} has placeholders"
                    self.warnings.append(f"{place.source()}: {placeholders}")
        if found:
            shown = ", ".join(map(_describe_count, templates))
            self.warnings.append(f"{place.source()}: {what} has {pluralize(len(templates), 'pod template')}: {shown}")
            self._keep(found, top)

    def _make_pod(self, document: Mapping[str, Any]) -> Pod:
        return self.accept(read_pod(document))

    def _keep(self, templates: list[Workload], top: Mapping[str, Any]) -> None:
        """Keep the workloads of one object."""
        workload = templates[0]
        key = (workload.kind, workload.namespace, workload.name)
        if key in self.workloads:
            what = f"{workload.kind} {workload.name} is defined twice: the last definition is used"
            self.warnings.append(f"{workload.source}: {what}")
        self.workloads[key] = {one.template: one for one in templates}
        owners = top["metadata"].get("ownerReferences")
        for owner in owners if isinstance(owners, list) else ():
            if isinstance(owner, dict):
                self.owners.add((str(owner.get("kind")), workload.namespace, str(owner.get("name"))))

    def _report(self, problems: Iterable[Problem], place: ObjectLocation, name: str = "") -> None:
        for problem in problems:
            where = f"{place.source(problem.field)}{name and ', '}{name}"
            *_, value = None, *place.along(problem.field)
            what = problem.what
            if isinstance(value, str) and value:
                shown = value[:40] if isinstance(value, NumberLiteral) else quote(value[:40])
                what += "" if shown in what else f" (got {shown})"
            self.problems.append(LocatedProblem(where, Problem(place.field(problem.field), what)))


#: Kinds that create pods → the path of their pod template.
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


_POD_KINDS = {"Pod", *(kind for _, kind in _TEMPLATES)}
#: Removed API → the release without it, and its successor.
_REMOVED = {
    "extensions/v1beta1": ("1.16", "apps/v1"),
    "apps/v1beta1": ("1.16", "apps/v1"),
    "apps/v1beta2": ("1.16", "apps/v1"),
    "batch/v1beta1": ("1.25", "batch/v1"),
    "batch/v2alpha1": ("1.21", "batch/v1"),
}


def _is_built_in(version: str) -> bool:
    """Whether Kubernetes itself defines the kinds of an API; those of custom APIs may run pods."""
    group = version.rpartition("/")[0]
    if group in {"", "apps", "autoscaling", "batch", "extensions", "policy"}:
        return True
    return group.endswith(".k8s.io") and not group.endswith(".x-k8s.io")


def _workload(place: ObjectLocation, top: Mapping[str, Any], make: _PodMaker) -> Workload:
    """The workload in an object; :class:`PodError` names the invalid fields of the object."""
    kind = top["kind"]
    template = _TEMPLATES.get((top["apiVersion"], kind))
    if template is None:
        return _single_pod(place, top, make)
    outer = holder = ObjectReader.of(top)
    metadata = holder.child("metadata").fields
    for step in template.split("."):
        outer, holder = holder, holder.child(step)
    replicas = _replicas(outer, kind)
    own = holder.child("metadata").fields
    if holder.diagnostics.problems:
        raise PodError(holder.diagnostics.problems)
    own = {**own, "name": _named(metadata, place), "namespace": metadata.get("namespace"), "uid": None}
    manifest = {"metadata": own, "spec": holder.fields.get("spec")}
    pod = _template_pod(manifest, template, make)
    workload = Workload(kind, pod.name, pod.namespace, replicas, pod, place.source(), manifest=manifest)
    return replace(workload, pod=_replica(pod, workload, 0))


def _custom_workload(place: ObjectLocation, top: Mapping[str, Any], template: PodTemplate, make: _PodMaker) -> Workload:
    """The workload of one pod template of a custom object; without a count it has one replica."""
    reader = ObjectReader.of(top)
    metadata = reader.child("metadata").fields
    replicas = 1 if template.replicas is None else template.replicas
    if replicas > MAX_REPLICAS:
        reader.error(template.path, f"{replicas} pods are too many: the maximum is {MAX_REPLICAS}")
    if reader.diagnostics.problems:
        raise PodError(reader.diagnostics.problems)
    name = _named(metadata, place)
    own = {**template.metadata, "name": name, "namespace": metadata.get("namespace"), "uid": None}
    manifest = {"metadata": own, "spec": template.spec}
    pod = _template_pod(manifest, template.path, make)
    workload = Workload(top["kind"], pod.name, pod.namespace, replicas, pod, place.source(template.path))
    prefix = f"{pod.name}{template.suffix}"
    workload = replace(workload, template=template.label, prefix=prefix, manifest=manifest)
    return replace(workload, pod=_replica(pod, workload, 0))


def _template_pod(document: Mapping[str, Any], path: str, make: _PodMaker) -> Pod:
    """The pod of a template at *path*, which problems start with."""
    try:
        return make({"apiVersion": "v1", "kind": "Pod", **document})
    except PodError as error:
        outside = ("metadata.name", "metadata.namespace")  # of the workload itself, not of its template
        problems = [
            problem if problem.field in outside else replace(problem, field=f"{path}.{problem.field}")
            for problem in error.problems
        ]
        raise PodError(problems) from None


def _describe_count(template: PodTemplate) -> str:
    name = template.label or template.path
    if template.replicas is None:
        return f"{name} (1 pod: no count found)"
    return f"{name} ({pluralize(template.replicas, 'pod')}: {' * '.join(template.counts)})"


def _single_pod(place: ObjectLocation, top: Mapping[str, Any], make: _PodMaker) -> Workload:
    reader = ObjectReader.of(top)
    metadata = reader.child("metadata").fields
    spec, status = reader.child("spec"), reader.child("status")
    phase, host = status.text("phase"), spec.text("nodeName")
    if reader.diagnostics.problems:
        raise PodError(reader.diagnostics.problems)
    pod = make({**top, "metadata": {**metadata, "name": _named(metadata, place)}})
    has_uid = bool(pod.uid)
    pod = pod if has_uid else with_derived_uid(pod)
    workload = Workload("Pod", pod.name, pod.namespace, 1, pod, place.source(), phase=phase, host=host)
    return replace(workload, has_uid=has_uid, manifest=top)


def _replicas(spec: ObjectReader, kind: str) -> int:
    match kind:
        case "Deployment" | "ReplicaSet" | "ReplicationController" | "StatefulSet":
            return spec.count("replicas", default=1, high=MAX_REPLICAS)
        case "Job" | "CronJob":
            # A suspended job counts as well: job queues suspend every job until there is room for it.
            parallelism = spec.count("parallelism", default=1, high=MAX_REPLICAS)
            return min(parallelism, spec.count("completions", default=parallelism, high=MAX_REPLICAS))
        case _:
            return 1


def _replica(pod: Pod, workload: Workload, index: int) -> Pod:
    name = f"{workload.prefix or workload.name}-{index}"
    return replace(pod, name=name, uid=_uid(workload.kind, workload.namespace, name))


def _uid(*names: str) -> str:
    return str(uuid.uuid5(_UID_NAMESPACE, "/".join(names)))


def _named(metadata: Mapping[str, Any], place: ObjectLocation) -> object:
    """The name, or one generated from ``generateName``, the same on every call."""
    name, prefix = metadata.get("name"), metadata.get("generateName")
    if name or type(prefix) is not str or not prefix:
        return name
    return prefix + _uid(place.file, str(place.document.number), place.path)[:5]


def _name(top: Mapping[str, Any]) -> str:
    metadata = top.get("metadata")
    name = metadata.get("name") or metadata.get("generateName") if isinstance(metadata, dict) else None
    return name if isinstance(name, str) else "without a name"
