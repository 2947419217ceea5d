import pytest

from alignup.agent.pods import bind_mounts
from tests.short_paths import short_directory


@pytest.fixture
def tmp_path():
    """In which things may be mounted: whatever stays mounted is unmounted, so that the directory can go."""
    with short_directory() as place:
        yield place
        bind_mounts.unmount_below(place)
