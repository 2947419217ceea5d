"""The runtime cache: of two responses, that of the later request wins, and a cancelled refresh ends."""

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, cast

import pytest

from alignup.agent.pods.cri_config import AGENT_LABEL
from alignup.agent.pods.pod_state import PodStatus
from alignup.agent.pods.runtime import RuntimeCache
from alignup.align.errors import CriError
from alignup.run.cri.types import CriContainer, CriSandbox
from tests.agent.pods.statuses import EXITED, RUNNING, instance, sandbox

OWN = replace(sandbox(), labels={AGENT_LABEL: "me"})


@dataclass
class FakeRuntime:
    """A runtime whose full list may take a while."""

    now: PodStatus
    gate: asyncio.Event | None = None
    requested: list[str] = field(default_factory=list)

    async def sandboxes(self, labels: Mapping[str, str] | None = None) -> tuple[CriSandbox, ...]:
        found, gate = self.now.sandboxes, self.gate
        if labels is None and gate is not None:
            await gate.wait()
        return found

    async def containers(self, labels: Mapping[str, str] | None = None) -> tuple[CriContainer, ...]:
        found, gate = self.now.containers, self.gate
        if labels is None and gate is not None:
            await gate.wait()
        return found

    async def sandbox(self, id_: str) -> CriSandbox:
        self.requested.append(id_)
        return next(one for one in self.now.sandboxes if one.id == id_)

    async def container(self, id_: str) -> CriContainer:
        self.requested.append(id_)
        return next(one for one in self.now.containers if one.id == id_)


def pod_status(*containers: CriContainer) -> PodStatus:
    return PodStatus(sandboxes=(OWN,), containers=containers)


def test_a_slow_full_refresh_does_not_undo_a_newer_pod_refresh():
    runtime = FakeRuntime(pod_status())

    async def scenario():
        runtime.gate = asyncio.Event()
        cache = RuntimeCache(cast("Any", runtime), "me")
        long = asyncio.create_task(cache.refresh())
        await asyncio.sleep(0)
        runtime.now = pod_status(instance("app", RUNNING))
        await cache.refresh_pod("uid")
        runtime.gate.set()
        changed = await long
        return cache.of("uid"), changed

    found, changed = asyncio.run(scenario())

    assert [one.id for one in found.containers] == ["app-0"]
    assert changed == frozenset()


def test_a_newer_full_refresh_wins():
    runtime = FakeRuntime(pod_status(instance("app", RUNNING)))

    async def scenario():
        cache = RuntimeCache(cast("Any", runtime), "me")
        await cache.refresh_pod("uid")
        runtime.now = pod_status(instance("app", EXITED, 1))
        changed = await cache.refresh()
        return cache.of("uid"), changed

    found, changed = asyncio.run(scenario())

    assert [one.state for one in found.containers] == [EXITED]
    assert changed == {"uid"}


@pytest.mark.parametrize("refresh", [RuntimeCache.refresh, lambda cache: cache.refresh_pod("uid")], ids=["all", "one"])
def test_a_refresh_that_is_cancelled_while_a_request_fails_is_cancelled(refresh):
    tasks: list[asyncio.Task[Any]] = []

    class FailingRuntime(FakeRuntime):
        async def sandboxes(self, labels=None):
            await asyncio.sleep(0)
            tasks[0].cancel()
            raise CriError("away", code="UNAVAILABLE")

        async def containers(self, labels=None):
            await asyncio.Event().wait()

    async def scenario():
        cache = RuntimeCache(cast("Any", FailingRuntime(pod_status())), "me")
        tasks.append(asyncio.create_task(refresh(cache)))
        with pytest.raises(asyncio.CancelledError):
            await tasks[0]

    asyncio.run(scenario())


def test_foreign_sandboxes_are_counted_and_ignored():
    stranger = replace(sandbox(3), uid="theirs", labels={AGENT_LABEL: "another agent"})
    theirs = instance("app", RUNNING, attempt=7, sandbox=3)
    runtime = FakeRuntime(PodStatus(sandboxes=(OWN, stranger), containers=(theirs, instance("app", RUNNING))))

    async def scenario():
        cache = RuntimeCache(cast("Any", runtime), "me")
        await cache.refresh()
        await cache.refresh()
        return cache

    cache = asyncio.run(scenario())

    assert cache.pods.keys() == {"uid"}
    assert cache.foreign_sandboxes == 1
    assert runtime.requested == ["s0", "app-0"]
