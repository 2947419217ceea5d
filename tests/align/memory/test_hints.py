"""Sets of nodes for memory: the kubelet's list for whatever state a machine is in, asked in every way."""

from itertools import starmap
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from alignup.align import bits
from alignup.align.hint import AmountFamily, Hint, MergeInput, subsets
from alignup.align.memory.hints import MemoryHintFamily, memory_family
from alignup.align.memory.ledger import Block, MemoryLedger, Sizes
from alignup.align.merging.merge import merge
from tests import naive_merge
from tests.align.memory import model
from tests.align.memory.model import GIB, MEMORY, PAGES, idle, on, spelled
from tests.effort import examples

UID = "asking"

sizes = st.sampled_from((0, GIB, 2 * GIB, 3 * GIB, 5 * GIB, 9 * GIB))


@st.composite
def states(draw: st.DrawFn, most: int = 5) -> MemoryLedger:
    """A machine some of whose memory is held, and perhaps can be used again."""
    gib = draw(st.lists(st.sampled_from((0, 2, 4, 4, 8)), min_size=1, max_size=most))
    listing = draw(st.frozensets(st.integers(0, len(gib) - 1)))
    ledger = idle(*gib, pages={node: draw(st.sampled_from((0, 1024, 2048))) for node in listing})
    masks = subsets(bits.of(ledger.nodes))
    for number in range(draw(st.integers(0, 4))):
        mask = draw(st.sampled_from(masks))
        if ledger.keeps_groups(mask):
            size = min(draw(sizes), ledger.free(mask, MEMORY))
            block = Block(mask, MEMORY, size)
            ledger = ledger.give(
                draw(st.sampled_from((UID, "other"))), f"c{number}", blocks=[block], init=draw(st.booleans())
            )
    return ledger


needs: st.SearchStrategy[Sizes] = st.fixed_dictionaries(
    {MEMORY: sizes}, optional={PAGES: sizes, "hugepages-1Gi": st.just(0)}
)


@given(states(), needs)
def test_a_family_is_the_list_the_kubelet_makes(ledger, need):
    expected = model.hints(ledger, need, UID)

    family = memory_family(ledger, need, pod=UID)

    assert spelled({MEMORY: family}) == tuple(starmap(Hint, expected.items()))
    if family:
        assert family.min_width == min(map(int.bit_count, expected))
        assert all(map(family.fits, expected))


@given(states(), needs, st.data())
def test_the_best_set_with_given_nodes_is_the_first_in_rank(ledger, need, data):
    start = bits.of(data.draw(st.frozensets(st.sampled_from(list(ledger.nodes)))))
    listed = [mask for mask in model.hints(ledger, need, UID) if not start & ~mask]

    family = memory_family(ledger, need, pod=UID)

    best = family.best(start) if family else None
    assert best == min(listed, key=lambda mask: (mask.bit_count(), mask), default=None)


@given(states(), needs, st.data())
def test_properties_of_growing_sets_are_consistent(ledger, need, data):
    family = memory_family(ledger, need, pod=UID)
    if family is None or not family.nodes:
        return
    inside = st.frozensets(st.sampled_from(list(bits.members(family.nodes)))).map(bits.of)
    start = data.draw(inside)
    among = data.draw(inside) & ~start
    more = data.draw(st.integers(0, 4))

    def grows_to_fit(mask: bits.NodeSet) -> bool:
        """Whether *mask* fits by what its nodes have free, not as a fixed set."""
        return bool(mask) and all(ledger.free(mask, type_) >= size for type_, size in need.items())

    assert family.completing_nodes(start) == bits.of(
        node for node in bits.members(family.nodes) if grows_to_fit(start | 1 << node)
    )
    reached = any(grows_to_fit(start | extra) for extra in (0, *subsets(among)) if extra.bit_count() <= more)
    if start:
        assert family.may_complete(start, more=more, among=among) is reached
    left_out = [
        sum(column) for column in zip(*map(family.amounts_on, bits.members(family.nodes & ~start)), strict=True)
    ]
    if start and left_out:
        assert all(map(int.__le__, left_out, family.slack)) is grows_to_fit(start)


@given(states(), needs, st.data())
@settings(max_examples=examples(50))
def test_merging_families_is_merging_their_lists(ledger, need, data):
    nodes = bits.of(ledger.nodes)
    family = memory_family(ledger, need, pod=UID)
    if family is None:
        return
    cpus = AmountFamily({node: data.draw(st.integers(0, 4)) for node in ledger.nodes}, 4, preferred_width=1)
    inputs = [*(MergeInput(type_, family) for type_ in need), MergeInput("cpu", cpus)]
    inputs = inputs if cpus.min_width else inputs[:-1]

    merged = merge(inputs, nodes=nodes)

    assert merged[:2] == naive_merge.merge(inputs, nodes=nodes)


def test_a_node_in_use_serves_alone_and_a_group_only_as_a_whole():
    ledger = idle(4, 4, 4, 4, 4)
    ledger = ledger.give("one", "app", blocks=[Block(0b00001, MEMORY, GIB)])
    ledger = ledger.give("two", "app", blocks=[Block(0b00110, MEMORY, 5 * GIB)])

    small = memory_family(ledger, {MEMORY: GIB}, pod=UID)

    assert small is not None
    assert list(map(str, spelled({MEMORY: small}))) == [
        "{0}", "{3}", "{4}", "{1-2} not preferred", "{3-4} not preferred",
    ]  # fmt: skip
    assert (small.nodes, small.fixed_sets, small.min_width) == (0b11000, (0b00001, 0b00110), 1)
    assert small.completing_nodes(0b00001) == 0, "what is in use does not grow"
    assert not small.may_complete(0b00001, more=1, among=0b11000)


def test_sixty_four_nodes_are_not_listed():
    """2⁶⁴ sets: an answer at all shows that none but the useful ones were looked at."""
    ledger = idle(*range(1, 65), pages=dict.fromkeys(range(0, 64, 7), 1024))

    family = memory_family(ledger, {MEMORY: 500 * GIB, PAGES: 5 * GIB}, pod=UID)

    assert family is not None
    assert family.min_width == family.preferred_width == 9
    best = family.best()
    assert best is not None
    assert family.fits(best)
    wider = family.best(on(0, 1).nodes or 0)
    assert wider is not None
    assert wider.bit_count() == 11


@pytest.mark.parametrize("type_", [PAGES, "hugepages-1Gi"])
def test_a_size_that_a_node_does_not_list_is_a_size_it_has_none_of(type_):
    ledger = idle(4, 4, pages={1: 512})

    family = memory_family(ledger, {MEMORY: GIB, type_: GIB}, pod=UID)

    assert spelled({MEMORY: family}) == ((on(1, preferred=True), on(0, 1)) if type_ == PAGES else ())


def test_may_complete_is_true_if_the_work_limit_is_reached():
    """A question that takes too long is answered as if it could be reached: merging then looks for itself."""
    poor = {node: (part := Random(node).randrange(1, 1000), 1000 - part) for node in range(40)}
    hard = MemoryHintFamily({**poor, 40: (20_000, 20_000)}, (10_007, 9_993), preferred_width=1, work_limit=0)

    assert hard.min_width == 1
    assert hard.may_complete(1 << 3, more=19, among=bits.of(poor))
