"""A cluster service on simulated nodes, for tests of its pages: ``python -m e2e.served_cluster 5000``.

It prints the address of the pages, and runs until its standard input ends.
"""

import asyncio
import json
import sys
from dataclasses import replace

from alignup.kubernetes.api import Access, ApiClient
from alignup.schedule.service import ScheduleService, schedule_app
from alignup.testing.api_server import ApiServer
from alignup.web.asgi_server import serve_app
from alignup.web.log import log_to_stderr
from alignup.web.sockets import tcp_socket
from tests.align.hosts import pod
from tests.observe.api_objects import SERVED, api_pod, node, state_of
from tests.observe.kubelets import SimulatedKubelet

STATES = 7  #: that the nodes are in
SHAPE = "pack:2 numa:1(memory=64GiB) core:8 pu:2"


def fill(server: ApiServer, count: int) -> None:
    """Add nodes, their HostStates, and the pods that they run."""
    server.serve(SERVED)
    states = []
    for number in range(STATES):
        kubelet = SimulatedKubelet(shape=SHAPE)
        pods = [pod(f"held-{other}", cpu=str(2 + other), memory="4Gi") for other in range(number)]
        for held in pods:
            kubelet.admit(held)
        states.append((json.dumps(state_of("NODE", kubelet)), pods))
    for number in range(count):
        name = f"host-{number:04}"
        document = node(name)
        document["metadata"]["labels"] = {"zone": "abc"[number % 3]}
        server.put(document)
        state, pods = states[number % STATES]
        server.put(json.loads(state.replace("NODE", name).replace("held-", f"{name}-")) | {"generation": 1})
        for held in pods:
            renamed = {field: getattr(held, field).replace("held-", f"{name}-") for field in ("name", "uid")}
            server.put(api_pod(replace(held, **renamed), name, phase="Running"))


async def main(count: int) -> None:
    server = ApiServer()
    fill(server, count)
    stopping = asyncio.Event()
    async with server, ApiClient(Access(server=server.url)) as client:
        service = ScheduleService(client)
        running = asyncio.ensure_future(service.run())
        while not service.leading:  # noqa: ASYNC110 - a condition without an event
            await asyncio.sleep(0.05)
        for outcome, number in (("as_predicted", 40), ("placed_elsewhere", 2), ("rejected", 1)):
            for _ in range(number):
                service.metrics.prediction(outcome=outcome, cause="")
        app = schedule_app(service, stopping=stopping)
        with tcp_socket(0) as listener:
            async with serve_app(app, listener, stopping=stopping):
                sys.stdout.write(f"http://127.0.0.1:{listener.getsockname()[1]}/\n")
                sys.stdout.flush()
                await asyncio.to_thread(sys.stdin.read)
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)


if __name__ == "__main__":
    log_to_stderr(level="warning")
    asyncio.run(main(int(sys.argv[1])))
