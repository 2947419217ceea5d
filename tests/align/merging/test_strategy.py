"""The preview of numa-allocation-strategy: which of equally fit sets of NUMA nodes wins."""

from dataclasses import replace
from itertools import combinations, permutations, product
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from alignup.align import bits
from alignup.align.errors import SettingsError
from alignup.align.explain.sentences import describe_choice
from alignup.align.hint import Hint, HintList, MergeInput
from alignup.align.host import Host
from alignup.align.machine import Device, Distances
from alignup.align.merging import strategy as strategy_module
from alignup.align.merging.merge import MergeRule, apply_policy
from alignup.align.merging.strategy import apply_strategy, score_share, weigh_scores
from alignup.align.release import STRATEGY_PREVIEW, find_release, with_preview
from alignup.align.settings import AllocationStrategy, FeatureGates, Policy, TopologyOptions, TopologySettings
from tests.align.hosts import make_host, pod
from tests.strategies_pods import DEVICES

PLAN = with_preview(find_release("1.38"), STRATEGY_PREVIEW)
ALPHA = FeatureGates({"TopologyManagerPolicyAlphaOptions": True}, PLAN)
MOST, LEAST = AllocationStrategy.MOST_ALLOCATED, AllocationStrategy.LEAST_ALLOCATED
GPU = "nvidia.com/gpu"


def parse(**options: str) -> TopologyOptions:
    return TopologyOptions.parse({name.replace("_", "-"): value for name, value in options.items()}, gates=ALPHA)


def single(scores: dict[str, list[int]], **options: str) -> list[int]:
    """The NUMA node that wins where each resource prefers every single node, with these scores on each."""
    count = len(next(iter(scores.values())))
    inputs = [(name, HintList.of([Hint(1 << node, preferred=True) for node in range(count)])) for name in scores]
    return chosen(inputs, list(scores.values()), nodes=(1 << count) - 1, **options)


def chosen(inputs, scores, *, nodes, distances=None, policy=Policy.RESTRICTED, **options: str) -> list[int]:
    parsed = parse(**options)
    result = apply_policy(policy, inputs, nodes=nodes, distances=distances)

    def score(number: int, mask: int) -> Any:
        table = scores[number]
        return table[mask] if isinstance(table, dict) else table[mask.bit_length() - 1]

    result = apply_strategy(result, [inputs], score, options=parsed, nodes=nodes, distances=distances)
    return list(bits.members(result.hint.nodes or 0))


@pytest.mark.parametrize(
    ("weights", "averages", "node"),
    [
        ("", (50, 41), 0),
        ("nvidia.com/gpu=10", (31, 66), 1),
        ("cpu=3,memory=1,nvidia.com/gpu=6", (42, 55), 1),
        ("cpu=5,nvidia.com/gpu=5", (50, 47), 0),
        ("nvidia.com/gpu=10,cpu=0", (27, 70), 1),
        ("cpu=100,memory=100,nvidia.com/gpu=100", (50, 41), 0),
    ],
)
def test_the_figures_of_the_plan_with_two_nodes(weights, averages, node):
    """64 CPUs, 128 GiB and 4 GPUs a node; allocated are 48, 64 GiB and 1, and 16, 32 GiB and 3."""
    scores = {
        "cpu": [score_share(48, 64), score_share(16, 64)],
        "memory": [score_share(64, 128), score_share(32, 128)],
        GPU: [score_share(1, 4), score_share(3, 4)],
    }
    options = {"numa_score_weights": weights}
    parsed = dict(parse(**options).weights)

    assert scores == {"cpu": [75, 25], "memory": [50, 25], GPU: [25, 75]}
    assert tuple(weigh_scores([(name, scores[name][at]) for name in scores], parsed) for at in (0, 1)) == averages
    assert single(scores, numa_allocation_strategy="most-allocated", **options) == [node]
    assert single(scores, numa_allocation_strategy="least-allocated", **options) == [1 - node]


@pytest.mark.parametrize(("weights", "node"), [("", 0), ("cpu=0,memory=0", 1)])
def test_the_figures_of_the_plan_with_four_nodes(weights, node):
    scores = {"cpu": [25, 75, 50, 50], "memory": [25, 75, 50, 50], "vf": [75, 25, 50, 50]}

    assert single(scores, numa_allocation_strategy="least-allocated", numa_score_weights=weights) == [node]


@pytest.mark.parametrize(("weights", "average"), [({"a": 7, "b": 3}, 74), ({"a": 8}, 75)])
def test_averages_are_weighted(weights, average):
    assert weigh_scores([("a", 80), ("b", 60 if "b" in weights else 40)], weights) == average


@pytest.mark.parametrize(("far", "nodes"), [(20, [2, 3]), (30, [0, 1])])
def test_closeness_beats_the_score(far, nodes):
    rows = {0: [10, 20, 30, 30], 1: [20, 10, 30, 30], 2: [30, 30, 10, far], 3: [30, 30, far, 10]}
    masks = [0b0011, 0b1100]
    hints = HintList.of([Hint(mask, preferred=True) for mask in masks])
    inputs, scores = [("cpu", hints)], [{0b0011: 20, 0b1100: 80}]

    won = chosen(
        inputs, scores, nodes=0b1111, distances=Distances.of_rows(rows), numa_allocation_strategy="most-allocated"
    )

    assert won == nodes


def test_an_unknown_score_decides_nothing():
    assert single({"cpu": [0, 50]}, numa_allocation_strategy="least-allocated") == [0]
    assert single({"cpu": [0, 50]}, numa_allocation_strategy="most-allocated") == [0]


def test_equal_scores_leave_the_lowest_node():
    assert single({"cpu": [50, 50, 20]}, numa_allocation_strategy="most-allocated") == [0]


def strategy_host(strategy: str, policy: Policy = Policy.SINGLE_NUMA_NODE, **settings: Any) -> Host:
    """Two NUMA nodes of eight CPUs."""
    topology = TopologySettings(policy=policy, options=parse(numa_allocation_strategy=strategy))
    return make_host(shape="pack:2 numa:1 core:8 pu:1", release=PLAN, topology=topology, **settings)


@pytest.mark.parametrize(("strategy", "node"), [("none", 0), ("", 0), ("most-allocated", 0), ("least-allocated", 1)])
def test_a_second_pod_on_two_nodes(strategy, node):
    """A pod has four CPUs of the first NUMA node."""
    host = strategy_host(strategy, memory=False)
    host.admit(pod("a", cpu="4"))

    decision = host.admit(pod("b", cpu="2"))

    assert decision.placements[0].hint.nodes == 1 << node
    by_strategy = strategy in {"most-allocated", "least-allocated"}
    assert (decision.steps[0].rule is MergeRule.STRATEGY) is by_strategy
    assert describe_choice(decision.steps[0]).endswith("numa-allocation-strategy chose it") is by_strategy


def test_later_containers_see_the_allocations_of_earlier_ones():
    asked = pod("p", cpu="1")
    second = replace(asked.containers[0], name="second")
    asked = replace(asked, containers=(*asked.containers, second))

    decision = strategy_host("least-allocated", memory=False).decide(asked)

    assert [placement.hint.nodes for placement in decision.placements] == [0b01, 0b10]


@pytest.mark.parametrize(
    ("options", "error"),
    [
        (
            {"numa-allocation-strategy": "X"},
            '"X" must be one of ["least-allocated" "most-allocated" "none"]',
        ),
        ({"numa-score-weights": "cpu"}, 'invalid weight entry "cpu": expected resource=weight'),
        ({"numa-score-weights": "=3"}, 'empty resource name in weight entry "=3"'),
        (
            {"numa-score-weights": "cpu=x"},
            'invalid weight value for "cpu": strconv.Atoi: parsing "x": invalid syntax',
        ),
        ({"numa-score-weights": "b=200,a=101"}, 'weight for "a" must be in range [0, 100], got 101'),
    ],
)
def test_values_that_the_plan_refuses(options, error):
    with pytest.raises(SettingsError) as caught:
        TopologyOptions.parse(options, gates=ALPHA)

    assert str(caught.value).endswith(error)
    assert str(caught.value).startswith(f'bad value for option "{next(iter(options))}": ')


def test_blanks_empty_parts_signs_and_repeated_names_are_fine():
    assert parse(numa_score_weights=" cpu = +3 ,, memory=1,cpu=5,").weights == (("cpu", 5), ("memory", 1))
    assert parse(numa_score_weights="").weights == ()


def test_the_option_needs_its_gate_and_its_preview():
    options = {STRATEGY_PREVIEW: "none"}

    with pytest.raises(SettingsError, match="alpha-level options not enabled, but option"):
        TopologyOptions.parse(options, gates=FeatureGates(release=PLAN))
    for version in ("1.37", "1.38"):
        gates = FeatureGates({"TopologyManagerPolicyAlphaOptions": True}, find_release(version))
        with pytest.raises(SettingsError, match='unknown Topology Manager Policy option: "numa-allocation-strategy"'):
            TopologyOptions.parse(options, gates=gates)
    with pytest.raises(SettingsError, match=r"for Kubernetes 1\.38 and later, not 1\.37"):
        with_preview(find_release("1.37"), STRATEGY_PREVIEW)


NODES = 0b1111
MASKS = [bits.of(members) for size in range(1, 5) for members in combinations(range(4), size)]
lists = st.lists(
    st.tuples(st.sampled_from(MASKS), st.booleans()), min_size=1, max_size=6, unique_by=lambda hint: hint[0]
)


def fold_all(listed, scores, *, chosen, distances, sign):
    """The winners of all combinations of *listed* hints, one after the other, of those as fit as the *chosen* set."""
    best = (0, 0)
    for combination in product(*(hints for _, hints in listed)):
        mask = NODES
        for other, _ in combination:
            mask &= other
        if mask.bit_count() != chosen.bit_count() or (
            distances is not None and distances.total(mask) != distances.total(chosen)
        ):
            continue
        points = [scores[number, other] for (number, _), (other, _) in zip(listed, combination, strict=True)]
        score = sum(points) // len(points)
        if not best[0]:
            best = (mask, score)
        elif mask != best[0]:
            best = min(best, (mask, score), key=lambda candidate: (sign * candidate[1], candidate[0]))
    return best[0]


@given(
    st.lists(lists, min_size=1, max_size=3),
    st.randoms(use_true_random=False),
    st.sampled_from([MOST, LEAST]),
    st.tuples(st.booleans(), st.sampled_from([Policy.BEST_EFFORT, Policy.RESTRICTED, Policy.SINGLE_NUMA_NODE])),
    st.integers(0, 3),
)
def test_the_strategy_is_that_of_all_combinations(listed, random, strategy, rules, first):
    """Verdict, width, preference and distance stay; of equally fit sets the best score wins.

    The *first* inputs are those of one provider, whose order is random.
    """
    closest, policy = rules
    rows = {n: [10 + 5 * (abs(n - m) > 1) + 2 * (n != m) for m in range(4)] for n in range(4)}
    distances = Distances.of_rows(rows) if closest and policy is not Policy.SINGLE_NUMA_NODE else None
    inputs = [
        MergeInput(f"r{number}", HintList.of([Hint(*hint) for hint in hints])) for number, hints in enumerate(listed)
    ]
    scores = {(number, mask): random.randint(1, 100) for number in range(len(listed)) for mask in MASKS}
    plain = apply_policy(policy, inputs, nodes=NODES, distances=distances)
    sign = -1 if strategy is MOST else 1

    result = apply_strategy(
        plain,
        [inputs[:first], *([part] for part in inputs[first:])],
        lambda number, mask: scores[number, mask],
        options=TopologyOptions(strategy=strategy),
        nodes=NODES,
        distances=distances,
    )

    assert (result.admitted, result.hint.preferred, result.merged.width) == (
        plain.admitted,
        plain.hint.preferred,
        plain.merged.width,
    )
    if not plain.admitted or plain.merged.nodes == NODES:
        assert result == plain
        return
    assert result.merged.nodes.bit_count() == plain.merged.nodes.bit_count()
    assert distances is None or distances.total(result.merged.nodes) == distances.total(plain.merged.nodes)
    if plain.merged.rule is not MergeRule.PREFERRED:
        numbered = list(enumerate(listed))
        winners = {
            fold_all([*order, *numbered[first:]], scores, chosen=plain.merged.nodes, distances=distances, sign=sign)
            for order in permutations(numbered[:first])
        }
        assert (result.merged.rule is MergeRule.RANDOM) is (len(winners) > 1)
        assert result.hint.nodes == min(winners)
        assert len(winners) == 1 or {*result.merged.runners_up, result.hint.nodes} == winners
        return
    possible = {}
    for combination in product(*listed):
        masks = {mask for mask, _ in combination}
        if len(masks) == 1 and all(preferred for _, preferred in combination):
            (mask,) = masks
            possible[mask] = sum(scores[number, mask] for number in range(len(listed))) // len(listed)
    fit = [mask for mask in possible if mask.bit_count() == plain.merged.nodes.bit_count()]
    if distances is not None:
        fit = [mask for mask in fit if distances.total(mask) == distances.total(plain.merged.nodes)]
    assert result.merged.nodes == min(fit, key=lambda mask: (sign * possible[mask], mask))


def random_inputs():
    """Two resources of one provider; only the first one fits on NUMA node 1."""
    parts = {"a": {0b01: 50, 0b10: 60, 0b11: 90}, "b": {0b01: 50, 0b11: 50}}
    inputs = [
        MergeInput(name, HintList.of([Hint(mask, preferred=False) for mask in masks])) for name, masks in parts.items()
    ]
    return inputs, [*parts.values()]


def choose_random(monkeypatch=None, steps=None):
    if monkeypatch:
        monkeypatch.setattr(strategy_module, "MAX_STEPS", steps)
    inputs, scores = random_inputs()
    plain = apply_policy(Policy.BEST_EFFORT, inputs, nodes=0b11)
    options = TopologyOptions(strategy=MOST)
    return apply_strategy(
        plain, [inputs], lambda number, mask: scores[number][mask], options=options, nodes=0b11, distances=None
    )


def test_an_answer_that_depends_on_a_random_order_is_a_set():
    """Node 0 has a score of 50 or 70, node 1 of 55: node 1 wins if the kubelet meets both of node 0 before it."""
    result = choose_random()

    assert result.merged.rule is MergeRule.RANDOM
    assert {result.hint.nodes, *result.merged.runners_up} == {0b01, 0b10}


def test_all_equally_fit_sets_are_possible_if_there_are_too_many_combinations(monkeypatch):
    result = choose_random(monkeypatch, steps=1)

    assert {result.hint.nodes, *result.merged.runners_up} == {0b01, 0b10}


def test_each_set_of_a_random_choice_is_a_possible_decision(monkeypatch):
    """The GPU of NUMA node 0 is healthy, and the NIC of node 1."""
    monkeypatch.setattr(strategy_module, "MAX_STEPS", 1)
    devices = [
        Device(resource, f"{node}", node=node, healthy=node == healthy)
        for healthy, resource in enumerate(DEVICES)
        for node in (0, 1)
    ]
    host = strategy_host("least-allocated", Policy.BEST_EFFORT, devices=devices)

    decisions = list(host.possible_decisions(pod("p", gpu="1", nic="1")))

    assert [decision.placements[0].hint.nodes for decision in decisions] == [0b01, 0b10]
    for decision in decisions:
        assert describe_choice(decision.steps[0]).startswith("{0} or {1}, at random: ")


def test_devices_and_memory_count():
    devices = [Device("example.com/gpu", f"{node}-{index}", nodes=1 << node) for node in (0, 1) for index in (0, 1)]
    host = strategy_host("least-allocated", devices=devices)
    assert host.admit(pod("a", gpu="1")).placements[0].hint.nodes == 0b01

    assert host.admit(pod("b", gpu="1")).placements[0].hint.nodes == 0b10
    large = host.admit(pod("c", cpu="1", memory="8Gi")).placements[0].hint.nodes
    assert host.admit(pod("d", cpu="1", memory="1Gi")).placements[0].hint.nodes == 0b11 ^ (large or 0)
