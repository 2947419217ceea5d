"""The operations of the agent's HTTP API; its routes and its OpenAPI document derive from them."""

from typing import Any

from alignup.agent import api
from alignup.align.decision import Outcome
from alignup.web.api_operations import (
    MAX_INTEGER,
    Operation,
    Parameter,
    ParameterType,
    SuccessResponse,
)
from alignup.web.event_streams import EVENT_STREAM
from alignup.web.responses import SVG, TEXT


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

LIST_PODS = Operation(
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
)

ADMIT_POD = Operation(
    id="admitPod",
    method="POST",
    path="/v1/pods",
    summary="Admit a pod, or predict whether it would be admitted.",
    description="The body is a v1 Pod in JSON or YAML. With `dryRun` nothing changes, and the status is 200.",
    parameters=(
        Parameter(name="dryRun", summary="Decide, but change nothing.", type=ParameterType.BOOLEAN, default=False),
    ),
    body=api.ManifestDocument,
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
    problem_types={409: api.RejectionProblemDocument},
)

GET_POD = Operation(
    id="getPod",
    path="/v1/pods/{uid}",
    summary="Get a pod and the latest decision about it.",
    parameters=(_UID,),
    responses={200: SuccessResponse("The pod.", api.PodDetailDocument)},
    problems=_NO_POD,
)

RELEASE_POD = Operation(
    id="releasePod",
    method="DELETE",
    path="/v1/pods/{uid}",
    summary="Release the resources of a pod, or remove it from the wait queue.",
    parameters=(_UID,),
    responses={200: SuccessResponse("The pod is released.", api.ReleaseDocument)},
    problems={**_NO_POD, **_UNREADY},
)

CREATE_SIGN_IN_LINK = Operation(
    id="createSignInLink",
    method="POST",
    path="/v1/sign-in-links",
    summary="Create a link that signs a browser in to the web pages, once.",
    responses={201: SuccessResponse("The link.", api.SignInLinkDocument)},
    problems={404: "The agent serves no pages to browsers."},
)

_OUTCOMES = (*map(str, Outcome), "waiting")

LIST_DECISIONS = Operation(
    id="listDecisions",
    path="/v1/decisions",
    summary="List decisions from the history, newest first.",
    parameters=(
        Parameter(name="pod", summary="Only decisions about this pod: a uid, a name, or namespace/name."),
        Parameter(name="outcome", summary="Only decisions with this outcome.", choices=_OUTCOMES),
        _integer("before", "Only decisions with a lower ID.", maximum=MAX_INTEGER),
        _integer("limit", "The maximum number of decisions.", maximum=1000, default=100),
    ),
    responses={200: SuccessResponse("A page of decisions.", api.DecisionPageDocument)},
    problems=_NO_HISTORY,
)

GET_DECISION = Operation(
    id="getDecision",
    path="/v1/decisions/{id}",
    summary="Get a decision from the history, also in sentences.",
    parameters=(_integer("id", "The ID of the decision.", in_path=True, maximum=MAX_INTEGER),),
    responses={200: SuccessResponse("The decision.", api.StoredDecisionDetailDocument)},
    problems={404: "The history has no decision with this ID.", **_NO_HISTORY},
)

GET_MACHINE = Operation(
    id="getMachine",
    path="/v1/machine",
    summary="Get the machine: sockets, NUMA nodes, CPUs, caches, memory, distances, devices.",
    responses={200: SuccessResponse("The machine, as `alignup machine` prints it.")},
)

GET_PICTURE = Operation(
    id="getPicture",
    path="/v1/picture.svg",
    summary="Draw the machine and its allocations.",
    responses={200: SuccessResponse("An SVG image.", media_type=SVG)},
)

LISTEN_TO_EVENTS = Operation(
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
)

IS_ALIVE = Operation(
    id="isAlive",
    path="/healthz",
    summary="Check that the server responds.",
    responses={200: SuccessResponse("It does.", media_type=TEXT)},
    strict=False,
    unauthenticated=True,
)

IS_READY = Operation(
    id="isReady",
    path="/readyz",
    summary="Check that the agent can decide on pods.",
    responses={200: SuccessResponse("It can.", api.ReadyDocument)},
    problems={503: "It cannot now; `errors` lists the reasons and remedies."},
)

GET_METRICS = Operation(
    id="getMetrics",
    path="/metrics",
    summary="Get metrics in the Prometheus text format, under the kubelet's names where it has one.",
    responses={200: SuccessResponse("The metrics.", media_type=TEXT)},
)

GET_DESCRIPTION = Operation(
    id="getDescription",
    path="/openapi.json",
    summary="Get this OpenAPI document.",
    responses={200: SuccessResponse("The document.")},
)
