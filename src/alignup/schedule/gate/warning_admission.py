"""The admission webhook that warns: what is wrong with the pods of an object that is created or changed.

It never denies anything. It decides on nodes as they would be without pods: a warning is about what can never run, not
about what must wait. Answers are kept by kind of node and shape of pod. The change that would admit a rejected pod
takes longer to find, so it is searched in a thread, for the next object with such a pod.
"""

import asyncio
import time
from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterator
from contextlib import suppress
from dataclasses import replace
from functools import partial

import msgspec

from alignup.align.errors import AlignError
from alignup.align.reason_codes import FRACTIONAL_CPUS, NOT_SCHEDULABLE, SMT_ALIGNMENT
from alignup.align.workload import Pod, validation
from alignup.documents.codec import decode, encode
from alignup.kubernetes.api.objects import ApiNode
from alignup.kubernetes.manifests.pod_decoder import ObjectPart
from alignup.kubernetes.manifests.workloads import Workload, read_workloads
from alignup.placement.pod_findings import PodFinding, find_remedy, host_findings, manifest_findings
from alignup.placement.pod_shape import is_large, shape_key
from alignup.schedule.gate.admission import AnsweredReview, ReviewRequest, ReviewResponse, read_review
from alignup.schedule.gate.host_kinds import HostKind, HostKinds
from alignup.schedule.live_cluster import LiveCluster
from alignup.schedule.node_selection import scheduling_spec

MAX_WARNINGS = 3  #: about one object
MAX_CHARACTERS = 256  #: of a warning, by the rule of the API server
MIN_MESSAGE = 80  #: characters of a message that a remedy leaves
MAX_KNOWN = 1024  #: answers of kinds of nodes about pod shapes
MAX_SEARCHES = 64  #: rejected pods whose remedies are still to be searched
SEARCH_SECONDS = 1.0  #: for the remedy of one pod on one kind of node

_Key = tuple[HostKind, Hashable]  #: a kind of node, and the shape of a pod


class _Request(ObjectPart, frozen=True):
    object: msgspec.Raw = msgspec.Raw(b"null")


class _Review(ObjectPart, frozen=True):
    request: _Request = _Request()


class WarningReviews:
    """The answers of the webhook; *count* gets the code of every warning."""

    def __init__(self, live: LiveCluster, count: Callable[[str], object] = lambda _code: None) -> None:
        self._live = live
        self._count = count
        self._kinds = HostKinds(live)
        self._findings: OrderedDict[_Key, tuple[PodFinding, ...]] = OrderedDict()
        self._searches: OrderedDict[_Key, Pod] = OrderedDict()
        self._wake = asyncio.Event()

    def answer(self, body: bytes) -> bytes:
        """Return the answer to a review; ``ParseError`` if it is not an AdmissionReview of version v1."""
        request = read_review(body)
        findings: dict[PodFinding, None] = {}
        if _is_reviewed(request):
            with suppress(AlignError):  # the API server says itself what is wrong with the object
                findings = dict.fromkeys(self._review(bytes(decode(body, _Review).request.object)))
        shown_findings = list(findings)[:MAX_WARNINGS]
        for finding in shown_findings:
            self._count(finding.code)
        warnings = tuple([format_warning(finding) for finding in shown_findings])
        return encode(AnsweredReview(ReviewResponse(uid=request.uid, allowed=True, warnings=warnings)))

    def _review(self, document: bytes) -> Iterator[PodFinding]:
        """Yield what is wrong with the pods of an object, the worst first."""
        nodes = self._kinds.nodes() if self._live.ready.is_set() else {}
        gates = [kind.host.settings.gates for kind in nodes if kind is not None]
        fixed = any(gate.on("PodLevelResourcesFixDefaulting") for gate in gates)
        accept = partial(validation.accept, fix_pod_level=fixed)
        loaded = read_workloads(document, name="the object", accept=accept, ignore_unknown_fields=True)
        for workload in loaded.workloads:
            yield from self._node_findings(workload, nodes)
        for workload in loaded.workloads:
            yield from manifest_findings(workload.pod, workload.without_pod_level_fix().pod)

    def _node_findings(self, workload: Workload, nodes: dict[HostKind | None, list[ApiNode]]) -> Iterator[PodFinding]:
        pod, spec = self._live.claims.objects.with_class_resources(workload.pod), scheduling_spec(workload)
        excludes = self._live.node_filter.excludes
        considered_nodes: dict[HostKind | None, ApiNode] = {}  #: the first node of each kind that schedulers consider
        for kind, alike in nodes.items():
            if (node := next((node for node in alike if not excludes(node, spec)), None)) is not None:
                considered_nodes[kind] = node
        findings = {kind: self._ask(kind, pod) for kind in considered_nodes if kind is not None}
        never = {kind: _find_never(answers, pod, kind, nodes[kind]) for kind, answers in findings.items()}
        if considered_nodes and None not in considered_nodes and all(never.values()):
            usual = never[max(never, key=lambda kind: len(nodes[kind]))]
            if usual is not None:
                yield replace(usual, message=f"no node of this cluster would ever admit it: {usual.message}")
            return
        for kind, rejection in never.items():
            if rejection is not None and rejection.code == SMT_ALIGNMENT:
                message = f"nodes such as {considered_nodes[kind].metadata.name} would reject it: {rejection.message}"
                yield replace(rejection, message=message)
                break
        for answers in findings.values():
            yield from (finding for finding in answers if finding.code == FRACTIONAL_CPUS)

    def _ask(self, kind: HostKind, pod: Pod) -> tuple[PodFinding, ...]:
        """Return what is wrong with a pod on an empty node; nothing yet for a pod that takes long to decide on."""
        key = (kind, shape_key(pod))
        findings = self._findings.get(key)
        if findings is not None:
            self._findings.move_to_end(key)
            return findings
        findings = () if is_large(pod) else _decide(kind, pod)
        self._remember(key, findings)
        if len(self._searches) < MAX_SEARCHES and (is_large(pod) or any(finding.is_rejection for finding in findings)):
            self._searches[key] = pod
            self._wake.set()
        return findings

    def _remember(self, key: _Key, findings: tuple[PodFinding, ...]) -> None:
        self._findings[key] = findings
        if len(self._findings) > MAX_KNOWN:
            self._findings.popitem(last=False)

    async def run(self) -> None:
        """Search for changes that would admit rejected pods until cancelled."""
        while True:
            await self._wake.wait()
            self._wake.clear()
            while self._searches:
                key, pod = self._searches.popitem(last=False)
                with self._live.guard.reporting(f"remedy for {pod.namespace}/{pod.name}"):
                    self._remember(key, await asyncio.to_thread(_decide_with_remedy, key[0], pod))


def _is_reviewed(request: ReviewRequest) -> bool:
    """Return whether a person may read the warnings: a controller's objects come from objects that had warnings."""
    obj = request.object
    if obj is None or request.sub_resource or any(owner.controller for owner in obj.metadata.owner_references or ()):
        return False
    return request.operation == "CREATE" or (request.operation == "UPDATE" and request.resource.resource != "pods")


def _find_never(findings: tuple[PodFinding, ...], pod: Pod, kind: HostKind, nodes: list[ApiNode]) -> PodFinding | None:
    """Return why nodes of a kind never run a pod; an administrator may have added a resource to their status."""
    for finding in findings:
        if finding.code == NOT_SCHEDULABLE:
            missing = set(kind.host.missing_devices(pod))
            return None if any(missing <= node.status.allocatable.keys() for node in nodes) else finding
        if finding.is_rejection:
            return finding
    return None


def _decide(kind: HostKind, pod: Pod) -> tuple[PodFinding, ...]:
    try:
        return tuple(host_findings(kind.host, pod))
    except AlignError:  # it would take too much work, or the kubelet cannot read it
        return ()


def _decide_with_remedy(kind: HostKind, pod: Pod) -> tuple[PodFinding, ...]:
    end = time.monotonic() + SEARCH_SECONDS
    return tuple(
        [
            replace(finding, remedy=find_remedy(kind.host, pod, lambda: time.monotonic() > end))
            if finding.is_rejection
            else finding
            for finding in _decide(kind, pod)
        ]
    )


def format_warning(finding: PodFinding) -> str:
    """Return the text of a warning, which begins with the code; a long message is cut, so that the remedy stays."""
    text, end = f"{finding.code}: {finding.message}", f"; {finding.remedy}" if finding.remedy else ""
    if len(text) + len(end) > MAX_CHARACTERS:
        end = end if len(end) <= MAX_CHARACTERS - MIN_MESSAGE else ""
        room = MAX_CHARACTERS - len(end)
        text = text if len(text) <= room else f"{text[: room - 1]}…"
    return "".join(character if character.isprintable() else " " for character in text + end)
