"""Concurrent image pulls are serialized, and leave no state behind."""

import asyncio
from dataclasses import dataclass, field, replace
from typing import Any, cast

import pytest

from alignup.agent.pods.pod_state import PodStartError
from alignup.agent.pods.runtime import ImageManager, verify_run_as_non_root
from alignup.align.errors import CriError
from alignup.kubernetes.podspec.types import PullPolicy, SecurityContext
from alignup.run.cri.types import CriImage
from tests.agent.pods.statuses import APP


@dataclass
class FakeRuntime:
    """A runtime that pulls images, or fails."""

    broken: bool = False
    hanging: bool = False
    here: set[str] = field(default_factory=set)
    pulls: list[str] = field(default_factory=list)

    async def image(self, name: str) -> CriImage | None:
        return CriImage(id=name) if name in self.here else None

    async def pull(self, name: str) -> str:
        self.pulls.append(name)
        await asyncio.sleep(0)  # other tasks run meanwhile
        if self.hanging:
            await asyncio.Event().wait()
        if self.broken:
            raise CriError("no route to host", code="UNAVAILABLE")
        self.here.add(name)
        return name


def test_concurrent_requests_pull_an_image_once():
    runtime = FakeRuntime()
    images = ImageManager(cast("Any", runtime))

    async def pull_all():
        return await asyncio.gather(*(images.ensure_image(APP) for _ in range(5)))

    found = asyncio.run(pull_all())

    assert found == [CriImage(id=APP.image)] * 5
    assert runtime.pulls == [APP.image]
    assert images == ImageManager(cast("Any", runtime))


def test_cancelling_one_request_does_not_cancel_the_next():
    runtime = FakeRuntime(hanging=True)
    images = ImageManager(cast("Any", runtime))

    async def pull_all():
        first = asyncio.create_task(images.ensure_image(APP))
        second = asyncio.create_task(images.ensure_image(APP))
        while not runtime.pulls:  # noqa: ASYNC110 - a plain value cannot notify
            await asyncio.sleep(0)
        runtime.hanging = False
        first.cancel()
        return await second

    assert asyncio.run(pull_all()) == CriImage(id=APP.image)
    assert images == ImageManager(cast("Any", runtime))


@pytest.mark.parametrize(
    ("runtime", "policy", "reason"),
    [
        pytest.param(FakeRuntime(broken=True), PullPolicy.ALWAYS, "ErrImagePull", id="the registry is unreachable"),
        pytest.param(FakeRuntime(), PullPolicy.NEVER, "ErrImageNeverPull", id="pull policy Never"),
    ],
)
def test_reasons_for_a_missing_image(runtime, policy, reason):
    images = ImageManager(cast("Any", runtime))

    with pytest.raises(PodStartError, match=APP.image) as caught:
        asyncio.run(images.ensure_image(replace(APP, pull_policy=policy)))

    assert caught.value.reason == reason
    assert images == ImageManager(cast("Any", runtime))


@pytest.mark.parametrize(
    ("context", "image"),
    [
        pytest.param(SecurityContext(run_as_non_root=True, user=0), CriImage(id="i", user=7), id="runAsUser is 0"),
        pytest.param(SecurityContext(run_as_non_root=True), CriImage(id="i"), id="neither sets a user"),
        pytest.param(
            SecurityContext(run_as_non_root=True), CriImage(id="i", username="web"), id="the image has a user name"
        ),
    ],
)
def test_run_as_non_root_is_enforced(context, image):
    with pytest.raises(PodStartError, match="has runAsNonRoot"):
        verify_run_as_non_root(replace(APP, security_context=context), image)
