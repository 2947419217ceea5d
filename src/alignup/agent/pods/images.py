"""Make sure that the image of a container is present, as its pull policy says."""

import asyncio
from dataclasses import dataclass, field
from weakref import WeakValueDictionary

from alignup.agent.pods.pod_state import PodStartError
from alignup.align.errors import CriError
from alignup.enforce.cri.client import RuntimeClient
from alignup.enforce.cri.types import CriImage
from alignup.kube.podspec.types import ContainerSpec, PullPolicy


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
