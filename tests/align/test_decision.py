"""What a decision shows of the hints it was made from."""

from typing import Any

import pytest

from alignup.align.decision import MAX_SHOWN_HINTS, ResourceHints, Shortfall
from alignup.align.hint import DONT_CARE, IMPOSSIBLE, AmountFamily, Hint, HintList


class TestVoices:
    @staticmethod
    def voice(options, **more: Any) -> ResourceHints:
        return ResourceHints("cpu", "cpu", 2, {0: 4}, options, **more)

    def test_hints_are_spelled_out_in_the_kubelets_order(self):
        said = self.voice(AmountFamily({0: 1, 1: 4}, 2, preferred_width=1))

        assert said.hints == (Hint(0b10, preferred=True), Hint(0b11, preferred=False))
        assert not said.hidden

    def test_only_so_many_are_shown(self):
        said = self.voice(AmountFamily(dict.fromkeys(range(6), 4), 2, preferred_width=1))

        assert len(said.hints) == MAX_SHOWN_HINTS
        assert said.hidden

    def test_many_nodes_are_not_walked_for_them(self):
        """On 64 nodes with room on the last ones only there are 2⁶⁴ sets to look through."""
        said = self.voice(
            AmountFamily(dict.fromkeys(range(60), 0) | dict.fromkeys(range(60, 64), 1), 3, preferred_width=1)
        )

        assert said.hints == ()
        assert said.hidden

    @pytest.mark.parametrize(
        ("options", "hints", "indifferent"),
        [
            pytest.param(DONT_CARE, (Hint(None, preferred=True),), True, id="anywhere would do"),
            pytest.param(IMPOSSIBLE, (), False, id="nowhere will do"),
            pytest.param(HintList.of([Hint(1, preferred=True)]), (Hint(1, preferred=True),), False, id="one place"),
        ],
    )
    def test_anywhere_and_nowhere_are_told_apart(self, options, hints, indifferent):
        said = self.voice(options)

        assert said.hints == hints
        assert said.has_no_preference is indifferent

    def test_two_are_equal_when_they_show_the_same(self):
        family = self.voice(AmountFamily({0: 1, 1: 4}, 2, preferred_width=1))
        listed = self.voice(HintList.of([Hint(0b10, preferred=True), Hint(0b11, preferred=False)]))

        assert family == listed
        assert hash(family) == hash(listed)
        assert family != self.voice(listed.options, cut=True)
        assert family != "cpu"


def test_a_shortfall_knows_what_is_missing():
    assert Shortfall("cpu", "cpu", needed=5, free=3).missing == 2
