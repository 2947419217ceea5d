"""What is seen of a runtime: of two answers the one that was asked for later counts."""

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, cast

from alignup.agent.pods.cri_config import AGENT_LABEL
from alignup.agent.pods.pod_state import PodStatus
from alignup.agent.pods.runtime_cache import RuntimeCache
from alignup.enforce.cri.types import CriContainer, CriSandbox
from tests.agent.pods.lives import EXITED, RUNNING, box, instance

OWN = replace(box(), labels={AGENT_LABEL: "me"})


@dataclass
class Shown:
    """A runtime of which the list of everything may take a while."""

    now: PodStatus
    gate: asyncio.Event | None = None
    asked: list[str] = field(default_factory=list)

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
        self.asked.append(id_)
        return next(one for one in self.now.sandboxes if one.id == id_)

    async def container(self, id_: str) -> CriContainer:
        self.asked.append(id_)
        return next(one for one in self.now.containers if one.id == id_)


def seen(*containers: CriContainer) -> PodStatus:
    return PodStatus(sandboxes=(OWN,), containers=containers)


def test_a_long_look_at_everything_does_not_undo_a_newer_one_at_a_pod():
    shown = Shown(seen())

    async def story():
        shown.gate = asyncio.Event()
        scene = RuntimeCache(cast("Any", shown), "me")
        long = asyncio.create_task(scene.refresh())
        await asyncio.sleep(0)
        shown.now = seen(instance("app", RUNNING))
        await scene.refresh_pod("uid")
        shown.gate.set()
        changed = await long
        return scene.of("uid"), changed

    found, changed = asyncio.run(story())

    assert [one.id for one in found.containers] == ["app-0"]
    assert changed == frozenset()


def test_a_newer_look_at_everything_counts():
    shown = Shown(seen(instance("app", RUNNING)))

    async def story():
        scene = RuntimeCache(cast("Any", shown), "me")
        await scene.refresh_pod("uid")
        shown.now = seen(instance("app", EXITED, 1))
        changed = await scene.refresh()
        return scene.of("uid"), changed

    found, changed = asyncio.run(story())

    assert [one.state for one in found.containers] == [EXITED]
    assert changed == {"uid"}


def test_what_others_have_is_counted_and_left_out():
    stranger = replace(box(3), uid="theirs", labels={AGENT_LABEL: "somebody else"})
    theirs = instance("app", RUNNING, attempt=7, sandbox=3)
    shown = Shown(PodStatus(sandboxes=(OWN, stranger), containers=(theirs, instance("app", RUNNING))))

    async def story():
        scene = RuntimeCache(cast("Any", shown), "me")
        await scene.refresh()
        await scene.refresh()
        return scene

    scene = asyncio.run(story())

    assert scene.pod_uids == {"uid"}
    assert scene.foreign_sandboxes == 1
    assert shown.asked == ["s0", "app-0"]
