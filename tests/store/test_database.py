"""A database is used only if it is private, whole and ours; whatever else is found is refused, and kept."""

import errno
import os
import random
import sqlite3
import stat
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from alignup.align.errors import StoreError, StoreProblem
from alignup.store import database
from alignup.store.database import MAX_SET_ASIDE, NAME
from alignup.store.state_store import StateStore
from tests.effort import SEED, did, rounds
from tests.store.faults import private_directory, small_disk
from tests.store.programs import decided, save_numbered, state

ROOT = os.geteuid() == 0


@pytest.fixture
def directory(tmp_path):
    """A directory with a closed database that has two pods."""
    with closing(StateStore(tmp_path / "root")) as store:
        store.save(state(*"ab"))
    return tmp_path / "root"


def load(directory: Path) -> Any:
    """Return the state that is expected to be there."""
    return StateStore(directory).load()


def load_error(directory):
    with pytest.raises(StoreError) as caught:
        load(directory)
    return caught.value


def save_error(store, durable_state):
    with pytest.raises(StoreError) as caught:
        store.save(durable_state)
    return caught.value


def files(directory):
    return {path.name: path.read_bytes() for path in directory.iterdir()}


def execute(path, *statements):
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        for statement in statements:
            connection.execute(statement)


def foreign(path):
    path.unlink()
    execute(path, "CREATE TABLE songs (title TEXT)")
    path.chmod(0o600)


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        pytest.param(lambda path: path.write_text("not a database, but long\n" * 99), "not a database", id="text"),
        pytest.param(lambda path: path.write_bytes(b""), "it is empty", id="an empty file"),
        pytest.param(foreign, "it belongs to another program", id="of another program"),
        pytest.param(
            lambda path: execute(path, "PRAGMA user_version = 99"),
            "it has version 99, but this release reads version 1",
            id="of a later version",
        ),
        pytest.param(lambda path: execute(path, "DROP TABLE pods"), "no such table", id="without a table"),
        pytest.param(lambda path: path.write_bytes(path.read_bytes()[: -2 * 4096]), "it is corrupt: ", id="cut short"),
    ],
)
def test_a_corrupt_or_foreign_database_is_refused_and_can_be_set_aside(directory, spoil, message):
    spoil(directory / NAME)
    before = files(directory)
    store = StateStore(directory)

    error = load_error(directory)
    refused = save_error(store, state())

    assert message in error.message
    assert (error.kind, error.where) == (StoreProblem.UNUSABLE, str(directory / NAME))
    assert f"out of {directory} to start empty: what its pods hold is then free" in error.advice
    assert "--" not in str(error)
    assert refused.message == error.message
    assert {name: data for name, data in files(directory).items() if name in before} == before
    assert store.set_aside()[0] == f"{NAME}.aside-1"
    assert files(directory)[f"{NAME}.aside-1"] == before[NAME]
    assert not (directory / NAME).exists()
    store.save(state("c"))
    store.close()
    assert [held.entry.pod.uid for held in load(directory).pods] == ["c"]


def test_files_set_aside_do_not_overwrite_each_other(directory):
    (directory / f"{NAME}.aside-1-wal").write_bytes(b"earlier")
    (directory / f"{NAME}-wal").write_bytes(b"log")
    before = (directory / NAME).read_bytes()
    store = StateStore(directory)

    assert store.set_aside() == (f"{NAME}.aside-2", f"{NAME}.aside-2-wal")
    assert files(directory) == {
        f"{NAME}.aside-1-wal": b"earlier",
        f"{NAME}.aside-2": before,
        f"{NAME}.aside-2-wal": b"log",
    }
    assert store.set_aside() == ()


def test_the_number_of_files_set_aside_is_limited(directory):
    for number in range(MAX_SET_ASIDE):
        (directory / f"{NAME}.aside-{number + 1}").touch()

    with pytest.raises(StoreError, match="remove them"):
        StateStore(directory).set_aside()

    assert (directory / NAME).exists()


def test_a_log_without_its_database_is_refused(directory):
    """SQLite would delete it."""
    (directory / NAME).unlink()
    (directory / f"{NAME}-wal").write_bytes(b"changes")
    (directory / f"{NAME}-wal").chmod(0o600)

    assert load_error(directory).message == "the database is missing, but its write-ahead log exists"
    assert StateStore(directory).set_aside() == (f"{NAME}.aside-1-wal",)


def test_a_database_that_is_gone_is_not_started_anew(directory):
    (directory / NAME).unlink()

    error = load_error(directory)

    assert (error.kind, error.message) == (
        StoreProblem.UNUSABLE,
        "the database is missing, but change 1 was acknowledged",
    )
    assert StateStore(directory).set_aside() == ()
    assert load(directory) is None


@pytest.mark.parametrize("contents", [b"", b"\0" * 21, b"7", b"99999999999999999999"])
def test_a_counter_that_a_power_failure_left_is_ignored(directory, contents):
    (directory / f"{NAME}-acknowledged").write_bytes(contents)

    assert len(load(directory).pods) == 2


def link_to_file(path):
    path.rename(path.with_name("target"))
    path.symlink_to(path.with_name("target"))


def pipe(path):
    path.unlink()
    os.mkfifo(path, 0o600)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        pytest.param(link_to_file, "it is not a regular file", id="a link"),
        pytest.param(pipe, "it is not a regular file", id="a pipe"),
        pytest.param(lambda path: path.chmod(0o666), "other users can write to it (mode 666)", id="open to others"),
        pytest.param(
            lambda path: os.chown(path, 1234, 1234),
            f"it belongs to user 1234, but this process runs as user {os.geteuid()}",
            id="of another user",
            marks=pytest.mark.skipif(not ROOT, reason="only root can give files away"),
        ),
    ],
)
def test_a_file_that_others_can_change_is_not_trusted(directory, change, message):
    change(directory / NAME)

    error = load_error(directory)

    assert message in error.message
    assert error.kind is StoreProblem.UNTRUSTED
    assert "belongs to its user alone" in error.advice


def test_a_directory_that_others_can_change_is_not_trusted(tmp_path):
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "real")
    (tmp_path / "file").touch()
    (tmp_path / "open").mkdir()
    (tmp_path / "open").chmod(0o777)
    expected = {
        "link": "it is not a directory",
        "file": "it is not a directory",
        "open": "other users can write to it (mode 777)",
        "file/below": "cannot be created or read: ",
    }

    for name, message in expected.items():
        with pytest.raises(StoreError) as caught:
            StateStore(tmp_path / name)
        assert caught.value.message.startswith(message)
        assert caught.value.where == str(tmp_path / name)


def test_a_directory_that_others_can_read_is_closed(tmp_path):
    """systemd creates them like this."""
    tmp_path.chmod(0o755)

    StateStore(tmp_path)

    assert stat.S_IMODE(tmp_path.stat().st_mode) == 0o700


def test_only_the_owner_has_access(tmp_path):
    with closing(StateStore(tmp_path / "root")) as store:
        store.save(state())
        modes = {path.name: stat.S_IMODE(path.stat().st_mode) for path in (tmp_path / "root").iterdir()}

    assert modes == {NAME: 0o600, f"{NAME}-acknowledged": 0o600, f"{NAME}-shm": 0o600, f"{NAME}-wal": 0o600}
    assert stat.S_IMODE((tmp_path / "root").stat().st_mode) == 0o700


def test_what_a_killed_creator_left_is_replaced(tmp_path):
    for tail in ("", "-journal"):
        (tmp_path / f".{NAME}.new{tail}").write_bytes(b"half a database")

    with closing(StateStore(tmp_path)) as store:
        store.save(state(number=3))

        assert load(store.path.parent).plugins == ["3"]
        assert not list(tmp_path.glob(".*"))


@pytest.mark.soak
def test_every_flipped_bit_is_detected_or_changes_nothing(directory):
    """SQLite alone would not detect those in documents."""
    path, whole, rng = directory / NAME, (directory / NAME).read_bytes(), random.Random(SEED)
    expected = load(directory)
    used = [place for place, byte in enumerate(whole) if byte]
    tries, detected = rounds(150, soak=20_000), 0
    for _ in range(tries):
        place = rng.choice(used)
        with path.open("r+b") as file:
            file.seek(place)
            file.write(bytes([whole[place] ^ 1 << rng.randrange(8)]))
        try:
            assert load(directory) == expected
        except StoreError as error:
            assert error.kind in {StoreProblem.UNUSABLE, StoreProblem.UNWRITABLE}
            detected += 1
        for extra in directory.glob(f"{NAME}-*"):
            extra.unlink()
        path.write_bytes(whole)
    did("bits flipped", tries)
    assert detected > tries // 4


def test_every_truncation_is_detected(directory):
    path, whole = directory / NAME, (directory / NAME).read_bytes()
    for length in range(0, len(whole) - database._PAGE, 1000):  # noqa: SLF001 - free pages may be missing at the end
        path.write_bytes(whole[:length])
        assert load_error(directory).kind is StoreProblem.UNUSABLE
    path.write_bytes(whole)
    assert len(load(directory).pods) == 2


def test_a_removed_database_is_written_anew_with_the_whole_state(directory):
    with closing(StateStore(directory)) as store:
        assert store.save(state(*"abc")).replaced == ""
        for name in (NAME, f"{NAME}-wal"):
            (directory / name).unlink()
            assert f"{name} was removed; " in store.save(state(*"bc")).replaced

    assert [held.entry.pod.uid for held in load(directory).pods] == ["b", "c"]


def test_nothing_is_acknowledged_while_the_files_are_elsewhere(directory, tmp_path):
    with closing(StateStore(directory)) as store:
        store.save(state(number=1))
        directory.rename(tmp_path / "away")
        directory.mkdir()
        (directory / NAME).mkdir()
        error = save_error(store, state(number=2))
        (directory / NAME).rmdir()
        directory.rmdir()
        (tmp_path / "away").rename(directory)
        assert (error.kind, error.message) == (
            StoreProblem.UNWRITABLE,
            f"the state cannot be written: {NAME} was replaced by another file",
        )
        assert load(directory).plugins == ["1"]
        store.save(state(number=3))

    assert load(directory).plugins == ["3"]


def test_a_directory_that_is_away_for_a_while_is_used_again(directory, tmp_path):
    """The store tries to set the files aside meanwhile, as if they were gone for good."""
    with closing(StateStore(directory)) as store:
        store.save(state(*"abc", number=1))
        directory.rename(tmp_path / "away")
        directory.touch()
        assert save_error(store, state(number=2)).kind is StoreProblem.UNWRITABLE
        directory.unlink()
        assert "cannot be set aside" in save_error(store, state(number=2)).message
        with pytest.raises(StoreError, match="cannot be set aside"):
            store.set_aside()
        assert save_error(store, state(number=2)).kind is StoreProblem.UNWRITABLE
        (tmp_path / "away").rename(directory)
        store.save(state(*"bcd", number=3))

    assert [held.entry.pod.uid for held in load(directory).pods] == ["b", "c", "d"]


def test_a_change_that_fails_halfway_changes_nothing(directory):
    with closing(StateStore(directory)) as store:
        store.load()
        execute(directory / NAME, "INSERT INTO pods VALUES (77, 'c', 'admitted', '{}')")
        error = save_error(store, state(*"abdc", number=5))
        execute(directory / NAME, "DELETE FROM pods WHERE number = 77")

        assert (error.kind, error.message) == (
            StoreProblem.UNWRITABLE,
            "the state cannot be written: UNIQUE constraint failed: pods.uid",
        )
        assert load(directory).plugins == ["0"]
        store.save(state(*"abd", number=5))
        assert [held.entry.pod.uid for held in load(directory).pods] == ["a", "b", "d"]


def test_an_error_of_the_caller_undoes_the_change(directory):
    def write(connection: sqlite3.Connection) -> None:
        connection.execute("DELETE FROM pods")
        raise KeyError("pod")

    with closing(StateStore(directory)) as store:
        store.load()
        with pytest.raises(KeyError):
            store._database.transact(write)  # noqa: SLF001 - no caller fails between its statements

    assert load(directory).pods


def test_a_disk_that_is_too_small_for_a_database_is_an_error(tmp_path):
    with closing(StateStore(tmp_path)) as store:
        with small_disk(5_000):
            assert save_error(store, state()).kind is StoreProblem.UNWRITABLE
        store.save(state(number=2))
        assert load(tmp_path).plugins == ["2"]


class WithoutLog(sqlite3.Connection):
    """A connection to a database on a file system without shared memory."""

    def execute(self, statement, *arguments):
        return super().execute("SELECT 'delete'" if "journal_mode" in statement else statement, *arguments)


class WithoutCount(sqlite3.Connection):
    """A connection on which free pages cannot be counted."""

    def execute(self, statement, *arguments):
        if statement == "PRAGMA freelist_count":
            raise sqlite3.OperationalError("disk I/O error")
        return super().execute(statement, *arguments)


def test_a_file_system_without_shared_memory_is_an_error(tmp_path, monkeypatch):
    with closing(StateStore(tmp_path)) as store:
        monkeypatch.setattr(sqlite3, "connect", partial(sqlite3.connect, factory=WithoutLog))

        error = save_error(store, state())

    assert error.message == "the state cannot be written: the file system does not support SQLite's write-ahead log"


def test_an_unreadable_list_of_free_pages_is_an_error(directory, monkeypatch):
    with closing(StateStore(directory)) as store:
        monkeypatch.setattr(sqlite3, "connect", partial(sqlite3.connect, factory=WithoutCount))
        store.save(state(*"ab"))

        error = save_error(store, state(*"abc"))

    assert error.message == "the state cannot be written: disk I/O error"


def test_a_file_that_is_larger_than_its_pages_is_not_cut(directory):
    with closing(StateStore(directory)) as store:
        store.save(state(*"ab"))
        os.truncate(directory / NAME, 16 << 20)
        store.save(state(*"abc"))

        assert [held.entry.pod.uid for held in load(directory).pods] == ["a", "b", "c"]


def test_a_file_that_disappears_while_it_is_checked_is_an_error(tmp_path, monkeypatch):
    monkeypatch.setattr(os.path, "lexists", lambda path: path.name in {NAME, tmp_path.name})

    assert load_error(tmp_path).message == "No such file or directory"


def test_on_a_full_disk_pods_are_removed_but_not_added(tmp_path):
    """A limit on the size of files fails like a full disk."""
    with closing(StateStore(tmp_path)) as store:
        admitted: dict[str, str] = {}
        with small_disk(3 << 20):
            store.save(state())
            for number in range(2_000):
                new = admitted | {f"p{number}": "x" * 4_000}
                try:
                    store.save(state(*new, number=number, texts=new), [(decided(f"p{number}"), 0.0)])
                except StoreError as caught:
                    error = caught
                    break
                admitted = new
            assert (error.kind, error.message) == (
                StoreProblem.UNWRITABLE,
                f"the state cannot be written: {os.strerror(errno.EFBIG)}",
            )
            assert [held.entry.pod.uid for held in load(tmp_path).pods] == list(admitted)
            assert len(admitted) > 100
            for uid in list(admitted)[::2]:
                del admitted[uid]
                store.save(state(*admitted, texts=admitted))
            assert [held.entry.pod.uid for held in load(tmp_path).pods] == list(admitted)
            admitted["again"] = "x" * 4_000
            store.save(state(*admitted, texts=admitted))
    assert [held.entry.pod.uid for held in load(tmp_path).pods] == list(admitted)


def test_a_disk_without_space_takes_no_new_pods(tmp_path, monkeypatch):
    disk = os.statvfs(tmp_path)
    with closing(StateStore(tmp_path)) as store:
        store.save(state("a"))
        monkeypatch.setattr(os, "statvfs", lambda _: os.statvfs_result((*disk[:4], 0, *disk[5:])))

        error = save_error(store, state(*"ab"))
        problem = store.save(state(), [(decided(), 0.0)]).history_problem
        store.prepare_for_more()

        assert error.message == f"the state cannot be written: {os.strerror(errno.ENOSPC)}"
        assert problem.startswith("cannot write the history: ")
        assert load(store.path.parent).pods == []
        monkeypatch.undo()
        store.save(state("b"))
        assert len(load(store.path.parent).pods) == 1


def test_a_read_only_directory_leaves_the_last_state():
    with private_directory() as directory, closing(StateStore(directory)) as store:
        directory.chmod(0o500)
        for _ in range(2):
            error = save_error(store, state("a", number=1))
            assert error.kind is StoreProblem.UNWRITABLE
        directory.chmod(0o700)
        save_numbered(store, 1)
        assert load(store.path.parent).plugins == ["1"]


def test_a_database_that_another_program_writes_is_not_refused_as_corrupt(directory):
    with (
        closing(StateStore(directory, lock_seconds=0)) as store,
        closing(sqlite3.connect(directory / NAME, isolation_level=None)) as other,
    ):
        store.load()
        other.execute("BEGIN IMMEDIATE")
        error = save_error(store, state(number=2))
        other.execute("ROLLBACK")
        store.save(state(number=2))

        assert (error.kind, error.message) == (
            StoreProblem.UNWRITABLE,
            "the state cannot be written: database is locked",
        )
        assert load(store.path.parent).plugins == ["2"]


def test_a_locked_database_cannot_be_opened(directory):
    with closing(sqlite3.connect(directory / NAME, isolation_level=None)) as other:
        other.execute("PRAGMA locking_mode = EXCLUSIVE")
        other.execute("BEGIN EXCLUSIVE")

        with pytest.raises(StoreError) as caught:
            StateStore(directory, lock_seconds=0).load()

    assert (caught.value.kind, caught.value.message) == (
        StoreProblem.UNWRITABLE,
        "it cannot be opened: database is locked",
    )


def test_a_database_that_is_damaged_after_it_was_loaded_is_set_aside_and_written_anew(tmp_path):
    with closing(StateStore(tmp_path)) as store:
        pods = {f"p{number}": "x" * 3_000 for number in range(200)}
        store.save(state(*pods, texts=pods))
        store.close()
        store.load()
        with (tmp_path / NAME).open("r+b") as file:
            file.seek(4096)
            file.write(b"\xa5" * ((tmp_path / NAME).stat().st_size - 4096))

        del pods["p7"]
        result = store.save(state(*pods, number=2, texts=pods))

        assert "it is corrupt: " in result.replaced
        assert f"{NAME}.aside-1 was set aside" in result.replaced
        assert len(load(store.path.parent).pods) == 199


def test_an_idle_store_prepares_for_more(directory):
    with closing(StateStore(directory)) as store:
        pods = {f"p{number}": "x" * 20_000 for number in range(20)}
        store.save(state(*pods, texts=pods))
        size = (directory / NAME).stat().st_size

        store.prepare_for_more()

        assert (directory / NAME).stat().st_size >= size + database.FREE_PAGES * 4096
    closed = StateStore(directory)
    closed.load()
    closed._database.move_log()  # noqa: SLF001 - nothing is open
    assert Path(directory / NAME).exists()
