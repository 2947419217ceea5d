"""What is written after a change leads to the same database as writing the whole state."""

import random
from contextlib import closing, suppress
from dataclasses import replace

import pytest

from alignup.agent.admission_queue import AdmissionQueue
from alignup.agent.state import AgentState, EventKind
from alignup.agent.transaction import Transaction
from alignup.align.errors import AlignError, StoreError, StoreProblem
from alignup.align.machine import Device
from alignup.store.database import NAME
from alignup.store.state_store import StateStore
from alignup.web.responses import BusyError, NotReadyError
from tests.agent.states import clock, empty_state, quiet_history, save_states, stored
from tests.align.hosts import GPU, pod
from tests.deadlines import wait_for
from tests.effort import SEED, did, rounds
from tests.store.faults import small_disk


@pytest.fixture
def store(tmp_path):
    with closing(StateStore(tmp_path)) as store:
        yield store


@pytest.fixture
def save(store):
    return quiet_history(store).save


def after(state: AgentState, job, *args, **kwargs) -> AgentState:
    transaction = Transaction(state, clock())
    job(transaction, *args, **kwargs)
    return transaction.state()


def uids(directory):
    return [held.entry.pod.uid for held in stored(directory).pods]


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
def test_changes_lead_to_the_same_database_as_the_whole_state(tmp_path):
    """Several jobs are saved together, and pods are removed and added again in between."""
    rng, tries = random.Random(SEED), rounds(4, soak=500)
    for turn in range(tries):
        state = empty_state(wait_enabled=True, max_overtakes=3)
        with closing(StateStore(tmp_path / f"{turn}")) as store:
            save = quiet_history(store).save
            save(state)
            for step in range(20):
                for _ in range(rng.randrange(1, 4)):
                    job, args, kwargs = random_job(rng)
                    with suppress(AlignError, BusyError, NotReadyError):
                        state = after(state, job, *args, **kwargs)
                save(state)
                save_states(tmp_path / f"{turn}-{step}", state)
                assert stored(tmp_path / f"{turn}") == stored(tmp_path / f"{turn}-{step}")
    did("states saved by their changes", 20 * tries)


@pytest.mark.parametrize("names", [(NAME,), (f"{NAME}-wal",), (NAME, f"{NAME}-wal", f"{NAME}-shm")])
def test_a_removed_database_is_written_anew(save, tmp_path, names):
    state = after(empty_state(), Transaction.admit, pod("a", cpu="1"))
    save(state)
    for name in names:
        (tmp_path / name).unlink()

    save(after(state, Transaction.admit, pod("b", cpu="1")))

    assert uids(tmp_path) == ["a", "b"]


def test_a_database_that_is_damaged_meanwhile_is_set_aside_and_written_anew(save, store, tmp_path):
    state = empty_state()
    for number in range(60):
        state = after(state, Transaction.admit, pod(f"p{number}", cpu="1m", memory="1Mi"))
    save(state)
    store.close()
    with (tmp_path / NAME).open("r+b") as file:
        file.seek(4096)
        file.write(b"\xa5" * ((tmp_path / NAME).stat().st_size - 4096))
    damaged = (tmp_path / NAME).read_bytes()

    save(after(state, Transaction.release, "p7"))

    assert len(uids(tmp_path)) == 59
    assert (tmp_path / f"{NAME}.aside-1").read_bytes() == damaged


def test_on_a_full_disk_pods_are_released_but_not_admitted(save, tmp_path):
    state, number = empty_state(), 0
    with small_disk(2 << 20):
        with pytest.raises(StoreError) as caught:  # noqa: PT012 - until the disk is full
            while number < 2_000:
                large = pod(f"p{number}", cpu="1m", memory="1Mi", annotations={"note": "x" * 20_000})
                number += 1
                new = after(state, Transaction.admit, large)
                save(new)
                state = new
        kept = list(state.admitted)
        assert caught.value.kind is StoreProblem.UNWRITABLE
        assert uids(tmp_path) == kept
        save(state)  # the queue does so until it can be written
        for uid in kept[::2]:
            state = after(state, Transaction.release, uid)
            save(state)

    assert uids(tmp_path) == kept[1::2]


def test_the_queue_calls_when_idle_once_after_a_save():
    calls: list[None] = []
    queue = AdmissionQueue(
        empty_state(),
        lambda *_: None,
        clock=clock(),
        dispatch=lambda _: None,
        when_idle=lambda: calls.append(None),
        idle_seconds=0.0,
    )

    wait_for(lambda: calls)
    queue.close()

    assert calls == [None]


def test_events_get_the_ids_of_their_decisions_once(store):
    saving = quiet_history(store)
    transaction = Transaction(replace(empty_state(), wait_enabled=True), clock())
    for wanted in (pod("a", cpu="4"), pod("b", cpu="4"), pod("c", cpu="2")):
        transaction.admit(wanted)
    transaction.release("a")
    saving.save(transaction.state(), transaction.events)

    ids = [saving.decision_id(event) for event in transaction.events]
    stored_ids = [entry.id for entry in reversed(store.history.latest())]
    assert [number for number in ids if number is not None] == stored_ids
    assert {event.kind: number is None for event, number in zip(transaction.events, ids, strict=True)}[
        EventKind.RELEASED
    ]
    assert "waiting" in {entry.outcome for entry in store.history.latest()}
    assert [saving.decision_id(event) for event in transaction.events] == [None] * len(ids)
