import tempfile
from pathlib import Path

import pytest

from tests.grpc_fixtures import anyio_backend, one_loop

__all__ = ["anyio_backend", "one_loop"]


@pytest.fixture
def socket():
    """Where a runtime listens; with a short name, as sockets need it."""
    with tempfile.TemporaryDirectory(prefix="alignup-") as place:
        yield Path(place) / "cri.sock"
