"""Files of a ``downwardAPI`` volume change atomically."""

import os
import stat

import pytest

from alignup.agent.pods.files import pod_dirs
from alignup.agent.pods.files.pod_dirs import ProjectedFile
from alignup.agent.pods.pod_state import PodStartError
from tests.agent.pods.files.mounting import names_in


def test_files_are_symlinks_into_the_newest_directory(tmp_path):
    place = tmp_path / "info"

    pod_dirs.write_files(place, {"name": ProjectedFile("web", 0o600), "deep/er/labels": ProjectedFile("a=b", 0o644)})

    assert (place / "name").read_text() == "web"
    assert (place / "deep" / "er" / "labels").read_text() == "a=b"
    assert str((place / "name").readlink()) == "..data/name"
    assert str((place / "deep").readlink()) == "..data/deep"
    assert stat.S_IMODE((place / "name").stat().st_mode) == 0o600


def test_new_content_replaces_the_old(tmp_path):
    pod_dirs.write_files(tmp_path, {"a": ProjectedFile("1", 0o644), "b": ProjectedFile("1", 0o644)})
    with (tmp_path / "a").open() as reader:
        pod_dirs.write_files(tmp_path, {"a": ProjectedFile("2", 0o644), "b": ProjectedFile("2", 0o644)})

        assert reader.read() == "1"
    assert [(tmp_path / name).read_text() for name in "ab"] == ["2", "2"]
    assert len(names_in(tmp_path)) == 4  # two files, the ``..data`` symlink, and the newest directory


def test_unchanged_files_are_not_rewritten(tmp_path):
    files = {"a/b": ProjectedFile("1", 0o644)}
    pod_dirs.write_files(tmp_path, files)
    before = (tmp_path / "..data").readlink()
    (tmp_path / "a").unlink()

    pod_dirs.write_files(tmp_path, files)

    assert (tmp_path / "..data").readlink() == before
    assert (tmp_path / "a" / "b").read_text() == "1"


def test_leftovers_of_a_crash_are_ignored(tmp_path):
    (tmp_path / "..data_tmp").symlink_to("nowhere")

    pod_dirs.write_files(tmp_path, {"a": ProjectedFile("1", 0o644)})

    assert (tmp_path / "a").read_text() == "1"


@pytest.mark.skipif(os.geteuid() != 0, reason="only root gives files to other groups")
def test_the_group_can_read(tmp_path):
    place = tmp_path / "info"

    pod_dirs.write_files(place, {"deep/name": ProjectedFile("web", 0o400)}, group=4242)

    found = (place / "deep" / "name").stat()
    assert (found.st_gid, stat.S_IMODE(found.st_mode)) == (4242, 0o440)
    assert stat.S_IMODE((place / "deep").stat().st_mode) == 0o2755
    assert place.stat().st_gid == 4242


@pytest.mark.parametrize("path", ["../out", "a/../../out"])
def test_paths_outside_the_volume_are_rejected(tmp_path, path):
    with pytest.raises(PodStartError):
        pod_dirs.write_files(tmp_path / "info", {path: ProjectedFile("x", 0o644)})

    assert not (tmp_path / "out").exists()
