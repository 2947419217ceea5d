"""The calls of device plugins for pending pods, outside the admission queue.

Each pod has its own task, so a slow or dead plugin delays only the pods that need it. When the task ends, the pod is
admitted with everything its plugins returned, or it holds no resources. If devices change faster than a plugin states
its preferences, the plugin is asked a limited number of times, and then the pod keeps the devices it has.
"""

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from structlog.typing import FilteringBoundLogger

from alignup.agent.admission_queue import AdmissionQueue
from alignup.agent.metrics import Metrics
from alignup.agent.pending_admission import PendingAdmission, PluginRejectedError, RequestedDevices
from alignup.agent.state import MAX_GRANT_BYTES, AdmissionResult, same_workload
from alignup.agent.transaction import Transaction
from alignup.align.devices.provider import PreferenceRequest
from alignup.align.errors import PluginError, ProviderError
from alignup.align.workload import Pod
from alignup.documents import codec
from alignup.kubernetes.plugins.manager import DevicePluginManager
from alignup.kubernetes.plugins.pod_resources import serve_pod_resources
from alignup.kubernetes.plugins.resources import ResourceState
from alignup.picture.text_format import format_size
from alignup.tasks import cancel_tasks
from alignup.web.responses import BusyError, NotReadyError

MAX_PREFERENCE_ROUNDS = 4  #: how often plugins are asked again because the devices have changed
MAX_BACKOFF = 30.0  #: seconds
MAX_REJECTED = 64  #: pods that are remembered

_STOPPING = "the agent is stopping; start it again"

_Answers = dict[PreferenceRequest, tuple[str, ...] | str]


@dataclass(slots=True)
class DeviceAllocator:
    """The tasks that call device plugins, in the event loop it is created in, until it is closed."""

    queue: AdmissionQueue
    plugins: DevicePluginManager
    log: FilteringBoundLogger
    #: the last pods that were rejected, by uid: pages decide on them again
    rejected_pods: dict[str, Pod] = field(default_factory=dict)
    backoff: float = 0.5  #: seconds before a pod is retried; they double with each failure
    _loop: asyncio.AbstractEventLoop = field(default_factory=asyncio.get_running_loop)
    _tasks: dict[str, tuple[Pod, asyncio.Task[AdmissionResult]]] = field(default_factory=dict)  #: by uid
    _backoffs: dict[str, asyncio.Task[None]] = field(default_factory=dict)  #: by uid
    _failures: dict[str, int] = field(default_factory=dict)  #: uid → consecutive failures
    _closed: bool = False

    def __post_init__(self) -> None:
        self.queue.start_pending = self._start_all

    async def admit(self, pod: Pod) -> AdmissionResult:
        """Decide on a pod and have its devices allocated; wait for a pod that is pending already.

        If the caller is cancelled, the queue starts the task that allocates the devices: a pod must never hold devices
        while no task allocates them.
        """
        task = self._tasks.get(pod.uid)
        if task is not None and same_workload(task[0], pod):
            return await self._finished(task[1])
        step = await self.queue.run(Transaction.admit, pod)
        result = step if isinstance(step, AdmissionResult) else await self._finished(self._start(step))
        if result.pod_view is None:
            self.rejected_pods.pop(pod.uid, None)
            self.rejected_pods[pod.uid] = pod
            if len(self.rejected_pods) > MAX_REJECTED:
                del self.rejected_pods[next(iter(self.rejected_pods))]
        return result

    async def dry_run(self, pod: Pod) -> AdmissionResult:
        """Decide on a pod; plugins state their preferences, but allocate nothing."""
        answers: _Answers = {}
        for _ in range(MAX_PREFERENCE_ROUNDS + len(pod.all_containers)):
            admission = await asyncio.to_thread(self.queue.transaction().decide, pod, answers=answers)
            if not admission.preference_requests:
                break
            answers |= await self._preferences(admission.preference_requests)
        return AdmissionResult(admission.decision, None)

    def serves(self, resource: str) -> bool:
        """Whether the device plugin of *resource* is connected."""
        return self.plugins.status(resource).state is ResourceState.SERVED

    async def close(self) -> None:
        """Cancel all tasks; tasks store nothing, so nothing has happened."""
        self._closed = True
        tasks = (*(task for _, task in self._tasks.values()), *self._backoffs.values())
        await cancel_tasks(tasks)

    def _start_all(self, admissions: Sequence[PendingAdmission]) -> None:
        """Start tasks that no client waits for; called in any thread."""

        def start() -> None:
            for admission in () if self._closed else admissions:
                self._start(admission).add_done_callback(self._log_bug)

        with suppress(RuntimeError):  # the loop is closed
            self._loop.call_soon_threadsafe(start)

    def _start(self, admission: PendingAdmission) -> asyncio.Task[AdmissionResult]:
        if self._closed:
            raise NotReadyError(_STOPPING)
        pod = admission.pod
        task = asyncio.create_task(self._run(admission), name=f"devices of {pod.uid}")
        self._tasks[pod.uid] = pod, task

        def forget(_: object) -> None:
            if self._tasks.get(pod.uid) == (pod, task):
                del self._tasks[pod.uid]

        task.add_done_callback(forget)
        return task

    def _log_bug(self, task: asyncio.Task[AdmissionResult]) -> None:
        error = None if task.cancelled() else task.exception()
        if error is not None and not isinstance(error, NotReadyError | BusyError):
            self.log.error("devices", detail=f"bug in alignup: {type(error).__name__}: {error}")

    async def _finished(self, task: asyncio.Task[AdmissionResult]) -> AdmissionResult:
        """Wait for a task, which continues if the client disconnects."""
        try:
            return await asyncio.shield(task)
        except asyncio.CancelledError:
            if task.cancelled():
                raise NotReadyError(_STOPPING) from None
            raise

    async def _run(self, admission: PendingAdmission) -> AdmissionResult:
        """Call the plugins of a pod; on any error its resources are released."""
        try:
            step = await self._apply_preferences(admission)
            result = step if isinstance(step, AdmissionResult) else await self._allocate_pod(step)
        except BaseException:
            if not self._closed:
                await self._undo(admission)
            raise
        if result.decision.admitted:
            self._failures.pop(admission.pod.uid, None)
        elif result.pod_view is not None:
            self._back_off(admission.pod.uid)
        return result

    async def _apply_preferences(self, admission: PendingAdmission) -> PendingAdmission | AdmissionResult:
        answers: _Answers = {}
        rounds = MAX_PREFERENCE_ROUNDS + len(admission.pod.all_containers)  # containers are asked one after the other
        step: PendingAdmission | AdmissionResult = admission
        while isinstance(step, PendingAdmission) and step.preference_requests:
            rounds -= 1
            answers |= await self._preferences(step.preference_requests)
            step = await self.queue.run(Transaction.apply_preferences, step, answers, last=rounds <= 0)
        return step

    async def _preferences(self, requests: Sequence[PreferenceRequest]) -> _Answers:
        """Ask all plugins at once; the answer of a plugin that fails is the error message."""

        async def preferred(request: PreferenceRequest) -> tuple[str, ...] | str:
            try:
                return await self.plugins.preferred(request)
            except PluginError as error:
                return str(error)

        return dict(zip(requests, await asyncio.gather(*map(preferred, requests)), strict=True))

    async def _allocate_pod(self, admission: PendingAdmission) -> AdmissionResult:
        """Call all plugins concurrently, each for one container after the other."""
        responses: dict[RequestedDevices, Mapping[str, Any]] = {}

        async def allocate(resource: str) -> None:
            for request in (request for request in admission.device_requests if request.resource == resource):
                try:
                    responses[request] = (await self.plugins.allocate(resource, request.ids)).to_document()
                except PluginError as error:
                    raise PluginRejectedError(str(error), container=request.container) from error

        resources = dict.fromkeys(request.resource for request in admission.device_requests)
        tasks = [asyncio.create_task(allocate(resource)) for resource in resources]
        try:
            try:
                await asyncio.gather(*tasks)
            finally:
                await cancel_tasks(tasks)
        except ProviderError as error:
            return await self.queue.run(Transaction.fail, admission, error)
        grants: dict[str, dict[str, Mapping[str, Any]]] = {}
        for request in admission.device_requests:
            grants.setdefault(request.container, {})[request.resource] = responses[request]
        size = len(codec.encode(grants))
        if size > MAX_GRANT_BYTES:
            limit = format_size(MAX_GRANT_BYTES)
            why = f"the device plugins returned {format_size(size)} for the pod, and the limit is {limit}"
            return await self.queue.run(Transaction.fail, admission, ProviderError(why))
        return await self.queue.run(Transaction.commit, admission, grants)

    async def _undo(self, admission: PendingAdmission) -> None:
        while True:
            try:
                await self.queue.run(Transaction.undo, admission)
                break
            except BusyError:
                await asyncio.sleep(self.backoff)
            except NotReadyError:  # the agent is stopping; nothing of the pod is durable
                break
        self._back_off(admission.pod.uid)
        with suppress(NotReadyError, BusyError):  # the next release retries them
            await self.queue.run(Transaction.retry_waiting)

    def _back_off(self, uid: str) -> None:
        if self._closed or uid in self._backoffs:
            return
        failures = self._failures[uid] = self._failures.get(uid, 0) + 1
        seconds = min(self.backoff * 2 ** min(failures - 1, 16), MAX_BACKOFF)
        self._backoffs[uid] = asyncio.create_task(self._end_backoff(uid, seconds), name=f"back-off of {uid}")

    async def _end_backoff(self, uid: str, seconds: float) -> None:
        while True:
            await asyncio.sleep(seconds)
            try:
                still_waits = await self.queue.run(Transaction.end_backoff, uid)
                break
            except (NotReadyError, BusyError):
                seconds = MAX_BACKOFF
        del self._backoffs[uid]
        if not still_waits:
            self._failures.pop(uid, None)


@asynccontextmanager
async def serve_plugins(
    queue: AdmissionQueue, *, directory: Path, pod_resources: Path, metrics: Metrics, log: FilteringBoundLogger
) -> AsyncIterator[DeviceAllocator]:
    """Serve device plugins in *directory* and the PodResources API at *pod_resources*; raise ``ListenError``.

    A read-only queue accepts no plugins.
    """
    manager = DevicePluginManager(
        directory,
        lambda *devices, **options: queue.run(Transaction.set_devices, *devices, **options),
        lambda resource, **options: queue.run(Transaction.plugin_stopped, resource, **options),
        count_registration=metrics.count_registration,
        observe_allocation=metrics.observe_allocation,
    )
    allocator = DeviceAllocator(queue, manager, log=log)
    async with AsyncExitStack() as stack:
        if not queue.read_only:
            await stack.enter_async_context(manager)
            manager.expect(expected_resources(queue))
        await stack.enter_async_context(
            serve_pod_resources(
                pod_resources,
                lambda: queue.state.settled_host(),  # noqa: PLW0108 - of the state at that time
                count=metrics.count_pod_resources,
            )
        )
        stack.push_async_callback(allocator.close)
        yield allocator


def expected_resources(queue: AdmissionQueue) -> tuple[str, ...]:
    """Return the resources whose plugins were registered before a restart."""
    inventories = queue.state.host.ledger.devices.inventories
    return tuple(name for name in sorted(queue.state.plugins) if name in inventories and inventories[name].registered)
