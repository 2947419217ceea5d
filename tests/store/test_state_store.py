"""The state that was saved is loaded again, whole and in order, and only what changed is written."""

import random
import sqlite3
from contextlib import closing
from typing import Any

import pytest

from alignup.align.errors import StoreError, StoreFullError, StoreProblem
from alignup.documents import codec
from alignup.documents.ledgers import pod_entry, residue, restore_ledger
from alignup.documents.pod_documents import pod_document
from alignup.store.database import NAME
from alignup.store.fingerprint import machine_fingerprint, settings_fingerprint
from alignup.store.state_store import (
    HeldPodDocument,
    LedgerParts,
    PodRow,
    Stage,
    StateChange,
    StateStore,
    WaitingPodDocument,
)
from tests.align.hosts import host, pod
from tests.effort import SEED, did, rounds
from tests.store.programs import RESIDUE, decided, parts, row
from tests.store.rewriting import opened, rewrite


@pytest.fixture
def store(tmp_path):
    with closing(StateStore(tmp_path)) as store:
        yield store


def uids(state, stage="pods"):
    if stage == "pods":
        return [held.entry.pod.uid for held in state.pods]
    return [waiting.pod.uid for waiting in state.waiting]


def waiting(uid, *, last=True):
    document = WaitingPodDocument(pod=pod_document(pod(uid)), since=1.5, source="api")
    return PodRow(uid, Stage.WAITING, codec.encode(document), last)


def loaded(store):
    """Return what another process loads."""
    with closing(StateStore(store.path.parent)) as other:
        return other.load()


def test_a_saved_state_is_loaded(store):
    here = host()
    here.admit(pod("a", gpu="1"))
    held = HeldPodDocument(entry=pod_entry(here.ledger, "a"), since=2.5, source="api")
    ledger = LedgerParts(
        machine=machine_fingerprint(here.machine),
        settings=settings_fingerprint(here.settings),
        residue=residue(here.ledger),
        plugins=["gpu"],
        overtaken={"b": 2},
    )

    store.save(StateChange(parts=ledger, pods=[PodRow("a", Stage.ADMITTED, codec.encode(held)), waiting("b")]))
    state = loaded(store)

    assert (state.machine, state.settings) == (ledger.machine, ledger.settings)
    assert (state.plugins, state.overtaken) == (["gpu"], {"b": 2})
    assert state.pods == [held]
    assert uids(state, "waiting") == ["b"]
    idle = host().ledger
    assert restore_ledger([held.entry for held in state.pods], state.residue, idle=idle) == here.ledger


def test_nothing_is_created_by_loading(store, tmp_path):
    assert store.load() is None
    assert list(tmp_path.iterdir()) == []


def test_a_database_without_a_state_is_empty(store, tmp_path):
    """The process that created it was killed before it saved anything."""
    store.add_decisions([])
    store.save(StateChange(parts=parts()))
    with opened(tmp_path) as connection:
        connection.execute("DELETE FROM parts")

    assert loaded(store) is None


def test_pods_are_appended_replaced_removed_and_moved(store):
    store.save(StateChange(parts=parts(), pods=[row(uid) for uid in "abcd"]))
    store.save(StateChange(parts=parts(), removed=["b", "unknown"], pods=[row("c", "new", last=False), row("a")]))

    state = loaded(store)

    assert uids(state) == ["c", "d", "a"]
    assert state.pods[0].entry.pod.annotations == {"text": "new"}


def test_a_waiting_pod_that_is_admitted_becomes_the_last_one(store):
    store.save(StateChange(parts=parts(), pods=[waiting("w"), row("a"), waiting("x")]))
    store.save(StateChange(parts=parts(), pods=[row("w", last=False)]))

    state = loaded(store)

    assert (uids(state), uids(state, "waiting")) == (["a", "w"], ["x"])


def test_a_whole_change_removes_other_pods_and_keeps_the_order(store):
    store.save(StateChange(parts=parts(), pods=[row(uid) for uid in "abcd"]))

    store.save(StateChange(parts=parts(), pods=[row(uid, last=False) for uid in "xdca"], whole=True))

    assert uids(loaded(store)) == ["x", "d", "c", "a"]


def test_only_what_changed_is_written(store, tmp_path):
    pods = [row(f"p{number}", last=False) for number in range(500)]
    store.save(StateChange(parts=parts(), pods=pods, whole=True))
    log = tmp_path / f"{NAME}-wal"
    before = log.stat().st_size

    store.save(StateChange(parts=parts(), pods=pods, whole=True))
    store.save(StateChange(parts=parts(), pods=[row("p7", "new", last=False)]))

    assert log.stat().st_size - before < 40_000


@pytest.mark.soak
def test_random_changes_lead_to_the_same_state_as_the_whole(tmp_path):
    rng, tries = random.Random(SEED), rounds(3, soak=300)
    for turn in range(tries):
        with closing(StateStore(tmp_path / str(turn))) as store:
            expected: dict[str, PodRow] = {}
            for _ in range(30):
                removed = rng.sample("abcdefgh", rng.randrange(3))
                added = rng.sample("abcdefgh", rng.randrange(4))
                for uid in removed:
                    expected.pop(uid, None)
                new = [rng.choice((row, waiting))(uid) for uid in added]
                for added_row in new:
                    expected.pop(added_row.uid, None)
                    expected[added_row.uid] = added_row
                store.save(StateChange(parts=parts(rng.randrange(3)), removed=removed, pods=new))
                state = loaded(store)
                assert uids(state) == [pod.uid for pod in expected.values() if pod.stage is Stage.ADMITTED]
                assert uids(state, "waiting") == [pod.uid for pod in expected.values() if pod.stage is Stage.WAITING]
    did("states compared", 30 * tries)


def test_another_process_continues_where_the_first_one_stopped(store, tmp_path):
    store.save(StateChange(parts=parts(1), pods=[row("a")], decisions=[(decided(), 0.0)]))
    store.close()

    with closing(StateStore(tmp_path)) as other:
        other.save(StateChange(parts=parts(2), pods=[row("b")], decisions=[(decided(), 0.0)]))

    state = loaded(store)
    assert (uids(state), state.plugins) == (["a", "b"], ["2"])
    assert [entry.id for entry in store.history.latest()] == [2, 1]


def test_a_full_ledger_takes_no_new_pods_but_any_other_change(tmp_path):
    size = len(row("a").document)
    with closing(StateStore(tmp_path, limit=2 * size)) as store:
        for uid in "ab":
            store.save(StateChange(parts=parts(), pods=[row(uid)], limited=True))
        with pytest.raises(StoreFullError) as caught:
            store.save(StateChange(parts=parts(), pods=[row("c")], limited=True))
        store.save(StateChange(parts=parts(), pods=[row("b", "larger", last=False)]))
        store.save(StateChange(parts=parts(), removed=["a", "b"]))
        store.save(StateChange(parts=parts(), pods=[row("c")], limited=True))

        expected = f"the ledger is full: it would have {3 * size:,} bytes, and the limit is {2 * size:,} bytes"
        assert (caught.value.message, caught.value.kind) == (expected, StoreProblem.FULL)
        assert uids(loaded(store)) == ["c"]


def test_values_that_json_cannot_represent_are_not_written(store):
    store.save(StateChange(parts=parts(1)))
    unknown: Any = [object()]
    odd = LedgerParts(machine=parts().machine, settings=parts().settings, residue=RESIDUE, plugins=unknown)

    with pytest.raises(StoreError, match="Encoding objects of type object is unsupported"):
        store.save(StateChange(parts=odd, pods=[row("a")]))

    assert loaded(store).pods == []
    store.save(StateChange(parts=parts(2)))
    assert loaded(store).plugins == ["2"]


def test_lone_surrogates_survive(store):
    """JSON manifests can contain them as escapes, and UTF-8 cannot represent them."""
    store.save(StateChange(parts=parts(), pods=[row("a", "web \udcff")]))

    assert loaded(store).pods[0].entry.pod.annotations == {"text": "web \udcff"}


@pytest.mark.parametrize(
    "statement",
    [
        pytest.param(
            "UPDATE pods SET document = replace(document, 'default', 'defamed') WHERE uid = 'b'", id="changed"
        ),
        pytest.param("UPDATE pods SET number = 77 WHERE uid = 'a'", id="moved"),
        pytest.param("UPDATE pods SET stage = 'waiting' WHERE uid = 'a'", id="in another stage"),
        pytest.param("DELETE FROM pods WHERE uid = 'a'", id="lost"),
        pytest.param("INSERT INTO pods SELECT 9, 'z', stage, document FROM pods WHERE uid = 'a'", id="repeated"),
        pytest.param("UPDATE parts SET document = '[]' WHERE name = 'plugins'", id="another part"),
        pytest.param("DELETE FROM parts WHERE name = 'plugins'", id="a lost part"),
        pytest.param("DELETE FROM parts WHERE name = 'check'", id="a lost checksum"),
        pytest.param("UPDATE pods SET document = x'ff' WHERE uid = 'a'", id="bytes"),
        pytest.param("UPDATE pods SET uid = 5 WHERE uid = 'a'", id="a number"),
    ],
)
def test_changed_rows_are_detected(store, tmp_path, statement):
    store.save(StateChange(parts=parts(), pods=[row("a"), row("b")]))
    with opened(tmp_path) as connection:
        connection.execute(statement)

    with pytest.raises(StoreError) as caught:
        loaded(store)

    assert caught.value.kind is StoreProblem.UNUSABLE
    assert caught.value.message.startswith("its contents are invalid: ")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        pytest.param(lambda all_: all_["parts"].pop("machine"), "missing 'machine'", id="a missing part"),
        pytest.param(
            lambda all_: all_["parts"].update(machine="mine"), "expected `object`, got `str`", id="no fingerprint"
        ),
        pytest.param(
            lambda all_: all_["pods"][0].update(document={}), "object missing required field `entry`", id="no entry"
        ),
        pytest.param(lambda all_: all_["pods"][0].update(stage="gone"), "'gone' is not a valid Stage", id="a stage"),
        pytest.param(
            lambda all_: all_["pods"][0].update(document=b'{"entry":' * 100_000), "not JSON: ", id="nested too deeply"
        ),
    ],
)
def test_invalid_contents_with_a_valid_checksum_are_rejected(store, tmp_path, change, message):
    store.save(StateChange(parts=parts(), pods=[row("a"), row("b")]))
    rewrite(tmp_path, change)

    with pytest.raises(StoreError) as caught:
        loaded(store)

    assert caught.value.message.startswith(f"its contents are invalid: {message}")


def test_the_database_synchronizes_every_commit(store):
    store.save(StateChange(parts=parts()))
    connection = store._database._connection  # noqa: SLF001 - what is promised depends on it
    assert isinstance(connection, sqlite3.Connection)

    assert connection.execute("PRAGMA journal_mode").fetchone() == ("wal",)
    assert connection.execute("PRAGMA synchronous").fetchone() == (2,)  # FULL
