"""A runtime that fails, hangs or is slow in whatever it is asked: pods start and end when that is over, and not before.

Meanwhile nobody asks it in haste, and afterwards nothing is left of all the attempts.
"""

import asyncio
from collections import Counter
from contextlib import AsyncExitStack

import pytest

from alignup.enforce.cri.client import CriTimeouts
from alignup.testing.faults import Fault
from tests.agent.pods.houses import container, exclusive, house, manifest
from tests.short_paths import short_directory

BEGINNING = (
    "ListPodSandbox",
    "PodSandboxStatus",
    "RunPodSandbox",
    "ListContainers",
    "ContainerStatus",
    "ImageStatus",
    "CreateContainer",
    "StartContainer",
    "UpdateContainerResources",
)
ENDING = ("ListPodSandbox", "ListContainers", "StopContainer", "StopPodSandbox", "RemovePodSandbox")

IMPATIENT = CriTimeouts(request=0.6, sandbox=0.6, pull=0.6)
FAULTS = {
    "it fails": Fault(error="no such luck"),
    "it does it, and fails": Fault(error="away", code="UNAVAILABLE", done=True),
    "it hangs": Fault(hang=True),
    "it is slow": Fault(delay=0.2),
}
WHILE = 1.2  #: seconds
MOST = 40  #: calls of one method in that time, of two pods and whoever looks after both


@pytest.fixture(autouse=True)
def in_haste(monkeypatch):
    """What is tried again is tried soon."""
    monkeypatch.setattr("alignup.agent.pods.backoff.INITIAL_DELAY", 0.3)
    monkeypatch.setattr("alignup.agent.pods.retry.INITIAL_DELAY", 0.2)
    monkeypatch.setattr("alignup.agent.pods.operations.CANCEL_GRACE_SECONDS", 0.2)


async def endure(made, method, fault):
    """Have a fault for a while, and count what comes."""
    made.runtime.inject(method, fault)
    before = len(made.runtime.calls.entries)
    await asyncio.sleep(WHILE)
    made.runtime.inject(method, Fault())
    return Counter(name for name, _ in made.runtime.calls.entries[before:])


async def live(method, fault, *, ending, door):
    """A life with a fault at its beginning or its end; what the runtime was asked meanwhile.

    All come in by one *door*: were all runtimes asked at once who they are, some would take too long to say it.
    """
    with short_directory() as place:
        async with AsyncExitStack() as stack:
            async with door:
                made = await stack.enter_async_context(house(place, deadlines=IMPATIENT))
            before = len(asyncio.all_tasks())
            if ending:
                await begin(made)
                await is_up(made)
                made.runtime.inject(method, fault)
                await end(made)
                asked = await endure(made, method, fault)
            else:
                made.runtime.inject(method, fault)
                await begin(made)
                asked = await endure(made, method, fault)
                await is_up(made)
                await end(made)
            await made.until(lambda: made.desk.entry("web") is None and made.desk.entry("owns") is None, seconds=20)
            assert not made.runtime.sandboxes
            assert not any((place / "root" / "pods").iterdir())
            await made.until(lambda: len(asyncio.all_tasks()) <= before)
            return asked


async def begin(made):
    await made.admit(manifest("web", initContainers=[container("init", "true")]))
    await made.admit(manifest("owns", container("mine", resources=exclusive())))


async def is_up(made):
    await made.until(lambda: made.states("web").get("app") == "running", seconds=20)
    await made.until(lambda: made.states("owns").get("mine") == "running", seconds=20)
    assert made.run("web").containers[-1].restarts == 0
    live = Counter(one.config.metadata.name for one in made.runtime.containers if one.process)
    assert live == {"app": 1, "mine": 1}


async def end(made):
    await made.end("web", grace=1)
    await made.end("owns", grace=1)


async def all_lives(methods, *, ending):
    """A life for every method and every fault, all at the same time; what was asked in each."""
    door = asyncio.Lock()
    cases = [(method, name) for method in methods for name in FAULTS]
    lives = [(method, name, live(method, FAULTS[name], ending=ending, door=door)) for method, name in cases]
    async with asyncio.timeout(55):
        asked = await asyncio.gather(*(one for _, _, one in lives))
    return {f"{method}: {name}": calls for (method, name, _), calls in zip(lives, asked, strict=True)}


@pytest.mark.parametrize(
    ("methods", "ending"),
    [
        pytest.param(BEGINNING, False, id="when they begin"),
        pytest.param(ENDING, True, id="when they end"),
    ],
)
def test_pods_start_and_end_when_it_is_over(methods, ending):
    asked = asyncio.run(all_lives(methods, ending=ending))

    assert {fault: calls for fault, calls in asked.items() if max(calls.values(), default=0) > MOST} == {}
