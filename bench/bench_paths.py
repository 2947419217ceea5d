"""How much code a reader follows: the functions of Alignup that run between a request and its answer.

A function counts once, however often it runs, if its code is in the package ``alignup``. Coroutines count when they
start or go on. Lambdas, comprehensions and generator expressions belong to the function around them. The API server
runs in another thread, and simulated kubelets while nothing is counted, so neither is included. Each path runs once, in
a process of its own, and for the first time: functions whose results are cached count as well.

* filter: from the body of a scheduler's request about a new pod shape to the body of the answer
* bind: from the body of the request for that pod until the watch has shown its binding
* gated pod: from the watch event of a new pod until the HostState that contains it is confirmed
"""

import asyncio
import json
import sys
import threading
from collections.abc import Awaitable, Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from types import CodeType, FrameType
from typing import Self

import structlog

import alignup
from alignup.kubernetes.api import Access, ApiClient
from alignup.kubernetes.manifests.pod_decoder import pod_to_dict
from alignup.placement.scheduling.releases import ReleasePhase
from alignup.schedule.cluster_facts import GATE
from alignup.schedule.gate.controller import GateController
from alignup.schedule.service import ScheduleService
from alignup.testing.api_server import ApiServer
from alignup.testing.simulated_kubelet import SimulatedKubelet
from bench.harness import Figure
from tests.align.hosts import pod
from tests.deadlines import until
from tests.observe.api_objects import SERVED, api_pod, node

ASKED = pod("asked", cpu="2", memory="1Gi")
ALLOCATABLE = {"cpu": "7", "memory": "31Gi", "pods": "110"}
#: functions and modules
BUDGETS = {"filter, a new shape": (211, 55), "bind": (200, 55), "gated pod, from creation to report": (479, 82)}


class PathCounter:
    """Notes the functions that run in this thread between :meth:`start` and :meth:`stop`; it can start again."""

    def __init__(self) -> None:
        self._codes: set[CodeType] = set()

    def start(self) -> None:
        sys.setprofile(self._note)

    def stop(self) -> None:
        sys.setprofile(None)

    def _note(self, frame: FrameType, event: str, _argument: object) -> None:
        if event == "call":
            self._codes.add(frame.f_code)

    async def until(self, condition: Callable[[], object]) -> None:
        """Count until *condition* is true; what it calls does not count."""
        while not condition():
            self.start()
            await asyncio.sleep(0.005)
            self.stop()

    def functions(self) -> set[tuple[str, str]]:
        """Return module and name of each function."""
        package = Path(alignup.__file__).parent
        return {
            (code.co_filename, code.co_qualname)
            for code in self._codes
            if Path(code.co_filename).is_relative_to(package) and not code.co_name.startswith("<")
        }


class Nodes:
    """Two nodes behind an API server in a thread of its own."""

    def __init__(self) -> None:
        self.server = ApiServer()
        self.server.serve(SERVED)
        self.kubelets = {name: SimulatedKubelet() for name in "ab"}
        self.kubelets["b"].run(pod("resident", cpu="1", memory="1Gi"))
        for name in self.kubelets:
            self.server.put({**node(name), "status": {"allocatable": ALLOCATABLE}})
            self.server.put(self.kubelets[name].host_state(name))
        self._loop, self._done = asyncio.new_event_loop(), asyncio.Event()
        self._ready = threading.Event()
        self._thread = threading.Thread(target=self._loop.run_until_complete, args=(self._serve(),))

    async def _serve(self) -> None:
        async with self.server:
            self._ready.set()
            await self._done.wait()

    def __enter__(self) -> Self:
        self._thread.start()
        self._ready.wait()
        return self

    def __exit__(self, *_: object) -> None:
        self._loop.call_soon_threadsafe(self._done.set)
        self._thread.join()
        self._loop.close()

    def put(self, document: dict[str, object]) -> None:
        self._loop.call_soon_threadsafe(self.server.put, document)

    def bind(self, name: str) -> None:
        """Let the scheduler bind the pod to a node."""
        (document,) = self.server.objects("pods")
        self.put({**document, "spec": {**document["spec"], "nodeName": name}})

    def admit(self, name: str) -> None:
        """Let the kubelet of a node admit the pod, and its observer report it."""
        self.kubelets[name].run(ASKED)
        self.put(self.kubelets[name].host_state(name, generation=2))


def figures() -> Iterator[Figure]:
    with ProcessPoolExecutor(1, mp_context=get_context("spawn"), max_tasks_per_child=1) as fresh:
        for name, budgets in BUDGETS.items():
            functions = fresh.submit(count_path, name).result()
            yield Figure(f"{name}: functions", len(functions), budgets[0], unit="")
            yield Figure(f"{name}: modules", len({module for module, _ in functions}), budgets[1], unit="")


def count_path(name: str) -> set[tuple[str, str]]:
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger("error"))
    measure = _gated_pod if name.startswith("gated") else _filter if name.startswith("filter") else _bind
    with Nodes() as nodes:
        return asyncio.run(_measure(nodes, measure)).functions()


async def _measure(
    nodes: Nodes, measure: Callable[[Nodes, ScheduleService, PathCounter], Awaitable[None]]
) -> PathCounter:
    counter = PathCounter()
    async with ApiClient(Access(server=nodes.server.url)) as client:
        service = ScheduleService(client)
        running = asyncio.ensure_future(service.run())
        await until(lambda: service.leading)
        await measure(nodes, service, counter)
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
    return counter


async def _filter(nodes: Nodes, service: ScheduleService, counter: PathCounter) -> None:
    body = json.dumps({"Pod": pod_to_dict(ASKED), "Nodes": None, "NodeNames": list(nodes.kubelets)}).encode()
    counter.start()
    answer = await service.respond("filter", body)
    counter.stop()
    assert json.loads(answer)["NodeNames"]


async def _bind(nodes: Nodes, service: ScheduleService, counter: PathCounter) -> None:
    nodes.put(api_pod(ASKED, phase="Pending"))
    await until(lambda: service.live.find_pod(ASKED.namespace, ASKED.name))
    await _filter(nodes, service, PathCounter())
    names = {"PodName": ASKED.name, "PodNamespace": ASKED.namespace, "PodUID": ASKED.uid, "Node": "a"}
    body = json.dumps(names).encode()
    counter.start()
    answer = await service.respond("bind", body)
    counter.stop()
    await counter.until(lambda: not service.live.assumed)
    assert not json.loads(answer).get("Error"), answer


async def _gated_pod(nodes: Nodes, service: ScheduleService, counter: PathCounter) -> None:
    controller = GateController(service.client, service.live)
    running = asyncio.ensure_future(controller.run())
    await asyncio.sleep(0)
    nodes.put(api_pod(ASKED, phase="Pending", schedulingGates=[{"name": GATE}]))
    await counter.until(lambda: any(release.phase is ReleasePhase.WRITTEN for release in controller.gate.releases))
    (release,) = controller.gate.releases
    nodes.bind(release.node)
    await counter.until(lambda: not controller.gate.releases)
    nodes.admit(release.node)
    record = service.live.cluster.record(release.node)
    assert record is not None
    await counter.until(lambda: ASKED.uid in record.ledger.pods)
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)
