"""What is appended to the journal leads to the same checkpoint as writing the whole state."""

import errno
import random
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import pytest

from alignup.agent import checkpointer
from alignup.agent.checkpointer import Checkpointer
from alignup.agent.queue import AdmissionQueue
from alignup.agent.state import AgentState
from alignup.agent.transaction import Transaction
from alignup.align.errors import AlignError, CheckpointError
from alignup.align.machine import Device
from alignup.documents.api import BusyError, NotReadyError
from alignup.store import journal
from alignup.store.checkpoint import CheckpointStore
from alignup.store.checkpoint_format import NAME
from tests.agent.states import clock, empty_state
from tests.align.hosts import GPU, pod
from tests.deadlines import wait_for
from tests.effort import SEED, did, rounds
from tests.store.rewriting import contents
from tests.store.simulated_disk import SimulatedDisk

ROOT = Path("/var/lib/agent")


@pytest.fixture
def save(tmp_path):
    return Checkpointer(CheckpointStore(tmp_path), empty_state().host)


def after(state: AgentState, job, *args, **kwargs) -> AgentState:
    transaction = Transaction(state, clock())
    job(transaction, *args, **kwargs)
    return transaction.state()


def stored(store: CheckpointStore):
    """What the next process loads, without what differs from one file to another."""
    loaded = store.load()
    assert loaded
    assert loaded.notes == ()
    return loaded.document.replace(serial=0, journal="")


def random_job(rng):
    uid = rng.choice("abcdef")
    match rng.randrange(12):
        case 0 | 1 | 2 | 3 | 4 | 5 | 6:
            wanted = pod(uid, cpu=str(rng.randrange(1, 5)), gpu=rng.choice("01"))
            return Transaction.admit, (wanted,), {"source": rng.choice(("api", "/etc/pods/a.yaml"))}
        case 7 | 8 | 9 | 10:
            return Transaction.release, (uid,), {}
        case _:
            return Transaction.set_devices, (GPU, [Device(GPU, f"gpu-{n}", nodes=1 << n % 2) for n in range(4)]), {}


@pytest.mark.soak
def test_the_journal_leads_to_the_same_checkpoint_as_the_whole_state(tmp_path):
    """Several jobs are saved together, and pods are removed and added again in between."""
    rng, tries, journals = random.Random(SEED), rounds(4, soak=500), 0
    for _ in range(tries):
        disk = SimulatedDisk()
        state = empty_state(wait_enabled=True, max_overtakes=3)
        save = Checkpointer(CheckpointStore(ROOT, open_directory=disk.open), state.host)
        save(state)
        for _ in range(20):
            for _ in range(rng.randrange(1, 4)):
                job, args, kwargs = random_job(rng)
                with suppress(AlignError, BusyError, NotReadyError):
                    state = after(state, job, *args, **kwargs)
            save(state)
            journals += disk.open(ROOT).status(journal.NAME) is not None
            state = replace(state, unsaved=frozenset()) if rng.random() < 0.7 else state
            store = CheckpointStore(ROOT / "whole", open_directory=disk.open)
            Checkpointer(store, state.host)(state)
            assert stored(CheckpointStore(ROOT, open_directory=disk.open)) == stored(store)
    did("states appended to a journal", journals)
    assert journals


def test_a_change_is_appended_and_does_not_write_the_checkpoint(save, tmp_path):
    state = empty_state()
    save(state)
    written = (tmp_path / NAME).read_bytes()

    for uid in ("a", "b", "c"):
        state = after(state, Transaction.admit, pod(uid, cpu="1"))
        save(state)

    assert (tmp_path / NAME).read_bytes() == written
    assert len((tmp_path / journal.NAME).read_bytes().splitlines()) == 4
    assert [one.entry.pod.uid for one in stored(CheckpointStore(tmp_path)).pods] == ["a", "b", "c"]


def test_a_state_with_unnamed_changes_is_written_as_a_whole(save, tmp_path):
    """``AgentState.unsaved`` must name what changed; a state from elsewhere does not."""
    save(empty_state())
    other = replace(after(empty_state(), Transaction.admit, pod("a")), unsaved=frozenset())

    save(other)

    assert [one["entry"]["pod"]["uid"] for one in contents(tmp_path / NAME)["pods"]] == ["a"]


def test_the_whole_state_is_written_if_the_journal_fails(save, tmp_path):
    state = empty_state()
    for uid in ("a", "b"):
        save(state)
        state = after(state, Transaction.admit, pod(uid, cpu="1"))
    (tmp_path / journal.NAME).unlink()

    save(state)

    assert [one["entry"]["pod"]["uid"] for one in contents(tmp_path / NAME)["pods"]] == ["a", "b"]
    assert not (tmp_path / journal.NAME).exists()


def test_a_large_journal_is_folded(save, tmp_path, monkeypatch):
    monkeypatch.setattr(checkpointer, "MAX_JOURNAL_BYTES", 2_000)
    state, serials = empty_state(), []
    for number in range(30):
        save(state)
        serials.append(contents(tmp_path / NAME)["serial"])
        state = after(state, Transaction.admit, pod(f"p{number}", cpu="1m"))

    assert 2 < len(set(serials)) < 15
    assert len(stored(CheckpointStore(tmp_path)).pods) == 29


def test_an_idle_agent_folds_the_journal(save, tmp_path, monkeypatch):
    monkeypatch.setattr(checkpointer, "IDLE_JOURNAL_BYTES", 0)
    state = empty_state()
    save.fold()
    save(state)
    save(after(state, Transaction.admit, pod("a")))
    before = stored(CheckpointStore(tmp_path))

    save.fold()

    assert len(contents(tmp_path / NAME)["pods"]) == 1
    assert stored(CheckpointStore(tmp_path)) == before


def test_an_idle_agent_soon_has_a_previous_checkpoint(save, tmp_path):
    state, serials = empty_state(), []
    for uid in ("a", "b"):
        save(state)
        state = after(state, Transaction.admit, pod(uid, cpu="1"))
        save(state)
        save.fold()
        serials.append(contents(tmp_path / NAME)["serial"])
    before = CheckpointStore(tmp_path).load(previous=True)

    assert serials[0] == serials[1]  # a small journal is folded only once
    assert before
    assert [one.entry.pod.uid for one in before.document.pods] == ["a"]


@pytest.fixture
def no_space(save, tmp_path, monkeypatch):
    """Pods a and b are saved; then there is no space for another record in the journal."""
    state = empty_state()
    for uid in ("a", "b"):
        save(state)
        state = after(state, Transaction.admit, pod(uid, cpu="1"))
    save(state)
    state = replace(state, unsaved=frozenset())

    def fail(*_):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(journal.JournalWriter, "append", fail)
    with pytest.raises(CheckpointError, match="No space left"):
        save(after(state, Transaction.admit, pod("c", cpu="1")))
    return state


def test_on_a_full_disk_a_release_writes_the_whole_state(save, no_space, tmp_path):
    save(after(no_space, Transaction.release, "a"))

    assert [one["entry"]["pod"]["uid"] for one in contents(tmp_path / NAME)["pods"]] == ["b"]


def test_on_a_full_disk_a_release_may_still_fit_the_journal(save, no_space, tmp_path, monkeypatch):
    monkeypatch.undo()
    (tmp_path / f".{NAME}.new").mkdir()  # no checkpoint can be written

    for state in (no_space, after(no_space, Transaction.admit, pod("c", cpu="1"))):
        with pytest.raises(CheckpointError):
            save(state)
    save(after(no_space, Transaction.release, "a"))

    assert contents(tmp_path / NAME)["pods"] == []
    assert [one.entry.pod.uid for one in stored(CheckpointStore(tmp_path)).pods] == ["b"]


def test_a_journal_that_cannot_be_folded_stays(save, tmp_path, monkeypatch):
    monkeypatch.setattr(checkpointer, "IDLE_JOURNAL_BYTES", 0)
    state = empty_state()
    save(state)
    save(after(state, Transaction.admit, pod("a")))
    before = stored(CheckpointStore(tmp_path))
    (tmp_path / f".{NAME}.new").mkdir()

    save.fold()

    assert stored(CheckpointStore(tmp_path)) == before


def test_the_queue_calls_when_idle_once_after_a_save():
    calls: list[None] = []
    queue = AdmissionQueue(
        empty_state(),
        lambda _: None,
        clock=clock(),
        dispatch=lambda _: None,
        when_idle=lambda: calls.append(None),
        idle_seconds=0.0,
    )

    wait_for(lambda: calls)
    queue.close()

    assert calls == [None]
