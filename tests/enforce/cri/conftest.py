import tempfile
from pathlib import Path

import pytest

from tests.grpc_fixtures import anyio_backend, one_loop

__all__ = ["anyio_backend", "one_loop"]


@pytest.fixture
def socket():
    """The path of a runtime's socket, short enough for one."""
    with tempfile.TemporaryDirectory(prefix="alignup-") as place:
        yield Path(place) / "cri.sock"
