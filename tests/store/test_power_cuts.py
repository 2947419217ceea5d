"""What was acknowledged is there after a power cut or a kill, and what was not is there completely or not at all.

A power cut keeps what SQLite has synced: the database and its log as of the last commit. Of what is written later, any
part may be there. The index of the log (``-shm``) is in memory only.
"""

import random
import shutil
from contextlib import closing
from pathlib import Path

import pytest

from alignup.store.database import NAME
from alignup.store.state_store import StateStore
from tests.effort import SEED, did, rounds
from tests.store import processes, programs
from tests.store.programs import number_in, numbered

LOG = f"{NAME}-wal"


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
            store.save(numbered(number))

            assert number_in(copy(tmp_path / "root", tmp_path / "copy")) == number


@pytest.mark.soak
def test_a_torn_log_loses_only_what_was_not_acknowledged(tmp_path):
    """The log is cut at any byte, or the rest of it is something else."""
    rng, tries, torn = random.Random(SEED), rounds(60, soak=3_000), 0
    root, there = tmp_path / "root", tmp_path / "copy"
    with closing(StateStore(root)) as store:
        for number in range(1, 6):
            store.save(numbered(number))
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


def sizes(store: StateStore, root: Path) -> list[int]:
    """Save further changes, and return the size of the log after each."""
    log_sizes = []
    for number in range(6, 16):
        store.save(numbered(number))
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
                store.save(numbered(number, size=rng.choice((1, 400, 3_000))))
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
