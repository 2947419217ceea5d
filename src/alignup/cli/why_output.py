"""What ``alignup why`` answers, for people and for machines."""

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from alignup.align.decision import Decision
from alignup.align.explain import advice, remedies, sentences
from alignup.align.explain.decision_parts import decision_parts
from alignup.align.explain.remedies import Remedies
from alignup.align.workload import Pod
from alignup.cli import inputs, terminal
from alignup.cli.inputs import HostInput
from alignup.cli.text_layout import paragraph, section
from alignup.kube.manifests import Workload
from alignup.kube.yaml_output import to_yaml
from alignup.picture import decision as picture
from alignup.picture.cells import Cell, Line
from alignup.schema import decisions

VERSION = 1  #: of the documents


@dataclass(frozen=True, slots=True)
class Explanation:
    """All there is to say about one workload."""

    workload: Workload
    pod: Pod
    decision: Decision
    search: Remedies


def explain(node: HostInput, workload: Workload, *, seconds: float) -> Explanation:
    """Decide on one replica of *workload*; where it is refused, look for what would admit it for so many *seconds*."""
    with inputs.input_errors(f"in {workload.source}"):
        decision = node.host.decide(workload.pod)
        end = time.monotonic() + seconds
        search = remedies.find_remedies(node.host, workload.pod, should_stop=lambda: time.monotonic() > end)
    return Explanation(workload, workload.pod, decision, search)


def _text(node: HostInput, answers: Sequence[Explanation]) -> None:
    lines: list[Line] = []
    for one in answers:
        lines += [(), (Cell("─" * terminal.width(), "frame"),), ()] if lines else []
        lines += _told(node, one)
    terminal.print_lines(lines)


def _told(node: HostInput, one: Explanation) -> Iterator[Line]:
    """The whole story, from the verdict to what would change it."""
    decision, host = one.decision, node.host
    yield from paragraph(sentences.verdict(decision), style="warn" if decision.refusal else "title")
    if decision.refusal:
        yield from paragraph(decision.refusal.message)
    yield from paragraph(sentences.describe_rules(decision), style="dim")
    yield from picture.draw(host.machine, decision, decision_parts(host, one.pod, decision), width=terminal.width())
    if decision.refusal:
        yield from section("What did not fit", sentences.describe_rejection(decision))
        yield from _proposals(one)


def _proposals(one: Explanation) -> Iterator[Line]:
    found = one.search.proposals
    if not found:
        yield from section("What would admit it", ["no single change that was tried"])
    else:
        yield from section("What would admit it (each was tried)")
    for proposal in found:
        yield from paragraph(advice.describe_proposal(proposal, one.decision.before), head="  - ")
        yield from paragraph(f"→ {advice.describe_result(proposal)}", head="    ", style="dim")
    if one.search.unsearched:
        yield from section("What was not tried", one.search.unsearched)


def _document(node: HostInput, one: Explanation) -> dict[str, Any]:
    decision = one.decision
    return {
        "workload": {"kind": one.workload.kind, "name": one.workload.name, "source": str(one.workload.source)},
        "verdict": sentences.verdict(decision),
        "decision": decisions.to_document(decision),
        "misfits": list(sentences.describe_rejection(decision)),
        "proposals": [advice.to_document(proposal, decision.before) for proposal in one.search.proposals],
        "unsearched": list(one.search.unsearched),
        "notes": [*node.notes, *inputs.ignored_requests(node, [one.pod])],
    }


def _documents(node: HostInput, answers: Sequence[Explanation]) -> dict[str, Any]:
    return {"version": VERSION, "answers": [_document(node, one) for one in answers]}


def _json(node: HostInput, answers: Sequence[Explanation]) -> None:
    terminal.print_json(_documents(node, answers))


def _yaml(node: HostInput, answers: Sequence[Explanation]) -> None:
    terminal.write_document(to_yaml(_documents(node, answers)))


RENDERERS: dict[str, Callable[[HostInput, Sequence[Explanation]], None]] = {"text": _text, "json": _json, "yaml": _yaml}
