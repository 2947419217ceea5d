"""Merges and policies: well-known examples, and the kubelet's result for any hints."""

from itertools import combinations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from alignup.align import bits
from alignup.align.errors import SettingsError, WorkLimitError
from alignup.align.hint import DONT_CARE, IMPOSSIBLE, AmountFamily, Hint, HintList, MergeInput, preferred_single_nodes
from alignup.align.machine import Distances
from alignup.align.merging import search
from alignup.align.merging.merge import MergeRule, apply_policy, merge
from alignup.align.settings import Policy
from tests import naive_merge
from tests.effort import examples
from tests.strategies_hints import distances_between, families, lists, merge_inputs, node_sets

BOTH = bits.of([0, 1])
NODE_0 = Hint(bits.of([0]), preferred=True)
NODE_1 = Hint(bits.of([1]), preferred=True)
SPREAD = Hint(BOTH, preferred=False)


def hinted(*hints: Hint) -> MergeInput:
    return MergeInput("example.com/thing", HintList.of(hints))


@pytest.mark.parametrize(
    ("sources", "nodes", "preferred", "rule"),
    [
        pytest.param([], [0, 1], True, MergeRule.PREFERRED, id="no inputs: all nodes, preferred"),
        pytest.param(
            [MergeInput("x", IMPOSSIBLE)], [0, 1], False, MergeRule.WIDER, id="cannot be placed: all nodes, not gladly"
        ),
        pytest.param(
            [hinted(NODE_0, NODE_1, SPREAD)] * 3, [0], True, MergeRule.PREFERRED, id="the announcement's example"
        ),
        pytest.param(
            [hinted(NODE_0), hinted(NODE_1)], [0, 1], False, MergeRule.NOTHING, id="nothing in common: all nodes"
        ),
        pytest.param(
            [hinted(NODE_0, SPREAD), hinted(NODE_1, SPREAD)],
            [0],
            False,
            MergeRule.AT_TARGET,
            id="as wide as the target",
        ),
        pytest.param(
            [hinted(SPREAD), hinted(NODE_1)],
            [1],
            False,
            MergeRule.NARROWER,
            id="narrower when the target cannot be had",
        ),
    ],
)
def test_well_known_merges(sources, nodes, preferred, rule):
    merged = merge(sources, nodes=BOTH)

    assert (list(bits.members(merged.nodes)), merged.preferred, merged.rule) == (nodes, preferred, rule)


def test_wider_than_the_target_is_the_last_resort():
    cpus = hinted(Hint(bits.of([0]), preferred=False), Hint(bits.of([1, 2, 3]), preferred=False))
    gpus = hinted(Hint(bits.of([1, 2]), preferred=False))

    merged = merge(
        [cpus, gpus, hinted(Hint(bits.of([3]), preferred=False), Hint(bits.of([1, 2]), preferred=False))], nodes=15
    )

    assert (merged.nodes, merged.width, merged.rule) == (bits.of([1, 2]), 2, MergeRule.AT_TARGET)
    wide = merge(
        [
            hinted(Hint(1, preferred=False), Hint(6, preferred=False)),
            hinted(Hint(14, preferred=False), Hint(8, preferred=False)),
        ],
        nodes=15,
    )
    assert (wide.nodes, wide.width, wide.rule) == (bits.of([1, 2]), 1, MergeRule.WIDER)


def test_two_wide_hints_can_intersect_in_a_set_that_fits_neither():
    """{0,1} wins as {0,1,2} ∩ {0,1,3}, though neither provider could be served from it alone."""
    amounts = {0: 1, 1: 1, 2: 2, 3: 2}
    family = AmountFamily(amounts, 4, preferred_width=1)

    assert not family.fits(bits.of([0, 1]))
    for dense in (8, 0):
        merged = merge([MergeInput("left", family), MergeInput("right", family)], nodes=15, dense=dense)
        assert (merged.nodes, merged.width, merged.preferred) == (bits.of([0, 1]), 2, False)


def test_a_single_family_directs_the_search():
    """The lower nodes have nothing, so sets of them are skipped."""
    family = AmountFamily({node: int(node > 5) for node in range(12)}, 4, preferred_width=2)

    merged = merge([MergeInput("cpu", family)], nodes=(1 << 12) - 1)

    assert (merged.nodes, merged.preferred, merged.rule) == (0b1111 << 6, False, MergeRule.AT_TARGET)


def test_closer_nodes_win_among_sets_of_one_width():
    far_first = Distances({0: {0: 10, 1: 30, 2: 30}, 1: {0: 30, 1: 10, 2: 12}, 2: {0: 30, 1: 12, 2: 10}})
    pairs = hinted(*(Hint(bits.of(pair), preferred=True) for pair in combinations(range(3), 2)))

    assert merge([pairs], nodes=7).nodes == bits.of([0, 1])
    merged = merge([pairs], nodes=7, distances=far_first)

    assert merged.nodes == bits.of([1, 2])
    assert merged.runners_up == (bits.of([0, 1]), bits.of([0, 2]))


def listed(nodes):
    return st.builds(MergeInput, st.just("x"), lists(nodes, unknown_nodes=True))


def in_families(nodes):
    return st.builds(MergeInput, st.just("x"), families(nodes))


@pytest.mark.parametrize(
    ("any_input", "least", "most"),
    [
        pytest.param(listed, 0, 4, id="explicit lists"),
        pytest.param(in_families, 1, 3, id="families"),
        pytest.param(merge_inputs, 1, 3, id="families and lists"),
    ],
)
@given(st.data())
def test_hints_merge_as_their_whole_product_does(any_input, least, most, data):
    nodes = data.draw(node_sets(most=4))
    inputs = [data.draw(any_input(nodes)) for _ in range(data.draw(st.integers(least, most)))]
    distances = data.draw(st.none() | distances_between(nodes))

    expected = naive_merge.merge(inputs, nodes=nodes, distances=distances)

    for dense in (8, 0):
        assert merge(inputs, nodes=nodes, distances=distances, dense=dense)[:2] == expected


@settings(max_examples=examples(30))
@given(st.data())
def test_above_eight_nodes_the_search_equals_counting(data):
    nodes = data.draw(node_sets(least=9, most=10))
    inputs = [data.draw(in_families(nodes)) for _ in range(data.draw(st.integers(1, 3)))]
    distances = data.draw(st.none() | distances_between(nodes))

    assert (
        merge(inputs, nodes=nodes, distances=distances)[:2]
        == merge(inputs, nodes=nodes, distances=distances, dense=10)[:2]
    )


@given(st.data())
def test_the_order_of_inputs_does_not_matter(data):
    nodes = data.draw(node_sets(most=5))
    inputs = [data.draw(merge_inputs(nodes)) for _ in range(data.draw(st.integers(2, 4)))]
    distances = data.draw(st.none() | distances_between(nodes))

    shuffled = data.draw(st.permutations(inputs))

    assert merge(inputs, nodes=nodes, distances=distances)[:2] == merge(shuffled, nodes=nodes, distances=distances)[:2]


@given(st.data())
def test_runners_up_are_real_distinct_and_bounded(data):
    nodes = data.draw(node_sets(most=4))
    inputs = [data.draw(merge_inputs(nodes)) for _ in range(data.draw(st.integers(1, 3)))]

    merged = merge(inputs, nodes=nodes)

    assert len(merged.runners_up) <= 3
    assert len({merged.nodes, *merged.runners_up}) == 1 + len(merged.runners_up)
    assert {mask.bit_count() for mask in merged.runners_up} <= {merged.nodes.bit_count()}
    if not merged.preferred:
        assert set(merged.runners_up) <= set(search.count_reachable_sets([options for _, options in inputs], nodes))


@pytest.mark.parametrize("count", [1, 8, 9, 70])
def test_any_number_of_inputs_is_counted_correctly(count):
    """Counts of combinations must not run over however many sources there are."""
    every_pair = hinted(*(Hint(bits.of(pair), preferred=False) for pair in combinations(range(8), 2)))
    everything = hinted(*(Hint(mask, preferred=False) for mask in range(1, 256)))

    merged = merge([everything] * count + [every_pair], nodes=255)

    assert (merged.nodes, merged.rule) == (bits.of([0, 1]), MergeRule.AT_TARGET)
    assert len(search.count_reachable_sets([everything.hints] * count, 255)) == 255


def test_contrived_hints_on_many_nodes_end_in_a_clear_error():
    """Reachability of arbitrary lists is as hard as vertex cover: beyond the limit we say so, and never guess."""
    nodes = (1 << 40) - 1
    lists = [
        MergeInput(
            f"vendor.com/r{turn}",
            HintList.of(Hint(nodes & ~(1 << i | 1 << (i * 7 + turn) % 40), preferred=False) for i in range(40)),
        )
        for turn in range(12)
    ]

    with pytest.raises(WorkLimitError, match=r"vendor\.com/r0, vendor\.com/r1") as caught:
        merge(lists, nodes=nodes, work_limit=10_000)

    assert caught.value.sources == tuple(merge_input.name for merge_input in lists)


def test_up_to_sixteen_nodes_no_hints_are_too_contrived():
    nodes = (1 << 12) - 1
    lists = [
        MergeInput(
            "x", HintList.of(Hint(nodes & ~(1 << i | 1 << (i * 5 + turn) % 12), preferred=False) for i in range(12))
        )
        for turn in range(3)
    ]

    assert merge(lists, nodes=nodes, work_limit=10)[:2] == merge(lists, nodes=nodes)[:2]


def test_sixty_four_nodes_with_ids_up_to_two_hundred():
    ids = range(100, 228, 2)
    cpus = MergeInput("cpu", AmountFamily(dict.fromkeys(ids, 4), 10, preferred_width=3))
    gpus = MergeInput("gpu", AmountFamily({node: 1 for node in ids if node % 4 == 0}, 3, preferred_width=3))

    merged = merge([cpus, gpus], nodes=bits.of(ids))

    assert (list(bits.members(merged.nodes)), merged.preferred) == ([100, 104, 108], True)


ALIGNED = [
    MergeInput("cpu", AmountFamily({0: 4, 1: 4}, 2, preferred_width=1)),
    MergeInput("gpu", AmountFamily({1: 1}, 1, preferred_width=1)),
]
APART = [
    MergeInput("cpu", AmountFamily({0: 4, 1: 0}, 2, preferred_width=1)),
    MergeInput("gpu", AmountFamily({1: 1}, 1, preferred_width=1)),
]
WIDE = [MergeInput("gpu", AmountFamily({0: 1, 1: 1}, 2, preferred_width=2))]
UNBOUND = [MergeInput("cpu", DONT_CARE)]
HOPELESS = [MergeInput("cpu", IMPOSSIBLE)]


@pytest.mark.parametrize(
    ("policy", "inputs", "nodes", "preferred", "admitted"),
    [
        pytest.param("none", APART, None, False, True, id="none merges nothing and admits"),
        pytest.param("best-effort", APART, [1], False, True, id="best-effort admits what is not"),
        pytest.param("restricted", APART, [1], False, False, id="restricted rejects what is not"),
        pytest.param("restricted", WIDE, [0, 1], True, True, id="restricted takes two nodes where one can never do"),
        pytest.param("single-numa-node", ALIGNED, [1], True, True, id="single-numa-node takes one node"),
        pytest.param(
            "single-numa-node", WIDE, None, False, False, id="single-numa-node rejects two, whatever the need"
        ),
        pytest.param(
            "single-numa-node", UNBOUND, None, True, True, id="single-numa-node has no node without preferences"
        ),
    ],
)
def test_each_policy_accepts_its_own_results(policy, inputs, nodes, preferred, admitted):
    verdict = apply_policy(Policy(policy), inputs, nodes=3)

    assert verdict.hint == Hint(None if nodes is None else bits.of(nodes), preferred)
    assert verdict.admitted is admitted


def test_on_a_machine_of_one_node_an_accepted_hint_has_no_nodes():
    verdict = apply_policy(
        Policy.SINGLE_NUMA_NODE, [MergeInput("cpu", AmountFamily({0: 8}, 2, preferred_width=1))], nodes=1
    )

    assert verdict == (Hint(None, preferred=True), True, verdict.merged)


@given(st.data())
def test_a_family_prefers_the_single_nodes_that_its_list_prefers(data):
    nodes = data.draw(node_sets(most=5))
    family = data.draw(families(nodes))

    assert preferred_single_nodes(family) == preferred_single_nodes(HintList.of_family(family))


@given(st.data())
def test_single_numa_node_agrees_with_the_whole_product(data):
    nodes = data.draw(node_sets(most=4))
    inputs = [data.draw(merge_inputs(nodes)) for _ in range(data.draw(st.integers(0, 3)))]

    verdict = apply_policy(Policy.SINGLE_NUMA_NODE, inputs, nodes=nodes)

    kept = [
        [
            hint
            for hint in naive_merge.all_hints(merge_input)
            if hint.preferred and (hint.nodes is None or hint.nodes.bit_count() == 1)
        ]
        for merge_input in inputs
    ]
    expected = naive_merge.merge([MergeInput("x", HintList.of(hints)) for hints in kept], nodes=nodes)
    assert verdict.admitted is expected.preferred
    assert verdict.hint == Hint(None if expected.nodes == nodes else expected.nodes, expected.preferred)


@given(st.data())
def test_restricted_admits_only_what_is_preferred_and_single_numa_node_less_still(data):
    nodes = data.draw(node_sets(most=4))
    inputs = [data.draw(merge_inputs(nodes)) for _ in range(data.draw(st.integers(0, 3)))]
    distances = data.draw(st.none() | distances_between(nodes))

    lenient = apply_policy(Policy.BEST_EFFORT, inputs, nodes=nodes, distances=distances)
    strict = apply_policy(Policy.RESTRICTED, inputs, nodes=nodes, distances=distances)
    strictest = apply_policy(Policy.SINGLE_NUMA_NODE, inputs, nodes=nodes, distances=distances)

    assert lenient.admitted
    assert lenient.hint == strict.hint
    assert strict.admitted is strict.hint.preferred
    assert strict.admitted or not strictest.admitted


@pytest.mark.parametrize("policy", Policy)
def test_the_text_of_a_policy_merges_as_the_policy(policy):
    inputs = [hinted(NODE_0, SPREAD), hinted(NODE_1, SPREAD)]

    assert apply_policy(str(policy), inputs, nodes=BOTH) == apply_policy(policy, inputs, nodes=BOTH)


def test_an_unknown_policy_is_refused():
    with pytest.raises(SettingsError, match='unknown policy: "bogus"'):
        apply_policy("bogus", [hinted(NODE_0)], nodes=BOTH)
