"""Fixtures for tests that use gRPC; a test package or module imports them."""

import asyncio

import pytest


@pytest.fixture(scope="module")
def anyio_backend():
    return "asyncio"


@pytest.fixture(scope="module", autouse=True)
async def one_loop(anyio_backend):
    """Share one event loop among all tests of a module, and close it when no task is left.

    gRPC finishes a cancelled call a little later, in the loop that made the call. If that loop is closed by then, gRPC
    raises in the next one.
    """
    fixture_tasks = len(asyncio.all_tasks())  # those that run fixtures
    yield
    async with asyncio.timeout(60):
        while len(asyncio.all_tasks()) > fixture_tasks:  # noqa: ASYNC110 - there is no event to wait for
            await asyncio.sleep(0.002)
