"""Changes in the journal are found again, or the error says what to do."""

import os

import pytest

from alignup.align.errors import CheckpointError, CheckpointFullError, ParseError
from alignup.documents import codec
from alignup.documents.checkpoints import CheckpointDocument
from alignup.documents.journal import ChangeDocument, apply_changes
from alignup.store import journal
from alignup.store.checkpoint import CheckpointStore
from alignup.store.checkpoint_format import NAME
from alignup.store.journal import JournalChange
from tests.store import processes, programs
from tests.store.faults import small_disk
from tests.store.programs import changed, numbered
from tests.store.rewriting import contents, rewrite


@pytest.fixture
def store(tmp_path):
    """A store with the checkpoint 1 and the changes 2, 3 and 4, each of which has its number in ``plugins``."""
    store = CheckpointStore(tmp_path)
    store.save(numbered(1))
    for number in (2, 3, 4):
        assert store.append(changed(number)) == number
    return store


def lines(store):
    return (store.path.parent / journal.NAME).read_bytes().splitlines(keepends=True)


def write_lines(store, *written):
    (store.path.parent / journal.NAME).write_bytes(b"".join(written))


def loaded(store, **how):
    found = CheckpointStore(store.path.parent).load(**how)
    assert found
    return found


def number_in(store, **how):
    (number,) = loaded(store, **how).document.plugins
    return int(number)


def load_error(store):
    with pytest.raises(CheckpointError) as caught:
        loaded(store)
    return caught.value


def test_changes_are_appended_and_found(store):
    assert (loaded(store).serial, loaded(store).document.serial, number_in(store)) == (1, 4, 4)
    assert loaded(store).notes == ()
    assert len(lines(store)) == 4
    assert store.journal_size == sum(map(len, lines(store)))
    assert contents(store.path)["plugins"] == ["1"], "the checkpoint is not written"


def test_a_journal_without_its_checkpoint_is_reported(store):
    store.path.write_bytes(b"")

    unusable = f"no valid previous one exists, and {journal.NAME} cannot be used without its checkpoint; "
    assert load_error(store).advice.startswith(unusable)


def test_a_new_checkpoint_makes_the_journal_obsolete(store):
    assert store.save(numbered(5)) == 5

    assert number_in(store) == 5
    assert number_in(store, previous=True) == 4, "the previous checkpoint has its journal"
    assert store.append(changed(6)) == 6
    assert (number_in(store), number_in(store, previous=True)) == (6, 4)
    assert store.journal_size == sum(map(len, lines(store)))


def test_only_the_process_that_wrote_the_checkpoint_appends(store):
    other = CheckpointStore(store.path.parent)

    for _ in range(2):
        with pytest.raises(CheckpointError, match="a checkpoint must be written first"):
            other.append(changed(5))
        other.load()
    assert other.save(numbered(5)) == 5
    assert other.append(changed(6)) == 6


def test_an_incomplete_record_at_the_end_is_ignored(store):
    """It was never acknowledged, wherever it was cut."""
    *before, last = lines(store)

    for length in range(0, len(last) - 1, 7):
        write_lines(store, *before, last[:length])
        assert number_in(store) == 3
        assert len(loaded(store).notes) == bool(length)
    for garbage in (bytes(len(last)), b"\n\n", last[::-1], b"9" * 5_000):
        write_lines(store, *before, garbage)
        (note,) = loaded(store).notes
        assert note == "the journal ends with an incomplete change, which is ignored: it was never acknowledged"
    assert number_in(store) == 3


def test_a_journal_that_was_never_acknowledged_is_ignored(store):
    header, first, *_ = lines(store)

    for length in range(0, len(header) + len(first) - 1, 11):
        write_lines(store, (header + first)[:length])
        assert number_in(store) == 1


@pytest.mark.parametrize("damaged", [0, 1, 2])
def test_damage_before_valid_records_is_an_error(store, damaged):
    whole = lines(store)
    bad = whole[damaged]
    step = len(bad) // 10
    for place in range(0, len(bad) - 1, step):
        whole[damaged] = bad[:place] + bytes([bad[place] ^ 1]) + bad[place + 1 :]
        write_lines(store, *whole)
        error = load_error(store)
        assert error.what == f"the journal is damaged: line {damaged + 1} is damaged, and valid ones follow"
    last = max(1, damaged)

    assert error.where == str(store.path.parent / journal.NAME)
    assert f"start with --recover previous to continue from serial {last} (0 pods), after which" in error.advice
    found = loaded(store, previous=True)
    assert found.document.plugins == [str(last)]
    assert found.notes == (error.what, f"using the checkpoint, serial {last}: later changes are lost")


@pytest.mark.parametrize(
    ("change", "damage"),
    [
        pytest.param(lambda all_: all_[:2] + all_[3:], "line 3 has the serial number 4 instead of 3", id="one missing"),
        pytest.param(lambda all_: [*all_, all_[3]], "line 5 has the serial number 4 instead of 5", id="one twice"),
        pytest.param(lambda all_: [all_[0], *all_[2:]], "line 2 has the serial number 3 instead of 2", id="no first"),
        pytest.param(
            lambda all_: all_[1:], "line 1 is invalid: object missing required field `format`", id="no header"
        ),
    ],
)
def test_valid_records_in_the_wrong_place_are_an_error(store, change, damage):
    write_lines(store, *change(lines(store)))

    assert load_error(store).what == f"the journal is damaged: {damage}"


def append_raw(store, document):
    key = contents(store.path)["journal"]
    write_lines(store, *lines(store), journal.record(document, key))


@pytest.mark.parametrize(
    ("document", "damage"),
    [
        pytest.param(b"{}", "line 5 is invalid: object missing required field `serial`", id="no serial"),
        pytest.param(b"{", "line 5 is invalid: not JSON", id="no JSON"),
        pytest.param(
            changed(5).encode(5)[:-1] + b',"removedPods":["x"]}',
            "it contradicts the checkpoint: pod x is removed but does not exist",
            id="an unknown pod",
        ),
    ],
)
def test_invalid_records_are_an_error(store, document, damage):
    append_raw(store, document)

    assert load_error(store).what.startswith(f"the journal is damaged: {damage}")
    assert number_in(store, previous=True) in (4, 1)


def test_a_journal_of_a_later_version_is_left_to_a_later_release(store):
    _, *records = lines(store)
    header = journal.record(b'{"format":"alignup journal","version":2,"serial":1}', contents(store.path)["journal"])
    write_lines(store, header, *records)

    error = load_error(store)

    assert error.what == "the journal has version 2, but this release reads version 1"
    assert error.advice == "start the release of alignup that wrote it, or a newer one"


def test_a_journal_is_never_applied_to_another_checkpoint(store):
    """Even to one with the same serial number and contents, as after falling back to the previous checkpoint."""
    records = lines(store)
    other = CheckpointStore(store.path.parent / "other")
    other.save(numbered(1))

    (other.path.parent / journal.NAME).write_bytes(b"".join(records))

    assert number_in(other) == 1


def test_a_damaged_journal_is_set_aside_with_its_checkpoint(store):
    whole = lines(store)
    whole[1] = b"damaged\n"
    write_lines(store, *whole)
    again = CheckpointStore(store.path.parent)
    again.load(previous=True)

    again.save(numbered(9))
    again.append(changed(10))

    assert (store.path.parent / f"{NAME}.aside-1.journal").read_bytes() == b"".join(whole)
    assert contents(store.path.parent / f"{NAME}.aside-1")["plugins"] == ["1"]
    assert number_in(store) == 10


def test_all_earlier_states_can_be_tried(store):
    """The newest first: before the damage of the journal, the previous checkpoint with its journal, and without."""
    store.save(numbered(5))
    for number in (6, 7):
        store.append(changed(number))
    header, first, second = lines(store)
    write_lines(store, header, b"damaged\n", second)

    assert [number_in(store, previous=True, attempt=number) for number in range(3)] == [5, 4, 1]
    with pytest.raises(CheckpointError, match="there is no earlier state"):
        number_in(store, previous=True, attempt=3)
    store.previous.write_bytes(b"damaged")
    assert number_in(store, previous=True) == 5, "the previous one is not necessary"
    write_lines(store, header, first, second)
    with pytest.raises(CheckpointError, match="first line is damaged"):
        loaded(store, previous=True)


def test_a_checkpoint_and_its_journal_are_limited_together(tmp_path):
    store = CheckpointStore(tmp_path, limit=3_000)
    store.save(numbered(1))
    size = store.checkpoint_size

    number = 2
    while size + store.journal_size + len(changed(number).encode(number)) + journal.OVERHEAD <= 3_000:
        number += store.append(changed(number)) > 0
    with pytest.raises(CheckpointFullError) as caught:
        store.append(changed(number))

    assert number > 5
    assert caught.value.what.endswith("bytes, and the limit is 3000")
    assert number_in(store) == number - 1
    assert size + store.journal_size <= 3_000
    with pytest.raises(CheckpointFullError):
        store.append(changed(number), limit=10)
    assert store.save(numbered(number)) == number


def test_a_journal_that_is_too_large_is_an_error(store):
    os.truncate(store.path.parent / journal.NAME, (64 << 20) + 1)

    assert "it has more than 67108864 bytes" in load_error(store).what
    assert number_in(store, previous=True) == 1


def test_values_that_json_cannot_represent_are_not_appended(store):
    with pytest.raises(CheckpointError, match="Encoding objects of type object is unsupported"):
        store.append(JournalChange(residue=numbered().residue, plugins=[object()]))  # type: ignore[list-item]
    assert store.append(changed(5)) == 5


@pytest.mark.parametrize("name", [NAME, journal.NAME])
def test_nothing_is_appended_where_no_one_would_find_it(store, name):
    """Someone has moved a file, or replaced it by a copy."""
    path = store.path.parent / name
    path.rename(path.with_name("moved"))
    path.write_bytes(path.with_name("moved").read_bytes())
    path.chmod(0o600)

    with pytest.raises(CheckpointError, match="the checkpoint or its journal was moved or removed"):
        store.append(changed(5))

    assert number_in(store) == 4
    assert store.save(numbered(5)) == 5


def test_a_full_disk_leaves_the_last_change(store):
    with small_disk(store.journal_size + 20):
        for _ in range(2):
            with pytest.raises(CheckpointError, match="File too large"):
                store.append(changed(5))
        assert (number_in(store), loaded(store).notes) == (4, ())
    assert store.append(changed(5)) == 5
    assert number_in(store) == 5


def test_a_checkpoint_that_is_replaced_while_it_is_read_is_read_again(store, monkeypatch):
    """The journal that is read may then belong to the new one."""
    reader = CheckpointStore(store.path.parent)
    read, left = journal.read, iter([True])

    def replaced_meanwhile(*args, **kwargs):
        if next(left, False):
            store.save(numbered(5))
            store.append(changed(6))
        return read(*args, **kwargs)

    monkeypatch.setattr(journal, "read", replaced_meanwhile)

    found = reader.load()
    assert found
    assert found.document.plugins == ["6"]


def test_reading_ends_even_if_the_checkpoint_is_replaced_every_time(store, monkeypatch):
    """What is found then is valid, but may be older than the last change."""
    reader, read, numbers = CheckpointStore(store.path.parent), journal.read, iter(range(5, 100, 2))

    def replaced_meanwhile(*args, **kwargs):
        number = next(numbers)
        store.save(numbered(number))
        store.append(changed(number + 1))
        return read(*args, **kwargs)

    monkeypatch.setattr(journal, "read", replaced_meanwhile)

    found = reader.load()
    assert found
    assert next(numbers) < 30


def test_a_writer_killed_before_any_system_call_leaves_every_acknowledged_change(tmp_path):
    killed = processes.run(programs.kill_journal_writer_before_each_call, tmp_path)

    assert killed > 30


def document(**fields):
    nothing = codec.to_builtins(numbered().residue)
    header = {"format": "", "version": 3, "serial": 1, "journal": "", "residue": nothing, "plugins": []}
    fingerprint = {"fingerprint": "", "facts": {}}
    empty = {"machine": fingerprint, "settings": fingerprint, "pods": [], "waiting": []}
    return codec.convert({**header, **empty, **fields}, CheckpointDocument)


def change(**fields):
    return codec.convert({"serial": 2, "residue": codec.to_builtins(numbered().residue), **fields}, ChangeDocument)


def waiting(uid, source="api"):
    return {"pod": {"name": uid, "namespace": "", "uid": uid}, "since": 0.0, "source": source, "overtaken": 0}


def test_pods_are_removed_replaced_and_appended_in_order():
    before = document(waiting=[waiting("a"), waiting("b"), waiting("c")])
    after = apply_changes(
        before,
        [
            change(removedWaiting=["a"], waiting=[waiting("b", "1"), waiting("a", "2")]),
            change(serial=3, removedWaiting=["c"], plugins=["p"]),
        ],
    )

    assert [codec.to_builtins(pod) for pod in after.waiting] == [waiting("b", "1"), waiting("a", "2")]
    assert (after.serial, after.plugins) == (3, ["p"])
    assert apply_changes(before, []) is before


@pytest.mark.parametrize(
    ("before", "change", "what"),
    [
        pytest.param({}, change(overtaken={"a": 1}), "pod a is overtaken but not waiting", id="not waiting"),
        pytest.param({}, change(removedWaiting=["a"]), "pod a is removed but does not exist", id="not there"),
        pytest.param({"waiting": [waiting("a")] * 2}, change(), "two pods have the same uid", id="one uid twice"),
    ],
)
def test_a_change_of_another_checkpoint_is_an_error(before, change, what):
    with pytest.raises(ParseError, match=what):
        apply_changes(document(**before), [change])


def test_a_checkpoint_of_version_2_has_no_journal(store):
    def older(document):
        document.update(version=2)
        del document["journal"]

    rewrite(store.path, older)

    assert number_in(store) == 1
    assert loaded(store).notes == ("the checkpoint has version 2; the next one will have version 3",)
    assert CheckpointStore(store.path.parent).save(numbered(5)) == 2


def test_a_change_is_written_without_what_is_empty():
    residue = numbered().residue
    full = JournalChange(
        residue=residue,
        plugins=[],
        removed_pods=["a"],
        pods=[b"1", b"2"],
        removed_waiting=["b"],
        waiting=[b"3"],
        overtaken={"c": 4},
    )

    empty, written = (codec.load(one.encode(7)) for one in (JournalChange(residue=residue), full))

    assert empty.keys() == {"serial", "residue"}
    assert written.keys() == set(ChangeDocument.__struct_encode_fields__)
    assert (written["plugins"], written["pods"], written["overtaken"]) == ([], [1, 2], {"c": 4})
