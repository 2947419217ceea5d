"""Writers of checkpoints and histories that ``processes`` runs."""

import os
import random
from itertools import count
from pathlib import Path

import msgspec

from alignup.align.workload import QoS
from alignup.documents.checkpoints import CheckpointDocument, Fingerprint
from alignup.documents.decisions import DecidedPodDocument
from alignup.documents.ledgers.documents import CpuResidue, DeviceResidue, MemoryResidue, ResidueDocument
from alignup.store.checkpoint import CheckpointStore
from alignup.store.checkpoint_format import Checkpoint
from alignup.store.fingerprint import fingerprint_of
from alignup.store.history import History
from alignup.store.journal import JournalChange
from tests.store.processes import Report, kill_before_each_call, kill_writer, main


def numbered(number: int = 0, *, pods: int = 0, size: int = 400) -> Checkpoint:
    """Return a checkpoint that has its number in many places, so that a mixture of two is detected."""
    nothing = fingerprint_of({})
    facts = Fingerprint("", {str(index): f"{number} {'x' * size}" for index in range(pods)})
    residue = ResidueDocument(CpuResidue(None, ""), MemoryResidue(None, {}), DeviceResidue(None, {}), {})
    return Checkpoint(machine=nothing, settings=facts, residue=residue, plugins=[str(number)])


def numbers_in(document: CheckpointDocument) -> list[int]:
    """Return the number of each pod that :func:`numbered` was asked for."""
    return [int(fact.partition(" ")[0]) for fact in document.settings.facts.values()]


def changed(number: int) -> JournalChange:
    """Return the change that makes a numbered checkpoint one with this *number*."""
    return JournalChange(residue=numbered().residue, plugins=[str(number)])


def serial_in(directory: Path) -> int:
    """Return the serial of the checkpoint, after checking it and the previous one."""
    store = CheckpointStore(directory)
    loaded = store.load()
    assert loaded
    before = store.load(previous=True) if loaded.document.serial > 1 else loaded
    assert before
    assert before.document.serial >= loaded.document.serial - 1
    for one in (loaded.document, before.document):
        assert one.plugins == [str(one.serial)]
        assert numbers_in(one) == [one.serial] * (one.serial % 50)
    return loaded.document.serial


def kill_checkpoint_writers(directory: str, rounds: int, seed: int) -> None:
    """Kill processes that save over and over: the checkpoint is the last one reported, or the next one."""
    rng = random.Random(seed)

    def write(report: Report) -> None:
        store = CheckpointStore(Path(directory))
        loaded = store.load()
        for number in count(loaded.document.serial + 1 if loaded else 1):
            assert store.save(numbered(number, pods=number % 50)) == number
            report(number)

    for _ in range(rounds):
        last = kill_writer(write, after=rng.randrange(1, 20))
        assert serial_in(Path(directory)) in (last, last + 1)


def kill_checkpoint_writer_before_each_call(directory: str) -> int:
    """Return how many processes were killed while they saved."""
    serial = CheckpointStore(Path(directory)).save(numbered(1, pods=1))

    def save() -> None:
        CheckpointStore(Path(directory)).save(numbered(serial + 1, pods=(serial + 1) % 50))

    def check() -> None:
        nonlocal serial
        found = serial_in(Path(directory))
        assert found in (serial, serial + 1), (found, serial)
        serial = found

    return kill_before_each_call(save, check)


def kill_journal_writer_before_each_call(directory: str) -> int:
    """Return how many processes were killed while they saved a checkpoint and appended changes."""
    reported = os.memfd_create("acknowledged")
    os.pwrite(reported, bytes(8), 0)

    def found() -> int:
        loaded = CheckpointStore(Path(directory)).load()
        return int(loaded.document.plugins[0]) if loaded else 0

    def write() -> None:
        store, number = CheckpointStore(Path(directory)), found()
        store.save(numbered(number + 1))
        for more in (2, 3):
            store.append(changed(number + more))
            os.pwrite(reported, (number + more).to_bytes(8, "big"), 0)

    last = 0

    def check() -> None:
        nonlocal last
        before, last = max(last, int.from_bytes(os.pread(reported, 8, 0), "big")), found()
        assert before <= last <= before + 3

    return kill_before_each_call(write, check)


def decided(name="web", *, uid="", namespace="default", outcome="admitted", **more):
    """Return a short document in place of a decision."""
    pod = DecidedPodDocument(uid or f"uid-{name}", name, namespace, QoS.BURSTABLE)
    return msgspec.defstruct("Decided", ["pod", "outcome", *more])(pod, outcome, *more.values())


def kill_history_writers(directory: str, rounds: int, seed: int) -> None:
    """Kill processes that add decisions: those that they reported are there."""
    rng = random.Random(seed)

    def write(report: Report) -> None:
        history = History(Path(directory))
        while added := history.add(decided(), time=0).id:
            report(added)

    for _ in range(rounds):
        last = kill_writer(write, after=rng.randrange(1, 40))
        history = History(Path(directory))
        assert history.latest(limit=1)[0].id >= last
        assert history.open() == ""
        assert history.latest(limit=1)[0].id >= last
        history.close()


if __name__ == "__main__":
    main(globals())
