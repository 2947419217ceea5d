"""What the API says, as plain JSON values; ``serve.openapi_schemas`` describes the same shapes."""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

from alignup.align import bits
from alignup.align.decision import Decision, Outcome
from alignup.align.errors import ParseError
from alignup.align.explain import sentences
from alignup.schema.api import (
    AdmissionResult,
    AdmissionStatus,
    ContainerRunStatus,
    PodRunStatus,
    PodView,
    RuntimeStatus,
    StoredDecision,
)
from alignup.schema.decisions import from_document, to_document


def timestamp(seconds: float) -> str:
    """A moment as RFC 3339 has it, in UTC: ``2026-11-15T07:30:00.000Z``."""
    return datetime.fromtimestamp(seconds, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def of_entry(entry: PodView) -> dict[str, Any]:
    """A pod that is known, in short."""
    decided = to_document(replace(entry.decision, steps=()))  # spelling out all that was said takes its time
    return {
        "uid": entry.pod.uid,
        "name": entry.pod.name,
        "namespace": entry.pod.namespace,
        "qos": str(entry.pod.qos),
        "status": str(entry.status),
        "position": entry.position,
        "since": timestamp(entry.since),
        "source": entry.source,
        "placements": decided["placements"],
        "rejection": decided["rejection"],
        "grants": {container: dict(own) for container, own in entry.grants.items()},
        "run": None if entry.run is None else of_run(entry.run),
    }


def of_run(run: PodRunStatus) -> dict[str, Any]:
    """How a pod is that a runtime runs."""
    return {
        "phase": run.phase,
        "reason": run.reason,
        "message": run.message,
        "ending": run.ending,
        "ips": list(run.ips),
        "containers": [_of_container(one) for one in run.containers],
        "warnings": list(run.warnings),
    }


def of_runtime(report: RuntimeStatus | None) -> dict[str, Any]:
    """The container runtime, if there is one, and what it has that nobody asked for."""
    if report is None:
        return {"runtime": None, "strays": [], "problems": []}
    return {
        "runtime": {
            "name": report.name,
            "version": report.version,
            "endpoint": report.endpoint,
            "ready": report.ready,
            "network": report.network,
            "others": report.others,
        },
        "strays": [
            {"id": one.id, "pod": one.pod, "uid": one.uid, "containers": list(one.containers), "why": one.why}
            for one in report.strays
        ],
        "problems": list(report.problems),
    }


def of_entry_in_full(entry: PodView) -> dict[str, Any]:
    """A pod that is known, with the newest decision about it."""
    return of_entry(entry) | {
        "decision": to_document(entry.decision),
        "story": list(decision_sentences(entry.decision)),
    }


def of_admission(admission: AdmissionResult, *, dry_run: bool) -> dict[str, Any]:
    """What became of a pod that was sent in, or would."""
    return {
        "outcome": outcome(admission),
        "dryRun": dry_run,
        "pod": None if admission.entry is None else of_entry(admission.entry),
        "decision": to_document(admission.decision),
        "story": list(decision_sentences(admission.decision)),
    }


def outcome(admission: AdmissionResult) -> str:
    """``admitted``, ``kept``, ``waiting``, ``refused``, or ``asking`` where a plugin would have to be asked first.

    One that has run is ``kept`` too: it is known, and is not run again.
    """
    decision, entry = admission.decision, admission.entry
    if entry is not None and entry.status is AdmissionStatus.WAITING:
        return str(AdmissionStatus.WAITING)
    if entry is not None and entry.status is AdmissionStatus.FINISHED:
        return "kept"
    if decision.outcome is Outcome.ADMITTED and decision.kept:
        return "kept"
    return str(decision.outcome)


def of_kept(kept: StoredDecision) -> dict[str, Any]:
    """A decision of the past."""
    return {"id": kept.id, "time": timestamp(kept.time), "decision": dict(kept.document)}


def of_kept_in_full(kept: StoredDecision) -> dict[str, Any]:
    """A decision of the past in sentences too; one written by another version of this program has none."""
    try:
        told = list(decision_sentences(from_document(kept.document)))
    except ParseError:
        told = []
    return of_kept(kept) | {"story": told}


def of_page(kept: Sequence[StoredDecision], *, limit: int) -> dict[str, Any]:
    """Decisions of the past; ``next`` is what to ask for ``before`` to see more, if there may be more."""
    full = len(kept) == limit
    return {"decisions": [of_kept(one) for one in kept], "next": min(one.id for one in kept) if full else None}


def decision_sentences(decision: Decision) -> Iterator[str]:
    """A decision in words: the verdict, by what rules, how nodes were chosen, what was given or did not fit."""
    yield sentences.verdict(decision)
    yield sentences.describe_rules(decision)
    for step in decision.steps:
        yield f"{_whose(step.container)}: {sentences.describe_choice(step)}"
    for placement in decision.placements:
        yield f"{_whose(placement.container)}: {sentences.describe_allocation(placement)}"
    yield from sentences.describe_rejection(decision)


def _of_container(one: ContainerRunStatus) -> dict[str, Any]:
    return {
        "name": one.name,
        "kind": one.kind,
        "state": one.state,
        "ready": one.ready,
        "restarts": one.restarts,
        "image": one.image,
        "id": one.id,
        "pid": one.pid,
        "cpus": bits.show(one.cpus),
        "nodes": bits.show(one.nodes),
        "started": _moment(one.started),
        "ended": _moment(one.ended),
        "exitCode": one.exit_code,
        "reason": one.reason,
        "message": one.message,
        "last": None if one.last is None else _of_container(one.last),
    }


def _moment(seconds: float | None) -> str | None:
    return None if seconds is None else timestamp(seconds)


def _whose(container: str | None) -> str:
    return "the pod" if container is None else f"container {container}"
