"""Why a pod stays behind the gate, as one line for its event: ``0/5 nodes will admit the pod: 3 not enough cpu …``."""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

from alignup.gate.pod_queue import PodClass
from alignup.kubernetes.api.objects import ApiNode
from alignup.placement.verdict import Verdict
from alignup.schedule.node_selection import exclusions

MAX_REASONS = 6  #: in one line

FULL = "too little left by the Node object"
RESERVED = "kept for a pod that has waited longer"


@dataclass(frozen=True, slots=True)
class BlockedReasons:
    reasons: Mapping[str, int]  #: reason → number of nodes, the most frequent first
    nodes: int  #: in all

    def __str__(self) -> str:
        listed = [f"{count} {reason}" for reason, count in list(self.reasons.items())[:MAX_REASONS]]
        more = len(self.reasons) - MAX_REASONS
        listed += [f"{more} more reasons"] if more > 0 else []
        return f"0/{self.nodes} nodes will admit the pod" + (f": {', '.join(listed)}." if listed else ".")


def blocked_reasons(
    nodes: Iterable[ApiNode],
    own: PodClass,
    *,
    verdicts: Mapping[str, Verdict],
    reserved: Callable[[str], bool],
) -> BlockedReasons:
    """Explain why no node is left for the pods of a class."""
    found: Counter[str] = Counter()
    total = 0
    for node in nodes:
        total += 1
        name = node.metadata.name
        excluded = exclusions(node, own.spec)
        verdict = verdicts[name]
        if excluded:
            found[excluded[0]] += 1
        elif not verdict.admits:
            found[verdict.reason] += 1
        elif name in own.full:
            found[FULL] += 1
        elif reserved(name):
            found[RESERVED] += 1
    return BlockedReasons(dict(found.most_common()), total)
