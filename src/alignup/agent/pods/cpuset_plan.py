"""Containers are kept on the CPUs the ledger says: their own, or else those that everybody shares.

A container starts on the CPUs it may use at that time. With every pod that comes or goes the shared CPUs change, and
all who are on them have to move. So every few seconds, and before a container starts on CPUs of its own, the runtime is
asked what runs and is told what it has not been told yet. What it refuses is tried again the next time.

The surprising rule is the order. The kubelet goes pod by pod, so that a container may be put on CPUs of its own that
others are still on. Here those who share move first: the CPUs they move to are nobody's. When those who own CPUs move,
all who shared these have left; and of two owners the one in the other's way moves first, unless they swap. Only one
who has no CPU to go to stays, for nothing is left to be shared, and that is said of it.

Only under the static policy is there anything to keep. All here is pure but :func:`reconcile_cpusets`.
"""

from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Self

from alignup.align.bits import CpuSet
from alignup.align.cpus.ledger import CpuLedger
from alignup.align.workload import Pod

ContainerKey = tuple[str, str]  #: a container: its pod's uid, and its own name

NO_STATUS = "the runtime does not know the pod"
NOT_RUNNING = "it does not run yet"
NO_CPUS = "it has no CPUs of its own, and none is left to be shared"


class ContainerPhase(StrEnum):
    """How far a container is."""

    WAITING = "waiting"
    RUNNING = "running"
    TERMINATED = "terminated"  #: for good, or until it is started again


@dataclass(frozen=True, slots=True)
class ObservedContainer:
    """A container as the runtime shows it."""

    phase: ContainerPhase = ContainerPhase.WAITING
    id: str = ""  #: empty: it has none yet


#: Pod uid → container → how it is. A pod or container that the runtime does not know is left out.
ObservedContainers = Mapping[str, Mapping[str, ObservedContainer]]


@dataclass(frozen=True, slots=True, kw_only=True)
class AppliedCpusets:
    """What the runtime was told; it is lost with the agent, and then all is told again."""

    last: Mapping[ContainerKey, CpuSet] = field(default_factory=dict)  #: by container, the CPUs it was put on last
    ids: Mapping[str, ContainerKey] = field(default_factory=dict)  #: the container each id stands for
    #: containers started again on other shared CPUs than ``last`` says, which the kubelet does not notice
    stale: frozenset[ContainerKey] = frozenset()

    def added(self, container_id: str, name: ContainerKey, *, ledger: CpuLedger) -> Self:
        """A container was made, on the CPUs that *ledger* says, and is about to start."""
        ids = {**self.ids, container_id: name}
        own = ledger.holds(*name)
        if own is not None:
            return replace(self, ids=ids, last={**self.last, name: own}, stale=self.stale - {name})
        as_told = self.last.get(name, ledger.shared) == ledger.shared
        return replace(self, ids=ids, stale=self.stale if as_told else self.stale | {name})

    def removed(self, container_id: str) -> Self:
        """A container is gone; nothing happens when its id is not known."""
        gone = self.ids.get(container_id)
        if gone is None:
            return self
        ids = {id_: name for id_, name in self.ids.items() if id_ != container_id}
        last = {name: cpus for name, cpus in self.last.items() if name != gone}
        return type(self)(last=last, ids=ids, stale=self.stale - {gone})

    def only(self, containers: frozenset[ContainerKey]) -> Self:
        """All others than *containers* are forgotten."""
        return type(self)(
            last={name: cpus for name, cpus in self.last.items() if name in containers},
            ids={id_: name for id_, name in self.ids.items() if name in containers},
            stale=self.stale & containers,
        )


@dataclass(frozen=True, slots=True)
class CpusetResult:
    """What became of a container, or of a whole pod that the runtime does not know."""

    uid: str
    container: str = ""  #: empty: the pod
    id: str = ""  #: empty: it does not run
    problem: str = ""  #: why it may not be on its CPUs; empty: it is on them

    @property
    def name(self) -> ContainerKey:
        """The container, as it is called elsewhere."""
        return self.uid, self.container


@dataclass(frozen=True, slots=True)
class CpusetUpdate:
    """A running container is to be put on other CPUs."""

    id: str
    name: ContainerKey
    cpus: CpuSet


#: Has a container on other CPUs, and returns when it is, not before; why it may not be on them, or nothing.
ApplyUpdate = Callable[[CpusetUpdate], Awaitable[str]]


@dataclass(frozen=True, slots=True)
class CpusetPlan:
    """What is to be done to bring every container where it belongs."""

    told: AppliedCpusets  #: until now
    results: tuple[CpusetResult, ...]  #: by pod and container, as if every update succeeded; who has ended has none
    updates: tuple[CpusetUpdate, ...]  #: in the order they are to be made

    def done(self, failures: Mapping[ContainerKey, str]) -> tuple[AppliedCpusets, tuple[CpusetResult, ...]]:
        """What the runtime knows after the updates, *failures* apart, and what became of everybody."""
        moved = {update.name: update.cpus for update in self.updates if update.name not in failures}
        told = replace(self.told, last={**self.told.last, **moved}, stale=self.told.stale - moved.keys())
        if not failures:
            return told, self.results
        return told, tuple(replace(one, problem=failures.get(one.name, one.problem)) for one in self.results)


def containers_of(pods: Iterable[Pod]) -> frozenset[ContainerKey]:
    """All containers of *pods*; whatever else is remembered is of pods that are gone."""
    return frozenset((pod.uid, container.name) for pod in pods for container in pod.all_containers)


def plan_cpusets(
    told: AppliedCpusets, pods: Iterable[Pod], *, statuses: ObservedContainers, ledger: CpuLedger
) -> CpusetPlan:
    """What to tell the runtime about the containers of *pods*, so that each is where *ledger* says."""
    verdicts = tuple(_verdicts(pods, statuses, ledger))
    running = {one.id: one.name for one in verdicts if one.id}
    updates = [
        CpusetUpdate(one.id, one.name, ledger.runs_on(*one.name)) for one in verdicts if one.id and not one.problem
    ]
    due = [one for one in updates if one.cpus != told.last.get(one.name, 0) or one.name in told.stale]
    known = replace(told, ids={**told.ids, **running})
    return CpusetPlan(known, verdicts, _in_order(due, told.last, ledger=ledger))


async def reconcile_cpusets(  # noqa: PLR0913 - all that is known, and who acts on it
    told: AppliedCpusets,
    pods: Sequence[Pod],
    *,
    ledger: CpuLedger,
    statuses: ObservedContainers,
    move: ApplyUpdate,
    ready: bool = True,
) -> tuple[AppliedCpusets, tuple[CpusetResult, ...]]:
    """Bring every running container of *pods* where *ledger* says, as far as whoever moves them can.

    Gone pods are forgotten first, unless *pods* may not be all there are because not every source of pods is *ready*.
    """
    known = told.only(containers_of(pods)) if ready else told
    planned = plan_cpusets(known, pods, statuses=statuses, ledger=ledger)
    failures: dict[ContainerKey, str] = {}
    for update in planned.updates:
        if problem := await move(update):
            failures[update.name] = problem
    return planned.done(failures)


def _verdicts(pods: Iterable[Pod], statuses: ObservedContainers, ledger: CpuLedger) -> Iterator[CpusetResult]:
    """What can be said of everybody before the runtime is told anything."""
    for pod in pods:
        status = statuses.get(pod.uid)
        if status is None:
            yield CpusetResult(pod.uid, problem=NO_STATUS)
            continue
        for container in pod.all_containers:
            seen = status.get(container.name, ObservedContainer())
            if not seen.id or seen.phase is ContainerPhase.WAITING:
                yield CpusetResult(pod.uid, container.name, problem=NOT_RUNNING)
            elif seen.phase is ContainerPhase.RUNNING:
                problem = "" if ledger.runs_on(pod.uid, container.name) else NO_CPUS
                yield CpusetResult(pod.uid, container.name, seen.id, problem)


def _in_order(
    updates: Sequence[CpusetUpdate], last: Mapping[ContainerKey, CpuSet], *, ledger: CpuLedger
) -> tuple[CpusetUpdate, ...]:
    """First those who share, then those who own CPUs, each when the others have left these; else as they come."""
    sharers = [update for update in updates if ledger.holds(*update.name) is None]
    owners = [update for update in updates if ledger.holds(*update.name) is not None]
    ordered = []
    while any(update.name in last for update in owners):
        # Where everybody is in somebody's way, there is no right one to begin with.
        first = next((one for one in owners if not _in_the_way(one, owners, last)), owners[0])
        owners.remove(first)
        ordered.append(first)
    return (*sharers, *ordered, *owners)


def _in_the_way(update: CpusetUpdate, others: Iterable[CpusetUpdate], last: Mapping[ContainerKey, CpuSet]) -> bool:
    """Whether a container of another pod, which is to move too, is still on the CPUs."""
    return any(last.get(other.name, 0) & update.cpus and other.name[0] != update.name[0] for other in others)
