"""The cluster service on 5,000 nodes: requests of a scheduler from JSON to JSON, the time until it is ready, memory."""

import asyncio
import json
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from math import inf
from time import process_time
from typing import Any

import structlog

from alignup.kubernetes.api import Access, ApiClient
from alignup.kubernetes.manifests.pod_decoder import pod_to_dict
from alignup.placement.scheduling.options import ExtenderOptions
from alignup.schedule.gate.admission import REVIEW_KIND, REVIEW_VERSION
from alignup.schedule.gate.warning_admission import WarningReviews
from alignup.schedule.service import ScheduleService
from alignup.testing.api_server import ApiServer
from alignup.testing.simulated_kubelet import SimulatedKubelet
from bench.harness import Figure, cpu_time, peak_megabytes, run_in_fresh_process
from tests.align.hosts import pod
from tests.observe.api_objects import SERVED

NODES = 5000
DEPLOYMENTS = {"group": "apps", "version": "v1", "resource": "deployments"}
STATES = 7  #: of the simulated nodes
REQUESTS = 20


@dataclass(frozen=True, slots=True)
class Measured:
    ready: float
    first: float
    known: float
    new_warning: float
    warning: float
    excluded: float
    megabytes: float


def figures() -> Iterator[Figure]:
    measured = run_in_fresh_process(measure)
    yield Figure(f"CPU time until {NODES} nodes are known, of which their server needs a part", measured.ready)
    yield Figure(f"filter request, a new shape, {NODES} names", measured.first, 120e-3)
    yield Figure(f"filter request, a known shape, {NODES} names, one node changed", measured.known, 5e-3)
    yield Figure(f"warning about a Deployment, a new shape, {NODES} nodes", measured.new_warning)
    yield Figure(f"warning about a Deployment, a known shape, {NODES} nodes", measured.warning, 20e-3)
    yield Figure(f"warning about a Deployment that none of {NODES} nodes is considered for", measured.excluded, 20e-3)
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
        reviews = WarningReviews(service.live)
        new_warning = _time_of(reviews, _review("40"), warnings=1)
        warning = min(_time_of(reviews, _review("40"), warnings=1) for _ in range(REQUESTS))
        nowhere = _review("40", nodeSelector={"pool": "none"})
        excluded = min(_time_of(reviews, nowhere, warnings=0) for _ in range(REQUESTS))
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
    return Measured(ready, first, known, new_warning, warning, excluded, peak_megabytes())


def _review(cpu: str, **spec: object) -> bytes:
    """Return a review of a Deployment; a NUMA node has 32 CPUs."""
    resources = {"limits": {"cpu": cpu, "memory": "1Gi"}}
    template = {
        "metadata": {"labels": {"app": "web"}},
        "spec": {"containers": [{"name": "app", "image": "app:1", "resources": resources}], **spec},
    }
    document = {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": "web", "namespace": "ml", "uid": "1"},
        "spec": {"selector": {"matchLabels": {"app": "web"}}, "template": template},
    }
    request = {"uid": "7", "operation": "CREATE", "resource": DEPLOYMENTS, "object": document}
    return json.dumps({"apiVersion": REVIEW_VERSION, "kind": REVIEW_KIND, "request": request}).encode()


def _time_of(reviews: WarningReviews, body: bytes, *, warnings: int) -> float:
    seconds, answer = cpu_time(partial(reviews.answer, body))
    assert len(json.loads(answer)["response"].get("warnings", ())) == warnings
    return seconds


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
    server.serve(SERVED)
    states: list[dict[str, Any]] = []
    for number in range(STATES):
        kubelet = SimulatedKubelet(shape="pack:2 numa:1 core:16 pu:2")
        for other in range(number):
            kubelet.run(pod(f"held-{other}", cpu="2", memory="1Gi"))
        states.append(kubelet.host_state(""))
    for number in range(NODES):
        metadata = {"name": f"host-{number:04}"}
        server.put({"apiVersion": "v1", "kind": "Node", "metadata": metadata})
        server.put({**states[number % STATES], "metadata": metadata})
