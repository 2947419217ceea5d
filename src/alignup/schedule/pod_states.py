"""The state of each pod in words, and the pods that need attention: rejected, failed and waiting ones.

A pod that failed before the service started counts like one that fails now: both are objects of the API server.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Any

from alignup.documents.codec import seconds_of, timestamp
from alignup.kubernetes.api import Change, EventType, Informer
from alignup.kubernetes.api.client import ObjectKey
from alignup.kubernetes.api.known_pods import binding_time, was_rejected
from alignup.kubernetes.api.objects import ApiPod
from alignup.kubernetes.manifests.disruption import OwnerReference
from alignup.schedule.rejections import rejection_text


class PodState(StrEnum):
    """What became of a pod, in the order in which pages list pods."""

    REJECTED = "rejected"  #: by its kubelet
    FAILED = "failed"  #: for another reason
    WAITING = "waiting"  #: not bound
    RUNNING = "running"  #: or about to start, or to end
    COMPLETED = "completed"


#: that are listed first, and the newest first
NEEDS_ATTENTION = (PodState.REJECTED, PodState.FAILED, PodState.WAITING)
_ORDER = list(PodState)
_WORDS = {"Pending": "Starting", "": "Starting"}  #: for the phases of bound pods


def pod_state(pod: ApiPod) -> PodState:
    if was_rejected(pod):
        return PodState.REJECTED
    if pod.finished:
        return PodState.FAILED if pod.status.phase == "Failed" else PodState.COMPLETED
    return PodState.RUNNING if pod.spec.node_name else PodState.WAITING


@dataclass(frozen=True, slots=True, kw_only=True)
class PodSummary:
    """A pod in brief, and how many pods of its owner are in the same state for the same reason."""

    pod: ApiPod
    state: PodState | None  #: ``None``: it is unknown because of a defect
    status: str  #: ``Failed: TopologyAffinityError``, ``Waiting``, ``Running``
    title: str  #: the status, and of a pod that runs on which node: ``Running on host-a``
    why: str  #: why the pod failed, or what it waits for; empty for other pods
    #: when the pod failed, was created if it waits, or was bound; in seconds since 1970, 0 if unknown
    since: float = 0.0
    owner: OwnerReference | None = None
    count: int = 1
    nodes: int = 1  #: that all these pods are bound to

    def to_document(self) -> dict[str, Any]:
        since = timestamp(self.since) if self.since else None
        state = None if self.state is None else str(self.state)
        return {"state": state, "title": self.title, "why": self.why, "since": since}


def summarize_pod(pod: ApiPod, count: int = 1, nodes: int = 1) -> PodSummary:
    state = pod_state(pod)
    status = _status(pod, state)
    return PodSummary(
        pod=pod,
        state=state,
        status=status,
        title=f"{status} on {pod.spec.node_name}" if state is PodState.RUNNING else status,
        why=_why(pod, state),
        since=seconds_of(_since(pod)),
        owner=find_owner(pod),
        count=count,
        nodes=nodes,
    )


def failed_summary(pod: ApiPod, error: Exception) -> PodSummary:
    """Return what is shown of a pod whose summary raises an error."""
    why = f"The pod cannot be shown, and the log of alignup schedule says why: {type(error).__name__}"
    return PodSummary(pod=pod, state=None, status="Unknown", title="Unknown", why=why)


#: Called with a pod whose summary raises an error; returns another.
FailedPodListener = Callable[[ApiPod, Exception], PodSummary]


def group_pods(
    pods: Iterable[ApiPod], failed: FailedPodListener = failed_summary, *, apart: bool = False
) -> list[PodSummary]:
    """Group pods by state, reason and owner, the newest group of each state first; *apart*: each for itself.

    A Deployment whose pods are rejected makes hundreds of failed pods a minute. The newest pod stands for its group.
    Groups whose summaries fail come first.
    """
    groups: dict[object, list[tuple[tuple[str, str], ApiPod]]] = {}
    summaries: list[tuple[int, tuple[str, str], PodSummary]] = []
    for pod in pods:
        try:
            owner = None if apart else find_owner(pod)
            creator = (owner.kind, owner.name, owner.uid) if owner else pod.metadata.uid
            key, aged_pod = (pod_state(pod), pod.status.reason, pod.metadata.namespace, creator), (_age(pod), pod)
            groups.setdefault(key, []).append(aged_pod)
        except Exception as error:  # noqa: BLE001 - whatever one pod raises, the others are shown
            summaries.append((-1, ("", pod.metadata.name), failed(pod, error)))
    for group in groups.values():
        age, newest = max(group, key=lambda aged_pod: aged_pod[0])
        nodes = {pod.spec.node_name for _, pod in group}
        try:
            summary = summarize_pod(newest, len(group), len(nodes))
        except Exception as error:  # noqa: BLE001
            summary = replace(failed(newest, error), count=len(group), nodes=len(nodes))
        summaries.append((_ORDER.index(summary.state) if summary.state else -1, age, summary))
    summaries.sort(key=lambda ranked: ranked[1], reverse=True)
    return [summary for _, _, summary in sorted(summaries, key=lambda ranked: ranked[0])]


class PodStates:
    """The pods that are not running, by state, so that no page looks at all pods for the few that need attention.

    *changed* is called after every change of such a pod. Only names are stored here; the informer has the pods.
    """

    def __init__(self, pods: Informer[ApiPod], on_change: Callable[[], object]) -> None:
        self._pods = pods
        self._changed = on_change
        self._states: dict[ObjectKey, PodState] = {}
        self._counts: Counter[PodState] = Counter()
        pods.subscribe(self._pod_changed)

    def count(self, state: PodState) -> int:
        return len(self._pods.objects) - len(self._states) if state is PodState.RUNNING else self._counts[state]

    def names(self, state: PodState) -> list[ObjectKey]:
        """Return namespace and name of the pods in *state*."""
        if state is PodState.RUNNING:
            return [key for key in self._pods.objects if key not in self._states]
        return [key for key, other in self._states.items() if other is state]

    def _pod_changed(self, change: Change[ApiPod]) -> None:
        pod = change.object
        key = (pod.metadata.namespace, pod.metadata.name)
        state = PodState.RUNNING if change.type is EventType.DELETED else pod_state(pod)
        old_state = self._states.pop(key, PodState.RUNNING)
        self._counts[old_state] -= 1
        self._counts[state] += 1
        if state is not PodState.RUNNING:
            self._states[key] = state
        if old_state is not PodState.RUNNING or state is not PodState.RUNNING:
            self._changed()


def _status(pod: ApiPod, state: PodState) -> str:
    phase = pod.status.phase
    match state:
        case PodState.REJECTED | PodState.FAILED:
            return ": ".join(filter(None, ("Failed", pod.status.reason)))
        case PodState.RUNNING:
            return "Terminating" if pod.metadata.deletion_timestamp else _WORDS.get(phase, phase)
        case _:
            return state.capitalize()


def _why(pod: ApiPod, state: PodState) -> str:
    match state:
        case PodState.REJECTED:
            return f"The kubelet of node {pod.spec.node_name} rejected the pod: {rejection_text(pod)}"
        case PodState.FAILED:
            return pod.status.message or "; ".join(_failed_containers(pod))
        case PodState.WAITING:
            return _waits_for(pod)
        case _:
            return ""


def find_owner(pod: ApiPod) -> OwnerReference | None:
    """Return what creates pods like this one; a Node owns static pods that have nothing in common."""
    owners = [owner for owner in pod.metadata.owner_references if owner.kind != "Node"]
    return next((owner for owner in owners if owner.controller), owners[0] if owners else None)


def _since(pod: ApiPod) -> str:
    creation = pod.metadata.creation_timestamp or ""
    if pod.finished:  # the last condition changed when its containers ended, or when it was bound and rejected
        return (
            max((condition.last_transition_time or "" for condition in pod.status.conditions), default="") or creation
        )
    return binding_time(pod)[0] if pod.spec.node_name else creation


def _age(pod: ApiPod) -> tuple[str, str]:
    """Return a sort key, the larger the newer; times of the API sort as text."""
    return _since(pod), pod.metadata.name


def _failed_containers(pod: ApiPod) -> Iterator[str]:
    for status in (*pod.status.init_container_statuses, *pod.status.container_statuses):
        end = status.state.terminated
        if end is not None and end.exit_code:
            yield f"container {status.name} ended with exit code {end.exit_code}"


def _waits_for(pod: ApiPod) -> str:
    if gates := ", ".join(gate.name for gate in pod.spec.scheduling_gates):
        return f"No scheduler considers the pod before its scheduling gates are removed: {gates}"
    messages = [condition.message for condition in pod.status.conditions if condition.type == "PodScheduled"]
    if message := next(filter(None, messages), ""):
        return message
    return f"Scheduler {pod.spec.scheduler_name or 'default-scheduler'} has not reported on the pod yet"
