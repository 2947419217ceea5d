"""Merging: each case compared with its budget and with the product of all hints, which the kubelet walks.

``lists`` are listed hints, ``families`` are tested; *preferred* means that some set is preferred by all,
*none preferred* that all sets count, *last set only* that all others are refused. "Hints indexed" includes building the
hint lists.
"""

from collections.abc import Iterator, Sequence
from random import Random

from alignup.align.hint import AmountFamily, Hint, HintList, MergeInput
from alignup.align.machine import Distances
from alignup.align.merging.merge import apply_policy
from alignup.align.settings import Policy
from bench.harness import Figure, best_cpu, show
from tests import naive_merge

KUBELET = {(2, 3): "4.4 µs", (4, 4): "6.5 ms", (8, 3): "5.3 s", (8, 4): "some 20 min"}


def figures() -> Iterator[Figure]:
    yield lists(2, 3, preferred=True, budget=2.3e-6, policy=Policy.SINGLE_NUMA_NODE)
    yield lists(2, 3, preferred=True, budget=8e-6)
    yield lists(2, 3, preferred=False, budget=8e-6)
    yield lists(4, 4, preferred=True, budget=20e-6)
    yield lists(4, 4, preferred=False, budget=60e-6)
    yield lists(8, 4, preferred=True, budget=50e-6)
    yield lists(8, 4, preferred=False, budget=600e-6)
    yield random_lists(8, 4, budget=600e-6)
    yield everything_preferred(8, 4, budget=50e-6)
    yield digested(8, 4)
    for shape, make in (("preferred", roomy), ("none preferred", crowded)):
        yield families(f"built families 8 x 4, {shape}", [make(8, turn) for turn in range(4)], budget=600e-6)
        yield families(f"built families 16 x 4, {shape}", [make(16, turn) for turn in range(4)], budget=300e-6)
    for width in (1, 2, 3):
        for shape, make in (("preferred", roomy), ("none preferred", crowded), ("last set only", late)):
            inputs = [make(64, turn, width) for turn in range(4)]
            yield families(f"built families 64 x 4, width {width}, {shape}", inputs, budget=2e-3)
            yield families(
                f"built families 64 x 4, width {width}, {shape}, closest", inputs, budget=20e-3, closest=True
            )


def lists(nodes: int, resources: int, *, preferred: bool, budget: float, policy: Policy = Policy.BEST_EFFORT) -> Figure:
    """Return lists in which every set of nodes is a hint; sets of one node are preferred, unless *preferred* is off."""
    hints = [Hint(mask, preferred=preferred and mask.bit_count() == 1) for mask in range(1, 1 << nodes)]
    inputs = [MergeInput(f"r{turn}", HintList.of(hints)) for turn in range(resources)]
    shape = "preferred" if preferred else "none preferred"
    name = f"lists {nodes} x {resources}, {shape}" + ("" if policy is Policy.BEST_EFFORT else f", {policy}")
    return measured(name, inputs, nodes=nodes, budget=budget, policy=policy)


def random_lists(nodes: int, resources: int, *, budget: float) -> Figure:
    """Some of the sets, none preferred by all."""
    random = Random(1)
    inputs = [
        MergeInput(
            f"r{turn}", HintList.of(Hint(mask, preferred=False) for mask in random.sample(range(1, 1 << nodes), 150))
        )
        for turn in range(resources)
    ]
    return measured(f"lists {nodes} x {resources}, 150 random sets each", inputs, nodes=nodes, budget=budget)


def everything_preferred(nodes: int, resources: int, *, budget: float) -> Figure:
    """Return inputs that prefer every set."""
    hints = [Hint(mask, preferred=True) for mask in range(1, 1 << nodes)]
    inputs = [MergeInput(f"r{turn}", HintList.of(hints)) for turn in range(resources)]
    return measured(f"lists {nodes} x {resources}, all preferred", inputs, nodes=nodes, budget=budget)


def digested(nodes: int, resources: int) -> Figure:
    """Like ``lists``, including the construction of the hint lists."""
    hints = [Hint(mask, preferred=mask.bit_count() == 1) for mask in range(1, 1 << nodes)]
    everything = (1 << nodes) - 1

    def action() -> object:
        inputs = [MergeInput("r", HintList.of(hints)) for _ in range(resources)]
        return apply_policy(Policy.BEST_EFFORT, inputs, nodes=everything)

    return Figure(f"lists {nodes} x {resources}, preferred, hints indexed", best_cpu(action))


def measured(
    name: str, inputs: Sequence[MergeInput], *, nodes: int, budget: float, policy: Policy = Policy.BEST_EFFORT
) -> Figure:
    """One merge, compared with the naive product if that is fast enough."""
    everything = (1 << nodes) - 1
    seconds = best_cpu(lambda: apply_policy(policy, inputs, nodes=everything))
    combinations_ = 1
    for merge_input in inputs:
        combinations_ *= len(naive_merge.all_hints(merge_input))
    note = f"{combinations_:,} combinations"
    if combinations_ < 100_000:
        slow = best_cpu(lambda: naive_merge.merge(inputs, nodes=everything), rounds=3)
        note += f": naive {show(slow, 's')}, {slow / seconds:,.0f} times as long"
    kubelet = "2.3 µs" if policy is Policy.SINGLE_NUMA_NODE else KUBELET.get((nodes, len(inputs)))
    return Figure(name, seconds, budget, note + (f"; kubelet {kubelet}" if kubelet else ""))


def families(name: str, options: Sequence[AmountFamily], *, budget: float, closest: bool = False) -> Figure:
    """Build families of these *options*, as providers do for each admission, and merge them."""
    nodes = 0
    for family in options:
        nodes |= family.nodes
    distances = ring(nodes.bit_count()) if closest else None

    def action() -> object:
        inputs = [
            MergeInput("r", AmountFamily(option.amounts, option.need, preferred_width=option.preferred_width))
            for option in options
        ]
        return apply_policy(Policy.BEST_EFFORT, inputs, nodes=nodes, distances=distances)

    return Figure(name, best_cpu(action), budget)


def ring(count: int) -> Distances:
    """Nodes in groups of four, groups in a ring."""

    def distance(a: int, b: int) -> int:
        if a == b:
            return 10
        hops = abs(a // 4 - b // 4)
        return 12 + 5 * min(hops, count // 4 - hops)

    return Distances({a: {b: distance(a, b) for b in range(count)} for a in range(count)})


def roomy(nodes: int, turn: int, width: int = 2) -> AmountFamily:
    """Free amounts on every node, more on some: the preferred width fits."""
    random = Random(turn)
    amounts = {node: random.randint(6, 16) for node in range(nodes)}
    return AmountFamily(amounts, 10 * width - 2, preferred_width=width)


def crowded(nodes: int, turn: int, width: int = 2) -> AmountFamily:
    """Return inputs without a preferred hint: the empty machine needs fewer nodes than fit now."""
    random = Random(turn)
    amounts = {node: random.randint(4, 10) for node in range(nodes)}
    return AmountFamily(amounts, 9 * width + 1, preferred_width=width)


def late(nodes: int, turn: int, width: int = 2) -> AmountFamily:
    """Only the highest nodes have enough, and each family lacks other lower nodes: the search goes far."""
    amounts = {node: 5 if (node + turn) % 5 else 3 for node in range(nodes)}
    for node in range(nodes - width, nodes):
        amounts[node] = 10
    return AmountFamily(amounts, 10 * width - width // 2, preferred_width=width)
