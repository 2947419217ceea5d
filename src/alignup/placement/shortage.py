"""What hosts lack for one more pod, in a few words."""

from collections import Counter
from collections.abc import Sequence

from alignup.align.decision import Rejection, Shortfall
from alignup.align.explain.sentences import HOST, format_amount
from alignup.align.settings import Policy
from alignup.placement.cluster import Cluster
from alignup.placement.host_model import HostModel
from alignup.placement.verdict import Feasibility, reason_text


def describe_shortage(cluster: Cluster, verdicts: Feasibility) -> str:
    """Return what the nearest node lacks for one more pod, or the most frequent reason."""
    lacks = []
    for node, verdict in verdicts.items():
        record, rejection = cluster.record(node), verdict.rejection
        if record and rejection and verdict.reason == reason_text(rejection):  # resources do not just disagree
            shortfalls = _nearest(rejection, record.model)
            if shortfalls:
                lacks.append((_amount_missing(shortfalls), node, shortfalls))
    if lacks:
        _, node, shortfalls = min(lacks)
        amounts = " and ".join(
            format_amount(short.resource, short.missing, milli=short.provider == HOST) for short in shortfalls
        )
        return f"{node} lacks {amounts}" + (" on one NUMA node" if shortfalls[0].nodes is not None else "")
    reasons = Counter(verdict.reason for verdict in verdicts.values())
    if not reasons:
        return "no node is considered for the rest"
    reason, count = reasons.most_common(1)[0]
    return f"{reason} ({count} of {len(verdicts)} node{'' if len(verdicts) == 1 else 's'})"


def _nearest(rejection: Rejection, model: HostModel) -> tuple[Shortfall, ...]:
    """Return what the whole node lacks, or the NUMA node that lacks least; nothing if it is not known."""
    numa_nodes = model.host.view.all_nodes.bit_count()
    whole = [short for short in rejection.shortfalls if short.nodes is None]
    places: dict[int, list[Shortfall]] = {}
    by_resource: dict[str, list[Shortfall]] = {}
    for short in rejection.shortfalls:
        if short.nodes is not None:
            places.setdefault(short.nodes, []).append(short)
            by_resource.setdefault(short.resource, []).append(short)
    if model.settings.topology.policy is not Policy.SINGLE_NUMA_NODE:
        for first, *others in by_resource.values():
            free = first.free + sum(short.free for short in others)
            if len(others) + 1 == numa_nodes and free < first.needed:  # too little on all NUMA nodes together
                whole.append(Shortfall(first.provider, first.resource, first.needed, free))
    if whole or len(places) < numa_nodes:
        return tuple(whole)
    return min(map(tuple, places.values()), key=_amount_missing)


def _amount_missing(shortfalls: Sequence[Shortfall]) -> tuple[int, float]:
    return len(shortfalls), sum(short.missing / max(short.needed, 1) for short in shortfalls)
