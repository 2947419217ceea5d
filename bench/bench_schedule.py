"""The cluster service on 5,000 nodes: requests of a scheduler from JSON to JSON, the time until it is ready, memory."""

import asyncio
import json
from collections.abc import Iterator
from dataclasses import dataclass
from math import inf
from time import process_time
from typing import Any

import structlog

from alignup.documents.host_state.writer import to_object
from alignup.kubernetes.api import Access, ApiClient
from alignup.kubernetes.api.host_states import HOST_STATES
from alignup.kubernetes.manifests.pod_decoder import pod_to_dict
from alignup.observe.observation import join
from alignup.observe.published_objects import host_state
from alignup.placement.scheduling.options import ExtenderOptions
from alignup.schedule.service import ScheduleService
from alignup.testing.api_server import ApiServer, ServedResource
from bench.harness import Figure, peak_megabytes, run_in_fresh_process
from tests.align.hosts import pod
from tests.observe.kubelets import SimulatedKubelet

NODES = 5000
STATES = 7  #: of the simulated nodes
REQUESTS = 20


@dataclass(frozen=True, slots=True)
class Measured:
    ready: float
    first: float
    known: float
    megabytes: float


def figures() -> Iterator[Figure]:
    measured = run_in_fresh_process(measure)
    yield Figure(f"CPU time until {NODES} nodes are known, of which their server needs a part", measured.ready)
    yield Figure(f"filter request, a new shape, {NODES} names", measured.first, 120e-3)
    yield Figure(f"filter request, a known shape, {NODES} names, one node changed", measured.known, 5e-3)
    yield Figure(f"memory, {NODES} nodes, with their server", measured.megabytes, unit="MB")


def measure() -> Measured:
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger("warning"))
    return asyncio.run(_measure())


async def _measure() -> Measured:
    server = ApiServer()
    fill(server)
    async with server, ApiClient(Access(server=server.url)) as client:
        start = process_time()
        service = ScheduleService(client, extender=ExtenderOptions(offered=16))
        running = asyncio.ensure_future(service.run())
        while not service.leading:  # noqa: ASYNC110 - a condition without an event
            await asyncio.sleep(0.05)
        ready = process_time() - start
        names = [f"host-{number:04}" for number in range(NODES)]
        first = await _least(service, names, shapes=3)
        known = await _least(service, names, shapes=1)
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
    return Measured(ready, first, known, peak_megabytes())


async def _least(service: ScheduleService, names: list[str], *, shapes: int) -> float:
    """Return the least CPU time of a request; each of the known shape comes after a pod was assumed."""
    least = inf
    for number in range(shapes if shapes > 1 else REQUESTS):
        requested = pod(f"asked-{number}", cpu=str(1 + number if shapes > 1 else 1), memory="1Gi")
        message = {"Pod": pod_to_dict(requested), "Nodes": None, "NodeNames": names}
        body = json.dumps(message).encode()
        start = process_time()
        answer = await service.respond("filter", body)
        least = min(least, process_time() - start)
        chosen = json.loads(answer)["NodeNames"]
        assert len(chosen) == 16
        if shapes == 1:
            assert service.live.scheduling.assumptions.assume(requested, chosen[0]).admits
    return least


def fill(server: ApiServer) -> None:
    """Add nodes in a few different states, with their HostStates and pods."""
    kind, group, version = HOST_STATES.kind, HOST_STATES.group, HOST_STATES.version
    server.serve(ServedResource(kind=kind, plural=HOST_STATES.plural, group=group, version=version, namespaced=False))
    states: list[dict[str, Any]] = []
    for number in range(STATES):
        kubelet = SimulatedKubelet(shape="pack:2 numa:1 core:16 pu:2")
        for other in range(number):
            kubelet.admit(pod(f"held-{other}", cpu="2", memory="1Gi"))
        states.append(to_object(host_state(join(kubelet.sources())).replace(generation=1)))
    for number in range(NODES):
        metadata = {"name": f"host-{number:04}"}
        server.put({"apiVersion": "v1", "kind": "Node", "metadata": metadata})
        head = {"apiVersion": HOST_STATES.api_version, "kind": kind, "metadata": metadata}
        server.put({**head, **states[number % STATES]})
