"""The container runtime as the workers of all pods share it: a cache of its status, and the rest of the agent.

Lists are cheap and are requested every second. The full status of a container is requested only when its state has
changed, because that of an exited container is final. A single pod may be refreshed while a full refresh is in
progress: the result of the later request wins, whichever arrives first.
"""

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import count
from pathlib import Path
from typing import TypeVar
from weakref import WeakValueDictionary

from structlog.typing import FilteringBoundLogger

from alignup.agent.pods import cri_config
from alignup.agent.pods.cpusets import CpusetReconciler
from alignup.agent.pods.cri_config import AGENT_LABEL, POD_UID
from alignup.agent.pods.files import logs, pod_dirs, volumes
from alignup.agent.pods.pod_state import PodIntervals, PodStartError, PodStatus, describe_bug
from alignup.agent.queue import AdmissionQueue
from alignup.align.errors import AlignError, CriError, EnforceError
from alignup.align.workload import Amounts, Pod
from alignup.documents.api import BusyError, NotReadyError
from alignup.kubernetes.configuration import ContainerSettings
from alignup.kubernetes.podspec.types import ContainerSpec, PullPolicy
from alignup.run.cri.client import RuntimeClient
from alignup.run.cri.pod_cgroups import PodCgroups
from alignup.run.cri.resources import NodeLimits
from alignup.run.cri.types import ContainerState, CriContainer, CriImage, CriSandbox, RuntimeVersion

MAX_REMEMBERED_WARNINGS = 1_000

#: Call ``PreStartContainer`` of the device plugins for a pod uid and container; ``PluginError`` if one fails.
PreStart = Callable[[str, str], Awaitable[None]]

_Status = TypeVar("_Status")
_Result = TypeVar("_Result")


@dataclass
class RuntimeCache:
    """What *runtime* has of the agent with id *agent*."""

    runtime: RuntimeClient
    agent: str
    pods: dict[str, PodStatus] = field(default_factory=dict)  #: by uid
    foreign_sandboxes: int = 0
    _requests: Iterator[int] = field(default_factory=count)
    _refreshed: dict[str, int] = field(default_factory=dict)  #: uid → number of the last request for this pod alone

    def of(self, uid: str) -> PodStatus:
        return self.pods.get(uid, PodStatus())

    async def refresh(self) -> frozenset[str]:
        """Refresh everything; return the uids of pods that have changed. ``CriError`` if the runtime fails."""
        request = next(self._requests)
        with _cancellation_kept():
            sandboxes, containers = await asyncio.gather(self.runtime.sandboxes(), self.runtime.containers())
        own = [one for one in sandboxes if one.labels.get(AGENT_LABEL) == self.agent]
        self.foreign_sandboxes = len(sandboxes) - len(own)
        found = await self._complete(own, containers, known=self.pods.values())
        self._refreshed = {uid: number for uid, number in self._refreshed.items() if number > request}
        for uid in self._refreshed:
            found.pop(uid, None)
            if uid in self.pods:
                found[uid] = self.pods[uid]
        before, self.pods = self.pods, found
        return frozenset(uid for uid in before.keys() | found.keys() if before.get(uid) != found.get(uid))

    async def refresh_pod(self, uid: str) -> PodStatus:
        request = next(self._requests)
        own, all_agents = {POD_UID: uid, AGENT_LABEL: self.agent}, {POD_UID: uid}
        with _cancellation_kept():
            sandboxes, containers = await asyncio.gather(
                self.runtime.sandboxes(own), self.runtime.containers(all_agents)
            )
        found = await self._complete(sandboxes, containers, known=[self.of(uid)])
        self._refreshed[uid] = request
        self.pods.pop(uid, None)
        if uid in found:
            self.pods[uid] = found[uid]
        return self.of(uid)

    async def _complete(
        self, sandboxes: Iterable[CriSandbox], containers: Iterable[CriContainer], *, known: Iterable[PodStatus]
    ) -> dict[str, PodStatus]:
        """Group what was listed by pod, with full status; containers in other sandboxes are left out."""
        ips: dict[str, tuple[str, ...]] = {}
        cached: dict[tuple[str, ContainerState], CriContainer] = {}
        for status in known:
            ips |= {one.id: one.ips for one in status.sandboxes}
            cached |= {(one.id, one.state): one for one in status.containers if one.state is not ContainerState.UNKNOWN}
        ids = {one.id for one in sandboxes}
        containers = [one for one in containers if one.sandbox in ids]
        full_sandboxes = [replace(one, ips=ips[one.id]) for one in sandboxes if one.id in ips]
        full_sandboxes += await _get_all(self.runtime.sandbox, ids - ips.keys())
        full_containers = [full for one in containers if (full := cached.get((one.id, one.state)))]
        new = [one.id for one in containers if (one.id, one.state) not in cached]
        full_containers += await _get_all(self.runtime.container, new)
        by_pod: dict[str, tuple[list[CriSandbox], list[CriContainer]]] = {}
        owners = {}
        for sandbox in sorted(full_sandboxes, key=_age):
            owners[sandbox.id] = by_pod.setdefault(sandbox.uid, ([], []))
            owners[sandbox.id][0].append(sandbox)
        for container in sorted(full_containers, key=_age):
            if container.sandbox in owners:
                owners[container.sandbox][1].append(container)
        return {uid: PodStatus(sandboxes=tuple(own), containers=tuple(inside)) for uid, (own, inside) in by_pod.items()}


async def _get_all(request: Callable[[str], Awaitable[_Status]], ids: Iterable[str]) -> list[_Status]:
    """The full status of each of *ids*, without those that were removed meanwhile."""

    async def get(id_: str) -> _Status | None:
        try:
            return await request(id_)
        except CriError as error:
            if error.not_found:
                return None
            raise

    with _cancellation_kept():
        return [one for one in await asyncio.gather(*map(get, ids)) if one is not None]


@contextmanager
def _cancellation_kept() -> Iterator[None]:
    """Cancel a task that should be: ``asyncio.gather`` loses a cancellation if a request fails at the same moment."""
    try:
        yield
    except CriError as error:
        task = asyncio.current_task()
        if task is not None and task.cancelling():
            raise asyncio.CancelledError from error
        raise


def _age(one: CriSandbox | CriContainer) -> tuple[int, float]:
    return one.attempt, one.created


@dataclass
class ImageManager:
    """Pull images; concurrent requests for the same image are serialized."""

    runtime: RuntimeClient
    _locks: WeakValueDictionary[str, asyncio.Lock] = field(default_factory=WeakValueDictionary)  #: by image, while used

    async def ensure_image(self, container: ContainerSpec) -> CriImage:
        """The image of a container, pulled if necessary; :class:`PodStartError` if it is not available."""
        name, policy = container.image, container.pull_policy
        async with self._locks.setdefault(name, asyncio.Lock()):
            found = await self._find(name)
            if found is not None and policy is not PullPolicy.ALWAYS:
                return found
            if policy is PullPolicy.NEVER:
                what = f"image {name} is not present and imagePullPolicy is Never"
                raise PodStartError("ErrImageNeverPull", f"{what}; import the image or change the policy")
            try:
                reference = await self.runtime.pull(name)
            except CriError as error:
                raise PodStartError("ErrImagePull", f"cannot pull image {name}: {error}") from error
            pulled = await self._find(name) or await self._find(reference)
        if pulled is None:
            raise PodStartError("ErrImagePull", f"image {name} was pulled, but the runtime does not list it")
        return pulled

    async def _find(self, name: str) -> CriImage | None:
        try:
            return await self.runtime.image(name)
        except CriError as error:
            raise PodStartError("ImageInspectError", f"cannot inspect image {name}: {error}") from error


def verify_run_as_non_root(container: ContainerSpec, image: CriImage) -> None:
    """Raise :class:`PodStartError` if a container with ``runAsNonRoot`` would, or might, run as root."""
    context = container.security_context
    if not context.run_as_non_root:
        return
    if context.user == 0:
        problem = "runAsUser is 0"
    elif context.user is None and image.user is None and image.username:
        problem = f"the image has the non-numeric user {image.username}, which cannot be verified; set runAsUser"
    elif context.user is None and not image.user:
        problem = "the image runs as root; set runAsUser"
    else:
        return
    raise PodStartError.config(f"container {container.name} has runAsNonRoot, but {problem}")


@dataclass(frozen=True, slots=True, kw_only=True)
class RuntimeContext:
    runtime: RuntimeClient
    version: RuntimeVersion
    cache: RuntimeCache
    cpusets: CpusetReconciler
    images: ImageManager
    cgroups: PodCgroups | None  #: ``None``: the runtime chooses the cgroups
    node_limits: NodeLimits
    pre_start: PreStart
    queue: AdmissionQueue
    host_config: cri_config.HostConfig
    settings: ContainerSettings
    limits: Amounts  #: node allocatable, enforced on all pods together
    root: Path  #: root directory of the agent, which contains the pods' directories
    log: FilteringBoundLogger
    intervals: PodIntervals
    _warned: dict[str, None] = field(default_factory=dict)  #: oldest first

    def warn_once(self, text: str) -> None:
        """Log a warning, unless it is among the last :data:`MAX_REMEMBERED_WARNINGS`."""
        if text in self._warned:
            return
        self._warned[text] = None
        if len(self._warned) > MAX_REMEMBERED_WARNINGS:
            del self._warned[next(iter(self._warned))]
        self.log.warning("runtime", detail=text)

    async def retry_forever(self, operation: Callable[[], Awaitable[_Result]]) -> _Result:
        """Return the result of *operation* once it succeeds; each new error is logged once."""
        logged, failures = "", 0
        while True:
            try:
                return await operation()
            except Exception as error:  # noqa: BLE001 - a bug must not stop the retries either
                expected = isinstance(error, AlignError | NotReadyError | BusyError | OSError)
                text = str(error) if expected else describe_bug(error)
            if text != logged:
                self.log.warning("runtime", detail=f"{text}; retrying")
            logged = text
            await asyncio.sleep(self.intervals.retry_delay(failures))
            failures += 1

    def log_file(self, pod: Pod, container: str, attempt: int) -> Path:
        """The log of a container; ``PodStartError`` if a name cannot be part of a path."""
        directory = cri_config.log_directory(self.host_config.log_root, pod)
        return directory / cri_config.log_path(container, attempt)

    async def rotate_logs(self) -> None:
        running = [
            (one, Pod(name=sandbox.name, namespace=sandbox.namespace, uid=sandbox.uid))
            for status in self.cache.pods.values()
            for sandbox in status.sandboxes[-1:]
            for one in status.containers
            if one.state is ContainerState.RUNNING and self.settings.log_max_bytes >= 0
        ]
        for one, pod in running:
            try:
                await logs.rotate_log(
                    self.log_file(pod, one.name, one.attempt),
                    reopen=partial(self.runtime.reopen_log, one.id),
                    max_bytes=self.settings.log_max_bytes,
                    max_files=self.settings.log_max_files,
                )
            except (AlignError, PodStartError, OSError) as error:
                what = f"cannot rotate the log of container {one.name}, pod {pod.namespace}/{pod.name}"
                self.warn_once(f"{what}: {error}")

    async def clean_up_pod(self, pod: Pod, *, with_logs: bool) -> None:
        """Remove everything of a pod that no longer runs; may be repeated after an interruption."""
        status = await self.cache.refresh_pod(pod.uid)
        for sandbox in status.sandboxes:
            await self.runtime.stop_sandbox(sandbox.id)
            await self.runtime.remove_sandbox(sandbox.id)
        if status.sandboxes:
            await self.cache.refresh_pod(pod.uid)
        await asyncio.to_thread(self._remove_pod_files, pod, with_logs=with_logs)

    def _remove_pod_files(self, pod: Pod, *, with_logs: bool) -> None:
        with suppress(PodStartError):  # an invalid name: there are no files
            volumes.remove_pod_dir(self.root, pod.uid)
            if with_logs:
                pod_dirs.remove_tree(cri_config.log_directory(self.host_config.log_root, pod))
        if self.cgroups is not None:
            with suppress(EnforceError):  # an invalid name: there is no cgroup
                self.cgroups.remove(pod)

    def remove_container_files(self, pod: Pod, container: CriContainer) -> None:
        with suppress(PodStartError):  # an invalid name: there are no files
            volumes.remove_termination_message(self.root, pod.uid, container=container.name, attempt=container.attempt)
            logs.remove_logs(self.log_file(pod, container.name, container.attempt))
