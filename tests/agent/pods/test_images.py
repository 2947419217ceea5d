"""Images: whoever wants the same waits for the other, and nothing of it is remembered afterwards."""

import asyncio
from dataclasses import dataclass, field, replace
from typing import Any, cast

import pytest

from alignup.agent.pods.images import ImageManager, verify_run_as_non_root
from alignup.agent.pods.pod_state import PodStartError
from alignup.align.errors import CriError
from alignup.enforce.cri.types import CriImage
from alignup.kube.podspec.types import PullPolicy, SecurityContext
from tests.agent.pods.lives import APP


@dataclass
class Source:
    """Fetches images, if it can, and takes a moment."""

    broken: bool = False
    here: set[str] = field(default_factory=set)
    pulls: list[str] = field(default_factory=list)

    async def image(self, name: str) -> CriImage | None:
        return CriImage(id=name) if name in self.here else None

    async def pull(self, name: str) -> str:
        self.pulls.append(name)
        await asyncio.sleep(0.01)
        if self.broken:
            raise CriError("no route to host", code="UNAVAILABLE")
        self.here.add(name)
        return name


def test_an_image_that_several_want_is_fetched_once():
    source = Source()
    images = ImageManager(cast("Any", source))

    async def wanted():
        return await asyncio.gather(*(images.ensure_image(APP) for _ in range(5)))

    found = asyncio.run(wanted())

    assert found == [CriImage(id=APP.image)] * 5
    assert source.pulls == [APP.image]
    assert images == ImageManager(cast("Any", source))


def test_whoever_waits_goes_on_when_the_one_before_is_cancelled():
    source = Source()
    images = ImageManager(cast("Any", source))

    async def wanted():
        first = asyncio.create_task(images.ensure_image(APP))
        second = asyncio.create_task(images.ensure_image(APP))
        await asyncio.sleep(0.001)
        first.cancel()
        return await second

    assert asyncio.run(wanted()) == CriImage(id=APP.image)
    assert images == ImageManager(cast("Any", source))


@pytest.mark.parametrize(
    ("source", "pull", "reason"),
    [
        pytest.param(Source(broken=True), PullPolicy.ALWAYS, "ErrImagePull", id="nobody can be reached"),
        pytest.param(Source(), PullPolicy.NEVER, "ErrImageNeverPull", id="it may not be fetched"),
    ],
)
def test_why_an_image_cannot_be_had(source, pull, reason):
    images = ImageManager(cast("Any", source))

    with pytest.raises(PodStartError, match=APP.image) as caught:
        asyncio.run(images.ensure_image(replace(APP, pull_policy=pull)))

    assert caught.value.reason == reason
    assert images == ImageManager(cast("Any", source))


@pytest.mark.parametrize(
    ("rights", "image"),
    [
        pytest.param(
            SecurityContext(run_as_non_root=True, user=0), CriImage(id="i", user=7), id="the manifest says root"
        ),
        pytest.param(SecurityContext(run_as_non_root=True), CriImage(id="i"), id="nobody says anything"),
        pytest.param(
            SecurityContext(run_as_non_root=True), CriImage(id="i", username="web"), id="the image names somebody"
        ),
    ],
)
def test_a_container_that_must_not_run_as_root_does_not(rights, image):
    with pytest.raises(PodStartError, match="has runAsNonRoot"):
        verify_run_as_non_root(replace(APP, security_context=rights), image)
