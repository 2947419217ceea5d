import pytest

from tests.agent.conftest import tmp_path

__all__ = ["path", "tmp_path"]


@pytest.fixture
def path(tmp_path):
    """The path of a Unix socket."""
    return tmp_path / "api.sock"
