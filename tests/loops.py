"""Fixtures of tests that speak gRPC; whoever imports them has them."""

import asyncio

import pytest


@pytest.fixture(scope="package")
def anyio_backend():
    return "asyncio"


@pytest.fixture(scope="package", autouse=True)
async def one_loop(anyio_backend):
    """All tests of a package share a loop.

    gRPC hands what is left of a call that was given up to the loop it was made in, a little later, and when that is
    closed by then it complains in the next one.
    """
    yield
    await asyncio.sleep(0.1)
