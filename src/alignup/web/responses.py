"""HTTP responses: documents of what the backend returns, and problems as defined in RFC 9457."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from http import HTTPStatus
from typing import Any, cast

from starlette.responses import Response

from alignup.align.decision import Decision
from alignup.align.errors import FileError, ParseError, PodError, Problem, WorkLimitError
from alignup.align.explain import sentences
from alignup.documents import api, codec
from alignup.documents.api import BusyError, FieldProblem, LedgerFullError, NotReadyError, ProblemDocument
from alignup.documents.codec import timestamp
from alignup.documents.decisions import (
    DecisionDocument,
    decision_document,
    from_document,
    placement_document,
    recent_documents,
    rejection_document,
)

JSON = "application/json"
YAML = "application/yaml"
PROBLEM = "application/problem+json"
SVG = "image/svg+xml"
TEXT = "text/plain"
MANIFEST_TYPES = (JSON, YAML, "application/x-yaml", "text/yaml", "text/x-yaml")

RETRY_SOON, RETRY_LATER = {"Retry-After": "1"}, {"Retry-After": "5"}
HEADERS = {"Cache-Control": "no-store", "X-Content-Type-Options": "nosniff"}


class ProblemError(Exception):
    """A request that fails; ``document`` replaces the standard problem document."""

    def __init__(
        self,
        status: int,
        detail: str,
        *,
        errors: Iterable[Problem] = (),
        headers: Mapping[str, str] | None = None,
        document: ProblemDocument | None = None,
    ) -> None:
        super().__init__(detail)
        self.status = status
        self.headers = headers
        self.document = document or ProblemDocument(
            title=HTTPStatus(status).phrase,
            status=status,
            detail=detail,
            errors=[FieldProblem(one.field, one.what) for one in errors],
        )

    def response(self) -> Response:
        return json_response(self.document, status=self.status, media_type=PROBLEM, headers=self.headers)


#: Errors of the backend, and of reading a pod, that have a problem response.
BackendError = (PodError, WorkLimitError, BusyError, NotReadyError, FileError)


def backend_problem(error: Exception) -> ProblemError:
    match error:
        case PodError():
            return ProblemError(422, f"Invalid pod: {error}", errors=error.problems)
        case WorkLimitError():
            errors = [Problem(source, "makes the search too large") for source in error.sources]
            return ProblemError(422, str(error), errors=errors)
        case LedgerFullError():
            return ProblemError(507, str(error))
        case BusyError():
            return ProblemError(429, str(error), headers=RETRY_SOON)
        case _:
            return ProblemError(503, str(error), headers=RETRY_LATER)


def json_response(
    document: object, *, status: int = 200, media_type: str = JSON, headers: Mapping[str, str] | None = None
) -> Response:
    content = codec.encode(document) + b"\n"
    return Response(content, status_code=status, media_type=media_type, headers={**HEADERS, **(headers or {})})


def list_response(document: object, items: Sequence[bytes]) -> Response:
    """Return *document*, whose first field is an empty list, with the encoded *items* in that list."""
    content = codec.encode(document).replace(b"[]", b"[%b]" % b",".join(items), 1) + b"\n"
    return Response(content, media_type=JSON, headers=HEADERS)


def encode_pod_view(view: api.PodView) -> bytes:
    return codec.encode(pod_view_document(view))


def pod_view_document(view: api.PodView, *, document: DecisionDocument | None = None) -> api.PodViewDocument:
    """Return the view of a pod; *document*: that of its decision, if there is one already."""
    pod, decision = view.pod, view.decision
    if document is None:
        placements = list(map(placement_document, decision.placements))
        rejection = None if decision.rejection is None else rejection_document(decision.rejection)
    else:
        placements, rejection = document.placements, document.rejection
    return api.PodViewDocument(
        uid=pod.uid,
        name=pod.name,
        namespace=pod.namespace,
        qos=pod.qos,
        status=view.status,
        position=view.position,
        since=timestamp(view.since),
        source=view.source,
        placements=placements,
        rejection=rejection,
        grants=cast("Any", view.grants),
    )


def pod_detail_document(view: api.PodView) -> api.PodDetailDocument:
    decision = view.decision
    document = decision_document(decision)
    return codec.build(
        api.PodDetailDocument,
        pod_view_document(view, document=document),
        decision=document,
        story=list(decision_sentences(decision)),
    )


def admission_document(result: api.AdmissionResult, *, dry_run: bool) -> api.AdmissionDocument:
    """Return the result; a pod that was admitted before is ``kept``."""
    decision, view = result.decision, result.pod_view
    outcome = str(decision.outcome)
    if view is not None and view.status is api.AdmissionStatus.WAITING:
        outcome = "waiting"
    elif decision.kept:
        outcome = "kept"
    document = recent_documents.document(decision)
    # The view of a pod that was decided on now has this decision, without its ledgers.
    shared = document if view is not None and view.decision.placements is decision.placements else None
    return api.AdmissionDocument(
        outcome=outcome,
        dry_run=dry_run,
        pod=None if view is None else pod_view_document(view, document=shared),
        decision=document,
        story=list(decision_sentences(decision)),
    )


def stored_decision_detail(stored: api.StoredDecision) -> api.StoredDecisionDetailDocument:
    """A decision that this version cannot read has no story."""
    try:
        story = list(decision_sentences(from_document(stored.document)))
    except ParseError:
        story = []
    decision = cast("Any", stored.document)
    return api.StoredDecisionDetailDocument(id=stored.id, time=timestamp(stored.time), decision=decision, story=story)


def encode_stored_decision(stored: api.StoredDecision) -> bytes:
    decision = cast("Any", stored.document)
    return codec.encode(api.StoredDecisionDocument(id=stored.id, time=timestamp(stored.time), decision=decision))


def decision_sentences(decision: Decision) -> Iterator[str]:
    """Yield the verdict, the rules, how nodes were chosen, and what was allocated or is short."""
    yield sentences.verdict(decision)
    yield sentences.describe_rules(decision)
    for step in decision.steps:
        subject = "the pod" if step.container is None else f"container {step.container}"
        yield f"{subject}: {sentences.describe_choice(step)}"
    for placement in decision.placements:
        yield f"container {placement.container}: {sentences.describe_allocation(placement)}"
    yield from sentences.describe_rejection(decision)
