import asyncio

import httpx2
import pytest

from alignup.schedule.service import ScheduleService, schedule_app
from alignup.web.asgi_server import serve_app
from alignup.web.sockets import tcp_socket
from tests.deadlines import until
from tests.kubernetes.api.conftest import log
from tests.observe.conftest import client, follow, live, nodes, server, timing

__all__ = ["client", "follow", "http", "live", "log", "nodes", "server", "service", "timing"]


@pytest.fixture
async def service(nodes, client, follow):
    """The service, which leads."""
    made = ScheduleService(client)
    follow(made.run())
    await until(lambda: made.leading)
    return made


@pytest.fixture
async def http(service):
    """A client of the service's HTTP endpoints."""
    with tcp_socket(0) as listener:
        url = f"http://127.0.0.1:{listener.getsockname()[1]}"
        async with (
            serve_app(schedule_app(service), listener, stopping=asyncio.Event()),
            httpx2.AsyncClient(base_url=url, trust_env=False, verify=False) as made,  # reads no certificates
        ):
            yield made
