"""Changes of files are noticed by name, also if they are renamed into place; all capabilities are dropped for good."""

import select
import subprocess
import sys

import pytest

from alignup import atomic_files
from alignup.observe.linux_calls import DirectoryWatch
from tests.observe.inotify_queue import fill_queue


@pytest.fixture
def watch(tmp_path):
    with DirectoryWatch([tmp_path, tmp_path / "later"]) as made:
        yield made


def test_a_file_that_is_renamed_into_place_is_reported_by_its_name(tmp_path, watch):
    assert watch.changes() == set()
    atomic_files.write(tmp_path / "state", b"1")

    assert select.select([watch], [], [], 0)[0] == [watch]
    assert tmp_path / "state" in watch.changes()
    assert watch.changes() == set()


def test_a_directory_that_appears_later_is_watched_after_a_refresh(tmp_path, watch):
    (tmp_path / "later").mkdir()
    watch.changes()
    watch.refresh()
    (tmp_path / "later" / "file").write_bytes(b"1")

    assert watch.changes() == {tmp_path / "later" / "file"}


def test_a_directory_that_is_replaced_is_watched_again(tmp_path, watch):
    later = tmp_path / "later"
    later.mkdir()
    watch.refresh()
    later.rmdir()
    later.mkdir()
    assert later in watch.changes()
    watch.refresh()
    (later / "file").write_bytes(b"1")

    assert later / "file" in watch.changes()


def test_lost_events_are_reported_and_later_ones_are_not_lost(tmp_path, watch):
    fill_queue(tmp_path)
    (tmp_path / "lost").touch()
    assert watch.changes() is None
    (tmp_path / "file").touch()

    assert watch.changes() == {tmp_path / "file"}


def test_it_is_closed_once(watch):
    watch.close()
    watch.close()
    with pytest.raises(OSError, match="Bad file descriptor"):
        watch.refresh()


#: In another process, since this one needs its capabilities.
CODE = """
from pathlib import Path
from alignup.observe.linux_calls import drop_capabilities
drop_capabilities()
lines = Path("/proc/self/status").read_text().splitlines()
print([line.split()[1] for line in lines if line.startswith(("CapInh", "CapPrm", "CapEff", "CapAmb", "NoNewPrivs"))])
"""


def test_no_capability_is_left():
    ran = subprocess.run([sys.executable, "-c", CODE], check=True, capture_output=True, text=True)  # noqa: S603 - ours

    none = "0" * 16
    assert ran.stdout.strip() == str([none, none, none, none, "1"])
