"""A kubelet's directory: read as it is, and written only after a backup."""

from datetime import UTC, datetime
from pathlib import Path

import pytest

from alignup.align.errors import FileError
from alignup.doctor.diagnosis import read_state_files, write_state_files
from alignup.doctor.state_check import FileRepair
from alignup.kubernetes.kubelet_files import state_files
from alignup.kubernetes.kubelet_files.state_files import DEVICE_PATH
from tests.store.faults import small_disk, without_rights

NOW = datetime(2026, 3, 4, 5, 6, 7, tzinfo=UTC)
CPU, MEM = state_files.CPU_FILE, state_files.MEMORY_FILE


@pytest.fixture
def directory(tmp_path):
    (tmp_path / "device-plugins").mkdir()
    (tmp_path / CPU).write_bytes(b"cpus")
    (tmp_path / DEVICE_PATH).write_bytes(b"devices")
    return tmp_path


def names(directory):
    return sorted(str(path.relative_to(directory)) for path in directory.rglob("*") if path.is_file())


def test_files_are_read_and_leftovers_are_listed(directory):
    (directory / f".{CPU}12345").touch()
    (directory / MEM).mkdir()

    files = read_state_files(directory)

    assert files.texts == {CPU: b"cpus", DEVICE_PATH: b"devices"}
    assert files.unread == {MEM: f"cannot read {directory / MEM}: it is not a regular file"}
    assert files.leftovers == (f".{CPU}12345",)


def test_a_copy_may_have_all_files_in_one_directory(tmp_path):
    (tmp_path / state_files.DEVICE_FILE).write_bytes(b"devices")

    files = read_state_files(tmp_path)
    write_state_files(tmp_path, [FileRepair(DEVICE_PATH, b"devices", b"new", ())], now=NOW)

    assert files.texts == {DEVICE_PATH: b"devices"}
    assert (tmp_path / state_files.DEVICE_FILE).read_bytes() == b"new"


def test_a_missing_directory_is_an_error(tmp_path):
    with pytest.raises(FileError, match="no such directory"):
        read_state_files(tmp_path / "none")


def test_every_written_file_has_a_backup(directory):
    backups = write_state_files(
        directory, [FileRepair(CPU, b"cpus", b"new", ()), FileRepair(DEVICE_PATH, b"devices", b"n", ())], now=NOW
    )

    assert backups == {
        CPU: directory / f"{CPU}.backup-20260304-050607",
        DEVICE_PATH: directory / f"{DEVICE_PATH}.backup-20260304-050607",
    }
    assert [path.read_bytes() for path in backups.values()] == [b"cpus", b"devices"]
    assert (directory / CPU).read_bytes() == b"new"
    assert names(directory) == sorted(
        [CPU, DEVICE_PATH, f"{CPU}.backup-20260304-050607", f"{DEVICE_PATH}.backup-20260304-050607"]
    )


def test_a_backup_is_never_overwritten(directory):
    write_state_files(directory, [FileRepair(CPU, b"cpus", b"once", ())], now=NOW)
    backups = write_state_files(directory, [FileRepair(CPU, b"once", b"twice", ())], now=NOW)

    assert backups[CPU].name == f"{CPU}.backup-20260304-050607-1"
    assert (directory / f"{CPU}.backup-20260304-050607").read_bytes() == b"cpus"


def test_nothing_is_written_if_a_file_changed(directory):
    with pytest.raises(FileError, match="changed during the check; nothing was written"):
        write_state_files(
            directory, [FileRepair(DEVICE_PATH, b"devices", b"n", ()), FileRepair(CPU, b"other", b"new", ())], now=NOW
        )

    assert names(directory) == sorted([CPU, DEVICE_PATH])


@pytest.mark.parametrize(
    ("mode", "fault", "reason"),
    [
        pytest.param(0o755, lambda _: small_disk(2), "File too large", id="a full disk"),
        pytest.param(0o555, without_rights, "Permission denied", id="another user's directory"),
    ],
)
def test_nothing_is_written_without_a_backup(directory, monkeypatch, mode, fault, reason):
    (directory / CPU).chmod(0o444)
    directory.chmod(mode)
    monkeypatch.chdir(directory)

    with fault(directory), pytest.raises(FileError) as caught:
        write_state_files(Path(), [FileRepair(CPU, b"cpus", b"new", ())], now=NOW)

    directory.chmod(0o755)
    assert str(caught.value) == f"cannot write {CPU}.backup-20260304-050607: {reason}; nothing was changed"
    assert (directory / CPU).read_bytes() == b"cpus"
    assert names(directory) == sorted([CPU, DEVICE_PATH])
