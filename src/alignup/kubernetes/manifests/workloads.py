"""Workloads in manifest files: Pods, and objects that create pods from a template.

In objects of custom APIs, such as a JobSet or a RayCluster, ``pod_templates`` finds them. A TrainJob needs its runtime.

Objects that run no pods are skipped and counted in one warning, so a whole application directory or a full cluster
export can be given. All problems are reported at once, each with file, document, line and field; then nothing is read.

A field that no release has is a problem, as for ``kubectl apply``: a typing error such as ``limit`` would otherwise
change the answer silently. It is only a warning in the pod templates of custom APIs, which may have fields of their
own, and in objects with a uid: the API server that stored them knows more fields than ``fields.json``.
"""

import re
import uuid
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, BinaryIO, Self

from alignup.align.bits import quote
from alignup.align.errors import (
    DocumentError,
    LocatedProblem,
    ManifestError,
    PodError,
    Problem,
    ProblemKind,
    SourceLocation,
)
from alignup.align.quantity import propose_spelling
from alignup.align.workload import Pod, validation
from alignup.atomic_files import open_input
from alignup.documents.line_numbers import find_line
from alignup.kubernetes.manifests import documents
from alignup.kubernetes.manifests.documents import NumberLiteral, ParsedDocument
from alignup.kubernetes.manifests.mistakes import (
    CHART,
    FIELDS,
    KUSTOMIZATIONS,
    TypePath,
    UnknownField,
    describe_template,
    describe_unknown,
)
from alignup.kubernetes.manifests.object_reader import ObjectReader
from alignup.kubernetes.manifests.pod_decoder import read_pod, read_type
from alignup.kubernetes.manifests.pod_templates import PodTemplate, find_templates
from alignup.picture.text_format import pluralize

MAX_REPLICAS = 100_000  #: of one workload
SUFFIXES = (".json", ".yaml", ".yml")  #: of the files read in a directory

_SHOW_VALUE = {ProblemKind.NOT_A_STRING, ProblemKind.OTHER_TYPE, ProblemKind.QUANTITY}
_MAX_KINDS = 10  # in the warning that counts skipped objects
_UID_NAMESPACE = uuid.UUID("6f5a2f2b-6f0e-5c39-9a53-0c1a3d0f7c55")  # must never change: derived uids depend on it
_EXACT_LINES = 20  # problems whose line is searched in the text
_OWN_FILES = (("alignup", "machine/"), ("apiVersion", "alignup.dev/"))  # field → how it begins in files of Alignup
_COMPRESSED = "is compressed; 'alignup why FILE.tar.gz' reads archives of 'alignup collect'; decompress manifests first"
_PATH_STEP = re.compile(r"\.?([A-Za-z]+)|\[([^]]*)\]")

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
#: Kinds of Dynamic Resource Allocation, which are read where a pod refers to them.
CLAIM_KINDS = ("DeviceClass", "ResourceClaim", "ResourceClaimTemplate", "ResourceSlice")
_CLAIM_GROUP = "resource.k8s.io/"
_POD_KINDS = {"Pod", *(kind for _, kind in _TEMPLATES)}
#: Removed API → the release without it, and its successor.
_REMOVED = {
    "extensions/v1beta1": ("1.16", "apps/v1"),
    "apps/v1beta1": ("1.16", "apps/v1"),
    "apps/v1beta2": ("1.16", "apps/v1"),
    "batch/v1beta1": ("1.25", "batch/v1"),
    "batch/v2alpha1": ("1.21", "batch/v1"),
}

_TRAINER_GROUP = "trainer.kubeflow.org/"  # of TrainJobs and their runtimes

_ObjectKey = tuple[str, str, str]  # kind, namespace, name

#: Validates and defaults a pod as the API server does; raises :class:`PodError` to reject it.
Accept = Callable[[Pod], Pod]


@dataclass(frozen=True, slots=True)
class ObjectLocation:
    """An object of a document: the document itself, or an item of a list."""

    file: str
    document: ParsedDocument
    part: Any
    path: str = ""  #: in the document
    several: bool = False  #: whether the file has other documents
    text: str | bytes = field(default="", repr=False, compare=False)  #: of the file

    def field(self, inner: str) -> str:
        """Return a path in this object as a path in the document."""
        return f"{self.path}.{inner}" if self.path and inner else self.path or inner

    def source(self, field: str = "") -> SourceLocation:
        """Return where this object, or the innermost object on the way to *field*, begins."""
        document = self.document
        line: int | None = document.line
        for part in (self.part, *(self.along(field) if field else ())):
            line = document.lines.get(id(part), line)
        if document.json:
            inner = find_line(document.json[document.start :], self.field(field)) if field else 0  # only for problems
            line = document.line + inner - 1 if inner else line if self.several else None
        return SourceLocation(self.file, document.number if self.several else None, line)

    def exact_source(self, field: str) -> SourceLocation:
        """Return where *field* itself is, which takes as long as parsing the file."""
        source = self.source(field)
        line = 0 if self.document.json else find_line(self.text, self.field(field), document=self.document.number)
        return replace(source, line=line) if line else source

    def along(self, field: str) -> Iterator[object]:
        """Yield the value at each step of the path *field*; ``None`` where it is absent."""
        part = self.part
        for name, index in _PATH_STEP.findall(field):
            if isinstance(part, dict):
                part = part.get(name or index)
            elif isinstance(part, list) and index.isdecimal() and len(index) < 10 and int(index) < len(part):
                part = part[int(index)]
            else:
                part = None
            yield part


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
        """Return ``trainer``, or ``trainer: Worker`` for one of several templates."""
        return f"{self.name}: {self.template}" if self.template else self.name

    @property
    def finished(self) -> bool:
        """Return whether this is a Pod that has terminated and holds nothing."""
        return self.phase in {"Failed", "Succeeded"}

    def pods(self) -> Iterator[Pod]:
        """Yield all replicas; names and uids are the same on every call."""
        for index in range(self.replicas):
            yield self.pod if index == 0 else self.replica(index)

    def without_pod_level_fix(self) -> Self:
        """Return the workload as an API server without feature gate PodLevelResourcesFixDefaulting accepts it."""
        if not self.pod.has_pod_level_resources:
            return self
        manifest_pod = read_pod({**self.manifest, "apiVersion": "v1", "kind": "Pod"})
        named_pod = replace(manifest_pod, name=self.pod.name, namespace=self.pod.namespace)
        accepted_pod = validation.accept(named_pod, fix_pod_level=False)
        return replace(self, pod=replace(accepted_pod, uid=self.pod.uid))

    def replica(self, index: int) -> Pod:
        name = f"{self.prefix or self.name}-{index}"
        return replace(self.pod, name=name, uid=derive_uid(self.kind, self.namespace, name))


@dataclass(frozen=True, slots=True)
class LoadedWorkloads:
    workloads: tuple[Workload, ...] = ()
    warnings: tuple[str, ...] = ()  #: skipped objects and likely mistakes
    claims: tuple[ObjectLocation, ...] = ()  #: ResourceClaims and others, which ``manifests.claims`` reads
    problems: tuple[LocatedProblem, ...] = ()  #: of files that were left out

    @property
    def use_claims(self) -> bool:
        """Whether there are claims, or pods that name claims."""
        return bool(self.claims) or any(workload.pod.uses_claims for workload in self.workloads)


def read_paths(
    paths: Iterable[str | Path],
    stdin: BinaryIO | None = None,
    *,
    accept: Accept = validation.accept,
    ignore_unknown_fields: bool = False,
    leave_out: bool = False,
) -> LoadedWorkloads:
    """Read files and directories; ``-`` is *stdin*. :class:`ManifestError` lists every problem.

    Like ``kubectl -f``, a directory stands for its files that end in ``SUFFIXES``, in the order of their names. With
    *leave_out*, files with problems are left out, unless no other file has a workload.
    """
    collector = _Collector(accept, strict=not ignore_unknown_fields, leave_out=leave_out)
    for path in paths:
        if str(path) == "-":
            collector.add_file(stdin, "standard input")
        else:
            collector.add_path(Path(path))
    return collector.result()


def load_pods(*paths: str | Path, fix_pod_level: bool = True, ignore_unknown_fields: bool = False) -> tuple[Pod, ...]:
    """Return the pods in files and directories, accepted as the API server does: every replica of every workload.

    *fix_pod_level* is the feature gate PodLevelResourcesFixDefaulting, which is on since 1.37. :class:`ManifestError`
    lists every problem.
    """
    accept = partial(validation.accept, fix_pod_level=fix_pod_level)
    manifests = read_paths(paths, accept=accept, ignore_unknown_fields=ignore_unknown_fields)
    return tuple(pod for workload in manifests.workloads for pod in workload.pods())


def read_workloads(
    text: str | bytes, *, name: str, accept: Accept = validation.accept, ignore_unknown_fields: bool = False
) -> LoadedWorkloads:
    """Like :func:`read_paths`, for a YAML or JSON text that messages call *name*."""
    collector = _Collector(accept, strict=not ignore_unknown_fields)
    collector.add(text, name)
    return collector.result()


@dataclass
class _Collector:
    accept: Accept
    strict: bool = True  #: whether unknown fields are problems
    leave_out: bool = False  #: whether files with problems are left out
    workloads: dict[_ObjectKey, dict[str, Workload]] = field(default_factory=dict)  #: each by template
    of_trainer: list[tuple[ObjectLocation, ObjectReader]] = field(default_factory=list)  #: TrainJobs and their runtimes
    owners: set[_ObjectKey] = field(default_factory=set)  #: from the owner references of workloads
    warnings: list[str] = field(default_factory=list)
    problems: list[LocatedProblem] = field(default_factory=list)
    claims: list[ObjectLocation] = field(default_factory=list)
    without_pods: Counter[str] = field(default_factory=Counter)  #: skipped objects that run no pods, by kind

    def result(self) -> LoadedWorkloads:
        if self.of_trainer:
            self._add_train_jobs()
        if self.problems:
            wrong = {located_problem.location.file for located_problem in self.problems}
            self.workloads = {
                key: templates
                for key, templates in self.workloads.items()
                if self.leave_out and not any(workload.source.file in wrong for workload in templates.values())
            }
            if not self.workloads:
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
        return LoadedWorkloads(tuple(workloads), tuple(self.warnings), tuple(self.claims), tuple(self.problems))

    def add_path(self, path: Path) -> None:
        files = [path]
        try:
            if path.is_dir():
                files = sorted(file for file in path.iterdir() if file.suffix in SUFFIXES and not file.is_dir())
        except OSError as error:
            self._fail(SourceLocation(str(path)), error)
            return
        if path / CHART in files:
            self._fail(SourceLocation(str(path)), f"this is a Helm chart; try helm template {path} | alignup why -f -")
            return
        if not files:
            self._fail(SourceLocation(str(path)), f"the directory has no files that end in {', '.join(SUFFIXES)}")
        for file in files:
            if file.name in KUSTOMIZATIONS:
                build = f"alignup why -k {file.parent}"
                self.warnings.append(f"{file}: skipped: its patches are not applied to other files; try {build}")
            else:
                self.add_file(file, str(file), listed=file != path)

    def add_file(self, file: Path | BinaryIO | None, name: str, *, listed: bool = False) -> None:
        """Read one file; ``None`` counts as empty. A *listed* one is there because of its directory."""
        try:
            with open_input(file) if isinstance(file, Path) else nullcontext(file) as stream:
                text = stream.read(documents.MAX_BYTES + 1) if stream else b""
        except (OSError, ValueError) as error:
            self._fail(SourceLocation(name), error)
        else:
            self.add(text, name, listed=listed)

    def add(self, text: str | bytes, name: str, *, listed: bool = False) -> None:
        problem_count = len(self.problems)
        try:
            parsed_documents = documents.read(text)
            if not parsed_documents:
                self._fail(SourceLocation(name), "is empty")
        except DocumentError as error:
            parsed_documents = ()
            location = SourceLocation(name, error.document if error.document > 1 else None, error.line)
            is_compressed = isinstance(text, bytes) and text.startswith(b"\x1f\x8b")
            self._fail(location, _COMPRESSED if is_compressed else error.message)
        several = len(parsed_documents) > 1 or any(document.number > 1 for document in parsed_documents)
        for document in parsed_documents:
            object_location = ObjectLocation(name, document, document.value, several=several, text=text)
            source = object_location.source()
            self.warnings += [f"{replace(source, line=key.line)}: {key}" for key in document.repeated]
            if isinstance(object_location.part, dict) and any(
                str(object_location.part.get(key)).startswith(start) for key, start in _OWN_FILES
            ):
                self.warnings.append(f"{source}: skipped a file of alignup, which is not a manifest")
            elif listed and not (
                isinstance(object_location.part, dict) and object_location.part.keys() & {"apiVersion", "kind"}
            ):
                self.warnings.append(f"{source}: skipped: it has no apiVersion and kind, so it is not a manifest")
            else:
                self._add_object(object_location, {})
        if len(self.problems) > problem_count and (message := describe_template(text)):
            self.problems[problem_count:] = [LocatedProblem(SourceLocation(name), Problem("", message))]

    def _fail(self, location: SourceLocation, problem: str | Exception) -> None:
        """Record a problem with a whole file; an exception means that it cannot be read."""
        if isinstance(problem, Exception):
            problem = f"cannot be read: {getattr(problem, 'strerror', None) or problem}"
        self.problems.append(LocatedProblem(location, Problem("", problem)))

    def _add_object(self, location: ObjectLocation, inherited_fields: Mapping[str, str]) -> None:
        """Read a document or a list item; *inherited_fields* is the type that the list gives its items."""
        top = ObjectReader.of(location.part)
        top = replace(top, fields={**inherited_fields, **top.fields})
        kind, version = read_type(top)
        if top.diagnostics.problems:
            self._report(top.diagnostics.problems, location)
        elif kind.endswith("List") and "items" in top.fields:
            items = top.list_of("items", lambda reader, name: reader.fields[name])
            if top.diagnostics.problems:
                self._report(top.diagnostics.problems, location)
            inherited_fields = {"kind": kind.removesuffix("List"), "apiVersion": version} if kind != "List" else {}
            prefix = f"{location.path}.items" if location.path else "items"
            for index, item in enumerate(items):
                self._add_object(replace(location, part=item, path=f"{prefix}[{index}]"), inherited_fields)
        elif (version, kind) in _TEMPLATES or kind == "Pod":
            self._add_workload(location, top)
        elif not _is_built_in(version):
            add = self._defer if version.startswith(_TRAINER_GROUP) else self._add_custom
            add(location, top)
        elif kind in CLAIM_KINDS and version.startswith(_CLAIM_GROUP):
            self.claims.append(location if location.part is top.fields else replace(location, part=top.fields))
        elif kind not in _POD_KINDS:
            self.without_pods[kind] += 1
        else:
            reason = "not a supported workload kind"
            if removal := _REMOVED.get(version):
                reason = f"Kubernetes {removal[0]} removed this API; use {removal[1]}"
            self.warnings.append(f"{location.source()}: skipped {kind} {_name(top.fields)} of {version}: {reason}")

    def _defer(self, location: ObjectLocation, top: ObjectReader) -> None:
        """Keep a TrainJob or its runtime until both are known."""
        self.of_trainer.append((location, top))

    def _add_train_jobs(self) -> None:
        """Read TrainJobs with the pod templates of their runtimes, which run no pods themselves, and all others."""
        from alignup.kubernetes.manifests import train_jobs  # noqa: PLC0415 - rarely needed

        runtimes = {train_jobs.runtime_name(top.fields): top.fields for _, top in self.of_trainer}
        jobs = [top.fields for _, top in self.of_trainer if top.fields["kind"] == train_jobs.KIND]
        used_runtimes = {train_jobs.runtime_of(job) for job in jobs}
        for location, top in self.of_trainer:
            name = train_jobs.runtime_of(top.fields)
            if top.fields["kind"] != train_jobs.KIND:
                if train_jobs.runtime_name(top.fields) not in used_runtimes:
                    self._add_custom(location, top)
            elif name in runtimes:
                self._add_custom(location, replace(top, fields=train_jobs.expand(top.fields, runtimes[name])))
            else:
                reason = f"its pods are described by {name.kind} {name.name}; give that object, too"
                self.warnings.append(f"{location.source()}: skipped {train_jobs.KIND} {_name(top.fields)}: {reason}")

    def _add_workload(self, location: ObjectLocation, top: ObjectReader) -> None:
        """Read a Pod, or an object of a built-in kind that creates pods."""
        kind = top.fields["kind"]
        path = _TEMPLATES.get((top.fields["apiVersion"], kind))
        if unknown_fields := tuple(_unknown_fields(top.fields, ((kind, ""),))):
            metadata = top.fields.get("metadata")
            is_stored = isinstance(metadata, Mapping) and bool(metadata.get("uid"))
            self._report_unknown(
                location, unknown_fields, f"{kind} {_name(top.fields)}", strict=self.strict and not is_stored
            )
        try:
            if path is None:
                workload = self._single_pod(location, top)
            else:
                outer = holder = top
                for step in path.split("."):
                    outer, holder = holder, holder.child(step)
                replicas = _replicas(outer, kind)
                template = PodTemplate(path, "", holder.child("metadata").fields, holder.fields.get("spec"))
                workload = self._template_workload(location, top, template, replicas)
        except PodError as error:
            self._report(error.problems, location, name=f"{kind} {_name(top.fields)}")
        else:
            self._keep([workload], top.fields)

    def _add_custom(self, location: ObjectLocation, top: ObjectReader) -> None:
        """Read every pod template of an object of a custom API; without a count it has one replica."""
        title, workloads = f"{top.fields['kind']} {_name(top.fields)}", []
        if not (templates := find_templates(top.fields)):
            reason = f"of {top.fields['apiVersion']}: no pod template found in it"
            self.warnings.append(f"{location.source()}: skipped {title} {reason}")
        for template in templates:
            reader = ObjectReader.of(top.fields)
            replicas = 1 if template.replicas is None else template.replicas
            if replicas > MAX_REPLICAS:
                reader.error(template.path, f"{replicas} pods are too many: the maximum is {MAX_REPLICAS}")
            try:
                workload = self._template_workload(location, reader, template, replicas)
            except PodError as error:
                if "{{" not in documents.to_json(template.spec):
                    self._report(error.problems, location, name=title)
                else:
                    placeholders = f"skipped {title}: {template.path} has placeholders"
                    self.warnings.append(f"{location.source()}: {placeholders}")
            else:
                inner = () if template.is_task else (("PodTemplateSpec", template.path),)
                unknown_fields = _unknown_fields({"metadata": template.metadata, "spec": template.spec}, inner)
                self._report_unknown(location, unknown_fields, title, strict=False)
                prefix = f"{workload.name}{template.suffix}"
                workload = replace(
                    workload, source=location.source(template.path), template=template.label, prefix=prefix
                )
                workloads.append(replace(workload, pod=workload.replica(0)))
        if workloads:
            counts = ", ".join(template.describe_count() for template in templates)
            self.warnings.append(
                f"{location.source()}: {title} has {pluralize(len(templates), 'pod template')}: {counts}"
            )
            self._keep(workloads, top.fields)

    def _template_workload(
        self, location: ObjectLocation, top: ObjectReader, template: PodTemplate, replicas: int
    ) -> Workload:
        """Return the workload of a template; :class:`PodError` names the invalid fields of the object."""
        metadata = top.child("metadata").fields
        if top.diagnostics.problems:
            raise PodError(top.diagnostics.problems)
        inner = {
            **template.metadata,
            "name": metadata.get("name") or _generated_name(metadata, location),
            "namespace": metadata.get("namespace"),
            "uid": None,
        }
        manifest = {"metadata": inner, "spec": template.spec}
        try:
            pod = self.accept(read_pod({"apiVersion": "v1", "kind": "Pod", **manifest}))
        except PodError as error:
            outside = ("metadata.name", "metadata.namespace")  # of the workload itself, not of its template
            problems = [
                problem if problem.field in outside else replace(problem, field=f"{template.path}.{problem.field}")
                for problem in error.problems
            ]
            raise PodError(problems) from None
        kind, source = top.fields["kind"], location.source()
        workload = Workload(kind, pod.name, pod.namespace, replicas, pod, source, manifest=manifest)
        return replace(workload, pod=workload.replica(0))

    def _single_pod(self, location: ObjectLocation, top: ObjectReader) -> Workload:
        metadata, spec, status = top.child("metadata").fields, top.child("spec"), top.child("status")
        phase, host = status.text("phase"), spec.text("nodeName")
        if top.diagnostics.problems:
            raise PodError(top.diagnostics.problems)
        pod = self.accept(
            read_pod(
                {
                    **top.fields,
                    "metadata": {**metadata, "name": metadata.get("name") or _generated_name(metadata, location)},
                }
            )
        )
        has_uid = bool(pod.uid)
        pod = pod if has_uid else replace(pod, uid=derive_uid("Pod", pod.namespace, pod.name))
        workload = Workload("Pod", pod.name, pod.namespace, 1, pod, location.source(), phase=phase, host=host)
        return replace(workload, has_uid=has_uid, manifest=top.fields)

    def _keep(self, templates: list[Workload], top: Mapping[str, Any]) -> None:
        """Keep the workloads of one object."""
        workload = templates[0]
        key = (workload.kind, workload.namespace, workload.name)
        if key in self.workloads:
            twice = f"{workload.kind} {workload.name} is defined twice: the last definition is used"
            self.warnings.append(f"{workload.source}: {twice}")
        self.workloads[key] = {template.template: template for template in templates}
        owners = top["metadata"].get("ownerReferences")
        for owner in owners if isinstance(owners, list) else ():
            if isinstance(owner, dict):
                self.owners.add((str(owner.get("kind")), workload.namespace, str(owner.get("name"))))

    def _report_unknown(
        self, location: ObjectLocation, unknown_fields: Iterable[UnknownField], name: str, *, strict: bool
    ) -> None:
        problems = [
            Problem(path, message, ProblemKind.UNKNOWN_FIELD) for path, message in map(describe_unknown, unknown_fields)
        ]
        if strict:
            self._report(problems, location, name)
        else:
            self.warnings += [f"{location.source(problem.field)}: ignored {problem} ({name})" for problem in problems]

    def _report(self, problems: Iterable[Problem], location: ObjectLocation, name: str = "") -> None:
        exact = len(self.problems) < _EXACT_LINES
        self.problems += [locate_problem(problem, location, name, exact=exact) for problem in problems]


def locate_problem(problem: Problem, location: ObjectLocation, name: str = "", *, exact: bool = True) -> LocatedProblem:
    """Return a problem of an object with its line, and with the value if that tells what is wrong."""
    *_, value = None, *location.along(problem.field)
    message = problem.message
    if problem.kind in _SHOW_VALUE and isinstance(value, str) and value:
        if problem.kind is ProblemKind.QUANTITY:
            message = f"not a quantity; {propose_spelling(value)}"
        message += f" (got {value[:40] if isinstance(value, NumberLiteral) else quote(value[:40])})"
    source = location.exact_source(problem.field) if exact else location.source(problem.field)
    return LocatedProblem(source, replace(problem, field=location.field(problem.field), message=message), name)


def _unknown_fields(value: object, types: TypePath) -> Iterator[UnknownField]:
    """Yield the fields in *value* that do not exist; *types* are the types and paths on the way to it, itself last."""
    if not isinstance(value, Mapping) or not types:
        return
    type_, path = types[-1]
    field_names = FIELDS[type_]
    for name, inner in value.items():
        below = field_names.get(name)
        if below is None:
            yield types, name
        elif below:
            field_path = f"{path}.{name}" if path else name
            if not isinstance(inner, list):
                yield from _unknown_fields(inner, (*types, (below, field_path)))
                continue
            for index, item in enumerate(inner):
                yield from _unknown_fields(item, (*types, (below, f"{field_path}[{index}]")))


def _is_built_in(version: str) -> bool:
    """Return whether Kubernetes itself defines the kinds of an API; an object of a custom API may run pods."""
    group = version.rpartition("/")[0]
    if group in {"", "apps", "autoscaling", "batch", "extensions", "policy"}:
        return True
    return group.endswith(".k8s.io") and not group.endswith(".x-k8s.io")


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


def derive_uid(*names: str) -> str:
    """Return the uid of the object with these *names*, the same on every call."""
    return str(uuid.uuid5(_UID_NAMESPACE, "/".join(names)))


def _generated_name(metadata: Mapping[str, Any], location: ObjectLocation) -> object:
    """Return a name generated from ``generateName``, the same on every call; without one, the invalid name."""
    prefix = metadata.get("generateName")
    if type(prefix) is not str or not prefix:
        return metadata.get("name")
    return prefix + derive_uid(location.file, str(location.document.number), location.path)[:5]


def _name(top: Mapping[str, Any]) -> str:
    metadata = top.get("metadata")
    name = metadata.get("name") or metadata.get("generateName") if isinstance(metadata, dict) else None
    return name if isinstance(name, str) else "without a name"
