"""Directories that pods fill are taken away, whatever is in them, and nothing else is."""

import os
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from alignup.agent.pods import bind_mounts, pod_dirs
from alignup.agent.pods.pod_state import PodStartError
from alignup.align.errors import EnforceError
from tests.agent.pods.disk import may_mount, names_in

#: A tree: name → a tree, or ``None`` for a file, or a text for a link to it.
trees_of_names = st.recursive(
    st.none() | st.sampled_from(["..", "/", "a", "../outside"]),
    lambda inner: st.dictionaries(st.sampled_from(["a", "b", "c", ".removed-0", ".removed-1"]), inner, max_size=4),
    max_leaves=20,
)


def grow(path: Path, tree: object) -> None:
    if tree is None:
        path.touch()
    elif isinstance(tree, str):
        path.symlink_to(tree)
    elif isinstance(tree, dict):
        path.mkdir()
        for name, inner in tree.items():
            grow(path / name, inner)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.dictionaries(st.sampled_from("abc"), trees_of_names, max_size=4))
def test_every_tree_goes_and_what_links_lead_to_stays(tmp_path, tree):
    outside = tmp_path / "outside"
    outside.mkdir(exist_ok=True)
    (outside / "kept").touch()
    grow(tmp_path / "top", tree)

    pod_dirs.remove_tree(tmp_path / "top")

    assert names_in(tmp_path) == ["outside"]
    assert names_in(outside) == ["kept"]


def test_what_is_not_there_is_gone(tmp_path):
    pod_dirs.remove_tree(tmp_path / "nothing")
    pod_dirs.remove_tree(tmp_path / "no" / "thing")


def test_directories_nested_deeper_than_can_be_named_go(tmp_path):
    top = tmp_path / "top"
    top.mkdir()
    handle = os.open(top, os.O_RDONLY)
    for _ in range(1100):  # more than Python calls itself
        os.mkdir("deeper", dir_fd=handle)
        below = os.open("deeper", os.O_RDONLY, dir_fd=handle)
        os.close(handle)
        handle = below
    os.close(handle)

    pod_dirs.remove_tree(top)

    assert not top.exists()


def test_a_link_in_the_place_of_a_tree_is_not_followed(tmp_path):
    (tmp_path / "kept").mkdir()
    (tmp_path / "kept" / "file").touch()
    (tmp_path / "top").symlink_to("kept")

    with pytest.raises(EnforceError):
        pod_dirs.remove_tree(tmp_path / "top")

    assert (tmp_path / "kept" / "file").exists()


def test_mounts_are_taken_away_first(tmp_path):
    may_mount(tmp_path)
    kept = tmp_path / "kept"
    kept.mkdir()
    (kept / "file").touch()
    inner = tmp_path / "top" / "a" / "b c"
    inner.mkdir(parents=True)
    bind_mounts.mount("tmpfs", inner, filesystem="tmpfs")
    (inner / "host").mkdir()
    bind_mounts.mount(str(kept), inner / "host", flags=bind_mounts.MS_BIND)

    pod_dirs.remove_tree(tmp_path / "top")

    assert not (tmp_path / "top").exists()
    assert (kept / "file").exists()
    assert bind_mounts.mounts_below(tmp_path) == ()


def test_a_mount_in_use_keeps_its_tree_and_all_below(tmp_path):
    may_mount(tmp_path)
    used = tmp_path / "top" / "used"
    used.mkdir(parents=True)
    bind_mounts.mount("tmpfs", used, filesystem="tmpfs")
    (used / "file").touch()

    with (used / "file").open("w"), pytest.raises(EnforceError, match=r"cannot unmount .*: Device or resource busy"):
        pod_dirs.remove_tree(tmp_path / "top")
    assert (used / "file").exists()
    pod_dirs.remove_tree(tmp_path / "top")

    assert not (tmp_path / "top").exists()


@pytest.mark.parametrize("name", ["a", "a.b", "...", "ä" * 127, "-"])
def test_steps_of_a_path(name):
    assert pod_dirs.path_component(name) == name


@pytest.mark.parametrize("name", ["", ".", "..", "a/b", "/", "a\0b", "ä" * 128])
def test_no_steps_of_a_path(name):
    with pytest.raises(PodStartError):
        pod_dirs.path_component(name)
