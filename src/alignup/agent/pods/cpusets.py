"""Keep containers on the CPUs the ledger assigns them, from their creation on.

The shared CPUs change with every pod that is admitted or released, and the containers on them must follow. So every few
seconds, and before a container starts on exclusive CPUs, the running containers are compared with the cpusets applied
so far. Failed updates are repeated by the next pass. This applies to the static policy only.

The kubelet goes pod by pod, so a container may be moved to exclusive CPUs that others still use. Here containers on
shared CPUs move first, to CPUs that no container owns. Among owners, one that occupies another's target moves first,
unless they swap. A container without any CPU to move to stays where it is, and its result says so.
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from typing import Self
from weakref import WeakValueDictionary

from structlog.typing import FilteringBoundLogger

from alignup.agent.pods.pod_state import PodStatus
from alignup.align import bits
from alignup.align.bits import CpuSet, NodeSet
from alignup.align.cpus.ledger import CpuLedger
from alignup.align.cpus.options import CpuPolicy
from alignup.align.errors import CriError
from alignup.align.host import Host
from alignup.align.memory.provider import MemoryPolicy
from alignup.align.workload import Pod
from alignup.run.cri.client import RuntimeClient
from alignup.run.cri.types import ContainerState, LinuxResources

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


def containers_of(pods: Iterable[Pod]) -> frozenset[ContainerKey]:
    return frozenset((pod.uid, container.name) for pod in pods for container in pod.all_containers)


def plan_cpusets(
    applied: AppliedCpusets, pods: Iterable[Pod], *, statuses: ObservedContainers, ledger: CpuLedger
) -> tuple[tuple[CpusetResult, ...], tuple[CpusetUpdate, ...]]:
    """Plan the updates that move the containers of *pods* to the CPUs that *ledger* assigns, in order.

    The results are those if every update succeeds, by pod and container, without terminated containers.
    """
    results = tuple(_results(pods, statuses, ledger))
    updates = [
        CpusetUpdate(one.id, one.name, ledger.runs_on(*one.name)) for one in results if one.id and not one.problem
    ]
    due = [one for one in updates if one.cpus != applied.last.get(one.name, 0) or one.name in applied.stale]
    return results, _in_order(due, applied.last, ledger=ledger)


async def reconcile_cpusets(
    applied: AppliedCpusets,
    pods: Iterable[Pod],
    *,
    ledger: CpuLedger,
    statuses: ObservedContainers,
    move: ApplyUpdate,
) -> tuple[AppliedCpusets, tuple[CpusetResult, ...]]:
    """Move every running container of *pods* to the CPUs that *ledger* assigns."""
    results, updates = plan_cpusets(applied, pods, statuses=statuses, ledger=ledger)
    problems = {update.name: await move(update) for update in updates}
    moved = {update.name: update.cpus for update in updates if not problems[update.name]}
    ids = {**applied.ids, **{one.id: one.name for one in results if one.id}}
    after = replace(applied, ids=ids, last={**applied.last, **moved}, stale=applied.stale - moved.keys())
    return after, tuple(replace(one, problem=problems.get(one.name, one.problem)) for one in results)


def _results(pods: Iterable[Pod], statuses: ObservedContainers, ledger: CpuLedger) -> Iterator[CpusetResult]:
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

    def blocker(update: CpusetUpdate) -> CpusetUpdate | None:
        """A container of another pod that is also to be moved and still occupies the CPUs."""
        others = (one for one in owners if one.name[0] != update.name[0])
        return next((other for other in others if last.get(other.name, 0) & update.cpus), None)

    while any(update.name in last for update in owners):
        first = next((one for one in owners if blocker(one) is None), None)
        if first is None:
            first = owners[0]
            for _ in owners:  # the blockers of blockers are a cycle in the end, and any in it may go first
                first = blocker(first) or first
        owners.remove(first)
        ordered.append(first)
    return (*sharers, *ordered, *owners)


@dataclass(frozen=True, slots=True)
class CpusetPlacement:
    cpus: CpuSet = 0  #: empty: any
    nodes: NodeSet = 0  #: that its memory comes from; empty: any
    exclusive: bool = False  #: no other container uses the CPUs


def placement_of(host: Host, uid: str, container: str) -> CpusetPlacement:
    """The current placement of a container; empty unless a static policy assigns one."""
    cpus, exclusive, nodes = 0, False, 0
    if has_static_cpu_policy(host):
        ledger = host.ledger.cpus
        cpus, exclusive = ledger.runs_on(uid, container), ledger.holds(uid, container) is not None
    if host.settings.memory_policy == MemoryPolicy.STATIC:
        nodes = bits.union(block.nodes for block in host.ledger.memory.blocks(uid, container) or ())
    return CpusetPlacement(cpus, nodes, exclusive)


def has_static_cpu_policy(host: Host) -> bool:
    return host.settings.cpus.policy == CpuPolicy.STATIC


@dataclass
class CpusetReconciler:
    """Move the containers in *statuses* to the CPUs that the ledger of *host* assigns.

    One lock serializes everything: while a container is being created on the shared CPUs, these do not change; and
    before one starts on exclusive CPUs, every container that shared them has been moved off.
    """

    host: Callable[[], Host]
    statuses: Callable[[], Mapping[str, PodStatus]]  #: by uid
    runtime: RuntimeClient
    log: FilteringBoundLogger
    _applied: AppliedCpusets = field(default_factory=AppliedCpusets)
    _new: dict[str, ContainerKey] = field(default_factory=dict)  #: by id, containers that have not been seen running
    _lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    _busy: WeakValueDictionary[str, asyncio.Lock] = field(default_factory=WeakValueDictionary)  #: by id, while used
    _logged: Mapping[ContainerKey, str] = field(default_factory=dict)
    _shared: CpuSet | None = None  #: the shared CPUs at the last pass; ``None``: a pass is due

    @property
    def is_stale(self) -> bool:
        """Whether the shared CPUs have changed since the last pass."""
        host = self.host()
        return has_static_cpu_policy(host) and host.ledger.cpus.shared != self._shared

    async def reconcile(self) -> None:
        async with self._lock:
            await self._reconcile()

    @asynccontextmanager
    async def creating(self, uid: str, container: str) -> AsyncIterator[CpusetPlacement]:
        """The placement of a container that is about to be created, free of other containers if it is exclusive."""
        async with self._lock:
            placement = placement_of(self.host(), uid, container)
            if placement.exclusive:
                await self._reconcile()
            yield placement

    @asynccontextmanager
    async def alone(self, id_: str) -> AsyncIterator[None]:
        """Start or update a container, but not both at once: containerd would lose the update."""
        async with self._busy.setdefault(id_, asyncio.Lock()):
            yield

    def created_in(self, id_: str, key: ContainerKey, placement: CpusetPlacement) -> None:
        """Record a container created in *placement*, which may differ from the ledger by now."""
        host = self.host()
        if not has_static_cpu_policy(host):
            return
        ledger = host.ledger.cpus
        self._new = {**{one: other for one, other in self._new.items() if other != key}, id_: key}
        self._applied = self._applied.added(id_, key, ledger=ledger)
        if placement.cpus != ledger.runs_on(*key):
            self._applied = replace(self._applied, stale=self._applied.stale | {key})
            self._shared = None

    async def _reconcile(self) -> None:
        host = self.host()
        if not has_static_cpu_policy(host):
            return
        ledger = host.ledger.cpus
        pods = [admitted.pod for admitted in host.ledger.pods.values()]
        containers = containers_of(pods)
        observed = self._observed(containers)
        present = {one.id for status in self.statuses().values() for one in status.containers} | self._new.keys()
        for id_ in self._applied.ids.keys() - present:
            self._applied = self._applied.removed(id_)
        self._applied, results = await reconcile_cpusets(
            self._applied.only(containers), pods, ledger=ledger, statuses=observed, move=self._update
        )
        self._shared = ledger.shared  # failed updates are repeated by the next periodic pass
        self._log_problems(results)

    async def _update(self, update: CpusetUpdate) -> str:
        """Move a container; return why that failed. An exited or removed container is not a failure."""
        try:
            async with self.alone(update.id):
                await self.runtime.update(update.id, LinuxResources(cpus=update.cpus))
        except CriError as problem:
            try:
                container = await self.runtime.container(update.id)
            except CriError as error:
                if not error.not_found:
                    return str(problem)
                self._new.pop(update.id, None)
                return ""
            return "" if container.state is ContainerState.EXITED else str(problem)
        return ""

    def _observed(self, admitted: frozenset[ContainerKey]) -> ObservedContainers:
        """The newest instance of each container.

        One that was just created counts as running: the status may not show it yet, and it starts where it was created.
        """
        found: dict[str, dict[str, ObservedContainer]] = {}
        started = set()
        for uid, status in self.statuses().items():
            found[uid] = {}
            for one in sorted(status.containers, key=lambda one: (one.attempt, one.created)):
                found[uid][one.name] = ObservedContainer(one.state, one.id)
                if one.state is not ContainerState.CREATED:
                    started.add(one.id)
        self._new = {id_: key for id_, key in self._new.items() if key in admitted and id_ not in started}
        for id_, (uid, container) in self._new.items():
            found.setdefault(uid, {})[container] = ObservedContainer(ContainerState.RUNNING, id_)
        return found

    def _log_problems(self, results: tuple[CpusetResult, ...]) -> None:
        pods = self.host().ledger.pods
        problems = {one.name: one.problem for one in results if one.id and one.problem}
        for (uid, container), problem in problems.items():
            if self._logged.get((uid, container)) != problem:
                pod = f"{pods[uid].pod.namespace}/{pods[uid].pod.name}" if uid in pods else uid
                self.log.warning("cpus", pod=pod, detail=f"container {container} is not on its CPUs: {problem}")
        self._logged = problems
