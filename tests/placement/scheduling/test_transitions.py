"""The tables of docs/scheduling.md: which state of a pod or gang follows which, in a random model."""

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

PAGE = Path(__file__).parents[3] / "docs" / "scheduling.md"
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


TABLES = [
    pytest.param(gated_states, GATED, list(GatedPodState), id="gated pods"),
    pytest.param(asked_states, ASKED, ["nowhere", "refused", *BindingStep], id="pods without our gate"),
    pytest.param(gang_states, GANG, list(TentativeState), id="gangs"),
]


@pytest.mark.parametrize(("states", "table", "names"), TABLES)
def test_every_transition_is_documented(monkeypatch, states, table, names):
    expected = documented(table)
    seen: set[tuple[str, str]] = set()
    api: list[Any] = []
    assert {state for pair in expected for state in pair} == set(map(str, names))

    class WatchedState(SchedulingState):
        """A scheduling state that notes what happens in a turn."""

        def handle(self, event, *, now):
            gate = self.gate
            before = states(self, *api) if api else {}
            done = super().handle(event, now=now)
            after = states(self, *api) if api and self.gate is gate else {}
            seen.update((str(state), str(after[key])) for key, state in before.items() if key in after)
            return done

    monkeypatch.setattr("tests.placement.scheduling.model_shell.SchedulingState", WatchedState)
    for number in range(rounds(4, soak=40)):
        api.clear()
        model = Model(SEED * 1000 + number)
        api.append(model.api)
        model.run(1500)

    observed = {(before, after) for before, after in seen if before != after}
    assert observed - expected == set()
    assert len(observed) >= len(expected) // 3
