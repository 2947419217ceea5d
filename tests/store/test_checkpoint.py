"""The checkpoint survives crashes, full disks and foreign files, or says what to do."""

import errno
import json
import os
import random
import stat
from dataclasses import replace
from pathlib import Path

import pytest

from alignup.align import bits
from alignup.align.errors import CheckpointError, CheckpointFullError
from alignup.align.host import Host
from alignup.align.ledger import Ledger
from alignup.align.settings import Policy
from alignup.documents import codec
from alignup.documents.checkpoints import HeldPodDocument, WaitingPodDocument
from alignup.documents.ledgers.documents import pod_entry, residue
from alignup.documents.ledgers.restore import restore_ledger
from alignup.documents.pods import pod_document
from alignup.store.checkpoint import CheckpointStore
from alignup.store.checkpoint_format import NAME, Checkpoint, LoadedCheckpoint
from alignup.store.directory import Directory
from alignup.store.fingerprint import machine_fingerprint, settings_fingerprint
from tests.align.hosts import GIB, GPU, host, pod
from tests.effort import SEED, did, rounds
from tests.store import processes, programs
from tests.store.faults import NOBODY, small_disk, without_rights
from tests.store.programs import numbered
from tests.store.rewriting import rewrite

ROOT = os.geteuid() == 0


def checkpoint(one: Host, **more) -> Checkpoint:
    """The state of a host."""
    return Checkpoint(
        machine=machine_fingerprint(one.machine),
        settings=settings_fingerprint(one.settings),
        residue=residue(one.ledger),
        pods=[codec.encode(HeldPodDocument(entry=pod_entry(one.ledger, uid))) for uid in one.ledger.pods],
        **more,
    )


@pytest.fixture
def one():
    made = host()
    made.admit(pod("a", gpu="1"))
    return made


@pytest.fixture
def store(tmp_path):
    return CheckpointStore(tmp_path / "root")


def names(store: CheckpointStore) -> list[str]:
    return sorted(path.name for path in store.path.parent.iterdir())


def found(store: CheckpointStore, **how: bool) -> LoadedCheckpoint:
    loaded = store.load(**how)
    assert loaded
    return loaded


def ledger_of(loaded: LoadedCheckpoint, one: Host) -> Ledger:
    entries = [pod.entry for pod in loaded.document.pods]
    return restore_ledger(entries, loaded.document.residue, idle=Host(one.machine, one.settings).ledger)


def load_error(store: CheckpointStore, **how: bool) -> CheckpointError:
    with pytest.raises(CheckpointError) as caught:
        store.load(**how)
    return caught.value


def save_error(store: CheckpointStore, checkpoint: Checkpoint) -> CheckpointError:
    with pytest.raises(CheckpointError) as caught:
        store.save(checkpoint)
    return caught.value


def test_a_saved_checkpoint_is_loaded(store, one):
    waiting = WaitingPodDocument(pod=pod_document(pod("b")), since=1.5, source="api", overtaken=2)

    serial = store.save(checkpoint(one, waiting=[codec.encode(waiting)], plugins=["gpu"]))
    loaded = found(CheckpointStore(store.path.parent))

    document = loaded.document
    assert document.serial == serial == 1
    assert ledger_of(loaded, one) == one.ledger
    assert (document.machine, document.settings) == (
        machine_fingerprint(one.machine),
        settings_fingerprint(one.settings),
    )
    assert document.waiting == [waiting]
    assert document.plugins == ["gpu"]
    assert loaded.notes == ()


def test_a_locked_directory_does_not_stop_the_writer(tmp_path):
    """A user who opened the directory before it became private can keep it locked."""
    store = CheckpointStore(tmp_path)
    with Directory(tmp_path) as other:
        other.lock()

        assert store.save(checkpoint(host())) == 1
        assert store.set_aside().exists()


def test_the_first_checkpoint_may_be_empty(store, one):
    assert store.load() is None
    store.save(replace(checkpoint(one), pods=()))
    assert found(store).document.pods == []


def test_a_checkpoint_has_one_line_per_pod(store, one):
    one.admit(pod("b"))
    store.save(checkpoint(one))

    document = json.loads(store.path.read_bytes())
    lines = store.path.read_text().splitlines()

    assert (document["format"], document["version"], document["serial"]) == ("alignup checkpoint", 3, 1)
    assert [line[:25] for line in lines if line.startswith('{"entry"')] == 2 * ['{"entry":{"pod":{"name":"']


def test_lone_surrogates_survive(store, one):
    """JSON manifests can contain them as escapes, and UTF-8 cannot represent them."""
    one.admit(replace(pod("b"), labels={"app": "web \udcff"}))
    store.save(checkpoint(one))

    assert ledger_of(found(store), one) == one.ledger


VERSION_1 = Path(__file__).parents[1] / "documents" / "version1" / NAME


def test_version_1_is_migrated(store):
    """The file is one that release 0.1 wrote."""
    one = host(Policy.BEST_EFFORT)
    store.path.write_bytes(VERSION_1.read_bytes())
    store.path.chmod(0o600)

    loaded = found(store)

    document = loaded.document
    assert loaded.notes == ("the checkpoint has version 1; the next one will have version 3",)
    assert document.serial == 8
    assert document.machine == machine_fingerprint(one.machine)
    assert document.settings.facts == settings_fingerprint(one.settings).facts
    assert document.plugins == [GPU]
    ledger = ledger_of(loaded, one)
    assert list(ledger.pods) == ["trainer", "big", "small"]
    assert [bits.show(ledger.cpus.owned(uid)) for uid in ledger.pods] == ["2-3", "1,4-5", "6"]
    assert [node.tables["memory"].reserved for node in ledger.memory.nodes.values()] == [2 * GIB, 2 * GIB]
    assert ledger.devices.held["trainer"]["app"] == {GPU: ("gpu-0",)}
    trainer = document.pods[0]
    assert (trainer.since, trainer.source) == (1000.0, "/etc/pods/trainer.yaml")
    assert trainer.grants["app"][GPU]["envs"] == {"GPU": "0"}
    assert [(one.pod.uid, one.overtaken) for one in document.waiting] == [("next", 1)]
    assert store.save(checkpoint(one)) == 9
    assert found(store).notes == ()
    assert found(store, previous=True).document == document


def test_the_previous_checkpoint_is_kept(store, one):
    store.save(checkpoint(one))
    first = store.path.read_bytes()
    one.admit(pod("b"))
    store.save(checkpoint(one))

    assert store.previous.read_bytes() == first
    assert names(store) == [NAME, f"{NAME}.previous"]
    again = CheckpointStore(store.path.parent)
    assert found(again).document.serial == 2
    assert again.save(checkpoint(one)) == 3
    assert found(again, previous=True).document.serial == 2


def test_only_the_owner_has_access(store, one):
    for _ in range(2):
        store.save(checkpoint(one))

    assert stat.S_IMODE(store.path.parent.stat().st_mode) == 0o700
    assert {stat.S_IMODE(path.stat().st_mode) for path in store.path.parent.iterdir()} == {0o600}


def test_a_checkpoint_truncated_anywhere_is_rejected(store, one):
    store.save(checkpoint(one))
    whole = store.path.read_bytes()

    for length in reversed(range(len(whole))):
        os.truncate(store.path, length)
        assert load_error(store).where == str(store.path)
    store.path.write_bytes(whole)
    assert found(store).document.serial == 1


@pytest.mark.soak
def test_a_checkpoint_with_any_changed_bit_is_rejected(store, one):
    store.save(checkpoint(one))
    whole = store.path.read_bytes()
    head, places = range(8 * 90), range(8 * len(whole))
    changes = (*head, *random.Random(SEED).sample(places, rounds(2_000, soak=len(places))))
    did("checkpoints damaged", len(changes))

    with store.path.open("r+b", buffering=0) as file:
        for place in changes:
            byte, bit = divmod(place, 8)
            os.pwrite(file.fileno(), bytes([whole[byte] ^ 1 << bit]), byte)
            load_error(store)
            os.pwrite(file.fileno(), whole[byte : byte + 1], byte)
    assert found(store).document.serial == 1
    for extra in (b"\n", b" ", b"{}", whole):
        store.path.write_bytes(whole + extra)
        load_error(store)


def spoil(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-1])


def test_a_damaged_checkpoint_is_never_overwritten(store, one):
    """The error says what to do; continuing from the previous checkpoint sets the damaged one aside."""
    store.save(checkpoint(one))
    store.save(checkpoint(one))
    spoil(store.path)
    bad = store.path.read_bytes()
    again = CheckpointStore(store.path.parent)

    error = save_error(again, checkpoint(one))
    assert error.what == "the checksum does not match the contents: the file was truncated or changed"
    assert error.advice.startswith("start with --recover previous to continue from the previous one (1 pod), or ")
    assert store.path.read_bytes() == bad

    loaded = found(again, previous=True)
    assert loaded.document.serial == 1
    assert loaded.notes == ("using the previous checkpoint, serial 1: later changes are lost",)
    assert store.path.read_bytes() == bad, "loading changes nothing"
    assert again.save(checkpoint(one)) == 2
    assert (store.path.parent / f"{NAME}.aside-1").read_bytes() == bad
    assert found(CheckpointStore(store.path.parent)).document.serial == 2
    assert found(CheckpointStore(store.path.parent), previous=True).document.serial == 1


def test_the_advice_names_the_previous_checkpoint_only_if_it_is_valid(store, one):
    store.save(checkpoint(one))
    spoil(store.path)
    assert load_error(store).advice.startswith("no valid previous one exists; move it out of ")

    store.path.rename(store.previous)
    store.path.write_bytes(b"")
    assert load_error(store).what == "the file is empty"
    assert load_error(store).advice.startswith("no valid previous one exists")
    assert load_error(store, previous=True).where == str(store.previous)


def test_a_missing_checkpoint_is_not_an_empty_one(store, one):
    """A writer killed between setting a damaged one aside and writing a new one leaves only the previous one."""
    store.save(checkpoint(one))
    store.save(checkpoint(one))
    store.set_aside()

    error = load_error(CheckpointStore(store.path.parent))

    assert error.what == "the checkpoint is missing, but the previous one (1 pod) exists"
    assert error.advice.startswith("start with --recover previous, or move it out of ")
    assert found(CheckpointStore(store.path.parent), previous=True).document.serial == 1
    store.previous.unlink()
    assert CheckpointStore(store.path.parent).load() is None


def test_there_may_be_no_previous_checkpoint(store, one):
    store.save(checkpoint(one))

    assert load_error(store, previous=True).what == "there is no previous checkpoint"


def test_checkpoints_set_aside_do_not_overwrite_each_other(store, one):
    for number in (1, 2, 3):
        store.save(checkpoint(one))
        assert store.set_aside().name == f"{NAME}.aside-{number}"
    with pytest.raises(CheckpointError, match="No such file"):
        store.set_aside()


def rewritten(store: CheckpointStore, **fields) -> None:
    """Replace *fields* in the checkpoint, with a valid checksum; ``None`` removes one."""

    def change(document):
        document.update(fields)
        for key in [key for key, value in document.items() if value is None]:
            del document[key]

    rewrite(store.path, change)


@pytest.mark.parametrize(
    ("fields", "what"),
    [
        pytest.param({"format": "another"}, "not a checkpoint but 'another'", id="another format"),
        pytest.param({"version": "1"}, "the contents are invalid: version: expected `int`, got `str`", id="a string"),
        pytest.param({"version": 0}, "the contents are invalid: missing 0", id="an unknown version"),
        pytest.param(
            {"pods": None}, "the contents are invalid: object missing required field `pods`", id="a missing field"
        ),
        pytest.param(
            {"pods": [{}]},
            "the contents are invalid: pods[0]: object missing required field `entry`",
            id="no entry",
        ),
        pytest.param(
            {"machine": "mine"}, "the contents are invalid: machine: expected `object`, got `str`", id="no fingerprint"
        ),
        pytest.param({"version": 1}, "the contents are invalid: missing 'crumbs'", id="a damaged version 1"),
    ],
)
def test_invalid_contents_are_rejected(store, one, fields, what):
    store.save(checkpoint(one))
    rewritten(store, **fields)

    assert load_error(store).what == what


def test_a_newer_version_is_left_to_a_newer_release(store, one):
    store.save(checkpoint(one))
    rewritten(store, version=4)

    error = load_error(store)

    assert error.what == "the checkpoint has version 4, but this release reads versions up to 3"
    assert error.advice.startswith("start the release of alignup that wrote it, or a newer one")


def test_older_versions_are_migrated_step_by_step(store, one):
    def fourth(document):
        return {**document, "plugins": ["fourth"]}

    def fifth(document):
        return {**document, "plugins": [*document["plugins"], "fifth"]}

    store.save(checkpoint(one))
    now = CheckpointStore(store.path.parent, migrations={3: fourth, 4: fifth})

    loaded = found(now)
    assert loaded.document.plugins == ["fourth", "fifth"]
    assert loaded.notes == ("the checkpoint has version 3; the next one will have version 5",)
    assert ledger_of(loaded, one) == one.ledger
    now.save(checkpoint(one))
    assert found(now).notes == ()
    assert found(now, previous=True).document.plugins == ["fourth", "fifth"]
    assert load_error(store).what.startswith("the checkpoint has version 5")


def test_values_that_json_cannot_represent_are_not_written(store, one):
    store.save(checkpoint(one))

    error = save_error(store, checkpoint(one, plugins=[object()]))

    assert error.what == "the checkpoint cannot be written: Encoding objects of type object is unsupported"
    assert store.save(checkpoint(one)) == 2


def link_to_file(store: CheckpointStore) -> None:
    target = store.path.with_name("target")
    store.path.rename(target)
    store.path.symlink_to(target)


def pipe(store: CheckpointStore) -> None:
    store.path.unlink()
    os.mkfifo(store.path, 0o600)


def open_to_all(store: CheckpointStore) -> None:
    store.path.chmod(0o666)


def not_ours(store: CheckpointStore) -> None:
    os.chown(store.path, 1234, 1234)


@pytest.mark.parametrize(
    ("change", "what"),
    [
        pytest.param(link_to_file, "it is not a regular file", id="a link"),
        pytest.param(pipe, "it is not a regular file", id="a pipe"),
        pytest.param(open_to_all, "other users can write to it (mode 666)", id="a file others can write to"),
        pytest.param(
            not_ours,
            f"it belongs to user 1234, but this process runs as user {os.geteuid()}",
            id="a file of another user",
            marks=pytest.mark.skipif(not ROOT, reason="only root can give files away"),
        ),
    ],
)
def test_a_file_that_others_can_change_is_not_trusted(store, one, change, what):
    store.save(checkpoint(one))
    change(store)

    error = load_error(store)

    assert what in error.what
    assert "belongs to its user alone" in error.advice


def test_a_checkpoint_that_is_too_large_is_left_to_the_previous_one(store, one):
    """Earlier releases could write one."""
    store.save(checkpoint(one))
    os.truncate(store.path, (64 << 20) + 1)
    what = "cannot read {}: it has more than 67108864 bytes"
    advice = f"move it out of {store.path.parent} to start empty: what its pods hold is then free"

    alone = load_error(store)
    store.path.rename(store.previous)
    without = load_error(store)
    store.path.write_bytes(store.previous.read_bytes())
    both = load_error(store)

    assert (alone.what, alone.advice) == (what.format(store.path), f"no valid previous one exists; {advice}")
    assert (without.what, without.advice) == (what.format(store.previous), advice)
    assert (both.what, both.advice) == (what.format(store.path), f"no valid previous one exists; {advice}")


@pytest.mark.parametrize("limit", [2_000, 2_001])
def test_nothing_is_written_that_is_too_large_to_be_read_again(tmp_path, limit):
    store = CheckpointStore(tmp_path / "root", limit=2_000)
    empty = len(stored(store, numbered()))
    fitting, larger = numbered(pods=1, size=2_000 - empty - 8), numbered(pods=1, size=2_000 - empty - 7)

    assert len(stored(store, fitting)) == 2_000
    error = save_error(store, larger)
    assert isinstance(error, CheckpointFullError)
    assert error.what == "the ledger is full: the checkpoint would have 2001 bytes, and the limit is 2000"
    with pytest.raises(CheckpointFullError):
        store.save(fitting, limit=1_999)

    again = CheckpointStore(tmp_path / "root", limit=2_000)
    assert found(again).document.serial == 2
    assert names(again) == [NAME, f"{NAME}.previous"]
    assert store.save(fitting, limit=limit) == 3


def stored(store: CheckpointStore, one: Checkpoint) -> bytes:
    store.save(one)
    return store.path.read_bytes()


def test_a_directory_that_others_can_change_is_not_trusted(tmp_path):
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "real")
    (tmp_path / "file").touch()
    (tmp_path / "open").mkdir()
    (tmp_path / "open").chmod(0o777)
    expected = {
        "link": "it is not a directory",
        "file": "it is not a directory",
        "open": "other users can write to it (mode 777)",
        "file/below": f"cannot be created or read: {tmp_path}/file: Not a directory",
    }

    for name, what in expected.items():
        with pytest.raises(CheckpointError) as caught:
            CheckpointStore(tmp_path / name)
        assert (caught.value.what, caught.value.where) == (what, str(tmp_path / name))


def test_an_unreadable_file_is_an_error(store, one, monkeypatch):
    def read(*_, **__):
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))

    store.save(checkpoint(one))
    monkeypatch.setattr(Directory, "read", read)

    assert load_error(store).what == "Permission denied"


def test_a_directory_that_was_replaced_is_an_error(store):
    store.path.parent.rmdir()
    store.path.parent.touch()

    assert load_error(store).what == "Not a directory"


def test_a_directory_that_others_can_read_is_closed(tmp_path):
    """systemd creates them like this."""
    tmp_path.chmod(0o755)

    CheckpointStore(tmp_path)

    assert stat.S_IMODE(tmp_path.stat().st_mode) == 0o700


def test_files_left_by_a_killed_writer_are_removed(store, one):
    store.save(checkpoint(one))
    (store.path.parent / f".{NAME}.new").write_bytes(b"half a checkp")
    os.link(store.path, store.path.parent / f".{NAME}.kept")

    for _ in range(2):
        store.save(checkpoint(one))

    assert names(store) == [NAME, f"{NAME}.previous"]
    assert found(store).document.serial == 3


def test_the_previous_checkpoint_is_found_where_a_killed_writer_left_it(store, one):
    """It was killed after it put the new one in place and before it renamed the old one."""
    store.save(checkpoint(one))
    store.save(checkpoint(one))
    store.previous.rename(store.path.with_name(f".{NAME}.kept"))

    assert found(CheckpointStore(store.path.parent), previous=True).document.serial == 1
    assert names(store) == [NAME, f"{NAME}.previous"]


def test_a_checkpoint_that_was_not_replaced_is_not_the_previous_one(store, one):
    """The writer was killed before the new one was in place."""
    store.save(checkpoint(one))
    store.save(checkpoint(one))
    os.link(store.path, store.path.with_name(f".{NAME}.kept"))

    assert found(CheckpointStore(store.path.parent), previous=True).document.serial == 1
    assert names(store) == [NAME, f"{NAME}.previous"]


@pytest.mark.soak
def test_killed_writers_leave_the_last_checkpoint_they_reported(tmp_path):
    kills = rounds(10, soak=300)

    processes.run(programs.kill_checkpoint_writers, tmp_path / "root", kills, SEED)

    did("checkpoint writers killed", kills)


def test_a_writer_killed_before_any_system_call_leaves_a_valid_checkpoint(tmp_path):
    """It is the old one or the new one, and the one before it is kept."""
    killed = processes.run(programs.kill_checkpoint_writer_before_each_call, tmp_path / "root")

    assert killed > 15
    assert names(CheckpointStore(tmp_path / "root")) == [NAME, f"{NAME}.previous"]


def test_a_full_disk_leaves_the_last_checkpoint(store):
    for pods in (1, 2):
        store.save(numbered(pods=pods, size=1000))

    with small_disk(50_000):
        for _ in range(3):
            error = save_error(store, numbered(pods=100, size=1000))
            why = f"the checkpoint cannot be written: {os.strerror(errno.EFBIG)}"
            assert (error.what, error.where) == (why, str(store.path))
            assert error.advice.startswith("the previous one is still valid")
        assert store.save(numbered(pods=3, size=1000)) == 3
        assert found(CheckpointStore(store.path.parent), previous=True).document.serial == 2

    assert store.save(numbered(pods=100, size=1000)) == 4
    assert found(CheckpointStore(store.path.parent)).document.serial == 4


def test_a_read_only_directory_leaves_the_last_checkpoint(tmp_path):
    root = tmp_path / "root"
    root.mkdir()
    if ROOT:
        os.chown(root, NOBODY, NOBODY)
    tmp_path.chmod(0o755)

    with without_rights(tmp_path):
        store = CheckpointStore(Path("root"))
        store.save(numbered())
        store.path.parent.chmod(0o500)
        for _ in range(2):
            assert save_error(store, numbered()).what == "the checkpoint cannot be written: Permission denied"
        store.path.parent.chmod(0o700)
        assert store.save(numbered()) == 2
