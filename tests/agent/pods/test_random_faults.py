"""After random faults in random order, the agent converges.

Containers and sandboxes die; the runtime fails, times out and goes away; the disk is full; the agent restarts; pods
come and go.
"""

import asyncio
import random
from collections import Counter
from dataclasses import dataclass, field, replace
from typing import Any

import pytest

from alignup.agent.state import AgentState
from alignup.align import bits
from alignup.documents.api import AdmissionStatus, NotReadyError
from alignup.testing import Fault
from tests.agent.agent_process import FAST
from tests.agent.pods.harness import SLEEP, PodHarness, container, exclusive, manifest, pod_harness_on, runtime_in
from tests.agent.states import empty_state
from tests.effort import SEED, did, rounds
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
    Fault(error="out of order", times=1),
    Fault(error="out of order", code="UNAVAILABLE", done=True, times=1),
    Fault(delay=1.0, error="Deadline Exceeded", code="DEADLINE_EXCEEDED", times=1),
    Fault(delay=1.0, error="Deadline Exceeded", code="DEADLINE_EXCEEDED", done=True, times=1),
    Fault(delay=0.1, times=3),
)
SETTLE_SECONDS = 120.0  #: until the agent has converged
SIMULATION_SECONDS = 3 * SETTLE_SECONDS  #: the traceback of a simulation that hangs says where
INTERVALS = replace(
    FAST, initial_delay=0.2, max_delay=0.5, initial_retry=0.1, max_retry=0.5, maintenance=0.5, cancel_grace=0.1
)


@dataclass
class Disk:
    """A disk that may be full, and the state written last."""

    full: bool = False
    last: AgentState | None = None

    def __call__(self, now: AgentState) -> None:
        if self.full:
            raise OSError(28, "No space left on device")
        self.last = now


@dataclass
class Simulation:
    """The events so far, and the expected final state."""

    runtime: Any
    rng: random.Random
    disk: Disk = field(default_factory=Disk)
    serving: set[str] = field(default_factory=set)
    jobs: set[str] = field(default_factory=set)
    gone: set[str] = field(default_factory=set)
    owners: set[str] = field(default_factory=set)  #: pods with exclusive CPUs; all serving pods fit
    number: int = 0

    async def step(self, harness: PodHarness) -> None:
        """Cause a random event."""
        event = self.rng.choice(
            (self.added, self.added, self.go, self.kill, self.lose, self.away, self.fail, self.fill, self.pass_time)
        )
        await event(harness)

    async def added(self, harness: PodHarness) -> None:
        self.number += 1
        uid = f"pod-{self.number}"
        if self.rng.random() < 0.3:
            document, among = manifest(uid, container("app", "sleep", "0.2"), restartPolicy="Never"), self.jobs
        else:
            document, among = self.server(uid), self.serving
        try:
            await harness.admit(document)
        except NotReadyError:
            return
        among.add(uid)

    def server(self, uid: str) -> dict[str, Any]:
        own = {"resources": exclusive()} if self.rng.random() < 0.3 and len(self.owners & self.serving) < 2 else {}
        self.owners |= {uid} if own else set()
        before = [container("init", "true", **own)] if self.rng.random() < 0.5 else []
        if self.rng.random() < 0.3:
            before.append(container("side", *SLEEP, restartPolicy="Always", **own))
        return manifest(uid, container("app", **own), initContainers=before, terminationGracePeriodSeconds=1)

    async def go(self, harness: PodHarness) -> None:
        if known := sorted(self.serving | self.jobs):
            uid = self.rng.choice(known)
            try:
                await harness.end(uid, grace=self.rng.choice((None, 0, 1)))
            except NotReadyError:
                return
            self.serving.discard(uid)
            self.jobs.discard(uid)
            self.gone.add(uid)

    async def kill(self, _: PodHarness) -> None:
        if alive := [one for one in self.runtime.containers if one.process]:
            self.rng.choice(alive).process.signal(9)

    async def lose(self, _: PodHarness) -> None:
        if ready := [one for one in self.runtime.sandboxes if one.ready]:
            await self.runtime.fail(self.rng.choice(ready))

    async def away(self, _: PodHarness) -> None:
        await self.runtime.drop()
        await asyncio.sleep(self.rng.uniform(0.0, 0.2))
        await self.runtime.serve()

    async def fail(self, _: PodHarness) -> None:
        self.runtime.inject(self.rng.choice(METHODS), self.rng.choice(FAULTS))

    async def fill(self, _: PodHarness) -> None:
        self.disk.full = True
        await asyncio.sleep(self.rng.uniform(0.0, 0.2))
        self.disk.full = False

    async def pass_time(self, _: PodHarness) -> None:
        await asyncio.sleep(self.rng.uniform(0.0, 0.2))

    def check_always(self, harness: PodHarness) -> None:
        """No container has two live instances, and nothing is created twice because of a stale status."""
        assert not [one.detail for one in harness.events if "is reserved for" in one.detail]
        alive = Counter(one.name.rsplit("_", 1)[0] for one in self.runtime.containers if one.process)
        assert not [name for name, count in alive.items() if count > 1]

    def has_converged(self, harness: PodHarness) -> bool:
        serving = all(self.serves(harness, uid) for uid in self.serving)
        jobs = [harness.queue.state.pod_view(uid) for uid in self.jobs]
        known = {entry.pod.uid for entry in harness.queue.state.pod_views()}
        return (
            serving
            and all(entry is not None and entry.status is AdmissionStatus.FINISHED for entry in jobs)
            and known == self.serving | self.jobs
            and {one.config.metadata.uid for one in self.runtime.sandboxes} == self.serving
            and self.in_place(harness)
        )

    @staticmethod
    def serves(harness: PodHarness, uid: str) -> bool:
        run = harness.run(uid)
        return run is not None and all(
            one.state == ("ended" if one.kind == "init" else "running") for one in run.containers
        )

    def in_place(self, harness: PodHarness) -> bool:
        """Whether every container is on the CPUs that the ledger assigns."""
        alive = [one for one in self.runtime.containers if one.process]
        actual = {
            (one.sandbox.config.metadata.uid, one.config.metadata.name): bits.parse(one.resources.cpuset_cpus)
            for one in alive
        }
        wanted = {
            (uid, one.name): bits.parse(one.cpus)
            for uid in self.serving
            if (run := harness.run(uid)) is not None
            for one in run.containers
            if one.state == "running"
        }
        return actual == wanted and len(actual) == len(alive)

    def describe(self, harness: PodHarness) -> str:
        runs = {uid: harness.states(uid) for uid in self.serving | self.jobs}
        boxes = [(one.name, one.ready) for one in self.runtime.sandboxes]
        alive = [(one.name, one.state, one.resources.cpuset_cpus) for one in self.runtime.containers]
        return f"{runs}\n{harness.queue.state.pod_views()}\n{boxes}\n{alive}\n{harness.out.getvalue()[-5000:]}"


async def run_simulation(place, seed, *, steps=25, runs=3):
    """Run a simulation with several restarts of the agent."""
    rng = random.Random(seed)
    async with runtime_in(place) as runtime:
        simulation = Simulation(runtime, rng)
        state = empty_state(wait_enabled=True)
        for number in range(runs):
            async with pod_harness_on(place, runtime, state, intervals=INTERVALS, save=simulation.disk) as harness:
                for _ in range(steps // runs):
                    await simulation.step(harness)
                    simulation.check_always(harness)
                    await asyncio.sleep(rng.uniform(0.0, 0.1))
                if number == runs - 1:
                    await settle(simulation, harness, place)
            state = simulation.disk.last or state


async def settle(simulation, harness, place):
    """Stop the faults, and wait until the agent has converged."""
    for method in METHODS:
        simulation.runtime.inject(method, Fault())
    deadline = asyncio.get_running_loop().time() + SETTLE_SECONDS
    while not simulation.has_converged(harness):
        simulation.check_always(harness)
        assert asyncio.get_running_loop().time() < deadline, simulation.describe(harness)
        await asyncio.sleep(0.05)
    assert "internal error" not in harness.out.getvalue()
    for uid in simulation.serving | simulation.jobs:
        await harness.end(uid, grace=0)
    await harness.wait_until(lambda: not harness.queue.state.pod_views())
    assert not simulation.runtime.sandboxes
    assert [path.name for root in ("root/pods", "logs") for path in (place / root).glob("*")] == []


@pytest.mark.soak
def test_the_agent_converges_after_random_faults():
    for number in range(rounds(1, soak=20)):
        with short_directory() as place:
            asyncio.run(asyncio.wait_for(run_simulation(place, seed=SEED + number), SIMULATION_SECONDS))
        did("simulations of random faults")
