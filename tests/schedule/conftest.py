import asyncio

import httpx2
import pytest

from alignup.schedule.live_cluster import LiveCluster
from alignup.schedule.service import ScheduleService, schedule_app
from alignup.web.asgi_server import serve_app
from alignup.web.sockets import tcp_socket
from tests.deadlines import until
from tests.kubernetes.api.conftest import log
from tests.observe.conftest import client, follow, live, nodes, server, timing

__all__ = ["client", "follow", "http", "live", "log", "nodes", "server", "service", "timing"]


@pytest.fixture
def start_live(client, follow):
    """Follow the API server, with other options, until everything is read."""

    async def start(api=client, **options):
        made = LiveCluster(api, **options)
        follow(made.run())
        await made.ready.wait()
        return made

    return start


@pytest.fixture
def start_service(client, follow):
    """Start a service, with other options, that leads."""

    async def start(**options):
        made = ScheduleService(client, **options)
        follow(made.run())
        await until(lambda: made.leading)
        return made

    return start


@pytest.fixture
async def service(nodes, start_service):
    """The service, which leads."""
    return await start_service()


@pytest.fixture
async def http(service):
    """A client of the service's HTTP endpoints and pages, on a real socket."""
    stopping = asyncio.Event()
    with tcp_socket(0) as listener:
        url = f"http://127.0.0.1:{listener.getsockname()[1]}"
        async with (
            serve_app(schedule_app(service, stopping=stopping), listener, stopping=stopping),
            httpx2.AsyncClient(base_url=url, trust_env=False, verify=False) as made,  # reads no certificates
        ):
            yield made
