"""Keep containers on the CPUs the ledger assigns them, from their creation on.

One lock serializes everything: while a container is being created on the shared CPUs, these do not change; and before
one starts on exclusive CPUs, every container that shared them has been moved off (``agent.pods.cpuset_plan``).
"""

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace

from structlog.typing import FilteringBoundLogger

from alignup.agent.pods.cpuset_plan import (
    AppliedCpusets,
    ContainerKey,
    CpusetResult,
    CpusetUpdate,
    ObservedContainer,
    ObservedContainers,
    containers_of,
    reconcile_cpusets,
)
from alignup.agent.pods.pod_state import PodStatus
from alignup.align import bits
from alignup.align.bits import CpuSet, NodeSet
from alignup.align.cpus.options import CpuPolicy
from alignup.align.errors import CriError
from alignup.align.host import Host
from alignup.align.memory.provider import MemoryPolicy
from alignup.enforce.cri.client import RuntimeClient
from alignup.enforce.cri.types import ContainerState, LinuxResources


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
    """Move the containers in *statuses* to the CPUs that the ledger of *host* assigns."""

    host: Callable[[], Host]
    statuses: Callable[[], Mapping[str, PodStatus]]  #: by uid
    runtime: RuntimeClient
    log: FilteringBoundLogger
    _applied: AppliedCpusets = field(default_factory=AppliedCpusets)
    _new: dict[str, ContainerKey] = field(default_factory=dict)  #: by id, containers that have not been seen running
    _lock: asyncio.Lock = field(default_factory=asyncio.Lock)
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
        observed = self._observed(containers_of(pods))
        present = {one.id for status in self.statuses().values() for one in status.containers} | self._new.keys()
        for id_ in self._applied.ids.keys() - present:
            self._applied = self._applied.removed(id_)
        self._applied, results = await reconcile_cpusets(
            self._applied, pods, ledger=ledger, statuses=observed, move=self._update
        )
        self._shared = ledger.shared  # failed updates are repeated by the next periodic pass
        self._log_problems(results)

    async def _update(self, update: CpusetUpdate) -> str:
        """Move a container; return why that failed. An exited or removed container is not a failure."""
        try:
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
        """Log once why a running container is not on its CPUs."""
        pods = self.host().ledger.pods
        problems = {one.name: one.problem for one in results if one.id and one.problem}
        for (uid, container), problem in problems.items():
            if self._logged.get((uid, container)) != problem:
                pod = f"{pods[uid].pod.namespace}/{pods[uid].pod.name}" if uid in pods else uid
                self.log.warning("cpus", pod=pod, detail=f"container {container} is not on its CPUs: {problem}")
        self._logged = problems
