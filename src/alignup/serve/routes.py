"""What can be asked of the API: one table, from which both its routes and its OpenAPI document are made."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from types import MappingProxyType
from typing import Any

from alignup.align.decision import Outcome
from alignup.serve.responses import JSON, SVG, TEXT
from alignup.serve.server_sent_events import MEDIA_TYPE as EVENTS

_MOST = (1 << 63) - 1  #: the largest number a store of decisions can hold
_LONGEST = 1024  #: characters of a text in a query
_LONGEST_GRACE = (1 << 31) - 1  #: seconds


class ParameterType(StrEnum):
    """What a parameter is, in the words of JSON Schema."""

    INTEGER = "integer"
    STRING = "string"
    BOOLEAN = "boolean"


@dataclass(frozen=True, slots=True, kw_only=True)
class Parameter:
    """One parameter, in the path or after the question mark."""

    name: str
    says: str
    kind: ParameterType = ParameterType.STRING
    in_path: bool = False
    choices: tuple[str, ...] = ()
    least: int = 1  #: of a number; of a text, how many characters
    most: int = _LONGEST
    default: int | bool | None = None

    def schema(self) -> dict[str, Any]:
        """What values are taken."""
        found: dict[str, Any] = {"type": str(self.kind)}
        if self.choices:
            found["enum"] = list(self.choices)
        elif self.kind is ParameterType.INTEGER:
            found |= {"minimum": self.least, "maximum": self.most}
        elif self.kind is ParameterType.STRING:
            found |= {"minLength": self.least, "maxLength": self.most}
        return found if self.default is None else found | {"default": self.default}

    def read(self, text: str) -> int | bool | str:
        """The value *text* stands for; a ``ValueError`` says what would do instead."""
        if self.kind is ParameterType.BOOLEAN:
            if text not in {"true", "false"}:
                raise ValueError("true or false")
            return text == "true"
        if self.kind is ParameterType.INTEGER:
            digits = text.isascii() and text.isdigit() and len(text) <= len(str(self.most))
            if not digits or not self.least <= int(text) <= self.most:
                raise ValueError(f"a whole number from {self.least} to {self.most}")
            return int(text)
        if self.choices and text not in self.choices:
            raise ValueError(" or ".join(self.choices))
        if not self.choices and not self.least <= len(text) <= self.most:
            raise ValueError(f"a text of {self.least} to {self.most} characters")
        return text


@dataclass(frozen=True, slots=True, kw_only=True)
class SuccessResponse:
    """One way an operation goes well."""

    says: str
    schema: str | None = None  #: the name of a schema; ``None``: text
    media_type: str = JSON


@dataclass(frozen=True, slots=True, kw_only=True)
class Operation:
    """One thing to ask for."""

    id: str
    method: str
    path: str
    says: str
    more: str = ""
    parameters: tuple[Parameter, ...] = ()
    takes_pod: bool = False  #: whether a manifest comes with it
    answers: Mapping[int, SuccessResponse]
    problems: Mapping[int, str] = field(default_factory=dict)  #: status → what it says
    strict: bool = True  #: whether parameters nobody knows are refused
    open: bool = False  #: whether it can be asked for without the token

    @property
    def query(self) -> tuple[Parameter, ...]:
        """The parameters after the question mark."""
        return tuple(one for one in self.parameters if not one.in_path)


_UID = Parameter(name="uid", says="The pod's uid.", in_path=True)
_NO_POD = {404: "No pod of that uid is known."}
_UNREADY = {
    429: "More is waiting than may; the answer says after how many seconds to ask again.",
    503: "Nothing can be decided now, and why; or it cannot be written down.",
    504: "It took too long; it goes on, and what came of it shows under the pod's uid.",
}
_NO_STORE = {503: "The decisions of the past cannot be read."}

OPERATIONS = (
    Operation(
        id="listPods",
        method="GET",
        path="/v1/pods",
        says="Every pod that is known: those that run here first, in the order they came, then those that wait.",
        answers={200: SuccessResponse(says="The pods.", schema="PodList")},
    ),
    Operation(
        id="admitPod",
        method="POST",
        path="/v1/pods",
        says="Send a pod in, or ask what would become of it.",
        more="The manifest is a v1 Pod in JSON or YAML. With `dryRun` nothing changes, and the answer is always 200.",
        parameters=(
            Parameter(name="dryRun", says="Only decide; change nothing.", kind=ParameterType.BOOLEAN, default=False),
        ),
        takes_pod=True,
        answers={
            200: SuccessResponse(
                says="It was there already and keeps what it has; or this was a dry run.", schema="Admission"
            ),
            201: SuccessResponse(says="It is admitted, and written down.", schema="Admission"),
            202: SuccessResponse(says="It does not fit now, and waits.", schema="Admission"),
        },
        problems={
            408: "The manifest did not come in time.",
            409: "The pod is refused: why, in the kubelet's words and in ours, and the decision in full.",
            413: "The manifest is larger than allowed.",
            415: "The manifest is neither JSON nor YAML.",
            422: "The document can be read, but is no pod that could run; every field that is wrong is named.",
            **_UNREADY,
        },
    ),
    Operation(
        id="getPod",
        method="GET",
        path="/v1/pods/{uid}",
        says="One pod, and the newest decision about it.",
        parameters=(_UID,),
        answers={200: SuccessResponse(says="The pod.", schema="PodInFull")},
        problems=_NO_POD,
    ),
    Operation(
        id="releasePod",
        method="DELETE",
        path="/v1/pods/{uid}",
        says="The pod is gone, and gives back all it has; one that waits no longer does.",
        more=(
            "Where a runtime runs it, its containers are told to stop first, and are killed after `grace` seconds, or "
            "as many as the pod says. It has what it has until they are gone: ask for the pod until it is not found."
        ),
        parameters=(
            _UID,
            Parameter(
                name="grace",
                says="Seconds its containers have to stop.",
                kind=ParameterType.INTEGER,
                least=0,
                most=_LONGEST_GRACE,
            ),
        ),
        answers={
            200: SuccessResponse(says="It is gone. What it was.", schema="Released"),
            202: SuccessResponse(says="It ends, and is gone when its containers are. What it is.", schema="Released"),
        },
        problems={**_NO_POD, **_UNREADY},
    ),
    Operation(
        id="getLogs",
        method="GET",
        path="/v1/pods/{uid}/logs",
        says="What a container printed, as it did.",
        more="The text is sent as it is read. With `follow` it goes on until the container has ended.",
        parameters=(
            _UID,
            Parameter(name="container", says="Whose; the only one, or the first that is no init container."),
            Parameter(
                name="previous",
                says="Of the time before it was started again.",
                kind=ParameterType.BOOLEAN,
                default=False,
            ),
            Parameter(
                name="tail", says="Only the last so many lines.", kind=ParameterType.INTEGER, least=0, most=_MOST
            ),
            Parameter(name="follow", says="And all that comes.", kind=ParameterType.BOOLEAN, default=False),
            Parameter(name="timestamps", says="When, before each line.", kind=ParameterType.BOOLEAN, default=False),
        ),
        answers={200: SuccessResponse(says="The text, until it ends or one side ends it.", media_type=TEXT)},
        problems={
            404: "There is no such pod, container or log; `detail` says which.",
            429: "As many read logs as may.",
            503: "Logs cannot be read now, and why.",
        },
    ),
    Operation(
        id="getRuntime",
        method="GET",
        path="/v1/runtime",
        says="The container runtime that runs the pods, if one does, and sandboxes that belong to none of them.",
        answers={200: SuccessResponse(says="The runtime.", schema="Runtime")},
    ),
    Operation(
        id="listDecisions",
        method="GET",
        path="/v1/decisions",
        says="Decisions of the past, the newest first.",
        parameters=(
            Parameter(name="pod", says="Only about this pod: its uid, its name, or namespace/name."),
            Parameter(name="outcome", says="Only those that ended so.", choices=tuple(map(str, Outcome))),
            Parameter(name="before", says="Only those with a lower id.", kind=ParameterType.INTEGER, most=_MOST),
            Parameter(name="limit", says="At most so many.", kind=ParameterType.INTEGER, most=1000, default=100),
        ),
        answers={200: SuccessResponse(says="A page of them.", schema="DecisionPage")},
        problems=_NO_STORE,
    ),
    Operation(
        id="getDecision",
        method="GET",
        path="/v1/decisions/{id}",
        says="One decision of the past, in full and in sentences.",
        parameters=(Parameter(name="id", says="Its id.", kind=ParameterType.INTEGER, in_path=True, most=_MOST),),
        answers={200: SuccessResponse(says="The decision.", schema="KeptInFull")},
        problems={404: "No decision of that id is kept.", **_NO_STORE},
    ),
    Operation(
        id="getMachine",
        method="GET",
        path="/v1/machine",
        says="The machine: sockets, NUMA nodes, CPUs, caches, memory, distances, devices.",
        answers={200: SuccessResponse(says="The machine.", schema="Machine")},
    ),
    Operation(
        id="getPicture",
        method="GET",
        path="/v1/picture.svg",
        says="The machine as a picture, with who holds what.",
        answers={200: SuccessResponse(says="The picture.", media_type=SVG)},
    ),
    Operation(
        id="listenToEvents",
        method="GET",
        path="/v1/events",
        says="What happens from now on, as server-sent events.",
        more=(
            "Every event has an id that rises by one, a name (admitted, refused, waiting, released, …; of containers "
            "started, ended, …) and an object: `{id, time, kind, detail}`. There may be more kinds. "
            "Who reads too slowly is told by an event `missed` how many were left out. "
            "A comment every few seconds says that the server is still there. Events are not kept, so "
            "`Last-Event-ID` is not heeded: after a break, ask for the pods anew."
        ),
        answers={200: SuccessResponse(says="Events, until one side ends it.", media_type=EVENTS)},
        problems={429: "As many are listening as may."},
    ),
    Operation(
        id="isAlive",
        method="GET",
        path="/healthz",
        says="Whether the server answers at all.",
        answers={200: SuccessResponse(says="It does.", media_type=TEXT)},
        strict=False,
        open=True,
    ),
    Operation(
        id="isReady",
        method="GET",
        path="/readyz",
        says="Whether pods can be decided on.",
        answers={200: SuccessResponse(says="They can.", schema="Ready")},
        problems={503: "They cannot now; `errors` says why, and what to do."},
    ),
    Operation(
        id="getMetrics",
        method="GET",
        path="/metrics",
        says="Metrics in the text format of Prometheus: the kubelet's, under its names, and more.",
        answers={200: SuccessResponse(says="The metrics.", media_type=TEXT)},
    ),
    Operation(
        id="getDescription",
        method="GET",
        path="/openapi.json",
        says="This description.",
        answers={200: SuccessResponse(says="The description.", schema="Description")},
    ),
)


def operations_by_path() -> Mapping[str, Mapping[str, Operation]]:
    """Path → method → operation."""
    found: dict[str, dict[str, Operation]] = {}
    for one in OPERATIONS:
        found.setdefault(one.path, {})[one.method] = one
    return MappingProxyType(found)
