"""Files of recorded decisions: what they contain, how many there are, and what happens when they cannot be written."""

import json
import stat
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from alignup.align.settings import Policy
from alignup.placement.host_report import PodStage
from alignup.placement.scheduling import events
from alignup.placement.scheduling.facts import GroupKey
from alignup.placement.scheduling.instructions import WriteRelease
from alignup.placement.scheduling.options import GateOptions
from alignup.schedule.recording import DecisionRecorder, RecordedState
from alignup.testing.replay import replay
from tests.align.hosts import host, pod
from tests.placement.scheduling.machine import Machine

HOSTS = ("host-a", "host-b")


class RecordedMachine(Machine):
    """A scheduling state whose decisions are recorded."""

    def __init__(self, directory, **more):
        super().__init__({}, **more)
        self.failures: list[int] = []
        self.recorder = DecisionRecorder(directory, self.facts, on_failure=lambda: self.failures.append(1))
        self.state = RecordedState(self.cluster, self.recorder, gate=more.get("gate"))

    def add_hosts(self):
        for name in HOSTS:
            self.hosts[name], self.sequences[name] = host(Policy.SINGLE_NUMA_NODE), 0
            self.facts.nodes[name] = Machine({name: self.hosts[name]}).facts.nodes[name]
            self.report(name)

    def release(self, name):
        """A pod is released, bound, and gone."""
        facts = self.wait(pod(name, cpu="2"))
        (release,) = [each for each in self.place_next() or () if isinstance(each, WriteRelease)]
        self.handle(events.ReleaseWritten(facts.uid))
        self.bind(facts.pod)
        self.gone(facts.uid)
        for each in release.nodes:
            self.handle(events.PodObserved(facts.pod, each, PodStage.ENDED))
            self.report(each)


@pytest.fixture
def directory(tmp_path):
    return tmp_path


@pytest.fixture
def machine(directory):
    machine = RecordedMachine(directory, gate=GateOptions())
    yield machine
    machine.recorder.close()


def files(directory):
    return sorted(path.name for path in directory.iterdir())


def lines(path):
    return [json.loads(line) for line in path.read_text("utf-8").splitlines()]


def test_a_recording_begins_with_a_header_and_a_snapshot_and_can_be_replayed(machine, directory):
    machine.add_hosts()
    machine.release("a")
    machine.recorder.close()

    (path,) = directory.iterdir()
    header, snapshot, first, *_ = lines(path)
    assert (header["format"], header["version"], header["maxUnconfirmed"]) == ("alignup decisions", 1, 1)
    assert snapshot["snapshot"]["gate"]["$"] == "GateOptions"
    assert (first["event"]["$"], first["now"]) == ("HostReported", 0.0)
    result = replay(path)
    assert (result.difference, result.warning, result.events) == (None, "", len(lines(path)) - 2)


def test_only_the_owner_may_read_a_file(machine, directory):
    machine.add_hosts()
    (path,) = directory.iterdir()
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_full_files_are_followed_by_others_that_begin_with_snapshots_and_the_oldest_are_removed(machine, directory):
    machine.recorder.max_bytes, machine.recorder.max_files = 3000, 3
    machine.add_hosts()
    for number in range(12):
        machine.release(f"pod-{number}")
        machine.now += 1.0
    machine.wait(pod("waiting", cpu="64"))
    machine.recorder.close()

    last = max(int(name[10:16]) for name in files(directory))
    assert last > 5
    assert files(directory) == [f"decisions-{number:06}.jsonl" for number in range(last - 2, last + 1)]
    for path in sorted(directory.iterdir()):
        written = lines(path)
        snapshots = [line for line in written if "snapshot" in line]
        size = sum(len(line) for line in path.read_bytes().splitlines(keepends=True) if b'"snapshot"' in line)
        assert [line["snapshot"]["$"] for line in snapshots] == ["HostReported", "HostReported", "StateRestored"]
        texts = [line for line in path.read_bytes().splitlines(keepends=True) if b'"event"' in line]
        assert sum(map(len, texts[:-1])) < max(3000, size)  # the last one was begun before
        assert replay(path).difference is None


def test_a_restarted_process_begins_another_file(directory):
    (directory / "decisions-000041.jsonl").touch()
    (directory / "notes.txt").touch()
    for _ in range(2):
        machine = RecordedMachine(directory, gate=GateOptions())
        machine.add_hosts()
        machine.recorder.close()
        machine.report("host-a")  # nothing is recorded after the end

    expected = ["decisions-000041.jsonl", "decisions-000042.jsonl", "decisions-000043.jsonl", "notes.txt"]
    assert files(directory) == expected


def test_a_full_disk_ends_the_recording_and_nothing_else(machine, directory, monkeypatch):
    machine.add_hosts()
    with Path("/dev/full").open("wb") as full, capture_logs() as log:
        monkeypatch.setattr(machine.recorder, "_file", full)
        machine.release("a")
        machine.release("b")
        machine.recorder.close()

    assert [entry["event"] for entry in log] == ["decisions are not recorded any more", "cannot close a recording"]
    assert "No space left on device" in log[0]["problem"]
    assert (machine.failures, machine.recorder.stopped) == ([1], True)


def test_a_directory_that_is_gone_ends_the_recording_and_nothing_else(tmp_path):
    machine = RecordedMachine(tmp_path / "missing", gate=GateOptions())
    with capture_logs() as log:
        machine.add_hosts()
        machine.release("a")

    assert [entry["event"] for entry in log] == ["decisions are not recorded any more"]
    assert "No such file or directory" in log[0]["problem"]
    assert machine.failures == [1]


def test_a_value_that_cannot_be_recorded_ends_the_recording_and_nothing_else(machine):
    machine.add_hosts()
    machine.handle(events.GroupChanged(GroupKey("a", "b", open)))  # type: ignore[arg-type]
    machine.release("a")

    assert (machine.failures, machine.recorder.stopped) == ([1], True)


def test_a_question_that_cannot_be_recorded_changes_no_answer(machine):
    machine.add_hosts()
    machine.recorder.begin(machine.state)

    assert machine.recorder.facts.unique_host_names(("host-a", open)) == ("host-a", open)

    assert (machine.failures, machine.recorder.stopped) == ([1], True)
    machine.release("a")


def test_questions_outside_of_events_are_not_recorded(machine, directory):
    machine.add_hosts()
    facts = machine.wait(pod("a", cpu="2"))
    assert "host-a" in machine.state.assumptions._facts.allowed(facts)  # noqa: SLF001 - as a front end does
    machine.handle(events.TimePassed())

    (path,) = directory.iterdir()
    assert "facts" not in lines(path)[-1]


def test_an_answer_is_recorded_again_only_when_it_has_changed(machine, directory):
    machine.add_hosts()
    for _ in range(3):
        machine.handle(events.HostsChanged(("host-a",)))
    del machine.facts.nodes["host-b"]
    machine.handle(events.HostsChanged(("host-a",)))

    (path,) = directory.iterdir()
    asked = [[question[0] for question in line.get("facts", ())] for line in lines(path)[-4:]]
    assert asked == [[], [], [], ["nodes"]]
    assert path.stat().st_size < 20_000  # reports repeat nothing
