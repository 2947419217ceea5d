"""What drifted is found, and put back: real processes, moved by hand."""

import os
import time
from dataclasses import replace
from pathlib import Path

import pytest

from alignup.enforce import audit, cgroup, process
from alignup.enforce.audit import DriftKind, RunProcesses
from alignup.enforce.process import ProcessIdentity
from alignup.enforce.run_record import RUN_VARIABLE, RunRecord
from tests.enforce.commands import started

PERMITTED = process.permitted_cpus()
LOWEST = PERMITTED & -PERMITTED
OTHERS = PERMITTED & ~LOWEST

pytestmark = pytest.mark.skipif(not OTHERS, reason="on one CPU nobody can be elsewhere")


@pytest.fixture
def run():
    """One process that is to be on the lowest CPU, and is."""
    intent = RunRecord(
        uid="test-audit",
        name="web",
        runner=ProcessIdentity.of(os.getpid()),
        command=("sleep", "60"),
        since=time.time(),
        cpus=LOWEST,
        exclusive=True,
    )
    with started("sleep", "60", env={RUN_VARIABLE: "test-audit"}) as sleeper:
        process.pin(sleeper.pid, LOWEST)
        yield RunProcesses(intent, (sleeper.pid,))
        sleeper.kill()


@pytest.fixture
def grouped(run):
    """The same in a group of its own."""
    if not cgroup.candidate_parents():
        pytest.skip("no cpuset may be made here by this user")
    folder = cgroup.create("test-audit", LOWEST, nodes=0)
    cgroup.join(folder, run.pids[0])
    yield replace(run, intent=replace(run.intent, cgroup=folder))
    os.kill(run.pids[0], 9)
    deadline = time.monotonic() + 10
    while not cgroup.remove(folder):
        assert time.monotonic() < deadline


def kinds(run, **how):
    return [drift.kind for drift in audit.audit_runs([run], **how)]


def test_processes_of_a_run_are_found_by_their_mark(run):
    assert audit.find_run_processes([run.intent]) == (run,)
    assert audit.find_run_processes([]) == ()


def test_all_is_well_where_nothing_was_moved(run):
    assert kinds(run) == []


def test_a_thread_that_keeps_to_fewer_cpus_does_no_harm(run):
    assert kinds(replace(run, intent=replace(run.intent, cpus=PERMITTED))) == []


def test_a_process_that_was_moved_is_found_and_put_back(run):
    process.pin(run.pids[0], PERMITTED)

    (drift,) = audit.audit_runs([run])
    troubles = audit.restore_run(run)

    assert drift.kind is DriftKind.CPUS
    assert str(drift).startswith(f"web: process {run.pids[0]}: intended CPUs ")
    assert (troubles, kinds(run)) == ((), [])


def test_a_group_that_was_widened_is_found_and_put_back(grouped):
    before = kinds(grouped)
    cgroup.write(grouped.intent.cgroup, PERMITTED, nodes=0)

    found = kinds(grouped)
    troubles = audit.restore_run(grouped)

    assert before == []
    assert DriftKind.GROUP in found  # the process keeps to the CPU it was pinned to, which some kernels remember
    assert (troubles, kinds(grouped)) == ((), [])


def test_a_process_that_left_its_group_is_found_and_put_back(grouped):
    cgroup.join(grouped.intent.cgroup.parent, grouped.pids[0])

    found = kinds(grouped)
    troubles = audit.restore_run(grouped)

    assert DriftKind.MEMBER in found
    assert (troubles, kinds(grouped)) == ((), [])


def test_a_group_that_is_gone_is_made_again(grouped):
    cgroup.join(grouped.intent.cgroup.parent, grouped.pids[0])
    assert cgroup.remove(grouped.intent.cgroup)

    found = kinds(grouped)
    troubles = audit.restore_run(grouped)

    assert DriftKind.GROUP in found
    assert (troubles, kinds(grouped)) == ((), [])


def test_what_cannot_be_put_back_is_told(run):
    away = replace(run, intent=replace(run.intent, cpus=1 << 99999))

    (trouble,) = audit.restore_run(away)

    assert "cannot be put on CPUs 99999" in trouble
    assert kinds(away) == [DriftKind.CPUS]


@pytest.mark.parametrize(
    ("now", "said"),
    [
        pytest.param({("example.com/gpu", "gpu-0"): 1}, None, id="where it was"),
        pytest.param({("example.com/gpu", "gpu-0"): 2}, "intended near node 0, actual near node 1", id="elsewhere"),
        pytest.param({}, "intended near node 0, actual gone", id="gone"),
        pytest.param(None, None, id="not looked at"),
    ],
)
def test_devices_are_where_they_were(run, now, said):
    has_one = replace(run, intent=replace(run.intent, devices={"example.com/gpu": {"gpu-0": 1}}))

    found = audit.audit_runs([has_one], devices=now)

    assert [str(drift).removeprefix("web: example.com/gpu gpu-0: ") for drift in found] == ([said] if said else [])


def test_a_process_that_has_ended_meanwhile_is_no_drift(run):
    os.kill(run.pids[0], 9)
    while "Z" not in Path(f"/proc/{run.pids[0]}/stat").read_text().rpartition(")")[2]:
        time.sleep(0.001)

    assert audit.find_run_processes([run.intent])[0].pids == ()
