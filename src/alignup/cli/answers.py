"""What ``alignup why`` answers, for people and for machines."""

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from alignup.align import record
from alignup.align.decision import Decision
from alignup.align.explain import advice, remedies, story
from alignup.align.explain.parts import parts
from alignup.align.explain.remedies import Search
from alignup.align.workload import Pod
from alignup.cli import inputs, screen
from alignup.cli.inputs import Node
from alignup.cli.prose import section, sentence
from alignup.kube.dump import dump
from alignup.kube.manifests import Workload
from alignup.picture import decision as picture
from alignup.picture.cells import Cell, Line

VERSION = 1  #: of the documents


@dataclass(frozen=True, slots=True)
class Answer:
    """All there is to say about one workload."""

    workload: Workload
    pod: Pod
    decision: Decision
    search: Search


def answer(node: Node, workload: Workload, *, seconds: float) -> Answer:
    """Decide on one replica of *workload*; where it is refused, look for what would admit it for so many *seconds*."""
    with inputs.complaining(f"in {workload.source}"):
        decision = node.host.decide(workload.pod)
        end = time.monotonic() + seconds
        search = remedies.search(node.host, workload.pod, enough=lambda: time.monotonic() > end)
    return Answer(workload, workload.pod, decision, search)


def _text(node: Node, answers: Sequence[Answer]) -> None:
    lines: list[Line] = []
    for one in answers:
        lines += [(), (Cell("─" * screen.width(), "frame"),), ()] if lines else []
        lines += _told(node, one)
    screen.lines(lines)


def _told(node: Node, one: Answer) -> Iterator[Line]:
    """The whole story, from the verdict to what would change it."""
    decision, host = one.decision, node.host
    yield from sentence(story.verdict(decision), style="warn" if decision.refusal else "title")
    if decision.refusal:
        yield from sentence(decision.refusal.message)
    yield from sentence(story.rules(decision), style="dim")
    yield from picture.draw(host.machine, decision, parts(host, one.pod, decision), width=screen.width())
    if decision.refusal:
        yield from section("What did not fit", story.misfits(decision))
        yield from _proposals(one)


def _proposals(one: Answer) -> Iterator[Line]:
    found = one.search.proposals
    if not found:
        yield from section("What would admit it", ["no single change that was tried"])
    else:
        yield from section("What would admit it (each was tried)")
    for proposal in found:
        yield from sentence(advice.advice(proposal, one.decision.before), head="  - ")
        yield from sentence(f"→ {advice.result(proposal)}", head="    ", style="dim")
    if one.search.unsearched:
        yield from section("What was not tried", one.search.unsearched)


def _document(node: Node, one: Answer) -> dict[str, Any]:
    decision = one.decision
    return {
        "workload": {"kind": one.workload.kind, "name": one.workload.name, "source": str(one.workload.source)},
        "verdict": story.verdict(decision),
        "decision": record.to_document(decision),
        "misfits": list(story.misfits(decision)),
        "proposals": [advice.to_document(proposal, decision.before) for proposal in one.search.proposals],
        "unsearched": list(one.search.unsearched),
        "notes": [*node.notes, *inputs.overlooked(node, [one.pod])],
    }


def _documents(node: Node, answers: Sequence[Answer]) -> dict[str, Any]:
    return {"version": VERSION, "answers": [_document(node, one) for one in answers]}


def _json(node: Node, answers: Sequence[Answer]) -> None:
    screen.values(_documents(node, answers))


def _yaml(node: Node, answers: Sequence[Answer]) -> None:
    screen.document(dump(_documents(node, answers)))


FORMS: dict[str, Callable[[Node, Sequence[Answer]], None]] = {"text": _text, "json": _json, "yaml": _yaml}
