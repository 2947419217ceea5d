"""What every node answers to a pod, as a document for users."""

from datetime import UTC, datetime
from typing import Any

from alignup.align.workload import Pod
from alignup.documents.codec import to_builtins
from alignup.documents.decisions import placement_document
from alignup.kubernetes.api.objects import ApiPod
from alignup.placement.free_capacity import DEVICE
from alignup.placement.score import POINT, PlacementScore
from alignup.placement.verdict import Verdict, VerdictKind
from alignup.schedule.alignment_need import needs_alignment
from alignup.schedule.extender import FilterRecord
from alignup.schedule.live_cluster import LiveCluster

_ORDER = list(VerdictKind)


def explain_pod(live: LiveCluster, pod: ApiPod, last: FilterRecord | None, *, node: str = "") -> dict[str, Any]:
    """The verdicts of all nodes about *pod*, or that of *node*: the best first; ``PodError`` if the pod is invalid."""
    read = live.read(pod)
    found = live.feasible(read, (node,) if node else None)
    rows = sorted(found.items(), key=lambda item: _sort_key(*item))
    counts = {str(kind): sum(one.kind is kind for one in found.values()) for kind in VerdictKind}
    document: dict[str, Any] = {
        "pod": pod.metadata.full_name,
        "uid": pod.metadata.uid,
        "boundTo": pod.spec.node_name,
        "needsAlignment": needs_alignment(read),
        "counts": counts,
        "nodes": [_row(name, one, read) for name, one in rows],
    }
    if last is not None:
        document["lastFilter"] = {
            "time": datetime.fromtimestamp(last.at, UTC).isoformat(),
            "asked": last.asked,
            "offered": list(last.offered),
            "reasons": dict(last.reasons),
        }
    return document


def _sort_key(name: str, verdict: Verdict) -> tuple[int, float, str]:
    return _ORDER.index(verdict.kind), -verdict.score.total if verdict.score else 0.0, name


def _row(name: str, verdict: Verdict, pod: Pod) -> dict[str, Any]:
    row: dict[str, Any] = {"node": name, "verdict": str(verdict.kind), "approximate": verdict.approximate}
    if not verdict.admits:
        return {**row, "reason": verdict.reason, "detail": verdict.detail}
    row["placements"] = [to_builtins(placement_document(one)) for one in verdict.placements]
    if verdict.score is not None and needs_alignment(pod):
        row["score"] = _score(verdict.score)
    return row


def _score(score: PlacementScore) -> dict[str, Any]:
    points = score.points
    return {
        "total": score.total,
        "points": {
            "preferred": points.preferred / POINT,
            "numaNodes": points.numa_nodes / POINT,
            "distance": points.distance / POINT,
            "stranded": points.stranded / POINT,
            "devicesBeside": points.devices_beside / POINT,
            "cpusBeside": points.cpus_beside / POINT,
        },
        "preferred": score.preferred,
        "numaNodes": score.nodes,
        "distance": score.distance,
        "stranded": score.stranded / DEVICE,
        "devicesBeside": score.devices_beside,
        "cpusBeside": score.cpus_beside,
        "room": {
            "largest": dict(score.free_capacity.largest),
            "strandedCpus": score.free_capacity.stranded_cpus,
            "strandedDevices": {name: size / DEVICE for name, size in score.free_capacity.stranded_devices.items()},
        },
    }
