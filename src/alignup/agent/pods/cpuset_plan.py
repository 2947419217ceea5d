"""Plan which cpusets to update so that every container runs on the CPUs the ledger assigns it.

The shared CPUs change with every pod that is admitted or released, and the containers on them must follow. So every few
seconds, and before a container starts on exclusive CPUs, the plan compares the running containers with the cpusets
applied so far. Failed updates are repeated by the next pass.

The kubelet goes pod by pod, so a container may be moved to exclusive CPUs that others still use. Here containers on
shared CPUs move first, to CPUs that no container owns. Among owners, one that occupies another's target moves first,
unless they swap. A container without any CPU to move to stays where it is, and its result says so.

This applies to the static policy only. Everything is pure except :func:`reconcile_cpusets`.
"""

from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Self

from alignup.align.bits import CpuSet
from alignup.align.cpus.ledger import CpuLedger
from alignup.align.workload import Pod
from alignup.enforce.cri.types import ContainerState

ContainerKey = tuple[str, str]  #: pod uid and container name

NO_STATUS = "the runtime has no status of the pod"
NOT_RUNNING = "the container is not running yet"
NO_CPUS = "the container has no exclusive CPUs, and no shared CPUs are left"


@dataclass(frozen=True, slots=True)
class ObservedContainer:
    state: ContainerState = ContainerState.CREATED
    id: str = ""  #: empty: not created yet


#: Pod uid → container name → its state in the runtime; what the runtime does not have is left out.
ObservedContainers = Mapping[str, Mapping[str, ObservedContainer]]


@dataclass(frozen=True, slots=True, kw_only=True)
class AppliedCpusets:
    """The cpusets applied so far; lost with the agent, which then applies all of them again."""

    last: Mapping[ContainerKey, CpuSet] = field(default_factory=dict)
    ids: Mapping[str, ContainerKey] = field(default_factory=dict)  #: by container id
    #: containers that restarted on other shared CPUs than ``last``, which the kubelet does not notice
    stale: frozenset[ContainerKey] = frozenset()

    def added(self, container_id: str, name: ContainerKey, *, ledger: CpuLedger) -> Self:
        """Add a container that was created on the CPUs that *ledger* assigns."""
        ids = {**self.ids, container_id: name}
        own = ledger.holds(*name)
        if own is not None:
            return replace(self, ids=ids, last={**self.last, name: own}, stale=self.stale - {name})
        unchanged = self.last.get(name, ledger.shared) == ledger.shared
        return replace(self, ids=ids, stale=self.stale if unchanged else self.stale | {name})

    def removed(self, container_id: str) -> Self:
        """Remove a container; an unknown id is ignored."""
        gone = self.ids.get(container_id)
        if gone is None:
            return self
        ids = {id_: name for id_, name in self.ids.items() if id_ != container_id}
        last = {name: cpus for name, cpus in self.last.items() if name != gone}
        return type(self)(last=last, ids=ids, stale=self.stale - {gone})

    def only(self, containers: frozenset[ContainerKey]) -> Self:
        return type(self)(
            last={name: cpus for name, cpus in self.last.items() if name in containers},
            ids={id_: name for id_, name in self.ids.items() if name in containers},
            stale=self.stale & containers,
        )


@dataclass(frozen=True, slots=True)
class CpusetResult:
    """The result for a container, or for a whole pod without a status."""

    uid: str
    container: str = ""  #: empty: the pod
    id: str = ""  #: empty: not running
    problem: str = ""  #: why it may not be on its CPUs; empty: it is

    @property
    def name(self) -> ContainerKey:
        return self.uid, self.container


@dataclass(frozen=True, slots=True)
class CpusetUpdate:
    id: str
    name: ContainerKey
    cpus: CpuSet


#: Apply an update and return when it has taken effect; the result is why it may not have, or empty.
ApplyUpdate = Callable[[CpusetUpdate], Awaitable[str]]


@dataclass(frozen=True, slots=True)
class CpusetPlan:
    applied: AppliedCpusets  #: before the updates
    results: tuple[CpusetResult, ...]  #: by pod and container, if every update succeeds; without terminated containers
    updates: tuple[CpusetUpdate, ...]  #: in the order to apply


def containers_of(pods: Iterable[Pod]) -> frozenset[ContainerKey]:
    return frozenset((pod.uid, container.name) for pod in pods for container in pod.all_containers)


def plan_cpusets(
    applied: AppliedCpusets, pods: Iterable[Pod], *, statuses: ObservedContainers, ledger: CpuLedger
) -> CpusetPlan:
    """Plan the updates that move the containers of *pods* to the CPUs that *ledger* assigns."""
    results = tuple(_results(pods, statuses, ledger))
    running = {one.id: one.name for one in results if one.id}
    updates = [
        CpusetUpdate(one.id, one.name, ledger.runs_on(*one.name)) for one in results if one.id and not one.problem
    ]
    due = [one for one in updates if one.cpus != applied.last.get(one.name, 0) or one.name in applied.stale]
    known = replace(applied, ids={**applied.ids, **running})
    return CpusetPlan(known, results, _in_order(due, applied.last, ledger=ledger))


async def reconcile_cpusets(  # noqa: PLR0913
    applied: AppliedCpusets,
    pods: Sequence[Pod],
    *,
    ledger: CpuLedger,
    statuses: ObservedContainers,
    move: ApplyUpdate,
    ready: bool = True,
) -> tuple[AppliedCpusets, tuple[CpusetResult, ...]]:
    """Move every running container of *pods* to the CPUs that *ledger* assigns.

    Other pods are forgotten first, unless *pods* may be incomplete because not every source of pods is *ready*.
    """
    known = applied.only(containers_of(pods)) if ready else applied
    plan = plan_cpusets(known, pods, statuses=statuses, ledger=ledger)
    problems = {update.name: await move(update) for update in plan.updates}
    moved = {update.name: update.cpus for update in plan.updates if not problems[update.name]}
    after = replace(plan.applied, last={**plan.applied.last, **moved}, stale=plan.applied.stale - moved.keys())
    return after, tuple(replace(one, problem=problems.get(one.name, one.problem)) for one in plan.results)


def _results(pods: Iterable[Pod], statuses: ObservedContainers, ledger: CpuLedger) -> Iterator[CpusetResult]:
    """The results that are known before any update."""
    for pod in pods:
        status = statuses.get(pod.uid)
        if status is None:
            yield CpusetResult(pod.uid, problem=NO_STATUS)
            continue
        for container in pod.all_containers:
            observed = status.get(container.name, ObservedContainer())
            if observed.id and observed.state is ContainerState.RUNNING:
                problem = "" if ledger.runs_on(pod.uid, container.name) else NO_CPUS
                yield CpusetResult(pod.uid, container.name, observed.id, problem)
            elif not observed.id or observed.state is not ContainerState.EXITED:
                yield CpusetResult(pod.uid, container.name, problem=NOT_RUNNING)


def _in_order(
    updates: Sequence[CpusetUpdate], last: Mapping[ContainerKey, CpuSet], *, ledger: CpuLedger
) -> tuple[CpusetUpdate, ...]:
    """Sharers first, then owners of exclusive CPUs, each after the containers that occupy its target."""
    sharers = [update for update in updates if ledger.holds(*update.name) is None]
    owners = [update for update in updates if ledger.holds(*update.name) is not None]
    ordered = []

    def is_blocked(update: CpusetUpdate) -> bool:
        """Whether a container of another pod that is also to be moved still occupies the CPUs."""
        return any(last.get(other.name, 0) & update.cpus and other.name[0] != update.name[0] for other in owners)

    while any(update.name in last for update in owners):
        # In a cycle, any of them may go first.
        first = next((one for one in owners if not is_blocked(one)), owners[0])
        owners.remove(first)
        ordered.append(first)
    return (*sharers, *ordered, *owners)
