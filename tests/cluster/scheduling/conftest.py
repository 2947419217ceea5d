import asyncio

import httpx2
import pytest

from alignup.cluster.scheduling.live_cluster import LiveCluster
from alignup.cluster.scheduling.service import ScheduleService
from alignup.serve.schedule_app import PrometheusScheduleMetrics, schedule_app
from alignup.serve.server import serve_app
from alignup.serve.sockets import tcp_socket
from tests.cluster.scheduling.nodes import SimulatedNodes
from tests.deadlines import until
from tests.kubeapi.conftest import anyio_backend, client, follow, server, timing

__all__ = ["anyio_backend", "client", "follow", "http", "live", "metrics", "nodes", "server", "service", "timing"]


@pytest.fixture
def nodes(server):
    """Two empty nodes, ``a`` and ``b``, of SimulatedKubelet's machine."""
    made = SimulatedNodes(server)
    for name in "ab":
        made.add(name)
    return made


@pytest.fixture
async def live(nodes, client, follow):
    """A cluster that follows the nodes, and has read them."""
    made = LiveCluster(client)
    follow(made.run())
    await made.wait_ready()
    return made


@pytest.fixture
def metrics():
    return PrometheusScheduleMetrics()


@pytest.fixture
async def service(nodes, client, follow, metrics):
    """The service, which leads."""
    made = ScheduleService(client, metrics)
    follow(made.run())
    await until(lambda: made.leading)
    return made


@pytest.fixture
async def http(service, metrics):
    """A client of the service's HTTP endpoints."""
    with tcp_socket(0) as listener:
        url = f"http://127.0.0.1:{listener.getsockname()[1]}"
        async with (
            serve_app(schedule_app(service, metrics), listener, stopping=asyncio.Event()),
            httpx2.AsyncClient(base_url=url, trust_env=False, verify=False) as made,  # reads no certificates
        ):
            yield made
