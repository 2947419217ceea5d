"""A runtime fails, times out or is slow in any method: pods start and stop when the fault is over.

Meanwhile retries are delayed, and afterwards nothing is left of the attempts.
"""

import asyncio
from collections import Counter
from dataclasses import replace

import pytest

from alignup.testing import Fault
from tests.agent.agent_process import FAST
from tests.agent.pods.harness import container, exclusive, manifest, pod_harness
from tests.effort import SOAK, did
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

FAULTS = {
    "it fails": Fault(error="out of order"),
    "it succeeds but reports an error": Fault(error="away", code="UNAVAILABLE", done=True),
    "it times out": Fault(delay=0.3, error="Deadline Exceeded", code="DEADLINE_EXCEEDED"),
    "it is slow": Fault(delay=0.1),
}
INTERVALS = replace(
    FAST, initial_delay=0.2, max_delay=0.2, initial_retry=0.1, maintenance=0.2, cancel_grace=0.1, min_grace=0.0
)
CALLERS = 3  #: two workers and the runner
FREE_CALLS = 10  #: of one method by one caller, because something has changed; more of them are retries


def cases():
    """Every method with one fault; in a soak run, with every fault."""
    methods = [*((name, False) for name in STARTING), *((name, True) for name in STOPPING)]
    for number, (method, stopping) in enumerate(methods):
        for place, (name, fault) in enumerate(FAULTS.items()):
            if SOAK or place == number % len(FAULTS):
                when = "at the stop" if stopping else "at the start"
                yield pytest.param(method, fault, stopping, id=f"{method}, {name}, {when}")


async def end_fault(harness, method):
    """Wait until the agent has repeatedly called a method during its fault, and end the fault.

    Retries are delayed, so the number of calls in that time is limited.
    """
    calls = harness.runtime.requests
    started, before = asyncio.get_running_loop().time(), len(calls(method))
    await harness.wait_until(lambda: len(calls(method)) > before)
    await asyncio.sleep(5 * INTERVALS.poll)
    made, seconds = len(calls(method)) - before, asyncio.get_running_loop().time() - started
    harness.runtime.inject(method, Fault())
    assert made <= CALLERS * (FREE_CALLS + seconds / INTERVALS.poll)


async def start_pods(harness):
    await harness.admit(manifest("web", initContainers=[container("init", "true")]))
    await harness.admit(manifest("owns", container("mine", resources=exclusive())))


async def wait_started(harness):
    await harness.wait_running("web", "app")
    await harness.wait_running("owns", "mine")
    assert harness.run("web").containers[-1].restarts == 0
    live = Counter(one.config.metadata.name for one in harness.runtime.containers if one.process)
    assert live == {"app": 1, "mine": 1}


async def stop_pods(harness):
    await harness.end("web", grace=0)
    await harness.end("owns", grace=0)


async def run_case(place, method, fault, *, stopping):
    """Run two pods with a fault at their start or stop."""
    async with pod_harness(place, intervals=INTERVALS) as harness:
        tasks = len(asyncio.all_tasks())
        if not stopping:
            harness.runtime.inject(method, fault)
        await start_pods(harness)
        if not stopping:
            await end_fault(harness, method)
        await wait_started(harness)
        if stopping:
            harness.runtime.inject(method, fault)
        await stop_pods(harness)
        if stopping:
            await end_fault(harness, method)
        await harness.wait_until(lambda: not harness.queue.state.pod_views())
        assert not harness.runtime.sandboxes
        assert not any((place / "root" / "pods").iterdir())
        await harness.wait_until(lambda: len(asyncio.all_tasks()) <= tasks)


@pytest.mark.soak
@pytest.mark.parametrize(("method", "fault", "stopping"), list(cases()))
def test_pods_start_and_stop_after_a_fault_is_over(method, fault, stopping):
    with short_directory() as place:
        asyncio.run(run_case(place, method, fault, stopping=stopping))
    did("faults of the runtime")
