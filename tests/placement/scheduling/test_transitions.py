"""The table of docs/scheduling.md: which state of a gated pod follows which, in a random model."""

import re
from collections.abc import Mapping
from pathlib import Path

from alignup.placement.scheduling.gate import GatedPodState
from alignup.placement.scheduling.scheduling_state import SchedulingState
from tests.effort import SEED, rounds
from tests.placement.scheduling.test_model import Model

PAGE = Path(__file__).parents[3] / "docs" / "scheduling.md"
ROW = re.compile(r"^\| `([a-z ]+)`: [^|]+ \| (.+) \|$", re.MULTILINE)


def documented():
    """The transitions of the table, as pairs."""
    section = PAGE.read_text("utf-8").partition("## From creation to binding, behind the gate")[2].partition("\n## ")[0]
    rows = ROW.findall(section)
    return {(state, after) for state, cell in rows for after in re.findall(r"`([a-z ]+)`", cell)}


class WatchedState(SchedulingState):
    """A scheduling state that notes what happens to each pod in a turn."""

    watched: Mapping[str, object]
    seen: set[tuple[str, str]]

    def handle(self, event, *, now):
        gate = self.gate
        before = {uid: gate.state_of(uid) for uid in self.watched} if gate else {}
        done = super().handle(event, now=now)
        if gate is not None and self.gate is gate:
            self.seen |= {(state.value, gate.state_of(uid).value) for uid, state in before.items()}
        return done


def test_every_transition_of_a_gated_pod_is_documented(monkeypatch):
    table = documented()
    assert {state for pair in table for state in pair} == {state.value for state in GatedPodState}
    WatchedState.seen = set()
    monkeypatch.setattr("tests.placement.scheduling.model_shell.SchedulingState", WatchedState)
    for number in range(rounds(3, soak=40)):
        WatchedState.watched = {}
        model = Model(SEED * 1000 + number)
        WatchedState.watched = model.api.pods
        model.run(1500)

    observed = {(before, after) for before, after in WatchedState.seen if before != after}
    assert observed - table == set()
    assert len(observed) > len(table) // 2
