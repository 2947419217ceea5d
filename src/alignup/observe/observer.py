"""The node observer: watches a kubelet's files and its pods, and publishes the host whenever it has changed.

A change is published at once, or one second after the last write if that is later. In between, further changes are
collected, and only the last state is written. Every full check reads everything again, whatever inotify has reported.
"""

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import structlog

from alignup.align.errors import AlignError
from alignup.align.machine import Machine
from alignup.documents.host_state.schema import HEARTBEAT_SECONDS, HostStateDocument
from alignup.documents.host_state.writer import format_time, machine_document, to_object
from alignup.kubernetes.api import NODE_RESOURCE_TOPOLOGIES, ApiClient, Resource
from alignup.kubernetes.api.client import encode_for_apply
from alignup.kubernetes.api.errors import ApiError, NotFoundError
from alignup.kubernetes.api.host_states import HOST_STATES
from alignup.observe.app import ObserverMetrics
from alignup.observe.kubelet_reader import KubeletReader
from alignup.observe.linux_calls import DirectoryWatch
from alignup.observe.observation import AdmittingError, ForeignFilesError, Sources, UnchangedParts, UnsettledError, join
from alignup.observe.published_objects import (
    FingerprintMethod,
    host_state,
    node_topology,
    numa_amounts,
    unknown_host_state,
)

_log = structlog.get_logger()

MANAGER = "alignup-observer"  #: the field manager of all writes


@dataclass(frozen=True, slots=True, kw_only=True)
class ObserverTiming:
    """Seconds; tests replace the clock."""

    settle: float = 0.5  #: without a write, after which the kubelet is not in the middle of a change
    admission: float = 10.0  #: the same while a pod is being admitted: half of what it gets must not count as all
    collect: float = 0.02  #: after the first notice of a change, for changes that belong to it
    interval: float = 1.0  #: between two writes to the API server, at least
    period: float = 60.0  #: between two full checks
    retry: float = 5.0  #: after a failure to read or write
    clock: Callable[[], float] = time.monotonic
    sleep: Callable[[float], Awaitable[None]] = asyncio.sleep


class Publisher:
    """Writes the HostState and the NodeResourceTopology of node *host*, whose Node object has the uid *uid*.

    Only what has changed is written, by server-side apply. The generation of a HostState rises with every change, also
    across restarts of the observer, which continues where the object in the API server ends. Objects that do not change
    are written again every few minutes, so that a deleted one comes back; a HostState with the time, so that readers
    notice when the observer has stopped.
    """

    def __init__(self, client: ApiClient, host: str, *, uid: str) -> None:
        self.host = host
        self.sizes: dict[str, int] = {}  #: bytes of the last objects, by resource
        self.missing: set[str] = set()  #: resources that the API server does not have
        self._client = client
        #: of all objects: the Node
        self.owners = [{"apiVersion": "v1", "kind": "Node", "name": host, "uid": uid}] if uid else []
        self._state: HostStateDocument | None = None  #: as last written, with its generations
        self._topology: Mapping[str, Any] | None = None
        self._topology_written_at = float("-inf")
        self._generation = 0
        self._written_at = float("-inf")  #: when the HostState was written, by the clock of the client

    async def start(self) -> None:
        """Continue with the generation of an object that exists; :class:`ApiError` if that is not possible."""
        try:
            state = await self._client.find(HOST_STATES.at(self.host))
        except NotFoundError:
            state = None
        self._generation = state.generation if state is not None else 0

    async def publish(self, state: HostStateDocument, topology: Mapping[str, Any] | None) -> bool:
        """Write what differs from the last write; return whether something did. :class:`ApiError` if it failed."""
        has_written, now = await self._publish_state(state), self._client.timing.clock()
        due = topology != self._topology or now >= self._topology_written_at + HEARTBEAT_SECONDS
        if due and topology is not None and await self._apply(NODE_RESOURCE_TOPOLOGIES, topology):
            self._topology = topology
            self._topology_written_at = now
            has_written = True
        return has_written

    async def _publish_state(self, state: HostStateDocument) -> bool:
        old_state, timing = self._state, self._client.timing
        if old_state is None or state != old_state.replace(observed_at="", generation=0, machine_generation=0):
            generation = self._generation + 1
            same = old_state is not None and (state.machine, state.configuration) == (
                old_state.machine,
                old_state.configuration,
            )
            machine_generation = old_state.machine_generation if old_state is not None and same else generation
            state = state.replace(generation=generation, machine_generation=machine_generation)
        elif timing.clock() >= self._written_at + HEARTBEAT_SECONDS:
            state = old_state
        else:
            return False
        state = state.replace(observed_at=format_time(timing.time_of_day()))
        if not await self._apply(HOST_STATES, to_object(state)):
            return False
        self._state = state
        self._generation = state.generation
        self._written_at = timing.clock()
        return True

    async def _apply(self, resource: Resource[Any], document: Mapping[str, Any]) -> bool:
        """Apply one object; return whether the API server has such a resource."""
        ref = resource.at(self.host)
        metadata = {"ownerReferences": self.owners} if self.owners else {}
        body = encode_for_apply(ref, {"metadata": metadata, **document})
        self.sizes[resource.plural] = len(body)
        try:
            await self._client.apply_encoded(ref, body, manager=MANAGER)
        except NotFoundError:
            self.missing.add(resource.full_name)
            return False
        self.missing.discard(resource.full_name)
        return True


@dataclass(slots=True)
class Observer:
    reader: KubeletReader
    publisher: Publisher
    metrics: ObserverMetrics
    timing: ObserverTiming = field(default_factory=ObserverTiming)
    method: FingerprintMethod = FingerprintMethod.EXCLUSIVE
    problems: tuple[str, ...] = ("nothing has been observed yet",)  #: why the observer is not ready
    checked_at: float = 0.0  #: when the last check ended, by the clock
    _changed: asyncio.Event = field(default_factory=asyncio.Event)
    _changed_at: float | None = None  #: when the first change was noticed that is not published yet
    _pause: float = 0.0  #: to wait for the next write of the kubelet
    _refresh: bool = True
    _written_at: float = float("-inf")
    _reported: dict[str, str] = field(default_factory=dict)  #: the last problem of reading, and of writing
    _retry: asyncio.TimerHandle | None = None  #: after a failure
    _unchanged: UnchangedParts = field(default_factory=UnchangedParts)
    _machine: tuple[Machine, dict[str, Any]] | None = None  #: the last one, and its description
    #: the sources of the last observation, whether they were settled, and its objects
    _last: tuple[tuple[Sources, bool], tuple[HostStateDocument, dict[str, Any]]] | None = None

    def notify(self, *, refresh: bool = False) -> None:
        """Have the host observed again; with *refresh* the machine and the configuration, too."""
        self._refresh = self._refresh or refresh
        if self._changed_at is None:
            self._changed_at = self.timing.clock()
        self._changed.set()

    async def check_machine(self) -> None:
        """:class:`ForeignFilesError` if the kubelet's files belong to another machine."""
        await self.reader.refresh()
        self._refresh = False
        try:
            join(await self.reader.read())
        except ForeignFilesError:
            raise
        except AlignError:  # which is published
            pass

    def is_alive(self) -> bool:
        """Return whether the loop still checks the host."""
        return self.timing.clock() - self.checked_at < 3 * self.timing.period

    async def check_once(self) -> tuple[str, ...]:
        """Publish the host once; return what went wrong."""
        self._changed.clear()
        await self._check()
        return self.problems

    async def run(self) -> None:
        """Observe and publish until cancelled."""
        clock, period = self.timing.clock, min(self.timing.period, HEARTBEAT_SECONDS)
        self.checked_at = clock()
        full_at = self.checked_at + period  #: when the next full check is due, whatever changes before
        async with self._watched() as watch:
            self._changed.set()
            while True:
                if not await self._wait(full_at - clock()):  # several files are written, one after the other
                    await self.timing.sleep(self.timing.collect)
                if clock() >= full_at:
                    full_at = clock() + period
                    self._refresh = True
                    watch.refresh()
                await self._check()
                self.checked_at = clock()

    async def _check(self) -> None:
        """Publish the host as it is, after it has settled and the interval since the last write has passed."""
        is_settled = False
        while True:
            if (pause := self._written_at + self.timing.interval - self.timing.clock()) > 0:
                await self.timing.sleep(pause)
            self._changed.clear()
            state, topology = await self._observe(settled=is_settled)
            if state is not None:
                break
            is_settled = await self._wait(self._pause)
        try:
            has_written = await self.publisher.publish(state, topology)
        except ApiError as error:
            self._fail(str(error))
            return
        self._report("writing", "")
        self.problems = tuple(
            f"the API server does not have {name}; apply the CustomResourceDefinition"
            for name in sorted(self.publisher.missing)
        )
        if has_written:
            self._written_at = self.timing.clock()
            seconds = None if self._changed_at is None else self._written_at - self._changed_at
            self.metrics.published(seconds=seconds, sizes=self.publisher.sizes)
        if not self._changed.is_set():
            self._changed_at = None

    def _fail(self, error: str) -> None:
        """Note a failed write, and try again later; what was to be written is read again then."""
        self.metrics.writes.labels("error").inc()
        self.problems = (error,)
        self._report("writing", error)
        self._retry_later()

    def _retry_later(self) -> None:
        if self._retry is not None:  # a change came before it was time to try again
            self._retry.cancel()
        self._retry = asyncio.get_running_loop().call_later(self.timing.retry, self.notify)

    async def _observe(self, *, settled: bool) -> tuple[HostStateDocument | None, dict[str, Any] | None]:
        """Return the objects to publish; ``None`` for the first if the kubelet is in the middle of a change."""
        sources = None
        refresh, self._refresh = self._refresh, False
        try:
            if refresh:
                await self.reader.refresh()
                refresh = False
            sources = await self.reader.read()
            if self._last is not None and self._last[0] == (sources, settled):
                self.metrics.observations.labels("ok").inc()
                return self._last[1]
            observation = join(sources, settled=settled, unchanged_parts=self._unchanged)
        except AlignError as error:
            self._refresh = self._refresh or refresh
            if not settled or isinstance(error, UnsettledError):  # it may pass, for example while the kubelet restarts
                self._pause = self.timing.admission if isinstance(error, AdmittingError) else self.timing.settle
                self.metrics.observations.labels("unsettled").inc()
                return None, None
            self.metrics.observations.labels("error").inc()
            self._report("reading", str(error))
            self._retry_later()  # not every cause is a file that is watched
            self._last = None
            return unknown_host_state(sources, str(error)), None
        self.metrics.observations.labels("ok").inc()
        self._report("reading", "; ".join(observation.contradictions))
        amounts = numa_amounts(observation.host)
        topology = node_topology(observation, amounts, method=self.method)
        contradictions, gaps = len(observation.contradictions), len(observation.gaps)
        self.metrics.state(gaps=gaps, contradictions=contradictions, amounts=amounts)
        machine = observation.host.machine
        if self._machine is None or self._machine[0] is not machine:
            self._machine = machine, machine_document(machine)
        objects = host_state(observation, machine=self._machine[1]), topology
        self._last = (sources, settled), objects
        return objects

    def _report(self, activity: str, problem: str) -> None:
        """Log a problem once."""
        if problem and problem != self._reported.get(activity):
            _log.warning("problem", activity=activity, host=self.publisher.host, problem=problem)
        self._reported[activity] = problem

    @asynccontextmanager
    async def _watched(self) -> AsyncIterator[DirectoryWatch]:
        """Notice changes of files inside the context."""
        paths = self.reader.paths
        loop = asyncio.get_running_loop()
        state_files = set(paths.state_files)
        resume: asyncio.TimerHandle | None = None  # to notice changes again

        def plugins_changed() -> None:
            self.reader.forget_allocatable()
            self.notify()

        with DirectoryWatch(paths.watched) as watch:

            def read() -> None:
                nonlocal resume
                changed_paths = watch.changes()
                # ``None``: anything may have changed.
                if changed_paths is None or any(map(paths.concerns_kubelet, changed_paths)):
                    watch.refresh()
                    self.notify(refresh=True)
                elif changed_paths & state_files:
                    self.notify()
                if changed_paths is not None and any(map(paths.is_plugin_socket, changed_paths)):
                    # The kubelet writes nothing when a plugin stops; it marks the devices unhealthy a moment later.
                    plugins_changed()
                    loop.call_later(self.timing.settle, plugins_changed)
                loop.remove_reader(watch)  # for a moment, in which more comes that belongs to this change
                resume = loop.call_later(self.timing.collect / 2, loop.add_reader, watch, read)

            loop.add_reader(watch, read)
            try:
                yield watch
            finally:
                if resume is not None:
                    resume.cancel()
                loop.remove_reader(watch)

    async def _wait(self, seconds: float) -> bool:
        """Wait for a change; return whether there was none within *seconds*."""
        try:
            async with asyncio.timeout(seconds):
                await self._changed.wait()
        except TimeoutError:
            return True
        return False
