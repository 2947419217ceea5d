"""The lock of a socket path: other users cannot hold it, and nobody waits for it for ever."""

import fcntl
import os
import stat
import threading

import pytest

from alignup.align.errors import ListenError
from alignup.web import sockets
from alignup.web.sockets import bind_lock


def test_a_locked_directory_does_not_stop_the_start(tmp_path):
    """Any user who can read the directory can lock it."""
    handle = os.open(tmp_path, os.O_RDONLY | os.O_DIRECTORY)
    fcntl.flock(handle, fcntl.LOCK_EX)
    try:
        with sockets.unix_socket(tmp_path / "api.sock"):
            assert [file.name for file in tmp_path.iterdir()] == ["api.sock"]
    finally:
        os.close(handle)


def test_only_its_owner_can_open_the_lock(tmp_path):
    before = os.umask(0)
    try:
        with bind_lock(tmp_path / "api.sock"):
            (lock,) = tmp_path.iterdir()
            assert stat.S_IMODE(lock.stat().st_mode) == 0o600
    finally:
        os.umask(before)

    assert list(tmp_path.iterdir()) == []


def test_a_lock_that_is_not_released_is_an_error_that_names_its_holder(path):
    with bind_lock(path), pytest.raises(ListenError, match=rf"process {os.getpid()} holds"), bind_lock(path, seconds=0):
        pass


def test_one_process_at_a_time_holds_the_lock(tmp_path):
    path, inside, most = tmp_path / "api.sock", [], []

    def hold():
        for _ in range(20):
            with bind_lock(path, seconds=60):
                inside.append(1)
                most.append(len(inside))
                inside.pop()

    threads = [threading.Thread(target=hold) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert most == [1] * 60


@pytest.mark.parametrize("kind", ["link", "directory"])
def test_something_else_in_its_place_is_an_error(tmp_path, kind):
    lock = tmp_path / ".api.sock.lock"
    if kind == "link":
        lock.symlink_to(tmp_path / "other")
    else:
        lock.mkdir()

    with pytest.raises(ListenError, match="cannot lock"), bind_lock(tmp_path / "api.sock"):
        pass

    assert not (tmp_path / "other").exists()
