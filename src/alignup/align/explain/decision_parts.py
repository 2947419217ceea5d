"""A decision split by container, or for the whole pod: what was requested, the merge, and the allocation.

Policy none merges nothing, so its decisions list no resources. They are looked up here, because the request is what a
reader wants to see first.
"""

from collections.abc import Iterator
from dataclasses import dataclass

from alignup.align.decision import Decision, MergeStep, Placement, ResourceHints
from alignup.align.hint import DONT_CARE
from alignup.align.host import Host
from alignup.align.workload import Container, Pod


@dataclass(frozen=True, slots=True)
class DecisionPart:
    """One container, or the whole pod."""

    container: str | None  #: ``None``: the whole pod
    resources: tuple[ResourceHints, ...]  #: only requested resources
    step: MergeStep | None  #: ``None``: nothing was merged
    placements: tuple[Placement, ...] = ()


def decision_parts(host: Host, pod: Pod, decision: Decision) -> tuple[DecisionPart, ...]:
    """The parts of *decision*, which *host* made about *pod*, in order."""
    return tuple(_with_merges(decision) if decision.steps else _without_merges(host, pod, decision))


def _with_merges(decision: Decision) -> Iterator[DecisionPart]:
    for step in decision.steps:
        placements = tuple(one for one in decision.placements if step.container in (None, one.container))
        yield DecisionPart(step.container, tuple(one for one in step.resources if one.resource), step, placements)


def _without_merges(host: Host, pod: Pod, decision: Decision) -> Iterator[DecisionPart]:
    placements = {one.container: one for one in decision.placements}
    for container in pod.all_containers:
        placed = placements.get(container.name)
        yield DecisionPart(container.name, _requested(host, pod, container), None, (placed,) if placed else ())


def _requested(host: Host, pod: Pod, container: Container) -> tuple[ResourceHints, ...]:
    return tuple(
        ResourceHints(one.name, resource, need.request, need.free, DONT_CARE)
        for one in host.providers
        for resource, need in one.needs(host.ledger.by_provider()[one.name], pod, container).items()
    )
