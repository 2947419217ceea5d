"""Releases from the gate whose pods are not bound yet.

    planned → writing → written → bound
                 │         └────→ given up: unschedulable, not scheduled, or the node is gone
                 └→ not written: refused, or the pod has changed or was deleted

A pod gets one node, or several if its scheduler has to choose among them: devices of claims are allocated later. A
released pod cannot be changed any more. If its scheduler does not bind it, it can only be deleted, which is left to
people unless a setting allows it for pods that a controller will create again. The prediction is forgotten after a time
limit, so that others can use the node. The scheduler may have said that the pod does not fit there, or nothing: then it
may be away, and bind the pod when it is back.
"""

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from enum import StrEnum
from itertools import takewhile

from alignup.placement.scheduling.facts import PodFacts, WaitState
from alignup.placement.scheduling.options import UNBOUND_SECONDS


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


class ReleasePhase(StrEnum):
    PLANNED = "planned"  #: others are written first, or a pod of its gang must be bound before
    WRITING = "writing"
    WRITTEN = "written"


@dataclass(slots=True, eq=False)
class PodRelease:
    facts: PodFacts  #: of the pod as it was before
    nodes: tuple[str, ...]
    since: float  #: when it entered its phase
    phase: ReleasePhase = ReleasePhase.PLANNED
    after: str = ""  #: uid of a pod that must be bound to the same node before

    @property
    def uid(self) -> str:
        return self.facts.uid

    @property
    def node(self) -> str:
        """The nodes, for texts."""
        return ",".join(self.nodes)


class Releases:
    """All releases whose pods are not bound yet; *seconds* after which they are given up."""

    def __init__(self, *, seconds: float = UNBOUND_SECONDS) -> None:
        self._seconds = seconds
        self._open: dict[str, PodRelease] = {}
        self.by_namespace: Counter[str] = Counter()  #: how many are open
        self.unwritten: Counter[str] = Counter()  #: how many of them are not written, by namespace
        self._planned: dict[str, PodRelease] = {}  #: releases that are not being written yet
        self.writing = 0  #: how many are being written
        self.given_up: dict[str, str] = {}  #: uid → node
        self.uncounted: set[str] = set()  #: uids of open ones that not all of their nodes count on
        self.unanswered = False  #: whether the last news is that the scheduler has said nothing about a release

    def __len__(self) -> int:
        return len(self._open)

    def __contains__(self, uid: str) -> bool:
        return uid in self._open

    def __iter__(self) -> Iterator[PodRelease]:
        return iter(tuple(self._open.values()))

    def get(self, uid: str) -> PodRelease | None:
        return self._open.get(uid)

    def overdue(self, now: float) -> list[PodRelease]:
        """Return the written releases that are not bound after the time limit."""
        written_releases = (release for release in self._open.values() if release.phase is ReleasePhase.WRITTEN)
        return list(takewhile(lambda release: now - release.since >= self._seconds, written_releases))

    def add(self, release: PodRelease) -> None:
        self.end(release.uid)
        self._open[release.uid] = release
        self.by_namespace[release.facts.namespace] += 1
        if release.phase is ReleasePhase.PLANNED:
            self._planned[release.uid] = release
        if release.phase is not ReleasePhase.WRITTEN:
            self.unwritten[release.facts.namespace] += 1

    @property
    def planned(self) -> tuple[PodRelease, ...]:
        """Releases that are not being written yet, the first release first."""
        return tuple(self._planned.values())

    def start(self, release: PodRelease) -> None:
        """Note that a release is being written."""
        del self._planned[release.uid]
        release.phase = ReleasePhase.WRITING
        self.writing += 1

    def written(self, release: PodRelease, *, now: float) -> None:
        """Note that the API server has confirmed a release."""
        self.writing -= release.phase is ReleasePhase.WRITING
        self.unwritten[release.facts.namespace] -= 1
        release.phase = ReleasePhase.WRITTEN
        release.since = now
        self._open[release.uid] = self._open.pop(release.uid)  # the last one that was written is at the end

    def end(self, uid: str) -> PodRelease | None:
        release = self._open.pop(uid, None)
        self.uncounted.discard(uid)
        self._planned.pop(uid, None)
        if release is not None:
            namespace = release.facts.namespace
            self.writing -= release.phase is ReleasePhase.WRITING
            self.unwritten[namespace] -= release.phase is not ReleasePhase.WRITTEN
            self.by_namespace[namespace] -= 1
            if not self.by_namespace[namespace]:
                del self.by_namespace[namespace], self.unwritten[namespace]
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
        self, release: PodRelease, current: PodFacts, *, now: float, node_exists: bool
    ) -> ReleaseOutcome | None:
        """Return why a release has failed; ``None`` if the pod may still be bound. *current*: the pod as it is now."""
        if release.phase is not ReleasePhase.WRITTEN:
            return None
        if not node_exists:
            return ReleaseOutcome.NODE_GONE
        if now - release.since < self._seconds:
            return None
        unschedulable = current.state is WaitState.UNSCHEDULABLE
        return ReleaseOutcome.UNSCHEDULABLE if unschedulable else ReleaseOutcome.NOT_SCHEDULED

    def next_check(self, now: float) -> float | None:
        """Return the seconds until a release may have failed; ``None`` if there is none."""
        times = (release.since for release in self._open.values() if release.phase is ReleasePhase.WRITTEN)
        oldest = next(times, None)
        return None if oldest is None else max(oldest + self._seconds - now, 0.1)


def describe_failure(release: PodRelease, problem: str | None, outcome: ReleaseOutcome, *, replaced: bool) -> str:
    """Return the text of an event about a released pod that is not scheduled; *problem*: the scheduler's."""
    why = "its scheduler has not bound it"
    if outcome is ReleaseOutcome.NODE_GONE:
        why = "the node is gone" if len(release.nodes) == 1 else "these nodes are gone"
    elif problem is not None:
        why = f"its scheduler cannot place it there ({problem.rstrip('.')})"
    advice = "it is replaced" if replaced else "delete it, so that its controller creates another"
    nodes = f"node{'s' if len(release.nodes) > 1 else ''} {release.node}"
    return f"released to {nodes}, but {why}; a released pod cannot go elsewhere: {advice}"


class AvoidedNodes:
    """Nodes where pods of a controller could not be scheduled: its next pods go elsewhere if they can."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._until: dict[tuple[str, str], float] = {}  #: (uid of the controller, node)

    def add(self, facts: PodFacts, nodes: Iterable[str], *, now: float) -> None:
        self._until |= {(owner, node): now + self._seconds for node in nodes for owner in facts.controllers}

    def forget_old(self, now: float) -> None:
        self._until = {key: until for key, until in self._until.items() if until > now}

    def of(self, facts: PodFacts, *, now: float) -> set[str]:
        owners = facts.controllers if self._until else ()
        return {node for (owner, node), until in self._until.items() if owner in owners and until > now}
