"""Errands: device plugins are asked on behalf of pods that are on their way in, outside the queue of the desk.

Each pod has an errand of its own, so a plugin that is slow, or never answers, holds up nobody but the pods that need
it. Whatever becomes of an errand, at its end the pod is here with all that plugins gave it, or has no place any more.

The surprising rule: where devices come and go faster than a plugin says which it prefers, it is asked a few times, and
then the pod keeps those it has.
"""

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from typing import Any, Protocol

from structlog.typing import FilteringBoundLogger

from alignup.agent.devices.device_state import RequestedDevices
from alignup.agent.pending_admission import PendingAdmission, PluginRejectedError, PodGrants
from alignup.agent.pod_record import same_workload
from alignup.agent.queue import AdmissionQueue
from alignup.align.devices import PreferenceRequest
from alignup.align.errors import PluginError, ProviderError
from alignup.align.workload import Pod, demand
from alignup.schema.api import AdmissionResult, BusyError, NotReadyError

MAX_PREFERENCE_ROUNDS = 4  #: how often plugins are asked again for a pod because the devices there are have changed
INITIAL_BACKOFF, MAX_BACKOFF = (
    0.5,
    30.0,
)  #: seconds until a pod a plugin refused is tried again: twice as long each time, and at most

_STOPS = "the agent stops; start it again"


class DeviceGrant(Protocol):
    """What a plugin gives with devices."""

    def to_document(self) -> dict[str, Any]:
        """As JSON values."""
        ...


class DevicePlugins(Protocol):
    """Whoever calls device plugins, each call with a deadline; ``PluginError`` when one fails."""

    async def preferred(self, wanted: PreferenceRequest) -> tuple[str, ...]:
        """Which devices the plugin would have taken."""
        ...

    async def allocate(self, resource: str, ids: Sequence[str]) -> DeviceGrant:
        """Have devices prepared for a container."""
        ...

    async def pre_start(self, resource: str, ids: Sequence[str]) -> None:
        """A container with these devices starts."""
        ...


class DeviceAllocator:
    """Runs errands between *desk* and *plugins*, in the event loop it was made in, until it is closed."""

    def __init__(self, desk: AdmissionQueue, plugins: DevicePlugins, *, log: FilteringBoundLogger) -> None:
        self._desk = desk
        self._plugins = plugins
        self._log = log
        self._loop = asyncio.get_running_loop()
        self._under_way: dict[str, tuple[Pod, asyncio.Task[AdmissionResult]]] = {}  #: by uid
        self._naps: dict[str, asyncio.Task[None]] = {}  #: by uid, of pods that rest
        self._failures: dict[str, int] = {}  #: uid → how often in a row plugins refused it
        self._closed = False
        desk.on_pending(self._begin_all)

    async def admit(self, pod: Pod) -> AdmissionResult:
        """Decide on a pod, and have its devices prepared; one that is on its way in already is waited for."""
        known = self._under_way.get(pod.uid)
        if known is not None and same_workload(known[0], pod):
            return await self._ended(known[1])
        step = await self._desk.admit(pod)
        return step if isinstance(step, AdmissionResult) else await self._ended(self._begin(step))

    async def consider(self, pod: Pod) -> AdmissionResult:
        """What would become of a pod; plugins say which devices they prefer, and prepare none."""
        answers: dict[PreferenceRequest, tuple[str, ...] | str] = {}
        for _ in range(MAX_PREFERENCE_ROUNDS + len(pod.all_containers)):
            decision, asks = await self._desk.consider(pod, answers)
            if not asks:
                break
            answers |= await self._asked(asks)
        return AdmissionResult(decision, None)

    async def pre_start(self, uid: str, container: str) -> None:
        """A container of a pod that is here starts: plugins that want to know are told.

        For whoever starts containers. ``PluginError`` where a plugin fails: then the container is not to start.
        """
        resident = self._desk.host.ledger.pods.get(uid)
        one = next((one for one in resident.pod.all_containers if one.name == container), None) if resident else None
        if one is None:
            raise PluginError(f"there is no container {container} of pod {uid} here")
        held = self._desk.host.ledger.devices.holds(uid, container)
        for resource, count in sorted(demand.container_devices(one, self._desk.standing.plugins).items()):
            if count and resource not in held:
                raise PluginError(
                    f"no devices found allocated in local cache for pod {uid}, container {container}, "
                    f"resource {resource}"
                )
            if count:
                await self._plugins.pre_start(resource, held[resource])

    async def close(self) -> None:
        """End every errand; nothing of them was written down, so nothing has happened."""
        self._closed = True
        tasks = (*(task for _, task in self._under_way.values()), *self._naps.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _begin_all(self, pending: Sequence[PendingAdmission]) -> None:
        """Begin errands nobody waits for; called by the desk, in its own thread."""
        with suppress(RuntimeError):  # the loop has ended
            self._loop.call_soon_threadsafe(self._begin_each, tuple(pending))

    def _begin_each(self, pending: Iterable[PendingAdmission]) -> None:
        for one in pending:
            self._begin(one).add_done_callback(self._look)

    def _begin(self, pending: PendingAdmission) -> asyncio.Task[AdmissionResult]:
        if self._closed:
            raise NotReadyError(_STOPS)
        pod = pending.pod
        task = asyncio.create_task(self._run(pending), name=f"devices of {pod.uid}")
        self._under_way[pod.uid] = pod, task
        task.add_done_callback(lambda done: self._over(pod.uid, done))
        return task

    def _over(self, uid: str, task: asyncio.Task[AdmissionResult]) -> None:
        if uid in self._under_way and self._under_way[uid][1] is task:
            del self._under_way[uid]

    def _look(self, task: asyncio.Task[AdmissionResult]) -> None:
        """Say what went wrong with an errand nobody waits for."""
        error = None if task.cancelled() else task.exception()
        if error is not None and not isinstance(error, NotReadyError | BusyError):
            self._log.error("devices", detail=f"a fault of alignup: {type(error).__name__}: {error}")

    async def _ended(self, task: asyncio.Task[AdmissionResult]) -> AdmissionResult:
        """What became of an errand, which goes on if nobody waits for it any more."""
        try:
            return await asyncio.shield(task)
        except asyncio.CancelledError:
            if task.cancelled():
                raise NotReadyError(_STOPS) from None
            raise

    async def _run(self, pending: PendingAdmission) -> AdmissionResult:
        """Have a pod's plugins asked; whatever goes wrong, its place is given back."""
        try:
            admission = await self._answered(pending)
        except BaseException:
            if not self._closed:
                await self._undo(pending)
            raise
        if admission.decision.admitted:
            self._failures.pop(pending.pod.uid, None)
        elif admission.pod_view is not None:
            self._rest(pending.pod.uid)
        return admission

    async def _answered(self, pending: PendingAdmission) -> AdmissionResult:
        """What becomes of a pod by what its plugins say."""
        step = await self._placed(pending)
        if isinstance(step, AdmissionResult):
            return step
        try:
            grants = await self._prepared(step.device_requests)
        except ProviderError as error:
            return await self._desk.fail(step, error)
        return await self._desk.commit(step, grants)

    async def _placed(self, pending: PendingAdmission) -> PendingAdmission | AdmissionResult:
        """A pod where its plugins would have it."""
        answers: dict[PreferenceRequest, tuple[str, ...] | str] = {}
        turns = MAX_PREFERENCE_ROUNDS + len(
            pending.pod.all_containers
        )  # each container may have its own question, after the one before
        step: PendingAdmission | AdmissionResult = pending
        while isinstance(step, PendingAdmission) and step.asks:
            turns -= 1
            answers |= await self._asked(step.asks)
            step = await self._desk.advise(step, answers, last=turns <= 0)
        return step

    async def _asked(self, asks: Iterable[PreferenceRequest]) -> dict[PreferenceRequest, tuple[str, ...] | str]:
        """What plugins say, all at once; the text of its error where one fails."""
        asks = tuple(asks)
        return dict(zip(asks, await asyncio.gather(*map(self._preferred, asks)), strict=True))

    async def _preferred(self, ask: PreferenceRequest) -> tuple[str, ...] | str:
        try:
            return await self._plugins.preferred(ask)
        except PluginError as error:
            return str(error)

    async def _prepared(self, wants: Iterable[RequestedDevices]) -> PodGrants:
        """What plugins give with the devices: each prepares one container after the other, all plugins at once."""
        by_resource: dict[str, list[RequestedDevices]] = {}
        for want in wants:
            by_resource.setdefault(want.resource, []).append(want)
        tasks = [asyncio.create_task(self._allocated(own)) for own in by_resource.values()]
        try:
            found = await asyncio.gather(*tasks)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
        grants: dict[str, dict[str, Mapping[str, Any]]] = {}
        for want, given in (pair for one in found for pair in one):
            grants.setdefault(want.container, {})[want.resource] = given
        return grants

    async def _allocated(self, wants: Iterable[RequestedDevices]) -> list[tuple[RequestedDevices, Mapping[str, Any]]]:
        """What one plugin gives; :class:`PluginRejectedError` when it does not."""
        found: list[tuple[RequestedDevices, Mapping[str, Any]]] = []
        for want in wants:
            try:
                given = await self._plugins.allocate(want.resource, want.ids)
            except PluginError as error:
                raise PluginRejectedError(str(error), container=want.container) from error
            found.append((want, given.to_document()))
        return found

    async def _undo(self, pending: PendingAdmission) -> None:
        """Give a pod's place back, and let others have it."""
        while True:
            try:
                await self._desk.undo(pending)
                break
            except BusyError:
                await asyncio.sleep(INITIAL_BACKOFF)
        self._rest(pending.pod.uid)
        with suppress(NotReadyError, BusyError):  # they are tried again at the next release
            await self._desk.try_waiting()

    def _rest(self, uid: str) -> None:
        """Have a pod tried again after a while, if it waits."""
        if self._closed or uid in self._naps:
            return
        failures = self._failures[uid] = self._failures.get(uid, 0) + 1
        seconds = min(INITIAL_BACKOFF * 2 ** min(failures - 1, 16), MAX_BACKOFF)
        self._naps[uid] = asyncio.create_task(self._wake(uid, seconds), name=f"wake {uid}")

    async def _wake(self, uid: str, seconds: float) -> None:
        """Wake a pod; one that nobody knows any more is forgotten here too."""
        while True:
            await asyncio.sleep(seconds)
            try:
                waits = await self._desk.wake(uid)
                break
            except (NotReadyError, BusyError):  # nothing can be written now
                seconds = MAX_BACKOFF
        del self._naps[uid]
        if not waits:
            self._failures.pop(uid, None)
