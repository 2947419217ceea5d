"""Directories of pods are removed whatever they contain, and nothing else is."""

import os
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from alignup.agent.pods.files import bind_mounts, pod_dirs
from alignup.agent.pods.pod_state import PodStartError
from alignup.align.errors import EnforceError
from tests.agent.pods.files.mounting import names_in, skip_unless_mountable

#: A tree: name → a tree, ``None`` for a file, or a text for a symlink to it.
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
def test_trees_are_removed_and_symlink_targets_are_kept(tmp_path, tree):
    outside = tmp_path / "outside"
    outside.mkdir(exist_ok=True)
    (outside / "kept").touch()
    grow(tmp_path / "top", tree)

    pod_dirs.remove_tree(tmp_path / "top")

    assert names_in(tmp_path) == ["outside"]
    assert names_in(outside) == ["kept"]


def test_removing_a_missing_tree_is_not_an_error(tmp_path):
    pod_dirs.remove_tree(tmp_path / "nothing")
    pod_dirs.remove_tree(tmp_path / "no" / "thing")


def test_directories_nested_deeper_than_the_path_limit_are_removed(tmp_path):
    top = tmp_path / "top"
    top.mkdir()
    handle = os.open(top, os.O_RDONLY)
    for _ in range(1100):  # deeper than Python's recursion limit
        os.mkdir("deeper", dir_fd=handle)
        below = os.open("deeper", os.O_RDONLY, dir_fd=handle)
        os.close(handle)
        handle = below
    os.close(handle)

    pod_dirs.remove_tree(top)

    assert not top.exists()


def test_a_symlink_instead_of_a_tree_is_not_followed(tmp_path):
    (tmp_path / "kept").mkdir()
    (tmp_path / "kept" / "file").touch()
    (tmp_path / "top").symlink_to("kept")

    with pytest.raises(EnforceError):
        pod_dirs.remove_tree(tmp_path / "top")

    assert (tmp_path / "kept" / "file").exists()


def test_mounts_are_unmounted_first(tmp_path):
    skip_unless_mountable(tmp_path)
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


def test_a_busy_mount_keeps_its_tree(tmp_path):
    skip_unless_mountable(tmp_path)
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
def test_valid_path_components(name):
    assert pod_dirs.path_component(name) == name


@pytest.mark.parametrize("name", ["", ".", "..", "a/b", "/", "a\0b", "ä" * 128])
def test_invalid_path_components(name):
    with pytest.raises(PodStartError):
        pod_dirs.path_component(name)
