"""What the workers of all pods share: the runtime, its cache, and the rest of the agent."""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from structlog.typing import FilteringBoundLogger

from alignup.agent.pods import cri_config, logs
from alignup.agent.pods.cpusets import CpusetReconciler
from alignup.agent.pods.images import ImageManager
from alignup.agent.pods.pod_state import PodStartError
from alignup.agent.pods.runtime_cache import RuntimeCache
from alignup.agent.queue import AdmissionQueue
from alignup.align.errors import AlignError
from alignup.align.workload import Amounts, Pod
from alignup.enforce.cri.client import RuntimeClient
from alignup.enforce.cri.pod_cgroups import PodCgroups
from alignup.enforce.cri.resources import NodeLimits
from alignup.enforce.cri.types import ContainerState, CriContainer, RuntimeVersion
from alignup.kube.configuration import ContainerSettings

MAX_REMEMBERED_WARNINGS = 1_000

#: Call ``PreStartContainer`` of the device plugins for a pod uid and container; ``PluginError`` if one fails.
PreStart = Callable[[str, str], Awaitable[None]]


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
    _warned: dict[str, None] = field(default_factory=dict)  #: oldest first

    def warn_once(self, text: str) -> None:
        """Log a warning, unless it is among the last :data:`MAX_REMEMBERED_WARNINGS`."""
        if text in self._warned:
            return
        self._warned[text] = None
        if len(self._warned) > MAX_REMEMBERED_WARNINGS:
            del self._warned[next(iter(self._warned))]
        self.log.warning("runtime", detail=text)

    def log_file(self, pod: Pod, container: str, attempt: int) -> Path:
        """The log of a container; ``PodStartError`` if a name cannot be part of a path."""
        directory = cri_config.log_directory(self.host_config.log_root, pod)
        return directory / cri_config.log_path(container, attempt)

    async def rotate_logs(self) -> None:
        if self.settings.log_max_bytes < 0:
            return
        running = [
            (one, Pod(name=sandbox.name, namespace=sandbox.namespace, uid=sandbox.uid))
            for status in self.cache.pods().values()
            for sandbox in status.sandboxes[-1:]
            for one in status.containers
            if one.state is ContainerState.RUNNING
        ]
        for one, pod in running:
            await self._rotate_log(one, pod)

    async def _rotate_log(self, one: CriContainer, pod: Pod) -> None:
        try:
            await logs.rotate_log(
                self.log_file(pod, one.name, one.attempt),
                reopen=partial(self.runtime.reopen_log, one.id),
                max_bytes=self.settings.log_max_bytes,
                max_files=self.settings.log_max_files,
            )
        except (AlignError, PodStartError, OSError) as error:
            self.warn_once(f"cannot rotate the log of container {one.name}, pod {pod.namespace}/{pod.name}: {error}")
