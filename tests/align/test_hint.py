"""Hints: what providers may say, and that a family says the same as its list."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from alignup.align import bits
from alignup.align.hint import DONT_CARE, IMPOSSIBLE, AmountFamily, Hint, HintList, MergeInput, provider_inputs, subsets
from tests.strategies_hints import SharedDevices, families, lists, node_sets, subsets_of

NODE_0 = Hint(1, preferred=True)
BOTH = Hint(3, preferred=False)
NOTHING_FREE = AmountFamily({0: 0, 1: 0}, 1, preferred_width=1)


@pytest.mark.parametrize(
    ("answer", "inputs"),
    [
        pytest.param(None, [("gpu-plugin", DONT_CARE)], id="no answer: the provider does not care"),
        pytest.param({}, [("gpu-plugin", DONT_CARE)], id="an empty answer: the provider does not care"),
        pytest.param({"gpu": None}, [("gpu", DONT_CARE)], id="no list: the resource does not care"),
        pytest.param({"gpu": []}, [("gpu", IMPOSSIBLE)], id="an empty list: it cannot be placed"),
        pytest.param(
            {"gpu": NOTHING_FREE}, [("gpu", IMPOSSIBLE)], id="a family that fits nowhere: it cannot be placed"
        ),
        pytest.param(
            {"gpu": HintList((), preferred=frozenset())},
            [("gpu", IMPOSSIBLE)],
            id="an empty digest: it cannot be placed",
        ),
        pytest.param(
            {"gpu": [NODE_0, BOTH], "nic": None},
            [("gpu", HintList.of([NODE_0, BOTH])), ("nic", DONT_CARE)],
            id="each resource speaks for itself",
        ),
    ],
)
def test_provider_hints_become_merge_inputs(answer, inputs):
    assert provider_inputs("gpu-plugin", answer) == [MergeInput(name, options) for name, options in inputs]


def test_dont_care_and_impossible_differ_only_in_being_preferred():
    assert tuple(DONT_CARE) == (Hint(None, preferred=True),)
    assert tuple(IMPOSSIBLE) == (Hint(None, preferred=False),)


def test_of_two_hints_about_the_same_nodes_the_preferred_one_counts():
    hints = HintList.of([Hint(1, preferred=False), Hint(None, preferred=False), NODE_0, Hint(None, preferred=True)])

    assert tuple(hints) == (Hint(None, preferred=True), NODE_0)
    assert hints == HintList.of(
        [NODE_0, Hint(None, preferred=True), Hint(1, preferred=False), Hint(None, preferred=False)]
    )


def test_required_nodes_that_a_family_does_not_have_fit_nowhere():
    family = AmountFamily({0: 4, 1: 4}, 2, preferred_width=1, required=0b100)

    assert (family.min_width, family.fitting_sets()) == (0, ())


def test_no_node_completes_a_set_outside_the_family():
    family = AmountFamily({0: 4, 1: 4}, 6, preferred_width=2)

    assert (family.completing_nodes(0b1), family.completing_nodes(0b101)) == (0b10, 0)
    assert not family.may_complete(0b101, more=1, among=0b11)


def test_a_minimal_family_has_neither_slack_nor_amounts():
    family = SharedDevices((0b01, 0b11), need=1, preferred_width=1)

    assert (family.slack, family.amounts_on(0), family.fixed_sets) == (None, (), ())


def test_a_set_without_nodes_is_not_the_same_as_anywhere():
    assert HintList.of([Hint(0, preferred=True)]).anywhere is None
    assert HintList.of([Hint(0, preferred=True)]).min_width == 0
    assert HintList.of([Hint(None, preferred=True)]).min_width is None


def test_hints_are_listed_by_width_and_then_by_rising_ids():
    every = AmountFamily({0: 1, 2: 1, 5: 1}, 1, preferred_width=1)

    listed = HintList.of_family(every).masks

    assert [bits.show(mask) for mask in listed] == ["0", "2", "5", "0,2", "0,5", "2,5", "0,2,5"]
    assert listed == subsets(bits.of([0, 2, 5]))


@pytest.mark.parametrize(
    ("hint", "text"),
    [
        pytest.param(Hint(bits.of([0, 1, 4]), preferred=True), "{0-1,4}", id="preferred nodes"),
        pytest.param(Hint(1, preferred=False), "{0} not preferred", id="nodes that are not preferred"),
        pytest.param(Hint(None, preferred=True), "anywhere", id="no nodes"),
    ],
)
def test_a_hint_reads_well(hint, text):
    assert str(hint) == text


def test_sockets_add_preferred_sets():
    """align-by-socket: sets touching as few sockets as the smallest needs are preferred too."""
    nodes = AmountFamily(dict.fromkeys(range(4), 8), 20, preferred_width=3, sockets=(3, 12), preferred_sockets=2)

    assert nodes.prefers(bits.of([0, 1, 2]))
    assert nodes.prefers(bits.of([0, 3]))
    assert not nodes.prefers(bits.of([0, 1]))


def test_required_nodes_are_in_every_set():
    reuse = AmountFamily({0: 4, 1: 4, 2: 0}, 2, required=bits.of([2]), preferred_width=1)

    assert [bits.show(mask) for mask in reuse.fitting_sets()] == ["0,2", "1-2", "0-2"]
    assert reuse.min_width == 2
    assert reuse.completing_nodes(1) == bits.of([2])


@given(st.data())
def test_a_family_equals_its_list(data):
    nodes = data.draw(node_sets(most=5))
    family = data.draw(families(nodes))

    listed = HintList.of_family(family)

    assert listed.masks == tuple(mask for mask in subsets(nodes) if family.fits(mask))
    assert listed.min_width == family.min_width
    assert listed.preferred == {mask for mask in listed.masks if family.prefers(mask)}
    assert {mask.bit_count() for mask in listed.preferred} <= set(bits.members(family.preferred_widths))
    assert set(family.fixed_sets) <= set(listed.masks)


@given(st.data())
def test_a_set_that_fits_still_fits_with_more_nodes(data):
    nodes = data.draw(node_sets(most=5))
    family = data.draw(families(nodes))
    if not family.nodes:
        return
    smaller = data.draw(subsets_of(family.nodes))
    larger = smaller | data.draw(subsets_of(family.nodes))

    if smaller not in family.fixed_sets and family.fits(smaller):
        assert family.fits(larger)


@given(st.data())
def test_completing_nodes_are_exactly_those_that_make_a_set_fit(data):
    nodes = data.draw(node_sets(most=5))
    family = data.draw(families(nodes).filter(lambda family: family.nodes and not family.fixed_sets))
    beginning = data.draw(subsets_of(family.nodes))

    ends = family.completing_nodes(beginning)

    assert ends == bits.of(node for node in bits.members(family.nodes) if family.fits(beginning | 1 << node))


@given(st.data())
def test_may_complete_has_no_false_negatives(data):
    nodes = data.draw(node_sets(most=5))
    family = data.draw(families(nodes).filter(lambda family: family.nodes and not family.fixed_sets))
    beginning, among = data.draw(subsets_of(family.nodes)), data.draw(subsets_of(family.nodes))
    more = data.draw(st.integers(0, 5))

    if not family.may_complete(beginning, more=more, among=among):
        additions = [0, *subsets(among)]
        assert not any(family.fits(beginning | extra) for extra in additions if extra.bit_count() <= more)


@given(st.data())
def test_slack_is_what_may_be_left_out(data):
    nodes = data.draw(node_sets(most=5))
    family = data.draw(families(nodes).filter(lambda family: family.nodes and not family.fixed_sets))
    kept = data.draw(subsets_of(family.nodes, least=1))
    if family.slack is None:
        return

    left_out = sum(family.amounts_on(node)[0] for node in bits.members(family.nodes & ~kept))

    assert family.fits(kept) == (left_out <= family.slack[0])


@given(st.data())
def test_a_hint_list_keeps_every_hint(data):
    nodes = data.draw(node_sets(most=4))
    hints = data.draw(lists(nodes, unknown_nodes=True))

    assert HintList.of(hints) == hints
    assert HintList.of(reversed(tuple(hints))).preferred == hints.preferred
