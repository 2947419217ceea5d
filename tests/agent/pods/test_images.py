"""Images: whoever wants the same waits for the other, and nothing of it is remembered afterwards."""

import asyncio
from dataclasses import dataclass, field, replace

import pytest

from alignup.agent.pods.failing import StartError
from alignup.agent.pods.images import Images, check_user
from alignup.align.errors import CriError
from alignup.enforce.cri.plan import Image
from alignup.kube.spec import PullPolicy, Rights
from tests.agent.pods.lives import APP


@dataclass
class Source:
    """Fetches images, if it can, and takes a moment."""

    broken: bool = False
    here: set[str] = field(default_factory=set)
    pulls: list[str] = field(default_factory=list)

    async def image(self, name: str) -> Image | None:
        return Image(id=name) if name in self.here else None

    async def pull(self, name: str) -> str:
        self.pulls.append(name)
        await asyncio.sleep(0.01)
        if self.broken:
            raise CriError("no route to host", code="UNAVAILABLE")
        self.here.add(name)
        return name


def test_an_image_that_several_want_is_fetched_once():
    source = Source()
    images = Images(source)

    async def wanted():
        return await asyncio.gather(*(images.ensure(APP) for _ in range(5)))

    found = asyncio.run(wanted())

    assert found == [Image(id=APP.image)] * 5
    assert source.pulls == [APP.image]
    assert images == Images(source)


def test_whoever_waits_goes_on_when_the_one_before_is_cancelled():
    source = Source()
    images = Images(source)

    async def wanted():
        first = asyncio.create_task(images.ensure(APP))
        second = asyncio.create_task(images.ensure(APP))
        await asyncio.sleep(0.001)
        first.cancel()
        return await second

    assert asyncio.run(wanted()) == Image(id=APP.image)
    assert images == Images(source)


@pytest.mark.parametrize(
    ("source", "pull", "reason"),
    [
        pytest.param(Source(broken=True), PullPolicy.ALWAYS, "ErrImagePull", id="nobody can be reached"),
        pytest.param(Source(), PullPolicy.NEVER, "ErrImageNeverPull", id="it may not be fetched"),
    ],
)
def test_why_an_image_cannot_be_had(source, pull, reason):
    images = Images(source)

    with pytest.raises(StartError, match=APP.image) as caught:
        asyncio.run(images.ensure(replace(APP, pull=pull)))

    assert caught.value.reason == reason
    assert images == Images(source)


@pytest.mark.parametrize(
    ("rights", "image"),
    [
        pytest.param(Rights(non_root=True, user=0), Image(id="i", user=7), id="the manifest says root"),
        pytest.param(Rights(non_root=True), Image(id="i"), id="nobody says anything"),
        pytest.param(Rights(non_root=True), Image(id="i", username="web"), id="the image names somebody"),
    ],
)
def test_a_container_that_must_not_run_as_root_does_not(rights, image):
    with pytest.raises(StartError, match="must not run as root"):
        check_user(replace(APP, rights=rights), image)
