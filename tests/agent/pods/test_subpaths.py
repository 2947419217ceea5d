"""Parts of a volume are found, made, and never outside of it."""

import stat
from pathlib import Path

import pytest

from alignup.agent.pods import bind_mounts, subpaths
from alignup.agent.pods.pod_state import PodStartError
from tests.agent.pods.disk import may_mount


@pytest.fixture
def volume(tmp_path):
    """A volume with a secret beside it."""
    (tmp_path / "secret").mkdir()
    (tmp_path / "secret" / "key").write_text("s3cret")
    place = tmp_path / "volume"
    place.mkdir()
    place.chmod(0o2770)
    return place


def opened(volume: Path, sub_path: str) -> Path:
    """What is found, by its real name."""
    with subpaths.open_subpath(volume, sub_path) as handle:
        return Path(f"/proc/self/fd/{handle}").readlink()


@pytest.mark.parametrize("sub_path", ["a", "a/b/c", "a//b/", ".", "a/./b"])
def test_what_is_missing_is_made_with_the_rights_of_the_volume(volume, sub_path):
    found = opened(volume, sub_path)

    assert found == (volume / sub_path)
    assert stat.S_IMODE(found.stat().st_mode) == 0o2770


def test_a_file_is_found(volume):
    (volume / "dir").mkdir()
    (volume / "dir" / "file").touch()

    assert opened(volume, "dir/file") == volume / "dir" / "file"


@pytest.mark.parametrize(
    ("link", "to"), [("inner", "real"), ("inner", "./real/../real"), ("inner", "real/self")], ids=str
)
def test_links_inside_are_followed(volume, link, to):
    (volume / "real").mkdir()
    (volume / "real" / "self").symlink_to(".")
    (volume / link).symlink_to(to)

    assert opened(volume, f"{link}/x") == volume / "real" / "x"


@pytest.mark.parametrize("to", ["../secret", "../../../../../../../../etc", "/etc", "..", "loop/.."])
@pytest.mark.parametrize("sub_path", ["way", "way/out", "dir/way"])
def test_links_that_lead_out_are_refused(volume, to, sub_path):
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
def test_names_that_lead_out_are_refused(volume, sub_path):
    with pytest.raises(PodStartError, match="must be relative"):
        opened(volume, sub_path)


@pytest.mark.parametrize("sub_path", ["file/x", "turns/x"])
def test_what_is_in_the_way_is_told(volume, sub_path):
    (volume / "file").touch()
    (volume / "turns").symlink_to("turns")

    with pytest.raises(PodStartError, match="subPath"):
        opened(volume, sub_path)


def test_a_link_put_there_while_we_look_is_not_followed(volume):
    (volume / "dir").mkdir()
    found = subpaths._resolve_inside(volume, "dir")  # noqa: SLF001 - the moment between the two looks
    (volume / "dir").rmdir()
    (volume / "dir").symlink_to("../secret")

    with pytest.raises(PodStartError, match="is a dangling symlink"):
        subpaths._walk(volume, found)  # noqa: SLF001


def test_a_part_that_is_given_stays_what_it_was(tmp_path, volume):
    may_mount(tmp_path)
    (volume / "part").mkdir()
    (volume / "part" / "file").write_text("mine")

    target = subpaths.bind_subpath(volume, "part", target=tmp_path / "given" / "0")
    (volume / "part").rename(volume / "moved")
    (volume / "part").symlink_to("../secret")

    assert (target / "file").read_text() == "mine"
    assert len(bind_mounts.mounts_below(tmp_path)) == 1


def test_a_file_can_be_given_and_given_again(tmp_path, volume):
    may_mount(tmp_path)
    (volume / "one").write_text("1")
    (volume / "two").write_text("2")

    subpaths.bind_subpath(volume, "one", target=tmp_path / "given")
    target = subpaths.bind_subpath(volume, "two", target=tmp_path / "given")

    assert target.read_text() == "2"
    assert len(bind_mounts.mounts_below(tmp_path)) == 1
