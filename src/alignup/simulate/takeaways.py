"""The takeaway of a report: the sentence that answers the question for which it was made."""

from collections.abc import Mapping, Sequence
from operator import attrgetter

from alignup.align.settings import Policy
from alignup.picture.text_format import clean
from alignup.simulate.arrivals import format_duration
from alignup.simulate.cluster_result import FleetResult
from alignup.simulate.compared_settings import NOT_APPLICABLE, Comparison
from alignup.simulate.node_simulation import Score, SimulationResult
from alignup.simulate.sweeps import CombinationMeans


def node_takeaway(result: SimulationResult) -> str:
    """Return how many pods these settings admit, and the most frequent reason why not."""
    text = f"{_capitalize(_given(result))} admits {_admitted(result)}, {_on_one(result.pods.on_one)}."
    if not result.reasons:
        return text
    reason, number = next(iter(result.reasons.items()))
    which = f"all {number:,}" if number == result.rejected and number > 1 else f"{number:,} of {result.rejected:,}"
    return f"{text} Rejections are mostly {clean(reason)} ({which})."


def comparison_takeaway(result: SimulationResult, comparison: Comparison) -> str:
    """Return the best settings, and how much better they are than the settings of *result*."""
    if not comparison.ranked:
        return f"The kubelet starts with none of the {_count(len(comparison.invalid), 'combination')}."
    best = comparison.ranked[0]
    tie_count = sum(ranked_variant.rank == best.rank for ranked_variant in comparison.ranked)
    total = len(comparison.ranked)
    among = f", like {_count(tie_count - 1, 'other combination')}," if tie_count > 1 else ""
    text = f"{_choices(best.variant.choices)}{among} admits {_admitted(best.score)}, {_on_one(best.score.pods.on_one)}"
    configured_settings = f"the configured settings ({_given(result)})"
    more, gain = best.score.admitted - result.admitted, best.score.pods.on_one - result.pods.on_one
    if more:
        text += f"; {abs(more):,} {'more' if more > 0 else 'fewer'} than {configured_settings}"
    elif gain:
        fewer = "fewer" if gain > 0 else "more"
        text += f"; {configured_settings} admit as many, {abs(gain):,} {fewer} of them on one NUMA node"
    elif best.score.sort_key == result.sort_key:
        text += f"; {configured_settings} are as good"
    else:
        text += f"; {configured_settings} admit as many, and strand more"
    return f"{text}. It is the best of {_count(total, 'combination')}."


def cluster_takeaway(results: Sequence[FleetResult]) -> str:
    """Return the strategy that starts the most pods, and how much better it is than the next."""
    ranked_results = sorted(results, key=attrgetter("rank"))
    best = ranked_results[0]
    next_result = next((result for result in ranked_results if result.rank != best.rank), None)
    started_text = f"{best.started:,} of {_count(best.pods, 'pod')} on {_count(best.hosts, 'node')}"
    if next_result is None:
        name = clean(best.strategy) if len(results) == 1 else f"Each of the {len(results)} strategies"
        return f"{name} starts {started_text}, with {_rejections(best)}."
    tie_count = sum(result.rank == best.rank for result in results) - 1
    like = f", like {tie_count} other {'strategy' if tie_count == 1 else 'strategies'}," if tie_count else ""
    text = f"{clean(best.strategy)}{like} starts {started_text}, with {_rejections(best)}"
    other = clean(next_result.strategy)
    if more := best.started - next_result.started:
        return f"{text}; {more:,} more than {other}, which has {_rejections(next_result)}."
    if best.rejected != next_result.rejected:
        return f"{text}; {other} starts as many, with {_rejections(next_result)}."
    waits = [format_duration(result.waiting.p99) for result in (best, next_result)]
    return f"{text}, and 99% of them wait at most {waits[0]}; with {other}, {waits[1]}."


def sweep_takeaway(combinations: Sequence[CombinationMeans]) -> str:
    """Return the best of *combinations*, which come best first, and the next one."""
    if not combinations:
        return "No combination was simulated."
    best = combinations[0]
    text = f"{_names(best)} starts {best.started_share:.1%} of its pods"
    if (rejections := best.figures["rejections"]) > 0:
        text += f", with {rejections:,.1f} rejections by kubelets"
    if len(combinations) == 1:
        return f"{text}."
    next_means = combinations[1]
    share = f"{next_means.started_share:.1%}"
    text += f": the best of {len(combinations)} combinations. Next is {_names(next_means)} with {share}"
    if (rejections := next_means.figures["rejections"]) > 0:
        text += f" and {rejections:,.1f} rejections"
    return f"{text}."


def _given(result: SimulationResult) -> str:
    topology = result.settings.topology
    scope = "" if topology.policy == Policy.NONE else f" with scope {topology.scope}"
    return f"policy {topology.policy}{scope}"


def _choices(choices: Mapping[str, str]) -> str:
    texts = [f"{name} {clean(value)}" for name, value in choices.items() if value != NOT_APPLICABLE]
    return _capitalize(" with ".join(texts))


def _count(number: int, noun: str) -> str:
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def _capitalize(text: str) -> str:
    return text[:1].upper() + text[1:]


def _admitted(score: Score) -> str:
    return f"{score.admitted:,} of {_count(score.admitted + score.rejected, 'pod')}"


def _on_one(number: int) -> str:
    return f"{number:,} of them on one NUMA node"


def _rejections(result: FleetResult) -> str:
    return f"{_count(result.rejected, 'rejection')} by kubelets" if result.rejected else "no rejection by a kubelet"


def _names(combination: CombinationMeans) -> str:
    return "/".join(map(clean, combination.names))
