"""What all pods that run have in common: the runtime, what is seen of it, and who else has to be asked or told."""

from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Protocol

from structlog.typing import FilteringBoundLogger

from alignup.agent.pods import cri_config, logs
from alignup.agent.pods.cpusets import CpusetReconciler
from alignup.agent.pods.errors import PodStartError
from alignup.agent.pods.images import ImageManager
from alignup.agent.pods.runtime_cache import RuntimeCache
from alignup.agent.queue import AdmissionQueue
from alignup.align.errors import AlignError
from alignup.align.workload import Amounts, Pod
from alignup.enforce.cri.client import RuntimeClient
from alignup.enforce.cri.pod_cgroups import PodCgroups
from alignup.enforce.cri.resources import NodeLimits
from alignup.enforce.cri.types import ContainerState, CriContainer, RuntimeVersion
from alignup.kube.configuration import ContainerSettings

MAX_REMEMBERED_WARNINGS = 1_000  #: of what was said that is remembered


class PreStartNotifier(Protocol):
    """Whoever tells device plugins that a container starts; ``PluginError`` where one says no."""

    async def pre_start(self, uid: str, container: str) -> None:
        """A container starts."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class RuntimeContext:
    """All of it."""

    runtime: RuntimeClient
    identity: RuntimeVersion
    cache: RuntimeCache
    cpusets: CpusetReconciler
    images: ImageManager
    groups: PodCgroups | None  #: ``None``: the runtime puts containers into groups as it likes
    ground: NodeLimits
    errands: PreStartNotifier
    desk: AdmissionQueue
    place: cri_config.HostConfig
    settings: ContainerSettings
    limits: Amounts  #: what all pods together are held to
    root: Path  #: under which pods have their directories
    log: FilteringBoundLogger
    said: dict[str, None] = field(default_factory=dict)  #: the newest last

    def warn_once(self, note: str) -> None:
        """Have people know something, once; as long as not too much else was said since."""
        if note in self.said:
            return
        self.said[note] = None
        if len(self.said) > MAX_REMEMBERED_WARNINGS:
            del self.said[next(iter(self.said))]
        self.log.warning("runtime", detail=note)

    async def rotate_logs(self) -> None:
        """Begin new files for logs that have grown large, if they may not grow without end."""
        if self.settings.log_max_bytes < 0:
            return
        running = [
            (one, Pod(name=box.name, namespace=box.namespace, uid=box.uid))
            for seen in self.cache.pods().values()
            for box in seen.sandboxes[-1:]
            for one in seen.containers
            if one.state is ContainerState.RUNNING
        ]
        for one, pod in running:
            await self._rotate_one(one, pod)

    async def _rotate_one(self, one: CriContainer, pod: Pod) -> None:
        try:
            path = cri_config.log_directory(self.place.log_root, pod) / cri_config.log_path(one.name, one.attempt)
            await logs.rotate_log(
                path,
                reopen=partial(self.runtime.reopen_log, one.id),
                size=self.settings.log_max_bytes,
                most=self.settings.log_max_files,
            )
        except (AlignError, PodStartError, OSError) as error:
            self.warn_once(
                f"the log of container {one.name} of pod {pod.namespace}/{pod.name} cannot be rotated: {error}"
            )
