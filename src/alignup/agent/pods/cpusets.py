"""Containers on the CPUs the ledger says, from their first moment on, and moved whenever that changes.

One lock for all: while a container is being made on the shared CPUs, these stay as they are; and before one starts on
CPUs of its own, everybody who shared these has been told to leave them (``agent.pods.cpuset_plan``).
"""

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from typing import Protocol

from structlog.typing import FilteringBoundLogger

from alignup.agent.pods.cpuset_plan import (
    AppliedCpusets,
    ContainerKey,
    ContainerPhase,
    CpusetResult,
    CpusetUpdate,
    ObservedContainer,
    ObservedContainers,
    containers_of,
    reconcile_cpusets,
)
from alignup.agent.pods.pod_state import PodStatus as SeenPod
from alignup.align import bits
from alignup.align.bits import CpuSet, NodeSet
from alignup.align.cpus.ledger import CpuLedger
from alignup.align.cpus.options import CpuPolicy
from alignup.align.errors import CriError
from alignup.align.host import Host
from alignup.align.memory.ledger import MemoryLedger
from alignup.align.memory.provider import MemoryPolicy
from alignup.align.providers import CpuHintProvider as CpuProvider
from alignup.align.providers import MemoryProvider
from alignup.enforce.cri.types import ContainerState, CriContainer, LinuxResources

_PHASES = {ContainerState.RUNNING: ContainerPhase.RUNNING, ContainerState.EXITED: ContainerPhase.TERMINATED}


class CpusetUpdater(Protocol):
    """As much of a runtime as moving containers takes."""

    async def update(self, id_: str, resources: LinuxResources) -> None:
        """Hold a running container to other resources."""
        ...

    async def container(self, id_: str) -> CriContainer:
        """One, with all there is to know."""
        ...


@dataclass(frozen=True, slots=True)
class CpusetPlacement:
    """Where a container belongs."""

    cpus: CpuSet = 0  #: empty: wherever
    nodes: NodeSet = 0  #: from which its memory comes; empty: any
    exclusive: bool = False  #: the CPUs are its own


def placement_of(host: Host, uid: str, container: str) -> CpusetPlacement:
    """Where a container of a pod belongs as things stand; only static policies say."""
    cpus, exclusive, nodes = 0, False, 0
    if has_static_cpu_policy(host):
        book = cpu_ledger(host)
        cpus, exclusive = book.runs_on(uid, container), book.holds(uid, container) is not None
    if host.settings.memory_policy == MemoryPolicy.STATIC:
        nodes = bits.union(block.nodes for block in memory_ledger(host).blocks(uid, container) or ())
    return CpusetPlacement(cpus, nodes, exclusive)


def has_static_cpu_policy(host: Host) -> bool:
    """Whether containers are held to CPUs at all."""
    return host.settings.cpus.policy == CpuPolicy.STATIC


def cpu_ledger(host: Host) -> CpuLedger:
    """Who owns which CPUs."""
    book: CpuLedger = host.ledger.books[CpuProvider.name]
    return book


def memory_ledger(host: Host) -> MemoryLedger:
    """Who owns which memory."""
    book: MemoryLedger = host.ledger.books[MemoryProvider.name]
    return book


@dataclass
class CpusetReconciler:
    """Keeps containers where *host* says; *seen* tells what runs."""

    host: Callable[[], Host]
    seen: Callable[[], Mapping[str, SeenPod]]  #: by uid
    runtime: CpusetUpdater
    log: FilteringBoundLogger
    _told: AppliedCpusets = field(default_factory=AppliedCpusets)
    _new: dict[str, ContainerKey] = field(
        default_factory=dict
    )  #: container id → of those that were not seen to run yet
    _lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    _complaints: Mapping[ContainerKey, str] = field(default_factory=dict)
    _shared: CpuSet | None = None  #: as of the last pass

    @property
    def is_stale(self) -> bool:
        """Whether the shared CPUs have changed since everybody was put where they belong."""
        host = self.host()
        return has_static_cpu_policy(host) and cpu_ledger(host).shared != self._shared

    async def reconcile(self) -> None:
        """Put everybody where they belong, as far as the runtime lets us."""
        async with self._lock:
            await self._pass()

    @asynccontextmanager
    async def creating(self, uid: str, container: str) -> AsyncIterator[CpusetPlacement]:
        """Where a container is to be made, as long as this lasts; everybody else is out of its way."""
        async with self._lock:
            place = placement_of(self.host(), uid, container)
            if place.exclusive:
                await self._pass()
            yield place

    def created_in(self, id_: str, name: ContainerKey, place: CpusetPlacement) -> None:
        """A container was made in *place*, and is about to start; the ledger may say another by now."""
        host = self.host()
        if not has_static_cpu_policy(host):
            return
        book = cpu_ledger(host)
        self._new = {**{one: other for one, other in self._new.items() if other != name}, id_: name}
        self._told = self._told.added(id_, name, ledger=book)
        if place.cpus != book.runs_on(*name):
            self._told = replace(self._told, stale=self._told.stale | {name})
            self._shared = None

    async def _pass(self) -> None:
        host = self.host()
        if not has_static_cpu_policy(host):
            return
        book = cpu_ledger(host)
        pods = [resident.pod for resident in host.ledger.pods.values()]
        statuses = self._statuses(containers_of(pods))
        self._forget()
        self._told, verdicts = await reconcile_cpusets(
            self._told, pods, ledger=book, statuses=statuses, move=self._moved
        )
        # What could not be done is tried again with the next pass, which comes by itself.
        self._shared = book.shared
        self._complain(verdicts)

    async def _moved(self, update: CpusetUpdate) -> str:
        """Have a container moved; why it is not where it should be. One that has ended need not be anywhere."""
        try:
            await self.runtime.update(update.id, LinuxResources(cpus=update.cpus))
        except CriError as problem:
            try:
                seen = await self.runtime.container(update.id)
            except CriError as error:
                if not error.not_found:
                    return str(problem)
                self._new.pop(update.id, None)
                return ""
            return "" if seen.state is ContainerState.EXITED else str(problem)
        return ""

    def _forget(self) -> None:
        """Forget containers that are there no more."""
        there = {one.id for seen in self.seen().values() for one in seen.containers} | self._new.keys()
        for id_ in self._told.ids.keys() - there:
            self._told = self._told.removed(id_)

    def _statuses(self, here: frozenset[ContainerKey]) -> ObservedContainers:
        """What runs, as ``agent.pods.cpuset_plan`` has it: of each container the newest.

        Who was made here a moment ago counts as running: nobody may have looked since, and it starts where it was made.
        """
        found = {
            uid: {
                one.name: ObservedContainer(_PHASES.get(one.state, ContainerPhase.WAITING), one.id)
                for one in sorted(seen.containers, key=lambda one: (one.attempt, one.created))
            }
            for uid, seen in self.seen().items()
        }
        begun = {
            one.id
            for seen in self.seen().values()
            for one in seen.containers
            if one.state is not ContainerState.CREATED
        }
        self._new = {id_: name for id_, name in self._new.items() if name in here and id_ not in begun}
        for id_, (uid, container) in self._new.items():
            found.setdefault(uid, {})[container] = ObservedContainer(ContainerPhase.RUNNING, id_)
        return found

    def _complain(self, verdicts: tuple[CpusetResult, ...]) -> None:
        """Say once of each who runs why it is not where it should be."""
        pods = self.host().ledger.pods
        problems = {one.name: one.problem for one in verdicts if one.id and one.problem}
        for (uid, container), problem in problems.items():
            if self._complaints.get((uid, container)) != problem:
                pod = f"{pods[uid].pod.namespace}/{pods[uid].pod.name}" if uid in pods else uid
                self.log.warning(
                    "cpus", pod=pod, detail=f"container {container} is not on the CPUs it should be: {problem}"
                )
        self._complaints = problems
