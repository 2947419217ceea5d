"""Decide mode: beside a kubelet whose CPU and memory managers are off, Alignup decides on each pod and enforces that.

A pod is decided on when its sandbox runs. Devices that it has already are fixed, so CPUs and memory follow them. The
decision is durable before the runtime gets an answer. Pods without exclusive CPUs share the rest as in assist mode,
whose pool is this ledger instead of a kubelet's.

A pod that is rejected fails, and the kubelet tries again with back-off, so it starts as soon as there is room. Which
call fails depends on the runtime: containerd 2.0 to 2.2 leaves a sandbox running that a plugin has rejected, so there
each container of the pod fails instead. No container of a rejected pod ever runs.

The runtime knows which pods run, the store what they hold. After each connection both are compared: pods that are gone
are released, containers that differ are changed back, and pods that started meanwhile are decided on. Such a pod that
is rejected stays as it is, without exclusive CPUs, and is counted as unaligned.
"""
# ruff: noqa: ARG002 - the arguments are those of NriPlugin

import asyncio
import re
from collections.abc import Sequence
from contextlib import suppress
from typing import NamedTuple

import structlog

from alignup.align import bits
from alignup.align.bits import CpuSet, NodeSet
from alignup.align.decision import Decision
from alignup.align.devices.fixed import FixedDeviceProvider, PodDevices, unmet_demand, with_fixed_devices
from alignup.align.errors import AlignError, StateError, StoreError
from alignup.align.explain import sentences
from alignup.align.ledger import Ledger
from alignup.align.memory.ledger import Block
from alignup.align.shared_pool import SharedPool
from alignup.align.workload import names
from alignup.align.workload.names import MEMORY
from alignup.nri.assist import AssistPlugin, RunningContainer, container_update
from alignup.nri.durable_host import DurableHost
from alignup.nri.kubelet_pool import KubeletPool
from alignup.nri.metrics import NriMetrics
from alignup.nri.node_pods import NodePods, RequestedPod
from alignup.nri.nri_plugin import parse_version
from alignup.nri.ttrpc import Code, RpcError
from alignup.wire import nri_pb2 as wire

_MAX_MESSAGE = 1000  #: characters of an error; it ends up in an event of the pod
_STATIC_POD = "the API server does not have this static pod"
_MEMORY_POLICIES = (0, 12, 0)  #: the first NRI with memory policies
_UNITS = ((1 << 30, "GB"), (1 << 20, "MB"), (1 << 10, "KB"))  #: of huge pages, as runtimes call them

#: Versions of containerd that remove a sandbox which a plugin rejects: first, and first that no longer does.
_CLEAN_SANDBOXES = (((1, 7, 0), (2, 0, 0)), ((2, 3, 0), (1 << 30, 0, 0)))

_log = structlog.get_logger()


class ExclusiveSets(NamedTuple):
    """What a container holds; 0: nothing, it shares."""

    cpus: CpuSet
    memory_nodes: NodeSet


class DecidePlugin(AssistPlugin):
    """A plugin that decides with the host of *durable* on the pods that *pods* finds.

    *memory_policy*, such as ``MPOL_INTERLEAVE``, applies to the memory that containers hold; ``None``: the
    kernel's default.
    """

    mode = "decide"

    def __init__(
        self, durable: DurableHost, pods: NodePods, metrics: NriMetrics, *, memory_policy: str | None = None
    ) -> None:
        super().__init__(self._ledger_pool, metrics)
        self._durable = durable
        self._pods = pods
        self._memory_policy = memory_policy
        self._pool_of: tuple[Ledger, KubeletPool] | None = None  #: the last pool, and the ledger that it is from
        self._sandboxes: dict[str, set[str]] = {}  #: pod uid → sandboxes that are not removed
        self._rejections: dict[str, str] = {}  #: pod uid → the last message
        self._listed = False  #: whether the runtime has listed its containers, and sends events
        self._fails_sandbox = False  #: whether a rejected pod fails when its sandbox runs

    @property
    def _ledger(self) -> Ledger:
        return self._durable.host.ledger

    async def configure(self, request: wire.ConfigureRequest) -> None:
        await super().configure(request)
        version = parse_version(request.runtime_version)
        clean = any(first <= version < end for first, end in _CLEAN_SANDBOXES)
        self._fails_sandbox = clean and request.runtime_name == "containerd"
        if self._memory_policy is not None and parse_version(request.NRI_version) < _MEMORY_POLICIES:
            _log.warning("this runtime ignores memory policies: it needs NRI 0.12, as in containerd 2.3, and runc 1.4")

    async def synchronize(
        self, pods: Sequence[wire.PodSandbox], containers: Sequence[wire.Container]
    ) -> Sequence[wire.ContainerUpdate]:
        ids = {container.pod_sandbox_id for container in containers if container.state != wire.CONTAINER_STOPPED}
        live = {pod.uid: pod for pod in pods if pod.id in ids}
        self._sandboxes = {}
        for pod in pods:
            self._sandboxes.setdefault(pod.uid, set()).add(pod.id)
        idle = [uid for uid in self._ledger.pods if uid not in live]
        for uid in {*self._pods.ended(idle), *(uid for uid in idle if uid not in self._sandboxes)}:
            self._release(uid)
        decided_uids = set(self._ledger.pods)
        self.unaligned = {uid: entry for uid, entry in self.unaligned.items() if uid in live}
        started_pods = [pod for uid, pod in live.items() if uid not in decided_uids]
        for pod, requested_pod in zip(started_pods, await self._find(*started_pods), strict=True):
            with suppress(RpcError):  # it runs already, and is counted
                self._decide_on(pod, requested_pod, running=True)
        await self._save()
        updates = [*await super().synchronize(pods, containers)]
        pairs = [(container, update) for container in self.containers if (update := self._restore(container))]
        if pod_names := sorted(container.pod_name for container, _ in pairs if container.pod in decided_uids):
            _log.warning("containers differ from their decision, and are changed back", pods=pod_names)
        self._listed = True
        self.release_ended()  # meanwhile, other pods may have ended
        return [*updates, *self._answer(pairs)]

    async def disconnected(self) -> None:
        self._listed = False
        await super().disconnected()

    async def run_pod_sandbox(self, pod: wire.PodSandbox) -> None:
        self._sandboxes.setdefault(pod.uid, set()).add(pod.id)
        try:
            await self._admit(pod)
            await self._save_or_release(pod.uid)
        except RpcError:
            if self._fails_sandbox:
                self._remove_sandbox(pod)  # the runtime does not announce it
                raise

    async def create_container(self, pod: wire.PodSandbox, container: wire.Container) -> wire.CreateContainerResponse:
        if pod.uid not in self._ledger.pods:
            await self._admit(pod)
            await self._save_or_release(pod.uid)
        with suppress(StateError):  # an ephemeral container, or a static pod that the API server does not have
            self._durable.host.start_container(pod.uid, container.name)
        response = await super().create_container(pod, container)
        self._adjust(self._containers[container.id], response.adjust)
        return response

    async def update_container(
        self, pod: wire.PodSandbox, container: wire.Container, resources: wire.LinuxResources
    ) -> Sequence[wire.ContainerUpdate]:
        updates = await super().update_container(pod, container, resources)
        updated_container = self._containers.get(container.id)
        update = None if updated_container is None else self._restore(updated_container)
        return (
            updates
            if updated_container is None or update is None
            else [*updates, *self._answer([(updated_container, update)])]
        )

    async def stop_container(self, pod: wire.PodSandbox, container: wire.Container) -> Sequence[wire.ContainerUpdate]:
        self._forget(container.id)
        self.release_ended()
        return await super().stop_container(pod, container)

    async def stop_pod_sandbox(self, pod: wire.PodSandbox) -> None:
        self.release_ended()
        await self._save()

    async def remove_pod_sandbox(self, pod: wire.PodSandbox) -> None:
        if self._remove_sandbox(pod):
            self._rejections.pop(pod.uid, None)
            self._release(pod.uid)
            await self._save()
            await super().remove_pod_sandbox(pod)

    def _remove_sandbox(self, pod: wire.PodSandbox) -> bool:
        """Return whether the pod has no other sandbox."""
        sandboxes = self._sandboxes.pop(pod.uid, set()) - {pod.id}
        if sandboxes:
            self._sandboxes[pod.uid] = sandboxes
        return not sandboxes

    def release_ended(self) -> None:
        """Release the pods without containers that, as the API server says, will not start any.

        Before the runtime has listed its containers, any pod may have some; :meth:`synchronize` releases then.
        """
        if not self._listed:
            return
        live = {container.pod for container in self.containers}
        for uid in self._pods.ended([uid for uid in self._ledger.pods if uid not in live]):
            self._release(uid)
        for uid in self.unaligned.keys() - live:
            del self.unaligned[uid]
        for uid in self._pods.ended(self._rejections.keys() - self._sandboxes.keys()):
            del self._rejections[uid]

    def _release(self, uid: str) -> None:
        if uid in self._ledger.pods:
            self._durable.host.release(uid)
            self.wake.set()  # the others have more room

    async def _admit(self, pod: wire.PodSandbox) -> None:
        """Decide on a pod unless it is admitted; ``RpcError`` if it is rejected, or cannot be decided on now."""
        if pod.uid not in self._ledger.pods:
            self._decide_on(pod, *await self._find(pod))

    async def _find(self, *pods: wire.PodSandbox) -> list[RequestedPod | BaseException | None]:
        """Look up *pods* at the same time, since each may take a second."""
        return await asyncio.gather(*map(self._pods.find, pods), return_exceptions=True)

    def _decide_on(
        self, pod: wire.PodSandbox, requested_pod: RequestedPod | BaseException | None, *, running: bool = False
    ) -> None:
        try:
            if isinstance(requested_pod, BaseException):
                raise requested_pod
            if requested_pod is not None:
                self._decide(requested_pod)
                self._rejections.pop(pod.uid, None)
                self.unaligned.pop(pod.uid, None)
                return
            message = _STATIC_POD
        except AlignError as error:
            message = str(error)[:_MAX_MESSAGE]
        if self._rejections.get(pod.uid) != message:
            _log.warning("pod is not aligned", pod=f"{pod.namespace}/{pod.name}", uid=pod.uid, reason=message)
            self._rejections[pod.uid] = message
        if running or message == _STATIC_POD:
            self.unaligned[pod.uid] = (f"{pod.namespace}/{pod.name}", message)
        if message != _STATIC_POD:
            raise RpcError(Code.RESOURCE_EXHAUSTED, message)

    def _decide(self, requested_pod: RequestedPod) -> None:
        host, old_ledger, pod = self._durable.host, self._ledger, requested_pod.pod
        if pod.uid in old_ledger.pods:  # while the pod was looked up
            return
        host.ledger = (
            with_fixed_devices(old_ledger, pod.uid, requested_pod.devices) if requested_pod.devices else old_ledger
        )
        admitted = False
        try:
            fixed_devices = host.ledger.others[FixedDeviceProvider.name]
            if unmet := unmet_demand(fixed_devices, pod, host.machine.locality, requested_pod.addresses):
                raise StateError(unmet)
            decision = host.decide(pod)
            self._metrics.decisions.labels(decision.outcome).inc()
            if not decision.admitted:
                message = _message(decision, requested_pod.devices)
                if self._rejections.get(pod.uid) != message[:_MAX_MESSAGE]:
                    self._durable.record(decision)
                raise StateError(message)
            host.apply(decision)
            admitted = True
            self._durable.record(decision)
        finally:
            if not admitted:
                host.ledger = old_ledger

    async def _save_or_release(self, uid: str) -> None:
        try:
            await self._durable.save()
        except StoreError as error:
            self._release(uid)
            raise RpcError(Code.INTERNAL, f"the decision cannot be stored: {error}") from None

    async def _save(self) -> None:
        """Store what was released; after an error the next connection finds out again."""
        try:
            await self._durable.save()
        except StoreError as error:
            _log.warning("the ledger cannot be stored", problem=str(error))

    def _sets(self, uid: str, container: str) -> ExclusiveSets:
        ledger = self._ledger
        cpus = ledger.cpus.holds(uid, container) or 0
        if not cpus and (whole := ledger.cpus.pod_held.get(uid, 0)):  # it shares the CPUs of its pod
            cpus = whole & ~bits.union(ledger.cpus.held.get(uid, {}).values()) or whole
        return ExclusiveSets(cpus, bits.union(block.nodes for block in self._blocks(uid, container)))

    def _blocks(self, uid: str, container: str) -> tuple[Block, ...]:
        return tuple(block for block in self._ledger.memory.blocks(uid, container) or () if block.size)

    def _restore(self, container: RunningContainer) -> wire.ContainerUpdate | None:
        """Return the change to what *container* holds, if it has anything else."""
        sets = self._sets(container.pod, container.name)
        cpus = sets.cpus if sets.cpus != container.cpus else 0
        nodes = sets.memory_nodes if sets.memory_nodes != container.memory_nodes else 0
        return container_update(container.id, cpus, nodes) if cpus or nodes else None

    def _adjust(self, container: RunningContainer, adjust: wire.ContainerAdjustment) -> None:
        """Set the CPUs and memory nodes of a new container in *adjust*."""
        sets = self._sets(container.pod, container.name)
        if sets == (0, 0):
            return
        resources = adjust.linux.resources
        resources.cpu.MergeFrom(container_update("", *sets).linux.resources.cpu)
        container.take(resources)
        blocks = self._blocks(container.pod, container.name)
        for block in blocks:
            if size := names.page_size(block.type):
                resources.hugepage_limits.add(page_size=_page_name(size), limit=block.size)
        if self._memory_policy is not None and sets.memory_nodes:
            policy = wire.LinuxMemoryPolicy(mode=self._memory_policy, nodes=bits.show(sets.memory_nodes))
            adjust.linux.memory_policy.CopyFrom(policy)
        for key, value in self._environment(container, sets).items():
            adjust.env.add(key=key, value=value)

    def _environment(self, container: RunningContainer, sets: ExclusiveSets) -> dict[str, str]:
        """Return the variables that ``alignup run`` sets, too."""
        nodes = bits.of(node for node, cpus in self._ledger.cpus.node_cpus.items() if cpus & sets.cpus)
        variables = {"ALIGNUP_MEMORY_NODES": bits.show(sets.memory_nodes)}
        if sets.cpus:
            variables |= {"ALIGNUP_CPUS": bits.show(sets.cpus), "ALIGNUP_NUMA_NODES": bits.show(nodes)}
        devices = self._ledger.others[FixedDeviceProvider.name].get(container.pod, {}).get(container.name, {})
        for resource, devices_of_resource in devices.items():
            name = re.sub("[^A-Z0-9]", "_", resource.upper())
            variables[f"ALIGNUP_DEVICES_{name}"] = ",".join(device.id for device in devices_of_resource)
        return {name: value for name, value in variables.items() if value}

    def _ledger_pool(self) -> KubeletPool:
        """Return the pool of the ledger, the same object if the ledger has not changed."""
        ledger = self._ledger
        if self._pool_of is None or self._pool_of[0] is not ledger:
            cpus, memory = ledger.cpus, ledger.memory
            free = {node: state.tables[MEMORY].free for node, state in memory.nodes.items() if MEMORY in state.tables}
            exclusive_cpus = {
                uid: {name: bits.union(block.nodes for block in blocks) for name, blocks in containers.items()}
                for uid, containers in memory.held.items()
            }
            shared_pool = SharedPool(self._durable.host.machine, cpus.shared, free)
            self._pool_of = ledger, KubeletPool(shared_pool, "alignup", cpus.held, cpus.pod_held, exclusive_cpus)
        return self._pool_of[1]


def _message(decision: Decision, devices: PodDevices) -> str:
    """Return what ``alignup why`` says about a rejection, in one line, and where the *devices* of the pod are."""
    allocated_devices = (
        device for container in devices.values() for of_resource in container.values() for device in of_resource
    )
    places = {device.id: bits.show(device.nodes) for device in allocated_devices if device.nodes}
    locations = ", ".join(f"{id_} is on NUMA node {nodes}" for id_, nodes in sorted(places.items()))
    parts = (sentences.verdict(decision), *sentences.describe_rejection(decision))
    return "; ".join((*parts, f"device {locations}") if locations else parts)


def _page_name(size: int) -> str:
    return next(f"{size // unit}{name}" for unit, name in _UNITS if size >= unit)
