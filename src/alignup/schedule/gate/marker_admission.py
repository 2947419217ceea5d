"""The admission webhook for steering: which of the pods that are about to be created get requests for markers.

The API server asks only about pods that opted in, by their label or by that of their namespace (the selectors of the
webhook). A pod with such a request runs only on nodes with markers, and is tied to one NUMA node there. So it is added
only if one NUMA node can hold the pod on every machine with markers that it may go to. Otherwise the pod stays as it
is, and its creator gets a warning.
"""

from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterable, Iterator
from dataclasses import replace
from enum import StrEnum
from typing import Any

import msgspec

from alignup.align.errors import AlignError
from alignup.align.reason_codes import NOT_STEERED
from alignup.align.workload import Pod
from alignup.align.workload.names import MARKER
from alignup.documents.codec import decode, encode
from alignup.kubernetes.api.objects import ApiPod
from alignup.kubernetes.manifests.pod_decoder import ObjectPart
from alignup.placement.host_record import HostRecord
from alignup.placement.pod_shape import shape_key
from alignup.placement.steered import count_markers, fits_one_node, marker_nodes, with_markers
from alignup.schedule.gate.admission import (
    AnsweredReview,
    ReviewOutcome,
    ReviewResponse,
    read_review,
    review_pod,
)
from alignup.schedule.gate.host_kinds import idle_host, kind_key
from alignup.schedule.live_cluster import LiveCluster

STEER_LABEL = "topology.alignup.dev/steer"  #: of a pod or a namespace; with it, pods get requests for markers
STEER, DO_NOT_STEER = "true", "false"  #: its values; a pod can opt out of what its namespace has chosen
MAX_KNOWN = 1024  #: answers of kinds of hosts about pod shapes

NO_MARKERS = "no node that it may go to has markers of NUMA nodes"
NOTHING_TO_STEER = "no node that it may go to gives it CPUs, memory or devices of its own"
#: Pods that no scheduler of ours places.
_NOT_PLACED = frozenset({ReviewOutcome.NOT_A_NEW_POD, ReviewOutcome.NODE_GIVEN, ReviewOutcome.DAEMON_SET})


class MarkerOutcome(StrEnum):
    """The result of a review, for metrics."""

    MARKED = "marked"
    ALREADY_MARKED = "already_marked"  #: it requests a marker itself
    OPTED_OUT = "opted_out"
    NOT_GUARANTEED = "not_guaranteed"
    NOT_PLACED = "not_placed"  #: its node is given, or it belongs to a DaemonSet
    NOT_EVERYWHERE = "not_everywhere"  #: not every machine that it may go to can hold it on one NUMA node
    NOT_KNOWN = "not_known"  #: it cannot be read, or the cluster has not been read


class _Request(ObjectPart, frozen=True):
    object: ApiPod | None = None


class _Review(ObjectPart, frozen=True):
    request: _Request = _Request()


class MarkerReviews:
    """The answers of the webhook; *count* gets every result."""

    def __init__(self, live: LiveCluster, count: Callable[[str], object] = lambda _outcome: None) -> None:
        self._live = live
        self._count = count
        self._answers: OrderedDict[Hashable, bool | None] = OrderedDict()

    def answer(self, body: bytes) -> bytes:
        """Return the answer to a review; ``ParseError`` if it is not an AdmissionReview of version v1."""
        request = read_review(body)
        outcome, warning = MarkerOutcome.NOT_PLACED, ""
        if review_pod(request) not in _NOT_PLACED:
            outcome, warning = self._review(body)
        self._count(outcome)
        response = ReviewResponse(uid=request.uid, allowed=True)
        if outcome is MarkerOutcome.MARKED:
            patch = encode(list(_patch(msgspec.json.decode(body)["request"]["object"]["spec"])))
            response = ReviewResponse(uid=request.uid, allowed=True, patch_type="JSONPatch", patch=patch)
        elif warning:
            warnings = (f"{NOT_STEERED}: {STEER_LABEL}: the pod is not steered: {warning}",)
            response = ReviewResponse(uid=request.uid, allowed=True, warnings=warnings)
        return encode(AnsweredReview(response))

    def _review(self, body: bytes) -> tuple[MarkerOutcome, str]:
        """Return the result for a new pod, and a warning if it should have been marked."""
        api_pod = decode(body, _Review).request.object
        if api_pod is None or api_pod.metadata.labels.get(STEER_LABEL) == DO_NOT_STEER:
            return MarkerOutcome.OPTED_OUT, ""
        if not self._live.ready.is_set():
            return MarkerOutcome.NOT_KNOWN, "the cluster has not been read yet"
        try:
            pod = replace(self._live.read(api_pod), name="new", uid="new")
            marked_pod = with_markers(pod)
            if marked_pod is None:
                if count_markers(pod):
                    return MarkerOutcome.ALREADY_MARKED, ""
                return MarkerOutcome.NOT_GUARANTEED, "it is not Guaranteed: requests and limits must be equal"
            problem = self._problem(api_pod, pod, marked_pod)
        except AlignError as error:
            return MarkerOutcome.NOT_KNOWN, f"it cannot be read: {error}"
        return (MarkerOutcome.NOT_EVERYWHERE, problem) if problem else (MarkerOutcome.MARKED, "")

    def _problem(self, api_pod: ApiPod, pod: Pod, marked_pod: Pod) -> str:
        """Return why the pod cannot be steered everywhere; empty: it can."""
        records = list(self._records(api_pod))
        if not records:
            return NO_MARKERS
        answers: dict[Hashable, bool | None] = {}
        for record in records:
            kind = kind_key(record)
            if kind not in answers:
                answers[kind] = self._ask((kind, shape_key(pod)), record, pod, marked_pod)
                if answers[kind] is False:
                    return f"no NUMA node of node {record.name} can hold it"
        return "" if True in answers.values() else NOTHING_TO_STEER

    def _ask(self, key: Hashable, record: HostRecord, pod: Pod, marked_pod: Pod) -> bool | None:
        if key not in self._answers:
            self._answers[key] = fits_one_node(idle_host(record), pod, marked_pod)
            if len(self._answers) > MAX_KNOWN:
                self._answers.popitem(last=False)
        return self._answers[key]

    def _records(self, api_pod: ApiPod) -> Iterable[HostRecord]:
        """Yield the nodes with markers that the pod may go to."""
        for (_, name), node in self._live.nodes.objects.items():
            record = self._live.cluster.record(name)
            if record is None or not marker_nodes(record.ledger):
                continue
            if not self._live.node_filter.excludes(node, api_pod.spec):
                yield record


def _patch(spec: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Yield the operations that add a marker to every container."""
    for field in ("initContainers", "containers"):
        for number, container in enumerate(spec.get(field) or ()):
            resources = container.get("resources") or {}
            marker_amounts = {name: {**(resources.get(name) or {}), MARKER: "1"} for name in ("requests", "limits")}
            yield {"op": "add", "path": f"/spec/{field}/{number}/resources", "value": {**resources, **marker_amounts}}
