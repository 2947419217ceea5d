"""What ``alignup why`` answers, for people and for machines."""

import json
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
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
from alignup.kube.dump import dump
from alignup.kube.manifests import Workload
from alignup.picture import decision as picture
from alignup.picture.cells import Cell, Line, words, wrapped
from alignup.picture.words import clean

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
    width = screen.width()
    lines: list[Line] = []
    for one in answers:
        lines += [(), (Cell("─" * width, "frame"),), ()] if lines else []
        lines += _told(node, one, width)
    screen.lines(lines)


def _told(node: Node, one: Answer, width: int) -> Iterator[Line]:
    """The whole story, from the verdict to what would change it."""
    decision, host = one.decision, node.host
    yield from _wrapped(story.verdict(decision), width, style="warn" if decision.refusal else "title")
    if decision.refusal:
        yield from _wrapped(decision.refusal.message, width)
    yield from _wrapped(story.rules(decision), width, style="dim")
    yield from picture.draw(host.machine, decision, parts(host, one.pod, decision), width=width)
    if decision.refusal:
        yield from _list("What did not fit", story.misfits(decision), width)
        yield from _proposals(one, width)


def _proposals(one: Answer, width: int) -> Iterator[Line]:
    ledger = one.decision.before
    found = one.search.proposals
    yield from _list("What would admit it (each was tried)" if found else "What would admit it", (), width)
    for proposal in found:
        yield from _wrapped(advice.advice(proposal, ledger), width, head="  - ")
        yield from _wrapped(f"→ {advice.result(proposal)}", width, head="    ", style="dim")
    if not found:
        yield from _wrapped("no single change that was tried", width, head="  - ")
    if one.search.unsearched:
        yield from _list("What was not tried", one.search.unsearched, width)


def _list(title: str, sentences: Iterable[str], width: int) -> Iterator[Line]:
    yield ()
    yield (Cell(title, "title"),)
    for sentence in sentences:
        yield from _wrapped(sentence, width, head="  - ")


def _wrapped(sentence: str, width: int, *, head: str = "", style: str = "") -> Iterator[Line]:
    """A sentence in lines, those after the first under it."""
    lines = wrapped(words((Cell(clean(sentence), style),)), width - len(head))
    for number, line in enumerate(lines):
        yield (Cell(" " * len(head) if number else head), *line)


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
    screen.document(json.dumps(_documents(node, answers), indent=2, ensure_ascii=False) + "\n")


def _yaml(node: Node, answers: Sequence[Answer]) -> None:
    screen.document(dump(_documents(node, answers)))


FORMS: dict[str, Callable[[Node, Sequence[Answer]], None]] = {"text": _text, "json": _json, "yaml": _yaml}
