"""The history keeps decisions in order and within bounds, and never fails an admission."""

import random
import shutil
import sqlite3
import stat
import threading
from contextlib import closing
from pathlib import Path

import msgspec
import pytest

from alignup.align.errors import StateError
from alignup.documents.decisions import decision_document, from_document, to_document
from alignup.store.history import MAX_SET_ASIDE, NAME, WRITE_TIMEOUT, History, HistoryWrite
from tests.align.hosts import host
from tests.align.hosts import pod as small
from tests.effort import SEED, did, rounds
from tests.store import processes, programs
from tests.store.faults import small_disk, without_rights
from tests.store.programs import decided


def ids(entries):
    return [entry.id for entry in entries]


@pytest.fixture
def history(tmp_path):
    made = History(tmp_path)
    yield made
    made.close()


def test_an_added_decision_is_read(history):
    one = host()
    decision = one.admit(small("a", gpu="1"))

    added = history.add(decision_document(decision), time=12.5)

    assert added == HistoryWrite(1)
    entry = history.get(1)
    assert (entry.id, entry.time) == (1, 12.5)
    assert to_document(from_document(entry.document)) == to_document(decision)
    assert history.latest() == (entry,)


def test_several_decisions_are_added_at_once_without_those_that_cannot_be_stored(tmp_path):
    with closing(History(tmp_path, size=10_000)) as history:
        many = [decided("a"), decided("large", text="x" * 20_000), decided(text=object()), decided("b")]
        added = history.add_all((decision, number) for number, decision in enumerate(many))

        assert (added.id, added.note) == (2, "")
        assert added.problem.startswith("cannot write the history")
        assert [one.time for one in history.latest()] == [3, 0]
        assert history.add_all([]) == HistoryWrite(None)


def test_an_empty_history_has_no_decisions(history):
    assert history.latest() == ()
    assert history.get(1) is None
    assert history.open() == ""
    assert history.latest() == ()


CHOICES = [
    decided("web"),
    decided("web", namespace="other", outcome="rejected"),
    decided("db", uid="7", outcome="rejected"),
    decided("web", uid="8", outcome="asking"),
]


@pytest.mark.parametrize(
    ("filters", "found"),
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
def test_decisions_are_filtered(history, filters, found):
    for number, document in enumerate(CHOICES):
        history.add(document, time=number)

    assert ids(history.latest(**filters)) == found


def test_a_history_of_release_0_1_is_read(history, tmp_path):
    """Its documents are decisions of version 1, and its rejected pods are "refused"."""
    shutil.copy(Path(__file__).parents[1] / "documents" / "version1" / NAME, tmp_path / NAME)

    assert history.open() == ""
    entries = history.latest()

    assert [entry.document["outcome"] for entry in entries] == ["asking", "rejected", "admitted", "admitted"]
    assert [to_document(from_document(entry.document)) for entry in entries] == [entry.document for entry in entries]
    assert ids(history.latest(outcome="rejected")) == [3]
    assert history.add(decision_document(host().decide(small("b", cpu="9"))), time=1.0).id == 5
    assert ids(history.latest(outcome="rejected")) == [5, 3]


def test_a_history_may_be_closed_at_any_time(tmp_path):
    history = History(tmp_path)
    history.close()
    history.add(decided(), time=0)
    history.close()
    history.close()

    assert ids(history.latest()) == [1]


def test_order_does_not_depend_on_the_clock(history):
    for time in (1000.0, 5.0, 2000.0, -1.0):
        history.add(decided(), time=time)

    assert [(entry.id, entry.time) for entry in history.latest()] == [(4, -1.0), (3, 2000.0), (2, 5.0), (1, 1000.0)]


def test_the_oldest_are_deleted_when_there_are_too_many(tmp_path):
    history = History(tmp_path, rows=3)
    for number in range(7):
        history.add(decided(f"pod-{number}"), time=0)

    assert ids(history.latest()) == [7, 6, 5]
    assert history.get(4) is None
    history.close()


def test_the_oldest_are_deleted_when_they_take_too_much_space(tmp_path):
    history = History(tmp_path, size=10_000)
    for length in (10, 4_000, 20, 4_000, 4_000, 20):
        history.add(decided(text="x" * length), time=0)

    assert ids(history.latest()) == [6, 5, 4, 3]
    large = history.add(decided(text="x" * 20_000), time=0)
    assert (large.id, large.problem[:13]) == (None, "a decision of")
    assert ids(history.latest()) == [6, 5, 4, 3], "one that is too large deletes no others"
    history.close()


def test_bounds_hold_across_restarts(tmp_path):
    for number in range(10):
        history = History(tmp_path, rows=4)
        assert history.add(decided(f"pod-{number}"), time=0) == HistoryWrite(number + 1)
        history.close()

    assert ids(History(tmp_path).latest()) == [10, 9, 8, 7]


def test_the_file_does_not_grow_forever(tmp_path):
    history = History(tmp_path, size=100_000)
    for _ in range(400):
        history.add(decided(text="x" * 5_000), time=0)

    assert sum(path.stat().st_size for path in tmp_path.glob(f"{NAME}*")) < 6_000_000
    history.close()
    assert (tmp_path / NAME).stat().st_size < 250_000


def test_ids_are_never_reused(tmp_path):
    history = History(tmp_path, rows=1)
    history.add(decided(), time=0)
    history.add(decided(), time=0)
    history.close()
    with sqlite3.connect(tmp_path / NAME) as database:
        database.execute("DELETE FROM decisions")
    database.close()

    with closing(History(tmp_path)) as again:
        assert again.add(decided(), time=0).id == 3


def test_another_process_may_delete_decisions(tmp_path):
    history = History(tmp_path, rows=3)
    for _ in range(3):
        history.add(decided(), time=0)
    with sqlite3.connect(tmp_path / NAME) as database:
        database.execute("DELETE FROM decisions")
    database.close()

    for _ in range(4):
        history.add(decided(), time=0)

    assert ids(history.latest()) == [7, 6, 5]
    history.close()


def test_only_the_owner_has_access(tmp_path):
    history = History(tmp_path)
    history.add(decided(), time=0)

    modes = {path.name: stat.S_IMODE(path.stat().st_mode) for path in tmp_path.iterdir()}
    assert modes == {NAME: 0o600, f"{NAME}-shm": 0o600, f"{NAME}-wal": 0o600}
    history.close()


def foreign(path: Path) -> None:
    with sqlite3.connect(path) as database:
        database.execute("CREATE TABLE songs (title TEXT)")
    database.close()


def later(path: Path) -> None:
    history = History(path.parent)
    history.add(decided(), time=0)
    history.close()
    with sqlite3.connect(path) as database:
        database.execute("PRAGMA user_version = 99")
    database.close()


def emptied(path: Path) -> None:
    """Our database without its table."""
    later(path)
    with sqlite3.connect(path) as database:
        database.execute("PRAGMA user_version = 1")
        database.execute("DROP TABLE decisions")
        database.execute("CREATE TABLE other (x)")
    database.close()


@pytest.mark.parametrize(
    ("spoil", "why"),
    [
        pytest.param(
            lambda path: path.write_text("not a database, but long enough\n" * 99), "not a database", id="text"
        ),
        pytest.param(foreign, "another program", id="of another program"),
        pytest.param(later, "version 99", id="of a later version"),
        pytest.param(emptied, "no such table", id="without its table"),
    ],
)
def test_a_foreign_database_is_set_aside(tmp_path, spoil, why):
    spoil(tmp_path / NAME)
    before = (tmp_path / NAME).read_bytes()
    history = History(tmp_path)

    added = history.add(decided(), time=0)

    assert (added.id, added.problem) == (1, "")
    assert why in added.note
    assert f"{NAME}.aside-1" in added.note
    assert (tmp_path / f"{NAME}.aside-1").read_bytes() == before
    assert history.add(decided(), time=0) == HistoryWrite(2), "the note appears once"
    history.close()


@pytest.mark.soak
def test_damage_is_detected_on_opening_and_while_running(tmp_path):
    """Any page may be overwritten: adding works again after at most one lost decision."""
    rng = random.Random(SEED)
    for turn in range(rounds(6, soak=100)):
        did("histories damaged")
        directory = tmp_path / str(turn)
        directory.mkdir()
        history = History(directory)
        for number in range(200):
            history.add(decided(f"pod-{number}", text="x" * 300), time=0)
        history.close()
        path = directory / NAME
        data = bytearray(path.read_bytes())
        for _ in range(4):
            place = rng.randrange(len(data) // 4096) * 4096
            data[place : place + 4096] = rng.randbytes(4096)
        running = History(directory)
        if turn % 2:
            running.open()
        path.write_bytes(data)

        results = [running.add(decided(), time=0) for _ in range(300)]

        assert results[-1].id is not None, results[-1]
        running.close()
        again = History(directory)
        again.open()
        assert again.add(decided(), time=0).id is not None
        assert again.latest(limit=1)[0].document == msgspec.to_builtins(decided())
        again.close()


def test_damage_under_an_open_database_costs_one_decision(tmp_path):
    history = History(tmp_path, rows=40)
    for _ in range(40):
        history.add(decided(text="x" * 100_000), time=0)
    history.close()
    history.open()
    with (tmp_path / NAME).open("r+b") as file:
        file.seek(4096)
        file.write(b"\xa5" * ((tmp_path / NAME).stat().st_size - 4096))

    results = [history.add(decided(), time=0) for _ in range(100)]  # how soon it reads the damage depends on SQLite
    history.close()

    (lost,) = (number for number, result in enumerate(results) if result.problem)
    first, second, third = results[lost : lost + 3]
    assert first.problem == "cannot write the history: database disk image is malformed"
    assert (second.id, second.problem) == (1, "")
    assert "moved to" in second.note
    assert third == HistoryWrite(2)


def test_a_database_in_use_is_not_set_aside(tmp_path):
    history = History(tmp_path, timeout=0)
    history.add(decided(), time=0)
    history.close()
    other = sqlite3.connect(tmp_path / NAME, isolation_level=None)
    other.execute("PRAGMA locking_mode = EXCLUSIVE")
    other.execute("BEGIN EXCLUSIVE")

    assert history.open() == "cannot open the history: database is locked"
    other.execute("ROLLBACK")
    other.close()
    assert history.open() == ""
    assert [entry.id for entry in history.latest()] == [1]
    history.close()


def test_the_number_of_databases_set_aside_is_limited(tmp_path):
    for number in range(MAX_SET_ASIDE):
        (tmp_path / f"{NAME}.aside-{number + 1}").touch()
    (tmp_path / NAME).write_bytes(b"nothing that could be read" * 99)
    history = History(tmp_path)

    added = history.add(decided(), time=0)

    assert added.id is None
    assert "remove them" in added.problem
    assert "remove them" in history.open()


def test_an_invalid_decision_is_a_problem_not_an_error(history):
    history.add(decided(), time=0)

    assert (
        "cannot write the history" in history.add(msgspec.defstruct("NoPod", ["outcome"])("admitted"), time=0).problem
    )
    assert "cannot write the history" in history.add(decided(text=object()), time=0).problem
    assert history.add(decided(), time=0) == HistoryWrite(2)


def test_a_link_is_not_followed(tmp_path):
    (tmp_path / "target").touch()
    (tmp_path / NAME).symlink_to(tmp_path / "target")

    assert "symbolic links" in History(tmp_path).add(decided(), time=0).problem
    assert (tmp_path / "target").read_bytes() == b""


def test_admissions_do_not_wait_until_a_locked_database_is_released(tmp_path):
    with closing(History(tmp_path, timeout=0)) as history:
        history.add(decided(), time=0)
        with closing(sqlite3.connect(tmp_path / NAME, isolation_level=None)) as other:
            other.execute("BEGIN IMMEDIATE")
            assert history.add(decided(), time=0).problem == "cannot write the history: database is locked"
            other.execute("ROLLBACK")
        assert history.add(decided(), time=0) == HistoryWrite(2)
    assert WRITE_TIMEOUT <= 0.1, "admissions are waiting"


def test_reading_from_other_threads_while_writing(history):
    history.add(decided(), time=0)
    seen = []
    done = threading.Event()

    def read() -> None:
        while not done.is_set():
            seen.append(history.latest(limit=5))

    readers = [threading.Thread(target=read) for _ in range(2)]
    for reader in readers:
        reader.start()
    results = [history.add(decided(f"pod-{number}"), time=0) for number in range(300)]
    done.set()
    for reader in readers:
        reader.join()

    assert ids(results) == list(range(2, 302))
    assert all(ids(page) == sorted(ids(page), reverse=True) for page in seen)
    assert ids(history.latest(limit=1)) == [301]


def test_an_unreadable_database_is_an_error_when_reading(tmp_path):
    (tmp_path / NAME).write_bytes(b"nothing that could be read" * 99)

    with pytest.raises(StateError, match=r"cannot read the history .*: file is not a database"):
        History(tmp_path).latest()


def test_a_full_disk_is_a_problem_not_an_error(history):
    history.open()

    with small_disk(300_000):
        added = [history.add(decided(text="x" * 20_000), time=0) for _ in range(40)]

    assert [one.problem for one in added if one.id is None]
    assert all(one.problem for one in added if one.id is None)
    assert history.add(decided(text="space again"), time=0).problem == ""
    assert history.latest(limit=1)[0].document["text"] == "space again"


def test_a_read_only_directory_is_a_problem_not_an_error(tmp_path):
    tmp_path.chmod(0o555)

    with without_rights(tmp_path):
        history = History(Path())
        assert history.open() == "cannot open the history: [Errno 13] Permission denied: 'history.sqlite'"
        assert history.add(decided(), time=0).problem.startswith("cannot write the history: [Errno 13] Permission")

    tmp_path.chmod(0o755)


@pytest.mark.soak
def test_killed_writers_leave_a_valid_history(tmp_path):
    kills = rounds(3, soak=200)

    processes.run(programs.kill_history_writers, tmp_path, kills, SEED)

    did("history writers killed", kills)


def test_the_directory_may_be_relative(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    history = History(Path())
    history.add(decided(), time=0)

    assert ids(history.latest()) == [1]
    assert (tmp_path / NAME).exists()
    history.close()


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
def test_rows_that_are_no_decisions_are_left_out(tmp_path, column, value):
    """SQLite stores any value in any column."""
    history = History(tmp_path)
    for name in ("a", "b", "c"):
        history.add(decided(name), time=0)
    history.close()
    with closing(sqlite3.connect(history.path)) as database, database:
        database.execute(f"UPDATE decisions SET {column} = ? WHERE id = 2", (value,))  # noqa: S608 - from above

    assert [one.id for one in history.latest(limit=2)] == [3, 1]
    assert history.get(2) is None
