"""The images of a test runtime, local and pullable: a name, and the command that the image runs by default.

busybox                       without a command
registry.test/app:1=sleep 60  with one
"""

import hashlib
import shlex
from dataclasses import dataclass

from alignup.wire import cri_pb2 as wire


@dataclass(frozen=True, slots=True)
class Image:
    name: str  #: in full
    command: tuple[str, ...] = ()

    @property
    def id(self) -> str:
        return f"sha256:{hashlib.sha256(self.name.encode()).hexdigest()}"

    def to_message(self) -> wire.Image:
        digests, tags = ([self.name], []) if "@" in self.name else ([], [self.name])
        return wire.Image(id=self.id, repo_tags=tags, repo_digests=digests, size=1)


class ImageStore:
    def __init__(self) -> None:
        self._local: dict[str, Image] = {}  #: by full name
        self._pullable: dict[str, Image] = {}

    def add(self, text: str, *, pullable: bool = False) -> None:
        name, _, command = text.partition("=")
        images = self._pullable if pullable else self._local
        images[full_name(name)] = Image(full_name(name), tuple(shlex.split(command)))

    def remove(self, name: str) -> None:
        self._local.pop(full_name(name), None)

    def find(self, name: str) -> Image | None:
        """Return the local image of that name or id."""
        by_id = (image for image in self._local.values() if name in {image.id, image.id.removeprefix("sha256:")})
        return self._local.get(full_name(name)) or next(by_id, None)

    def pull(self, name: str) -> Image | None:
        """Make a pullable image local, and return it; ``None`` if there is none of that name."""
        image = self._pullable.get(full_name(name))
        if image is not None:
            self._local[image.name] = image
        return image


def full_name(name: str) -> str:
    """Complete a name: ``busybox`` is ``docker.io/library/busybox:latest``."""
    host, slash, rest = name.partition("/")
    if not slash:
        host, rest = "docker.io", f"library/{name}"
    elif not ("." in host or ":" in host or host == "localhost"):
        host, rest = "docker.io", name
    tagged = "@" in rest or ":" in rest.rpartition("/")[2]
    return f"{host}/{rest}" if tagged else f"{host}/{rest}:latest"
