"""The gate in one process of a cluster: it carries out what the scheduling state decides about pods behind the gate.

Which node a pod gets, and when, is decided in ``placement.scheduling.gate``. Here releases are written, pods are
evicted, and events and metrics are made.
"""

import asyncio
from collections.abc import Callable, Coroutine
from contextlib import suppress
from typing import Any

import structlog

from alignup.align.errors import PodError
from alignup.kubernetes.api import PODS, ApiClient
from alignup.kubernetes.api.errors import ApiError
from alignup.placement.scheduling import events, instructions
from alignup.placement.scheduling.events import Event
from alignup.placement.scheduling.instructions import Instruction
from alignup.placement.scheduling.kept_nodes import KeptNodes
from alignup.placement.scheduling.options import GateOptions
from alignup.placement.scheduling.releases import ReleaseOutcome
from alignup.placement.scheduling.scheduling_state import CHECK_SECONDS
from alignup.schedule.gate.metrics import GateMetrics
from alignup.schedule.gate.release_patch import HOST_NAME, WrittenRelease, write_release
from alignup.schedule.instruction_tasks import InstructionTasks
from alignup.schedule.live_cluster import LiveCluster
from alignup.schedule.object_events import GATE_COMPONENT, ObjectEvents
from alignup.schedule.step_guard import ServiceStep

MAX_WAITING_EVENTS = 20  #: events that wait to be written; with more, nothing is explained
_YIELD_SECONDS = 0.02  #: of deciding, after which other tasks run
_MAX_TRIES = 64  #: of pods, after which other work has its turn
_STALE_SECONDS = 1.0  #: between checks while the API server is not followed

_log = structlog.get_logger()


class GateController:
    """The gate of one process; :meth:`run` may be called again after it was cancelled."""

    def __init__(
        self,
        client: ApiClient,
        live: LiveCluster,
        *,
        metrics: GateMetrics | None = None,
        options: GateOptions | None = None,
    ) -> None:
        self._client = client
        self._live = live
        self._metrics = metrics or GateMetrics()
        self._events = ObjectEvents(client, GATE_COMPONENT, live.guard.reporting)
        self._tasks = InstructionTasks(live.schedule)
        self._wake = asyncio.Event()
        self._running = False
        self.options = options or GateOptions()
        self.gate = live.scheduling.build_gate(self.options)  #: another one from each start of :meth:`run` on
        live.on_event(self._handled)
        self._handlers: dict[type[Instruction], Callable[[Any], object]] = {
            instructions.WriteRelease: lambda release: self._start(self._release(release), release.pod.uid),
            instructions.WriteEvent: self._write_event,
            instructions.ForgetEvents: lambda forget: self._events.forget(forget.uid),
            instructions.EvictPod: lambda evict: self._start(self._evict(evict.uid), ""),
            instructions.Report: self._report,
        }
        live.on_instruction(self._carry_out, *self._handlers)
        states = {
            "queued": lambda: len(self.gate.queue) - self.gate.count_blocked(),
            "blocked": self.gate.count_blocked,
            "other_gates": lambda: len(self.gate.other_gates),
            "released": lambda: len(self.gate.releases),
        }
        self._metrics.follow(states, reserved_nodes=lambda: len(self.kept_nodes))

    @property
    def kept_nodes(self) -> KeptNodes:
        return self._live.scheduling.kept_nodes

    async def run(self) -> None:
        """Release pods until cancelled."""
        await self._live.ready.wait()
        self._running = True
        self._live.open_gate(self.options)
        self.gate = self._live.scheduling.gate or self.gate
        self._start(self._live.guard.keep_running("events of the gate", self._events.run), "")
        try:
            while True:
                self._wake.clear()
                self._live.schedule(events.TimePassed())
                if self._place_pods():
                    self._wake.set()  # there are more
                if self._events.waiting <= MAX_WAITING_EVENTS:
                    self._live.schedule(events.ExplainNext())
                with suppress(TimeoutError):
                    async with asyncio.timeout(self._next_check()):
                        await self._wake.wait()
                await asyncio.sleep(0)
        finally:
            self._running = False
            if self._live.scheduling.gate is self.gate:
                self._live.schedule(events.GateClosed())
            await self._tasks.cancel()

    def _handled(self, event: Event) -> None:
        """Look again after every event that is not a turn of our own."""
        if not isinstance(event, events.TimePassed | events.PlaceNext | events.ExplainNext):
            self._wake.set()

    def notify(self) -> None:
        """Look again soon: time has passed, or something has changed."""
        self._wake.set()

    def _place_pods(self) -> bool:
        """Try the waiting pods in their order for a while; return whether there are more to try."""
        clock = self._client.timing.clock
        turn = clock()
        for _ in range(_MAX_TRIES):
            tries = self.gate.queue.tries
            if not self._live.problems:
                self._live.schedule(events.PlaceNext())
            if self.gate.queue.tries == tries:
                return False
            if clock() - turn >= _YIELD_SECONDS:
                break
        return True

    def _next_check(self) -> float | None:
        """Return the seconds after which something must be checked although nothing has happened."""
        if self._live.problems:
            return _STALE_SECONDS
        checks = (self.gate.next_check(), self._live.scheduling.next_check())
        seconds = min((seconds for seconds in checks if seconds is not None), default=None)
        if self._events.waiting > MAX_WAITING_EVENTS or self.gate.queue.blocked:
            return min(CHECK_SECONDS, CHECK_SECONDS if seconds is None else seconds)
        return seconds

    # Instructions

    def _carry_out(self, instruction: Instruction) -> None:
        if self._running:
            self._handlers[type(instruction)](instruction)

    def _write_event(self, event: instructions.WriteEvent) -> None:
        pod = self._live.find_by_uid(event.uid) if event.gate else None
        if pod is not None:
            self._events.note(pod, event.reason, event.message, same=event.same)

    def _report(self, report: instructions.Report) -> None:
        details = dict(report.details)
        ids = {"pod": report.pod, "uid": report.uid} if report.pod else {}
        match report.event:
            case "pod released":
                self._metrics.waits.observe(details["waited"])
                _log.info("pod released", **ids, node=details["node"], waited=round(details["waited"], 3))
            case "release ended" | "release given up" as event:
                outcome: ReleaseOutcome = details["outcome"]
                self._metrics.releases.labels(outcome).inc()
                if event == "release given up":
                    _log.warning(event, **ids, **(details | {"outcome": str(outcome)}))
                elif outcome is ReleaseOutcome.REFUSED:
                    _log.warning("release refused", **ids, problem=details["problem"])
                elif outcome in {ReleaseOutcome.BOUND_ELSEWHERE, ReleaseOutcome.BOUND_LATE}:
                    _log.warning("released pod bound otherwise", **ids, node=details["node"], outcome=str(outcome))
            case "the kubelet will not admit a released pod" as event:
                _log.warning(event, **ids, **details)

    async def _release(self, instruction: instructions.WriteRelease) -> None:
        """Write a release, and report what became of it."""
        pod, nodes, uid = self._live.find_by_uid(instruction.pod.uid), instruction.nodes, instruction.pod.uid
        if pod is None:
            release = WrittenRelease(ReleaseOutcome.DELETED)
        elif pod.metadata.resource_version != instruction.version:
            release = WrittenRelease(ReleaseOutcome.CHANGED, pod)
        else:
            api_nodes = {name: self._live.nodes.get(name) for name in nodes}
            host_names = {
                name: node.metadata.labels.get(HOST_NAME, "") if node else "" for name, node in api_nodes.items()
            }
            release = await write_release(self._client, pod, host_names, steered=instruction.steered)
        if release.failure is None:
            self._live.schedule(events.ReleaseWritten(uid))
        else:
            current = None
            if release.current is not None:
                with suppress(PodError):
                    current = self._live.facts(release.current)
            self._live.schedule(events.ReleaseFailed(uid, release.failure, release.error, current))

    async def _evict(self, uid: str) -> None:
        pod = self._live.find_by_uid(uid)
        if pod is None:
            return
        try:
            await self._client.evict(PODS.of(pod))
        except ApiError as error:
            _log.warning("cannot replace a pod", pod=pod.metadata.full_name, uid=pod.metadata.uid, problem=str(error))

    def _start(self, work: Coroutine[Any, Any, None], uid: str) -> None:
        """Start a task; if it fails, the pod is tried again later."""
        self._tasks.start(work, uid, ServiceStep.RELEASE)
