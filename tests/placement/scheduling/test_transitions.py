"""The tables of docs/scheduling-states.md: which state of a pod or gang follows which, in a random model."""

import re
from pathlib import Path
from typing import Any

import pytest

from alignup.placement.scheduling.bindings import BindingStep
from alignup.placement.scheduling.gate import GatedPodState
from alignup.placement.scheduling.scheduling_state import SchedulingState
from alignup.placement.scheduling.tentative_gangs import TentativeState
from tests.effort import SEED, rounds
from tests.placement.scheduling.test_model import Model

PAGE = Path(__file__).parents[3] / "docs" / "scheduling-states.md"
ROW = re.compile(r"^\| `([a-z ]+)`: [^|]+ \| (.+) \|$", re.MULTILINE)
GATED = "| a pod is | and becomes |\n|---|---|\n| `nowhere`: not seen yet"
ASKED = "| a pod is | and becomes |\n|---|---|\n| `nowhere`: not asked about"
GANG = "| a gang is | and becomes |"


def documented(table):
    """The transitions of a table, which begins like this, as pairs."""
    _, begin, text = PAGE.read_text("utf-8").partition(table)
    rows = ROW.findall((begin + text).partition("\n\n")[0])
    return {(state, after) for state, cell in rows for after in re.findall(r"`([a-z ]+)`", cell)}


def gated_states(state, api):
    return {uid: state.gate.state_of(uid).value for uid in api.pods} if state.gate else {}


def asked_states(state, api):
    refused = {uid: "refused" if uid in state.wake_ups else "nowhere" for uid in api.pods}
    return {uid: state.bindings.step_of(uid) or refused[uid] for uid, each in api.pods.items() if each.asks}


def gang_states(state, api):
    return {key: state.gangs.state_of(key).value for key in api.minimums}


STATES = {GATED: gated_states, ASKED: asked_states, GANG: gang_states}
NAMES = {GATED: list(GatedPodState), ASKED: ["nowhere", "refused", *BindingStep], GANG: list(TentativeState)}


@pytest.fixture(scope="module")
def observed() -> dict[str, set[tuple[str, str]]]:
    """The transitions of a random model, by table."""
    seen: dict[str, set[tuple[str, str]]] = {table: set() for table in STATES}
    api: list[Any] = []

    class WatchedState(SchedulingState):
        """A scheduling state that notes what happens in a turn."""

        def handle(self, event, *, now):
            gate = self.gate
            before = {table: states(self, *api) for table, states in STATES.items()} if api else {}
            done = super().handle(event, now=now)
            if self.gate is gate:
                for table, old in before.items():
                    new = STATES[table](self, *api)
                    seen[table].update((str(old[key]), str(new[key])) for key in old.keys() & new.keys())
            return done

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("tests.placement.scheduling.model_shell.SchedulingState", WatchedState)
        for number in range(rounds(4, soak=40)):
            api.clear()
            model = Model(SEED * 1000 + number)
            api.append(model.api)
            model.run(1500)
    return {table: {(before, after) for before, after in pairs if before != after} for table, pairs in seen.items()}


TABLES = [
    pytest.param(GATED, id="gated pods"),
    pytest.param(ASKED, id="pods without our gate"),
    pytest.param(GANG, id="gangs"),
]


@pytest.mark.parametrize("table", TABLES)
def test_every_transition_is_documented(observed, table):
    expected = documented(table)

    assert {state for pair in expected for state in pair} == set(map(str, NAMES[table]))
    assert observed[table] - expected == set()
    assert len(observed[table]) >= len(expected) // 3
