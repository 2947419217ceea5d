"""The hints that a decision shows."""

from typing import Any

import pytest

from alignup.align.decision import (
    MAX_SHOWN_HINTS,
    CollectedResources,
    Placement,
    ResourceHints,
    Shortfall,
    shown_hints,
)
from alignup.align.errors import ParseError
from alignup.align.hint import DONT_CARE, IMPOSSIBLE, AmountFamily, Hint, HintList, Hints
from alignup.align.memory.ledger import Block
from tests.align.hosts import GPU, make_host, make_pod


class TestShownHints:
    @staticmethod
    def resource(hints: Hints, **more: Any) -> ResourceHints:
        return ResourceHints("cpu", "cpu", 2, {0: 4}, hints, **more)

    def test_hints_are_in_the_kubelets_order(self):
        shown = shown_hints(self.resource(AmountFamily({0: 1, 1: 4}, 2, preferred_width=1)))

        assert shown == ((Hint(0b10, preferred=True), Hint(0b11, preferred=False)), False)

    def test_only_the_first_are_shown(self):
        shown = shown_hints(self.resource(AmountFamily(dict.fromkeys(range(6), 4), 2, preferred_width=1)))

        assert len(shown.hints) == MAX_SHOWN_HINTS
        assert shown.more

    def test_on_many_nodes_only_the_first_are_shown(self):
        shown = shown_hints(self.resource(AmountFamily(dict.fromkeys(range(9), 4), 2, preferred_width=1)))

        assert shown == (tuple(Hint(1 << node, preferred=True) for node in range(MAX_SHOWN_HINTS)), True)

    def test_on_many_nodes_a_single_hint_is_shown_alone(self):
        shown = shown_hints(self.resource(AmountFamily(dict.fromkeys(range(9), 1), 9, preferred_width=9)))

        assert shown == ((Hint((1 << 9) - 1, preferred=True),), False)

    def test_many_nodes_are_not_all_searched(self):
        """On 64 nodes with free amounts on the last ones only, there are 2⁶⁴ sets to test."""
        amounts = dict.fromkeys(range(60), 0) | dict.fromkeys(range(60, 64), 1)

        assert shown_hints(self.resource(AmountFamily(amounts, 3, preferred_width=1))) == ((), True)

    @pytest.mark.parametrize(
        ("hints", "shown", "no_preference"),
        [
            pytest.param(DONT_CARE, (Hint(None, preferred=True),), True, id="anywhere"),
            pytest.param(IMPOSSIBLE, (), False, id="nowhere"),
            pytest.param(HintList.of([Hint(1, preferred=True)]), (Hint(1, preferred=True),), False, id="one node"),
        ],
    )
    def test_anywhere_and_nowhere_differ(self, hints, shown, no_preference):
        resource = self.resource(hints)

        assert shown_hints(resource).hints == shown
        assert resource.has_no_preference is no_preference

    def test_a_truncated_list_has_more(self):
        hints = HintList.of([Hint(0b10, preferred=True)])

        assert not shown_hints(self.resource(hints)).more
        assert shown_hints(self.resource(hints, truncated=True)).more


class TestCollectedResources:
    RESOURCES = (
        ResourceHints("cpu", "cpu", 2, {0: 4}, DONT_CARE),
        ResourceHints("memory", None, None, None, DONT_CARE),
    )

    def test_are_a_sequence_collected_once_and_only_if_read(self):
        calls: list[None] = []

        def collect() -> tuple[ResourceHints, ...]:
            calls.append(None)
            return self.RESOURCES

        collected = CollectedResources(collect)
        assert not calls

        assert (collected[0], collected[1:], len(collected)) == (self.RESOURCES[0], self.RESOURCES[1:], 2)
        assert tuple(collected) == self.RESOURCES
        assert repr(collected) == repr(self.RESOURCES)
        assert len(calls) == 1

    def test_are_equal_to_the_same_resources(self):
        assert CollectedResources(lambda: self.RESOURCES) == self.RESOURCES
        assert CollectedResources(lambda: self.RESOURCES) == CollectedResources(lambda: self.RESOURCES)
        assert CollectedResources(lambda: self.RESOURCES) != self.RESOURCES[:1]
        assert CollectedResources(lambda: self.RESOURCES) != 0

    def test_show_the_amounts_at_the_time_of_the_merge(self):
        """They are read after the allocation, from the ledgers before it."""
        host = make_host()
        decision = host.admit(make_pod("a", cpu="1"))
        host.admit(make_pod("b", cpu="1"))

        cpus = next(resource for resource in decision.steps[0].resources if resource.resource == "cpu")
        assert cpus.free == host.initial_ledger().cpus.free

    def test_a_decision_without_ledgers_refers_to_none(self):
        decision = make_host().decide(make_pod("a", cpu="1"))
        kept = decision.without_ledgers()

        assert kept == decision
        assert (kept.before, kept.after) == (None, None)
        assert all(isinstance(step.resources, tuple) for step in kept.steps)


NODE_1 = Hint(0b10, preferred=True)
PLACEMENT = Placement(
    "app",
    NODE_1,
    cpus=0b110,
    memory=(Block(0b11, "memory", 4096),),
    devices={GPU: ("gpu-0", "gpu-1")},
    others={"cache": {"example.com/ways": "0-3 of node 1"}},
)
TEXTS = {
    "device": {GPU: "gpu-0,gpu-1"},
    "cpu": {"cpu": "1-2"},
    "memory": {"memory": "0-1=4096"},
    "cache": {"example.com/ways": "0-3 of node 1"},
}


def test_a_placement_as_text_and_back():
    assert PLACEMENT.as_text() == TEXTS
    assert Placement.of_text("app", NODE_1, TEXTS) == PLACEMENT
    assert Placement("app", NODE_1).as_text() == {}
    assert Placement.of_text("app", NODE_1, {}) == Placement("app", NODE_1)
    assert PLACEMENT.to_row() == {
        "container": "app",
        "nodes": "1",
        "cpus": "1-2",
        "memory": 4096,
        GPU: "gpu-0, gpu-1",
        "example.com/ways": "0-3 of node 1",
    }


@pytest.mark.parametrize("texts", [{"cpu": {"cpu": "x"}}, {"memory": {"memory": "0"}}, {"memory": {"memory": "0=y"}}])
def test_a_malformed_text_is_an_error(texts):
    with pytest.raises(ParseError):
        Placement.of_text("app", NODE_1, texts)


def test_the_missing_amount_of_a_shortfall():
    assert Shortfall("cpu", "cpu", needed=5, free=3).missing == 2
