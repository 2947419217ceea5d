"""Pods that were released to a node and are not bound yet, and what becomes of them.

A released pod cannot be changed any more. If its scheduler does not bind it, it can only be deleted, which is left to
people unless a setting allows it for pods that a controller will create again. The prediction is forgotten after a time
limit, so that the room on the node is used by others: soon if the scheduler says that the pod does not fit there, late
if the scheduler has said nothing, since it may be away and bind the pod when it is back.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum

from alignup.kubernetes.api.objects import ApiPod, Condition

UNSCHEDULABLE_SECONDS = 30.0  #: after which a pod that its scheduler cannot place is given up
SILENT_SECONDS = 600.0  #: after which a pod about which its scheduler says nothing is given up


class ReleaseOutcome(StrEnum):
    """What became of a release, for metrics."""

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
class Release:
    pod: ApiPod  #: as it was before
    node: str
    since: float
    done: bool = False  #: whether the API server has confirmed it

    @property
    def uid(self) -> str:
        return self.pod.metadata.uid

    @property
    def pod_name(self) -> str:
        return self.pod.metadata.full_name


class Releases:
    """All releases whose pods are not bound yet."""

    def __init__(self, *, unschedulable: float = UNSCHEDULABLE_SECONDS, silent: float = SILENT_SECONDS) -> None:
        self._limits = unschedulable, silent
        self._open: dict[str, Release] = {}
        self._given_up: dict[str, str] = {}  #: uid → node

    def __len__(self) -> int:
        return len(self._open)

    def __contains__(self, uid: str) -> bool:
        return uid in self._open

    def __iter__(self) -> Iterator[Release]:
        return iter(tuple(self._open.values()))

    def add(self, release: Release) -> None:
        self._open[release.uid] = release

    def end(self, uid: str) -> Release | None:
        return self._open.pop(uid, None)

    def was_given_up(self, uid: str) -> bool:
        return uid in self._given_up

    def give_up(self, release: Release) -> None:
        del self._open[release.uid]
        self._given_up[release.uid] = release.node

    def forget(self, uid: str) -> None:
        """A pod is gone."""
        self._open.pop(uid, None)
        self._given_up.pop(uid, None)

    def bound(self, uid: str, node: str) -> ReleaseOutcome | None:
        """A pod was bound to *node*; ``None`` if it was not released here."""
        if self._given_up.pop(uid, None) is not None:
            return ReleaseOutcome.BOUND_LATE
        release = self._open.pop(uid, None)
        if release is None:
            return None
        return ReleaseOutcome.BOUND if release.node == node else ReleaseOutcome.BOUND_ELSEWHERE

    def failure(
        self, release: Release, current: ApiPod | None, *, now: float, node_exists: bool
    ) -> ReleaseOutcome | None:
        """Return why a release has failed; ``None`` if the pod may still be bound."""
        if not release.done:
            return None
        if not node_exists:
            return ReleaseOutcome.NODE_GONE
        unschedulable, silent = self._limits
        age = now - release.since
        condition = scheduled_condition(current) if current is not None else None
        if age >= unschedulable and condition is not None and condition.reason == "Unschedulable":
            return ReleaseOutcome.UNSCHEDULABLE
        return ReleaseOutcome.NOT_SCHEDULED if age >= silent else None

    def next_check(self, now: float) -> float | None:
        """Return the seconds until a release may have failed; ``None`` if there is none."""
        ages = [now - release.since for release in self._open.values() if release.done]
        if not ages:
            return None
        limits = (limit - age for age in ages for limit in self._limits if limit > age)
        return max(min(limits, default=0.0), 0.1)


def scheduled_condition(pod: ApiPod) -> Condition | None:
    """Return what the scheduler says about *pod*; ``None``: nothing."""
    found = (one for one in pod.status.conditions if one.type == "PodScheduled" and one.status == "False")
    return next((one for one in found if one.reason != "SchedulingGated"), None)


def describe_failure(release: Release, current: ApiPod, outcome: ReleaseOutcome, *, replaced: bool) -> str:
    """Return the text of an event about a released pod that is not scheduled."""
    condition = scheduled_condition(current)
    why = "its scheduler has not bound it"
    if outcome is ReleaseOutcome.NODE_GONE:
        why = "the node is gone"
    elif condition is not None:
        why = f"its scheduler cannot place it there ({condition.message.rstrip('.')})"
    advice = "it is replaced" if replaced else "delete it, so that its controller creates another"
    return f"released to node {release.node}, but {why}; a released pod cannot go elsewhere: {advice}"


def will_be_created_again(pod: ApiPod) -> bool:
    """Whether a controller replaces *pod* when it is deleted."""
    return any(one.controller for one in pod.metadata.owner_references)


class AvoidedNodes:
    """Nodes where pods of a controller could not be scheduled: its next pods go elsewhere if they can."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._until: dict[tuple[str, str], float] = {}  #: (uid of the controller, node)

    def add(self, pod: ApiPod, node: str, *, now: float) -> None:
        self._until = {key: until for key, until in self._until.items() if until > now}
        for one in pod.metadata.owner_references:
            if one.controller:
                self._until[one.uid, node] = now + self._seconds

    def of(self, pod: ApiPod, *, now: float) -> set[str]:
        owners = {one.uid for one in pod.metadata.owner_references if one.controller} if self._until else set()
        return {node for (owner, node), until in self._until.items() if owner in owners and until > now}
