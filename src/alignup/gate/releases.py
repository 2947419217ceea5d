"""Releases: the gate of a pod is removed, and its required node affinity names the chosen nodes, in one patch.

A pod gets one node, or several if its scheduler has to choose among them: devices of claims are allocated later.

While a pod has a gate, the API server accepts changes of its required node affinity that only restrict it: terms must
stay, and may gain conditions. A pod goes to a node that one term selects, so every term gains the name of the node. A
term without conditions selects nothing; it cannot gain any, and need not. All other affinity stays as it is. A term can
name one node only; several are named by a term each, or, in terms of the pod, by the label with their host names.

A released pod cannot be changed any more. If its scheduler does not bind it, it can only be deleted, which is left to
people unless a setting allows it for pods that a controller will create again. The prediction is forgotten after a time
limit, so that others can use the node. The scheduler may have said that the pod does not fit there, or nothing: then it
may be away, and bind the pod when it is back.
"""

import asyncio
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from itertools import takewhile
from typing import Any, NamedTuple

import structlog

from alignup.documents.codec import to_builtins
from alignup.documents.host_state import GROUP
from alignup.kubernetes.api import PODS, ApiClient, Informer
from alignup.kubernetes.api.errors import (
    ApiError,
    ConflictError,
    NotFoundError,
    ServerFailureError,
    TooManyRequestsError,
    UnreachableError,
)
from alignup.kubernetes.api.objects import ApiNode, ApiPod, Condition
from alignup.kubernetes.manifests.node_selectors import NodeSelector, NodeSelectorRequirement, NodeSelectorTerm
from alignup.placement.steered import STEERED_ANNOTATION

NODE_ANNOTATION = f"{GROUP}/node"  #: of a released pod: the node that was chosen for it, or several with commas
HOST_NAME = "kubernetes.io/hostname"  #: the label of nodes
UNBOUND_SECONDS = 30.0  #: after which a pod that its scheduler has not bound is given up

_log = structlog.get_logger()


class ReleaseOutcome(StrEnum):
    """The end of a release, for metrics."""

    BOUND = "bound"  #: to the chosen node
    BOUND_ELSEWHERE = "bound_elsewhere"  #: by something that ignores node affinity
    BOUND_LATE = "bound_late"  #: after it was given up
    UNSCHEDULABLE = "unschedulable"  #: the scheduler cannot place it on the chosen node
    NOT_SCHEDULED = "not_scheduled"  #: the scheduler has said nothing about it
    NODE_GONE = "node_gone"
    DELETED = "deleted"  #: the pod, before it was bound
    CHANGED = "changed"  #: the pod, before it was released; it is tried again
    REFUSED = "refused"  #: the API server did not accept the release


@dataclass(slots=True)
class PodRelease:
    pod: ApiPod  #: as it was before
    nodes: Mapping[str, str]  #: each with its host name, which is needed only for several nodes
    since: float
    done: bool = False  #: whether the API server has confirmed it
    steered: str = ""  #: to which NUMA node its kubelet is steered for it, and why
    ended: asyncio.Event = field(default_factory=asyncio.Event)  #: set when the pod is bound, or will not be

    @property
    def node(self) -> str:
        """The nodes, for texts and the annotation."""
        return ",".join(self.nodes)

    @property
    def uid(self) -> str:
        return self.pod.metadata.uid

    @property
    def namespace(self) -> str:
        return self.pod.metadata.namespace

    @property
    def pod_name(self) -> str:
        return self.pod.metadata.full_name


class Releases:
    """All releases whose pods are not bound yet; *seconds* after which they are given up."""

    def __init__(self, *, seconds: float = UNBOUND_SECONDS) -> None:
        self._seconds = seconds
        self._open: dict[str, PodRelease] = {}
        self.by_namespace: Counter[str] = Counter()  #: how many are open
        self.given_up: dict[str, str] = {}  #: uid → node
        self.unanswered = False  #: whether the last news is that the scheduler has said nothing about a release

    def __len__(self) -> int:
        return len(self._open)

    def __contains__(self, uid: str) -> bool:
        return uid in self._open

    def __iter__(self) -> Iterator[PodRelease]:
        return iter(tuple(self._open.values()))

    def overdue(self, now: float) -> list[PodRelease]:
        """Return the confirmed releases that are not bound after the time limit."""
        confirmed = (release for release in self._open.values() if release.done)
        return list(takewhile(lambda release: now - release.since >= self._seconds, confirmed))

    def add(self, release: PodRelease) -> None:
        self.end(release.uid)
        self._open[release.uid] = release
        self.by_namespace[release.namespace] += 1

    def confirm(self, release: PodRelease, *, now: float) -> None:
        """Note that the API server has confirmed a release, unless it has ended."""
        release.done, release.since = True, now
        if self._open.pop(release.uid, None) is not None:
            self._open[release.uid] = release  # the last confirmed is at the end

    def end(self, uid: str) -> PodRelease | None:
        release = self._open.pop(uid, None)
        if release is not None:
            release.ended.set()
            self.by_namespace[release.namespace] -= 1
            if not self.by_namespace[release.namespace]:
                del self.by_namespace[release.namespace]
        return release

    def give_up(self, release: PodRelease, outcome: ReleaseOutcome) -> None:
        self.end(release.uid)
        self.given_up[release.uid] = release.node
        self.unanswered = outcome is ReleaseOutcome.NOT_SCHEDULED

    def forget(self, uid: str) -> None:
        """Forget a pod that is gone."""
        self.end(uid)
        self.given_up.pop(uid, None)

    def bound(self, uid: str, node: str) -> ReleaseOutcome | None:
        """End the release of a pod that was bound to *node*; return ``None`` if it was not released here."""
        if self.given_up.pop(uid, None) is not None:
            self.unanswered = False
            return ReleaseOutcome.BOUND_LATE
        release = self.end(uid)
        if release is None:
            return None
        self.unanswered = False
        return ReleaseOutcome.BOUND if node in release.nodes else ReleaseOutcome.BOUND_ELSEWHERE

    def failure(
        self, release: PodRelease, current: ApiPod | None, *, now: float, node_exists: bool
    ) -> ReleaseOutcome | None:
        """Return why a release has failed; ``None`` if the pod may still be bound."""
        if not release.done:
            return None
        if not node_exists:
            return ReleaseOutcome.NODE_GONE
        if now - release.since < self._seconds:
            return None
        condition = scheduled_condition(current) if current is not None else None
        if condition is not None and condition.reason == "Unschedulable":
            return ReleaseOutcome.UNSCHEDULABLE
        return ReleaseOutcome.NOT_SCHEDULED

    def next_check(self, now: float) -> float | None:
        """Return the seconds until a release may have failed; ``None`` if there is none."""
        oldest = next((release.since for release in self._open.values() if release.done), None)
        return None if oldest is None else max(oldest + self._seconds - now, 0.1)


def scheduled_condition(pod: ApiPod) -> Condition | None:
    """Return what the scheduler says about *pod*; ``None``: nothing."""
    for condition in pod.status.conditions:
        if (condition.type, condition.status) == ("PodScheduled", "False") and condition.reason != "SchedulingGated":
            return condition
    return None


def describe_failure(release: PodRelease, current: ApiPod, outcome: ReleaseOutcome, *, replaced: bool) -> str:
    """Return the text of an event about a released pod that is not scheduled."""
    condition = scheduled_condition(current)
    why = "its scheduler has not bound it"
    if outcome is ReleaseOutcome.NODE_GONE:
        why = "the node is gone" if len(release.nodes) == 1 else "these nodes are gone"
    elif condition is not None:
        why = f"its scheduler cannot place it there ({condition.message.rstrip('.')})"
    advice = "it is replaced" if replaced else "delete it, so that its controller creates another"
    nodes = f"node{'s' if len(release.nodes) > 1 else ''} {release.node}"
    return f"released to {nodes}, but {why}; a released pod cannot go elsewhere: {advice}"


def controller_uids(pod: ApiPod) -> set[str]:
    """Return the uids of the controllers (at most one) that replace *pod* when it is deleted."""
    return {owner.uid for owner in pod.metadata.owner_references if owner.controller}


class AvoidedNodes:
    """Nodes where pods of a controller could not be scheduled: its next pods go elsewhere if they can."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._until: dict[tuple[str, str], float] = {}  #: (uid of the controller, node)

    def add(self, pod: ApiPod, nodes: Iterable[str], *, now: float) -> None:
        self._until = {key: until for key, until in self._until.items() if until > now}
        owners = controller_uids(pod)
        self._until |= {(owner, node): now + self._seconds for node in nodes for owner in owners}

    def of(self, pod: ApiPod, *, now: float) -> set[str]:
        owners = controller_uids(pod) if self._until else set()
        return {node for (owner, node), until in self._until.items() if owner in owners and until > now}


def pinned(required: NodeSelector | None, nodes: Mapping[str, str]) -> NodeSelector:
    """Return the selector of the nodes that *required* selects (``None``: all) and that are among *nodes*."""
    named = {name: NodeSelectorRequirement("metadata.name", "In", (name,)) for name in nodes}
    if required is None:
        return NodeSelector(tuple(NodeSelectorTerm(match_fields=(requirement,)) for requirement in named.values()))
    if len(nodes) > 1:
        hosts = NodeSelectorRequirement(HOST_NAME, "In", tuple(sorted(nodes.values())))
        return NodeSelector(tuple(_restricted(term, expression=hosts) for term in required.node_selector_terms))
    (name,) = named.values()
    return NodeSelector(tuple(_restricted(term, field=name) for term in required.node_selector_terms))


def _restricted(
    term: NodeSelectorTerm,
    *,
    expression: NodeSelectorRequirement | None = None,
    field: NodeSelectorRequirement | None = None,
) -> NodeSelectorTerm:
    expressions, fields = term.match_expressions, term.match_fields
    if not expressions and not fields:
        return term
    expressions += (expression,) if expression is not None and expression not in expressions else ()
    fields += (field,) if field is not None and field not in fields else ()
    return NodeSelectorTerm(expressions, fields)


def pinned_nodes(pod: ApiPod) -> tuple[str, ...]:
    """Return the nodes that a pod was released to; empty if it was not released by a gate controller.

    A pod author can write such a node affinity. The annotation stands for the controller: an admission policy lets
    nobody else write it.
    """
    names = tuple(filter(None, pod.metadata.annotations.get(NODE_ANNOTATION, "").split(",")))
    affinity = pod.spec.affinity.node_affinity if pod.spec.affinity else None
    required = affinity.required if affinity else None
    if not names or pod.spec.scheduling_gates or required is None:
        return ()
    terms = [term for term in required.node_selector_terms if term.match_expressions or term.match_fields]
    return names if terms and all(_names_some(term, names) for term in terms) else ()


def _names_some(term: NodeSelectorTerm, names: Collection[str]) -> bool:
    """Return whether a term selects nothing but some of these nodes; their host names are not checked."""
    fields = [each.values for each in term.match_fields if (each.key, each.operator) == ("metadata.name", "In")]
    if any(len(values) == 1 and values[0] in names for values in fields):
        return True
    labels = [each.values for each in term.match_expressions if (each.key, each.operator) == (HOST_NAME, "In")]
    return len(names) > 1 and any(len(values) == len(names) for values in labels)


def release_patch(pod: ApiPod, nodes: Mapping[str, str], steered: str = "") -> Mapping[str, Any]:
    """Return the merge patch that releases *pod*, whose only gate is ours, to *nodes*, where it may be *steered*.

    It fails with a conflict if the pod was changed since it was read, for example if its selectors were restricted.
    """
    affinity = pod.spec.affinity.node_affinity if pod.spec.affinity else None
    selector = to_builtins(pinned(affinity.required if affinity else None, nodes))
    required = {"requiredDuringSchedulingIgnoredDuringExecution": selector}
    annotations = {NODE_ANNOTATION: ",".join(nodes)} | ({STEERED_ANNOTATION: steered} if steered else {})
    unchanged = {"uid": pod.metadata.uid, "resourceVersion": pod.metadata.resource_version}
    return {
        "metadata": {**unchanged, "annotations": annotations},
        "spec": {"schedulingGates": None, "affinity": {"nodeAffinity": required}},
    }


def host_names(nodes: Iterable[str], known: Informer[ApiNode]) -> dict[str, str]:
    objects = {name: known.get(name) for name in nodes}
    return {name: node.metadata.labels.get(HOST_NAME, "") if node else "" for name, node in objects.items()}


def nameable_nodes(pod: ApiPod, nodes: tuple[str, ...], known: Informer[ApiNode]) -> tuple[str, ...]:
    """Return the nodes that can be named together: in terms of the pod, by host names that only they have."""
    affinity = pod.spec.affinity.node_affinity if pod.spec.affinity else None
    if len(nodes) < 2 or affinity is None or affinity.required is None:
        return nodes
    names = Counter([node.metadata.labels.get(HOST_NAME, "") for node in known.objects.values()])
    unique = tuple(node for node, name in host_names(nodes, known).items() if name and names[name] == 1)
    return unique or nodes[:1]


class WrittenRelease(NamedTuple):
    failure: ReleaseOutcome | None = None  #: ``None``: the pod is released
    current: ApiPod | None = None  #: the pod as it is now, if it can be tried again
    error: str = ""  #: the API server's answer


async def write_release(client: ApiClient, release: PodRelease) -> WrittenRelease:
    """Write a release, and find out whether it was carried out when the response is lost."""
    try:
        await client.patch(PODS.of(release.pod), release_patch(release.pod, release.nodes, release.steered))
    except (ConflictError, NotFoundError):
        return await _find_out(client, release)
    except (UnreachableError, ServerFailureError, TooManyRequestsError) as error:
        _log.warning("release not confirmed", pod=release.pod_name, uid=release.uid, problem=str(error))
        await client.timing.sleep(client.timing.spread(client.timing.retry))
        return await _find_out(client, release)
    except ApiError as error:
        return WrittenRelease(ReleaseOutcome.REFUSED, release.pod, str(error))
    return WrittenRelease()


async def _find_out(client: ApiClient, release: PodRelease) -> WrittenRelease:
    """Read the pod until the API server answers: nothing may be assumed before."""
    while True:
        try:
            current = await client.find(PODS.of(release.pod))
        except ApiError as error:
            _log.warning("release not confirmed", pod=release.pod_name, uid=release.uid, problem=str(error))
            await client.timing.sleep(client.timing.spread(client.timing.longest_retry))
            continue
        if current is None or current.metadata.uid != release.uid:
            return WrittenRelease(ReleaseOutcome.DELETED)
        if pinned_nodes(current) == tuple(release.nodes):
            return WrittenRelease()
        return WrittenRelease(ReleaseOutcome.CHANGED, current)


async def evict_pod(client: ApiClient, pod: ApiPod) -> None:
    try:
        await client.evict(PODS.of(pod))
    except ApiError as error:
        _log.warning("cannot replace a pod", pod=pod.metadata.full_name, uid=pod.metadata.uid, problem=str(error))
