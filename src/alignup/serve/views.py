"""Build response documents from what the backend returns."""

from collections.abc import Iterator, Sequence
from typing import Any, cast

from alignup.align.decision import Decision, Outcome
from alignup.align.errors import ParseError
from alignup.align.explain import sentences
from alignup.schema.api import (
    AdmissionDocument,
    AdmissionResult,
    AdmissionStatus,
    DecisionPageDocument,
    PodDetailDocument,
    PodView,
    PodViewDocument,
    StoredDecision,
    StoredDecisionDetailDocument,
    StoredDecisionDocument,
    timestamp,
)
from alignup.schema.decisions import decision_document, from_document, placement_document, rejection_document


def pod_view_document(view: PodView) -> PodViewDocument:
    return PodViewDocument(**_pod_fields(view))


def pod_detail_document(view: PodView) -> PodDetailDocument:
    decision = view.decision
    return PodDetailDocument(
        **_pod_fields(view), decision=decision_document(decision), story=list(decision_sentences(decision))
    )


def admission_document(result: AdmissionResult, *, dry_run: bool) -> AdmissionDocument:
    return AdmissionDocument(
        outcome=_outcome(result),
        dry_run=dry_run,
        pod=None if result.pod_view is None else pod_view_document(result.pod_view),
        decision=decision_document(result.decision),
        story=list(decision_sentences(result.decision)),
    )


def stored_decision_document(stored: StoredDecision) -> StoredDecisionDocument:
    return StoredDecisionDocument(id=stored.id, time=timestamp(stored.time), decision=cast("Any", stored.document))


def stored_decision_detail(stored: StoredDecision) -> StoredDecisionDetailDocument:
    """A decision that this version cannot read has no story."""
    try:
        story = list(decision_sentences(from_document(stored.document)))
    except ParseError:
        story = []
    decision = cast("Any", stored.document)
    return StoredDecisionDetailDocument(id=stored.id, time=timestamp(stored.time), decision=decision, story=story)


def decision_page(stored: Sequence[StoredDecision], *, limit: int) -> DecisionPageDocument:
    last = min(one.id for one in stored) if len(stored) == limit else None
    return DecisionPageDocument(list(map(stored_decision_document, stored)), last)


def decision_sentences(decision: Decision) -> Iterator[str]:
    """Yield the verdict, the rules, how nodes were chosen, and what was allocated or is short."""
    yield sentences.verdict(decision)
    yield sentences.describe_rules(decision)
    for step in decision.steps:
        yield f"{_subject(step.container)}: {sentences.describe_choice(step)}"
    for placement in decision.placements:
        yield f"{_subject(placement.container)}: {sentences.describe_allocation(placement)}"
    yield from sentences.describe_rejection(decision)


def _pod_fields(view: PodView) -> dict[str, Any]:
    pod, decision = view.pod, view.decision
    return {
        "uid": pod.uid,
        "name": pod.name,
        "namespace": pod.namespace,
        "qos": pod.qos,
        "status": view.status,
        "position": view.position,
        "since": timestamp(view.since),
        "source": view.source,
        "placements": list(map(placement_document, decision.placements)),
        "rejection": None if decision.rejection is None else rejection_document(decision.rejection),
        "grants": view.grants,
        "run": view.run,
    }


def _outcome(result: AdmissionResult) -> str:
    """A pod that is admitted already, or has finished, is ``kept``."""
    decision, view = result.decision, result.pod_view
    if view is not None and view.status is AdmissionStatus.WAITING:
        return "waiting"
    if view is not None and view.status is AdmissionStatus.FINISHED:
        return "kept"
    return "kept" if decision.outcome is Outcome.ADMITTED and decision.kept else str(decision.outcome)


def _subject(container: str | None) -> str:
    return "the pod" if container is None else f"container {container}"
