"""Claims in a directory that several users can write."""

import json
import os
from pathlib import Path

import pytest

from alignup.run import cgroup, run_claims
from alignup.run.process import ProcessIdentity
from alignup.run.request import RunRecord
from alignup.run.run_claims import RunClaims
from tests.run.commands import started

STRANGER = 65534
GPU = {"example.com/gpu": frozenset({"gpu-0"})}
NO_GPU: dict[str, frozenset[str]] = {}
NOW = ProcessIdentity.of(os.getpid())
ENDED = NOW._replace(start=1)

root_only = pytest.mark.skipif(os.geteuid() != 0, reason="only root can change the owner of a file")


@pytest.fixture
def directory(tmp_path):
    path = tmp_path / "claims"
    path.mkdir()
    path.chmod(0o1777)
    return path


@pytest.fixture
def mine(directory):
    claims = RunClaims((directory,))
    assert (claims.problem, claims.directory) == ("", directory)
    return claims


def runs(claims: RunClaims) -> list[str]:
    return [claim.run for claim in claims.read()]


def write_claim(directory, run, *, owner=None, cpus="1", runner=NOW, **alive):
    """Files as a run writes them, and as another user could."""
    documents = {
        "alive": {"version": 1, "runner": runner._asdict(), "started": [], "cgroup": None, **alive},
        "claim": {"version": 1, "cpus": cpus, "devices": {}},
    }
    for suffix, document in documents.items():
        path = directory / f"alignup-run-{run}.{suffix}"
        path.write_text(json.dumps(document))
        path.chmod(0o644)
        if owner is not None:
            os.chown(path, owner, owner)


def test_a_claim_is_read_until_it_is_withdrawn(mine, directory):
    assert mine.make("a", cpus=0b110, devices=GPU)

    (claim,) = RunClaims((directory,)).read()
    mine.withdraw("a")

    assert (claim.run, claim.owner, claim.cpus, claim.devices) == ("a", os.geteuid(), 0b110, GPU)
    assert mine.read() == ()
    assert list(directory.iterdir()) == []


@pytest.mark.parametrize(
    ("cpus", "devices", "wins"),
    [
        pytest.param(0b010, NO_GPU, False, id="the same CPU"),
        pytest.param(0b001, GPU, False, id="the same device"),
        pytest.param(0b100, {"example.com/gpu": frozenset({"gpu-1"})}, True, id="something else"),
    ],
)
def test_the_older_of_two_overlapping_claims_counts(mine, cpus, devices, wins):
    first = mine.make("a", cpus=0b010, devices=GPU)
    second = mine.make("b", cpus=cpus, devices=devices)

    assert (first, second) == (True, wins)
    assert runs(mine) == (["a", "b"] if wins else ["a"])
    assert mine.make("c", cpus=0b010, devices=GPU, ignore=True)


def test_a_newer_claim_does_not_make_an_older_one_fail(mine, directory, monkeypatch):
    """A user who answers every claim with one for the same CPUs stops nobody."""
    read = mine.read

    def read_after_answer():
        write_claim(directory, "0")
        os.utime(
            directory / "alignup-run-0.claim", (0, 0)
        )  # a user can change these times, but not the one that counts
        claims = {claim.run: claim for claim in read()}
        return (claims["a"], claims["0"]._replace(time=max(claims["0"].time, claims["a"].time + 1)))

    monkeypatch.setattr(mine, "read", read_after_answer)

    assert mine.make("a", cpus=0b010, devices=NO_GPU)


def test_claims_made_at_the_same_time_both_fail(mine, directory, monkeypatch):
    read = mine.read
    monkeypatch.setattr(mine, "read", lambda: [claim._replace(time=5) for claim in read()])
    write_claim(directory, "0")

    assert not mine.make("a", cpus=0b010, devices=NO_GPU)


def test_a_claim_counts_as_long_as_a_process_of_the_run_lives(mine, directory):
    with started("sleep", "60") as sleeper:
        process = ProcessIdentity.of(sleeper.pid)._asdict()
        write_claim(directory, "runner")
        write_claim(directory, "started", runner=ENDED, started=[process])
        write_claim(directory, "ended", runner=ENDED)
        before = runs(mine)
    after = runs(mine)

    assert (before, after) == (["runner", "started"], ["runner"])
    assert len(list(directory.iterdir())) == 2  # the files of ended runs are removed


def test_a_record_keeps_its_claim_alive(mine):
    mine.make("a", cpus=0b010, devices=NO_GPU)
    with started("sleep", "60") as sleeper:
        process = ProcessIdentity.of(sleeper.pid)
        record = RunRecord(
            uid="a", name="a", runner=ENDED, command=("sleep",), since=0, cpus=2, exclusive=True, started=(process,)
        )
        mine.refresh(record)
        before = runs(mine)
    mine.refresh(record._replace(uid="unclaimed"))

    assert (before, runs(mine)) == (["a"], [])


@pytest.mark.skipif(not cgroup.candidate_parents(), reason="this user may not create cpusets here")
def test_a_claim_counts_as_long_as_its_cgroup_has_processes(mine, directory):
    group = cgroup.create("claims-test", 1, nodes=0)
    try:
        with started("sleep", "60") as sleeper:
            cgroup.join(group, sleeper.pid)
            write_claim(directory, "claims-test", runner=ENDED, cgroup=str(group))
            write_claim(directory, "other", runner=ENDED, cgroup=str(group))
            before = runs(mine)
        after = runs(mine)
    finally:
        cgroup.remove(group)

    assert (before, after) == (["claims-test"], [])


@root_only
@pytest.mark.parametrize(
    ("alive", "why"),
    [
        pytest.param({}, "the runner is not a process of the owner", id="a process of another user"),
        pytest.param({"runner": NOW._replace(space=1)}, "it cannot be seen", id="another pid namespace"),
        pytest.param({"runner": ENDED, "cgroup": "/sys/fs/cgroup"}, "not of the run", id="any cgroup"),
        pytest.param({"runner": ENDED, "cgroup": "/"}, "not a cgroup", id="any directory"),
    ],
)
def test_a_user_cannot_claim_without_a_process(mine, directory, alive, why):
    write_claim(directory, "x", owner=STRANGER, **alive)

    assert mine.read() == (), why


@root_only
def test_a_user_claims_with_a_process(mine, directory):
    with started("sleep", "60", user=STRANGER) as sleeper:
        write_claim(directory, "x", owner=STRANGER, runner=ProcessIdentity.of(sleeper.pid))
        (claim,) = mine.read()

    assert claim.owner == STRANGER


@root_only
def test_the_second_file_of_another_user_keeps_no_claim_alive(mine, directory):
    mine.make("a", cpus=0b010, devices=NO_GPU)
    os.chown(directory / "alignup-run-a.alive", STRANGER, STRANGER)

    assert mine.read() == ()


@pytest.mark.parametrize(
    "contents",
    [
        b"",
        b"[]",
        b"{",
        b"null",
        b"[" * 60_000,
        b"{}",
        b'{"version": 1}',
        b'{"version": 1, "cpus": "0-99999999999", "devices": {}}',
        b'{"version": 1, "cpus": 1, "devices": {}}',
        b'{"version": 1, "cpus": "1", "devices": 3}',
        b'{"version": 1, "cpus": "1", "devices": {"a": 3}}',
        b" " * (1 << 17),
        b"\xff\xfe",
    ],
)
@pytest.mark.parametrize("suffix", ["claim", "alive"])
def test_rubbish_is_ignored(mine, directory, contents, suffix):
    write_claim(directory, "x")
    (directory / f"alignup-run-x.{suffix}").write_bytes(contents)

    assert mine.read() == ()
    assert mine.make("a", cpus=0b010, devices=NO_GPU)


def test_only_regular_files_that_others_cannot_change_count(mine, directory, tmp_path):
    write_claim(tmp_path, "x")
    for name in ("alignup-run-link.claim", "alignup-run-link.alive"):
        (directory / name).symlink_to(tmp_path / f"alignup-run-x{Path(name).suffix}")
    os.mkfifo(directory / "alignup-run-pipe.claim")
    (directory / "alignup-run-folder.claim").mkdir()
    write_claim(directory, "open")
    (directory / "alignup-run-open.claim").chmod(0o666)

    assert mine.read() == ()


def test_a_user_has_a_bounded_number_of_claims(mine, directory, monkeypatch):
    monkeypatch.setattr(run_claims, "_MAX_PER_USER", 3)
    for number in range(5):
        write_claim(directory, str(number))

    assert runs(mine) == ["0", "1", "2"]


def test_a_run_goes_on_when_the_file_system_is_full(directory, monkeypatch):
    def full(path, document):
        raise OSError(28, "No space left on device")

    notes: list[str] = []
    monkeypatch.setattr(run_claims, "_write", full)

    assert RunClaims((directory,), notes.append).make("a", cpus=1, devices=NO_GPU)
    assert notes == [f"other users may get the same CPUs and devices: {directory}: No space left on device"]


@pytest.mark.parametrize(
    ("prepare", "problem"),
    [
        pytest.param(Path.rmdir, "{}: No such file or directory", id="missing"),
        pytest.param(lambda path: path.chmod(0o777), "{} is not sticky", id="without sticky bit"),
        pytest.param(lambda path: (path.rmdir(), path.touch()), "{} is not a directory", id="a file"),
        pytest.param(
            lambda path: (path.rmdir(), path.symlink_to("/dev/shm")),  # noqa: S108 - only its name
            "{} is not a directory",
            id="a link",
        ),
        pytest.param(
            lambda path: os.chown(path, STRANGER, STRANGER), "{} belongs to another user", marks=root_only, id="foreign"
        ),
    ],
)
def test_an_unsuitable_directory_is_not_used(directory, prepare, problem):
    prepare(directory)
    unused = RunClaims((directory,))

    assert (unused.directory, unused.problem) == (None, problem.format(directory))
    assert unused.make("a", cpus=1, devices=NO_GPU)
    assert unused.read() == ()


def test_the_environment_chooses_the_directory(directory):
    def chosen(environment):
        return RunClaims.of_environment(environment, print)

    assert chosen({run_claims.VARIABLE: str(directory)}).directory == directory
    assert (chosen({run_claims.VARIABLE: ""}).directory, chosen({run_claims.VARIABLE: ""}).problem) == (
        None,
        "ALIGNUP_CLAIMS_DIR is empty",
    )
