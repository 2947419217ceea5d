"""The checkpoint: killed writers, torn and changed files, full disks, directories that are not ours."""

import errno
import json
import os
import random
import stat
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from alignup.align.errors import CheckpointError
from alignup.align.host import Host
from alignup.schema.ledgers import crumbs, from_document, pod_document
from alignup.state.checkpoint import (
    NAME,
    Checkpoint,
    CheckpointSchema,
    CheckpointStore,
    LoadedCheckpoint,
    encode_fragment,
)
from alignup.state.fingerprint import machine_fingerprint, settings_fingerprint
from tests.align.hosts import host, pod

ROOT = os.geteuid() == 0


def checkpoint(one: Host, **more) -> Checkpoint:
    """All that stands on a host."""
    return Checkpoint(
        machine=machine_fingerprint(one.machine),
        settings=settings_fingerprint(one.settings),
        crumbs=crumbs(one.ledger),
        pods=[encode_fragment(pod_document(one.ledger, uid)) for uid in one.ledger.pods],
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


def refusal(store: CheckpointStore, **how: bool) -> CheckpointError:
    with pytest.raises(CheckpointError) as caught:
        store.load(**how)
    return caught.value


def test_what_is_saved_is_loaded(store, one):
    waiting = {"pod": "b", "since": 1.5}

    serial = store.save(checkpoint(one, waiting=[encode_fragment(waiting)], extra={"started": {"a": ["app"]}}))
    loaded = found(CheckpointStore(store.path.parent))

    assert loaded.serial == serial == 1
    assert from_document(loaded.document, Host(one.machine, one.settings).ledger) == one.ledger
    assert (loaded.machine, loaded.settings) == (machine_fingerprint(one.machine), settings_fingerprint(one.settings))
    assert loaded.waiting == (waiting,)
    assert loaded.extra == {"started": {"a": ["app"]}}
    assert loaded.notes == ()


def test_there_may_be_nothing_yet(store, one):
    assert store.load() is None
    store.save(replace(checkpoint(one), pods=()))
    assert found(store).document["pods"] == []


def test_people_can_read_it(store, one):
    one.admit(pod("b"))
    store.save(checkpoint(one))

    document = json.loads(store.path.read_bytes())
    lines = store.path.read_text().splitlines()

    assert (document["format"], document["version"], document["serial"]) == ("alignup checkpoint", 1, 1)
    assert [line[:16] for line in lines if line.startswith('{"pod"')] == 2 * ['{"pod":{"name":"']


def test_the_one_before_is_kept(store, one):
    store.save(checkpoint(one))
    first = store.path.read_bytes()
    one.admit(pod("b"))
    store.save(checkpoint(one))

    assert store.previous.read_bytes() == first
    assert names(store) == [NAME, f"{NAME}.previous"]
    again = CheckpointStore(store.path.parent)
    assert found(again).serial == 2
    assert again.save(checkpoint(one)) == 3
    assert found(again, previous=True).serial == 2


def test_all_is_for_its_owner_only(store, one):
    for _ in range(2):
        store.save(checkpoint(one))

    assert stat.S_IMODE(store.path.parent.stat().st_mode) == 0o700
    assert {stat.S_IMODE(path.stat().st_mode) for path in store.path.parent.iterdir()} == {0o600}


def test_a_checkpoint_cut_short_anywhere_is_refused(store, one):
    store.save(checkpoint(one))
    whole = store.path.read_bytes()

    for length in reversed(range(len(whole))):
        os.truncate(store.path, length)
        assert refusal(store).where == str(store.path)
    store.path.write_bytes(whole)
    assert found(store).serial == 1


def test_a_checkpoint_with_any_bit_changed_is_refused(store, one):
    store.save(checkpoint(one))
    whole = store.path.read_bytes()
    rng = random.Random(7)
    head = range(8 * 90)

    with store.path.open("r+b", buffering=0) as file:
        for place in (*head, *rng.sample(range(8 * len(whole)), 2_000)):
            byte, bit = divmod(place, 8)
            os.pwrite(file.fileno(), bytes([whole[byte] ^ 1 << bit]), byte)
            refusal(store)
            os.pwrite(file.fileno(), whole[byte : byte + 1], byte)
    assert found(store).serial == 1
    for extra in (b"\n", b" ", b"{}", whole):
        store.path.write_bytes(whole + extra)
        refusal(store)


def spoil(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-1])


def test_a_damaged_one_is_never_written_over(store, one):
    """It is refused with what to do, kept as it is, and moved aside when somebody goes on from the one before."""
    store.save(checkpoint(one))
    store.save(checkpoint(one))
    spoil(store.path)
    bad = store.path.read_bytes()
    again = CheckpointStore(store.path.parent)

    with pytest.raises(CheckpointError) as caught:
        again.save(checkpoint(one))
    assert caught.value.what == "the checksum is not that of the contents: it was cut short or changed"
    assert caught.value.advice.startswith("start with --recover previous to go on from the one before it (1 pod), or ")
    assert store.path.read_bytes() == bad

    loaded = found(again, previous=True)
    assert loaded.serial == 1
    assert loaded.notes == ("went back to the checkpoint before the last, number 1: what came after it is lost",)
    assert store.path.read_bytes() == bad, "looking back changes nothing"
    assert again.save(checkpoint(one)) == 2
    assert (store.path.parent / f"{NAME}.aside-1").read_bytes() == bad
    assert found(CheckpointStore(store.path.parent)).serial == 2
    assert found(CheckpointStore(store.path.parent), previous=True).serial == 1


def test_with_nothing_good_before_it_nobody_is_sent_there(store, one):
    store.save(checkpoint(one))
    spoil(store.path)
    assert refusal(store).advice.startswith("there is no good one before it; move it out of ")

    store.path.rename(store.previous)
    store.path.write_bytes(b"")
    assert refusal(store).what == "the file is empty"
    assert refusal(store).advice.startswith("there is no good one before it")
    assert refusal(store, previous=True).where == str(store.previous)


def test_a_lost_one_is_not_taken_for_a_beginning(store, one):
    """Killed between moving a bad one aside and writing a new one, there is only the one before."""
    store.save(checkpoint(one))
    store.save(checkpoint(one))
    store.set_aside()

    error = refusal(CheckpointStore(store.path.parent))

    assert error.what == "there is no checkpoint, but the one before it is there"
    assert error.advice.startswith("start with --recover previous, or move it out of ")
    assert found(CheckpointStore(store.path.parent), previous=True).serial == 1
    store.previous.unlink()
    assert CheckpointStore(store.path.parent).load() is None


def test_there_may_be_none_before_the_last(store, one):
    store.save(checkpoint(one))

    assert refusal(store, previous=True).what == "there is no checkpoint before the last"


def test_those_aside_do_not_push_each_other_out(store, one):
    for number in (1, 2, 3):
        store.save(checkpoint(one))
        assert store.set_aside().name == f"{NAME}.aside-{number}"
    with pytest.raises(CheckpointError, match="No such file"):
        store.set_aside()


def rewritten(store: CheckpointStore, **fields) -> None:
    """The checkpoint as somebody would have written it who knows how, with other *fields*."""
    from hashlib import sha256  # noqa: PLC0415 - nobody else here forges checkpoints

    head, _, body = store.path.read_bytes().partition(b"\n")
    document = {**json.loads(b"{" + body), **fields}
    body = json.dumps({key: value for key, value in document.items() if value is not None})[1:].encode()
    store.path.write_bytes(head[:11] + sha256(body).hexdigest().encode() + b'",\n' + body)


@pytest.mark.parametrize(
    ("fields", "what"),
    [
        pytest.param({"format": "another"}, "this is no checkpoint but 'another'", id="another format"),
        pytest.param({"version": "1"}, "this is no checkpoint but 'alignup checkpoint'", id="a version in words"),
        pytest.param({"version": 0}, "the contents make no sense: KeyError: 0", id="a version that never was"),
        pytest.param({"pods": None}, "the contents make no sense: KeyError: 'pods'", id="no pods"),
        pytest.param(
            {"machine": "mine"},
            "the contents make no sense: TypeError: string indices must be integers, not 'str'",
            id="a machine in words",
        ),
    ],
)
def test_what_makes_no_sense_is_refused(store, one, fields, what):
    store.save(checkpoint(one))
    rewritten(store, **fields)

    assert refusal(store).what == what


def test_a_newer_one_is_left_to_a_newer_program(store, one):
    store.save(checkpoint(one))
    rewritten(store, version=2)

    error = refusal(store)

    assert error.what == "the checkpoint is of version 2, and this program knows versions up to 1"
    assert error.advice.startswith("start the alignup that wrote it, or a newer one")


def test_older_ones_are_brought_up_step_by_step(store, one):
    def second(document):
        return {**document, "extra": {"steps": ["second"]}}

    def third(document):
        return {**document, "extra": {"steps": [*document["extra"]["steps"], "third"]}}

    store.save(checkpoint(one))
    now = CheckpointStore(store.path.parent, schema=CheckpointSchema(3, {1: second, 2: third}))

    loaded = found(now)
    assert loaded.extra == {"steps": ["second", "third"]}
    assert loaded.notes == ("the checkpoint was of version 1; the next one will be of version 3",)
    assert from_document(loaded.document, Host(one.machine, one.settings).ledger) == one.ledger
    now.save(checkpoint(one))
    assert found(now).notes == ()
    assert found(now, previous=True).extra == {"steps": ["second", "third"]}
    assert refusal(store).what.startswith("the checkpoint is of version 3")


def test_what_is_no_json_is_not_written(store, one):
    store.save(checkpoint(one))

    with pytest.raises(CheckpointError) as caught:
        store.save(checkpoint(one, extra={"set": {1, 2}}))

    assert caught.value.what == "the checkpoint cannot be written: Object of type set is not JSON serializable"
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


def too_large(store: CheckpointStore) -> None:
    os.truncate(store.path, 65 << 20)


def not_ours(store: CheckpointStore) -> None:
    os.chown(store.path, 1234, 1234)


@pytest.mark.parametrize(
    ("change", "what"),
    [
        pytest.param(link_to_file, "it is no regular file", id="a link"),
        pytest.param(pipe, "it is no regular file", id="a pipe"),
        pytest.param(open_to_all, "others may write to it (mode 666)", id="a file others may write to"),
        pytest.param(too_large, "so it is no state file", id="a file that is far too large"),
        pytest.param(
            not_ours,
            f"it belongs to user 1234, and this is user {os.geteuid()}",
            id="somebody else's",
            marks=pytest.mark.skipif(not ROOT, reason="only root can give files away"),
        ),
    ],
)
def test_a_file_that_is_not_ours_alone_is_not_trusted(store, one, change, what):
    store.save(checkpoint(one))
    change(store)

    error = refusal(store)

    assert what in error.what
    assert "belongs to its user alone" in error.advice


def test_a_directory_must_be_ours_alone(tmp_path):
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "real")
    (tmp_path / "file").touch()
    (tmp_path / "open").mkdir()
    (tmp_path / "open").chmod(0o777)
    expected = {
        "link": "it is no directory, or a link to one",
        "file": "it is no directory, or a link to one",
        "open": "others may write to it (mode 777)",
        "file/below": f"it cannot be made or looked at: {tmp_path}/file: File exists",
    }

    for name, what in expected.items():
        with pytest.raises(CheckpointError) as caught:
            CheckpointStore(tmp_path / name)
        assert (caught.value.what, caught.value.where) == (what, str(tmp_path / name))


def test_a_directory_others_may_look_into_is_closed(tmp_path):
    """A system makes them so for services, and there is no harm in it yet."""
    tmp_path.chmod(0o755)

    CheckpointStore(tmp_path)

    assert stat.S_IMODE(tmp_path.stat().st_mode) == 0o700


def test_leftovers_of_a_killed_writer_do_no_harm(store, one):
    store.save(checkpoint(one))
    (store.path.parent / f".{NAME}.new").write_bytes(b"half a checkp")
    os.link(store.path, store.path.parent / f".{NAME}.kept")

    for _ in range(2):
        store.save(checkpoint(one))

    assert names(store) == [NAME, f"{NAME}.previous"]
    assert found(store).serial == 3


def test_the_one_before_is_found_where_a_killed_writer_left_it(store, one):
    """Killed between putting the new one in place and giving the old one its name."""
    store.save(checkpoint(one))
    store.save(checkpoint(one))
    store.previous.rename(store.path.with_name(f".{NAME}.kept"))

    assert found(CheckpointStore(store.path.parent), previous=True).serial == 1
    assert names(store) == [NAME, f"{NAME}.previous"]


def test_one_that_was_not_replaced_after_all_is_not_the_one_before(store, one):
    """Killed before the new one was in place."""
    store.save(checkpoint(one))
    store.save(checkpoint(one))
    os.link(store.path, store.path.with_name(f".{NAME}.kept"))

    assert found(CheckpointStore(store.path.parent), previous=True).serial == 1
    assert names(store) == [NAME, f"{NAME}.previous"]


#: Forks writers and kills each at some moment; what is there then must be what was said last, or the one after it.
#: Every checkpoint has its number in it several times over, so a mixture of two would show.
KILLER = """
import os, random, signal, sys, time
from pathlib import Path
from alignup.state.fingerprint import Fingerprint
from alignup.state.checkpoint import Checkpoint, CheckpointStore, encode_fragment

directory, rounds = Path(sys.argv[1]), int(sys.argv[2])
nothing = Fingerprint.of({})
rng = random.Random(3)

def numbered(number):
    pods = [encode_fragment({"number": number, "text": "x" * 400}) for _ in range(number % 50)]
    return Checkpoint(machine=nothing, settings=nothing, crumbs={"number": number}, pods=pods)

def write_for_ever(tell):
    store = CheckpointStore(directory)
    loaded = store.load()
    number = loaded.serial if loaded else 0
    while True:
        number += 1
        assert store.save(numbered(number)) == number
        os.write(tell, number.to_bytes(8, "big"))

last = 0
for _ in range(rounds):
    heard, tell = os.pipe()
    writer = os.fork()
    if not writer:
        os.close(heard)
        try:
            write_for_ever(tell)
        finally:
            os._exit(9)
    os.close(tell)
    said = os.read(heard, 8)
    time.sleep(rng.random() * 0.02)
    os.kill(writer, signal.SIGKILL)
    _, status = os.waitpid(writer, 0)
    assert os.WIFSIGNALED(status), "the writer failed by itself"
    while piece := os.read(heard, 1 << 16):
        said += piece
    os.close(heard)
    last = int.from_bytes(said[-8:], "big")
    store = CheckpointStore(directory)
    loaded = store.load()
    assert loaded.serial in (last, last + 1), (loaded.serial, last)
    before = store.load(previous=True) if loaded.serial > 1 else loaded
    assert before.serial >= loaded.serial - 1, (before.serial, loaded.serial)
    for one in (loaded, before):
        assert one.document["crumbs"] == {"number": one.serial}
        assert [pod["number"] for pod in one.document["pods"]] == [one.serial] * (one.serial % 50)
print(last)
"""

#: Saves as long as there is room, and says how that ended.
FULL = """
import json, resource, sys
from pathlib import Path
from alignup.align.errors import CheckpointError
from alignup.state.fingerprint import Fingerprint
from alignup.state.checkpoint import Checkpoint, CheckpointStore, encode_fragment

nothing = Fingerprint.of({})
store = CheckpointStore(Path(sys.argv[1]))

def holding(count):
    pods = [encode_fragment({"text": "x" * 1000})] * count
    return Checkpoint(machine=nothing, settings=nothing, crumbs={}, pods=pods)

store.save(holding(1))
store.save(holding(2))
sys.dont_write_bytecode = True
resource.setrlimit(resource.RLIMIT_FSIZE, (50_000, resource.RLIM_INFINITY))
problems = []
for _ in range(3):
    try:
        store.save(holding(100))
    except CheckpointError as error:
        problems.append([error.what, error.where, error.advice])
small = store.save(holding(3))
before = CheckpointStore(Path(sys.argv[1])).load(previous=True).serial
resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
print(json.dumps({"problems": problems, "small": small, "before": before, "large": store.save(holding(100)),
                  "serial": CheckpointStore(Path(sys.argv[1])).load().serial}))
"""

#: Tries to save where it may not; root may anywhere, so it becomes somebody else first.
STRANGER = """
import os, sys
from pathlib import Path
from alignup.align.errors import CheckpointError
from alignup.state.fingerprint import Fingerprint
from alignup.state.checkpoint import Checkpoint, CheckpointStore

root = Path(sys.argv[1])
os.chdir(root.parent)
root = Path(root.name)
if os.geteuid() == 0:
    os.chown(root, 65534, 65534)
    os.setgid(65534)
    os.setuid(65534)
nothing = Fingerprint.of({})
checkpoint = Checkpoint(machine=nothing, settings=nothing, crumbs={})
store = CheckpointStore(root)
store.save(checkpoint)
root.chmod(0o500)
for _ in range(2):
    try:
        store.save(checkpoint)
    except CheckpointError as error:
        print(error.what)
root.chmod(0o700)
print(store.save(checkpoint))
"""


def python(program: str, *arguments: object) -> str:
    done = subprocess.run(  # noqa: S603 - our own program
        [sys.executable, "-c", program, *map(str, arguments)], capture_output=True, text=True, check=False, timeout=120
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_writers_killed_at_any_moment_leave_what_they_said_last(tmp_path):
    written = int(python(KILLER, tmp_path / "root", 50))

    assert written > 50


def test_a_full_disk_leaves_what_was_there(tmp_path):
    told = json.loads(python(FULL, tmp_path / "root"))

    path = str(tmp_path / "root" / NAME)
    assert len(told["problems"]) == 3
    for what, where, advice in told["problems"]:
        assert what == f"the checkpoint cannot be written: cannot write {path}: {os.strerror(errno.EFBIG)}"
        assert where == path
        assert advice.startswith("the one before it still counts")
    assert (told["small"], told["before"], told["large"], told["serial"]) == (3, 2, 4, 4)


def test_a_directory_that_may_not_be_written_to_leaves_what_was_there(tmp_path):
    root = tmp_path / "root"
    root.mkdir()
    tmp_path.chmod(0o755)

    first, second, serial = python(STRANGER, root).splitlines()

    assert first == second == "the checkpoint cannot be written: Permission denied"
    assert serial == "2"
