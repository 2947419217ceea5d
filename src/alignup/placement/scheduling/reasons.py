"""Reasons in words: why no node admits a pod, in one sentence, and why nodes are not kept any more."""

from collections.abc import Iterable, Mapping

from alignup.placement.verdict import VerdictKind

SHARE = "pods of other namespaces wait for it, and a gang keeps at most a tenth of the nodes that it may use"
PATIENCE = "it has kept pods of other namespaces waiting for as long as --patience-limit allows"
UNKNOWN_SCHEDULER = "its scheduler has not asked lately, and is not named with --scheduler-name"
FAILED = "alignup failed on the pod, and its log says why"
MAX_REASONS = 6  #: in one event

_KINDS = (VerdictKind.REJECTS, VerdictKind.UNKNOWN, None)  #: in the order in which they are listed


def count_reasons(reasons: Iterable[tuple[str, VerdictKind | None, str]]) -> dict[str, int]:
    """Count nodes by reason, the most frequent first; each comes with its kind of verdict, if that matters."""
    counts: dict[str, tuple[int, int, str]] = {}  #: minus the count, the kind, and the first node
    for node, kind, reason in sorted(reasons, key=lambda reason: reason[0]):
        count, rank, first = counts.get(reason, (0, _KINDS.index(kind), node))
        counts[reason] = (count - 1, rank, first)
    return {reason: -count for reason, (count, _, _) in sorted(counts.items(), key=lambda item: item[1])}


def describe_reasons(reasons: Mapping[str, int], *, nodes: int) -> str:
    """Return the text of an event: ``0/5 nodes will admit the pod: 3 not enough cpu …``."""
    texts = [f"{count} {reason}" for reason, count in list(reasons.items())[:MAX_REASONS]]
    more = len(reasons) - MAX_REASONS
    texts += [f"{more} more reasons"] if more > 0 else []
    return f"0/{nodes} nodes will admit the pod" + (f": {', '.join(texts)}." if texts else ".")
