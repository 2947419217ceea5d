"""The admission webhook: which of the pods that are about to be created get the scheduling gate.

The API server asks only about pods that opted in, by their label or by that of their namespace (the selectors of the
webhook), so the label is checked here for opting out only. Pods that name their node are left alone: with a node name a
gate is invalid, and the pods of a DaemonSet have a node affinity for theirs. A pod is refused only if it has
annotations that the controllers write: with them it would count as released.

An error response makes the API server follow the ``failurePolicy`` of the webhook; its text is in the API server's log.
"""

from collections.abc import Callable, Collection, Mapping
from contextlib import suppress
from enum import StrEnum

import msgspec
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route

from alignup.align.errors import ParseError
from alignup.align.reason_codes import RESERVED_ANNOTATION
from alignup.align.workload.validation import MIRROR_ANNOTATION
from alignup.documents.codec import decode, encode
from alignup.documents.host_state import GROUP
from alignup.kubernetes.api.objects import ApiPod
from alignup.kubernetes.manifests.disruption import OwnerReference
from alignup.kubernetes.manifests.pod_decoder import NamedItem, ObjectPart
from alignup.placement.scheduling.options import DEFAULT_SCHEDULER
from alignup.schedule.cluster_facts import GATE
from alignup.web.api_operations import receive_body
from alignup.web.authentication import count_authenticated
from alignup.web.responses import JSON, ProblemError

LABEL = f"{GROUP}/gate"  #: of a pod or a namespace; with it, pods get the gate
OUR_ANNOTATIONS = f"{GROUP}/"  #: how annotations begin that only controllers write
OPT_IN, OPT_OUT = "enabled", "disabled"  #: its values; a pod can opt out of what its namespace has chosen
REVIEW_VERSION, REVIEW_KIND = "admission.k8s.io/v1", "AdmissionReview"
MAX_REVIEW_BYTES = 8 << 20  #: an object of the API server has at most 3 MiB
SCHEDULERS = frozenset({DEFAULT_SCHEDULER})  #: schedulers that pods are released to, unless others are configured
_SECONDS = 10.0  #: for a review to arrive


class NewPodMeta(ObjectPart, frozen=True):
    labels: dict[str, str] | None = None
    annotations: dict[str, str] | None = None
    owner_references: tuple[OwnerReference, ...] | None = None


class NewPodSpec(ObjectPart, frozen=True):
    node_name: str = ""
    scheduler_name: str = DEFAULT_SCHEDULER
    scheduling_gates: tuple[NamedItem, ...] | None = None


class NewPod(ObjectPart, frozen=True):
    """A pod that is about to be created; it may have no name and no uid yet."""

    metadata: NewPodMeta = NewPodMeta()
    spec: NewPodSpec = NewPodSpec()


class GroupVersionResource(ObjectPart, frozen=True):
    group: str = ""
    version: str = ""
    resource: str = ""


class ReviewRequest(ObjectPart, frozen=True):
    uid: str
    operation: str
    resource: GroupVersionResource
    object: NewPod | None = None  #: ``None`` for a deletion
    sub_resource: str = ""


class ReviewStatus(ObjectPart, frozen=True):
    code: int
    message: str


class ReviewResponse(ObjectPart, frozen=True):
    uid: str
    allowed: bool
    patch_type: str = ""
    patch: bytes = b""  #: JSON, which is sent in base64
    status: ReviewStatus | None = None  #: of a refusal
    warnings: tuple[str, ...] = ()  #: for the creator of the pod


class AdmissionReview(ObjectPart, frozen=True):
    api_version: str
    kind: str
    request: ReviewRequest | None = None


class AnsweredReview(msgspec.Struct, frozen=True, rename="camel"):
    response: ReviewResponse
    api_version: str = REVIEW_VERSION
    kind: str = REVIEW_KIND


class ReviewOutcome(StrEnum):
    """The result of a review, for metrics."""

    GATED = "gated"
    ALREADY_GATED = "already_gated"  #: the API server asks again after other webhooks
    OPTED_OUT = "opted_out"
    NODE_GIVEN = "node_given"  #: it has a node name, or is the mirror of a static pod
    DAEMON_SET = "daemon_set"
    OTHER_SCHEDULER = "other_scheduler"  #: one that pods are not released to
    REFUSED = "refused"  #: it has annotations that only controllers write
    NOT_A_NEW_POD = "not_a_new_pod"  #: another resource or operation, which the webhook should not ask about


def read_review(body: bytes) -> ReviewRequest:
    """Return the request of a review; ``ParseError`` if it is not an AdmissionReview of version v1."""
    review = decode(body, AdmissionReview)
    if (review.api_version, review.kind) != (REVIEW_VERSION, REVIEW_KIND):
        actual_kind = f"{review.api_version} {review.kind}"
        raise ParseError(f"expected {REVIEW_VERSION} {REVIEW_KIND}, got {actual_kind}: see admissionReviewVersions")
    if review.request is None:
        raise ParseError("request: the review has no request")
    return review.request


def answer_review(
    body: bytes,
    count: Callable[[ReviewOutcome], object] = lambda _outcome: None,
    *,
    schedulers: Collection[str] = SCHEDULERS,
) -> bytes:
    """Return the answer to a review; ``ParseError`` if it is not an AdmissionReview of version v1."""
    request = read_review(body)
    outcome, pod = review_pod(request, schedulers), request.object
    count(outcome)
    response = ReviewResponse(uid=request.uid, allowed=True)
    if outcome is ReviewOutcome.GATED and pod is not None:
        first = not pod.spec.scheduling_gates  # else the gate comes after the gates that the pod has
        path, value = "/spec/schedulingGates" + ("" if first else "/-"), {"name": GATE}
        patch = encode([{"op": "add", "path": path, "value": [value] if first else value}])
        response = ReviewResponse(uid=request.uid, allowed=True, patch_type="JSONPatch", patch=patch)
    elif outcome is ReviewOutcome.REFUSED and pod is not None:
        names = sorted(name for name in pod.metadata.annotations or () if name.startswith(OUR_ANNOTATIONS))
        message = f"only Alignup writes annotations such as {names[0]}; create the pod without them"
        response = ReviewResponse(
            uid=request.uid, allowed=False, status=ReviewStatus(403, f"{RESERVED_ANNOTATION}: {message}")
        )
    return encode(AnsweredReview(response))


def review_pod(request: ReviewRequest, schedulers: Collection[str] = SCHEDULERS) -> ReviewOutcome:
    """Decide whether the pod of a review gets the gate."""
    pod, resource = request.object, request.resource
    if pod is None or (resource.group, resource.resource, request.sub_resource) != ("", "pods", ""):
        return ReviewOutcome.NOT_A_NEW_POD
    if request.operation != "CREATE":
        return ReviewOutcome.NOT_A_NEW_POD
    return review_new_pod(pod, schedulers)


def review_new_pod(pod: NewPod | ApiPod, schedulers: Collection[str] = SCHEDULERS) -> ReviewOutcome:
    """Decide whether a pod that is about to be created, or was just created, gets the gate."""
    metadata = pod.metadata
    if any(name.startswith(OUR_ANNOTATIONS) for name in metadata.annotations or ()):
        return ReviewOutcome.REFUSED
    if (metadata.labels or {}).get(LABEL) == OPT_OUT:
        return ReviewOutcome.OPTED_OUT
    if pod.spec.node_name or MIRROR_ANNOTATION in (metadata.annotations or {}):
        return ReviewOutcome.NODE_GIVEN
    if any(owner.controller and owner.kind == "DaemonSet" for owner in metadata.owner_references or ()):
        return ReviewOutcome.DAEMON_SET
    if any(gate.name == GATE for gate in pod.spec.scheduling_gates or ()):
        return ReviewOutcome.ALREADY_GATED
    if (pod.spec.scheduler_name or DEFAULT_SCHEDULER) not in schedulers:
        return ReviewOutcome.OTHER_SCHEDULER
    return ReviewOutcome.GATED


def webhook_app(answers: Mapping[str, Callable[[bytes], bytes]]) -> Starlette:
    """Build the application; *answers* return, by path, the answer to a review, or raise ``ParseError``."""

    async def review(request: Request, answer: Callable[[bytes], bytes]) -> Response:
        try:
            body = await receive_body(request, limit=MAX_REVIEW_BYTES, seconds=_SECONDS, types=(JSON,), expected=JSON)
            response_body = answer(body)
        except ParseError as error:
            return PlainTextResponse(f"not a review: {error}\n", status_code=400)
        except ProblemError as problem:
            return problem.response()
        with suppress(ProblemError):  # too many; this review has its answer
            count_authenticated(request)  # the API server keeps its connections open
        return Response(response_body, media_type=JSON)

    def route(path: str, answer: Callable[[bytes], bytes]) -> Route:
        async def endpoint(request: Request) -> Response:
            return await review(request, answer)

        return Route(path, endpoint, methods=["POST"])

    app = Starlette(routes=[route(path, answer) for path, answer in answers.items()])
    app.router.redirect_slashes = False
    return app
