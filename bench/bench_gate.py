"""The gate with 3,000 different pods that no node admits: how long they hold up one more pod."""

import asyncio
from collections.abc import Iterator
from statistics import median
from time import process_time

import structlog

from alignup.align.workload import Pod
from alignup.kubernetes.api import Access, ApiClient
from alignup.placement.scheduling.events import PlaceNext
from alignup.placement.scheduling.options import GateOptions
from alignup.schedule.cluster_facts import GATE
from alignup.schedule.live_cluster import LiveCluster
from alignup.testing.api_server import ApiServer
from alignup.testing.simulated_kubelet import SimulatedKubelet
from bench.harness import Figure
from tests.align.hosts import pod
from tests.observe.api_objects import SERVED, api_pod, node

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
            kubelet.run(pod(f"held-{number}-{held}", cpu="2", memory="1Gi"))
        server.put({**node(f"host-{number:03}"), "status": {"allocatable": ALLOCATABLE}})
        server.put(kubelet.host_state(f"host-{number:03}"))
    for number in range(BLOCKED):  # more than a NUMA node has, and less than a node
        _arrive(server, pod(f"blocked-{number}", cpu="40", memory=f"{1 + number}Mi"))
    async with server, ApiClient(Access(server=server.url)) as client:
        live = LiveCluster(client)
        following = asyncio.ensure_future(live.run())
        await live.ready.wait()
        live.open_gate(GateOptions(parallel=BLOCKED))
        gate = live.scheduling.gate
        assert gate
        while _try_next(live):
            pass
        assert len(gate.queue.blocked) == BLOCKED
        quiet, after_change = [], []
        for number in range(ROUNDS):
            quiet.append(await _decide(server, live, f"later-{2 * number}"))
            gate.queue.nodes_changed([f"host-{number:03}"])  # all blocked pods are tried again
            after_change.append(await _decide(server, live, f"later-{2 * number + 1}"))
            while _try_next(live):
                pass
        following.cancel()
        await asyncio.gather(following, return_exceptions=True)
    return median(quiet), median(after_change)


def _arrive(server: ApiServer, asked: Pod) -> None:
    server.put(api_pod(asked, phase="Pending", schedulingGates=[{"name": GATE}]))


def _try_next(live: LiveCluster) -> bool:
    """Try the next pod behind the gate; return whether there was one."""
    gate = live.scheduling.gate
    assert gate
    tries = gate.queue.tries
    live.schedule(PlaceNext())
    return gate.queue.tries > tries


async def _decide(server: ApiServer, live: LiveCluster, name: str) -> float:
    """Return the CPU time of deciding on a pod that has arrived, until a node is chosen for it."""
    gate, asked = live.scheduling.gate, pod(name, cpu="1", memory="1Gi")
    _arrive(server, asked)
    assert gate
    while asked.uid not in gate.queue:  # noqa: ASYNC110 - until the watch shows it
        await asyncio.sleep(0.001)
    begun = process_time()
    while asked.uid not in gate.releases:
        assert _try_next(live)
    return process_time() - begun
