"""The images a runtime for tests has, and those it could fetch: names, and what they run when nothing is said.

busybox                       one that runs nothing by itself
registry.test/app:1=sleep 60  one that does
"""

import hashlib
import shlex
from dataclasses import dataclass

import grpc

from alignup.rpc import StatusError
from alignup.wire import cri_pb2 as wire


@dataclass(frozen=True, slots=True)
class Image:
    """An image: its full name, and what it runs unless it is told otherwise."""

    name: str
    command: tuple[str, ...] = ()

    @classmethod
    def parse(cls, text: str) -> "Image":
        """The image of a text as above."""
        name, _, command = text.partition("=")
        return cls(full_name(name), tuple(shlex.split(command)))

    @property
    def id(self) -> str:
        """What identifies it."""
        return f"sha256:{hashlib.sha256(self.name.encode()).hexdigest()}"

    def message(self) -> wire.Image:
        """As it is shown."""
        digests, tags = ([self.name], []) if "@" in self.name else ([], [self.name])
        return wire.Image(id=self.id, repo_tags=tags, repo_digests=digests, size=1)


class ImageStore:
    """What is here, and what could be."""

    def __init__(self, here: tuple[str, ...], pullable: tuple[str, ...]) -> None:
        self._here: dict[str, Image] = {}  #: by name
        self._pullable = {image.name: image for image in map(Image.parse, pullable)}
        for text in here:
            self.add(text)

    def add(self, text: str) -> None:
        """Have an image from now on."""
        image = Image.parse(text)
        self._here[image.name] = image

    def offer(self, text: str) -> None:
        """Let it be fetched from now on."""
        image = Image.parse(text)
        self._pullable[image.name] = image

    def remove(self, name: str) -> None:
        """Have it no more."""
        self._here.pop(full_name(name), None)

    def find(self, name: str) -> Image | None:
        """The image of that name or id; ``None``: it is not here."""
        by_id = (image for image in self._here.values() if name in {image.id, image.id.removeprefix("sha256:")})
        return self._here.get(full_name(name)) or next(by_id, None)

    async def status(self, request: wire.ImageStatusRequest) -> wire.ImageStatusResponse:
        """``ImageStatus``: empty where it is missing."""
        image = self.find(request.image.image)
        return wire.ImageStatusResponse(image=image.message()) if image else wire.ImageStatusResponse()

    async def pull(self, request: wire.PullImageRequest) -> wire.PullImageResponse:
        """``PullImage``."""
        name = full_name(request.image.image)
        image = self._pullable.get(name)
        if image is None:
            what = f'failed to pull and unpack image "{name}": failed to resolve reference "{name}": {name}: not found'
            raise StatusError(what, code=grpc.StatusCode.NOT_FOUND)
        self._here[name] = image
        return wire.PullImageResponse(image_ref=image.id)


def full_name(name: str) -> str:
    """``busybox`` is ``docker.io/library/busybox:latest``."""
    host, slash, rest = name.partition("/")
    if not slash:
        host, rest = "docker.io", f"library/{name}"
    elif not ("." in host or ":" in host or host == "localhost"):
        host, rest = "docker.io", name
    tagged = "@" in rest or ":" in rest.rpartition("/")[2]
    return f"{host}/{rest}" if tagged else f"{host}/{rest}:latest"
