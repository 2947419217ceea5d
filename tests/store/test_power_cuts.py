"""What was acknowledged is there after a power cut or a kill, and what was not is there completely or not at all.

A power cut keeps what SQLite has synced: the database and its log as of the last commit. Of what is written later, any
part may be there. The index of the log (``-shm``) is in memory only.
"""

import random
import shutil
from contextlib import closing
from pathlib import Path

import pytest

from alignup.align.errors import StoreError, StoreProblem
from alignup.store.database import NAME
from alignup.store.state_store import StateStore
from tests.effort import SEED, did, rounds
from tests.store import processes, programs
from tests.store.programs import number_in, save_numbered

LOG, COUNTER = f"{NAME}-wal", f"{NAME}-acknowledged"


def copy(directory: Path, to: Path) -> Path:
    """Copy what is on disk to another machine, so to speak."""
    shutil.rmtree(to, ignore_errors=True)
    to.mkdir(mode=0o700)
    for name in (NAME, LOG):
        if (directory / name).exists():
            shutil.copy(directory / name, to / name)
            (to / name).chmod(0o600)
    return to


def test_every_acknowledged_change_is_on_disk(tmp_path):
    with closing(StateStore(tmp_path / "root")) as store:
        for number in range(1, 30):
            save_numbered(store, number)

            assert number_in(copy(tmp_path / "root", tmp_path / "copy")) == number


@pytest.mark.soak
def test_a_torn_log_loses_only_what_was_not_acknowledged(tmp_path):
    """The log is cut at any byte, or the rest of it is something else."""
    rng, tries, torn = random.Random(SEED), rounds(60, soak=3_000), 0
    root, there = tmp_path / "root", tmp_path / "copy"
    with closing(StateStore(root)) as store:
        for number in range(1, 6):
            save_numbered(store, number)
    with closing(StateStore(root)) as store:  # with a new log
        acknowledged = dict(enumerate(sizes(store, root), start=6))
        whole = (root / LOG).read_bytes()
        for _ in range(tries):
            length = rng.randrange(acknowledged[6], len(whole) + 1)
            copy(root, there)
            rest = rng.choice((b"", bytes(len(whole) - length), rng.randbytes(len(whole) - length)))
            (there / LOG).write_bytes(whole[:length] + rest)
            torn += length < len(whole)

            last = max(number for number, size in acknowledged.items() if size <= length)
            # What is left of the next change may happen to be all of it.
            assert number_in(there) in (last, last + 1)
    did("logs torn", torn)
    assert torn


def test_a_log_that_is_gone_or_cut_is_noticed(tmp_path):
    """Acknowledged changes are there, or the store is refused until the loss is accepted."""
    root, there = tmp_path / "root", tmp_path / "copy"
    refused = 0
    with closing(StateStore(root)) as store:
        for number in range(1, 4):
            save_numbered(store, number)
        store.prepare_for_more()
        backup = (root / NAME).read_bytes()
        for number in range(4, 12):
            save_numbered(store, number)
        whole = (root / LOG).read_bytes()
        for length in (None, 0, 31, 32, *range(100, len(whole) + 1, 4096 + 24)):
            copy(root, there)
            shutil.copy(root / COUNTER, there / COUNTER)
            (there / LOG).unlink() if length is None else (there / LOG).write_bytes(whole[:length])
            (there / NAME).write_bytes(backup)
            try:
                assert programs.number_of(StateStore(there).load()) == 11
            except StoreError as error:
                assert error.kind is StoreProblem.INCOMPLETE
                refused += 1
                store_there = StateStore(there)
                last = programs.number_of(store_there.load(accept_loss=True))
                assert last < 11
                missing = "1 acknowledged change" if last == 10 else f"{11 - last} acknowledged changes"
                assert f"it lacks {missing} after change {last}: " in error.message
                assert error.message in store_there.lost_changes()
                save_numbered(store_there, last + 1)
                store_there.close()
                assert number_in(there) == last + 1
    did("cut logs noticed", refused)
    assert refused > 10


def test_the_number_of_changes_that_a_damaged_log_may_have_lost_is_told(tmp_path):
    rng, root, there = random.Random(SEED), tmp_path / "root", tmp_path / "copy"
    for numbers in (range(1, 6), range(6, 11)):  # the second log is in the file of the first one
        with closing(StateStore(root)) as store:
            for number in numbers:
                save_numbered(store, number, size=2_000)
                store.prepare_for_more()
    with closing(StateStore(root)) as store:
        for number in range(11, 21):
            save_numbered(store, number)
        whole = (root / LOG).read_bytes()
        assert lost(copy(root, there)) == ""
        for _ in range(rounds(40, soak=2_000)):
            place, bit = rng.randrange(len(whole)), rng.randrange(8)
            copy(root, there)
            (there / LOG).write_bytes(whole[:place] + bytes([whole[place] ^ 1 << bit]) + whole[place + 1 :])

            missing = 20 - number_in(there)
            text = lost(there)

            assert bool(text) is bool(missing), (
                f"bit {bit} of byte {place}: {missing} are missing, and {text!r} is said"
            )
            # The damaged page may look like the last one of a change.
            assert not missing or f"{missing} change" in text or f"{missing + 1} change" in text


def test_changes_that_an_older_log_left_in_the_file_are_not_lost(tmp_path):
    """They follow the damaged page, and are in the database since the log was moved."""
    root, there = tmp_path / "root", tmp_path / "copy"
    with closing(StateStore(root)) as store:
        for number in range(1, 11):
            save_numbered(store, number)
        store.prepare_for_more()
        save_numbered(store, 11)
        whole = (root / LOG).read_bytes()
        copy(root, there)
    salts, frame = whole[16:24], 24 + 4096
    starts = range(32, len(whole), frame)
    last = max(start for start in starts if whole[start + 8 : start + 16] == salts)
    assert last < starts[-1]
    (there / LOG).write_bytes(whole[: last + 24] + bytes(4096) + whole[last + frame :])

    assert number_in(there) == 10
    assert "damaged: 1 change after change 10 may be lost" in lost(there)


def lost(root: Path) -> str:
    with closing(StateStore(root)) as store:
        store.load()
        return store.lost_changes()


def sizes(store: StateStore, root: Path) -> list[int]:
    """Save further changes, and return the size of the log after each."""
    log_sizes = []
    for number in range(6, 16):
        save_numbered(store, number)
        log_sizes.append((root / LOG).stat().st_size)
    return log_sizes


@pytest.mark.soak
def test_a_machine_that_continues_after_a_power_cut_loses_nothing_either(tmp_path):
    rng, number, tries = random.Random(SEED), 0, rounds(20, soak=500)
    root, there = tmp_path / "root", tmp_path / "copy"
    for _ in range(tries):
        with closing(StateStore(root)) as store:
            assert programs.number_of(store.load()) == number
            for _ in range(rng.randrange(1, 12)):
                number += 1
                save_numbered(store, number, size=rng.choice((1, 400, 3_000)))
                if rng.random() < 0.2:
                    store.prepare_for_more()
            copy(root, there)
        shutil.rmtree(root)
        there.rename(root)
    did("power cuts survived", tries)
    assert number_in(root) == number


@pytest.mark.soak
def test_killed_writers_leave_the_last_change_they_reported(tmp_path):
    kills = rounds(8, soak=300)

    processes.run(programs.kill_writers, tmp_path / "root", kills, SEED)

    did("writers killed", kills)


def test_a_log_that_cannot_be_read_is_an_error(tmp_path):
    with closing(StateStore(tmp_path / "root")) as store:
        save_numbered(store, 1)
    (tmp_path / "root" / LOG).write_bytes(b"short")
    assert lost(tmp_path / "root") == ""
    (tmp_path / "root" / LOG).unlink()
    (tmp_path / "root" / LOG).mkdir()

    with pytest.raises(StoreError, match="Is a directory"):
        store.lost_changes()
