"""Recordings of decisions, replayed: those of real runs, of a random model, and what is said of others.

The folder ``recordings`` has runs of ``e2e/test_gangs.py``; the README says how they are made.
"""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from alignup.align.errors import ParseError
from alignup.placement.scheduling import events
from alignup.placement.scheduling.gate import Gate
from alignup.placement.scheduling.options import GateOptions
from alignup.testing.replay import replay
from tests.align.hosts import pod
from tests.effort import SEED, rounds
from tests.placement.scheduling.test_model import Model
from tests.schedule.test_recording import RecordedMachine

RECORDINGS = sorted((Path(__file__).parent / "recordings").glob("*.jsonl"))


@pytest.fixture
def recording(tmp_path):
    """A pod is released and bound, and another one waits."""
    machine = RecordedMachine(tmp_path, gate=GateOptions())
    machine.add_hosts()
    machine.release("first")
    machine.wait(pod("second", cpu="2"))
    machine.place_next()
    machine.recorder.close()
    (path,) = tmp_path.iterdir()
    assert replay(path).difference is None
    return path


def change(path, number, old, new):
    """Change a line; numbers count from 1, or from the end."""
    lines = path.read_text("utf-8").splitlines(keepends=True)
    place = number - 1 if number > 0 else number
    assert old in lines[place], lines[place]
    lines[place] = lines[place].replace(old, new)
    path.write_text("".join(lines), "utf-8")


def first_difference(path):
    difference = replay(path).difference
    assert difference is not None
    return difference


# Real runs


@pytest.mark.parametrize("path", RECORDINGS, ids=lambda path: path.stem)
def test_a_recorded_run_of_gangs_leads_to_the_same_instructions(path):
    text = path.read_text("utf-8")
    assert len(re.findall(r'"(WriteRelease|WriteBinding|TentativeGangs\.turn)"', text)) >= 8  # two gangs of four
    assert path.stat().st_size < 150_000

    result = replay(path)

    assert result.difference is None
    assert result.events == len(text.splitlines()) - sum('{"snapshot"' in line for line in text.splitlines()) - 1


def test_there_are_recorded_runs_of_both_front_ends():
    assert [path.stem for path in RECORDINGS] == ["gangs-extender", "gangs-gate"]


def test_a_recording_does_not_depend_on_the_order_of_sets():
    """Another process has another order of strings in sets."""
    code = "import sys; from alignup.testing.replay import replay; print([replay(p).difference for p in sys.argv[1:]])"
    for seed in "12":
        command = [sys.executable, "-c", code, *map(os.fspath, RECORDINGS)]
        environment = os.environ | {"PYTHONHASHSEED": seed}
        output = subprocess.run(command, env=environment, capture_output=True, check=True)  # noqa: S603
        assert output.stdout.decode().split() == ["[None,", "None]"]


# A random model


@pytest.mark.soak
@pytest.mark.parametrize("number", range(rounds(2, soak=60)))
def test_a_random_run_is_replayed_from_its_beginning_and_from_snapshots_in_the_middle(number, tmp_path, monkeypatch):
    monkeypatch.setattr("alignup.schedule.recording.DecisionRecorder.max_bytes", 100_000)
    monkeypatch.setattr("alignup.schedule.recording.DecisionRecorder.max_files", 1000)
    model = Model(SEED * 1000 + number, record=tmp_path)
    model.run(1500)
    model.shell.close()

    results = [replay(path) for path in sorted(tmp_path.iterdir())]
    assert [str(result.difference) for result in results if result.difference] == []
    assert len(results) > model.counts.restarts + 2
    assert sum(result.events for result in results) > 1450  # a closed process may forget some pods later


# Differences


def test_the_first_difference_names_line_event_and_instructions(recording):
    change(recording, -1, '"nodes":["host-a"]', '"nodes":["host-b"]')

    difference = first_difference(recording)

    assert difference.line == len(recording.read_text("utf-8").splitlines())
    assert difference.event == "PlaceNext()"
    assert "WriteRelease(" in difference.expected
    assert "nodes=('host-b',)" in difference.expected
    assert "nodes=('host-a',)" in difference.got
    assert str(difference).startswith(f"line {difference.line}: after PlaceNext()\nexpected WriteRelease(")


def test_a_change_of_the_code_is_a_difference(recording, monkeypatch):
    monkeypatch.setattr(Gate, "_choose", lambda *_args: ())

    difference = first_difference(recording)

    assert difference.event == "PlaceNext()"
    assert (difference.expected.partition("(")[0], difference.got) == ("ChangeHosts", "nothing")


def test_more_instructions_than_recorded_are_a_difference(recording):
    change(recording, -1, recording.read_text("utf-8").splitlines()[-1].partition('"instructions":')[2], "[]}")

    difference = first_difference(recording)

    assert difference.expected == "nothing"
    assert difference.got.startswith("ChangeHosts(")


def test_a_question_that_was_never_recorded_is_a_difference_in_words(recording, monkeypatch):
    def ask(gate):
        gate._facts.unique_host_names(("host-a",))  # noqa: SLF001 - new code of the gate

    monkeypatch.setattr(Gate, "try_next", ask)

    difference = first_difference(recording)

    assert difference.event == "PlaceNext()"
    assert difference.got == "the question unique_host_names(('host-a',)), which the recording lacks"


# Other files


def test_the_damaged_last_line_of_a_killed_process_is_named_and_the_rest_replayed(recording):
    before = replay(recording).events
    recording.write_bytes(recording.read_bytes()[:-20])

    result = replay(recording)

    assert (result.difference, result.events) == (None, before - 1)
    assert f"{recording}:{before + 2}: the last line is damaged" in result.warning


def test_a_damaged_line_before_others_is_refused(recording):
    change(recording, 4, '{"now"', '"now"')
    with pytest.raises(ParseError, match=f"{recording}:4: "):
        replay(recording)


def test_a_recording_of_another_format_is_refused_in_words(recording):
    header = json.loads(recording.read_text("utf-8").splitlines()[0])
    change(recording, 1, '"version":1', '"version":2')

    with pytest.raises(ParseError) as refusal:
        replay(recording)

    versions = "format version 2, and this alignup reads version 1"
    assert str(refusal.value) == f"{recording} has {versions}; it is of alignup {header['alignup']}"


@pytest.mark.parametrize("text", ["", "{", "[]\n", '{"format": "other"}\n'])
def test_other_files_are_refused(tmp_path, text):
    path = tmp_path / "notes.txt"
    path.write_text(text, "utf-8")
    with pytest.raises(ParseError, match="is not a recording of decisions"):
        replay(path)


@pytest.mark.parametrize(
    ("number", "old", "new", "problem"),
    [
        pytest.param(-1, '"$":"PlaceNext"', '"$":"Popen"', "'Popen' is not a type that recordings have", id="type"),
        pytest.param(-1, '"$":"PlaceNext"', '"$":"PodSeen"', "missing 1 required", id="fields"),
        pytest.param(-1, '{"$":"PlaceNext"}', '{"#":999}', "KeyError: 999", id="reference"),
        pytest.param(2, '"_listed"', '"_heard"', "Cluster has no _heard", id="snapshot"),
    ],
)
def test_what_recordings_never_contain_is_refused(recording, tmp_path, number, *, old, new, problem):
    if number == 2:
        machine = RecordedMachine(tmp_path, gate=GateOptions())
        machine.cluster.relist(())
        machine.handle(events.TimePassed())
        machine.recorder.close()
        recording = max(tmp_path.iterdir())
    change(recording, number, old, new)
    with pytest.raises(ParseError, match=problem):
        replay(recording)
