"""Traces: YAML or JSON files of pods that arrive and depart, described in ``docs/simulate-data.md``.

The first document is the header; events are in its list ``events``, or each is a document after the header. In JSON
every line is one document (JSON Lines), which is what :func:`write` produces.
"""

import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from math import isfinite
from pathlib import Path
from typing import Annotated, Any, TextIO

import msgspec

from alignup.align.errors import DocumentError, PodError, Problem, ProblemKind, TraceError
from alignup.align.quantity import propose_spelling
from alignup.align.workload import Amounts, Container, Pod, Resources, names
from alignup.align.workload.validation import accept
from alignup.atomic_files import open_input
from alignup.documents.line_numbers import find_line
from alignup.kubernetes.manifests import documents
from alignup.kubernetes.manifests.documents import NumberLiteral
from alignup.kubernetes.manifests.object_reader import Diagnostics, ObjectReader
from alignup.kubernetes.manifests.pod_decoder import amounts_to_dict, pod_to_dict, read_pod
from alignup.simulate.arrivals import (
    GANG_LABEL,
    PodArrival,
    PodDeparture,
    WorkloadEvent,
    find_invalid_event,
    sort_by_time,
)
from alignup.simulate.file_structs import (
    FileStruct,
    check_header,
    describe,
    equal_to,
    field_names,
    reject_unknown,
    show_value,
)

API_VERSION = "alignup.dev/v1"
MAX_BYTES = 256 << 20  #: a million pods and more


class TemplateDocument(FileStruct, frozen=True, kw_only=True, rename="camel"):
    """Either field."""

    pod: Annotated[dict[str, Any] | None, describe("A Pod without a name.")] = None
    requests: Annotated[dict[str, Any] | None, describe("Requests of a Guaranteed pod with one container.")] = None


class TraceDocument(FileStruct, frozen=True, kw_only=True, rename="camel"):
    """The header of a trace."""

    api_version: Annotated[str, equal_to(API_VERSION)]
    kind: Annotated[str, equal_to("Trace")]
    templates: Annotated[dict[str, TemplateDocument], describe("Pods by name.")] = msgspec.field(default_factory=dict)
    events: Annotated[tuple[dict[str, Any], ...], describe("Events, here or as one document each.")] = ()


_EVENT_FIELDS = {
    "arrive": (
        *("at", "arrive", "namespace", "uid", "template", "requests", "lifetime"),
        *("priority", "gang", "nodeSelector"),
    ),
    "pod": ("at", "pod", "lifetime", "gang", "nodeSelector"),
    "leave": ("at", "leave"),
}

_DIGITS = 6  #: times have microsecond resolution
_CONTAINER = "app"  #: the container of a pod made from requests
_NAMESPACE = "default"


def read_bytes(path: Path, *, limit: int = MAX_BYTES) -> bytes:
    """Return the content of a file of at most *limit* bytes; ``TraceError`` if it is larger or cannot be read."""
    try:
        with open_input(path) as stream:
            content = stream.read(limit + 1)
    except OSError as error:
        raise TraceError(f"cannot be read: {error.strerror}", file=str(path)) from error
    if len(content) > limit:
        raise TraceError(f"larger than {limit >> 20} MiB", file=str(path))
    return content


def read_file(path: Path, *, fix_pod_level: bool = True) -> tuple[WorkloadEvent, ...]:
    """Return the events of a trace file in the order they happen; :class:`TraceError` names the place of an error.

    *fix_pod_level* is the feature gate PodLevelResourcesFixDefaulting.
    """
    return read(read_bytes(path), file=str(path), fix_pod_level=fix_pod_level)


def read(text: str | bytes, *, file: str = "", fix_pod_level: bool = True) -> tuple[WorkloadEvent, ...]:
    """Return the events of a text of at most ``MAX_BYTES``, which error messages call *file*."""
    if len(text) > MAX_BYTES:
        raise TraceError(f"larger than {MAX_BYTES >> 20} MiB", file=file)
    reader = _TraceReader(file, fix_pod_level)
    try:
        for document_location, document in _documents(text):
            add = reader.add_event if reader.has_header else reader.add_header
            add(ObjectReader.of(document, replace(document_location, file=file)))
    except DocumentError as error:
        message = f"{error.message}; a trace is YAML, or JSON with one document per line"
        raise TraceError(message, file=file, line=error.line) from error
    return reader.sorted_events()


def write(events: Iterable[WorkloadEvent], stream: TextIO) -> None:
    """Write *events* as JSON Lines, which :func:`read` reads as the same events; equal pods share a template."""
    documents_ = _to_documents(sort_by_time(events))
    stream.writelines(json.dumps(document, ensure_ascii=False) + "\n" for document in documents_)


@dataclass(frozen=True)
class FirstProblem(Diagnostics):
    """Diagnostics of a document that raise the first problem as a :class:`TraceError`."""

    file: str = ""
    line: int = 0  #: where the document begins
    number: int = 1  #: of the document in *text*
    text: str | bytes = field(default="", repr=False)  #: empty for a document on one line

    def add(self, problem: Problem) -> None:
        line = find_line(self.text, problem.field, document=self.number) if self.text else 0
        is_quantity = problem.kind is ProblemKind.QUANTITY
        message = f"not a quantity; {propose_spelling('')}" if is_quantity else problem.message
        raise TraceError(message, file=self.file, line=line or self.line, field=problem.field)


def _documents(text: str | bytes) -> Iterator[tuple[FirstProblem, Any]]:
    """Yield the documents of a text, each with its place; JSON Lines are read line by line, which has no limit."""
    lines: Sequence[str | bytes] = text.split("\n") if isinstance(text, str) else text.split(b"\n")
    try:
        is_json_lines = isinstance(json.loads(next((line for line in lines if line.strip()), "")), dict)
    except (ValueError, RecursionError):
        is_json_lines = False
    for number, part in enumerate(lines, start=1) if is_json_lines else [(0, text)]:
        try:
            objects = documents.read(part)
        except DocumentError as error:
            raise DocumentError(error.message, line=number or error.line) from None
        for document in objects:
            line = number or document.line
            if document.repeated:
                raise DocumentError(f"duplicate key {document.repeated[0].key}", line=line)
            yield FirstProblem(line=line, number=document.number, text="" if number else text), document.value


@dataclass
class _TraceReader:
    file: str
    fix_pod_level: bool = True
    has_header: bool = False
    templates: dict[str, Pod] = field(default_factory=dict)
    events: list[WorkloadEvent] = field(default_factory=list)
    sources: dict[int, ObjectReader] = field(default_factory=dict)  #: id of an event → where it comes from
    shapes: dict[tuple[str, str], Pod] = field(default_factory=dict)  #: template and requests → the pod they make

    def sorted_events(self) -> tuple[WorkloadEvent, ...]:
        if not self.has_header:
            raise TraceError(f"not a trace: it must start with apiVersion: {API_VERSION}, kind: Trace", file=self.file)
        events = sort_by_time(self.events)
        if invalid := find_invalid_event(events):
            self.sources[id(invalid[0])].error("", invalid[1])
        return events

    def add_header(self, header: ObjectReader) -> None:
        check_header(header, TraceDocument)
        self.has_header = True
        templates = header.child("templates")
        for name in templates.fields:
            template = templates.child(name)
            reject_unknown(template, field_names(TemplateDocument))
            if len(template.fields) != 1:
                template.error("", "a template must have either requests or a pod")
            if "requests" in template.fields:
                self.templates[name] = self._accept(template, _pod_of_requests(_requests(template)))
            else:
                self.templates[name] = self._accept(template.child("pod"), name=_CONTAINER)
        for event in header.children("events"):
            self.add_event(event)

    def add_event(self, event: ObjectReader) -> None:
        """Read an arrival, with the departure at the end of its lifetime, or a departure."""
        kinds = [kind for kind in _EVENT_FIELDS if kind in event.fields]
        if len(kinds) != 1:
            event.error("", "an event must have one of arrive (a name), pod (an object) and leave (a uid)")
        reject_unknown(event, _EVENT_FIELDS[kinds[0]])
        time = _seconds(event, "at")
        if "leave" in event.fields:
            self._append(event, PodDeparture(time, event.required("leave")))
            return
        if "pod" in event.fields:
            pod = self._accept(event.child("pod"))
            pod = pod if pod.uid else replace(pod, uid=_default_uid(pod.name, pod.namespace))
        else:
            if not event.text("template") and not event.has("requests"):
                event.error("", "the arriving pod has neither a template nor requests")
            name, namespace = event.required("arrive"), event.text("namespace", _NAMESPACE)
            event.faults("arrive", name, names.subdomain_problems(name))
            event.faults("namespace", namespace, names.label_problems(namespace))
            uid = event.text("uid", _default_uid(name, namespace))
            pod = replace(self._shape(event), name=name, namespace=namespace, uid=uid)
            pod = replace(pod, priority=event.integer("priority")) if event.has("priority") else pod
        if event.has("gang"):
            event.faults("gang", event.text("gang"), names.subdomain_problems(event.text("gang")))
            pod = replace(pod, labels={**pod.labels, GANG_LABEL: event.text("gang")})
        selector_fields = event.child("nodeSelector")
        selector = {
            label: (
                selector_fields.strings(label) if isinstance(value, list | tuple) else (selector_fields.text(label),)
            )
            for label, value in selector_fields.fields.items()
        }
        self._append(event, PodArrival(time, pod, selector))
        if event.has("lifetime"):
            end = round(time + _seconds(event, "lifetime"), _DIGITS)
            if end <= time:
                event.error("lifetime", f"{show_value(event.fields['lifetime'])} is too short: must be greater than 0")
            self._append(event, PodDeparture(end, pod.uid))

    def _append(self, source: ObjectReader, event: WorkloadEvent) -> None:
        self.events.append(event)
        self.sources[id(event)] = source

    def _shape(self, event: ObjectReader) -> Pod:
        """Return the pod without its name, computed once for equal templates and requests."""
        template = event.text("template")
        key = (template, json.dumps(event.fields.get("requests"), default=str))
        if key not in self.shapes:
            if template and template not in self.templates:
                names = ", ".join(self.templates) or "none"
                event.error("template", f"no template {template}; the trace defines: {names}")
            pod = self.templates[template] if template else _pod_of_requests({})
            amounts = _requests(event)
            if amounts and pod.containers:
                first, *rest = pod.containers
                requests, limits = first.resources.requests, first.resources.limits
                resources = replace(first.resources, requests={**requests, **amounts}, limits={**limits, **amounts})
                pod = replace(pod, containers=(replace(first, resources=resources), *rest))
            self.shapes[key] = self._accept(event, pod)
        return self.shapes[key]

    def _accept(self, source: ObjectReader, pod: Pod | None = None, *, name: str = "") -> Pod:
        """Return *pod*, or the pod in *source*, called *name* if it has no name, as the API server accepts it."""
        try:
            pod = pod or read_pod(source.fields)
            return accept(pod if pod.name else replace(pod, name=name), fix_pod_level=self.fix_pod_level)
        except PodError as error:
            source.error("", str(error))
            raise  # not reached


def _requests(owner: ObjectReader) -> Amounts:
    for name, value in owner.mapping("requests").items():
        if value is None:
            owner.error(f"requests[{name}]", "Required value")
    return owner.quantities("requests")


def _pod_of_requests(amounts: Amounts) -> Pod:
    return Pod(name=_CONTAINER, containers=(Container(_CONTAINER, Resources(amounts, amounts)),))


def _default_uid(name: str, namespace: str) -> str:
    return name if namespace == _NAMESPACE else f"{namespace}/{name}"


def _seconds(event: ObjectReader, name: str) -> float:
    value = event.fields.get(name)
    if value is None:
        event.error(name, "Required value: must be a number of seconds")
    try:
        time = float(value) if isinstance(value, NumberLiteral | int | float) and not isinstance(value, bool) else -1.0
    except (ValueError, OverflowError):
        time = -1.0
    if not isfinite(time) or time < 0:
        event.error(name, f"{show_value(value)} is not a time: must be a number of seconds, 0 or more")
    return time


def _to_documents(events: tuple[WorkloadEvent, ...]) -> Iterator[dict[str, Any]]:
    """Yield the header, then one document per event; a departure becomes a lifetime where that is exact."""
    shapes: dict[str, str] = {}
    templates: dict[str, Any] = {}
    lines: list[dict[str, Any]] = []
    present: dict[str, dict[str, Any]] = {}
    for event in events:
        if isinstance(event, PodDeparture):
            arrival = present.pop(event.uid, None)
            lifetime = round(event.time - arrival["at"], _DIGITS) if arrival else 0.0
            if arrival and round(arrival["at"] + lifetime, _DIGITS) == event.time > arrival["at"]:
                arrival["lifetime"] = lifetime
            else:
                lines.append({"at": event.time, "leave": event.uid})
            continue
        pod, gang = event.pod, event.pod.labels.get(GANG_LABEL, "")
        if gang:
            pod = replace(pod, labels={name: value for name, value in pod.labels.items() if name != GANG_LABEL})
        shape = _template_document(pod)
        text = json.dumps(shape)
        if text not in shapes:
            shapes[text] = f"{pod.labels.get('app', 'pod')}-{len(shapes) + 1}"
            templates[shapes[text]] = shape
        line: dict[str, Any] = {"at": event.time, "arrive": pod.name}
        line |= {"namespace": pod.namespace} if pod.namespace != _NAMESPACE else {}
        line |= {"uid": pod.uid} if pod.uid != _default_uid(pod.name, pod.namespace) else {}
        line |= {"gang": gang} if gang else {}
        line |= (
            {"nodeSelector": {name: list(values) for name, values in event.selector.items()}} if event.selector else {}
        )
        lines.append(present.setdefault(pod.uid, {**line, "template": shapes[text]}))
    yield {"apiVersion": API_VERSION, "kind": "Trace", "templates": templates}
    yield from lines


def _template_document(pod: Pod) -> dict[str, Any]:
    """Return a template for pods like *pod*: only requests if they determine it."""
    only = pod.containers[0] if len(pod.containers) == 1 else None
    amounts = only.resources.requests if only else {}
    anonymous = replace(pod, name="", namespace="", uid="", recorded_qos=None)
    if anonymous == Pod(name="", namespace="", containers=(Container(_CONTAINER, Resources(amounts, amounts)),)):
        return {"requests": amounts_to_dict(amounts)}
    return {"pod": pod_to_dict(anonymous)}
