"""Build response documents from what the backend returns."""

from collections.abc import Iterator, Sequence
from typing import Any, cast

from alignup.align.decision import Decision
from alignup.align.errors import ParseError
from alignup.align.explain import sentences
from alignup.schema import api, codec
from alignup.schema.decisions import decision_document, from_document, placement_document, rejection_document
from alignup.schema.run_status import timestamp


def pod_view_document(view: api.PodView) -> api.PodViewDocument:
    pod, decision = view.pod, view.decision
    return api.PodViewDocument(
        uid=pod.uid,
        name=pod.name,
        namespace=pod.namespace,
        qos=pod.qos,
        status=view.status,
        position=view.position,
        since=timestamp(view.since),
        source=view.source,
        placements=list(map(placement_document, decision.placements)),
        rejection=None if decision.rejection is None else rejection_document(decision.rejection),
        grants=cast("Any", view.grants),
        run=view.run,
    )


def pod_detail_document(view: api.PodView) -> api.PodDetailDocument:
    decision = view.decision
    return codec.build(
        api.PodDetailDocument,
        pod_view_document(view),
        decision=decision_document(decision),
        story=list(decision_sentences(decision)),
    )


def admission_document(result: api.AdmissionResult, *, dry_run: bool) -> api.AdmissionDocument:
    """Return the result; a pod that was admitted before, or has finished, is ``kept``."""
    decision, view = result.decision, result.pod_view
    outcome = str(decision.outcome)
    if view is not None and view.status is api.AdmissionStatus.WAITING:
        outcome = "waiting"
    elif decision.kept or (view is not None and view.status is api.AdmissionStatus.FINISHED):
        outcome = "kept"
    return api.AdmissionDocument(
        outcome=outcome,
        dry_run=dry_run,
        pod=None if view is None else pod_view_document(view),
        decision=decision_document(decision),
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


def decision_page(stored: Sequence[api.StoredDecision], *, limit: int) -> api.DecisionPageDocument:
    last = min(one.id for one in stored) if len(stored) == limit else None
    decisions = [
        api.StoredDecisionDocument(id=one.id, time=timestamp(one.time), decision=cast("Any", one.document))
        for one in stored
    ]
    return api.DecisionPageDocument(decisions, last)


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
