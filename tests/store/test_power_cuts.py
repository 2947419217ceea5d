"""Checkpoints on a simulated disk survive power cuts, kills and failed syncs at every file operation."""

import random
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from itertools import count
from pathlib import Path

import pytest

from alignup.align.errors import CheckpointError
from alignup.store.checkpoint import CheckpointStore
from alignup.store.checkpoint_format import NAME
from tests.effort import SEED, attacked, did, rounds
from tests.store.programs import changed, numbered, numbers_in
from tests.store.simulated_disk import File, PowerCutError, SimulatedDisk

ROOT = Path("/var/lib/agent")
Save = Callable[[CheckpointStore, int], int]


def store_on(disk: SimulatedDisk) -> CheckpointStore:
    return CheckpointStore(ROOT, open_directory=disk.open)


def save(store: CheckpointStore, number: int) -> int:
    return store.save(numbered(number, pods=number % 3, size=30))


def save_or_append(store: CheckpointStore, number: int) -> int:
    """Append a change, and every few times or if that fails write a checkpoint, as the agent does."""
    if number % 4:
        with suppress(CheckpointError):
            return store.append(changed(number))
    return store.save(numbered(number))


def number_on(disk: SimulatedDisk, *, previous: bool = False) -> int:
    """The number of the checkpoint that a new process finds; 0 without one."""
    loaded = store_on(disk).load(previous=previous)
    if loaded is None:
        return 0
    (number,) = loaded.document.plugins
    assert loaded.serial < loaded.document.serial or numbers_in(loaded.document) in (
        [],
        [int(number)] * (int(number) % 3),
    )
    return int(number)


def left_by_power_cut(operation: int, *, saves: int, save: Save = save) -> tuple[SimulatedDisk, int, int]:
    """The disk after a power cut before an *operation*, the last acknowledged number, and the last attempted."""
    disk, saved, attempted = SimulatedDisk(), 0, 0
    disk.cut_before = operation
    with suppress(PowerCutError):
        store = store_on(disk)
        for number in range(1, saves + 1):
            attempted = number
            save(store, number)
            saved = number
    return disk, saved, attempted


def flaw_of(disk: SimulatedDisk, *, saved: int, attempted: int) -> str:
    """What is wrong with a disk after a crash; empty if the checkpoint is right and another can be saved."""
    try:
        found = number_on(disk)
        save(store_on(disk), 9)
        after = number_on(disk)
        before = number_on(disk, previous=True) if found else 0  # with its journal
    except CheckpointError as error:
        return str(error)
    if not saved <= found <= attempted:
        return f"{found} is found, but {saved} was acknowledged and {attempted} attempted"
    return "" if (after, before) == (9, found) else f"9 and {found} were saved, {after} and {before} are found"


@pytest.mark.soak
@pytest.mark.parametrize(("save", "saves"), [(save, rounds(2, soak=5)), (save_or_append, rounds(6, soak=12))])
def test_a_power_cut_at_any_operation_loses_no_acknowledged_checkpoint(save, saves):
    """This includes the first one, whose directory and its parents are new, and changes in the journal."""
    checked, findings = 0, []
    for operation in count():
        disk, saved, attempted = left_by_power_cut(operation, saves=saves, save=save)
        for left in (disk.after_kill(), *disk.all_after_power_cut()):
            checked += 1
            if flaw := flaw_of(left, saved=saved, attempted=attempted):
                findings.append(f"cut before operation {operation}: {flaw}")
        if saved == saves:
            break

    assert checked > 200
    attacked("disks after a power cut at each operation", checked, findings)


def test_a_new_directory_is_durable_with_its_parents():
    disk = SimulatedDisk()

    store_on(disk)

    for left in disk.all_after_power_cut():
        assert left.open(ROOT).status(NAME) is None


def test_a_directory_of_a_killed_process_is_durable_with_the_first_checkpoint():
    disk = SimulatedDisk()
    store_on(disk)
    folder = disk.open(ROOT.parent).folder
    made = folder.durable.pop(ROOT.name)
    folder.changes.append({ROOT.name: made})  # the process was killed before it synced the parent

    save(store_on(disk), 1)

    assert {number_on(left) for left in disk.all_after_power_cut()} == {1}


def test_a_damaged_checkpoint_is_set_aside_without_losing_it():
    disk = SimulatedDisk()
    for number in (1, 2):
        save(store_on(disk), number)
    folder = disk.open(ROOT).folder
    bad = folder.entries[NAME]
    assert isinstance(bad, File)
    bad.data = bad.durable = b"damaged"
    for operation in count():
        tried = disk.after_kill()
        store = store_on(tried)
        store.load(previous=True)
        tried.cut_before = tried.operations + operation
        try:
            save(store, 3)
        except PowerCutError:
            pass
        else:
            break
        for left in tried.all_after_power_cut():
            entries = left.open(ROOT).folder.entries
            assert b"damaged" in {one.data for one in entries.values() if isinstance(one, File)}
            assert number_on(left, previous=True) in (1, 3)
    assert operation > 8


@pytest.mark.parametrize("syncs", [1, 2, 50])
def test_a_failed_sync_of_the_directory_leaves_the_old_checkpoint(syncs):
    """A second failure leaves it open which one survives a power cut: nothing is saved before that is settled."""
    disk = SimulatedDisk()
    store = store_on(disk)
    for number in (1, 2):
        save(store, number)
    left = iter([True] * syncs)
    disk.fails = lambda name: name == "sync" and next(left, False)

    with pytest.raises(CheckpointError, match="the checkpoint cannot be written: Input/output error") as caught:
        save(store, 3)

    settled = "the previous one is still valid" in caught.value.advice
    assert settled == (syncs == 1)
    assert settled or "a power failure may leave the change in place or not" in caught.value.advice
    assert number_on(disk.after_kill()) == 2
    assert {number_on(one) for one in disk.all_after_power_cut()} <= ({2} if settled else {2, 3})
    disk.fails = lambda _: False
    operations = disk.operations
    assert save(store, 4) == 3
    assert number_on(disk.after_kill(), previous=True) == 2
    assert (disk.operations - operations > 11) == (syncs > 1), "the old one is written again first"
    assert {number_on(one) for one in disk.all_after_power_cut()} == {4}


def test_a_failed_sync_of_the_first_checkpoint_leaves_none():
    disk = SimulatedDisk()
    store = store_on(disk)
    left = iter([True, True])
    disk.fails = lambda name: name == "sync" and next(left, False)

    for _ in range(2):
        with pytest.raises(CheckpointError, match="cannot be written"):
            save(store, 1)
        assert number_on(disk.after_kill()) == 0
        disk.fails = lambda name: name == "write"
    disk.fails = lambda _: False
    assert save(store, 2) == 1
    assert {number_on(one) for one in disk.all_after_power_cut()} == {2}


@pytest.mark.parametrize("damaged", [False, True])
def test_an_unsettled_checkpoint_that_is_gone_is_an_error(damaged):
    disk = SimulatedDisk()
    store = store_on(disk)
    save(store, 1)
    disk.fails = lambda name: name == "sync"
    with pytest.raises(CheckpointError):
        save(store, 2)
    disk.fails = lambda _: False
    directory = disk.open(ROOT)
    for name in (NAME, f".{NAME}.kept"):
        directory.remove(name)
        if damaged:
            directory.folder.entries[name] = File(b"{}")

    with pytest.raises(CheckpointError, match="the last valid checkpoint is gone"):
        save(store, 3)


@pytest.mark.parametrize(
    ("operations", "usable", "settled"),
    [
        pytest.param({"write"}, True, True, id="a full disk"),
        pytest.param({"sync data"}, False, True, id="a failed sync"),
        pytest.param({"write", "truncate"}, False, False, id="nothing works"),
        pytest.param({"sync data", "truncate"}, False, False, id="a failed sync, and nothing can be cut"),
        pytest.param({"sync data", "sync file"}, False, False, id="all syncs fail"),
    ],
)
def test_a_failed_append_leaves_the_last_change(operations, usable, settled):
    """After a failed sync, nothing is appended before a checkpoint is written: the end of the journal is unknown."""
    disk = SimulatedDisk()
    store = store_on(disk)
    save(store, 1)
    for number in (2, 3):
        store.append(changed(number))
    disk.fails = operations.__contains__

    with pytest.raises(CheckpointError, match="Input/output error") as caught:
        store.append(changed(4))

    disk.fails = lambda _: False
    assert ("the previous one is still valid" in caught.value.advice) == settled
    assert {number_on(one) for one in disk.all_after_power_cut()} <= ({3} if settled else {3, 4})
    assert "truncate" in operations or number_on(disk.after_kill()) == 3
    if usable:
        assert store.append(changed(5)) == 4
    else:
        with pytest.raises(CheckpointError, match="a checkpoint must be written first"):
            store.append(changed(5))
        save(store, 5)
    assert {number_on(one) for one in disk.all_after_power_cut()} == {5}


@pytest.mark.parametrize("failed", ["open", "rename", "create", "write", "sync file", "sync"])
def test_a_journal_that_cannot_be_created_leaves_the_checkpoint(failed):
    """The journal of the previous checkpoint is kept."""
    disk = SimulatedDisk()
    store = store_on(disk)
    save(store, 1)
    store.append(changed(2))
    save(store, 3)
    left = iter([True])
    disk.fails = lambda name: name == failed and next(left, False)

    if failed == "open":
        store.append(changed(4))
        with pytest.raises(CheckpointError):
            store.append(changed(5))
    else:
        with pytest.raises(CheckpointError, match="the previous one is still valid"):
            store.append(changed(4))

    kept = 4 if failed == "open" else 3
    assert {number_on(one) for one in disk.all_after_power_cut()} == {kept}
    assert {number_on(one, previous=True) for one in disk.all_after_power_cut()} == {2}
    with pytest.raises(CheckpointError, match="a checkpoint must be written first"):
        store.append(changed(5))
    save(store, 5)
    store.append(changed(6))
    assert {number_on(one) for one in disk.all_after_power_cut()} == {6}


def fails_sometimes(rng: random.Random | None, _: str) -> bool:
    return rng is not None and rng.random() < 0.2


@pytest.mark.soak
@pytest.mark.parametrize("save", [save, save_or_append])
def test_random_failures_and_power_cuts_lose_nothing(save):
    """A failed save has no effect, except that a power cut may keep it while the error says so."""
    tries, crashes, failures, findings = rounds(100, soak=20_000), 0, 0, []
    rng = random.Random(SEED)
    for _ in range(tries):
        disk = SimulatedDisk(rng=rng)
        store, possible = store_on(disk), {0}
        for number in range(1, rng.randrange(2, 12)):
            broken, crashing = rng.random() < 0.4, rng.random() < 0.3
            disk.fails = partial(fails_sometimes, rng if broken else None)
            disk.cut_before = disk.operations + rng.randrange(1, 20) if crashing else None
            try:
                save(store, number)
                possible = {number}
            except CheckpointError as error:
                failures += 1
                possible |= {number} if "a power failure may leave" in error.advice else set()
            except PowerCutError:
                possible.add(number)
            if crashing:
                crashes += 1
                disk = disk.after_power_cut(rng) if rng.random() < 0.7 else disk.after_kill()
                disk.rng, store = rng, store_on(disk)
                if (found := number_on(disk)) not in possible:
                    findings.append(f"found {found} instead of {possible}")
                possible = {found}
    did("saves that failed", failures)
    attacked("random crashes between failed saves", crashes, findings)
