"""The history keeps decisions in order and within bounds."""

import sqlite3
import threading
from contextlib import closing
from pathlib import Path
from typing import Any

import msgspec
import pytest

from alignup.align.errors import StateError
from alignup.documents.decisions import decision_document, from_document, to_document
from alignup.store.database import MAX_LOG_PAGES, NAME
from alignup.store.history import DecisionQuery, NewDecision
from alignup.store.state_store import StateStore
from tests.align.hosts import host
from tests.align.hosts import pod as small
from tests.effort import rounds
from tests.store.faults import private_directory, small_disk
from tests.store.programs import decided, state


def ids(entries):
    return [entry.id for entry in entries]


@pytest.fixture
def open_store(tmp_path):
    stores = []

    def start(**limits):
        stores.append(StateStore(tmp_path, **limits))
        stores[-1].load()
        return stores[-1]

    yield start
    for store in stores:
        store.close()


@pytest.fixture
def store(open_store):
    return open_store()


def add(store, *decisions, time=0.0):
    """Add decisions; return the problem."""
    return store.add_decisions((decision, time) for decision in decisions)


def test_an_added_decision_is_read(store):
    decision = host().admit(small("a", gpu="1"))

    assert add(store, decision_document(decision), time=12.5) == ""

    entry = store.history.get(1)
    assert (entry.id, entry.time) == (1, 12.5)
    assert to_document(from_document(entry.document)) == to_document(decision)
    assert store.history.latest() == (entry,)


def test_decisions_that_cannot_be_stored_are_left_out(open_store):
    store = open_store(max_decision_bytes=10_000)

    problem = add(store, decided("a"), decided("large", text="x" * 20_000), decided(text=object()), decided("b"))

    assert problem.startswith("cannot write the history")
    assert add(store, decided("large", text="x" * 20_000)).startswith("a decision of ")
    assert [entry.document["pod"]["name"] for entry in store.history.latest()] == ["b", "a"]
    assert add(store) == ""


def test_a_decision_that_cannot_be_stored_does_not_fail_the_change(store):
    odd: Any = msgspec.defstruct("NoPod", ["outcome"])("admitted")

    problem = store.save(state(number=7), [(odd, 0.0), (decided(), 0.0)]).history_problem

    assert "cannot write the history" in problem
    assert store.load().plugins == ["7"]
    assert ids(store.history.latest()) == [1]


def test_an_empty_history_has_no_decisions(store):
    assert store.history.latest() == ()
    assert store.history.get(1) is None
    store.save(state())
    assert store.history.latest() == ()


CHOICES = [
    decided("web"),
    decided("web", namespace="other", outcome="rejected"),
    decided("db", uid="7", outcome="rejected"),
    decided("web", uid="8", outcome="asking"),
]


@pytest.mark.parametrize(
    ("filters", "expected"),
    [
        pytest.param({}, [4, 3, 2, 1], id="all, the newest first"),
        pytest.param({"limit": 2}, [4, 3], id="the newest two"),
        pytest.param({"limit": 2, "before": 3}, [2, 1], id="the next two"),
        pytest.param({"pod": "default/web"}, [4, 1], id="of a pod by its name"),
        pytest.param({"pod": "7"}, [3], id="of a pod by its uid"),
        pytest.param({"pod": "web"}, [4, 2, 1], id="of pods by their name alone"),
        pytest.param({"outcome": "rejected"}, [3, 2], id="of one outcome"),
        pytest.param({"pod": "other/web", "outcome": "rejected", "before": 4}, [2], id="of all filters"),
        pytest.param({"pod": "' OR 1=1 --"}, [], id="a name that looks like SQL"),
        pytest.param({"limit": 0}, [], id="none"),
        pytest.param({"limit": -5}, [], id="a negative limit"),
        pytest.param({"before": 10**30, "limit": 10**30}, [4, 3, 2, 1], id="numbers of any size"),
        pytest.param({"before": -(10**30)}, [], id="before the beginning"),
    ],
)
def test_decisions_are_filtered(store, filters, expected):
    add(store, *CHOICES)

    assert ids(store.history.latest(DecisionQuery(**filters))) == expected


def test_a_closed_store_can_be_read_and_written_again(store):
    store.close()
    add(store, decided())
    store.close()
    store.close()

    assert ids(store.history.latest()) == [1]
    assert add(store, decided()) == ""


def test_order_does_not_depend_on_the_clock(store):
    for time in (1000.0, 5.0, 2000.0, -1.0):
        add(store, decided(), time=time)

    entries = store.history.latest()
    assert [(entry.id, entry.time) for entry in entries] == [(4, -1.0), (3, 2000.0), (2, 5.0), (1, 1000.0)]


def test_the_oldest_are_deleted_when_they_take_too_much_space(open_store):
    store = open_store(max_decision_bytes=10_000)
    for length in (10, 4_000, 20, 4_000, 4_000, 20):
        add(store, decided(text="x" * length))

    assert ids(store.history.latest()) == [6, 5, 4, 3]
    assert add(store, decided(text="x" * 20_000)).startswith("a decision of")
    assert ids(store.history.latest()) == [6, 5, 4, 3], "one that is too large deletes no others"


def test_the_oldest_are_deleted_when_there_are_too_many_also_across_restarts(open_store):
    for number in range(10):
        store = open_store(max_decisions=4)
        if number == 0:
            store.save(state())
        assert add(store, decided(f"pod-{number}")) == ""
        store.close()

    assert ids(store.history.latest()) == [10, 9, 8, 7]
    assert store.history.get(6) is None


def test_the_files_do_not_grow_forever(open_store, tmp_path):
    store = open_store(max_decision_bytes=100_000)
    for _ in range(400):
        add(store, decided(text="x" * 5_000))

    log = MAX_LOG_PAGES * 4_096
    assert sum(path.stat().st_size for path in tmp_path.glob(f"{NAME}*")) < log + 3_000_000
    store.close()
    assert (tmp_path / NAME).stat().st_size < 2_000_000


def test_ids_are_never_reused(open_store, tmp_path):
    store = open_store(max_decisions=1)
    add(store, decided())
    add(store, decided())
    store.close()
    delete_all(tmp_path)

    again = open_store()
    add(again, decided())

    assert ids(again.history.latest()) == [3]


def test_another_process_may_delete_decisions(open_store, tmp_path):
    store = open_store(max_decisions=3)
    for _ in range(3):
        add(store, decided())
    delete_all(tmp_path)

    for _ in range(4):
        add(store, decided())

    assert ids(store.history.latest()) == [7, 6, 5]


def delete_all(directory):
    with closing(sqlite3.connect(directory / NAME)) as connection, connection:
        connection.execute("DELETE FROM decisions")


def test_admissions_do_not_wait_until_a_locked_database_is_released(open_store, tmp_path):
    store = open_store(lock_seconds=0)
    add(store, decided())
    with closing(sqlite3.connect(tmp_path / NAME, isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        assert "database is locked" in add(store, decided())
        other.execute("ROLLBACK")
    assert add(store, decided()) == ""
    assert ids(store.history.latest()) == [2, 1]


@pytest.mark.soak
def test_reading_from_other_threads_while_writing(store):
    number = rounds(100, soak=1_000)
    add(store, decided())
    seen = []
    done = threading.Event()

    def read() -> None:
        while not done.is_set():
            seen.append(store.history.latest(DecisionQuery(limit=5)))

    readers = [threading.Thread(target=read) for _ in range(2)]
    for reader in readers:
        reader.start()
    problems = [add(store, decided(f"pod-{index}")) for index in range(number)]
    done.set()
    for reader in readers:
        reader.join()

    assert set(problems) == {""}
    assert all(ids(page) == sorted(ids(page), reverse=True) for page in seen)
    assert ids(store.history.latest(DecisionQuery(limit=1))) == [number + 1]


def test_a_reader_in_a_transaction_does_not_stop_the_writer(store, tmp_path):
    add(store, decided())
    with closing(sqlite3.connect(tmp_path / NAME, isolation_level=None)) as other:
        other.execute("BEGIN")
        assert other.execute("SELECT count(*) FROM decisions").fetchone() == (1,)
        assert add(store, decided()) == ""
        assert other.execute("SELECT count(*) FROM decisions").fetchone() == (1,)


def test_an_unreadable_database_is_an_error_when_reading(tmp_path):
    (tmp_path / NAME).write_bytes(b"nothing that could be read" * 99)

    with pytest.raises(StateError, match=r"cannot read the history in .*: file is not a database"):
        StateStore(tmp_path).history.latest()


def test_a_full_disk_is_a_problem_not_an_error(store):
    store.save(state())

    with small_disk(3_000_000):
        problems = [add(store, decided(text="x" * 200_000)) for _ in range(40)]

    assert problems[0] == ""
    assert "the disk is writable and not full" in problems[-1]
    assert add(store, decided(text="space again")) == ""
    assert store.history.latest(DecisionQuery(limit=1))[0].document["text"] == "space again"


def test_a_read_only_directory_is_a_problem_not_an_error():
    with private_directory() as directory, closing(StateStore(directory)) as store:
        directory.chmod(0o500)
        assert add(store, decided()).startswith("cannot write the history: ")
        directory.chmod(0o700)
        assert add(store, decided()) == ""


def test_the_directory_may_be_relative(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with closing(StateStore(Path())) as store:
        add(store, decided())

        assert ids(store.history.latest()) == [1]
        assert (tmp_path / NAME).exists()


@pytest.mark.parametrize(
    ("column", "value"),
    [
        pytest.param("document", "{", id="no JSON"),
        pytest.param("document", "[]", id="no object"),
        pytest.param("document", b"\xff", id="bytes"),
        pytest.param("document", 5, id="a number"),
        pytest.param("document", "[" * 100_000, id="nested too deeply"),
        pytest.param("time", "noon", id="no time"),
    ],
)
def test_rows_that_are_no_decisions_are_left_out(store, column, value):
    """SQLite stores any value in any column."""
    for name in ("a", "b", "c"):
        add(store, decided(name))
    store.close()
    with closing(sqlite3.connect(store.path)) as connection, connection:
        connection.execute(f"UPDATE decisions SET {column} = ? WHERE id = 2", (value,))  # noqa: S608 - from above

    assert ids(store.history.latest(DecisionQuery(limit=2))) == [3, 1]
    assert store.history.get(2) is None


def test_a_waiting_pod_is_told_from_a_rejected_one(store):
    rejected = decision_document(host().decide(small("a", cpu="99")))
    store.add_decisions([(rejected, 1.0), NewDecision(rejected, 2.0, "waiting")])

    assert [(entry.id, entry.outcome) for entry in store.history.latest()] == [(2, "waiting"), (1, "rejected")]
    assert ids(store.history.latest(DecisionQuery(outcome="waiting"))) == [2]
    assert store.last_decision == 2
