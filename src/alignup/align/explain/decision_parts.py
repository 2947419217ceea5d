"""A decision part by part: each container, or the pod as a whole, with what was asked of whom and what came of it.

Under policy none nobody is asked, so the record has no voices; what was asked for is looked up here all the same, since
that is the first thing a reader wants to see.
"""

from collections.abc import Iterator
from dataclasses import dataclass

from alignup.align.decision import Decision, MergeStep, Placement, ResourceHints
from alignup.align.hint import DONT_CARE
from alignup.align.host import Host
from alignup.align.workload import Container, Pod


@dataclass(frozen=True, slots=True)
class DecisionPart:
    """One container, or the pod as a whole."""

    container: str | None  #: ``None``: the pod as a whole
    voices: tuple[ResourceHints, ...]  #: only those that asked for something
    step: MergeStep | None  #: ``None``: nobody was asked
    placements: tuple[Placement, ...] = ()


def decision_parts(host: Host, pod: Pod, decision: Decision) -> tuple[DecisionPart, ...]:
    """Everything *decision*, which *host* made about *pod*, looked at, in that order."""
    return tuple(_merged(decision) if decision.steps else _unasked(host, pod, decision))


def _merged(decision: Decision) -> Iterator[DecisionPart]:
    for step in decision.steps:
        placements = tuple(one for one in decision.placements if step.container in (None, one.container))
        yield DecisionPart(step.container, tuple(voice for voice in step.voices if voice.resource), step, placements)


def _unasked(host: Host, pod: Pod, decision: Decision) -> Iterator[DecisionPart]:
    placements = {one.container: one for one in decision.placements}
    for container in pod.everyone:
        placed = placements.get(container.name)
        yield DecisionPart(container.name, _needs(host, pod, container), None, (placed,) if placed else ())


def _needs(host: Host, pod: Pod, container: Container) -> tuple[ResourceHints, ...]:
    return tuple(
        ResourceHints(one.name, resource, need.request, need.free, DONT_CARE)
        for one in host.providers
        for resource, need in one.needs(host.ledger.books[one.name], pod, container).items()
    )
