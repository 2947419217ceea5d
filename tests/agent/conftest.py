import pytest


@pytest.fixture
def tmp_path(short_path):
    """A directory with a short path, because sockets are in it."""
    return short_path
