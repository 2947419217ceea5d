"""The gate with 3,000 different pods that no node admits: how long they hold up one more pod."""

import asyncio
from collections.abc import Iterator
from statistics import median
from time import process_time

import structlog

from alignup.align.workload import Pod
from alignup.documents.codec import convert
from alignup.gate.controller import GateController, GateOptions
from alignup.kubernetes.api import Access, ApiClient, Change, EventType
from alignup.kubernetes.api.objects import ApiPod
from alignup.schedule.live_cluster import GATE, LiveCluster
from alignup.testing.api_server import ApiServer
from bench.harness import Figure
from tests.align.hosts import pod
from tests.observe.api_objects import SERVED, api_pod, node, state_of
from tests.observe.kubelets import SimulatedKubelet

NODES = 100
BLOCKED = 3000
ROUNDS = 20
ALLOCATABLE = {"cpu": "63", "memory": "512Gi", "pods": "110"}


def figures() -> Iterator[Figure]:
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger("warning"))
    quiet, after_change = asyncio.run(_measure())
    text = f"decision on one more pod, {BLOCKED} different blocked pods, {NODES} nodes"
    yield Figure(text, quiet, 5e-3)
    yield Figure(f"{text}, a node changed before", after_change, 5e-3)


async def _measure() -> tuple[float, float]:
    server = ApiServer()
    server.serve(SERVED)
    for number in range(NODES):
        kubelet = SimulatedKubelet(shape="pack:2 numa:1 core:16 pu:2")
        for held in range(number % 7):
            kubelet.admit(pod(f"held-{number}-{held}", cpu="2", memory="1Gi"))
        server.put({**node(f"host-{number:03}"), "status": {"allocatable": ALLOCATABLE}})
        server.put(state_of(f"host-{number:03}", kubelet))
    async with server, ApiClient(Access(server=server.url)) as client:
        live = LiveCluster(client)
        following = asyncio.ensure_future(live.run())
        await live.ready.wait()
        controller = GateController(client, live, options=GateOptions(parallel=BLOCKED))
        for number in range(BLOCKED):  # more than a NUMA node has, and less than a node
            _arrive(controller, pod(f"blocked-{number}", cpu="40", memory=f"{1 + number}Mi"))
        while controller.try_next() is not None:
            pass
        assert len(controller.queue.blocked) == BLOCKED
        quiet, after_change = [], []
        for number in range(ROUNDS):
            quiet.append(_decide(controller, f"later-{2 * number}"))
            controller.queue.nodes_changed([f"host-{number:03}"])  # all blocked pods are tried again
            after_change.append(_decide(controller, f"later-{2 * number + 1}"))
            while controller.try_next() is not None:
                pass
        tasks = [following, *controller._tasks]  # noqa: SLF001 - releases that need not be written
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
    return median(quiet), median(after_change)


def _arrive(controller: GateController, asked: Pod) -> None:
    document = api_pod(asked, phase="Pending", schedulingGates=[{"name": GATE}])
    controller._pod_changed(Change(EventType.ADDED, convert(document, ApiPod)))  # noqa: SLF001 - as the informer calls it


def _decide(controller: GateController, name: str) -> float:
    """Return the CPU time from the arrival of a pod until a node is chosen for it."""
    asked = pod(name, cpu="1", memory="1Gi")
    begun = process_time()
    _arrive(controller, asked)
    while asked.uid not in controller.releases:
        assert controller.try_next() is not None
    return process_time() - begun
