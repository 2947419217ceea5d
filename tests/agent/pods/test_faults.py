"""A runtime fails, hangs or is slow in any method: pods start and stop when the fault is over.

Meanwhile retries are delayed, and afterwards nothing is left of the attempts.
"""

import asyncio
from collections import Counter
from contextlib import AsyncExitStack

import pytest

from alignup.enforce.cri.client import CriTimeouts
from alignup.testing import Fault
from tests.agent.pods.harness import container, exclusive, manifest, pod_harness
from tests.short_paths import short_directory

STARTING = (
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
STOPPING = ("ListPodSandbox", "ListContainers", "StopContainer", "StopPodSandbox", "RemovePodSandbox")

SHORT_TIMEOUTS = CriTimeouts(request=0.6, sandbox=0.6, pull=0.6)
FAULTS = {
    "it fails": Fault(error="out of order"),
    "it succeeds but reports an error": Fault(error="away", code="UNAVAILABLE", done=True),
    "it hangs": Fault(hang=True),
    "it is slow": Fault(delay=0.2),
}
FAULT_SECONDS = 1.2  #: seconds
MAX_CALLS = 40  #: calls of one method in that time, from two workers and the runner


@pytest.fixture(autouse=True)
def short_delays(monkeypatch):
    """Shorten retry delays."""
    monkeypatch.setattr("alignup.agent.pods.backoff.INITIAL_DELAY", 0.3)
    monkeypatch.setattr("alignup.agent.pods.backoff.INITIAL_RETRY_DELAY", 0.2)
    monkeypatch.setattr("alignup.agent.pods.operations.CANCEL_GRACE_SECONDS", 0.2)


async def inject(harness, method, fault):
    """Inject a fault for a while; count the calls meanwhile."""
    harness.runtime.inject(method, fault)
    before = len(harness.runtime.calls.entries)
    await asyncio.sleep(FAULT_SECONDS)
    harness.runtime.inject(method, Fault())
    return Counter(name for name, _ in harness.runtime.calls.entries[before:])


async def run_case(method, fault, *, stopping, lock):
    """Run two pods with a fault at their start or stop; return the calls to the runtime meanwhile.

    Harnesses start one at a time, under *lock*: many at once would exceed the timeouts.
    """
    with short_directory() as place:
        async with AsyncExitStack() as stack:
            async with lock:
                harness = await stack.enter_async_context(pod_harness(place, deadlines=SHORT_TIMEOUTS))
            before = len(asyncio.all_tasks())
            if stopping:
                await start_pods(harness)
                await wait_started(harness)
                harness.runtime.inject(method, fault)
                await stop_pods(harness)
                calls_made = await inject(harness, method, fault)
            else:
                harness.runtime.inject(method, fault)
                await start_pods(harness)
                calls_made = await inject(harness, method, fault)
                await wait_started(harness)
                await stop_pods(harness)
            await harness.wait_until(
                lambda: harness.queue.state.pod_view("web") is None and harness.queue.state.pod_view("owns") is None,
                seconds=20,
            )
            assert not harness.runtime.sandboxes
            assert not any((place / "root" / "pods").iterdir())
            await harness.wait_until(lambda: len(asyncio.all_tasks()) <= before)
            return calls_made


async def start_pods(harness):
    await harness.admit(manifest("web", initContainers=[container("init", "true")]))
    await harness.admit(manifest("owns", container("mine", resources=exclusive())))


async def wait_started(harness):
    await harness.wait_until(lambda: harness.states("web").get("app") == "running", seconds=20)
    await harness.wait_until(lambda: harness.states("owns").get("mine") == "running", seconds=20)
    assert harness.run("web").containers[-1].restarts == 0
    live = Counter(one.config.metadata.name for one in harness.runtime.containers if one.process)
    assert live == {"app": 1, "mine": 1}


async def stop_pods(harness):
    await harness.end("web", grace=1)
    await harness.end("owns", grace=1)


async def run_all(methods, *, stopping):
    """Run a case for every method and fault concurrently; return the calls of each."""
    lock = asyncio.Lock()
    cases = [(method, name) for method in methods for name in FAULTS]
    cases_run = [(method, name, run_case(method, FAULTS[name], stopping=stopping, lock=lock)) for method, name in cases]
    async with asyncio.timeout(55):
        calls_made = await asyncio.gather(*(one for _, _, one in cases_run))
    return {f"{method}: {name}": calls for (method, name, _), calls in zip(cases_run, calls_made, strict=True)}


@pytest.mark.parametrize(
    ("methods", "stopping"),
    [
        pytest.param(STARTING, False, id="at the start"),
        pytest.param(STOPPING, True, id="at the stop"),
    ],
)
def test_pods_start_and_stop_after_a_fault_is_over(methods, stopping):
    calls_made = asyncio.run(run_all(methods, stopping=stopping))

    assert {fault: calls for fault, calls in calls_made.items() if max(calls.values(), default=0) > MAX_CALLS} == {}
