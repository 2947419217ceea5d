"""Drift is found and restored: real processes, moved by the tests."""

import os
import time
from pathlib import Path
from uuid import uuid4

import pytest

from alignup.run import audit, cgroup, process
from alignup.run.audit import DriftKind
from alignup.run.process import ProcessIdentity
from alignup.run.registry import RunProcesses, find_run_processes
from alignup.run.request import RUN_VARIABLE, RunRecord
from tests.deadlines import wait_for
from tests.run.commands import is_zombie, started

PERMITTED = process.permitted_cpus()
LOWEST = PERMITTED & -PERMITTED
OTHERS = PERMITTED & ~LOWEST

ROOT_ONLY = pytest.mark.skipif(os.geteuid() != 0, reason="only root can change the user")

pytestmark = pytest.mark.skipif(not OTHERS, reason="needs two CPUs")


@pytest.fixture
def run():
    """A process that belongs on the lowest CPU, and is there."""
    record = RunRecord(
        uid=f"test-audit-{uuid4()}",
        name="web",
        runner=ProcessIdentity.of(os.getpid())._replace(start=1),  # it has ended
        command=("sleep", "60"),
        since=time.time(),
        cpus=LOWEST,
        exclusive=True,
    )
    with started("sleep", "60", env={RUN_VARIABLE: record.uid}) as sleeper:
        process.pin(sleeper.pid, LOWEST)
        yield RunProcesses(record, (sleeper.pid,))


@pytest.fixture
def grouped(run):
    """The same in its own cgroup."""
    if not cgroup.candidate_parents():
        pytest.skip("this user cannot create cpusets here")
    directory = cgroup.create(run.record.uid, LOWEST, nodes=0)
    try:
        cgroup.join(directory, run.pids[0])
        yield run._replace(record=run.record._replace(cgroup=directory))
    finally:
        os.kill(run.pids[0], 9)
        wait_for(lambda: cgroup.remove(directory))


def kinds(run):
    return [drift.kind for drift in audit.audit_runs([run])]


def test_processes_of_a_run_are_found_by_their_environment(run):
    assert find_run_processes([run.record]) == (run,)
    assert find_run_processes([]) == ()


def test_processes_of_a_run_are_found_by_their_descent(run):
    script = f"env -i sh -c 'sleep 60' & {RUN_VARIABLE}=inner sleep 60 & wait"
    with started("sh", "-c", script, env={RUN_VARIABLE: run.record.uid}) as outer:
        wait_for(lambda: len(find_run_processes([run.record])[0].pids) in {3, 4})  # the inner shell may exec
        (processes,) = find_run_processes([run.record])
        inner = [pid for pid, info in process.list_processes(RUN_VARIABLE).items() if info.mark == "inner"]

    assert {*run.pids, outer.pid} <= set(processes.pids)
    assert inner
    assert not set(inner) & set(processes.pids)


def test_processes_without_the_environment_are_found_by_runner_and_identity(run):
    with started("sh", "-c", "env -i sleep 60 & wait") as shell:
        runner, command = ProcessIdentity.of(shell.pid), [ProcessIdentity.of(shell.pid)]
        wait_for(lambda: len(find_run_processes([run.record._replace(uid="other", runner=runner)])[0].pids) == 1)
        (started_,) = find_run_processes([run.record._replace(uid="other", started=tuple(command))])
        reused = run.record._replace(uid="other", started=(command[0]._replace(start=1),))

        assert len(started_.pids) == 2
        assert find_run_processes([reused])[0].pids == ()


def test_the_environment_of_another_users_process_does_not_count(run, monkeypatch):
    monkeypatch.setattr(os, "geteuid", lambda: 12345)

    assert find_run_processes([run.record])[0].pids == ()


@ROOT_ONLY
def test_a_stranger_is_neither_counted_nor_moved(grouped):
    with started("sleep", "60", env={RUN_VARIABLE: grouped.record.uid}, user=65534) as stranger:
        before = Path(f"/proc/{stranger.pid}/cgroup").read_text()
        runs = find_run_processes([grouped.record])
        errors = audit.restore_run(grouped._replace(pids=(*grouped.pids, stranger.pid)))

        assert runs == (grouped,)
        assert Path(f"/proc/{stranger.pid}/cgroup").read_text() == before
        assert errors == (f"process {stranger.pid} of web belongs to another user and is not moved",)
        assert cgroup.members(grouped.record.cgroup) == grouped.pids


def test_an_unmoved_run_has_no_drift(run):
    assert kinds(run) == []


def test_using_fewer_cpus_is_not_drift(run):
    assert kinds(run._replace(record=run.record._replace(cpus=PERMITTED))) == []


def test_a_moved_process_is_found_and_restored(run):
    process.pin(run.pids[0], PERMITTED)

    (drift,) = audit.audit_runs([run])
    errors = audit.restore_run(run)

    assert drift.kind is DriftKind.CPUS
    assert str(drift).startswith(f"web: process {run.pids[0]}: intended CPUs ")
    assert (errors, kinds(run)) == ((), [])


def test_a_widened_cgroup_is_found_and_restored(grouped):
    before = kinds(grouped)
    cgroup.write(grouped.record.cgroup, PERMITTED, nodes=0)

    drifted = kinds(grouped)
    errors = audit.restore_run(grouped)

    assert before == []
    assert DriftKind.GROUP in drifted  # some kernels remember the CPU the process was pinned to
    assert (errors, kinds(grouped)) == ((), [])


def test_a_process_outside_its_cgroup_is_found_and_restored(grouped):
    cgroup.join(grouped.record.cgroup.parent, grouped.pids[0])

    drifted = kinds(grouped)
    errors = audit.restore_run(grouped)

    assert DriftKind.MEMBER in drifted
    assert (errors, kinds(grouped)) == ((), [])


def test_a_missing_cgroup_is_recreated(grouped):
    cgroup.join(grouped.record.cgroup.parent, grouped.pids[0])
    assert cgroup.remove(grouped.record.cgroup)

    drifted = kinds(grouped)
    errors = audit.restore_run(grouped)

    assert DriftKind.GROUP in drifted
    assert (errors, kinds(grouped)) == ((), [])


def test_a_failed_restore_returns_the_error(run):
    impossible = run._replace(record=run.record._replace(cpus=1 << 99999))

    (error,) = audit.restore_run(impossible)

    assert "to CPUs 99999" in error
    assert kinds(impossible) == [DriftKind.CPUS]


@pytest.mark.parametrize(
    ("devices", "text"),
    [
        pytest.param({("example.com/gpu", "gpu-0"): 1}, None, id="unchanged"),
        pytest.param(
            {("example.com/gpu", "gpu-0"): 2},
            "intended near NUMA node 0, actual near NUMA node 1",
            id="near another node",
        ),
        pytest.param({}, "intended near NUMA node 0, actual missing", id="missing"),
        pytest.param(None, None, id="not compared"),
    ],
)
def test_moved_and_missing_devices_are_drift(run, devices, text):
    with_device = run._replace(record=run.record._replace(devices={"example.com/gpu": {"gpu-0": 1}}))

    drifts = audit.audit_runs([with_device], devices=devices)

    assert [str(drift).removeprefix("web: example.com/gpu gpu-0: ") for drift in drifts] == ([text] if text else [])


def test_an_ended_process_is_not_drift(run):
    os.kill(run.pids[0], 9)
    wait_for(lambda: is_zombie(run.pids[0]))

    assert find_run_processes([run.record])[0].pids == ()
