"""The best nodes for a pod: their scores in words, and what a node looks like with the pod on it."""

from collections.abc import Iterable, Sequence
from copy import copy
from typing import Any, NamedTuple

from alignup.align.errors import AlignError, PodError
from alignup.align.host import Host
from alignup.align.workload import Pod
from alignup.picture.text_format import pluralize
from alignup.placement.free_capacity import DEVICE
from alignup.placement.pod_demands import find_refusal
from alignup.placement.score import POINT, PlacementScore
from alignup.schedule.pod_answers import AnswerGroup, NodeAnswer, NodeAnswerKind
from alignup.web.pages import describe_machine

MAX_BEST = 3


def choose_best(groups: Iterable[AnswerGroup]) -> list[NodeAnswer]:
    """Return the nodes that admit the pod with the highest scores, then by name."""
    answers = [answer for group in groups if group.first.kind is NodeAnswerKind.ADMITS for answer in group.answers]

    def rank(answer: NodeAnswer) -> tuple[float, str]:
        return -answer.verdict.score.total if answer.verdict.score else 0.0, answer.node

    return sorted(answers, key=rank)[:MAX_BEST]


def describe_score(score: PlacementScore) -> list[str]:
    """Return why a placement has its score, a phrase with its points for each part."""
    area = f"on {pluralize(score.nodes, 'NUMA node')}" if score.nodes else "no resources of its own"
    far = "local" if score.distance <= 10 else f"mean distance {score.distance:g}"
    stranded_count = f"{abs(score.stranded) / DEVICE:.1f}".removesuffix(".0")
    strands = f"strands {stranded_count} devices" if score.stranded > 0 else "strands no device"
    if score.stranded < 0:
        strands = f"uses {stranded_count} stranded devices"
    phrases = (
        "every hint preferred" if score.preferred else "not every hint preferred",
        area,
        far,
        strands,
        f"{pluralize(score.devices_beside, 'device')} left unused beside it",
        f"{pluralize(score.cpus_beside, 'free CPU')} left beside it",
    )
    points = [f"{phrase} ({value / POINT:.3g})" for phrase, value in zip(phrases, score.points, strict=True)]
    return [*points, "the placement is not exactly known: half the points"] if score.approximate else points


class PlacedPods(NamedTuple):
    """A node as if these pods were on it."""

    node: str
    machine: dict[str, Any]  #: as ``web.pages.describe_machine`` returns it
    uids: Sequence[str]  #: of the pods


def place_pods(node: str, host: Host, pods: Sequence[Pod]) -> PlacedPods | None:
    """Return *host* with *pods* on it, bound in this order; ``None`` if it does not admit the first."""
    other, uids = copy(host), []
    for pod in pods:
        try:
            decision = other.decide_without_plugins(pod)
        except (PodError, AlignError):
            break
        if not decision.admitted or find_refusal(other, pod):
            break
        other.apply(decision)
        uids.append(pod.uid)
    return PlacedPods(node, describe_machine(other), uids) if uids else None
