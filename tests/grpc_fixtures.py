"""Fixtures for tests that use gRPC; a test package imports them in its conftest."""

import asyncio

import pytest


@pytest.fixture(scope="package")
def anyio_backend():
    return "asyncio"


@pytest.fixture(scope="package", autouse=True)
async def one_loop(anyio_backend):
    """Share one event loop among all tests of a package.

    gRPC finishes a cancelled call a little later, in the loop that made the call. If that loop is closed by then, gRPC
    raises in the next one.
    """
    yield
    await asyncio.sleep(0.1)
