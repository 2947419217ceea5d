"""Images: a container's image is there, or is fetched as its pull policy says, or there is a reason why not."""

import asyncio
from dataclasses import dataclass, field
from typing import Protocol

from alignup.agent.pods.errors import PodStartError
from alignup.align.errors import CriError
from alignup.enforce.cri.types import CriImage
from alignup.kube.podspec.types import ContainerSpec, PullPolicy


class ImageService(Protocol):
    """As much of a runtime as images take."""

    async def image(self, name: str) -> CriImage | None:
        """An image that is there."""
        ...

    async def pull(self, name: str) -> str:
        """Fetch one."""
        ...


@dataclass
class ImageManager:
    """Images of *runtime*; of two who want the same, one waits for the other."""

    runtime: ImageService
    #: image → what keeps all but one of those who want it waiting, and how many they are
    _locks: dict[str, tuple[asyncio.Lock, int]] = field(default_factory=dict)

    async def ensure_image(self, container: ContainerSpec) -> CriImage:
        """The image of a container; :class:`PodStartError` where it cannot be had."""
        lock, waiting = self._locks.get(container.image, (asyncio.Lock(), 0))
        self._locks[container.image] = lock, waiting + 1
        try:
            async with lock:
                return await self._ensured(container)
        finally:
            lock, waiting = self._locks.pop(container.image)
            if waiting > 1:
                self._locks[container.image] = lock, waiting - 1

    async def _ensured(self, container: ContainerSpec) -> CriImage:
        found = await self._found(container.image)
        if container.pull_policy is PullPolicy.NEVER or (found is not None and container.pull_policy is PullPolicy.IF_NOT_PRESENT):
            if found is None:
                what = f"image {container.image} is not on this host, and imagePullPolicy is Never"
                raise PodStartError("ErrImageNeverPull", f"{what}; import it, or let it be pulled")
            return found
        try:
            reference = await self.runtime.pull(container.image)
        except CriError as error:
            raise PodStartError("ErrImagePull", f"image {container.image} cannot be pulled: {error}") from error
        fetched = await self._found(container.image) or await self._found(reference)
        if fetched is None:
            raise PodStartError("ErrImagePull", f"image {container.image} was pulled, and the runtime does not have it")
        return fetched

    async def _found(self, name: str) -> CriImage | None:
        try:
            return await self.runtime.image(name)
        except CriError as error:
            raise PodStartError("ImageInspectError", f"the runtime cannot tell of image {name}: {error}") from error


def verify_run_as_non_root(container: ContainerSpec, image: CriImage) -> None:
    """:class:`PodStartError` where a container must not run as root, and would, or might."""
    context = container.security_context
    if not context.run_as_non_root:
        return
    where = f"container {container.name} must not run as root (runAsNonRoot)"
    if context.user == 0:
        raise PodStartError("CreateContainerConfigError", f"{where}, and runAsUser is 0")
    if context.user is None and image.user is None and image.username:
        what = f"{where}, and its image names a user, {image.username}, whose number is not known; set runAsUser"
        raise PodStartError("CreateContainerConfigError", what)
    if context.user is None and not image.user:
        raise PodStartError("CreateContainerConfigError", f"{where}, and its image does; set runAsUser")
