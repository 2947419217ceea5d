"""A bundle unpacks itself once, and starts what is in it."""

import subprocess

import pytest

from tools.bundle import bundle_files, write_bundle
from tools.oci import Entry

START = b'#!/bin/sh\necho started "$@" "$(cat "$(dirname "$0")/data/text")"\nexit 3\n'


@pytest.fixture
def bundle(tmp_path):
    write_bundle(tmp_path / "app", {"start": Entry(0o755, START), "data/text": Entry(content=b"x")}, version="1")
    return tmp_path / "app"


def run(bundle, cache):
    return subprocess.run(  # noqa: S603
        [bundle, "a", "b c"],
        env={"ALIGNUP_UNPACK": str(cache), "PATH": "/usr/bin:/bin"},
        capture_output=True,
        text=True,
        check=False,
    )


def test_it_unpacks_itself_once_and_returns_the_exit_code(bundle, tmp_path):
    cache = tmp_path / "cache"

    runs = [run(bundle, cache), run(bundle, cache)]

    assert [(completed.returncode, completed.stdout, completed.stderr) for completed in runs] == [
        (3, "started a b c x\n", "")
    ] * 2
    assert len(list(cache.iterdir())) == 1


def test_a_directory_that_cannot_be_written_is_an_error(bundle, tmp_path):
    (tmp_path / "file").write_text("")

    done = run(bundle, tmp_path / "file")

    assert done.returncode == 1
    assert "mkdir" in done.stderr


def test_the_same_files_give_the_same_bundle(bundle, tmp_path):
    write_bundle(tmp_path / "2", {"data/text": Entry(content=b"x"), "start": Entry(0o755, START)}, version="1")

    assert bundle.read_bytes() == (tmp_path / "2").read_bytes()


def test_python_is_started_by_its_own_linker_with_its_own_libraries():
    files = {
        "usr/bin/python3": Entry(0o777, target="python3.11"),
        "usr/lib/x86_64-linux-gnu/ld-linux-x86-64.so.2": Entry(0o755),
        "etc/passwd": Entry(),
        "lib": Entry(0o777, target="usr/lib"),
    }

    bundled = bundle_files(files)

    script = bundled["usr/bin/python3"].content.decode()
    assert '"$usr/lib/x86_64-linux-gnu/ld-linux-x86-64.so.2" --library-path "$usr/lib/x86_64-linux-gnu"' in script
    assert b"opt/alignup/lib/python3.11/site-packages" in bundled["start"].content
    assert not {"etc/passwd", "lib"} & bundled.keys()
