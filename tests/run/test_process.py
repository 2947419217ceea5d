"""Processes: their identity, their affinity, and how they are found."""

import os
import threading
from dataclasses import replace
from uuid import uuid4

import pytest

from alignup.align import bits
from alignup.align.errors import EnforceError
from alignup.run import process
from alignup.run.process import ProcessIdentity, ProcessInfo
from tests.deadlines import wait_for
from tests.run.commands import is_zombie, python, started

PERMITTED = process.permitted_cpus()
LOWEST = PERMITTED & -PERMITTED


@pytest.fixture
def sleeper():
    with started("sleep", "60") as one:
        yield one


def test_a_process_is_alive_until_it_ends(sleeper):
    one = ProcessIdentity.of(sleeper.pid)

    alive = one.alive
    sleeper.kill()
    sleeper.wait()

    assert alive
    assert not one.alive


def test_a_zombie_is_not_alive():
    with started("true") as ended:
        one = ProcessIdentity.of(ended.pid)
        wait_for(lambda: is_zombie(ended.pid))

        assert not one.alive


@pytest.mark.parametrize(
    ("change", "alive"),
    [
        pytest.param({"start": 1}, False, id="a reused pid"),
        pytest.param({"boot": "before"}, False, id="before the last boot"),
        pytest.param({"space": 1}, True, id="another pid namespace"),
    ],
)
def test_a_pid_alone_does_not_identify_a_process(change, alive):
    assert replace(ProcessIdentity.of(os.getpid()), **change).alive is alive


def test_a_missing_process_is_an_error():
    with pytest.raises(EnforceError, match="there is no process 0"):
        ProcessIdentity.of(0)


def test_all_threads_are_pinned():
    script = "import threading, time\nfor _ in range(3): threading.Thread(target=time.sleep, args=[60]).start()\n"
    with python(f"{script}print('ready', flush=True)") as threads:
        assert threads.stdout is not None
        threads.stdout.readline()

        process.pin(threads.pid, LOWEST)
        allowed = process.thread_cpusets(threads.pid)

    assert [one.cpus for one in allowed] == [LOWEST] * 4


def test_missing_cpus_are_an_error(sleeper):
    with pytest.raises(EnforceError, match="to CPUs 99999"):
        process.pin(sleeper.pid, 1 << 99999)


def test_permitted_cpus_are_found_without_changing_the_affinity():
    found: list[tuple[int, set[int]]] = []

    def narrow():
        os.sched_setaffinity(0, bits.members(LOWEST))
        found.append((process.permitted_cpus(), os.sched_getaffinity(0)))

    thread = threading.Thread(target=narrow)
    thread.start()
    thread.join()

    assert found == [(PERMITTED, set(bits.members(LOWEST)))]


def test_processes_are_listed_with_their_parent_owner_and_mark():
    variable = f"MARKED_{uuid4().hex}"
    with started("sleep", "60", env={variable: "yes"}) as one:
        found = process.list_processes(variable)

        start = ProcessIdentity.of(one.pid).start

    assert found[one.pid] == ProcessInfo(parent=os.getpid(), start=start, owner=os.geteuid(), mark="yes")
    assert found[os.getpid()].mark == ""


@pytest.mark.parametrize(
    ("line", "owner"),
    [
        pytest.param(b"Name:\tx\nUid:\t7\t7\t7\t7\nGid:\t1\t1\t1\t1\n", 7, id="one user"),
        pytest.param(b"Uid:\t1000\t0\t0\t0\n", None, id="a setuid program of another user"),
        pytest.param(b"Name:\tx\n", None, id="unknown"),
    ],
)
def test_the_owner_of_a_process_has_all_of_its_user_ids(monkeypatch, tmp_path, line, owner):
    monkeypatch.setattr(process, "PROC", tmp_path)
    (tmp_path / "4711").mkdir()
    (tmp_path / "4711/status").write_bytes(line)

    assert process.owner(4711) == owner
    assert process.owner(4712) is None


def test_an_ended_process_has_no_threads():
    with started("true") as gone:
        pass

    assert process.thread_cpusets(gone.pid) == ()
    process.pin(gone.pid, LOWEST)
