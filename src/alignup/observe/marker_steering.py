"""Steering: the node's side of a SteeringInstruction, with marker devices that stand for NUMA nodes.

The plugin offers the same number of markers on every NUMA node with CPUs. A pod that requests one is tied by the
kubelet's own merge to a NUMA node with a free, healthy marker. To steer a pod, the markers of all other NUMA nodes are
withdrawn, which means reported unhealthy, until the pod has its markers:

    instruction → withdraw → the kubelet has seen it → Ready → the pod is bound and admitted → restore → Done

Withdrawing is for one pod at a time, and short. Whatever ends a steering, the markers are restored first. A kubelet
that is admitting another pod with markers could give it a marker of one NUMA node and CPUs of another, or reject it: so
markers are not withdrawn while such a pod waits, and restored when one comes.
"""

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path

import structlog
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

from alignup import atomic_files
from alignup.align import bits
from alignup.align.bits import NodeSet
from alignup.align.errors import AlignError, ParseError, PluginError
from alignup.align.machine import Device, Machine
from alignup.documents.codec import to_builtins
from alignup.documents.steering import (
    MARKER_RESOURCE,
    SteeringInstruction,
    SteeringPhase,
    SteeringStatus,
    marker_id,
)
from alignup.kubernetes.api import ApiClient, Change, EventType, Informer, PatchType, Query
from alignup.kubernetes.api.errors import AlreadyExistsError, ApiError, NotFoundError, UnreachableError
from alignup.kubernetes.api.known_pods import KnownPod
from alignup.kubernetes.api.steering_instructions import STEERING_INSTRUCTIONS
from alignup.kubernetes.configuration import Configuration
from alignup.kubernetes.kubelet_files.state_files import DEVICE_PATH, parse_device_state
from alignup.kubernetes.plugins.device_plugin import DevicePlugin
from alignup.kubernetes.plugins.pod_resources import ListedResources, PodResourcesClient
from alignup.observe.observer import MANAGER
from alignup.tasks import cancel_tasks

LEAST_MARKERS = 110  #: on each NUMA node: the kubelet's default for maxPods
_LONGEST_RETRY = 60.0  #: seconds between attempts to read instructions, which the cluster may not have
_READY_BUCKETS = (0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0)  #: seconds

_log = structlog.get_logger()


@dataclass(frozen=True, slots=True, kw_only=True)
class SteeringTiming:
    """Seconds."""

    confirm: float = 1.0  #: for the kubelet to see a change of markers
    hold: float = 5.0  #: with markers withdrawn, at most; well below the period of the kubelet's node status, 10
    write: float = 2.0  #: for a write to the API server
    retry: float = 1.0  #: after a failure
    poll: float = 0.02  #: between two looks at what the kubelet shows
    longest_poll: float = 0.16  #: the same after some looks, since an answer has all markers in it
    clock: Callable[[], float] = time.monotonic


def steering_timing(hold: float) -> SteeringTiming:
    """Return times in proportion to *hold*, for nodes on which everything takes longer than usual."""
    usual = SteeringTiming()
    share = hold / usual.hold
    return replace(usual, hold=hold, confirm=usual.confirm * share, write=usual.write * share)


def make_markers(machine: Machine, configuration: Configuration | None) -> tuple[Device, ...]:
    """Return the markers of all NUMA nodes with CPUs; so many that they never limit the number of pods."""
    count = max(LEAST_MARKERS, configuration.max_pods if configuration else 0)
    nodes = [node for node, cpus in sorted(machine.kubelet_view().node_cpus.items()) if cpus and node >= 0]
    return tuple(
        Device(MARKER_RESOURCE, marker_id(node, number), node=node) for node in nodes for number in range(count)
    )


class SteeringMetrics:
    """Metrics of instructions and markers."""

    def __init__(self, registry: CollectorRegistry) -> None:
        name = "alignup_observer_steering"
        self.instructions = Counter(
            f"{name}_instructions", "Instructions by the phase that they reached.", ["phase"], registry=registry
        )
        self.ready = Histogram(
            f"{name}_ready_seconds",
            "Time from an instruction until the pod can be bound.",
            buckets=_READY_BUCKETS,
            registry=registry,
        )
        self.withdrawn = Gauge(f"{name}_withdrawn_markers", "Markers that are withdrawn now.", registry=registry)
        self.registrations = Counter(
            f"{name}_registrations", "Registrations of the markers with the kubelet.", ["result"], registry=registry
        )
        for phase in (*SteeringPhase, "Replaced"):
            self.instructions.labels(phase)
        for result in ("ok", "error"):
            self.registrations.labels(result)

    def registered(self, *, success: bool) -> None:
        self.registrations.labels("ok" if success else "error").inc()


class Markers:
    """The markers of a node, and the plugin that offers them.

    *make* returns all markers, or none while the machine is unknown.
    """

    def __init__(
        self, directory: Path, *, make: Callable[[], tuple[Device, ...]], metrics: SteeringMetrics, retry: float = 0.5
    ) -> None:
        self.allocated = asyncio.Event()  #: set whenever a container gets markers
        self.withdrawals = 0  #: so far
        self._make = make
        self._metrics = metrics
        self._shown_nodes: NodeSet | None = None  #: the NUMA nodes whose markers are not withdrawn; ``None``: all
        self._hidden = False  #: whether the kubelet may still show markers as withdrawn
        self._markers: tuple[Device, ...] = ()
        self.plugin = DevicePlugin(
            MARKER_RESOURCE,
            directory,
            allocated=lambda _ids: self.allocated.set(),
            registered=self._registered,
            retry=retry,
        )
        self.refresh()

    def refresh(self) -> None:
        """Make the markers of a changed machine or configuration."""
        self._markers = self._make()
        self._report()

    @property
    def nodes(self) -> NodeSet:
        """Return the NUMA nodes that have markers."""
        return bits.union(marker.nodes or 0 for marker in self._markers)

    @contextmanager
    def withdrawn(self, nodes: NodeSet) -> Iterator[None]:
        """Withdraw the markers of all other NUMA nodes than *nodes*, allocated ones included, inside the context."""
        self.withdrawals += 1
        self._shown_nodes = nodes
        self._hidden = True
        self._report()
        try:
            yield
        finally:
            self._shown_nodes = None
            self._report()

    def shown(self) -> None:
        """Note that the kubelet shows all markers again, or that there is no more use in waiting for that."""
        self._hidden = self._shown_nodes is not None

    def is_seen(self, allocatable: ListedResources) -> bool:
        """Return whether the kubelet offers exactly the markers that are not withdrawn."""
        offered_ids = {device.id for device in allocatable.devices if device.resource == MARKER_RESOURCE}
        return offered_ids == {marker.id for marker in self.plugin.devices if marker.healthy}

    def at_rest(self, allocatable: ListedResources, *, since: int) -> ListedResources:
        """Return what the kubelet can allocate when no marker is withdrawn.

        *since*: the number of withdrawals before the kubelet was asked.
        """
        devices = [device for device in allocatable.devices if device.resource != MARKER_RESOURCE]
        offers = len(devices) < len(allocatable.devices)
        if offers and (self._hidden or self.withdrawals != since):
            return replace(allocatable, devices=(*devices, *self._markers))
        return allocatable

    def _registered(self, *, success: bool) -> None:
        self._metrics.registered(success=success)
        self.refresh()  # a kubelet that restarts can have another configuration

    def _report(self) -> None:
        nodes = self._shown_nodes
        self.plugin.set_devices(
            marker if nodes is None or (marker.nodes or 0) & nodes else replace(marker, healthy=False)
            for marker in self._markers
        )
        self._metrics.withdrawn.set(sum(not marker.healthy for marker in self.plugin.devices))


class MarkerHoldings:
    """Who holds markers, as the kubelet's file in *directory* has it."""

    def __init__(self, directory: Path) -> None:
        self._path = directory / DEVICE_PATH
        self._last_read: tuple[bytes, Mapping[str, int]] = b"", {}

    def read(self) -> Mapping[str, int]:
        """Return how many containers with markers each pod has, by uid; nothing new while the file is unreadable."""
        text = None
        with suppress(AlignError):
            text = atomic_files.read(self._path)
        if text is not None and text != self._last_read[0]:
            with suppress(AlignError):
                counts: dict[str, int] = {}
                for entry in parse_device_state(text, path=str(self._path)).entries:
                    if entry.resource == MARKER_RESOURCE:
                        counts[entry.uid] = counts.get(entry.uid, 0) + 1
                self._last_read = text, counts
        return self._last_read[1]


class _EndError(Exception):
    """The end of a steering before its pod was admitted; without a phase if nobody waits for the result."""

    def __init__(self, phase: SteeringPhase | None, message: str) -> None:
        super().__init__(message)
        self.phase = phase


@dataclass(slots=True, kw_only=True)
class Steering:
    """Carries out the instructions for node *host*, one at a time, each at most once."""

    host: str
    client: ApiClient
    markers: Markers
    pod_resources: PodResourcesClient
    holdings: MarkerHoldings
    pods: Callable[[], Mapping[str, KnownPod] | None]  #: of the node, as the API server has them
    metrics: SteeringMetrics
    owners: Sequence[Mapping[str, str]] = ()  #: of the object: the Node, so that both end together
    timing: SteeringTiming = field(default_factory=SteeringTiming)
    _informer: Informer[SteeringInstruction] = field(init=False)
    _changed: asyncio.Event = field(default_factory=asyncio.Event)
    _answered: tuple[str, int] = ("", 0)  #: uid and generation of the last instruction that was looked at

    def __post_init__(self) -> None:
        query = Query(fields=f"metadata.name={self.host}")
        self._informer = Informer(self.client, STEERING_INSTRUCTIONS, query, longest_retry=_LONGEST_RETRY)
        self._informer.subscribe(self._notice)

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Offer markers and carry out instructions inside the context."""
        self.markers.refresh()
        jobs = (self.markers.plugin.run, self._informer.run, self._follow)
        tasks = [asyncio.create_task(self._keep_running(job), name=f"steering {self.host}") for job in jobs]
        try:
            yield
        finally:
            for task in reversed(tasks):  # markers are restored while the kubelet still follows them
                await cancel_tasks([task])

    def notify(self) -> None:
        """Look again at the pods of the node."""
        self._changed.set()

    async def _keep_running(self, job: Callable[[], Awaitable[None]]) -> None:
        """Run a job until cancelled: after any error, the node goes on without steering for a moment."""
        while True:
            try:
                await job()
            except Exception:  # noqa: BLE001 - logged
                _log.exception("steering failed", host=self.host)
            await asyncio.sleep(self.timing.retry)

    def _notice(self, change: Change[SteeringInstruction]) -> None:
        if change.type is EventType.DELETED or change.old is None or change.object.spec != change.old.spec:
            self._changed.set()

    async def _follow(self) -> None:
        self.markers.shown()
        await self._informer.wait_synced()
        while True:
            self._changed.clear()
            instruction = self._informer.get(self.host)
            if instruction is None:
                await self._create()
                continue
            if instruction.spec.pod is None or _key(instruction) == self._answered:
                await self._changed.wait()
                continue
            self._answered = _key(instruction)
            if instruction.phase in (None, SteeringPhase.READY):
                phase, message = await self._carry_out(instruction)
                await self._finish(instruction, phase, message)

    async def _create(self) -> None:
        """Create the object of this node, in which the cluster service writes instructions, and wait until it is seen.

        The service may not create any: with its token, one could make objects of any name.
        """
        document = {"metadata": {"name": self.host, "ownerReferences": self.owners}}
        try:
            with suppress(AlreadyExistsError):  # the watch will show it
                await self.client.create(STEERING_INSTRUCTIONS, document)
        except ApiError as error:
            _log.warning("cannot create the SteeringInstruction", host=self.host, problem=str(error))
            await asyncio.sleep(10 * self.timing.retry)
        with suppress(TimeoutError):
            await asyncio.wait_for(self._changed.wait(), self.timing.retry)

    async def _carry_out(self, instruction: SteeringInstruction) -> tuple[SteeringPhase | None, str]:
        """Steer the pod of an instruction; return the phase to report, ``None`` if the instruction was replaced."""
        try:
            nodes = self._check(instruction)
            if self._is_admitted(instruction):
                return SteeringPhase.DONE, "the pod holds its markers already"
            if instruction.phase is SteeringPhase.READY:
                return SteeringPhase.FAILED, "the observer was restarted before the pod came"
            start = self.timing.clock()
            await self._wait_for_admissions(instruction)
        except _EndError as end:
            return end.phase, str(end)
        outcome: tuple[SteeringPhase | None, str] = SteeringPhase.DONE, ""
        try:
            with self.markers.withdrawn(nodes):
                await self._hold(instruction, start)
        except _EndError as end:
            outcome = end.phase, str(end)
        if not await self._confirm(None):
            _log.warning("the kubelet has not noticed that all markers are offered again", host=self.host)
        self.markers.shown()
        return outcome

    def _check(self, instruction: SteeringInstruction) -> NodeSet:
        """Return the NUMA nodes of an instruction that can be carried out."""
        self.markers.refresh()
        text = instruction.spec.numa_nodes
        try:
            nodes = bits.parse(text)
        except ParseError:
            nodes = 0
        if not nodes or nodes & ~self.markers.nodes:
            have = bits.show(self.markers.nodes) or "none"
            raise _EndError(SteeringPhase.FAILED, f"NUMA nodes {text or 'none'} are wanted, and markers are on {have}")
        return nodes

    async def _wait_for_admissions(self, instruction: SteeringInstruction) -> None:
        """Wait until no pod with markers is being admitted."""
        deadline = self.timing.clock() + self.timing.confirm
        while waiting_pods := self._waiting_pods():
            self._check_interruption(instruction)
            if self.timing.clock() >= deadline:
                raise _EndError(SteeringPhase.FAILED, f"pod {waiting_pods[0]} is bound, and not admitted yet")
            await self._pause()

    async def _hold(self, instruction: SteeringInstruction, start: float) -> None:
        """Return after the pod was admitted while the markers are withdrawn."""
        deadline = self.timing.clock() + self.timing.hold
        if not await self._confirm(instruction):
            seconds = f"{self.timing.confirm:g} s"
            raise _EndError(SteeringPhase.FAILED, f"the kubelet has not noticed within {seconds} that markers changed")
        try:
            await self._write(instruction, SteeringPhase.READY, "")
        except ApiError as error:
            raise _EndError(SteeringPhase.FAILED, f"cannot report that the pod can be bound: {error}") from error
        ready = self.timing.clock() - start
        self.metrics.ready.observe(ready)
        self._count(instruction, SteeringPhase.READY, f"after {ready:.3f} s")
        while not self._is_admitted(instruction):
            self._check_interruption(instruction)
            if self._has_ended(instruction):
                raise _EndError(SteeringPhase.FAILED, "the kubelet has rejected the pod, or it has ended")
            if others := [pod for pod in self._waiting_pods() if pod != _pod_name(instruction)]:
                raise _EndError(SteeringPhase.FAILED, f"pod {others[0]}, which requests markers as well, was bound")
            if self.timing.clock() >= deadline:
                raise _EndError(SteeringPhase.EXPIRED, f"the pod was not admitted within {self.timing.hold:g} s")
            await self._pause()

    async def _confirm(self, instruction: SteeringInstruction | None) -> bool:
        """Wait until the kubelet offers exactly the markers that are not withdrawn; return whether it does in time."""
        deadline = self.timing.clock() + self.timing.confirm
        pause = self.timing.poll
        while True:
            if instruction is not None:
                self._check_interruption(instruction)
            with suppress(PluginError):  # it restarts, or limits the rate
                if self.markers.is_seen(await self.pod_resources.allocatable()):
                    return True
            if self.timing.clock() >= deadline:
                return False
            await asyncio.sleep(pause)
            pause = min(2 * pause, self.timing.longest_poll)

    def _is_admitted(self, instruction: SteeringInstruction) -> bool:
        pod = instruction.spec.pod
        return pod is not None and self.holdings.read().get(pod.uid, 0) >= instruction.spec.containers

    def _has_ended(self, instruction: SteeringInstruction) -> bool:
        pod = instruction.spec.pod
        known_pod = (self.pods() or {}).get(pod.uid) if pod else None
        return known_pod is not None and known_pod.finished

    def _waiting_pods(self) -> list[str]:
        """Return the names of pods that are bound to the node, request markers, and hold none yet."""
        pods = self.pods() or {}
        holders = self.holdings.read() if pods else {}
        return [
            f"{pod.pod.namespace}/{pod.pod.name}"
            for uid, pod in pods.items()
            if not pod.finished and not pod.reported and uid not in holders and _requests_markers(pod)
        ]

    def _check_interruption(self, instruction: SteeringInstruction) -> None:
        current = self._informer.get(self.host)
        if current is None or _key(current) != _key(instruction):
            raise _EndError(None, "replaced")
        if self._informer.error is not None:
            raise _EndError(SteeringPhase.FAILED, f"the connection to the API server was lost: {self._informer.error}")
        if not self.markers.plugin.connected:
            raise _EndError(SteeringPhase.FAILED, "the kubelet does not follow the markers; it may be restarting")

    async def _pause(self) -> None:
        """Wait for a change of what steering depends on, or a moment."""
        self._changed.clear()
        self.markers.allocated.clear()
        waits = [asyncio.ensure_future(event.wait()) for event in (self._changed, self.markers.allocated)]
        try:
            await asyncio.wait(waits, timeout=self.timing.poll, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for wait in waits:
                wait.cancel()

    async def _finish(self, instruction: SteeringInstruction, phase: SteeringPhase | None, message: str) -> None:
        """Report the end of a steering, again and again until the API server has it or nobody waits for it."""
        self._count(instruction, phase, message)
        current = self._informer.get(self.host)
        while phase is not None and current is not None and _key(current) == _key(instruction):
            try:
                await self._write(instruction, phase, message)
                break
            except NotFoundError:
                break
            except ApiError as error:
                _log.warning("cannot report the end of a steering", host=self.host, problem=str(error))
            self._changed.clear()
            with suppress(TimeoutError):
                await asyncio.wait_for(self._changed.wait(), self.timing.retry)
            current = self._informer.get(self.host)

    async def _write(self, instruction: SteeringInstruction, phase: SteeringPhase, message: str) -> None:
        """Write the status; :class:`ApiError` if that does not succeed in time, or for an older instruction."""
        uid, generation = _key(instruction)
        status = SteeringStatus(observed_generation=generation, phase=phase, message=message)
        patch = [
            {"op": "test", "path": "/metadata/uid", "value": uid},
            {"op": "test", "path": "/metadata/generation", "value": generation},
            {"op": "add", "path": "/status", "value": to_builtins(status)},
        ]
        ref = STEERING_INSTRUCTIONS.at(self.host, subresource="status")
        try:
            async with asyncio.timeout(self.timing.write):
                await self.client.patch(ref, patch, patch_type=PatchType.JSON, manager=MANAGER)
        except TimeoutError:
            raise UnreachableError(f"the API server did not answer within {self.timing.write:g} s") from None

    def _count(self, instruction: SteeringInstruction, phase: SteeringPhase | None, message: str) -> None:
        self.metrics.instructions.labels(phase or "Replaced").inc()
        log = _log.info if phase in (None, SteeringPhase.READY, SteeringPhase.DONE) else _log.warning
        log(
            "steering",
            host=self.host,
            pod=_pod_name(instruction),
            numa_nodes=instruction.spec.numa_nodes,
            generation=instruction.metadata.generation,
            phase=phase or "Replaced",
            message=message,
        )


def _key(instruction: SteeringInstruction) -> tuple[str, int]:
    return instruction.metadata.uid, instruction.metadata.generation


def _pod_name(instruction: SteeringInstruction) -> str:
    pod = instruction.spec.pod
    return f"{pod.namespace}/{pod.name}" if pod else ""


def _requests_markers(pod: KnownPod) -> bool:
    return any(MARKER_RESOURCE in container.resources.requests for container in pod.pod.all_containers)
