"""Policies: what each makes of the same hints."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from alignup.align import bits
from alignup.align.hint import DONT_CARE, IMPOSSIBLE, AmountFamily, Hint, HintList, MergeInput, preferred_single_nodes
from alignup.align.policy import apply_policy
from alignup.align.settings import Policy
from tests import naive_merge
from tests.strategies_hints import distances_between, families, merge_inputs, node_sets

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
        pytest.param("best-effort", ALIGNED, [1], True, True, id="best-effort takes what is aligned"),
        pytest.param("best-effort", APART, [1], False, True, id="best-effort admits what is not"),
        pytest.param("restricted", ALIGNED, [1], True, True, id="restricted takes what is aligned"),
        pytest.param("restricted", APART, [1], False, False, id="restricted rejects what is not"),
        pytest.param("restricted", WIDE, [0, 1], True, True, id="restricted takes two nodes where one can never do"),
        pytest.param("single-numa-node", ALIGNED, [1], True, True, id="single-numa-node takes one node"),
        pytest.param(
            "single-numa-node", WIDE, None, False, False, id="single-numa-node rejects two, whatever the need"
        ),
        pytest.param(
            "single-numa-node", UNBOUND, None, True, True, id="single-numa-node has no node without preferences"
        ),
        pytest.param("best-effort", UNBOUND, [0, 1], True, True, id="best-effort has all nodes without preferences"),
        pytest.param(
            "single-numa-node", HOPELESS, None, False, False, id="single-numa-node rejects what cannot be placed"
        ),
        pytest.param("restricted", HOPELESS, [0, 1], False, False, id="restricted rejects what cannot be placed"),
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
