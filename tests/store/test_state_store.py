"""The state that was saved is loaded again, whole and in order, and only what changed is encoded and written."""

import random
import sqlite3
from contextlib import closing
from dataclasses import replace
from typing import Any

import pytest

from alignup.align.errors import StoreError, StoreFullError, StoreProblem
from alignup.documents import codec
from alignup.documents.ledgers import restore_ledger
from alignup.store.database import NAME
from alignup.store.fingerprint import machine_fingerprint, settings_fingerprint
from alignup.store.state_store import DurablePod, DurableState, StateStore, row_digest
from tests.align.hosts import host, pod
from tests.effort import SEED, did, rounds
from tests.store.programs import decided, durable_pod, state
from tests.store.rewriting import opened, rewrite


@pytest.fixture
def store(tmp_path):
    with closing(StateStore(tmp_path)) as store:
        yield store


def uids(stored, stage="pods"):
    if stage == "pods":
        return [held.entry.pod.uid for held in stored.pods]
    return [waiting.pod.uid for waiting in stored.waiting]


def loaded(store):
    """Return what another process loads."""
    with closing(StateStore(store.path.parent)) as other:
        return other.load()


def rows(directory):
    with opened(directory) as connection:
        return dict(connection.execute("SELECT uid, number FROM pods").fetchall())


@pytest.fixture
def encoded(monkeypatch):
    """The documents that are encoded, by the names of their types."""
    names: list[str] = []
    encode = codec.encode

    def noted(value: object) -> bytes:
        names.append(type(value).__name__)
        return encode(value)

    monkeypatch.setattr(codec, "encode", noted)
    return names


def test_a_saved_state_is_loaded(store):
    here = host()
    here.admit(pod("a", gpu="1"))
    held = DurablePod(pod=here.ledger.pods["a"].pod, since=2.5, source="api", grants={"app": {"gpu": {"envs": {}}}})

    store.save(
        DurableState(
            host=here, admitted={"a": held}, waiting=[durable_pod("b")], plugins=frozenset({"gpu"}), overtaken={"b": 2}
        )
    )
    stored = loaded(store)

    assert stored.machine == machine_fingerprint(here.machine)
    assert stored.settings == settings_fingerprint(here.settings)
    assert (stored.plugins, stored.overtaken) == (["gpu"], {"b": 2})
    (admitted,) = stored.pods
    assert (admitted.since, admitted.source, admitted.grants) == (held.since, held.source, held.grants)
    assert uids(stored, "waiting") == ["b"]
    assert restore_ledger([admitted.entry], stored.residue, idle=host().ledger) == here.ledger


def test_the_ledger_of_a_program_without_records_is_stored_in_its_order(store):
    here = host()
    for uid in "ba":
        here.admit(pod(uid))

    store.save(DurableState(host=here))

    assert uids(loaded(store)) == ["b", "a"]
    assert loaded(store).pods[0].since is None


def test_nothing_is_created_by_loading(store, tmp_path):
    assert store.load() is None
    assert list(tmp_path.iterdir()) == []


def test_a_database_without_a_state_is_empty(store, tmp_path):
    """The process that created it was killed before it saved anything."""
    store.add_decisions([])
    store.save(state())
    with opened(tmp_path) as connection:
        connection.execute("DELETE FROM parts")
    (tmp_path / f"{NAME}-acknowledged").unlink()

    assert loaded(store) is None


def test_pods_are_appended_replaced_removed_and_moved(store, tmp_path):
    store.save(state(*"abcd"))
    before = rows(tmp_path)

    store.save(state(*"cda", texts={"c": "new", "a": "again"}))

    assert uids(loaded(store)) == ["c", "d", "a"]
    assert loaded(store).pods[0].entry.pod.annotations == {"text": "new"}
    after = rows(tmp_path)
    assert [after[uid] == before[uid] for uid in "cda"] == [True, True, False]


def test_another_order_is_stored(store):
    store.save(state(*"abcd", waiting="xyz"))

    store.save(state(*"edca", waiting="zy", texts={"d": "new"}))

    assert uids(loaded(store)) == ["e", "d", "c", "a"]
    assert uids(loaded(store), "waiting") == ["z", "y"]


def test_a_start_writes_nothing_that_is_stored(store, tmp_path):
    pods = [f"p{number}" for number in range(500)]
    store.save(state(*pods))
    store.close()
    before = rows(tmp_path)

    with closing(StateStore(tmp_path)) as other:
        other.save(state(*pods))
        written = (tmp_path / f"{NAME}-wal").stat().st_size

    assert written < 40_000
    assert rows(tmp_path) == before


def test_only_what_changed_is_encoded_and_written(store, tmp_path, encoded):
    pods = [f"p{number}" for number in range(500)]
    store.save(state(*pods))
    log = tmp_path / f"{NAME}-wal"
    before = log.stat().st_size
    encoded.clear()
    store.save(state(*pods))
    unchanged = [*encoded]
    encoded.clear()
    store.save(state(*pods, texts={"p7": "new"}))

    assert unchanged == ["CheckDocument"]
    assert encoded == ["HeldPodDocument", "CheckDocument"]
    assert log.stat().st_size - before < 40_000


def test_what_a_pod_holds_is_written_when_it_changes(store):
    """In decide mode, a pod that keeps its record gives back CPUs when a container ends."""
    here = host()
    here.admit(pod("a"))
    here.admit(pod("b"))
    store.save(DurableState(host=host_with(here.ledger)))
    ledger = here.ledger
    assert loaded(store).pods[0].entry.cpus.containers["app"]

    less = replace(ledger, cpus=replace(ledger.cpus, held={"b": ledger.cpus.held["b"]}))
    store.save(DurableState(host=host_with(less)))

    assert loaded(store).pods[0].entry.cpus.containers == {}
    assert uids(loaded(store)) == ["a", "b"]


def host_with(ledger):
    made = host()
    made.ledger = ledger
    return made


@pytest.mark.soak
def test_random_changes_lead_to_the_same_state_as_the_whole(tmp_path):
    rng, tries = random.Random(SEED), rounds(3, soak=300)
    for turn in range(tries):
        with closing(StateStore(tmp_path / str(turn))) as store:
            admitted: dict[str, str] = {}
            waiting: list[str] = []
            for step in range(30):
                for uid in rng.sample("abcdefgh", rng.randrange(3)):
                    admitted.pop(uid, None)
                    waiting = [other for other in waiting if other != uid]
                for uid in rng.sample("abcdefgh", rng.randrange(4)):
                    admitted.pop(uid, None)
                    waiting = [other for other in waiting if other != uid]
                    if rng.random() < 0.5:
                        admitted[uid] = f"{turn}-{step}"
                    else:
                        waiting.append(uid)
                store.save(state(*admitted, waiting="".join(waiting), number=rng.randrange(3), texts=admitted))
                stored = loaded(store)
                assert uids(stored) == list(admitted)
                assert [held.entry.pod.annotations["text"] for held in stored.pods] == list(admitted.values())
                assert uids(stored, "waiting") == waiting
    did("states compared", 30 * tries)


def test_another_process_continues_where_the_first_one_stopped(store, tmp_path):
    store.save(state("a", number=1), [(decided(), 0.0)])
    store.close()

    with closing(StateStore(tmp_path)) as other:
        other.save(state("a", "b", number=2), [(decided(), 0.0)])

    stored = loaded(store)
    assert (uids(stored), stored.plugins) == (["a", "b"], ["2"])
    assert [entry.id for entry in store.history.latest()] == [2, 1]


def test_a_full_ledger_takes_no_new_pods_but_any_other_change(tmp_path):
    with closing(StateStore(tmp_path)) as store:
        store.save(state("a"))
        size = store._ledger_bytes  # noqa: SLF001 - of one pod
    with closing(StateStore(tmp_path, limit=2 * size)) as store:
        store.save(state())
        store.save(state(*"ab"))
        with pytest.raises(StoreFullError) as caught:
            store.save(state(*"abc"))
        store.save(state(*"ab", texts={"b": "larger"}))
        store.save(state())
        store.save(state("c"))

        expected = f"the ledger is full: it would have {3 * size:,} bytes, and the limit is {2 * size:,} bytes"
        assert (caught.value.message, caught.value.kind) == (expected, StoreProblem.FULL)
        assert uids(loaded(store)) == ["c"]


def test_values_that_json_cannot_represent_are_not_written(store):
    store.save(state(number=1))
    unknown: Any = {"a": object()}

    with pytest.raises(StoreError, match="Encoding objects of type object is unsupported"):
        store.save(replace(state("a"), overtaken=unknown))

    assert loaded(store).pods == []
    store.save(state(number=2))
    assert loaded(store).plugins == ["2"]


def test_lone_surrogates_survive(store):
    """JSON manifests can contain them as escapes, and UTF-8 cannot represent them."""
    store.save(state("a", texts={"a": "web \udcff"}))

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
    store.save(state(*"ab"))
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
    store.save(state(*"ab"))
    rewrite(tmp_path, change)

    with pytest.raises(StoreError) as caught:
        loaded(store)

    assert caught.value.message.startswith(f"its contents are invalid: {message}")


def test_the_digest_of_a_row_stays_what_released_versions_wrote():
    assert row_digest(7, "uid-1", "admitted", b'{"entry":{}}') == 0xDB109069BEC771DD


def test_the_database_synchronizes_every_commit(store):
    store.save(state())
    connection = store._database._connection  # noqa: SLF001 - what is promised depends on it
    assert isinstance(connection, sqlite3.Connection)

    assert connection.execute("PRAGMA journal_mode").fetchone() == ("wal",)
    assert connection.execute("PRAGMA synchronous").fetchone() == (2,)  # FULL
