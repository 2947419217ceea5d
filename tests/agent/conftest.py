import pytest

from tests.short_paths import short_directory


@pytest.fixture
def tmp_path():
    """A directory with a short path, because sockets are in it."""
    with short_directory() as place:
        yield place
