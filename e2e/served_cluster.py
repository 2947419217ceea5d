"""A cluster service on simulated nodes, for tests of its pages: ``python -m e2e.served_cluster 5000``.

It prints the address of the pages, and then obeys its standard input until this ends:

    state host-0000 3      the node is in another of the states
    predict rejected 2     two pods were rejected that were predicted to be admitted
    wait trainer           a pod waits for room
    reject trainer host-0000    the kubelet of a node rejects a pod
"""

import asyncio
import itertools
import json
import os
import sys
from dataclasses import replace

from alignup.align.machine import Device
from alignup.align.workload import Pod
from alignup.kubernetes.api import Access, ApiClient
from alignup.schedule import trends
from alignup.schedule.extender.messages import ExtenderArgs
from alignup.schedule.service import ScheduleService, schedule_app
from alignup.testing.api_server import ApiServer
from alignup.testing.simulated_kubelet import SimulatedKubelet
from alignup.web.asgi_server import serve_app
from alignup.web.log import log_to_stderr
from alignup.web.sockets import tcp_socket
from tests.align.hosts import GPU, pod
from tests.observe.api_objects import SERVED, api_pod, node

STATES = 7  #: that the nodes are in
STRANDING = 3  #: the state with all CPUs of a NUMA node held, and none of its GPUs
SHAPE = "pack:2 numa:1(memory=64GiB) core:8 pu:2"
DEVICES = tuple(Device(GPU, f"gpu-{number}", nodes=1 << number // 2) for number in range(4))
GENERATIONS = itertools.count(2)
UNOBSERVED, CORDONED = 97, 50  #: every so many nodes
REPLICA_SET, REJECTED = "inference-7d9f8", 12  #: whose pods were rejected before the service starts, and how many


State = tuple[str, list[Pod]]  #: a HostState with placeholders, and its pods


def make_states() -> list[State]:
    states = []
    for number in range(STATES):
        kubelet = SimulatedKubelet(shape=SHAPE, devices=DEVICES)
        pods = [pod(f"held-{other}", cpu=str(2 + other), memory="4Gi", gpu=str(other % 2)) for other in range(number)]
        if number == STRANDING:
            pods = [pod(f"held-{other}", cpu="8" if other else "15", memory="4Gi") for other in range(2)]
        for held in pods:
            kubelet.run(held)
        states.append((json.dumps(kubelet.host_state("NODE")), pods))
    return states


def put_state(server: ApiServer, name: str, state: State, generation: int) -> None:
    text, pods = state
    server.put(json.loads(text.replace("NODE", name).replace("held-", f"{name}-")) | {"generation": generation})
    for held in pods:
        renamed = {field: getattr(held, field).replace("held-", f"{name}-") for field in ("name", "uid")}
        server.put(api_pod(replace(held, **renamed), name, phase="Running"))


def fill(server: ApiServer, count: int, states: list[State]) -> None:
    """Add nodes, their HostStates, and the pods that they run."""
    server.serve(SERVED)
    for number in range(count):
        name = f"host-{number:04}"
        document = node(name)
        document["metadata"]["labels"] = {"zone": "abc"[number % 3]}
        if number % CORDONED == CORDONED - 1:
            document["spec"] = {"unschedulable": True}
        server.put(document)
        if number % UNOBSERVED == UNOBSERVED - 1:
            continue
        put_state(server, name, states[number % STATES], 1)


def obey(words: list[str], service: ScheduleService, server: ApiServer, states: list[State]) -> None:
    match words:
        case ["state", name, number]:
            put_state(server, name, states[int(number)], next(GENERATIONS))
        case ["predict", outcome, count]:
            for _ in range(int(count)):
                service.metrics.prediction(outcome=outcome, cause="")
        case ["wait", name]:
            document = api_pod(pod(name, cpu="64", memory="4Gi"), phase="Pending")
            total = len(service.live.nodes.objects)
            message = f"0/{total} nodes are available: {total} not enough cpu on one NUMA node."
            condition = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": message}
            server.put({**document, "status": {**document["status"], "conditions": [condition]}})
            question = {"Pod": document, "NodeNames": [name for _, name in service.live.nodes.objects]}
            service.filter.answer(ExtenderArgs.read(json.dumps(question).encode()))
        case ["reject", name, host]:
            reject(server, name, host)


def reject(server: ApiServer, name: str, host: str) -> None:
    """Let a node reject a pod of the ReplicaSet that the first part of its name names."""
    document = api_pod(pod(name, cpu="12", memory="4Gi"), host, phase="Failed")
    owner = {"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": name.rpartition("-")[0], "controller": True}
    message = "Pod was rejected: Resources cannot be allocated with Topology locality"
    document["metadata"]["ownerReferences"] = [owner]
    document["status"] |= {"reason": "TopologyAffinityError", "message": message}
    server.put(document)


async def main(count: int) -> None:
    server, states = ApiServer(), make_states()
    fill(server, count, states)
    for number in range(REJECTED if count else 0):
        reject(server, f"{REPLICA_SET}-{number:02}", "host-0005")
    stopping = asyncio.Event()
    async with server, ApiClient(Access(server=server.url)) as client:
        service = ScheduleService(client)
        running = asyncio.ensure_future(service.run())
        while not service.leading:  # noqa: ASYNC110 - a condition without an event
            await asyncio.sleep(0.05)
        for line in ("predict as_predicted 40", "predict placed_elsewhere 2", "predict rejected 1"):
            obey(line.split(), service, server, states)
        app = schedule_app(service, stopping=stopping)
        with tcp_socket(0) as listener:
            async with serve_app(app, listener, stopping=stopping):
                sys.stdout.write(f"http://127.0.0.1:{listener.getsockname()[1]}/\n")
                sys.stdout.flush()
                while line := await asyncio.to_thread(sys.stdin.readline):
                    obey(line.split(), service, server, states)
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)


if __name__ == "__main__":
    log_to_stderr(level="warning")
    trends.INTERVAL = float(os.environ.get("ALIGNUP_TREND_SECONDS", trends.INTERVAL))
    asyncio.run(main(int(sys.argv[1])))
