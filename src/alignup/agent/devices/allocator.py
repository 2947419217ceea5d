"""Calls device plugins for pending pods, outside the admission queue.

Each pod has its own task, so a slow or dead plugin delays only the pods that need it. When the task ends, the pod is
admitted with everything its plugins returned, or it holds no resources. If devices change faster than a plugin states
its preferences, the plugin is asked a limited number of times, and then the pod keeps the devices it has.
"""

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from structlog.typing import FilteringBoundLogger

from alignup.agent.devices.device_state import RequestedDevices
from alignup.agent.pending_admission import PendingAdmission, PluginRejectedError
from alignup.agent.pod_record import same_workload
from alignup.agent.queue import AdmissionQueue
from alignup.agent.transaction import Transaction
from alignup.align.devices import PreferenceRequest
from alignup.align.errors import PluginError, ProviderError
from alignup.align.workload import Pod, demand
from alignup.schema.api import AdmissionResult, BusyError, NotReadyError
from alignup.schema.run_status import PodGrants

if TYPE_CHECKING:
    from alignup.plugins.manager import DevicePluginManager

MAX_PREFERENCE_ROUNDS = 4  #: how often plugins are asked again because the devices have changed
MAX_BACKOFF = 30.0  #: seconds

_STOPPING = "the agent is stopping; start it again"

_Answers = dict[PreferenceRequest, tuple[str, ...] | str]


class DeviceAllocator:
    """Runs in the event loop it is created in, until it is closed.

    A pod that a plugin rejected is retried after *backoff* seconds, which double with each failure.
    """

    def __init__(
        self,
        queue: AdmissionQueue,
        plugins: "DevicePluginManager",
        *,
        log: FilteringBoundLogger,
        backoff: float = 0.5,
    ) -> None:
        self._queue = queue
        self._plugins = plugins
        self._log = log
        self._backoff = backoff
        self._loop = asyncio.get_running_loop()
        self._tasks: dict[str, tuple[Pod, asyncio.Task[AdmissionResult]]] = {}  #: by uid
        self._backoffs: dict[str, asyncio.Task[None]] = {}  #: by uid
        self._failures: dict[str, int] = {}  #: uid → consecutive failures
        self._closed = False
        queue.on_pending(self._start_all)

    async def admit(self, pod: Pod) -> AdmissionResult:
        """Decide on a pod and have its devices allocated; wait for a pod that is pending already."""
        pending = self._tasks.get(pod.uid)
        if pending is not None and same_workload(pending[0], pod):
            return await self._finished(pending[1])
        step = await self._queue.run(Transaction.admit, pod)
        return step if isinstance(step, AdmissionResult) else await self._finished(self._start(step))

    async def dry_run(self, pod: Pod) -> AdmissionResult:
        """Decide on a pod; plugins state their preferences, but allocate nothing."""
        answers: _Answers = {}
        for _ in range(MAX_PREFERENCE_ROUNDS + len(pod.all_containers)):
            decided = await asyncio.to_thread(self._queue.transaction().decide, pod, answers=answers)
            if not decided.preference_requests:
                break
            answers |= await self._preferences(decided.preference_requests)
        return AdmissionResult(decided.decision, None)

    async def pre_start(self, uid: str, container: str) -> None:
        """Call PreStartContainer of the plugins that want it; on ``PluginError`` the container must not start."""
        admitted = self._queue.host.ledger.pods.get(uid)
        containers = admitted.pod.all_containers if admitted else ()
        found = next((one for one in containers if one.name == container), None)
        if found is None:
            raise PluginError(f"pod {uid} has no container {container}")
        held = self._queue.host.ledger.devices.holds(uid, container)
        for resource, count in sorted(demand.container_devices(found, self._queue.state.plugins).items()):
            if count and resource not in held:
                raise PluginError(
                    f"no devices found allocated in local cache for pod {uid}, container {container}, "
                    f"resource {resource}"
                )
            if count:
                await self._plugins.pre_start(resource, held[resource])

    async def close(self) -> None:
        """Cancel all tasks; nothing of them is durable, so nothing has happened."""
        self._closed = True
        tasks = (*(task for _, task in self._tasks.values()), *self._backoffs.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _start_all(self, pending: Sequence[PendingAdmission]) -> None:
        """Start tasks that no client waits for; called by the queue's thread."""

        def start() -> None:
            for one in pending:
                self._start(one).add_done_callback(self._log_bug)

        with suppress(RuntimeError):  # the loop is closed
            self._loop.call_soon_threadsafe(start)

    def _start(self, pending: PendingAdmission) -> asyncio.Task[AdmissionResult]:
        if self._closed:
            raise NotReadyError(_STOPPING)
        pod = pending.pod
        task = asyncio.create_task(self._run(pending), name=f"devices of {pod.uid}")
        self._tasks[pod.uid] = pod, task
        task.add_done_callback(lambda done: self._forget(pod.uid, done))
        return task

    def _forget(self, uid: str, task: asyncio.Task[AdmissionResult]) -> None:
        if uid in self._tasks and self._tasks[uid][1] is task:
            del self._tasks[uid]

    def _log_bug(self, task: asyncio.Task[AdmissionResult]) -> None:
        error = None if task.cancelled() else task.exception()
        if error is not None and not isinstance(error, NotReadyError | BusyError):
            self._log.error("devices", detail=f"bug in alignup: {type(error).__name__}: {error}")

    async def _finished(self, task: asyncio.Task[AdmissionResult]) -> AdmissionResult:
        """Wait for a task, which continues if the client disconnects."""
        try:
            return await asyncio.shield(task)
        except asyncio.CancelledError:
            if task.cancelled():
                raise NotReadyError(_STOPPING) from None
            raise

    async def _run(self, pending: PendingAdmission) -> AdmissionResult:
        """Call the plugins of a pod; on any error its resources are released."""
        try:
            result = await self._allocate_pod(pending)
        except BaseException:
            if not self._closed:
                await self._undo(pending)
            raise
        if result.decision.admitted:
            self._failures.pop(pending.pod.uid, None)
        elif result.pod_view is not None:
            self._back_off(pending.pod.uid)
        return result

    async def _allocate_pod(self, pending: PendingAdmission) -> AdmissionResult:
        step = await self._apply_preferences(pending)
        if isinstance(step, AdmissionResult):
            return step
        try:
            grants = await self._allocate_all(step.device_requests)
        except ProviderError as error:
            return await self._queue.run(Transaction.fail, step, error)
        return await self._queue.run(Transaction.commit, step, grants)

    async def _apply_preferences(self, pending: PendingAdmission) -> PendingAdmission | AdmissionResult:
        answers: _Answers = {}
        rounds = MAX_PREFERENCE_ROUNDS + len(pending.pod.all_containers)  # containers are asked one after the other
        step: PendingAdmission | AdmissionResult = pending
        while isinstance(step, PendingAdmission) and step.preference_requests:
            rounds -= 1
            answers |= await self._preferences(step.preference_requests)
            step = await self._queue.run(Transaction.apply_preferences, step, answers, last=rounds <= 0)
        return step

    async def _preferences(self, requests: Sequence[PreferenceRequest]) -> _Answers:
        """Ask all plugins at once; the answer of a plugin that fails is the error message."""

        async def preferred(request: PreferenceRequest) -> tuple[str, ...] | str:
            try:
                return await self._plugins.preferred(request)
            except PluginError as error:
                return str(error)

        return dict(zip(requests, await asyncio.gather(*map(preferred, requests)), strict=True))

    async def _allocate_all(self, requests: Iterable[RequestedDevices]) -> PodGrants:
        """Call all plugins concurrently, each for one container after the other."""
        by_resource: dict[str, list[RequestedDevices]] = {}
        for request in requests:
            by_resource.setdefault(request.resource, []).append(request)
        tasks = [asyncio.create_task(self._allocate(own)) for own in by_resource.values()]
        try:
            allocated = await asyncio.gather(*tasks)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
        grants: dict[str, dict[str, Mapping[str, Any]]] = {}
        for request, grant in (pair for one in allocated for pair in one):
            grants.setdefault(request.container, {})[request.resource] = grant
        return grants

    async def _allocate(self, requests: Iterable[RequestedDevices]) -> list[tuple[RequestedDevices, Mapping[str, Any]]]:
        found: list[tuple[RequestedDevices, Mapping[str, Any]]] = []
        for request in requests:
            try:
                grant = await self._plugins.allocate(request.resource, request.ids)
            except PluginError as error:
                raise PluginRejectedError(str(error), container=request.container) from error
            found.append((request, grant.to_document()))
        return found

    async def _undo(self, pending: PendingAdmission) -> None:
        while True:
            try:
                await self._queue.run(Transaction.undo, pending)
                break
            except BusyError:
                await asyncio.sleep(self._backoff)
            except NotReadyError:  # the agent is stopping; nothing of the pod is durable
                break
        self._back_off(pending.pod.uid)
        with suppress(NotReadyError, BusyError):  # the next release retries them
            await self._queue.run(Transaction.retry_waiting)

    def _back_off(self, uid: str) -> None:
        if self._closed or uid in self._backoffs:
            return
        failures = self._failures[uid] = self._failures.get(uid, 0) + 1
        seconds = min(self._backoff * 2 ** min(failures - 1, 16), MAX_BACKOFF)
        self._backoffs[uid] = asyncio.create_task(self._end_backoff(uid, seconds), name=f"back-off of {uid}")

    async def _end_backoff(self, uid: str, seconds: float) -> None:
        while True:
            await asyncio.sleep(seconds)
            try:
                waiting = await self._queue.run(Transaction.end_backoff, uid)
                break
            except (NotReadyError, BusyError):
                seconds = MAX_BACKOFF
        del self._backoffs[uid]
        if not waiting:
            self._failures.pop(uid, None)
