"""The operations of the API; its routes and its OpenAPI 3.1 document are generated from this table."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from functools import cached_property
from typing import Any

from alignup.align.decision import Outcome
from alignup.documents import api, codec
from alignup.web.responses import JSON, MANIFEST_TYPES, PROBLEM, SVG, TEXT
from alignup.web.streaming import EVENT_STREAM

_MAX_INTEGER = (1 << 63) - 1  #: the largest integer in SQLite
_MAX_LENGTH = 1024  #: characters of a text parameter
_TOKEN = "token"  # noqa: S105 - the name of the security scheme
_BAD_REQUEST = "A parameter is unknown, repeated or invalid, or the document cannot be parsed."
_UNAUTHORIZED = "The token is missing or wrong."


class ParameterType(StrEnum):
    """Named as in JSON Schema."""

    INTEGER = "integer"
    STRING = "string"
    BOOLEAN = "boolean"


@dataclass(frozen=True, slots=True, kw_only=True)
class Parameter:
    name: str
    summary: str
    type: ParameterType = ParameterType.STRING
    in_path: bool = False
    choices: tuple[str, ...] = ()
    minimum: int = 1  #: of an integer, or of the length of a text
    maximum: int = _MAX_LENGTH
    default: int | bool | None = None

    def schema(self) -> dict[str, Any]:
        found: dict[str, Any] = {"type": str(self.type)}
        if self.choices:
            found["enum"] = list(self.choices)
        elif self.type is ParameterType.INTEGER:
            found |= {"minimum": self.minimum, "maximum": self.maximum}
        elif self.type is ParameterType.STRING:
            found |= {"minLength": self.minimum, "maxLength": self.maximum}
        return found if self.default is None else found | {"default": self.default}

    def parse(self, text: str) -> int | bool | str:
        """Return the value of *text*; the message of a ``ValueError`` is the accepted form."""
        if self.type is ParameterType.BOOLEAN:
            if text not in {"true", "false"}:
                raise ValueError("true or false")
            return text == "true"
        if self.type is ParameterType.INTEGER:
            digits = text.isascii() and text.isdigit() and len(text) <= len(str(self.maximum))
            if not digits or not self.minimum <= int(text) <= self.maximum:
                raise ValueError(f"an integer from {self.minimum} to {self.maximum}")
            return int(text)
        if self.choices and text not in self.choices:
            raise ValueError(" or ".join(self.choices))
        if not self.choices and not self.minimum <= len(text) <= self.maximum:
            raise ValueError(f"a text of {self.minimum} to {self.maximum} characters")
        return text


@dataclass(frozen=True, slots=True)
class SuccessResponse:
    summary: str
    document: type | None = None  #: ``None``: text, or JSON described elsewhere
    media_type: str = JSON


@dataclass(frozen=True, kw_only=True)
class Operation:
    id: str
    method: str = "GET"
    path: str
    summary: str
    description: str = ""
    parameters: tuple[Parameter, ...] = ()
    takes_pod: bool = False  #: whether the request body is a manifest
    responses: Mapping[int, SuccessResponse]
    problems: Mapping[int, str] = field(default_factory=dict)  #: status → description
    strict: bool = True  #: whether unknown parameters are errors
    unauthenticated: bool = False  #: whether it needs no token

    @cached_property
    def defaults(self) -> Mapping[str, Any]:
        """The values of parameters that are not given."""
        return {one.name: one.default for one in self.parameters if one.default is not None}


def _flag(name: str, summary: str) -> Parameter:
    return Parameter(name=name, summary=summary, type=ParameterType.BOOLEAN, default=False)


def _integer(name: str, summary: str, **limits: Any) -> Parameter:  # noqa: ANN401 - fields of the parameter
    return Parameter(name=name, summary=summary, type=ParameterType.INTEGER, **limits)


_UID = Parameter(name="uid", summary="The uid of the pod.", in_path=True)
_NO_POD = {404: "No pod has this uid."}
_UNREADY = {
    429: "Too many requests or pods are waiting; see Retry-After.",
    503: "The agent cannot decide now, or cannot write its state; the detail gives the reason.",
    507: "The ledger is full. Release pods first.",
    504: "The request timed out. It continues in the background; get the pod to see the result.",
}
_NO_HISTORY = {503: "The history cannot be read."}

OPERATIONS = (
    Operation(
        id="listPods",
        path="/v1/pods",
        summary="List all pods: admitted pods in admission order, then waiting pods.",
        description=(
            "Long lists have pages, as in the Kubernetes API: pass `metadata.continue` of a page as `continue` to get "
            "the next one. All pages show the pods at the time of the first one. A page may have fewer pods than "
            "`limit`."
        ),
        parameters=(
            _integer("limit", "The maximum number of pods.", maximum=5000, default=500),
            Parameter(name="continue", summary="The token of the next page."),
        ),
        responses={200: SuccessResponse("A page of pods.", api.PodListDocument)},
        problems={410: "The token has expired; list the pods again without it."},
    ),
    Operation(
        id="admitPod",
        method="POST",
        path="/v1/pods",
        summary="Admit a pod, or predict whether it would be admitted.",
        description="The body is a v1 Pod in JSON or YAML. With `dryRun` nothing changes, and the status is 200.",
        parameters=(_flag("dryRun", "Decide, but change nothing."),),
        takes_pod=True,
        responses={
            200: SuccessResponse("The pod was admitted before, or this is a dry run.", api.AdmissionDocument),
            201: SuccessResponse("The pod is admitted, durably.", api.AdmissionDocument),
            202: SuccessResponse("The pod does not fit now, and is waiting.", api.AdmissionDocument),
        },
        problems={
            408: "The manifest did not arrive in time.",
            409: "The pod is rejected; the problem has the kubelet's reason and message, and the whole decision.",
            413: "The manifest is too large.",
            415: "The manifest is neither JSON nor YAML.",
            422: "The document is not a valid pod; `errors` lists every invalid field.",
            **_UNREADY,
        },
    ),
    Operation(
        id="getPod",
        path="/v1/pods/{uid}",
        summary="Get a pod and the latest decision about it.",
        parameters=(_UID,),
        responses={200: SuccessResponse("The pod.", api.PodDetailDocument)},
        problems=_NO_POD,
    ),
    Operation(
        id="releasePod",
        method="DELETE",
        path="/v1/pods/{uid}",
        summary="Release the resources of a pod, or remove it from the wait queue.",
        parameters=(_UID,),
        responses={200: SuccessResponse("The pod is released.", api.ReleaseDocument)},
        problems={**_NO_POD, **_UNREADY},
    ),
    Operation(
        id="createSignInLink",
        method="POST",
        path="/v1/sign-in-links",
        summary="Create a link that signs a browser in to the web pages, once.",
        responses={201: SuccessResponse("The link.", api.SignInLinkDocument)},
        problems={404: "The agent serves no pages to browsers."},
    ),
    Operation(
        id="listDecisions",
        path="/v1/decisions",
        summary="List decisions from the history, newest first.",
        parameters=(
            Parameter(name="pod", summary="Only decisions about this pod: a uid, a name, or namespace/name."),
            Parameter(
                name="outcome", summary="Only decisions with this outcome.", choices=tuple(str(one) for one in Outcome)
            ),
            _integer("before", "Only decisions with a lower ID.", maximum=_MAX_INTEGER),
            _integer("limit", "The maximum number of decisions.", maximum=1000, default=100),
        ),
        responses={200: SuccessResponse("A page of decisions.", api.DecisionPageDocument)},
        problems=_NO_HISTORY,
    ),
    Operation(
        id="getDecision",
        path="/v1/decisions/{id}",
        summary="Get a decision from the history, also in sentences.",
        parameters=(_integer("id", "The ID of the decision.", in_path=True, maximum=_MAX_INTEGER),),
        responses={200: SuccessResponse("The decision.", api.StoredDecisionDetailDocument)},
        problems={404: "The history has no decision with this ID.", **_NO_HISTORY},
    ),
    Operation(
        id="getMachine",
        path="/v1/machine",
        summary="Get the machine: sockets, NUMA nodes, CPUs, caches, memory, distances, devices.",
        responses={200: SuccessResponse("The machine, as `alignup machine` prints it.")},
    ),
    Operation(
        id="getPicture",
        path="/v1/picture.svg",
        summary="Draw the machine and its allocations.",
        responses={200: SuccessResponse("An SVG image.", media_type=SVG)},
    ),
    Operation(
        id="listenToEvents",
        path="/v1/events",
        summary="Stream events from now on, as server-sent events.",
        description=(
            "Each event has an ID that increases by one, a name (admitted, rejected, waiting, released, …) and an "
            "object `{id, time, kind, detail}`. More kinds may be added. "
            "A client that reads too slowly gets an event `missed` with the number of dropped events. "
            "A comment every few seconds keeps the connection alive. Events are not stored and `Last-Event-ID` is "
            "ignored: list the pods again after a reconnect."
        ),
        responses={200: SuccessResponse("The events.", media_type=EVENT_STREAM)},
        problems={429: "Too many event streams."},
    ),
    Operation(
        id="isAlive",
        path="/healthz",
        summary="Check that the server responds.",
        responses={200: SuccessResponse("It does.", media_type=TEXT)},
        strict=False,
        unauthenticated=True,
    ),
    Operation(
        id="isReady",
        path="/readyz",
        summary="Check that the agent can decide on pods.",
        responses={200: SuccessResponse("It can.", api.ReadyDocument)},
        problems={503: "It cannot now; `errors` lists the reasons and remedies."},
    ),
    Operation(
        id="getMetrics",
        path="/metrics",
        summary="Get metrics in the Prometheus text format, under the kubelet's names where it has one.",
        responses={200: SuccessResponse("The metrics.", media_type=TEXT)},
    ),
    Operation(
        id="getDescription",
        path="/openapi.json",
        summary="Get this OpenAPI document.",
        responses={200: SuccessResponse("The document.")},
    ),
)


def openapi_document(*, version: str, with_token: bool) -> dict[str, Any]:
    """Describe the API; *with_token*: as served on an address that requires a token."""
    paths: dict[str, dict[str, Any]] = {}
    for one in OPERATIONS:
        paths.setdefault(one.path, {})[one.method.lower()] = _operation(one, with_token=with_token)
    types = {one.document for operation in OPERATIONS for one in operation.responses.values() if one.document}
    types |= {api.ManifestDocument, api.ProblemDocument, api.RejectionProblemDocument}
    components: dict[str, Any] = {"schemas": codec.json_schemas(sorted(types, key=lambda one: one.__name__))}
    if with_token:
        components["securitySchemes"] = {_TOKEN: {"type": "http", "scheme": "bearer"}}
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "alignup",
            "version": version,
            "description": "Admit pods to the NUMA nodes, CPUs, memory and devices of one node, and explain why.",
        },
        "paths": paths,
        "components": components,
    }


def _operation(one: Operation, *, with_token: bool) -> dict[str, Any]:
    problems = dict(one.problems) | ({400: _BAD_REQUEST} if one.strict else {})
    secured = with_token and not one.unauthenticated
    if secured:
        problems[401] = _UNAUTHORIZED
    responses = {}
    for status, response in one.responses.items():
        schema = {"type": "object" if response.media_type == JSON else "string"}
        if response.document is not None:
            schema = _ref(response.document)
        responses[status] = {"description": response.summary, "content": {response.media_type: {"schema": schema}}}
    for status, description in problems.items():
        schema = _ref(api.RejectionProblemDocument if status == 409 else api.ProblemDocument)
        responses[status] = {"description": description, "content": {PROBLEM: {"schema": schema}}}
    found: dict[str, Any] = {
        "operationId": one.id,
        "summary": one.summary,
        "parameters": [
            {
                "name": parameter.name,
                "in": "path" if parameter.in_path else "query",
                "description": parameter.summary,
                "required": parameter.in_path,
                "schema": parameter.schema(),
            }
            for parameter in one.parameters
        ],
        "responses": {str(status): responses[status] for status in sorted(responses)},
        "security": [{_TOKEN: []}] if secured else [],
    }
    if one.description:
        found["description"] = one.description
    if one.takes_pod:
        manifest = {"schema": _ref(api.ManifestDocument)}
        found["requestBody"] = {"required": True, "content": dict.fromkeys(MANIFEST_TYPES, manifest)}
    return found


def _ref(document: type) -> dict[str, str]:
    return {"$ref": f"#/components/schemas/{document.__name__.removesuffix('Document')}"}
