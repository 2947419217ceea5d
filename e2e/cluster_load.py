"""Load for a real API server and scheduler: pods that come and go, on simulated kubelets that check every promise."""

import asyncio
import json
import random
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from contextlib import asynccontextmanager, suppress
from itertools import count
from statistics import median
from typing import Any

from alignup.align import bits
from alignup.kubernetes.api import NODES, PODS, ApiClient, Change, EventType, Timing, find_access
from alignup.kubernetes.api.errors import (
    AlreadyExistsError,
    NotFoundError,
    ServerFailureError,
    TooManyRequestsError,
    UnreachableError,
)
from alignup.kubernetes.api.host_states import HOST_STATES
from alignup.kubernetes.api.objects import ApiPod
from alignup.schedule.cluster_facts import PLACEMENT_ANNOTATION
from alignup.testing.simulated_kubelet import SimulatedKubelet
from e2e.control_plane import ControlPlane
from e2e.definitions import define_host_states
from e2e.fake_nodes import FakeNodes
from e2e.schedule_replicas import NAMESPACE
from e2e.simulated_cluster import NAMESPACES, pod

LIFE = (1.0, 4.0)  #: seconds for which a pod runs
STUCK_SECONDS = 15.0  #: after which a pod that was released to a node that is being removed will not be bound
MOST_WAITING = 150  #: pods; no more are created until fewer wait
RETRY_SECONDS = 0.5
PATIENCE = 300.0  #: seconds for what takes seconds
SETTLED = 0.25  #: of the time, after which memory is flat: five of twenty minutes
SETTLING_SECONDS = 600.0  #: in less time, memory need not be flat
GROWTH = 1.05


class PersistentClient(ApiClient):
    """A client that repeats writes until an API server that is away has answered."""

    async def apply(self, *arguments: Any, **options: Any) -> Any:  # noqa: ANN401 - as the client's
        return await self._persist(lambda: super(PersistentClient, self).apply(*arguments, **options))

    async def patch(self, *arguments: Any, **options: Any) -> Any:  # noqa: ANN401
        return await self._persist(lambda: super(PersistentClient, self).patch(*arguments, **options))

    async def create(self, *arguments: Any, **options: Any) -> Any:  # noqa: ANN401
        return await self._persist(lambda: super(PersistentClient, self).create(*arguments, **options))

    async def delete(self, *arguments: Any, **options: Any) -> Any:  # noqa: ANN401
        return await self._persist(lambda: super(PersistentClient, self).delete(*arguments, **options))

    async def _persist(self, call: Callable[[], Awaitable[Any]]) -> Any:  # noqa: ANN401
        while True:
            try:
                return await call()
            except (UnreachableError, ServerFailureError, TooManyRequestsError):
                await asyncio.sleep(RETRY_SECONDS)
            except (AlreadyExistsError, NotFoundError):  # the response to an earlier attempt was lost
                return None


class LoadedNodes(FakeNodes):
    """Kubelets that work at the same time, end pods after a while, and compare what was promised to pods."""

    def __init__(self, client: ApiClient, chance: random.Random) -> None:
        super().__init__(client)
        self.ended = 0
        self.names = 0  #: of nodes, so far
        self.stuck: set[str] = set()  #: pods that were released to a node that was removed
        self.deviations = 0  #: pods that got other CPUs than promised, since a pod ended before they came
        self.promised_twice: list[str] = []
        self._chance = chance
        self._queues: dict[str, asyncio.Queue[Change[ApiPod] | ApiPod]] = {}
        self._workers: dict[str, asyncio.Task[None]] = {}
        self._seen: set[str] = set()  #: uids

    @property
    def pods(self) -> Iterator[ApiPod]:
        return iter(tuple(self._informer.objects.values()))

    @property
    def waiting(self) -> int:
        return sum(not pod.spec.node_name for pod in self.pods)

    @property
    def admitted(self) -> int:
        return len(self._seen)

    async def add(self, name: str) -> None:
        self._queues[name] = asyncio.Queue()
        self.names += 1
        await super().add(name)
        self._workers[name] = asyncio.create_task(self._serve(name))

    async def remove(self, name: str) -> None:
        """Drain a node, and remove it.

        A pod that was released to it and not bound cannot go elsewhere: it is deleted, as its controller would.
        """
        await self._client.patch(NODES.at(name), {"spec": {"unschedulable": True}})
        clock = asyncio.get_running_loop().time
        started, quiet = clock(), 0
        while quiet < 20:  # a release that was on its way is seen after that
            pods = [pod for pod in self.pods if self._concerns(pod, name)]
            # While the API server is away, pods may be bound that are not seen here.
            quiet = 0 if pods or self._informer.error is not None else quiet + 1
            if clock() > started + STUCK_SECONDS:
                for pod in pods:
                    if not pod.spec.node_name:
                        self.stuck.add(pod.metadata.uid)  # first: it may be bound meanwhile, and is not admitted then
                        await self._client.delete(PODS.of(pod), grace_period=0)
            await asyncio.sleep(0.1)
        await self._client.delete(NODES.at(name))
        await self._client.delete(HOST_STATES.at(name))
        self._workers.pop(name).cancel()
        del self._queues[name], self.kubelets[name]

    def _concerns(self, pod: ApiPod, node: str) -> bool:
        return node in {pod.spec.node_name, pod.metadata.annotations.get("alignup.dev/node")}

    async def _work(self) -> None:
        async for change in self._informer.changes():
            queue = self._queues.get(change.object.spec.node_name)
            if queue is not None and change.type is not EventType.DELETED:
                queue.put_nowait(change)

    async def _serve(self, name: str) -> None:
        """Admit and end the pods of one node, one after the other."""
        queue, kubelet = self._queues[name], self.kubelets[name]
        while True:
            item = await queue.get()
            if isinstance(item, ApiPod):
                await self._end(item)
            elif item.object.metadata.uid not in self._seen | self.stuck:
                self._seen.add(item.object.metadata.uid)
                promised = self._check_promise(kubelet, item.object)
                await self._admit(kubelet, item.object)
                held = kubelet.host.ledger.cpus.holds(item.object.metadata.uid, "app")
                self.deviations += promised not in {0, held}
                life = self._chance.uniform(*LIFE)
                asyncio.get_running_loop().call_later(life, queue.put_nowait, item.object)

    def _check_promise(self, kubelet: SimulatedKubelet, pod: ApiPod) -> int:
        """Return the CPUs that a pod was promised; note those that another pod holds."""
        text = pod.metadata.annotations.get(PLACEMENT_ANNOTATION)
        cpus = 0
        for part in json.loads(text) if text else ():
            for given in part["given"].get("cpu", {}).values():
                cpus |= bits.parse(given)
        holders = kubelet.host.ledger.cpus.held
        if cpus & bits.union(held for containers in holders.values() for held in containers.values()):
            self.promised_twice.append(f"{pod.metadata.name} on {pod.spec.node_name}")
        return cpus

    async def _end(self, pod: ApiPod) -> None:
        host, uid = pod.spec.node_name, pod.metadata.uid
        if self.running.pop(pod.metadata.name, None):
            self.kubelets[host].end(uid)
            self.kubelets[host].remove_ended()
            await self.report(host)
        await self._client.delete(PODS.of(pod), grace_period=0)
        self.ended += 1


class ClusterLoad:
    """*rate* pods a second; the share *gated* of them behind the gate."""

    def __init__(self, client: ApiClient, nodes: LoadedNodes, *, rate: float, gated: float, seed: int) -> None:
        self.nodes = nodes
        self.created = 0
        self._client, self._rate, self._gated = client, rate, gated
        self._chance = random.Random(seed)
        self._stopping = asyncio.Event()

    async def run(self) -> None:
        """Create pods until stopped."""
        loop = asyncio.get_running_loop()
        due = loop.time()
        while not self._stopping.is_set():
            due = max(due + 1 / self._rate, loop.time() - 1)
            await asyncio.sleep(max(0.0, due - loop.time()))
            if self.nodes.waiting < MOST_WAITING:
                cpus, gated = self._chance.choice((1, 1, 2, 2, 3, 4)), self._chance.random() < self._gated
                document = pod(f"load-{self.created}", cpus, gated=gated)
                await self._client.create(PODS, document, namespace="default")
                self.created += 1

    async def admitted(self, more: int, detail: Callable[[], object]) -> None:
        """Wait until kubelets have got *more* pods."""
        wanted = self.nodes.admitted + more
        try:
            async with asyncio.timeout(PATIENCE):
                while self.nodes.admitted < wanted:  # noqa: ASYNC110 - no event
                    await asyncio.sleep(0.05)
        except TimeoutError:
            raise AssertionError(f"only {self.nodes.admitted} of {wanted} pods came:\n{detail()}") from None

    async def finish(self, detail: Callable[[], object]) -> None:
        """Create no more pods, and wait until all have ended."""
        self._stopping.set()
        try:
            async with asyncio.timeout(PATIENCE):
                while self.nodes.ended + len(self.nodes.stuck) < self.created:  # noqa: ASYNC110 - no event
                    await asyncio.sleep(0.2)
        except TimeoutError:
            left = [f"{each.metadata.name} on {each.spec.node_name}" for each in self.nodes.pods][:20]
            raise AssertionError(f"{self.nodes.ended} of {self.created} pods ended: {left}\n{detail()}") from None


async def replace_nodes(nodes: LoadedNodes, first: int) -> None:
    """Replace the oldest node by one with a new name, again and again; *first* is the number of the next one."""
    for number in count(first):
        await nodes.add(f"node-{number}")
        # If the caller stops meanwhile, the node must not stay as it is: cordoned, with pods released to it.
        await asyncio.shield(nodes.remove(next(iter(nodes.kubelets))))


def check_load(load: ClusterLoad, work: str) -> None:
    """Fail if a pod was rejected, never came, or was promised CPUs that another one held."""
    nodes = load.nodes
    print(f"{work}: {load.created} pods, {nodes.deviations} with other CPUs than promised, {len(nodes.stuck)} stuck")
    if nodes.rejected or nodes.promised_twice:
        raise AssertionError(f"rejected: {nodes.rejected}; promised twice: {nodes.promised_twice}")
    if nodes.admitted != load.created - len(nodes.stuck):
        raise AssertionError(f"{nodes.admitted} of {load.created} pods came, and {len(nodes.stuck)} were stuck")


def check_memory(memory: Sequence[tuple[float, float]], seconds: float) -> None:
    """Fail if a process has grown in *seconds* since a quarter of them; *memory*: times, and MiB."""
    settled = median(size for at, size in memory if SETTLED <= at / seconds < SETTLED + 0.1)
    end = median(size for at, size in memory if at / seconds >= 0.9)
    course = " ".join(f"{size:.1f}" for _, size in memory[:: max(len(memory) // 20, 1)])
    print(f"memory: {settled:.1f} MiB after {SETTLED:.0%}, {end:.1f} MiB at the end; over time {course}")
    if seconds >= SETTLING_SECONDS and end >= settled * GROWTH:
        raise AssertionError(f"memory has grown from {settled:.1f} to {end:.1f} MiB")


@asynccontextmanager
async def loaded_cluster(
    plane: ControlPlane, *, nodes: int, rate: float, gated: float, seed: int
) -> AsyncIterator[ClusterLoad]:
    """Yield the load of *nodes* simulated nodes of *plane*; it has not been started."""
    access = find_access(plane.kubeconfig(plane.directory / "load.json"))
    async with PersistentClient(access, timing=Timing(attempts=1, longest_retry=1.0)) as client:
        await client.create(NAMESPACES, {"metadata": {"name": NAMESPACE}})
        await define_host_states(client)
        simulated = LoadedNodes(client, random.Random(seed))
        for number in range(nodes):
            await simulated.add(f"node-{number}")
        async with simulated.working():
            load = ClusterLoad(client, simulated, rate=rate, gated=gated, seed=seed)
            creating = asyncio.create_task(load.run())
            try:
                yield load
            finally:
                creating.cancel()
                with suppress(asyncio.CancelledError):
                    await creating
