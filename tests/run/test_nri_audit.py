"""Containers that drifted are found: real processes in real cgroups whose names are container ids."""

import os
import time
from pathlib import Path
from uuid import uuid4

import pytest

from alignup.align import bits
from alignup.align.errors import FileError
from alignup.documents import codec
from alignup.documents.nri_placements import FILE, PlacedContainerDocument, PlacementsDocument
from alignup.run import cgroup, nri_audit, process
from alignup.run.audit import DriftKind
from alignup.run.nri_audit import audit_containers
from tests.deadlines import wait_for
from tests.run.commands import started

PERMITTED = process.permitted_cpus()
LOWEST = PERMITTED & -PERMITTED
OTHERS = PERMITTED & ~LOWEST


def write(directory, *containers, **fields):
    given = {"mode": "decide", "written": time.time(), "containers": list(containers), **fields}
    (directory / FILE).write_bytes(codec.encode(PlacementsDocument(**given)))


def audit(directory, pause=lambda: None):
    return audit_containers(directory, now=time.time(), pause=pause)


def test_a_plugin_that_is_silent_or_not_connected_is_reported(tmp_path):
    write(tmp_path, problem="the runtime closed the connection")
    (drift,) = audit(tmp_path).drifts
    assert "not connected (the runtime closed the connection): containers keep what they have" in str(drift)
    write(tmp_path, written=time.time() - 100)
    (drift,) = audit(tmp_path).drifts
    assert "the plugin: intended running, actual no sign of life for 100 s" in str(drift)
    write(tmp_path, mode="assist")
    assert audit(tmp_path).drifts == ()


def test_pods_that_run_unaligned_are_reported(tmp_path):
    write(tmp_path, unaligned={"default/c": "no room"})

    (drift,) = audit(tmp_path).drifts
    assert str(drift) == "default/c: default/c: intended aligned, actual not aligned: no room"


def test_a_directory_without_a_plugin_says_what_to_do(tmp_path):
    with pytest.raises(FileError, match="start 'alignup nri' with --state-dir"):
        audit(tmp_path)


@pytest.fixture
def container(tmp_path):
    """A process in a cgroup that has the id of a container as its name."""
    if not OTHERS or not cgroup.candidate_parents():
        pytest.skip("this user cannot create cpusets here, or has only one CPU")
    id_ = uuid4().hex * 2
    directory = cgroup.create(id_, LOWEST, nodes=0)
    with started("sleep", "60") as sleeper:
        try:
            cgroup.join(directory, sleeper.pid)
            yield PlacedContainerDocument(id_, "default/web", "app", bits.show(LOWEST), "", exclusive=True), directory
        finally:
            os.kill(sleeper.pid, 9)
            wait_for(lambda: cgroup.remove(directory))


def test_a_container_in_its_place_has_no_drift(tmp_path, container):
    write(tmp_path, container[0])
    report = audit(tmp_path)

    assert (len(report.runs), report.drifts) == (1, ())


def test_a_container_with_another_cpuset_has_drifted(tmp_path, container):
    document, directory = container
    write(tmp_path, document)
    cgroup.write(directory, PERMITTED, nodes=0)
    report = audit(tmp_path)

    assert {drift.kind for drift in report.drifts} == {DriftKind.GROUP, DriftKind.CPUS}
    assert all(drift.name == "default/web/app" for drift in report.drifts)


def test_a_change_that_the_file_does_not_show_yet_is_no_drift(tmp_path, container):
    document, directory = container
    write(tmp_path, document)
    cgroup.write(directory, PERMITTED, nodes=0)
    moved = PlacedContainerDocument(document.id, document.pod, "app", bits.show(PERMITTED), "", exclusive=True)

    assert audit(tmp_path, pause=lambda: write(tmp_path, moved)).drifts == ()


def test_a_container_that_has_ended_is_left_out(tmp_path):
    write(tmp_path, PlacedContainerDocument("0" * 64, "default/web", "app", "0", "", exclusive=True))

    assert audit(tmp_path).runs == ()


def test_a_container_whose_first_process_ends_meanwhile_is_audited_with_the_others(tmp_path, monkeypatch):
    pids = (1 << 30, os.getpid())  # there is no process with such a large id
    monkeypatch.setattr(nri_audit, "_processes", lambda _container: pids)
    write(tmp_path, PlacedContainerDocument("0" * 64, "default/web", "app", "", "", exclusive=False))
    ((record, audited),) = audit(tmp_path).runs

    assert audited == pids
    assert record.cgroup == cgroup.cpuset_directory(Path("/proc/self"))
