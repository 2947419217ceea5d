"""Traces: files of pods that come and go.

A trace is YAML or JSON. Its first document is the header; events stand in its list ``events``, or each in a document
of its own after it. In JSON every line is one document (JSON Lines), which is what :func:`write` writes::

    apiVersion: alignup.dev/v1
    kind: Trace
    templates:                                     # pods that events name, by name
      web: {requests: {cpu: 2, memory: 1Gi}}
      trainer: {pod: {apiVersion: v1, kind: Pod, …}}
    events:
    - {at: 0, arrive: web-1, template: web, lifetime: 300}
    - {at: 2.5, arrive: web-2, template: web, requests: {cpu: 4}}
    - {at: 10, arrive: db, namespace: prod, requests: {cpu: 8, memory: 32Gi}}
    - {at: 20, pod: {apiVersion: v1, kind: Pod, …}, lifetime: 60}
    - {at: 30, leave: web-2}

``at`` and ``lifetime`` are seconds. A pod comes as a whole document (``pod``), or by name (``arrive``): of a template,
of ``requests``, or of a template with some amounts of its first container changed. ``requests`` alone make a
Guaranteed pod of one container. A pod is known by its ``uid``; where it has none, by its name, with ``namespace/``
before it if that is not the default one. With a ``lifetime`` it leaves by itself, otherwise when a ``leave`` names it,
if ever. Every pod becomes what the API server makes of it.
"""

import json
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import isfinite
from pathlib import Path
from typing import Any, BinaryIO, TextIO

from alignup.align.errors import DocumentError, PodError, QuantityError, TraceError
from alignup.align.quantity import Quantity
from alignup.align.workload import Amounts, Container, Pod, Resources, names
from alignup.align.workload.validation import accept
from alignup.fleet.events import PodArrival, PodDeparture, WorkloadEvent, find_invalid_event, sort_by_time
from alignup.kube import documents
from alignup.kube.documents import NumberLiteral
from alignup.kube.pod import read_pod
from alignup.kube.pod_to_dict import amounts_to_dict, pod_to_dict

API_VERSION, KIND = "alignup.dev/v1", "Trace"
MAX_BYTES = 256 << 20  #: a million pods and more

_HEADER = ("apiVersion", "kind", "templates", "events")
_BY_NAME = ("at", "arrive", "namespace", "uid", "template", "requests", "lifetime")
_WHOLE = ("at", "pod", "lifetime")
_LEAVE = ("at", "leave")

_DIGITS = 6  #: times are told apart to the microsecond
_CONTAINER = "app"  #: the one container of a pod that is only requests
_NAMESPACE = "default"


def read_file(path: Path) -> tuple[WorkloadEvent, ...]:
    """The events of a trace file, in the order they happen; :class:`TraceError` says what is wrong where."""
    try:
        with path.open("rb") as stream:
            return read_stream(stream, file=str(path))
    except OSError as error:
        raise TraceError(f"cannot be read: {error.strerror}", file=str(path)) from error


def read_stream(stream: BinaryIO, *, file: str = "") -> tuple[WorkloadEvent, ...]:
    """The events of a trace that comes from *stream*, likewise; what is endless is refused."""
    text = stream.read(MAX_BYTES + 1)
    if len(text) > MAX_BYTES:
        raise TraceError(f"more than {MAX_BYTES >> 20} MiB are not read", file=file)
    return read(text, file=file)


def read(text: str | bytes, *, file: str = "") -> tuple[WorkloadEvent, ...]:
    """The events of a trace, in the order they happen; :class:`TraceError` says what is wrong where in *file*."""
    reader = _Reader(file)
    try:
        for line, document in _documents(text):
            reader.take(_Spot(file, line), document)
    except DocumentError as error:
        what = f"{error.what}; a trace is YAML, or JSON with one document a line"
        raise TraceError(what, file=file, line=error.line) from error
    return reader.ordered()


def write(events: Iterable[WorkloadEvent], stream: TextIO) -> None:
    """*events* as JSON Lines, which :func:`read` reads as the same events; pods that are alike share a template."""
    stream.writelines(json.dumps(document, ensure_ascii=False) + "\n" for document in _written(sort_by_time(events)))


def _documents(text: str | bytes) -> Iterator[tuple[int, Any]]:
    """The documents of a text, each with its line; JSON Lines are read line by line, however many there are."""
    lines: Sequence[str | bytes] = text.split("\n") if isinstance(text, str) else text.split(b"\n")
    if not _is_json(next((line for line in lines if line.strip()), "")):
        for found in documents.read(text):
            _refuse_repeated(found, found.line)
            yield found.line, found.value
        return
    for number, line in enumerate(lines, start=1):
        try:
            read_line = documents.read(line)
        except DocumentError as error:
            raise DocumentError(error.what, line=number) from None
        for found in read_line:
            _refuse_repeated(found, number)
            yield number, found.value


def _is_json(line: str | bytes) -> bool:
    """Whether a line is one JSON document by itself."""
    try:
        return isinstance(json.loads(line), dict)
    except (ValueError, RecursionError):
        return False


def _refuse_repeated(found: documents.Document, line: int) -> None:
    if found.repeated:
        raise DocumentError(f"{found.repeated[0].key} is there twice", line=line)


@dataclass(frozen=True, slots=True)
class _Spot:
    """A place in a trace."""

    file: str
    line: int
    field: str = ""

    def inside(self, field: str) -> "_Spot":
        """A field of what is here."""
        return replace(self, field=f"{self.field}.{field}" if self.field else field)

    def error(self, what: str) -> TraceError:
        """What is wrong here."""
        return TraceError(what, file=self.file, line=self.line, field=self.field)


@dataclass
class _Reader:
    """Takes one document after the other."""

    file: str
    headed: bool = False
    templates: dict[str, Pod] = field(default_factory=dict)
    events: list[WorkloadEvent] = field(default_factory=list)
    spots: dict[int, _Spot] = field(default_factory=dict)  #: the identity of an event → where it stands
    changed: dict[tuple[str, str], Pod] = field(default_factory=dict)  #: template and requests → what they make

    def take(self, spot: _Spot, document: object) -> None:
        """The header, then events."""
        found = _mapping(spot, document)
        if self.headed:
            self.event(spot, found)
        else:
            self.header(spot, found)

    def ordered(self) -> tuple[WorkloadEvent, ...]:
        """All events as they happen."""
        if not self.headed:
            raise TraceError(
                f"no trace is here: it begins with apiVersion: {API_VERSION}, kind: {KIND}", file=self.file
            )
        events = sort_by_time(self.events)
        if wrong := find_invalid_event(events):
            raise self.spots[id(wrong[0])].error(wrong[1])
        return events

    def header(self, spot: _Spot, header: Mapping[str, Any]) -> None:
        """Templates, and the events that stand here."""
        for name, wanted in (("apiVersion", API_VERSION), ("kind", KIND)):
            if header.get(name) != wanted:
                raise spot.inside(name).error(f"must be {wanted}, not {_shown(header.get(name))}")
        _refuse_unknown(spot, header, _HEADER)
        self.headed = True
        for name, template in _mapping(spot.inside("templates"), _or(header.get("templates"), {})).items():
            here = spot.inside(f"templates.{name}")
            self.templates[name] = _template(here, _mapping(here, template))
        events = _or(header.get("events"), [])
        if not isinstance(events, list):
            raise spot.inside("events").error("must be a list of events")
        for number, event in enumerate(events):
            here = spot.inside(f"events[{number}]")
            self.event(here, _mapping(here, event))

    def event(self, spot: _Spot, event: Mapping[str, Any]) -> None:
        """One arrival, with the departure that follows from it, or one departure."""
        kinds = [kind for kind in ("arrive", "pod", "leave") if kind in event]
        if len(kinds) != 1:
            raise spot.error("an event has one of arrive (a name), pod (a document) and leave (a name or uid)")
        _refuse_unknown(spot, event, {"arrive": _BY_NAME, "pod": _WHOLE, "leave": _LEAVE}[kinds[0]])
        at = _seconds(spot.inside("at"), event.get("at"))
        if "leave" in event:
            self._add(spot, PodDeparture(at, _text(spot.inside("leave"), event["leave"])))
            return
        pod = _whole(spot.inside("pod"), event["pod"]) if "pod" in event else self._by_name(spot, event)
        self._add(spot, PodArrival(at, pod))
        if event.get("lifetime") is not None:
            here = spot.inside("lifetime")
            end = round(at + _seconds(here, event["lifetime"]), _DIGITS)
            if end <= at:
                raise here.error(f"{_shown(event['lifetime'])} is too short: more than 0 seconds are wanted")
            self._add(spot, PodDeparture(end, pod.uid))

    def _add(self, spot: _Spot, event: WorkloadEvent) -> None:
        self.events.append(event)
        self.spots[id(event)] = spot

    def _by_name(self, spot: _Spot, event: Mapping[str, Any]) -> Pod:
        """A pod of a template, of requests, or of both."""
        if "template" not in event and "requests" not in event:
            raise spot.error("what arrives is not said: name a template, or requests")
        name = _text(spot.inside("arrive"), event["arrive"])
        namespace = _text(spot.inside("namespace"), event.get("namespace", _NAMESPACE))
        for field_, text, faults in (
            ("arrive", name, names.subdomain_faults(name)),
            ("namespace", namespace, names.label_faults(namespace)),
        ):
            if faults:
                raise spot.inside(field_).error(f"{_shown(text)} is no name: it {faults[0]}")
        uid = _text(spot.inside("uid"), event.get("uid", _uid(name, namespace)))
        return replace(self._shape(spot, event), name=name, namespace=namespace, uid=uid)

    def _shape(self, spot: _Spot, event: Mapping[str, Any]) -> Pod:
        """What the pod asks for; worked out once for all that ask for the same."""
        template = event.get("template")
        key = (str(template), json.dumps(event.get("requests"), default=str))
        if key not in self.changed:
            start = Pod(name=_CONTAINER, containers=(Container(_CONTAINER),))
            if template is not None:
                here = spot.inside("template")
                known = self.templates.get(_text(here, template))
                if known is None:
                    raise here.error(
                        f"there is no template {template}; there are: {', '.join(self.templates) or 'none'}"
                    )
                start = known
            amounts = _amounts(spot.inside("requests"), _or(event.get("requests"), {}))
            self.changed[key] = _accepted(spot, _with_amounts(start, amounts))
        return self.changed[key]


def _template(spot: _Spot, template: Mapping[str, Any]) -> Pod:
    """A pod without a name yet."""
    _refuse_unknown(spot, template, ("pod", "requests"))
    if len(template) != 1:
        raise spot.error("a template is either requests, or a pod")
    if "requests" in template:
        amounts = _amounts(spot.inside("requests"), template["requests"])
        return _accepted(spot, Pod(name=_CONTAINER, containers=(Container(_CONTAINER, Resources(amounts, amounts)),)))
    here = spot.inside("pod")
    pod = _read_pod(here, template["pod"])
    return _accepted(here, replace(pod, name=pod.name or _CONTAINER))


def _whole(spot: _Spot, document: object) -> Pod:
    """A pod as its document says, known by its name where it has no uid."""
    pod = _accepted(spot, _read_pod(spot, document))
    return pod if pod.uid else replace(pod, uid=_uid(pod.name, pod.namespace))


def _read_pod(spot: _Spot, document: object) -> Pod:
    try:
        return read_pod(_mapping(spot, document))
    except PodError as error:
        raise spot.error(str(error)) from error


def _accepted(spot: _Spot, pod: Pod) -> Pod:
    try:
        return accept(pod)
    except PodError as error:
        raise spot.error(str(error)) from error


def _uid(name: str, namespace: str) -> str:
    return name if namespace == _NAMESPACE else f"{namespace}/{name}"


def _with_amounts(pod: Pod, amounts: Amounts) -> Pod:
    """*pod* with these amounts as requests and limits of its first container."""
    if not amounts or not pod.containers:
        return pod
    first, *rest = pod.containers
    own = first.resources
    resources = replace(own, requests={**own.requests, **amounts}, limits={**own.limits, **amounts})
    return replace(pod, containers=(replace(first, resources=resources), *rest))


def _amounts(spot: _Spot, value: object) -> dict[str, Quantity]:
    found = {}
    for name, amount in _mapping(spot, value).items():
        here = spot.inside(name)
        if not isinstance(amount, str | int | float) or isinstance(amount, bool):
            raise here.error(f"{_shown(amount)} is no amount: a quantity such as 2, 500m or 1Gi is wanted")
        try:
            found[name] = Quantity.parse(str(amount))
        except QuantityError as error:
            raise here.error(f"{_shown(amount)} is no amount: {error}") from error
    return found


def _or(value: object, instead: object) -> object:
    """*instead* of nothing at all."""
    return instead if value is None else value


def _mapping(spot: _Spot, value: object) -> Mapping[str, Any]:
    if not isinstance(value, Mapping):
        raise spot.error(f"must be an object with fields, not {_shown(value)}")
    return value


def _text(spot: _Spot, value: object) -> str:
    if not isinstance(value, str) or isinstance(value, NumberLiteral) or not value:
        raise spot.error(f"must be a text, not {_shown(value)}; quote it if it is one")
    return value


def _seconds(spot: _Spot, value: object) -> float:
    """A number that is no less than 0."""
    if value is None:
        raise spot.error("is missing: seconds are wanted")
    try:
        time = float(value) if isinstance(value, NumberLiteral | int | float) and not isinstance(value, bool) else -1.0
    except (ValueError, OverflowError):
        time = -1.0
    if not isfinite(time) or time < 0:
        raise spot.error(f"{_shown(value)} is no time: seconds are wanted, 0 or more")
    return time


def _refuse_unknown(spot: _Spot, found: Mapping[str, Any], known: Collection[str]) -> None:
    for name in found:
        if name not in known:
            raise spot.inside(str(name)).error(f"is not known here; there are: {', '.join(known)}")


def _shown(value: object) -> str:
    """A value as somebody may have written it, not too long."""
    text = str(value) if isinstance(value, NumberLiteral) else json.dumps(value, default=str, ensure_ascii=False)
    return text if len(text) <= 60 else f"{text[:57]}..."


def _written(events: tuple[WorkloadEvent, ...]) -> Iterator[dict[str, Any]]:
    """The header, and one document an event; a departure is the lifetime of what arrived, where that is exact."""
    shapes: dict[str, str] = {}
    templates: dict[str, Any] = {}
    lines: list[dict[str, Any]] = []
    there: dict[str, dict[str, Any]] = {}
    for event in events:
        if isinstance(event, PodDeparture):
            arrival = there.pop(event.uid, None)
            lifetime = round(event.time - arrival["at"], _DIGITS) if arrival else 0.0
            if arrival and round(arrival["at"] + lifetime, _DIGITS) == event.time > arrival["at"]:
                arrival["lifetime"] = lifetime
            else:
                lines.append({"at": event.time, "leave": event.uid})
            continue
        pod = event.pod
        shape = _shape_document(pod)
        text = json.dumps(shape)
        if text not in shapes:
            shapes[text] = f"{pod.labels.get('app', 'pod')}-{len(shapes) + 1}"
            templates[shapes[text]] = shape
        line: dict[str, Any] = {"at": event.time, "arrive": pod.name}
        line |= {"namespace": pod.namespace} if pod.namespace != _NAMESPACE else {}
        line |= {"uid": pod.uid} if pod.uid != _uid(pod.name, pod.namespace) else {}
        lines.append(there.setdefault(pod.uid, {**line, "template": shapes[text]}))
    yield {"apiVersion": API_VERSION, "kind": KIND, "templates": templates}
    yield from lines


def _shape_document(pod: Pod) -> dict[str, Any]:
    """A template that makes pods like this one: requests, if these say it all."""
    only = pod.containers[0] if len(pod.containers) == 1 else None
    amounts = only.resources.requests if only else {}
    plain = Pod(name="", namespace="", containers=(Container(_CONTAINER, Resources(amounts, amounts)),))
    if replace(pod, name="", namespace="", uid="", recorded_qos=None) == plain:
        return {"requests": amounts_to_dict(amounts)}
    return {"pod": pod_to_dict(replace(pod, name="", namespace="", uid="", recorded_qos=None))}
