"""Files survive killed writers, full disks and read-only directories."""

import errno
import fcntl
import os
import socket
import stat
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from alignup import atomic_files
from alignup.align.errors import FileError
from tests.effort import SEED, did, rounds
from tests.store import processes
from tests.store.faults import small_disk, without_rights


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_written_contents_are_read(tmp_path):
    path = tmp_path / "state"

    atomic_files.write(path, b"one")
    atomic_files.write(path, b"")
    atomic_files.write(path, b"three")

    assert atomic_files.read(path) == b"three"
    assert names(tmp_path) == ["state"]


def test_a_missing_file_is_none(tmp_path):
    assert atomic_files.read(tmp_path / "state") is None
    assert atomic_files.read(tmp_path / "nowhere" / "state") is None


def test_only_the_owner_has_access_to_a_new_file(tmp_path):
    atomic_files.write(tmp_path / "state", b"")
    atomic_files.write(tmp_path / "open", b"", mode=0o644)

    assert stat.S_IMODE((tmp_path / "state").stat().st_mode) == 0o600
    assert stat.S_IMODE((tmp_path / "open").stat().st_mode) == 0o644


def test_an_existing_file_keeps_its_mode_and_owner(tmp_path):
    path = tmp_path / "state"
    path.write_bytes(b"old")
    path.chmod(0o640)
    owner = (1234, 1235) if os.geteuid() == 0 else (os.geteuid(), os.getegid())
    os.chown(path, *owner)

    atomic_files.write(path, b"new", mode=0o600)

    known = path.stat()
    assert (stat.S_IMODE(known.st_mode), known.st_uid, known.st_gid) == (0o640, *owner)


def test_a_symbolic_link_is_replaced(tmp_path):
    target = tmp_path / "target"
    target.write_bytes(b"old")
    (tmp_path / "state").symlink_to(target)

    atomic_files.write(tmp_path / "state", b"new")

    assert target.read_bytes() == b"old"
    assert not (tmp_path / "state").is_symlink()


def test_a_symbolic_link_in_place_of_the_temporary_file_is_not_followed(tmp_path):
    target = tmp_path / "target"
    target.write_bytes(b"old")
    (tmp_path / ".state.new").symlink_to(target)

    atomic_files.write(tmp_path / "state", b"new")

    assert target.read_bytes() == b"old"
    assert names(tmp_path) == ["state", "target"]


@pytest.mark.soak
def test_killed_writers_leave_a_whole_file(tmp_path):
    path, kills = tmp_path / "state", rounds(3, soak=100)

    processes.run(processes.kill_file_writers, path, kills, SEED)

    did("file writers killed", kills)
    atomic_files.write(path, b"next")
    assert atomic_files.read(path) == b"next"
    assert names(tmp_path) == ["state"]


def test_a_writer_killed_before_any_system_call_leaves_the_old_file_or_the_new_one(tmp_path):
    killed = processes.run(processes.kill_file_writer_before_each_call, tmp_path / "state")

    assert killed > 5
    assert names(tmp_path) == ["state"]


def test_a_full_disk_leaves_the_old_file(tmp_path):
    path = tmp_path / "state"
    atomic_files.write(path, b"old")

    with small_disk(1000), pytest.raises(FileError) as caught:
        atomic_files.write(path, b"x" * 5000)

    assert str(caught.value) == f"cannot write {path}: File too large"
    assert atomic_files.read(path) == b"old"
    assert names(tmp_path) == ["state"]


def test_a_read_only_directory_leaves_the_old_file(tmp_path):
    atomic_files.write(tmp_path / "state", b"old")
    tmp_path.chmod(0o555)

    with without_rights(tmp_path), pytest.raises(FileError) as caught:
        atomic_files.write(Path("state"), b"new")

    tmp_path.chmod(0o755)
    assert str(caught.value) == "cannot write state: Permission denied"
    assert atomic_files.read(tmp_path / "state") == b"old"


def test_concurrent_writers_wait_for_each_other(tmp_path):
    path = tmp_path / "state"
    contents = [bytes([letter]) * 200_000 for letter in b"abcdefgh"]

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(lambda data: atomic_files.write(path, data), contents * 4))

    assert atomic_files.read(path) in contents
    assert names(tmp_path) == ["state"]


def test_a_lock_that_is_not_released_is_an_error(tmp_path, monkeypatch):
    """Any user who can read the directory can lock it."""
    monkeypatch.setattr(atomic_files, "LOCK_SECONDS", 0.02)
    other = os.open(tmp_path, os.O_RDONLY)
    fcntl.flock(other, fcntl.LOCK_EX)
    try:
        with pytest.raises(FileError, match=r"another process has locked the directory for 0\.02 seconds"):
            atomic_files.write(tmp_path / "state", b"new")
    finally:
        os.close(other)


@pytest.mark.parametrize(
    ("make", "why"),
    [
        pytest.param(lambda path: path.mkdir(), "it is not a regular file", id="a directory"),
        pytest.param(os.mkfifo, "it is not a regular file", id="a pipe without a writer"),
        pytest.param(
            lambda path: path.write_bytes(b"x" * 101),
            "it has more than 100 bytes",
            id="too large",
        ),
        pytest.param(lambda path: path.symlink_to(path), "Too many levels of symbolic links", id="a link to itself"),
    ],
)
def test_other_files_are_not_read(tmp_path, make, why):
    path = tmp_path / "state"
    make(path)

    with pytest.raises(FileError) as caught:
        atomic_files.read(path, limit=100)

    assert str(caught.value) == f"cannot read {path}: {why}"


def test_a_failing_disk_is_an_error():
    """Reading a process's memory at address 0 fails like a broken disk."""
    with pytest.raises(FileError) as caught:
        atomic_files.read(Path("/proc/self/mem"))

    assert str(caught.value) == "cannot read /proc/self/mem: Input/output error"


@pytest.mark.parametrize(
    ("path", "why"),
    [
        pytest.param("nowhere/state", "No such file or directory", id="no such directory"),
        pytest.param("file/state", "Not a directory", id="a file in its place"),
        pytest.param("folder", "Is a directory", id="a directory of that name"),
    ],
)
def test_a_path_that_cannot_be_written_is_an_error(tmp_path, path, why):
    (tmp_path / "file").write_bytes(b"")
    (tmp_path / "folder").mkdir()

    with pytest.raises(FileError) as caught:
        atomic_files.write(tmp_path / path, b"x")

    assert str(caught.value) == f"cannot write {tmp_path / path}: {why}"
    assert names(tmp_path) == ["file", "folder"]


def test_parent_directories_are_created(tmp_path):
    atomic_files.make_directory(tmp_path / "a" / "b")
    atomic_files.make_directory(tmp_path / "a" / "b")

    assert (tmp_path / "a" / "b").is_dir()
    with pytest.raises(FileError):
        atomic_files.make_directory(Path("/proc/nowhere"))


def test_nothing_is_written_that_is_too_large_to_be_read(tmp_path, monkeypatch):
    monkeypatch.setattr(atomic_files, "MAX_BYTES", 3)
    atomic_files.write(tmp_path / "state", b"old")

    with pytest.raises(FileError, match="4 bytes are more than the 3 that can be read again"):
        atomic_files.write(tmp_path / "state", b"news")

    assert atomic_files.read(tmp_path / "state") == b"old"


def test_a_private_directory_may_be_in_one_that_cannot_be_listed(tmp_path):
    """Its name is enough."""
    (tmp_path / "home" / "mine").mkdir(parents=True)
    tmp_path.chmod(0o755)
    (tmp_path / "home").chmod(0o711)

    with without_rights(tmp_path):
        status = atomic_files.make_private_directory(Path("home/mine"))

    assert stat.S_ISDIR(status.st_mode)
    assert stat.S_ISDIR(atomic_files.make_private_directory(Path()).st_mode)


def test_a_new_private_directory_is_closed_to_others(tmp_path):
    status = atomic_files.make_private_directory(tmp_path / "a" / "b")

    assert stat.S_IMODE(status.st_mode) == 0o700


def test_a_directory_that_may_not_be_read_is_used_without_being_synced(monkeypatch, tmp_path):
    def refuse(path, flags, *rest, **named):
        if not flags & os.O_PATH and path == tmp_path:
            raise PermissionError(errno.EACCES, "")
        return real(path, flags, *rest, **named)

    real = os.open
    monkeypatch.setattr(os, "open", refuse)
    atomic_files.make_directory(tmp_path / "a", mode=0o700)
    atomic_files.write(tmp_path / "file", b"new")

    assert (tmp_path / "a").is_dir()
    assert (tmp_path / "file").read_bytes() == b"new"


def test_an_input_is_a_regular_file_or_what_the_shell_opened(tmp_path):
    (tmp_path / "file").write_bytes(b"text")
    reading, writing = os.pipe()
    os.write(writing, b"piped")
    os.close(writing)

    with atomic_files.open_input(tmp_path / "file") as file:
        assert file.read() == b"text"
    with atomic_files.open_input(f"/dev/fd/{reading}") as file:
        assert file.read() == b"piped"
    os.close(reading)


def test_a_pipe_a_socket_or_a_device_is_no_input(short_path):
    os.mkfifo(short_path / "pipe")
    (short_path / "link").symlink_to("pipe")
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(short_path / "socket"))
        problems = []
        for path in (short_path / "pipe", short_path / "link", short_path / "socket", Path("/dev/zero")):
            with pytest.raises(OSError, match="give a regular file") as raised:
                atomic_files.open_input(path)
            problems.append(str(raised.value.strerror).partition(";")[0])

    assert problems == ["it is a named pipe", "it is a named pipe", "it is a socket", "it is a device"]
