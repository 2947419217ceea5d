"""Everything that can happen happens, in any order, to an agent and its runtime; then all is as it is to be.

Containers and sandboxes die, the runtime goes away, fails and hangs, the disk is full, the agent is gone for a while,
and pods come and go.
"""

import asyncio
import os
import random
from collections import Counter
from dataclasses import dataclass, field
from typing import Any

import pytest

from alignup.agent.state import AgentState
from alignup.align import bits
from alignup.enforce.cri.client import CriTimeouts
from alignup.schema.api import AdmissionStatus, NotReadyError
from alignup.testing.faults import Fault
from tests.agent.pods.houses import SLEEP, House, container, exclusive, manifest, moved_in, runtime_in
from tests.agent.rooms import standing
from tests.short_paths import short_directory

METHODS = (
    "CreateContainer",
    "ContainerStatus",
    "ImageStatus",
    "ListContainers",
    "ListPodSandbox",
    "RemoveContainer",
    "RemovePodSandbox",
    "RunPodSandbox",
    "StartContainer",
    "StopContainer",
    "StopPodSandbox",
    "UpdateContainerResources",
)
FAULTS = (
    Fault(error="no such luck", times=1),
    Fault(error="no such luck", code="UNAVAILABLE", done=True, times=1),
    Fault(hang=True, times=1),
    Fault(hang=True, done=True, times=1),
    Fault(delay=0.1, times=3),
)
CALM = 20.0  #: seconds until all is as it is to be


@pytest.fixture(autouse=True)
def in_haste(monkeypatch):
    """What takes seconds takes a part of one."""
    monkeypatch.setattr("alignup.agent.pods.backoff.INITIAL_DELAY", 0.2)
    monkeypatch.setattr("alignup.agent.pods.backoff.MAX_DELAY", 0.5)
    monkeypatch.setattr("alignup.agent.pods.retry.INITIAL_DELAY", 0.1)
    monkeypatch.setattr("alignup.agent.pods.retry.MAX_DELAY", 0.5)
    monkeypatch.setattr("alignup.agent.pods.runner.POLL_SECONDS", 0.2)
    monkeypatch.setattr("alignup.agent.pods.runner.MAINTENANCE_SECONDS", 1.0)
    monkeypatch.setattr("alignup.agent.pods.operations.CANCEL_GRACE_SECONDS", 0.1)
    monkeypatch.setattr("alignup.agent.queue.RETRY_SECONDS", 0.1)


@dataclass
class Disk:
    """A disk that may be full, and what was written last."""

    full: bool = False
    last: AgentState | None = None

    def __call__(self, now: AgentState) -> None:
        if self.full:
            raise OSError(28, "No space left on device")
        self.last = now


@dataclass
class Story:
    """What has happened so far, and what is to be true at its end."""

    runtime: Any
    chance: random.Random
    disk: Disk = field(default_factory=Disk)
    serving: set[str] = field(default_factory=set)
    jobs: set[str] = field(default_factory=set)
    gone: set[str] = field(default_factory=set)
    owners: set[str] = field(default_factory=set)  #: of CPUs of their own; all that serve fit
    number: int = 0

    async def step(self, house: House) -> None:
        """Something happens."""
        happens = self.chance.choice(
            (self.added, self.added, self.go, self.kill, self.lose, self.away, self.fail, self.fill, self.pass_time)
        )
        await happens(house)

    async def added(self, house: House) -> None:
        self.number += 1
        uid = f"pod-{self.number}"
        if self.chance.random() < 0.3:
            document, among = manifest(uid, container("app", "sleep", "0.2"), restartPolicy="Never"), self.jobs
        else:
            document, among = self.server(uid), self.serving
        try:
            await house.admit(document)
        except NotReadyError:
            return
        among.add(uid)

    def server(self, uid: str) -> dict[str, Any]:
        own = {"resources": exclusive()} if self.chance.random() < 0.3 and len(self.owners & self.serving) < 2 else {}
        self.owners |= {uid} if own else set()
        before = [container("init", "true", **own)] if self.chance.random() < 0.5 else []
        if self.chance.random() < 0.3:
            before.append(container("side", *SLEEP, restartPolicy="Always", **own))
        return manifest(uid, container("app", **own), initContainers=before, terminationGracePeriodSeconds=1)

    async def go(self, house: House) -> None:
        if known := sorted(self.serving | self.jobs):
            uid = self.chance.choice(known)
            try:
                await house.end(uid, grace=self.chance.choice((None, 0, 1)))
            except NotReadyError:
                return
            self.serving.discard(uid)
            self.jobs.discard(uid)
            self.gone.add(uid)

    async def kill(self, _: House) -> None:
        if alive := [one for one in self.runtime.containers if one.process]:
            self.chance.choice(alive).process.signal(9)

    async def lose(self, _: House) -> None:
        if ready := [one for one in self.runtime.sandboxes if one.ready]:
            await self.runtime.service.fail(self.chance.choice(ready))

    async def away(self, _: House) -> None:
        await self.runtime.drop()
        await asyncio.sleep(self.chance.uniform(0.0, 0.3))
        await self.runtime.serve()

    async def fail(self, _: House) -> None:
        self.runtime.inject(self.chance.choice(METHODS), self.chance.choice(FAULTS))

    async def fill(self, _: House) -> None:
        self.disk.full = True
        await asyncio.sleep(self.chance.uniform(0.0, 0.3))
        self.disk.full = False

    async def pass_time(self, _: House) -> None:
        await asyncio.sleep(self.chance.uniform(0.0, 0.3))

    def check_always(self, house: House) -> None:
        """Of no container two are alive, and nothing is made a second time because it was not seen yet."""
        assert not [one.detail for one in house.told if "is reserved for" in one.detail]
        alive = Counter(one.name.rsplit("_", 1)[0] for one in self.runtime.containers if one.process)
        assert not [name for name, count in alive.items() if count > 1]

    def is_calm(self, house: House) -> bool:
        serving = all(self.serves(house, uid) for uid in self.serving)
        jobs = [house.desk.entry(uid) for uid in self.jobs]
        known = {entry.pod.uid for entry in house.desk.entries()}
        return (
            serving
            and all(entry is not None and entry.status is AdmissionStatus.FINISHED for entry in jobs)
            and known == self.serving | self.jobs
            and {one.config.metadata.uid for one in self.runtime.sandboxes} == self.serving
            and self.in_place(house)
        )

    @staticmethod
    def serves(house: House, uid: str) -> bool:
        run = house.run(uid)
        return run is not None and all(
            one.state == ("ended" if one.kind == "init" else "running") for one in run.containers
        )

    def in_place(self, house: House) -> bool:
        """Whether the runtime was told to have everybody on the CPUs that the ledger says."""
        alive = [one for one in self.runtime.containers if one.process]
        told = {
            (one.sandbox.config.metadata.uid, one.config.metadata.name): bits.parse(one.resources.cpuset_cpus)
            for one in alive
        }
        wanted = {
            (uid, one.name): one.cpus
            for uid in self.serving
            if (run := house.run(uid)) is not None
            for one in run.containers
            if one.state == "running"
        }
        return told == wanted and len(told) == len(alive)

    def shown(self, house: House) -> str:
        runs = {uid: house.states(uid) for uid in self.serving | self.jobs}
        boxes = [(one.name, one.ready) for one in self.runtime.sandboxes]
        alive = [(one.name, one.state, one.resources.cpuset_cpus) for one in self.runtime.containers]
        return f"{runs}\n{house.desk.entries()}\n{boxes}\n{alive}\n{house.out.getvalue()[-5000:]}"


async def disorder(place, seed, *, steps=25, lives=3):
    """A story in several lives of an agent."""
    chance = random.Random(seed)
    async with runtime_in(place) as runtime:
        story = Story(runtime, chance)
        stood = standing(wait=True)
        impatient = CriTimeouts(request=1.0, sandbox=1.0, pull=1.0)
        for life in range(lives):
            async with moved_in(place, runtime, stood, deadlines=impatient, save=story.disk) as house:
                for _ in range(steps // lives):
                    await story.step(house)
                    story.check_always(house)
                    await asyncio.sleep(chance.uniform(0.0, 0.15))
                if life == lives - 1:
                    await settle(story, house, place)
            stood = story.disk.last or stood


async def settle(story, house, place):
    """Nothing happens any more."""
    for method in METHODS:
        story.runtime.inject(method, Fault())
    deadline = asyncio.get_running_loop().time() + CALM
    while not story.is_calm(house):
        story.check_always(house)
        assert asyncio.get_running_loop().time() < deadline, story.shown(house)
        await asyncio.sleep(0.05)
    assert "internal error" not in house.out.getvalue()
    for uid in story.serving | story.jobs:
        await house.end(uid, grace=0)
    await house.until(lambda: not house.desk.entries())
    assert not story.runtime.sandboxes
    assert [path.name for root in ("root/pods", "logs") for path in (place / root).glob("*")] == []


def test_after_all_disorder_everything_is_as_it_is_to_be():
    with short_directory() as place:
        asyncio.run(asyncio.wait_for(disorder(place, seed=os.getpid()), 60))
