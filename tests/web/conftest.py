import pytest

from tests.agent.conftest import tmp_path

__all__ = ["anyio_backend", "tmp_path"]


@pytest.fixture
def anyio_backend():
    return "asyncio"
