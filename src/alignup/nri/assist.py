"""Assist mode: beside a kubelet whose static CPU manager stays in charge, shared containers get a NUMA-aware part.

Containers with exclusive CPUs are left alone. The others get the part of the kubelet's shared pool that
:mod:`alignup.align.shared_pool` chooses for their pod: when they are created, when the kubelet updates them (its
reconcile loop sends the whole pool to every container after each change of the pool; a resize changes requests), when
other containers come and go, and when the kubelet's state file changes. As long as that file cannot be read, containers
keep what they have, and new ones get what the kubelet says.

A runtime does not say whether the changes in an answer succeeded, skips containers whose creation is still under way,
and may apply an update of the kubelet after a later one of the plugin. So each change in an answer is sent once more as
an update of its own, which fails visibly.

Up to NRI 0.12.0 an update that nobody asked for can block the runtime for good, since it takes two locks in another
order than events do. There all changes wait for the next event; the kubelet's reconcile loop brings one for every
shared container within ten seconds after a change of the pool.

Runtimes tell neither requests nor the QoS class, so CPU requests are computed from CPU shares, and the memory that a
pod may use is its limit.
"""
# ruff: noqa: ARG002 - the arguments are those of NriPlugin

import asyncio
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass

import structlog

from alignup.align import bits
from alignup.align.bits import CpuSet, NodeSet
from alignup.align.errors import AlignError, ParseError
from alignup.align.shared_pool import PoolShare, SharedPod, divide_pool
from alignup.nri.kubelet_pool import KubeletPool
from alignup.nri.metrics import NriMetrics
from alignup.nri.nri_plugin import NriPlugin, PluginConnection, parse_version
from alignup.nri.ttrpc import Code, RpcError
from alignup.wire import nri_pb2 as wire

_SHARES_PER_CPU = 1024
_FIRST_SAFE = (0, 12, 1)
_LEAST_SHARES = 2  #: of a container that requests no CPU
_MAX_ROUNDS = 3  #: of updates in a row, when the pool changes while they are on their way

_log = structlog.get_logger()


@dataclass(slots=True)
class RunningContainer:
    """A container that runs or is about to."""

    id: str
    pod: str  #: the uid
    name: str
    pod_name: str = ""  #: with its namespace
    cpu: int = 0  #: requested milli-CPUs
    memory: int | None = None  #: limit in bytes
    cpus: CpuSet = 0  #: that it may use now; 0: all
    memory_nodes: NodeSet = 0  #: the same
    listed: bool = False  #: whether it was there before this process, and may have its part from an earlier one
    exclusive: bool = False  #: whether the kubelet ever gave it CPUs of its own

    def take(self, resources: wire.LinuxResources) -> None:
        """Take over what *resources* sets; runtimes leave out, or send 0 for, what stays."""
        if shares := resources.cpu.shares.value:
            # The kubelet rounds down.
            self.cpu = -(-shares * 1000 // _SHARES_PER_CPU) if shares > _LEAST_SHARES else 0
        if resources.memory.limit.value > 0:
            self.memory = resources.memory.limit.value
        self.cpus = _set(resources.cpu.cpus) or self.cpus
        self.memory_nodes = _set(resources.cpu.mems) or self.memory_nodes

    def as_update(self) -> wire.ContainerUpdate:
        """Return an update to what the container has by now; an empty set means no change to the runtime."""
        return container_update(self.id, self.cpus, self.memory_nodes)


_Changes = list[tuple[RunningContainer, wire.ContainerUpdate]]


class AssistPlugin(NriPlugin):
    """The containers of a runtime, and the part of the pool that *read_pool* returns for each shared one."""

    mode = "assist"

    def __init__(self, read_pool: Callable[[], KubeletPool], metrics: NriMetrics) -> None:
        self._read_pool = read_pool
        self._metrics = metrics
        self._containers: dict[str, RunningContainer] = {}  #: by id
        self._shares: dict[str, PoolShare] = {}  #: by pod uid; of pods without containers, too, which may restart
        self._settled: KubeletPool | None = None  #: the pool of which every container has been given its part
        self._created: set[str] = set()  #: containers that the runtime does not update yet
        self._unconfirmed: set[str] = set()  #: containers that may not have what they were given
        self._failing: set[str] = set()  #: containers whose last update failed
        self._updates_safe = False  #: whether the runtime bears updates that it has not asked for
        self.problem = ""  #: why the pool is not known
        self.unaligned: dict[str, tuple[str, str]] = {}  #: uid of a running pod without a decision → name, reason
        self.wake = asyncio.Event()  #: when :meth:`rebalance` should be called at once

    async def synchronize(
        self, pods: Sequence[wire.PodSandbox], containers: Sequence[wire.Container]
    ) -> Sequence[wire.ContainerUpdate]:
        by_id = {pod.id: pod for pod in pods}
        for containers_by_id in (self._containers, self._created, self._unconfirmed):
            containers_by_id.clear()
        for uid in self._shares.keys() - {pod.uid for pod in pods}:  # removed while this process was not connected
            del self._shares[uid]
        for container in containers:
            if container.state != wire.CONTAINER_STOPPED and container.pod_sandbox_id in by_id:
                self._add(by_id[container.pod_sandbox_id], container).listed = True
        self._metrics.connected.set(1)
        _log.info("containers listed", pods=len(pods), containers=len(self._containers))
        return self._answer(self._divide())

    async def configure(self, request: wire.ConfigureRequest) -> None:
        self._updates_safe = parse_version(request.NRI_version) >= _FIRST_SAFE  # runtimes send it since 0.12

    async def disconnected(self) -> None:
        self._metrics.connected.set(0)

    async def create_container(self, pod: wire.PodSandbox, container: wire.Container) -> wire.CreateContainerResponse:
        self._add(pod, container)
        self._created.add(container.id)
        response = wire.CreateContainerResponse()
        for update in self._answer(self._divide()):
            if update.container_id == container.id:
                response.adjust.linux.resources.CopyFrom(update.linux.resources)
                self._unconfirmed.discard(container.id)  # it is created with it, or not at all
            else:
                response.update.append(update)
        return response

    async def post_create_container(self, pod: wire.PodSandbox, container: wire.Container) -> None:
        self._created.discard(container.id)
        if container.id in self._unconfirmed:
            self.wake.set()

    async def update_container(
        self, pod: wire.PodSandbox, container: wire.Container, resources: wire.LinuxResources
    ) -> Sequence[wire.ContainerUpdate]:
        updated_container = self._containers.get(container.id)
        if updated_container is None:  # it has stopped, though the kubelet does not know yet
            return ()
        updated_container.take(resources)
        changes = self._divide()
        runtime_cpus = _set(resources.cpu.cpus)
        for changed_container, update in changes:
            cpu = update.linux.resources.cpu
            # Never more than the kubelet has just said, if only for now.
            if changed_container is updated_container and cpu.cpus and runtime_cpus:
                cpu.cpus = bits.show(_set(cpu.cpus) & runtime_cpus)
                self._settled = None
        return self._answer(changes)

    async def stop_container(self, pod: wire.PodSandbox, container: wire.Container) -> Sequence[wire.ContainerUpdate]:
        self._forget(container.id)
        return self._answer(self._divide())

    async def remove_container(self, pod: wire.PodSandbox, container: wire.Container) -> None:
        self._forget(container.id)

    async def remove_pod_sandbox(self, pod: wire.PodSandbox) -> None:
        if all(container.pod != pod.uid for container in self._containers.values()):  # else it has a new sandbox
            self._shares.pop(pod.uid, None)

    @property
    def containers(self) -> Collection[RunningContainer]:
        """The running containers with their CPUs and memory nodes."""
        return self._containers.values()

    async def rebalance(self, connection: PluginConnection) -> None:
        """Change containers for which the pool has changed, and confirm earlier changes; retry failures next time."""
        if not self._updates_safe:
            return
        for _ in range(_MAX_ROUNDS):
            self.wake.clear()
            if self._settled is not None and self._settled is self._pool() and not self._unconfirmed - self._created:
                return
            self._answer(self._divide())
            ids = self._unconfirmed - self._created
            if not ids:
                return
            self._unconfirmed -= ids  # an event may add some again while the updates are on their way
            failed_ids = await _send(connection, [self._containers[id_].as_update() for id_ in sorted(ids)])
            self._unconfirmed |= failed_ids & self._containers.keys()
            self._metrics.updates.labels("ok").inc(len(ids - failed_ids))
            self._metrics.updates.labels("error").inc(len(failed_ids))
            if failed_ids - self._failing:
                _log.warning("updates of containers failed", containers=sorted(failed_ids))
            self._failing = failed_ids
            if failed_ids:
                return

    def _forget(self, id_: str) -> None:
        self._containers.pop(id_, None)
        self._created.discard(id_)
        self._unconfirmed.discard(id_)

    def _add(self, pod: wire.PodSandbox, container: wire.Container) -> RunningContainer:
        running_container = RunningContainer(container.id, pod.uid, container.name, f"{pod.namespace}/{pod.name}")
        running_container.take(container.linux.resources)
        self._containers[container.id] = running_container
        return running_container

    def _answer(self, changes: _Changes) -> list[wire.ContainerUpdate]:
        """Return the updates, and remember what the containers get by them, which is to be confirmed."""
        for container, update in changes:
            container.take(update.linux.resources)
            self._unconfirmed.add(container.id)
        return [update for _, update in changes]

    def _pool(self) -> KubeletPool | None:
        """Read the pool; ``None`` if it is unknown, which is logged once."""
        try:
            pool = self._read_pool()
        except AlignError as error:
            if self.problem != str(error):
                _log.warning("the shared pool is unknown; containers stay as they are", problem=str(error))
            self.problem = str(error)
            return None
        self.problem = ""
        return pool

    def _divide(self) -> _Changes:
        """Divide the pool anew; return the shared containers that do not have their part, and what to change."""
        pool = self._settled = self._pool()
        if pool is None:
            return []
        for container in self._containers.values():
            container.exclusive = container.exclusive or not pool.shares(container.pod, container.name)
        shared_containers = [container for container in self._containers.values() if not container.exclusive]
        division = divide_pool(pool.shared, _pods(pool, shared_containers), self._kept(pool, shared_containers))
        self._shares.update(division)
        self._metrics.show(pool, division)
        everything = PoolShare(pool.shared.nodes, pool.all_cpus, bits.of(pool.shared.node_memory))
        container_shares = (
            (container, division[container.pod]) for container in shared_containers if container.pod in division
        )
        changes = ((container, _update(container, share, everything)) for container, share in container_shares)
        return [(container, update) for container, update in changes if update is not None]

    def _kept(self, pool: KubeletPool, shared_containers: Iterable[RunningContainer]) -> dict[str, PoolShare]:
        """Return the previous division; that of containers which an earlier process changed is read from their CPUs."""
        shares = dict(self._shares)
        for container in shared_containers:
            inside = container.cpus & pool.shared.cpus
            if container.listed and container.pod not in shares and inside and inside != pool.shared.cpus:
                nodes = bits.of(node for node, cpus in pool.shared.node_cpus.items() if cpus & inside)
                shares[container.pod] = PoolShare(nodes, inside, container.memory_nodes)
        return shares


def _pods(pool: KubeletPool, containers: Iterable[RunningContainer]) -> list[SharedPod]:
    """Return the pods of *containers*, with what these need together."""
    pods: dict[str, SharedPod] = {}
    for container in containers:
        pod = pods.get(container.pod, SharedPod(container.pod, memory=0))
        limited = pod.memory is not None and container.memory is not None
        pods[container.pod] = SharedPod(
            container.pod,
            cpu=pod.cpu + container.cpu,
            memory=(pod.memory or 0) + (container.memory or 0) if limited else None,
            pinned=pod.pinned | pool.pinned.get(container.pod, {}).get(container.name, 0),
        )
    return list(pods.values())


def _update(container: RunningContainer, share: PoolShare, everything: PoolShare) -> wire.ContainerUpdate | None:
    """Return the change from what *container* has to *share*; a container without a set has *everything*."""
    cpus = share.cpus if (container.cpus or everything.cpus) != share.cpus else 0
    has_nodes = (container.memory_nodes or everything.memory_nodes) == share.memory_nodes
    memory_nodes = 0 if has_nodes else share.memory_nodes
    return container_update(container.id, cpus, memory_nodes) if cpus or memory_nodes else None


def container_update(id_: str, cpus: CpuSet, memory_nodes: NodeSet) -> wire.ContainerUpdate:
    cpu = wire.LinuxCPU(cpus=bits.show(cpus), mems=bits.show(memory_nodes))
    linux = wire.LinuxContainerUpdate(resources=wire.LinuxResources(cpu=cpu))
    return wire.ContainerUpdate(container_id=id_, linux=linux)


async def _send(connection: PluginConnection, updates: Sequence[wire.ContainerUpdate]) -> set[str]:
    """Send *updates*; return the containers that were not updated.

    Runtimes do all the others, too, but answer with an error that does not say which failed.
    """
    try:
        return {update.container_id for update in await connection.update_containers(updates)}
    except RpcError as error:
        ids = {update.container_id for update in updates}
        if error.code in {Code.UNAVAILABLE, Code.DEADLINE_EXCEEDED} or len(updates) == 1:
            return ids
        return set().union(*[await _send(connection, [update]) for update in updates])


def _set(text: str) -> bits.Bits:
    """Return a set of CPUs or nodes; the empty one if the runtime sends none, or no list."""
    try:
        return bits.parse(text)
    except ParseError:
        return 0
