import pytest

from tests.short_paths import short_directory


@pytest.fixture
def tmp_path():
    """With a short name, as agents have sockets there."""
    with short_directory() as place:
        yield place
