"""What all pods that run have in common: the runtime, what is seen of it, and who else has to be asked or told."""

from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Protocol

from structlog.typing import FilteringBoundLogger

from alignup.agent.desk import Desk
from alignup.agent.pods import logs, plans
from alignup.agent.pods.cpusets import Cpusets
from alignup.agent.pods.failing import StartError
from alignup.agent.pods.images import Images
from alignup.agent.pods.scene import Scene
from alignup.align.errors import AlignError
from alignup.align.workload import Amounts, Pod
from alignup.enforce.cri.client import Runtime
from alignup.enforce.cri.groups import Groups
from alignup.enforce.cri.plan import Identity, SeenContainer, State
from alignup.enforce.cri.resources import Ground
from alignup.kube.configuration import ContainerSettings

MUCH = 1_000  #: of what was said that is remembered


class Errand(Protocol):
    """Whoever tells device plugins that a container starts; ``PluginError`` where one says no."""

    async def pre_start(self, uid: str, container: str) -> None:
        """A container starts."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Tools:
    """All of it."""

    runtime: Runtime
    identity: Identity
    scene: Scene
    cpusets: Cpusets
    images: Images
    groups: Groups | None  #: ``None``: the runtime puts containers into groups as it likes
    ground: Ground
    errands: Errand
    desk: Desk
    place: plans.Place
    settings: ContainerSettings
    limits: Amounts  #: what all pods together are held to
    root: Path  #: under which pods have their directories
    log: FilteringBoundLogger
    said: dict[str, None] = field(default_factory=dict)  #: the newest last

    def say(self, note: str) -> None:
        """Have people know something, once; as long as not too much else was said since."""
        if note in self.said:
            return
        self.said[note] = None
        if len(self.said) > MUCH:
            del self.said[next(iter(self.said))]
        self.log.warning("runtime", detail=note)

    async def rotate(self) -> None:
        """Begin new files for logs that have grown large, if they may not grow without end."""
        if self.settings.log_size < 0:
            return
        running = [
            (one, Pod(name=box.name, namespace=box.namespace, uid=box.uid))
            for seen in self.scene.pods().values()
            for box in seen.sandboxes[-1:]
            for one in seen.containers
            if one.state is State.RUNNING
        ]
        for one, pod in running:
            await self._rotate_one(one, pod)

    async def _rotate_one(self, one: SeenContainer, pod: Pod) -> None:
        try:
            path = plans.log_directory(self.place.log_root, pod) / plans.log_path(one.name, one.attempt)
            await logs.rotate(
                path,
                reopen=partial(self.runtime.reopen_log, one.id),
                size=self.settings.log_size,
                most=self.settings.log_files,
            )
        except (AlignError, StartError, OSError) as error:
            self.say(f"the log of container {one.name} of pod {pod.namespace}/{pod.name} cannot be rotated: {error}")
