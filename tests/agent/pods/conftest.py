import pytest

from alignup.agent.pods.files import bind_mounts
from tests.short_paths import short_directory


@pytest.fixture
def tmp_path():
    """A directory for mounts; everything still mounted is unmounted, so that it can be removed."""
    with short_directory() as place:
        yield place
        bind_mounts.unmount_below(place)
