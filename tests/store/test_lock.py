"""One agent per state directory."""

import os
import stat
import subprocess

import pytest

from alignup.align.errors import StoreError
from alignup.store.lock import NAME, lock
from tests.store import processes


@pytest.fixture
def holder(tmp_path):
    """Another process that has the lock."""
    command = processes.command(processes.hold_lock, tmp_path)
    pipe = subprocess.PIPE
    with subprocess.Popen(command, cwd=processes.ROOT, stdin=pipe, stdout=pipe, text=True) as process:  # noqa: S603
        try:
            assert process.stdout
            assert process.stdout.readline() == "locked\n"
            yield process
        finally:
            process.kill()


def test_a_second_process_gets_the_pid_of_the_first(tmp_path, holder):
    with pytest.raises(StoreError) as caught, lock(tmp_path):
        pass

    assert caught.value.message == f"another agent (pid {holder.pid}) uses {tmp_path}"
    assert "stop that agent first" in caught.value.advice


def test_a_killed_process_releases_the_lock(tmp_path, holder):
    holder.kill()
    holder.wait()

    with lock(tmp_path):
        assert (tmp_path / NAME).read_text() == f"{os.getpid()}\n"


def test_one_process_cannot_take_it_twice(tmp_path):
    with lock(tmp_path), pytest.raises(StoreError, match=f"pid {os.getpid()}"), lock(tmp_path):
        pass

    with lock(tmp_path):
        pass


def test_an_error_releases_the_lock(tmp_path):
    with pytest.raises(ZeroDivisionError), lock(tmp_path):
        raise ZeroDivisionError

    with lock(tmp_path):
        pass


def test_the_pid_is_unknown_if_the_file_is_empty(tmp_path, holder):
    (tmp_path / NAME).write_bytes(b"")

    with pytest.raises(StoreError, match="pid unknown"), lock(tmp_path):
        pass


def test_only_the_owner_has_access(tmp_path):
    with lock(tmp_path):
        assert stat.S_IMODE((tmp_path / NAME).stat().st_mode) == 0o600


@pytest.mark.parametrize("way", ["link", "nowhere"])
def test_a_file_that_cannot_be_locked_is_an_error(tmp_path, way):
    directory = tmp_path / "nowhere" if way == "nowhere" else tmp_path
    if way == "link":
        (tmp_path / "target").touch()
        (tmp_path / NAME).symlink_to(tmp_path / "target")

    with pytest.raises(StoreError, match="cannot be locked"), lock(directory):
        pass
