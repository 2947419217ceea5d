"""subPaths are resolved and created, and never leave their volume."""

import stat
from pathlib import Path

import pytest

from alignup.agent.pods.files import bind_mounts
from alignup.agent.pods.pod_state import PodStartError
from tests.agent.pods.files.mounting import skip_unless_mountable


@pytest.fixture
def volume(tmp_path):
    """A volume beside a secret file."""
    (tmp_path / "secret").mkdir()
    (tmp_path / "secret" / "key").write_text("s3cret")
    place = tmp_path / "volume"
    place.mkdir()
    place.chmod(0o2770)
    return place


def opened(volume: Path, sub_path: str) -> Path:
    """The real path of a subPath."""
    with bind_mounts.open_subpath(volume, sub_path) as handle:
        return Path(f"/proc/self/fd/{handle}").readlink()


@pytest.mark.parametrize("sub_path", ["a", "a/b/c", "a//b/", ".", "a/./b"])
def test_missing_directories_get_the_mode_of_the_volume(volume, sub_path):
    found = opened(volume, sub_path)

    assert found == (volume / sub_path)
    assert stat.S_IMODE(found.stat().st_mode) == 0o2770


def test_a_sub_path_may_be_a_file(volume):
    (volume / "dir").mkdir()
    (volume / "dir" / "file").touch()

    assert opened(volume, "dir/file") == volume / "dir" / "file"


@pytest.mark.parametrize(
    ("link", "to"), [("inner", "real"), ("inner", "./real/../real"), ("inner", "real/self")], ids=str
)
def test_symlinks_inside_the_volume_are_followed(volume, link, to):
    (volume / "real").mkdir()
    (volume / "real" / "self").symlink_to(".")
    (volume / link).symlink_to(to)

    assert opened(volume, f"{link}/x") == volume / "real" / "x"


@pytest.mark.parametrize("to", ["../secret", "../../../../../../../../etc", "/etc", "..", "loop/.."])
@pytest.mark.parametrize("sub_path", ["way", "way/out", "dir/way"])
def test_symlinks_out_of_the_volume_are_rejected(volume, to, sub_path):
    (volume / "loop").mkdir()
    (volume / "way").symlink_to(to)
    (volume / "dir").mkdir()
    (volume / "dir" / "way").symlink_to("../../secret")
    if (to, sub_path) in {("loop/..", "way"), ("loop/..", "way/out")}:
        assert opened(volume, sub_path).is_relative_to(volume)
        return

    with pytest.raises(PodStartError, match="leads out of its volume"):
        opened(volume, sub_path)


@pytest.mark.parametrize("sub_path", ["/etc", "../secret", "a/../../secret"])
def test_paths_out_of_the_volume_are_rejected(volume, sub_path):
    with pytest.raises(PodStartError, match="must be relative"):
        opened(volume, sub_path)


@pytest.mark.parametrize("sub_path", ["file/x", "turns/x"])
def test_obstacles_are_reported(volume, sub_path):
    (volume / "file").touch()
    (volume / "turns").symlink_to("turns")

    with pytest.raises(PodStartError, match="subPath"):
        opened(volume, sub_path)


def test_a_symlink_created_during_the_walk_is_not_followed(volume):
    (volume / "dir").mkdir()
    found = bind_mounts._resolve_inside(volume, "dir")  # noqa: SLF001
    (volume / "dir").rmdir()
    (volume / "dir").symlink_to("../secret")

    with pytest.raises(PodStartError, match="is a dangling symlink"):
        bind_mounts._walk(volume, found)  # noqa: SLF001


def test_a_bound_sub_path_survives_a_rename(tmp_path, volume):
    skip_unless_mountable(tmp_path)
    (volume / "part").mkdir()
    (volume / "part" / "file").write_text("mine")

    target = bind_mounts.bind_subpath(volume, "part", target=tmp_path / "given" / "0")
    (volume / "part").rename(volume / "moved")
    (volume / "part").symlink_to("../secret")

    assert (target / "file").read_text() == "mine"
    assert len(bind_mounts.mounts_below(tmp_path)) == 1


def test_a_file_can_be_bound_repeatedly(tmp_path, volume):
    skip_unless_mountable(tmp_path)
    (volume / "one").write_text("1")
    (volume / "two").write_text("2")

    bind_mounts.bind_subpath(volume, "one", target=tmp_path / "given")
    target = bind_mounts.bind_subpath(volume, "two", target=tmp_path / "given")

    assert target.read_text() == "2"
    assert len(bind_mounts.mounts_below(tmp_path)) == 1
